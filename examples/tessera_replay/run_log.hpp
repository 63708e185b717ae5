// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tessera/core/types.hpp>
#include <tessera/plan/memory_plan.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tool/recipe_entry.hpp>
#include <tessera/tool/simulated_allocator.hpp>
#include <tessera/trace/recording.hpp>

#include "memory_map.hpp"
#include "recipes.hpp"

namespace replay {

/// The blocks and the segments of a run of a program, with the events between which they exist.
///
/// Events are those of the program, from 0. What exists from event `from` to event `to` exists after event `from`, and
/// does not exist after event `to`.
struct run_log {
  static constexpr std::uint32_t never = std::numeric_limits<std::uint32_t>::max();

  /// The block that serves an allocation. It exists from the event that allocates it.
  struct block {
    std::uint64_t address = 0;  ///< 0 if the allocation failed
    std::size_t bytes = 0;
    std::uint32_t live_to = never;  ///< the event that frees it
    std::uint32_t to = never;       ///< the event after which no stream uses it
    bool operator==(const block&) const = default;
  };
  /// A segment, or a physical chunk that is mapped into a range.
  struct segment {
    std::uint64_t address = 0;
    std::size_t bytes = 0;
    std::uint32_t from = 0;
    std::uint32_t to = never;
    std::uint64_t stream = 0;
    std::uint64_t private_pool = 0;  ///< its number in the recording; 0 for the default pools
    bool in_range = false;
    bool operator==(const segment&) const = default;
  };
  /// Memory that is back at the device while its addresses and blocks stay.
  struct sleeping {
    std::uint64_t address = 0;
    std::size_t bytes = 0;
    std::uint32_t from = 0;
    std::uint32_t to = never;
  };

  /// A private pool while it is in use. Its free memory then stays, whether a block is near or not.
  struct pool_use {
    std::uint64_t private_pool = 0;  ///< its number in the recording
    std::uint32_t from = 0;
    std::uint32_t to = never;
  };

  std::vector<block> blocks;  ///< one for each allocation of the program, in order
  std::vector<segment> segments;
  std::vector<sleeping> asleep;
  std::vector<pool_use> pool_uses;

  /// Whether the free memory of a private pool stays after an event.
  [[nodiscard]] bool is_in_use(std::uint64_t private_pool, std::size_t event) const {
    return std::any_of(pool_uses.begin(), pool_uses.end(), [&](const pool_use& use) {
      return use.private_pool == private_pool && use.from <= event && event < use.to;
    });
  }
};

/// Writes a run_log from an allocator's events.
class run_recorder {
 public:
  explicit run_recorder(std::size_t allocations) { log_.blocks.resize(allocations); }

  static constexpr std::size_t no_slot = std::numeric_limits<std::size_t>::max();

  /// Begins an event of the program, which concerns the allocation `slot`.
  void begin(std::size_t event, std::size_t slot) noexcept {
    event_ = static_cast<std::uint32_t>(event);
    slot_ = slot;
  }
  [[nodiscard]] std::uint32_t event() const noexcept { return event_; }

  /// Notes a block. Does nothing in an event that concerns no allocation.
  void allocate(std::uint64_t address, std::size_t bytes) {
    if (slot_ == no_slot) return;
    log_.blocks[slot_] = {address, bytes};
    live_[address] = slot_;
  }
  /// Ends the life of a block. Does nothing if there is none at the address.
  void free(std::uint64_t address) {
    if (const auto found = live_.find(address); found != live_.end())
      log_.blocks[found->second].live_to = event_;
  }
  /// Ends the use of a freed block.
  void complete(std::uint64_t address) {
    const auto found = live_.find(address);
    if (found == live_.end()) return;
    run_log::block& b = log_.blocks[found->second];
    b.live_to = (std::min)(b.live_to, event_);
    b.to = event_;
    live_.erase(found);
  }
  /// Whether a block is at an address and not completely freed.
  [[nodiscard]] bool knows(std::uint64_t address) const { return live_.contains(address); }

  void acquire(run_log::segment s) {
    s.from = event_;
    open_[s.address] = log_.segments.size();
    log_.segments.push_back(s);
  }
  /// Releases or unmaps bytes, which may be parts of segments.
  void release(std::uint64_t address, std::uint64_t bytes) {
    auto at = open_.upper_bound(address);
    if (at != open_.begin()) --at;
    while (at != open_.end() && at->first < address + bytes) {
      const run_log::segment old = log_.segments[at->second];
      if (old.address + old.bytes <= address) {
        ++at;
        continue;
      }
      log_.segments[at->second].to = event_;
      at = open_.erase(at);
      const std::uint64_t end = old.address + old.bytes;
      if (old.address < address) acquire_part(old, old.address, address);
      if (end > address + bytes) acquire_part(old, address + bytes, end);
    }
  }
  void sleep(std::uint64_t address, std::size_t bytes) {
    sleeping_[address] = log_.asleep.size();
    log_.asleep.push_back({address, bytes, event_});
  }
  void wake(std::uint64_t address) {
    const auto found = sleeping_.find(address);
    if (found == sleeping_.end()) return;
    log_.asleep[found->second].to = event_;
    sleeping_.erase(found);
  }

  /// Notes whether a private pool is in use from here on.
  void use_pool(std::uint64_t private_pool, bool is_used) {
    const auto found = uses_.find(private_pool);
    if (is_used == (found != uses_.end())) return;
    if (is_used) {
      uses_[private_pool] = log_.pool_uses.size();
      log_.pool_uses.push_back({private_pool, event_});
    } else {
      log_.pool_uses[found->second].to = event_;
      uses_.erase(found);
    }
  }

  /// Returns the log. What began and ended in one event is left out.
  [[nodiscard]] run_log finish() && {
    std::erase_if(log_.segments, [](const run_log::segment& s) { return s.from == s.to; });
    std::erase_if(log_.asleep, [](const run_log::sleeping& s) { return s.from == s.to; });
    return std::move(log_);
  }

 private:
  void acquire_part(run_log::segment part, std::uint64_t begin, std::uint64_t end) {
    part.address = begin;
    part.bytes = static_cast<std::size_t>(end - begin);
    part.to = run_log::never;
    acquire(part);
  }

  run_log log_;
  std::uint32_t event_ = 0;
  std::size_t slot_ = 0;
  std::unordered_map<std::uint64_t, std::size_t> live_;  // allocations by address; addresses are simulated
  std::map<std::uint64_t, std::size_t> open_, sleeping_, uses_;  // positions in the log, by address or pool
};

/// Passes an allocator's events to a run_recorder. Ends the program if host memory runs out.
struct recording_observer {
  run_recorder* to;
  bool hears_segments = true;  ///< false if a plan_watcher finds the segments

  void on(const tessera::allocator_event& e) const noexcept {
    using action = tessera::allocator_event::action;
    const bool about_segment = e.what == action::segment_alloc || e.what == action::segment_map ||
                               e.what == action::segment_free || e.what == action::segment_unmap;
    if (about_segment && !hears_segments) return;
    switch (e.what) {
      case action::alloc: to->allocate(e.address, e.block); break;
      case action::free_requested: to->free(e.address); break;
      case action::free_completed: to->complete(e.address); break;
      case action::segment_alloc:
      case action::segment_map:
        to->acquire({e.address, e.bytes, 0, run_log::never, e.stream.handle, e.private_pool.number,
                     e.what == action::segment_map});
        break;
      case action::segment_free:
      case action::segment_unmap: to->release(e.address, e.bytes); break;
      case action::sleep: to->sleep(e.address, e.bytes); break;
      case action::wake: to->wake(e.address); break;
      default: break;
    }
  }
};

/// Finds the memory of a plan in an allocator whose plan reports no events. Compares what the plan has after an event
/// with what it had before.
class plan_watcher {
 public:
  void look(simulated_allocator& pool, run_recorder& to) {
    const auto& calls = pool.provider().calls();
    const std::uintmax_t made = calls.acquire + calls.release + calls.map + calls.unmap;
    if (made == calls_) return;
    calls_ = made;
    std::map<std::uint64_t, tessera::segment_view> now;
    pool.for_each_block(
        [&](const tessera::segment_view& s, const tessera::block_view&) { now.emplace(s.address, s); });
    for (const auto& [address, s] : before_) {
      const auto same = now.find(address);
      if (same == now.end() || same->second.bytes != s.bytes) to.release(address, s.bytes);
    }
    for (const auto& [address, s] : now) {
      const auto same = before_.find(address);
      if (same == before_.end() || same->second.bytes != s.bytes)
        to.acquire({address, s.bytes, 0, run_log::never, s.stream.handle, s.private_pool.number, s.in_range});
    }
    before_ = std::move(now);
  }

 private:
  std::map<std::uint64_t, tessera::segment_view> before_;  // by address
  std::uintmax_t calls_ = 0;
};

/// The numbers of a recorded replay.
struct logged_run {
  run_log log;
  timeline over;
  std::size_t failures = 0;
  std::size_t first_failure = 0;  ///< the event of the first failure; the number of events if there is none
};

/// Replays a program, and records its blocks and segments.
///   Cost:  a replay; about 60 bytes for each allocation. A plan costs a visit of all blocks when it takes memory
[[nodiscard]] inline logged_run log_replay(const tessera::trace::program& program, std::size_t max_buckets,
                                           const any_recipe& recipe,
                                           tessera::provider::simulated_device device,
                                           const tessera::plan::memory_plan* plan = nullptr) {
  using kind = tessera::trace::event::kind;
  const bool has_plan = plan != nullptr;
  run_recorder recorder(program.slot_count());
  recording_observer recording{&recorder, !has_plan};
  any_observer observer(recording);
  simulated_allocator pool = recipe.make(std::move(device), {.plan = plan, .observer = &observer});
  plan_watcher watcher;
  logged_run found{{}, timeline(max_buckets)};
  const auto& events = program.events();
  found.first_failure = events.size();
  std::map<std::uint64_t, std::uint64_t>
      recorded_number;  // of private pools, by their number in the allocator
  std::vector<std::size_t> bytes(program.slot_count() + 1);
  std::vector<std::uint64_t> by_plan(has_plan ? program.slot_count() + 1 : 0);  // addresses
  std::size_t alive = 0, refused = 0;
  found.failures = tessera::trace::replay(
      program, pool,
      [&](std::size_t i) {
        // A request that failed when recorded is freed at once, so it is no allocation.
        recorder.begin(i, events[i].what == kind::refused ? run_recorder::no_slot : program.slot(i));
      },
      [&]<typename Outcome>(std::size_t i, Outcome outcome) {
        if constexpr (std::is_same_v<Outcome, tessera::trace::pool_outcome>) {
          if (events[i].id != 0) {
            if (outcome.pool != tessera::pool_id{}) recorded_number[outcome.pool.number] = events[i].id;
            // A sleep that an allocator cannot do says nothing of the uses.
            const bool sleeps = events[i].what == kind::sleep || events[i].what == kind::wake;
            if (!sleeps) recorder.use_pool(events[i].id, outcome.uses > 0);
          }
        } else {
          std::size_t& mine = bytes[program.slot(i)];
          if (events[i].what == kind::allocate) {
            alive += mine = events[i].bytes;
            if (outcome == nullptr) found.first_failure = (std::min)(found.first_failure, i);
            if (has_plan) {
              const auto address = reinterpret_cast<std::uint64_t>(outcome);
              if (outcome != nullptr && !recorder.knows(address)) {
                recorder.allocate(address, pool.live_block_at(outcome).bytes);
                by_plan[program.slot(i)] = address;
              }
            }
          } else if (events[i].what == kind::refused) {
            refused += outcome == nullptr;
            if (outcome == nullptr) found.first_failure = (std::min)(found.first_failure, i);
          } else if (events[i].what == kind::free) {
            alive -= mine;
            if (has_plan) {
              if (std::uint64_t& mine_by_plan = by_plan[program.slot(i)]; mine_by_plan != 0)
                recorder.complete(std::exchange(mine_by_plan, 0));
            }
          }
        }
        if (has_plan) watcher.look(pool, recorder);
        tessera::usage now = pool.current_usage();
        now.requested = alive;  // as the program sees it, including failed requests
        found.over.note(now);
      });
  found.failures += refused;
  found.log = std::move(recorder).finish();
  for (run_log::segment& s : found.log.segments) {
    if (s.private_pool != 0) s.private_pool = recorded_number[s.private_pool];
  }
  return found;
}

}  // namespace replay
