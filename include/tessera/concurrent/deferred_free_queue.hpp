// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/reach.hpp>
#include <tessera/provider/forwarding.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// A variable whose memory could be collected once nobody reads it any more.
struct collectable {
  std::int64_t bytes = 0;  ///< negative where a dimension is not known; what counts is how much it is
  bool is_collected = false;
};

/// Says which variables of one device are collected: the largest, until they hold a share of the bytes of all; of a share
/// of 0 or less than a byte none, and of 1 all. Of equal ones the first go first.
///   Returns:  how many
///   Cost:     linear, 65 passes
///   Source:   Paddle's memory_fraction_of_eager_deletion, for dense tensors; others are always collected
constexpr std::size_t choose_collected(std::span<collectable> all, fraction share) noexcept {
  const auto magnitude = [](const collectable& v) {
    const auto bits = static_cast<std::uint64_t>(v.bytes);
    return static_cast<std::size_t>(v.bytes < 0 ? ~bits + 1 : bits);
  };
  const auto sum_from = [&](std::size_t least) {
    std::size_t sum = 0;
    for (const collectable& v : all) sum = magnitude(v) >= least ? saturating_add(sum, magnitude(v)) : sum;
    return sum;
  };
  const bool takes_all = share.billionths >= percent(100).billionths;
  const std::size_t target = share.of(sum_from(0));
  // The largest size that those of it and above hold the target.
  std::size_t least = 0;
  for (std::size_t bit = std::size_t{1} << 63; bit > 0; bit /= 2) {
    if (sum_from(least + bit) >= target) least += bit;
  }
  std::size_t held = sum_from(least + 1);
  std::size_t count = 0;
  for (collectable& v : all) {
    const bool is_last = magnitude(v) == least && held < target;
    if (is_last) held = saturating_add(held, least);
    v.is_collected = takes_all || (target > 0 && (magnitude(v) > least || is_last));
    count += v.is_collected;
  }
  return count;
}

/// How garbage is collected.
struct collection {
  std::size_t threshold =
      0;               ///< bytes that are gathered before they are freed; 0 at once, `unlimited` at the end
  bool waits = false;  ///< for the work that uses them, before they are freed
  stream_id stream{};  ///< that work's
};

/// Gathers blocks that a program uses no more and frees them together, once they are of so many bytes. Unless it waits for
/// the stream, it counts on reuse in the order of the stream, and work on blocks may be under way when they are freed.
/// Waiting is for an event behind that work: nobody is held up, but where the device has no events, too many wait, or host
/// memory ran out. One thread at a time may use it.
///
///     tessera::collector garbage(pool, {.threshold = 64_MiB});
///     garbage.collect(pool.allocate(40_MiB), 40_MiB);  // kept
///     garbage.collect(pool.allocate(40_MiB), 40_MiB);  // both are freed
///
///   Requires:  the allocator outlives it
///   Source:    Paddle's eager_delete_tensor_gb, where negative stands for never, and fast_eager_deletion_mode
template <typename Allocator>
class collector {
 public:
  explicit collector(Allocator& from, collection how = {}) noexcept : from_(&from), how_(how) {
    if constexpr (!event_provider<device> && !can_synchronize) {
      if (how.waits) fatal("collector: to wait, the device must be an event_provider");
    }
  }
  collector(const collector&) = delete;
  collector& operator=(const collector&) = delete;
  ~collector() { finish(); }

  /// Takes a block over, which counts as `bytes`. Null is ignored.
  void collect(void* p, std::size_t bytes) noexcept {
    retire();
    if (p == nullptr) return;
    item* const added = new (std::nothrow) item{p, gathered_};
    if (added == nullptr) return free_now(p);
    gathered_ = added;
    bytes_ = saturating_add(bytes_, bytes);
    if (how_.threshold <= 1 || (bytes_ >= how_.threshold && how_.threshold != unlimited)) flush();
  }
  /// Bytes that are gathered.
  [[nodiscard]] std::size_t gathered() const noexcept { return bytes_; }
  /// Whether blocks wait for their stream.
  [[nodiscard]] bool is_waiting() const noexcept { return oldest_ != nullptr; }

  /// Frees what is gathered, now or once the stream has come past this call.
  void flush() noexcept {
    item* const freed = std::exchange(gathered_, nullptr);
    bytes_ = 0;
    if (freed == nullptr) return;
    if (!how_.waits) return free_all(freed);
    batch* const held = event_provider<device> ? new (std::nothrow) batch{freed} : nullptr;
    if (held == nullptr) return wait_for_stream(), free_all(freed);
    (newest_ != nullptr ? newest_->next : oldest_) = held;
    newest_ = held;
    (void)is_recorded(*held);
    if (++batches_ > most_batches) end_oldest();
  }
  /// Frees what waited for the stream and need not any more.
  void retire() noexcept {
    if constexpr (event_provider<device>) {
      while (oldest_ != nullptr && is_recorded(*oldest_) &&
             on_device([this](device& d) { return d.query(oldest_->mark); }))
        free_oldest();
    }
  }
  /// Frees everything, after waiting where that is asked for.
  void finish() noexcept {
    flush();
    while (oldest_ != nullptr) end_oldest();
  }

 private:
  using device = device_of<Allocator>;
  static constexpr bool can_synchronize = requires(device& d, stream_id s) { d.synchronize(s); };
  static constexpr std::size_t most_batches = 1024;

  struct item {
    void* address;
    item* next;
  };
  /// What waits for one event.
  struct batch {
    item* items;
    batch* next = nullptr;
    bool recorded = false;
    typename event_of<device>::type mark{};
  };

  template <typename F>
  decltype(auto) on_device(F f) noexcept {
    return with_device_of(*from_, f);
  }
  void free_all(item* first) noexcept {
    while (first != nullptr) {
      from_->deallocate(first->address);
      delete std::exchange(first, first->next);
    }
  }
  void free_now(void* p) noexcept {
    if (how_.waits) wait_for_stream();
    from_->deallocate(p);
  }
  void wait_for_stream() noexcept {
    on_device([this](device& d) { (void)finish_work(d, how_.stream); });
  }

  /// An event that the device fails to record is tried again later.
  bool is_recorded(batch& held) noexcept {
    if constexpr (event_provider<device>) {
      if (!held.recorded)
        held.recorded = on_device([&](device& d) { return d.record(how_.stream, held.mark); });
    }
    return held.recorded;
  }
  void free_oldest() noexcept {
    if constexpr (event_provider<device>) {
      if (oldest_->recorded) on_device([this](device& d) { d.discard(oldest_->mark); });
    }
    batch* const done = std::exchange(oldest_, oldest_->next);
    if (oldest_ == nullptr) newest_ = nullptr;
    --batches_;
    free_all(done->items);
    delete done;
  }
  void end_oldest() noexcept {
    if constexpr (event_provider<device>) {
      if (is_recorded(*oldest_)) on_device([this](device& d) { (void)d.wait(oldest_->mark); });
    }
    free_oldest();
  }

  Allocator* from_;
  collection how_;
  item* gathered_ = nullptr;
  std::size_t bytes_ = 0;
  batch* oldest_ = nullptr;
  batch* newest_ = nullptr;
  std::size_t batches_ = 0;
};

}  // namespace tessera
