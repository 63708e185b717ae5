// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>

#include <tessera/core/stream.hpp>
#include <tessera/provider/stream_order.hpp>

#include "context.hpp"
#include "driver.hpp"

namespace cuda_driver {

/// Positions in the streams of a device, of which CUDA has none: each stands for an event that is recorded when it is
/// asked for. Calls may come from several threads.
///   Cost:  an event for each position() that the stream has not come past, but at most a few dozen for each stream
class stream_marks {
 public:
  explicit stream_marks(const primary_context& in) noexcept : in_(in) {}
  stream_marks(const stream_marks&) = delete;
  stream_marks& operator=(const stream_marks&) = delete;
  ~stream_marks() {
    for (const auto& known : lines_) {
      for (const mark& m : known.second.under_way) destroy(m.at);
    }
  }

  /// Makes an event behind the work of a stream; false where that failed, and there is none.
  [[nodiscard]] bool record(tessera::stream_id stream, event_handle& made) const noexcept {
    const in_context here(in_);
    if (!here || !in_.worked("cuEventCreate", in_.calls().event_create(&made, event_without_timing)))
      return false;
    if (in_.worked("cuEventRecord", in_.calls().event_record(made, handle_of(stream)))) return true;
    destroy(made);
    made = nullptr;
    return false;
  }
  void destroy(event_handle at) const noexcept {
    (void)in_.worked("cuEventDestroy", in_.calls().event_destroy(at));
  }
  /// Whether the work before an event is done.
  [[nodiscard]] bool is_past(event_handle at) const noexcept {
    const result r = in_.calls().event_query(at);
    return r != not_ready && in_.worked("cuEventQuery", r);
  }

  /// A position behind the work of a stream. One that cannot be marked counts as done together with a later one.
  [[nodiscard]] std::uint64_t position(tessera::stream_id stream) {
    const std::lock_guard lock(mutex_);
    return add_mark(stream, lines_[stream]);
  }
  [[nodiscard]] bool is_done(tessera::stream_id stream, std::uint64_t at) {
    const std::lock_guard lock(mutex_);
    return look(lines_[stream]) >= at;
  }
  [[nodiscard]] bool is_behind(tessera::stream_id stream, tessera::stream_id of, std::uint64_t at) const {
    const std::lock_guard lock(mutex_);
    return order_.is_behind(stream, of, at);
  }
  [[nodiscard]] bool let_wait(tessera::stream_id stream, tessera::stream_id of, std::uint64_t at) {
    if (stream == of) return true;
    const std::lock_guard lock(mutex_);
    line& other = lines_[of];
    if (look(other) < at) {
      const mark* behind = nullptr;
      for (const mark& m : other.under_way) {
        if (m.position >= at && behind == nullptr) behind = &m;
      }
      if (behind == nullptr) return false;
      const in_context here(in_);
      if (!here ||
          !in_.worked("cuStreamWaitEvent", in_.calls().stream_wait_event(handle_of(stream), behind->at, 0)))
        return false;
    }
    order_.add(stream, add_mark(stream, lines_[stream]), of, at);
    return true;
  }

  [[nodiscard]] static stream_handle handle_of(tessera::stream_id stream) noexcept {
    return reinterpret_cast<stream_handle>(static_cast<std::uintptr_t>(stream.handle));
  }

 private:
  struct mark {
    std::uint64_t position;
    event_handle at;
  };
  /// What is known of a stream.
  struct line {
    std::uint64_t given = 0;
    std::uint64_t done = 0;
    std::deque<mark> under_way;
  };
  static constexpr std::size_t most_marks = 64;

  /// Returns how far a stream has been seen to come.
  std::uint64_t look(line& l) const {
    while (!l.under_way.empty() && is_past(l.under_way.front().at)) {
      l.done = l.under_way.front().position;
      destroy(l.under_way.front().at);
      l.under_way.pop_front();
    }
    return l.done;
  }
  std::uint64_t add_mark(tessera::stream_id stream, line& l) const {
    (void)look(l);
    // Of many marks every other one goes: the next one then stands for it, which is later.
    for (std::size_t i = 0; l.under_way.size() >= most_marks && i + 1 < l.under_way.size(); ++i) {
      destroy(l.under_way[i].at);
      l.under_way.erase(l.under_way.begin() + static_cast<std::ptrdiff_t>(i));
    }
    mark made{++l.given, nullptr};
    if (record(stream, made.at)) l.under_way.push_back(made);
    return made.position;
  }

  const primary_context& in_;
  mutable std::mutex mutex_;
  std::map<tessera::stream_id, line> lines_;
  tessera::stream_order order_;
};

}  // namespace cuda_driver
