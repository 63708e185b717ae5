// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <iterator>
#include <map>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/stream_order.hpp>

namespace tessera::detail {

/// The result of a call on a simulated device.
struct simulated_outcome {
  const char* broken = nullptr;     ///< the rule that a failed call broke; null if it worked
  bool for_want_of_memory = false;  ///< whether the call failed for lack of memory or addresses
  std::uintptr_t given = 0;         ///< the returned address
  std::size_t units = 0;            ///< MiB or page-table entries, for the cost of the call
};

/// Counts, logs and times the calls of a simulated device. It can make chosen calls fail.
class simulated_calls {
 public:
  /// The cost of each call in nanoseconds of virtual time. Costs per MiB count whole MiB; costs per entry
  /// count page-table entries.
  ///   Source:  cudaMalloc takes about 50 us from 4 KB to 512 KB and rises above that, by undated
  ///            measurements on old hosts (cs.virginia.edu/~mwb7w/cuda_support); the others are plausible,
  ///            not measured
  struct call_costs {
    std::uint64_t acquire = 50'000;
    std::uint64_t acquire_per_mib = 500;
    std::uint64_t release = 50'000;
    std::uint64_t release_per_mib = 100;
    std::uint64_t record = 1'000;
    std::uint64_t query = 500;
    std::uint64_t wait = 5'000;
    std::uint64_t reserve = 2'000;
    std::uint64_t unreserve = 1'000;
    std::uint64_t create = 20'000;
    std::uint64_t create_per_mib = 500;
    std::uint64_t destroy = 20'000;
    std::uint64_t map = 2'000;
    std::uint64_t map_per_entry = 100;
    std::uint64_t grant = 30'000;
    std::uint64_t grant_per_entry = 100;
    std::uint64_t unmap = 30'000;
    std::uint64_t unmap_per_entry = 100;
    std::uint64_t synchronize = 5'000;
    std::uint64_t export_memory = 10'000;
    std::uint64_t allow = 5'000;
    std::uint64_t import_memory = 30'000;
    std::uint64_t enable_peer_access = 100'000;
    std::uint64_t make_wait = 1'000;
  };
  enum class call : unsigned char {
    acquire,
    release,
    record,
    query,
    wait,
    discard,
    reserve,
    unreserve,
    create,
    destroy,
    map,
    grant,
    unmap,
    synchronize,
    export_memory,
    allow,
    import_memory,
    enable_peer_access,
    make_wait
  };
  struct counts {
    std::uint64_t acquire = 0, release = 0, record = 0, query = 0, wait = 0, discard = 0;
    std::uint64_t reserve = 0, unreserve = 0, create = 0, destroy = 0;
    std::uint64_t map = 0, grant = 0, unmap = 0, synchronize = 0;
    std::uint64_t export_memory = 0, allow = 0, import_memory = 0, enable_peer_access = 0, make_wait = 0;
    std::uint64_t refused = 0;  ///< calls that failed for lack of memory or addresses
    std::uint64_t failed = 0;   ///< calls that were made to fail
  };
  struct logged {
    call kind{};
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    stream_id stream{};
    bool ok = true;             ///< for a query: whether the event was ready
    std::uint64_t time_ns = 0;  ///< virtual time at which the call returned
  };

  void advance(std::uint64_t nanoseconds) noexcept { now_ns_ = saturating_add(now_ns_, nanoseconds); }
  [[nodiscard]] std::uint64_t now_ns() const noexcept { return now_ns_; }

  /// Makes every k-th call fail, counted from now. Query and discard do not count. 0 stops it.
  void fail_every(std::uint64_t k) noexcept { fail_every_ = k, since_failure_ = 0; }
  /// Makes the n-th call from now fail once. Query and discard do not count. 0 cancels it.
  void fail_call(std::uint64_t n) noexcept { fail_in_ = n; }

  [[nodiscard]] const counts& calls() const noexcept { return counts_; }
  /// The latest calls, oldest first.
  [[nodiscard]] const std::deque<logged>& log() const noexcept { return log_; }

  /// Names the latest failed call, its address and the broken rule; empty if no call failed. The text is
  /// valid until the next call of last_error().
  [[nodiscard]] const char* last_error() const noexcept {
    if (failure_.rule == nullptr) return "";
    constexpr std::array names = {
        "acquire",  "release",     "record",        "query",   "wait",          "discard",
        "reserve",  "unreserve",   "create",        "destroy", "map",           "grant",
        "unmap",    "synchronize", "export_memory", "allow",   "import_memory", "enable_peer_access",
        "make_wait"};
    const char* const name = names[static_cast<std::size_t>(failure_.kind)];
    if (failure_.address != 0)
      std::snprintf(text_.data(), text_.size(), "%s at %p, %zu bytes: %s", name,
                    reinterpret_cast<const void*>(failure_.address), failure_.bytes, failure_.rule);
    else if (failure_.bytes != 0)
      std::snprintf(text_.data(), text_.size(), "%s, %zu bytes: %s", name, failure_.bytes, failure_.rule);
    else
      std::snprintf(text_.data(), text_.size(), "%s: %s", name, failure_.rule);
    return text_.data();
  }

 protected:
  simulated_calls(const call_costs& costs, std::uint64_t fail_every, std::size_t log_calls)
      : costs_(costs), fail_every_(fail_every), log_calls_(log_calls) {}

  /// The outcome of a call that was made to fail.
  static constexpr simulated_outcome injected_failure{.broken = "the call is made to fail"};
  /// Counts a call that can fail. Returns whether this call must fail.
  [[nodiscard]] bool take_failure() noexcept {
    const bool every = fail_every_ != 0 && ++since_failure_ == fail_every_;
    const bool once = fail_in_ != 0 && --fail_in_ == 0;
    if (every) since_failure_ = 0;
    if (every || once) ++counts_.failed;
    return every || once;
  }
  /// Counts a call, adds its cost to the time and logs it.
  ///   Returns:  whether it worked
  bool finish(std::uint64_t& count, const logged& logged_call, const simulated_outcome& outcome,
              std::uint64_t cost, std::uint64_t cost_per_unit = 0) noexcept {
    ++count;
    const bool works = outcome.broken == nullptr;
    if (!works) failure_ = {logged_call.kind, logged_call.address, logged_call.bytes, outcome.broken};
    if (outcome.for_want_of_memory) ++counts_.refused;
    advance(cost + cost_per_unit * outcome.units);
    note({logged_call.kind, outcome.given != 0 ? outcome.given : logged_call.address, logged_call.bytes,
          logged_call.stream, works, now_ns_});
    return works;
  }
  void note(const logged& latest) {
    if (log_calls_ == 0) return;
    if (log_.size() == log_calls_) log_.pop_front();
    log_.push_back(latest);
  }
  void wait_until(std::uint64_t time_ns) noexcept {
    if (time_ns > now_ns_) now_ns_ = time_ns;
  }

  call_costs costs_;
  counts counts_;

 private:
  struct failure {
    call kind{};
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    const char* rule = nullptr;
  };

  std::uint64_t now_ns_ = 0;
  std::uint64_t fail_every_;
  std::uint64_t since_failure_ = 0;
  std::uint64_t fail_in_ = 0;
  std::size_t log_calls_;
  std::deque<logged> log_;
  failure failure_;
  mutable std::array<char, 256> text_{};  // of last_error
};

/// The streams and events of a simulated device. Work takes virtual time.
class simulated_streams : public simulated_calls {
 public:
  /// The end of the work submitted to a stream so far.
  struct event {
    std::uint64_t ready_ns = 0;
    stream_id stream{};
    std::uint64_t position = 0;
    std::uint64_t serial = 0;  ///< counts events
  };

  bool record(stream_id stream, event& mark) noexcept {
    const bool works = !take_failure();
    if (works) mark = {end_of_work(stream), stream, position(stream), ++marks_};
    return finish_stream_call(counts_.record, {.kind = call::record, .stream = stream}, works, costs_.record);
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
    const bool works = !take_failure();
    if (works) wait_until(mark.ready_ns), note_wait(mark.stream, {mark.serial, mark.position + 1});
    return finish_stream_call(counts_.wait, {.kind = call::wait}, works, costs_.wait);
  }
  void discard(event&) noexcept {
    ++counts_.discard;
    note({.kind = call::discard, .time_ns = now_ns()});
  }
  /// Waits until all work submitted to the stream is done. Returns at once if the stream has no work.
  bool synchronize(stream_id stream) noexcept {
    const bool works = !take_failure();
    if (works) wait_until(end_of_work(stream)), note_wait(stream, {marks_, position(stream) + 1});
    return finish_stream_call(counts_.synchronize, {.kind = call::synchronize, .stream = stream}, works,
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
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id other, std::uint64_t at) const noexcept {
    return order_.is_ordered_after(stream, other, at);
  }
  bool make_wait(stream_id stream, stream_id other, std::uint64_t at) noexcept {
    const bool works = !take_failure() && order_.reserve(stream, other);
    if (works && stream != other) {
      queue(stream, (std::max)(end_of_work(stream), end_of_work(other, at)));
      (void)order_.add(stream, position(stream), other, at);
    }
    return finish_stream_call(counts_.make_wait, {.kind = call::make_wait, .stream = stream}, works,
                              costs_.make_wait);
  }
  /// Makes all further work of a stream wait for an event, like cudaStreamWaitEvent.
  bool make_wait(stream_id stream, const event& mark) noexcept {
    return make_wait(stream, mark.stream, mark.position);
  }

  /// Submits work of `duration` nanoseconds, which starts after the stream's earlier work.
  ///   Cost:  logarithmic in the running tasks and the streams
  void submit(stream_id stream, std::uint64_t duration) {
    queue(stream, saturating_add(end_of_work(stream), duration));
  }
  /// While events are held, an event or position counts as done only after a wait for it, whatever the time.
  /// Waits still end.
  void hold_events(bool held) noexcept { held_ = held; }

 protected:
  using simulated_calls::simulated_calls;

 private:
  /// The latest event serial and position of a stream for which a caller has waited.
  struct waited {
    std::uint64_t serial = 0;
    std::uint64_t positions = 0;
  };
  [[nodiscard]] waited waited_for(stream_id stream) const noexcept {
    const auto found = waited_.find(stream);
    return found != waited_.end() ? found->second : waited{};
  }
  void note_wait(stream_id stream, waited so_far) noexcept {
    waited& reached = waited_[stream];
    reached.serial = (std::max)(reached.serial, so_far.serial);
    reached.positions = (std::max)(reached.positions, so_far.positions);
  }

  /// The time at which the work of a stream up to a position ends, or now if that is later.
  [[nodiscard]] std::uint64_t end_of_work(stream_id stream, std::uint64_t at = unlimited) const noexcept {
    const auto behind = ends_ns_.upper_bound({stream.handle, at});
    if (behind == ends_ns_.begin() || std::prev(behind)->first.first != stream.handle) return now_ns();
    return (std::max)(std::prev(behind)->second, now_ns());
  }
  /// Submits a task that ends at this time. Erases tasks that have ended, except the last one, which stores
  /// the position.
  void queue(stream_id stream, std::uint64_t ends_ns) {
    const stream_pair task{stream.handle, position(stream) + 1};
    ends_ns_[task] = ends_ns;
    auto first = ends_ns_.lower_bound({stream.handle, 0});
    while (first->second <= now_ns() && first->first.second < task.second) first = ends_ns_.erase(first);
  }

  bool finish_stream_call(std::uint64_t& count, const logged& logged_call, bool works,
                          std::uint64_t cost) noexcept {
    return finish(count, logged_call, works ? simulated_outcome{} : injected_failure, cost);
  }

  std::map<stream_pair, std::uint64_t> ends_ns_;  // end times of tasks, by stream and position
  std::map<stream_id, waited> waited_;
  std::uint64_t marks_ = 0;
  stream_order order_;
  bool held_ = false;
};

}  // namespace tessera::detail
