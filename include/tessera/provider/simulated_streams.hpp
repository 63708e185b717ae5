// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/simulated_calls.hpp>

namespace tessera {

/// The streams of a simulated device, whose work takes virtual time, and the events in them.
class simulated_streams : public simulated_calls {
 public:
  /// A mark in a stream: the time at which the work before it ends.
  struct event {
    std::uint64_t ready_ns = 0;
  };

  bool record(stream_id stream, event& mark) noexcept {
    const bool works = !fails();
    if (works) mark.ready_ns = end_of_work(stream);
    return ended(counts_.record, {.kind = call::record, .stream = stream}, works, costs_.record);
  }
  [[nodiscard]] bool query(event& mark) noexcept {
    ++counts_.query;
    const bool ready = !held_ && mark.ready_ns <= now_ns();
    advance(costs_.query);
    note({.kind = call::query, .ok = ready, .time_ns = now_ns()});
    return ready;
  }
  bool wait(event& mark) noexcept {
    const bool works = !fails();
    if (works) wait_until(mark.ready_ns);
    return ended(counts_.wait, {.kind = call::wait}, works, costs_.wait);
  }
  void discard(event&) noexcept {
    ++counts_.discard;
    note({.kind = call::discard, .time_ns = now_ns()});
  }
  /// Returns once all work submitted to the stream so far is done; where there is none, at once.
  bool synchronize(stream_id stream) noexcept {
    const bool works = !fails();
    if (works) wait_until(end_of_work(stream));
    return ended(counts_.synchronize, {.kind = call::synchronize, .stream = stream}, works,
                 costs_.synchronize);
  }

  /// Queues work of `duration` nanoseconds behind what the stream has to do already.
  ///   Cost:  linear in the streams that are busy, which are all that is remembered
  void submit(stream_id stream, std::uint64_t duration) {
    std::erase_if(busy_, [this](const auto& entry) { return entry.second <= now_ns(); });
    busy_[stream.handle] = saturating_add(end_of_work(stream), duration);
  }
  /// While held, no query answers ready, whatever the time; waits still end.
  void hold_events(bool held) noexcept { held_ = held; }

 protected:
  using simulated_calls::simulated_calls;

 private:
  [[nodiscard]] std::uint64_t end_of_work(stream_id stream) const noexcept {
    const auto found = busy_.find(stream.handle);
    return found != busy_.end() ? found->second : now_ns();
  }

  bool ended(std::uint64_t& count, const logged& made, bool works, std::uint64_t cost) noexcept {
    return booked(count, made, works ? simulated_outcome{} : as_told, cost);
  }

  std::map<std::uint64_t, std::uint64_t> busy_;  // when the work of each stream ends or ended
  bool held_ = false;
};

}  // namespace tessera
