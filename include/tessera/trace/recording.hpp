// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tessera/detail/extensions/extension.hpp>
#include <tessera/fwd.hpp>
#include <tessera/observe/snapshot.hpp>

namespace tessera::inline v0_1::trace::detail {

/// Tells a simulated device, which may be inside adaptors, how to answer event queries.
template <typename Device>
void hold_events_of(Device& device, bool held) {
  if constexpr (requires { device.hold_events(held); }) {
    device.hold_events(held);
  } else {
    hold_events_of(device.inner(), held);
  }
}
/// Tells the device of an allocator. A front end has no provider().
template <typename Allocator>
void hold_events(Allocator& allocator, bool held) {
  if constexpr (requires { allocator.provider(); }) {
    hold_events_of(allocator.provider(), held);
  } else {
    allocator.visit_provider([held](auto& device) { hold_events_of(device, held); });
  }
}

}  // namespace tessera::inline v0_1::trace::detail

namespace tessera::inline v0_1::trace {

/// One operation of a recorded program.
struct event {
  /// What the program did, with the members that count.
  enum class kind : unsigned char {
    allocate,       ///< allocates `bytes` on `stream` as `id`
    free,           ///< frees `id`
    record_stream,  ///< `stream` uses `id`
    answer_events,  ///< event queries answer ready (`bytes` is 1) or not ready (0) from here on
    empty_cache,    ///< of all pools, or of the private pool `id`
    begin_step,     ///< a step begins, such as a training iteration; `id` is its key, or 0
    refused,  ///< a request of `bytes` on `stream` that failed in the recorded run; a replay frees it at once
    // Operations on private pools. `id` is the pool; a recording numbers its pools from 1.
    begin_pool,  ///< opens the scope for `stream`, or for all streams if `bytes` is 1; makes the pool or adds a use
    join_pool,     ///< the open scope selects `stream`, too
    end_pool,      ///< closes the scope
    retain_pool,   ///< makes the pool or adds a use
    release_pool,  ///< removes a use
    // Of the private pool `id`, or of all pools, the default ones too, if `id` is 0.
    sleep,  ///< discards the contents, or saves them by copies on `stream` if `bytes` is 1
    wake,   ///< copies saved contents back on `stream`
  };
  kind what;              ///< decides what the other members mean
  std::uint64_t id = 0;   ///< of an allocation or of a private pool
  std::size_t bytes = 0;  ///< requested bytes, or a choice that the kind names
  stream_id stream{};     ///< of the request, the use or the copies
};

/// A recorded program. Readers check that every free and record_stream names a live allocation.
struct recording {
  /// The call stack and the user's label of an allocation; 0 if unknown.
  struct origin {
    std::uint32_t stack = 0;  ///< a stack in the recording's `stacks`
    std::uint32_t label = 0;  ///< a text in the recording's `stacks`
  };

  std::string name;                         ///< for reports, for example the name of the file
  std::vector<event> events;                ///< without requests of 0 bytes
  std::size_t capacity = 0;                 ///< bytes of the recorded device; 0 if unknown
  observe::snapshot::call_stacks stacks{};  ///< the call stacks and the labels of the origins
  std::vector<origin> origins{};            ///< origins of the allocations, by id; empty if unknown
  std::vector<std::uint64_t> times_us{};    ///< of the events, since an unspecified time; empty if unknown
  /// Ids of blocks whose frees are where they completed, after a stream that used the block. A recording with record_stream
  /// needs none.
  std::vector<std::uint64_t> completed_late{};

  /// The origin of an allocation; zeros if it is unknown.
  [[nodiscard]] origin origin_of(std::uint64_t id) const noexcept {
    return id < origins.size() ? origins[static_cast<std::size_t>(id)] : origin{};
  }
};

/// A recording prepared for replay. Numbers the allocations densely, so a replay needs no lookups.
class program {
 public:
  /// Refers to a recording, which must outlive it.
  explicit program(const recording& source) : source_(&source) {
    std::map<std::uint64_t, std::uint32_t> slot_of;  // not hashed: ids could be chosen to collide
    slot_.reserve(source.events.size());
    std::size_t live = 0;
    std::vector<std::size_t> bytes;
    for (const event& e : source.events) {
      std::uint32_t slot = 0;
      if (e.what == event::kind::allocate) {
        slot = static_cast<std::uint32_t>(bytes.size());
        slot_of.emplace_hint(slot_of.end(), e.id, slot);
        bytes.push_back(e.bytes);
        live += e.bytes;
        if (live > peak_live_) peak_live_ = live;
        if (e.bytes > largest_) largest_ = e.bytes;
      } else if (e.what == event::kind::free || e.what == event::kind::record_stream) {
        slot = slot_of.at(e.id);
        if (e.what == event::kind::free) live -= bytes[slot];
      } else if (e.what == event::kind::sleep || e.what == event::kind::wake) {
        ++sleeps_;
      } else if (e.what == event::kind::refused) {
        ++refusals_;
      }
      slot_.push_back(slot);
    }
    slots_ = bytes.size();
  }

  /// The name of the recording.
  [[nodiscard]] const std::string& name() const noexcept { return source_->name; }
  /// The recording itself.
  [[nodiscard]] const recording& source() const noexcept { return *source_; }
  /// The events of the recording, in their order.
  [[nodiscard]] const std::vector<event>& events() const noexcept { return source_->events; }
  /// The number of the allocation that event `i` makes, frees or records, from 0.
  [[nodiscard]] std::size_t slot(std::size_t i) const noexcept { return slot_[i]; }
  /// How many allocations there are.
  [[nodiscard]] std::size_t slot_count() const noexcept { return slots_; }
  /// The maximum of live requested bytes. Requests that failed in the recorded run never were live.
  [[nodiscard]] std::size_t peak_live() const noexcept { return peak_live_; }
  /// The bytes that every allocator must reserve at some time: peak live, or the largest request if memory sleeps.
  [[nodiscard]] std::size_t min_reserved() const noexcept { return sleeps_ == 0 ? peak_live_ : largest_; }
  /// The number of sleeps and wakes.
  [[nodiscard]] std::size_t sleeps() const noexcept { return sleeps_; }
  /// The number of requests that failed in the recorded run.
  [[nodiscard]] std::size_t refusals() const noexcept { return refusals_; }

 private:
  const recording* source_;
  std::vector<std::uint32_t> slot_;
  std::size_t slots_ = 0;
  std::size_t peak_live_ = 0;
  std::size_t largest_ = 0;
  std::size_t sleeps_ = 0;
  std::size_t refusals_ = 0;
};

/// The outcome of an operation on private pools.
struct pool_outcome {
  bool works = false;         ///< if not, nothing has changed
  std::size_t uses = 0;       ///< of the pool, after the operation
  pool_id pool{};             ///< names the pool in the allocator
  std::size_t bytes = 0;      ///< that a sleep gave back, or a wake took
  const char* why = nullptr;  ///< why a sleep or wake failed, as text
};

/// Executes the operations of a recording on private pools.
template <typename Allocator>
class pool_operations {
 public:
  /// Whether the allocator can carry out sleep and wake.
  static constexpr bool can_sleep = [] {
    if constexpr (tessera::detail::offers<Allocator, extension::sleep_mode>) return Allocator::has_ranges;
    return false;
  }();

  /// Makes the pools of a recording in this allocator. They keep their uses when it ends.
  explicit pool_operations(Allocator& allocator) noexcept : allocator_(allocator) {}

  ///   Requires:  the event is an operation on pools, or empties a cache
  pool_outcome run(const event& e) {
    if (e.what == event::kind::sleep || e.what == event::kind::wake) return change_sleep(e);
    if constexpr (has_pools) {
      if (e.id == 0) {
        if (door().is_capturing()) return {};
        allocator_.trim();
        return {true, 0};
      }
      pool& p = pools_[e.id];
      const bool works = run(e, p);
      return {works, uses(p.id), p.id};
    } else {
      if (e.id == 0) allocator_.trim();
      return {e.id == 0, 0};
    }
  }

  /// The pool that a number in the recording names; none if it was not made.
  [[nodiscard]] pool_id pool_of(std::uint64_t number) const {
    const auto found = pools_.find(number);
    return found != pools_.end() ? found->second.id : pool_id{};
  }

 private:
  [[nodiscard]] pool_outcome change_sleep(const event& e) {
    if constexpr (can_sleep) {
      pool_id id = pool_of(e.id);
      if (e.id != 0 && id == pool_id{}) id = {unlimited};  // no pool has this number; the allocator says so
      auto memory = allocator_.template get<extension::sleep_mode>();
      using contents = typename decltype(memory)::contents_type;
      const contents kept = e.bytes != 0 ? contents::save : contents::discard;
      const auto result = e.what == event::kind::sleep
                              ? (e.id == 0 ? memory.sleep(kept, e.stream) : memory.sleep(id, kept, e.stream))
                              : (e.id == 0 ? memory.wake(e.stream) : memory.wake(id, e.stream));
      return {static_cast<bool>(result), uses(id), id, result.bytes, result.why};
    } else {
      return {.why = "the allocator cannot sleep"};
    }
  }

  static constexpr bool has_pools = tessera::detail::offers<Allocator, extension::private_pools>;
  [[nodiscard]] auto door() { return allocator_.template get<extension::private_pools>(); }
  [[nodiscard]] std::size_t uses(pool_id of) {
    if constexpr (has_pools) return door().use_count(of);
    return 0;
  }
  struct pool {
    pool_id id;
    std::set<stream_id> streams;  // of the open scope
    static bool selects(void* streams, stream_id stream) noexcept {
      return static_cast<const std::set<stream_id>*>(streams)->contains(stream);
    }
  };
  bool run(const event& e, pool& p) {
    switch (e.what) {
      case event::kind::begin_pool: {
        if (!retain(p)) return false;
        const bool all = e.bytes != 0;
        constexpr auto kind = decltype(this->door())::scope_kind::capture;
        if (!(all ? door().open(p.id, kind) : door().open(p.id, {pool::selects, &p.streams}, kind))) {
          (void)door().release(p.id);
          return false;
        }
        p.streams = {e.stream};
        return true;
      }
      case event::kind::join_pool: p.streams.insert(e.stream); return true;
      case event::kind::end_pool: return static_cast<bool>(door().close(p.id));
      case event::kind::retain_pool: return retain(p);
      case event::kind::release_pool: return static_cast<bool>(door().release(p.id));
      default: door().trim(p.id); return true;
    }
  }
  /// Adds a use, or makes the pool if it does not exist.
  [[nodiscard]] bool retain(pool& p) {
    if (door().has(p.id)) return static_cast<bool>(door().retain(p.id));
    p.id = door().create();
    return p.id != pool_id{};
  }

  Allocator& allocator_;
  std::map<std::uint64_t, pool> pools_;
};

/// Replays a program on an allocator over a simulated device, which may be inside adaptors.
///
/// Calls `before(i)` before each event and `after(i, p)` after it; `p` is the address of the event's block,
/// or null. After operations on private pools, and after emptying a cache, calls `after(i, pool_outcome)` if it
/// can. Skips frees of failed allocations. Frees a request that failed in the recorded run after `after(i, p)`. An
/// allocator without private pools serves all requests from its default pools. An allocator that cannot sleep skips sleeps
/// and wakes, and the outcome says so. While a pool sleeps, its requests fail and no use of its blocks is recorded. An
/// allocator without begin_step ignores steps.
///
///     using namespace tessera::trace;
///     const recording recorded{"one block", {{event::kind::allocate, 0, 5_MiB}, {event::kind::free, 0}}};
///     const program source(recorded);
///     const std::size_t failures = replay(source, allocator);
///     const std::size_t reserved = allocator.current_usage().reserved;
///     std::printf("%zu failed, %zu bytes reserved, %zu at peak", failures, reserved, source.peak_live());
///
///   Returns:  the number of failed allocations, without those that failed in the recorded run, too
template <typename Allocator, typename Before, typename After>
std::size_t replay(const program& source, Allocator& allocator, Before before, After after) {
  // One extra slot for events without an allocation.
  std::vector<void*> addresses(source.slot_count() + 1);
  const std::vector<event>& events = source.events();
  std::size_t failures = 0;
  pool_operations<Allocator> pools(allocator);
  for (std::size_t i = 0; i < events.size(); ++i) {
    const event& e = events[i];
    void*& p = addresses[source.slot(i)];
    before(i);
    if (e.what == event::kind::allocate) {  // a switch would use a slower jump table
      p = allocator.try_allocate(e.bytes, e.stream);
      failures += p == nullptr;
      after(i, p);
    } else if (e.what == event::kind::free) {
      allocator.deallocate(p);
      after(i, std::exchange(p, nullptr));
    } else if (e.what == event::kind::record_stream) {
      if constexpr (pool_operations<Allocator>::can_sleep) {
        if (p != nullptr) (void)allocator.try_record_stream(p, e.stream);  // refuses a block that sleeps
      } else {
        if (p != nullptr) (void)allocator.record_stream(p, e.stream);
      }
      after(i, p);
    } else if (e.what == event::kind::answer_events) {
      detail::hold_events(allocator, e.bytes == 0);
      after(i, nullptr);
    } else if (e.what == event::kind::refused) {
      void* const served = allocator.try_allocate(e.bytes, e.stream);
      after(i, served);
      allocator.deallocate(served);
    } else if (e.what == event::kind::begin_step) {
      if constexpr (requires { allocator.begin_step(e.id); }) allocator.begin_step(e.id);
      after(i, nullptr);
    } else if constexpr (std::is_invocable_v<After&, std::size_t, pool_outcome>) {
      after(i, pools.run(e));
    } else {
      (void)pools.run(e);
      after(i, nullptr);
    }
  }
  return failures;
}
template <typename Allocator>
std::size_t replay(const program& source, Allocator& allocator) {
  return replay(source, allocator, [](std::size_t) {}, [](std::size_t, auto) {});
}

}  // namespace tessera::inline v0_1::trace
