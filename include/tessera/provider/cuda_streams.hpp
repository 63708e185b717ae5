// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>

#include <tessera/provider/cuda_calls.hpp>
#include <tessera/provider/stream_order.hpp>

namespace tessera::inline v0_1::detail::cuda {

/// Positions in the streams of a device. CUDA has none, so each position is an event that position() records. Thread-safe.
///   Cost:  an event for each position that is not complete, at most 64 for each stream
class stream_positions {
 public:
  explicit stream_positions(const primary_context& in) noexcept : context_(in) {}
  stream_positions(const stream_positions&) = delete;
  stream_positions& operator=(const stream_positions&) = delete;
  ~stream_positions() {
    for (const auto& known : streams_) {
      for (const marker& m : known.second.pending) destroy(m.at);
    }
  }

  /// Records an event after the work submitted to a stream. Returns false, without an event, if that fails.
  [[nodiscard]] bool record(stream_id stream, event_handle& event) const noexcept {
    const context_guard here(context_);
    if (!here ||
        !context_.succeeded("cuEventCreate", context_.calls().event_create(&event, event_without_timing)))
      return false;
    if (context_.succeeded("cuEventRecord", context_.calls().event_record(event, handle_of(stream))))
      return true;
    destroy(event);
    event = nullptr;
    return false;
  }
  void destroy(event_handle at) const noexcept {
    (void)context_.succeeded("cuEventDestroy", context_.calls().event_destroy(at));
  }
  /// Whether the work before an event is complete.
  [[nodiscard]] bool is_complete(event_handle at) const noexcept {
    const result r = context_.calls().event_query(at);
    return r != not_ready && context_.succeeded("cuEventQuery", r);
  }

  /// Whether a stream exists. One that ended may have left work, so this then waits for the device.
  [[nodiscard]] bool exists(stream_id stream) const noexcept {
    const cuda::calls& cu = context_.calls();
    unsigned flags = 0;
    const context_guard here(context_);
    return !here || cu.stream_get_flags == nullptr ||
           cu.stream_get_flags(handle_of(stream), &flags) != invalid_handle ||
           !context_.succeeded("cuCtxSynchronize", cu.context_synchronize());
  }
  /// Returns the position after the work submitted to a stream. If no event can be recorded, it completes with a later one.
  [[nodiscard]] std::uint64_t position(stream_id stream) {
    const std::lock_guard lock(mutex_);
    return add_event(stream, streams_[stream]);
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t at) {
    const std::lock_guard lock(mutex_);
    return settle(stream, at);
  }
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id of, std::uint64_t at) const {
    const std::lock_guard lock(mutex_);
    return order_.is_ordered_after(stream, of, at);
  }
  [[nodiscard]] bool make_wait(stream_id stream, stream_id of, std::uint64_t at) {
    if (stream == of) return true;
    const std::lock_guard lock(mutex_);
    if (settle(of, at)) {
      if (!exists(stream)) return false;
    } else {
      const marker* found = nullptr;
      for (const marker& m : streams_[of].pending) {
        if (m.position >= at && found == nullptr) found = &m;
      }
      if (found == nullptr) return false;
      const context_guard here(context_);
      if (!here || !context_.succeeded("cuStreamWaitEvent",
                                       context_.calls().stream_wait_event(handle_of(stream), found->at, 0)))
        return false;
    }
    order_.add(stream, add_event(stream, streams_[stream]), of, at);
    return true;
  }

  [[nodiscard]] static stream_handle handle_of(stream_id stream) noexcept {
    return reinterpret_cast<stream_handle>(static_cast<std::uintptr_t>(stream.handle));
  }

 private:
  struct marker {
    std::uint64_t position;
    event_handle at;
  };
  /// The positions of a stream.
  struct stream_state {
    std::uint64_t last = 0;
    std::uint64_t completed = 0;
    std::deque<marker> pending;
  };
  static constexpr std::size_t max_events = 64;

  /// Polls the events of a stream. Returns its last completed position.
  std::uint64_t poll(stream_state& l) const {
    while (!l.pending.empty() && is_complete(l.pending.front().at)) {
      l.completed = l.pending.front().position;
      destroy(l.pending.front().at);
      l.pending.pop_front();
    }
    return l.completed;
  }
  /// Whether a position is complete. If no event tells, asks whether the stream exists.
  [[nodiscard]] bool settle(stream_id stream, std::uint64_t at) {
    stream_state& known = streams_[stream];
    if (poll(known) < at && known.pending.empty() && !exists(stream)) known.completed = known.last;
    return known.completed >= at;
  }
  std::uint64_t add_event(stream_id stream, stream_state& l) const {
    (void)poll(l);
    // At the limit, drops every other event. The next event, which is later, then stands for the dropped one.
    for (std::size_t i = 0; l.pending.size() >= max_events && i + 1 < l.pending.size(); ++i) {
      destroy(l.pending[i].at);
      l.pending.erase(l.pending.begin() + static_cast<std::ptrdiff_t>(i));
    }
    marker event{++l.last, nullptr};
    if (record(stream, event.at)) l.pending.push_back(event);
    return event.position;
  }

  const primary_context& context_;
  mutable std::mutex mutex_;
  std::map<stream_id, stream_state> streams_;
  provider::stream_order order_;
};

}  // namespace tessera::inline v0_1::detail::cuda
