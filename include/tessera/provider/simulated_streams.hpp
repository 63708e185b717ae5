// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/simulated_calls.hpp>
#include <tessera/provider/stream_order.hpp>

namespace tessera {

/// The streams of a simulated device, whose work takes virtual time, and the events in them.
class simulated_streams : public simulated_calls {
 public:
  /// A mark in a stream: the time at which the work before it ends, and how much that is.
  struct event {
    std::uint64_t ready_ns = 0;
    stream_id stream{};
    std::uint64_t position = 0;
    std::uint64_t serial = 0;  ///< counts marks
  };

  bool record(stream_id stream, event& mark) noexcept {
    const bool works = !fails();
    if (works) mark = {end_of_work(stream), stream, position(stream), ++marks_};
    return ended(counts_.record, {.kind = call::record, .stream = stream}, works, costs_.record);
  }
  [[nodiscard]] bool query(event& mark) noexcept {
    ++counts_.query;
    const bool seen = !held_ || mark.serial <= waited_for(mark.stream).serial;
    const bool ready = seen && mark.ready_ns <= now_ns();
    advance(costs_.query);
    note({.kind = call::query, .ok = ready, .time_ns = now_ns()});
    return ready;
  }
  bool wait(event& mark) noexcept {
    const bool works = !fails();
    if (works) wait_until(mark.ready_ns), note_wait(mark.stream, {mark.serial, mark.position + 1});
    return ended(counts_.wait, {.kind = call::wait}, works, costs_.wait);
  }
  void discard(event&) noexcept {
    ++counts_.discard;
    note({.kind = call::discard, .time_ns = now_ns()});
  }
  /// Returns once all work submitted to the stream so far is done; where there is none, at once.
  bool synchronize(stream_id stream) noexcept {
    const bool works = !fails();
    if (works) wait_until(end_of_work(stream)), note_wait(stream, {marks_, position(stream) + 1});
    return ended(counts_.synchronize, {.kind = call::synchronize, .stream = stream}, works,
                 costs_.synchronize);
  }

  [[nodiscard]] std::uint64_t position(stream_id stream) const noexcept {
    const auto behind = ends_ns_.upper_bound({stream.handle, unlimited});
    if (behind == ends_ns_.begin() || std::prev(behind)->first.first != stream.handle) return 0;
    return std::prev(behind)->first.second;
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t at) const noexcept {
    return (!held_ || at < waited_for(stream).positions) && end_of_work(stream, at) <= now_ns();
  }
  [[nodiscard]] bool is_behind(stream_id stream, stream_id of, std::uint64_t at) const noexcept {
    return order_.is_behind(stream, of, at);
  }
  bool let_wait(stream_id stream, stream_id of, std::uint64_t at) noexcept {
    const bool works = !fails() && order_.reserve(stream, of);
    if (works && stream != of) {
      queue(stream, (std::max)(end_of_work(stream), end_of_work(of, at)));
      (void)order_.add(stream, position(stream), of, at);
    }
    return ended(counts_.let_wait, {.kind = call::let_wait, .stream = stream}, works, costs_.let_wait);
  }
  /// Lets all further work of a stream wait for what is before a mark: how a program puts its streams in order.
  bool let_wait(stream_id stream, const event& mark) noexcept {
    return let_wait(stream, mark.stream, mark.position);
  }

  /// Queues work of `duration` nanoseconds behind what the stream has to do already.
  ///   Cost:  logarithmic in what is remembered: the tasks that are under way, and the last one of each stream
  void submit(stream_id stream, std::uint64_t duration) {
    queue(stream, saturating_add(end_of_work(stream), duration));
  }
  /// While held, no query answers ready and nothing is seen to be done but what was waited for, whatever the time; waits
  /// still end.
  void hold_events(bool held) noexcept { held_ = held; }

 protected:
  using simulated_calls::simulated_calls;

 private:
  /// How far somebody has waited for a stream: marks up to a serial, and so many positions.
  struct waited {
    std::uint64_t serial = 0;
    std::uint64_t positions = 0;
  };
  [[nodiscard]] waited waited_for(stream_id stream) const noexcept {
    const auto found = waited_.find(stream);
    return found != waited_.end() ? found->second : waited{};
  }
  void note_wait(stream_id stream, waited so_far) noexcept {
    waited& most = waited_[stream];
    most.serial = (std::max)(most.serial, so_far.serial);
    most.positions = (std::max)(most.positions, so_far.positions);
  }

  /// When the work of a stream ends that was submitted up to a position, or if that is sooner, now.
  [[nodiscard]] std::uint64_t end_of_work(stream_id stream, std::uint64_t at = unlimited) const noexcept {
    const auto behind = ends_ns_.upper_bound({stream.handle, at});
    if (behind == ends_ns_.begin() || std::prev(behind)->first.first != stream.handle) return now_ns();
    return (std::max)(std::prev(behind)->second, now_ns());
  }
  /// Submits a task that ends at this time. Those that have ended are forgotten; the last one tells the position.
  void queue(stream_id stream, std::uint64_t ends_ns) {
    const stream_pair task{stream.handle, position(stream) + 1};
    ends_ns_[task] = ends_ns;
    auto first = ends_ns_.lower_bound({stream.handle, 0});
    while (first->second <= now_ns() && first->first.second < task.second) first = ends_ns_.erase(first);
  }

  bool ended(std::uint64_t& count, const logged& made, bool works, std::uint64_t cost) noexcept {
    return booked(count, made, works ? simulated_outcome{} : as_told, cost);
  }

  std::map<stream_pair, std::uint64_t> ends_ns_;  // by stream and position, of tasks
  std::map<stream_id, waited> waited_;
  std::uint64_t marks_ = 0;
  stream_order order_;
  bool held_ = false;
};

}  // namespace tessera
