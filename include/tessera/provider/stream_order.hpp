// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/provider/range_map.hpp>

namespace tessera::inline v0_1::provider {

/// Records the waits between streams and implements is_ordered_after(), including waits through other
/// streams.
///
/// Use it in a provider whose device cannot answer is_ordered_after(). Call reserve() before the device's
/// wait call, so that add() can always record the wait:
///
///     tessera::provider::stream_order order;
///     const tessera::stream_id copies{1}, compute{2};
///     if (!order.reserve(compute, copies)) return;  // make_wait gives false
///     // the wait is the fifth task of compute, and waits for the first three tasks of copies
///     (void)order.add(compute, 5, copies, 3);
///     std::printf("%d\n", order.is_ordered_after(compute, copies, 2));
///
/// It keeps the latest 32 waits of each pair of streams. is_ordered_after() may return false if only an older
/// wait orders the streams.
///
///   Cost:  logarithmic in the pairs of streams that ever waited; 0.5 KiB of host memory for each
class stream_order {
 public:
  /// Allocates the host memory that add() needs to record a wait of `stream` for `other`; false if host
  /// memory ran out.
  [[nodiscard]] bool reserve(stream_id stream, stream_id other) noexcept {
    if (stream == other) return true;
    if (!create(stream, other.handle)) return false;
    const awaited* const further = pairs_.find(other.handle);
    if (further == nullptr) return true;
    for (const auto* e = further->from(0); e != nullptr; e = further->after(*e))
      if (e->key != stream.handle && !create(stream, e->key)) return false;
    return true;
  }
  /// Records that the task of `stream` at `position` waits for `other` up to `other_position`.
  ///   Returns:  false if host memory ran out and nothing was recorded; never false after reserve()
  bool add(stream_id stream, std::uint64_t position, stream_id other, std::uint64_t other_position) noexcept {
    if (is_ordered_after(stream, other, other_position)) return true;
    if (!reserve(stream, other)) return false;
    const awaited& own = *pairs_.find(stream.handle);
    own.find(other.handle)->add({position, other_position});
    const awaited* const further = pairs_.find(other.handle);
    if (further == nullptr) return true;
    for (const auto* e = further->from(0); e != nullptr; e = further->after(*e)) {
      const std::uint64_t reached = e->value.reached_at(other_position);
      if (!is_ordered_after(stream, stream_id{e->key}, reached)) own.find(e->key)->add({position, reached});
    }
    return true;
  }
  /// Whether all further work of `stream` runs after the work of `other` up to `position`.
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id other,
                                      std::uint64_t position) const noexcept {
    return position <= reached(stream, ~std::uint64_t{0}, other);
  }
  /// The position of `other` that the work of `stream` at `position` waits for; 0 if that is unknown.
  [[nodiscard]] std::uint64_t reached(stream_id stream, std::uint64_t position,
                                      stream_id other) const noexcept {
    if (stream == other) return position;
    const awaited* const own = pairs_.find(stream.handle);
    const history* const found = own != nullptr ? own->find(other.handle) : nullptr;
    return found != nullptr ? found->reached_at(position) : 0;
  }

 private:
  struct wait {
    std::uint64_t position;  ///< of the waiting stream
    std::uint64_t at;        ///< of the awaited stream
  };
  /// The waits of one stream for another stream, by ascending awaited position.
  class history {
   public:
    void add(wait next) noexcept {
      if (count_ == waits_.size()) {
        for (std::size_t i = 1; i < count_; ++i) waits_[i - 1] = waits_[i];
        --count_;
      }
      waits_[count_++] = next;
    }
    /// The position of the other stream that the work at `position` waits for; 0 if that is unknown.
    [[nodiscard]] std::uint64_t reached_at(std::uint64_t position) const noexcept {
      std::size_t last = count_;
      while (last > 0 && waits_[last - 1].position > position) --last;
      return last > 0 ? waits_[last - 1].at : 0;
    }

   private:
    std::array<wait, 32> waits_;
    std::size_t count_ = 0;
  };
  /// The waits of one stream, by the handles of the streams that it waited for.
  using awaited = tessera::detail::ordered_map<history>;

  /// Makes a pair of streams without waits, unless it exists; false if host memory ran out.
  [[nodiscard]] bool create(stream_id stream, std::uint64_t other) noexcept {
    awaited* own = pairs_.find(stream.handle);
    if (own == nullptr && pairs_.insert_default(stream.handle)) own = pairs_.find(stream.handle);
    return own != nullptr && (own->find(other) != nullptr || own->insert_default(other));
  }

  tessera::detail::ordered_map<awaited> pairs_;
};

}  // namespace tessera::inline v0_1::provider
