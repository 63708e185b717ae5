// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <utility>

#include <tessera/provider/capabilities.hpp>
#include <tessera/provider/range_map.hpp>
#include <tessera/provider/stream_order.hpp>

namespace tessera::inline v0_1::detail {

/// The result of a call on a simulated device.
struct simulated_outcome {
  const char* broken_rule = nullptr;  ///< the rule that a failed call broke; null if it worked
  bool out_of_memory = false;         ///< whether the call failed for lack of memory or addresses
  void* address = nullptr;            ///< the returned address
  std::size_t units = 0;              ///< MiB or page-table entries, for the cost of the call
  bool is_full = false;               ///< whether the call failed because the capacity was reached

  [[nodiscard]] bool works() const noexcept { return broken_rule == nullptr; }
};
inline constexpr simulated_outcome out_of_host_memory{no_host_memory};

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
    std::uint64_t copy = 2'000;             ///< to submit a copy
    std::uint64_t copied_per_mib = 40'000;  ///< duration of a copy on its stream: 26 GB/s
  };
  using call = provider::provider_call::kind;
  struct counts {
    std::uint64_t acquire = 0, release = 0, record = 0, query = 0, wait = 0, discard = 0;
    std::uint64_t reserve = 0, unreserve = 0, create = 0, destroy = 0;
    std::uint64_t map = 0, grant = 0, unmap = 0, synchronize = 0;
    std::uint64_t export_memory = 0, allow = 0, import_memory = 0, enable_peer_access = 0, make_wait = 0;
    std::uint64_t copy_to_host = 0, copy_to_device = 0;
    std::uint64_t refused = 0;  ///< calls that failed for lack of memory or addresses
    std::uint64_t failed = 0;   ///< calls that were made to fail
  };
  struct logged {
    call kind{};
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    stream_id stream{};
    page_kind pages{};          ///< the requested pages of acquire and create
    bool ok = true;             ///< for a query: whether the event was ready
    std::uint64_t time_ns = 0;  ///< virtual time at which the call returned
  };
  /// The latest calls, oldest first, in one array. It is no std::vector, which takes 0.1 s to compile in every program.
  class call_log {
   public:
    /// Keeps the latest `limit` calls.
    explicit call_log(std::size_t limit) noexcept : limit_(limit) {}
    call_log(call_log&& other) noexcept
        : limit_(other.limit_),
          first_(std::exchange(other.first_, nullptr)),
          size_(std::exchange(other.size_, 0)),
          room_(std::exchange(other.room_, 0)) {}
    call_log& operator=(call_log other) noexcept {
      limit_ = other.limit_;
      std::swap(first_, other.first_);
      std::swap(size_, other.size_);
      std::swap(room_, other.room_);
      return *this;
    }
    ~call_log() { delete[] first_; }

    [[nodiscard]] const logged* begin() const noexcept { return end() - size(); }
    [[nodiscard]] const logged* end() const noexcept { return first_ + size_; }
    [[nodiscard]] std::size_t size() const noexcept { return smaller(size_, limit_); }
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] const logged& operator[](std::size_t n) const noexcept { return begin()[n]; }
    [[nodiscard]] const logged& back() const noexcept { return first_[size_ - 1]; }

    [[nodiscard]] bool keeps_calls() const noexcept { return limit_ != 0; }
    /// Adds a call. If the log is full, drops the oldest; if host memory runs out, drops the older half; without any memory,
    /// drops this call.
    ///   Cost:  constant on average
    [[gnu::cold]] void add(const logged& entry, bool ok, std::uint64_t time_ns) noexcept {
      if (size_ == room_ && room_ < max_room()) grow();
      if (room_ == 0) return;
      if (size_ == room_) {
        size_ = smaller(limit_ - 1, room_ / 2);
        for (std::size_t n = 0; n < size_; ++n) first_[n] = first_[room_ - size_ + n];
      }
      first_[size_] = entry;
      first_[size_].ok = ok;
      first_[size_++].time_ns = time_ns;
    }

   private:
    /// Twice as much as it keeps, so that calls move only once in a while.
    [[nodiscard]] std::size_t max_room() const noexcept { return saturating_add(limit_, limit_); }
    [[gnu::cold]] void grow() noexcept {
      const std::size_t room = smaller(larger(2 * room_, std::size_t{16}), max_room());
      auto* const all = new (std::nothrow) logged[room];
      if (all == nullptr) return;
      for (std::size_t n = 0; n < size_; ++n) all[n] = first_[n];
      delete[] first_;
      first_ = all;
      room_ = room;
    }

    std::size_t limit_;
    logged* first_ = nullptr;
    std::size_t size_ = 0;  // with calls that are no longer listed
    std::size_t room_ = 0;
  };

  void advance(std::uint64_t nanoseconds) noexcept { now_ns_ = saturating_add(now_ns_, nanoseconds); }
  [[nodiscard]] std::uint64_t now_ns() const noexcept { return now_ns_; }

  /// Makes every k-th call fail, counted from now. Query and discard do not count. 0 stops it.
  void fail_every(std::uint64_t k) noexcept {
    fail_every_ = k;
    since_failure_ = 0;
  }
  /// Makes the n-th call from now fail once. Query and discard do not count. 0 cancels it.
  void fail_call(std::uint64_t n) noexcept { fail_in_ = n; }

  [[nodiscard]] const counts& calls() const noexcept { return counts_; }
  /// The latest calls, oldest first.
  [[nodiscard]] const call_log& log() const noexcept { return log_; }

  /// Names the latest failed call, its address and the broken rule; empty if no call failed. The text is
  /// valid until the next call of last_error().
  [[nodiscard]] const char* last_error() const noexcept {
    text_ = text_of(failure_);
    return text_.text();
  }
  /// Why the latest call for memory failed. Empty if the capacity was reached, because the numbers show that.
  refusal take_refusal() noexcept { return text_of(std::exchange(refused_, {})); }

 protected:
  simulated_calls(const call_costs& costs, std::uint64_t fail_every, std::size_t log_calls)
      : costs_(costs), fail_every_(fail_every), log_(log_calls) {}

  /// Makes a call, unless it must fail. Then counts it, adds its cost to the time and logs it.
  ///   Returns:  the outcome of make_call() or of the failure
  template <typename F>
  simulated_outcome run(const logged& entry, F make_call) noexcept {
    const simulated_outcome outcome =
        take_failure() ? simulated_outcome{"the call is made to fail"} : make_call();
    note(entry, outcome);
    return outcome;
  }
  /// Counts a call, adds its cost to the time and logs it.
  void finish(call kind, bool ok, std::uint64_t cost) noexcept {
    count(kind, cost);
    if (log_.keeps_calls()) log_.add({.kind = kind}, ok, now_ns_);
  }
  void wait_until(std::uint64_t time_ns) noexcept { now_ns_ = larger(now_ns_, time_ns); }
  [[nodiscard]] const call_costs& costs() const noexcept { return costs_; }

 private:
  /// What run() does after the call. It is no part of that template, so that it is compiled once.
  [[gnu::cold]] void note(logged entry, const simulated_outcome& outcome) noexcept {
    if (!outcome.works()) failure_ = {entry.kind, entry.address, entry.bytes, outcome.broken_rule};
    if (!outcome.works() && asks_for_memory(entry.kind)) refused_ = outcome.is_full ? failure{} : failure_;
    if (outcome.out_of_memory || outcome.broken_rule == no_host_memory) ++counts_.refused;
    if (outcome.address != nullptr) entry.address = address_of(outcome.address);
    const row& of_kind = row_of(entry.kind);
    const std::uint64_t of_units = of_kind.per_unit != nullptr ? costs_.*of_kind.per_unit * outcome.units : 0;
    count(entry.kind, costs_.*of_kind.cost + of_units);
    if (log_.keeps_calls()) log_.add(entry, outcome.works(), now_ns_);
  }
  void count(call kind, std::uint64_t cost) noexcept {
    ++(counts_.*row_of(kind).count);
    advance(cost);
  }

  struct failure {
    call kind{};
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    const char* rule = nullptr;
  };
  /// The counter and the costs of a call.
  struct row {
    std::uint64_t counts::* count = nullptr;
    std::uint64_t call_costs::* cost = nullptr;
    std::uint64_t call_costs::* per_unit = nullptr;
  };
  [[nodiscard]] static const row& row_of(call kind) noexcept {
    using n = counts;
    using c = call_costs;
    static constexpr row rows[] = {
        // in the order of `call`
        {&n::acquire, &c::acquire, &c::acquire_per_mib},
        {&n::release, &c::release, &c::release_per_mib},
        {&n::reserve, &c::reserve},
        {&n::unreserve, &c::unreserve},
        {&n::create, &c::create, &c::create_per_mib},
        {&n::destroy, &c::destroy},
        {&n::map, &c::map, &c::map_per_entry},
        {&n::grant, &c::grant, &c::grant_per_entry},
        {&n::unmap, &c::unmap, &c::unmap_per_entry},
        {&n::record, &c::record},
        {&n::wait, &c::wait},
        {&n::synchronize, &c::synchronize},
        {&n::make_wait, &c::make_wait},
        {},  // a simulated device reclaims nothing
        {&n::export_memory, &c::export_memory},
        {&n::allow, &c::allow},
        {&n::import_memory, &c::import_memory},
        {},  // nor does it register memory
        {},
        {&n::enable_peer_access, &c::enable_peer_access},
        {&n::copy_to_host, &c::copy},
        {&n::copy_to_device, &c::copy},
        {&n::query, &c::query},
        {&n::discard},
    };
    return rows[kind];
  }

  [[nodiscard]] static constexpr bool asks_for_memory(call kind) noexcept {
    return kind == call::acquire || kind == call::reserve || kind == call::create || kind == call::map ||
           kind == call::grant || kind == call::export_memory || kind == call::allow ||
           kind == call::import_memory;
  }
  [[nodiscard]] static refusal text_of(const failure& f) noexcept {
    if (f.rule == nullptr) return {};
    const char* const name = provider::provider_call(f.kind).name();
    if (f.address != 0)
      return refusal::format("%s at 0x%llx, %zu bytes: %s", name, static_cast<unsigned long long>(f.address),
                             f.bytes, f.rule);
    if (f.bytes != 0) return refusal::format("%s, %zu bytes: %s", name, f.bytes, f.rule);
    return refusal::format("%s: %s", name, f.rule);
  }

  /// Counts a call that can fail. Returns whether this call must fail.
  [[nodiscard]] bool take_failure() noexcept {
    const bool every = fail_every_ != 0 && ++since_failure_ == fail_every_;
    const bool once = fail_in_ != 0 && --fail_in_ == 0;
    if (every) since_failure_ = 0;
    if (every || once) ++counts_.failed;
    return every || once;
  }

  call_costs costs_;
  counts counts_;
  std::uint64_t now_ns_ = 0;
  std::uint64_t fail_every_;
  std::uint64_t since_failure_ = 0;
  std::uint64_t fail_in_ = 0;
  call_log log_;
  failure failure_;
  failure refused_;       // the latest of a call for memory
  mutable refusal text_;  // of last_error
};

/// The streams and events of a simulated device. Work takes virtual time. Calls for events are not inlined: an allocator has
/// them in several places, and would take longer to compile.
class simulated_streams : public simulated_calls {
 public:
  /// The end of the work submitted to a stream so far.
  struct event {
    std::uint64_t ready_ns = 0;
    stream_id stream{};
    std::uint64_t position = 0;
    std::uint64_t serial = 0;  ///< counts events
  };

  [[gnu::noinline]] bool record(stream_id stream, event& mark) noexcept {
    return run_on(call::record, stream, [&, this] {
      mark = {end_of_work(stream), stream, position(stream), ++marks_};
      ++live_events_;
    });
  }
  [[nodiscard, gnu::noinline]] bool query(event& mark) noexcept {
    submitted* const work = work_of(mark.stream);
    const bool seen = !holds_events_ || mark.serial <= (work != nullptr ? work->seen_serial : 0);
    const bool ready = seen && mark.ready_ns <= now_ns();
    if (ready && work != nullptr) work->note(mark);
    finish(call::query, ready, costs().query);
    return ready;
  }
  [[gnu::noinline]] bool wait(event& mark) noexcept {
    return run({.kind = call::wait}, [&, this] { return wait_for(mark); }).works();
  }
  [[gnu::noinline]] void discard(event& mark) noexcept {
    if (mark.serial != 0 && live_events_ != 0) --live_events_;
    finish(call::discard, true, 0);
  }
  /// Events that were recorded and not discarded.
  [[nodiscard]] std::size_t live_events() const noexcept { return live_events_; }
  /// Waits until all work submitted to the stream is done. Returns at once if the stream has no work.
  bool synchronize(stream_id stream) noexcept {
    const event all{end_of_work(stream), stream, position(stream), marks_};
    return run({.kind = call::synchronize, .stream = stream}, [&, this] { return wait_for(all); }).works();
  }

  [[nodiscard]] std::uint64_t position(stream_id stream) const noexcept {
    const submitted* const work = streams_.find(stream.handle);
    return work != nullptr ? work->position : 0;
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t at) const noexcept {
    const submitted* const work = streams_.find(stream.handle);
    const bool seen = !holds_events_ || at <= (work != nullptr ? work->seen_position : 0);
    return seen && end_of_work(stream, at) <= now_ns();
  }
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id other, std::uint64_t at) const noexcept {
    return order_.is_ordered_after(stream, other, at);
  }
  bool make_wait(stream_id stream, stream_id other, std::uint64_t at) noexcept {
    const auto queue_wait = [&, this]() -> simulated_outcome {
      if (!order_.reserve(stream, other)) return out_of_host_memory;
      if (stream == other) return {};
      queue(stream, larger(end_of_work(stream), end_of_work(other, at)));
      (void)order_.add(stream, position(stream), other, at);
      return {};
    };
    return run({.kind = call::make_wait, .stream = stream}, queue_wait).works();
  }
  /// Makes all further work of a stream wait for an event, like cudaStreamWaitEvent.
  bool make_wait(stream_id stream, const event& mark) noexcept {
    return make_wait(stream, mark.stream, mark.position);
  }

  /// Submits work of `duration` nanoseconds, which starts after the stream's earlier work. If host memory runs out, waits
  /// until the work is done.
  ///   Cost:  logarithmic in the running tasks and the streams
  void submit(stream_id stream, std::uint64_t duration) {
    queue(stream, saturating_add(end_of_work(stream), duration));
  }
  /// While events are held, an event or position counts as done only after a wait for it, for later work of its stream, or for
  /// work that waits for it, whatever the time. A query that found an event ready counts as a wait.
  void hold_events(bool hold) noexcept { holds_events_ = hold; }

 protected:
  using simulated_calls::simulated_calls;

 private:
  /// The work of a stream.
  struct submitted {
    std::uint64_t position = 0;          ///< of the last task
    ordered_map<std::uint64_t> ends_ns;  ///< when tasks end, by position
    std::uint64_t seen_serial = 0;       ///< the latest event that a caller has found ready or waited for
    std::uint64_t seen_position = 0;     ///< of the latest task of which a caller knows so that it is done

    void note(const event& done) noexcept {
      seen_serial = larger(seen_serial, done.serial);
      seen_position = larger(seen_position, done.position);
    }
  };
  /// Null if host memory ran out.
  [[nodiscard]] submitted* work_of(stream_id stream) noexcept {
    submitted* const work = streams_.find(stream.handle);
    if (work != nullptr || !streams_.insert_default(stream.handle)) return work;
    return streams_.find(stream.handle);
  }
  /// Waits for an event, and notes what is done then. If host memory runs out, the wait fails while events are held.
  [[nodiscard, gnu::cold]] simulated_outcome wait_for(const event& mark) noexcept {
    submitted* const work = work_of(mark.stream);
    if (work == nullptr && holds_events_) return out_of_host_memory;
    wait_until(mark.ready_ns);
    if (work == nullptr) return {};
    work->note(mark);
    for (auto* s = holds_events_ ? streams_.from(0) : nullptr; s != nullptr; s = streams_.after(*s))
      s->value.seen_position =
          larger(s->value.seen_position, order_.reached(mark.stream, mark.position, stream_id{s->key}));
    return {};
  }

  /// The time at which the work of a stream up to a position ends, or now if that is later.
  [[nodiscard]] std::uint64_t end_of_work(stream_id stream, std::uint64_t at = unlimited) const noexcept {
    const submitted* const work = streams_.find(stream.handle);
    const auto* const last = work != nullptr ? work->ends_ns.up_to(at) : nullptr;
    return last != nullptr ? larger(last->value, now_ns()) : now_ns();
  }
  /// Submits a task that ends at this time. Erases tasks that have ended, except the last one.
  void queue(stream_id stream, std::uint64_t ends_ns) noexcept {
    submitted* const work = work_of(stream);
    if (work == nullptr || !work->ends_ns.insert(work->position + 1, ends_ns)) return wait_until(ends_ns);
    ++work->position;
    for (auto* first = work->ends_ns.from(0); first->value <= now_ns() && first->key < work->position;
         first = work->ends_ns.from(0))
      work->ends_ns.extract(first->key);
  }

  /// Makes a call on a stream, which fails only if it is made to fail.
  template <typename F>
  bool run_on(call kind, stream_id stream, F make_call) noexcept {
    const auto succeed = [&] {
      make_call();
      return simulated_outcome{};
    };
    return run({.kind = kind, .stream = stream}, succeed).works();
  }

  ordered_map<submitted> streams_;
  std::uint64_t marks_ = 0;
  std::size_t live_events_ = 0;
  provider::stream_order order_;
  bool holds_events_ = false;
};

}  // namespace tessera::inline v0_1::detail
