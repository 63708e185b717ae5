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

/// What came of a call on a simulated device.
struct simulated_outcome {
  const char* broken = nullptr;     ///< the rule that made it fail, in words; null where it worked
  bool for_want_of_memory = false;  ///< whether it would have worked with more memory or addresses
  std::uintptr_t given = 0;         ///< the address that was given
  std::size_t units = 0;            ///< what was done, in what its cost counts beside the call
};

/// The books of a simulated device: which calls there were, what they cost, which are made to fail, and what time it is.
class simulated_calls {
 public:
  /// What calls cost, in nanoseconds of virtual time; the costs per MiB count whole MiB that were given or taken back, the
  /// costs per entry those of the page table that are written.
  ///   Source:  cudaMalloc takes about 50 us from 4 KB to 512 KB and rises above that, by undated measurements on old
  ///            hosts (cs.virginia.edu/~mwb7w/cuda_support); the others are plausible, not measured
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
    std::uint64_t let_wait = 1'000;
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
    let_wait
  };
  struct counts {
    std::uint64_t acquire = 0, release = 0, record = 0, query = 0, wait = 0, discard = 0;
    std::uint64_t reserve = 0, unreserve = 0, create = 0, destroy = 0;
    std::uint64_t map = 0, grant = 0, unmap = 0, synchronize = 0;
    std::uint64_t export_memory = 0, allow = 0, import_memory = 0, enable_peer_access = 0, let_wait = 0;
    std::uint64_t refused = 0;  ///< calls for want of memory or of addresses
    std::uint64_t failed = 0;   ///< calls made to fail
  };
  struct logged {
    call kind{};
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    stream_id stream{};
    bool ok = true;             ///< of a query: ready
    std::uint64_t time_ns = 0;  ///< when the call returned
  };

  void advance(std::uint64_t nanoseconds) noexcept { now_ns_ = saturating_add(now_ns_, nanoseconds); }
  [[nodiscard]] std::uint64_t now_ns() const noexcept { return now_ns_; }

  /// Lets every k-th call that can fail do so, counted from now: all but query and discard. 0 ends it.
  void fail_every(std::uint64_t k) noexcept { fail_every_ = k, since_failure_ = 0; }
  /// Lets the n-th such call from now fail, once. 0 calls it off.
  void fail_call(std::uint64_t n) noexcept { fail_in_ = n; }

  [[nodiscard]] const counts& calls() const noexcept { return counts_; }
  /// The latest calls, oldest first.
  [[nodiscard]] const std::deque<logged>& log() const noexcept { return log_; }

  /// Which call failed last, where, and which rule it broke; empty if none has. The next call of this may overwrite it.
  [[nodiscard]] const char* last_error() const noexcept {
    if (failure_.rule == nullptr) return "";
    constexpr std::array names = {
        "acquire", "release",     "record",        "query",   "wait",          "discard",
        "reserve", "unreserve",   "create",        "destroy", "map",           "grant",
        "unmap",   "synchronize", "export_memory", "allow",   "import_memory", "enable_peer_access",
        "let_wait"};
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

  /// What comes of a call that fails() says is to fail.
  static constexpr simulated_outcome as_told{.broken = "the call is made to fail"};
  /// Whether the call that begins now, one of those that can fail, is made to fail.
  [[nodiscard]] bool fails() noexcept {
    const bool every = fail_every_ != 0 && ++since_failure_ == fail_every_;
    const bool once = fail_in_ != 0 && --fail_in_ == 0;
    if (every) since_failure_ = 0;
    if (every || once) ++counts_.failed;
    return every || once;
  }
  /// Counts a call, books what it cost and logs it.
  ///   Returns:  whether it worked
  bool booked(std::uint64_t& count, const logged& made, const simulated_outcome& came, std::uint64_t cost,
              std::uint64_t cost_per_unit = 0) noexcept {
    ++count;
    const bool works = came.broken == nullptr;
    if (!works) failure_ = {made.kind, made.address, made.bytes, came.broken};
    if (came.for_want_of_memory) ++counts_.refused;
    advance(cost + cost_per_unit * came.units);
    note({made.kind, came.given != 0 ? came.given : made.address, made.bytes, made.stream, works, now_ns_});
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

}  // namespace tessera::detail
