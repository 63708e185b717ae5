// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>

#include <tessera/core/bytes.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/free_list.hpp>
#include <tessera/detail/hooks.hpp>
#include <tessera/policy/eviction.hpp>
#include <tessera/policy/streams.hpp>
#include <tessera/provider/provider.hpp>

/// How blocks become free again without the device, and how idle segments go back to it, once it is decided that some must.
namespace tessera {

/// Frees the blocks whose events have completed, before a request searches, unless the policy puts that off; whether there
/// were any.
template <typename Machine, streams_policy Streams>
[[nodiscard, gnu::always_inline]] inline bool look_first(Machine& machine, const Streams& policy) noexcept {
  return policy.should_poll_events(machine.uses_that_wait()) && machine.retire_pending();
}

/// Notes that `stream` uses a live block, if its policy holds back for that; false where that cannot be noted, and of null.
template <typename Machine, streams_policy Streams>
[[nodiscard]] bool note_use(Machine& machine, const Streams& policy, detail::block* live,
                            stream_id stream) noexcept {
  return live != nullptr &&
         (!policy.needs_event(live->home->key(), stream) || machine.note_use(*live, stream));
}

/// Calls what waits for pressure, and frees the blocks at whose events nobody looked; whether something came free.
template <typename Machine, streams_policy Streams>
[[nodiscard]] bool relieve(detail::hooks& pressure, Machine& machine, const Streams& policy) noexcept {
  const bool freed = pressure.run();
  return (!policy.should_poll_events(machine.uses_that_wait()) && machine.retire_pending()) || freed;
}

/// Gives idle segments back until at most `keep` bytes are reserved.
template <typename Machine>
void give_back_idle(Machine& machine, std::size_t keep) noexcept {
  if (machine.staying() <= keep) return;
  machine.gather_idle();
  machine.blocks().for_each_idle([&](detail::block& idle) {
    return machine.staying() > keep && machine.releasable(idle) > 0 && (machine.release(idle), true);
  });
}
/// The same after waiting for pending frees; host memory that describes nothing any more goes too.
template <typename Machine>
void empty_cache(Machine& machine, std::size_t keep) noexcept {
  machine.wait_for_pending();
  give_back_idle(machine, keep);
  machine.shrink();
}
/// The same where the device is full: those who share the device give back what they cache, too.
template <typename Machine>
void empty_all_caches(Machine& machine) noexcept {
  empty_cache(machine, 0);
  if constexpr (reclaiming_provider<std::remove_reference_t<decltype(machine.device())>>)
    (void)machine.device().reclaim();
  ++machine.books().num_alloc_retries;
}

/// Releases idle segments above `oversize` until `wanted` bytes went back; whether they did.
template <typename Machine>
[[nodiscard]] bool release_fitting(Machine& machine, std::size_t oversize, detail::free_list& home,
                                   std::size_t wanted) noexcept {
  const auto release = [&machine](detail::block& b) { return machine.release(b); };
  return oversize <= unlimited / 2 && machine.blocks().release_fitting(home, wanted, oversize, release);
}

/// A bound below which a policy considers no segment, found by bisection, as it considers all that are larger than one.
[[nodiscard]] constexpr std::size_t least_considered(const eviction_policy auto& policy,
                                                     const usage& now) noexcept {
  std::size_t least = min_alignment;
  if (policy.is_candidate(least, now)) return least;
  for (std::size_t step = std::size_t{1} << 60; step >= min_alignment; step /= 2) {
    if (!policy.is_candidate(least + step - min_alignment, now)) least += step;
  }
  return least;
}

/// Asks the policy about idle segments, round after round, until `wanted` bytes went back or a round freed none.
template <typename Machine>
[[gnu::noinline]] void evict_idle(Machine& machine, const eviction_policy auto& policy, const usage& now,
                                  std::size_t wanted) noexcept {
  const std::size_t least = least_considered(policy, now);
  for (std::size_t freed = 0, before = unlimited; freed < wanted && freed != before;) {
    before = freed;
    machine.gather_idle();
    idle_survey survey;
    machine.blocks().for_each_idle(
        [&](const detail::block& b) {
          if (policy.is_candidate(machine.releasable(b), now))
            ++survey.count, survey.total_age += machine.blocks().age(b);
          return false;
        },
        least);
    machine.blocks().for_each_idle(
        [&](detail::block& b) {
          const idle_segment idle{machine.releasable(b), machine.blocks().age(b)};
          survey.remaining = wanted > freed ? wanted - freed : 0;
          const bool goes = policy.is_candidate(idle.bytes, now) && policy.should_evict(idle, survey);
          if (goes) freed += machine.release(b);
          return goes;
        },
        least);
  }
}

/// The same, for as many bytes as the policy wants at this moment.
template <typename Machine>
[[gnu::always_inline]] inline void evict_idle(Machine& machine, const eviction_policy auto& policy,
                                              eviction_trigger when, const usage& now) noexcept {
  if (const std::size_t wanted = policy.bytes_to_evict(when, now); wanted > 0)
    evict_idle(machine, policy, now, wanted);
}

}  // namespace tessera
