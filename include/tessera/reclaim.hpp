// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/engine/block.hpp>
#include <tessera/policy/eviction.hpp>

/// How idle segments go back to the device, once it is decided that some must.
namespace tessera {

/// Waits for pending frees, then gives idle segments back until at most `keep` bytes are reserved.
template <typename Machine>
void empty_cache(Machine& machine, std::size_t keep) noexcept {
  machine.wait_for_pending();
  machine.blocks().for_each_idle(
      [&](engine::block& idle) { return machine.staying() > keep && (machine.release(idle), true); });
  machine.blocks().shrink();
}

/// Asks the policy about idle segments, round after round, until `wanted` bytes went back or a round freed none.
template <typename Machine>
void evict_idle(Machine& machine, const eviction_policy auto& policy, std::size_t wanted) noexcept {
  for (std::size_t freed = 0, before = unlimited; freed < wanted && freed != before;) {
    before = freed;
    idle_survey survey;
    machine.blocks().for_each_idle([&](const engine::block& b) {
      if (policy.considers(b.size)) ++survey.count, survey.total_age += machine.blocks().age(b);
      return false;
    });
    machine.blocks().for_each_idle([&](engine::block& b) {
      const idle_segment idle{b.size, machine.blocks().age(b)};
      const bool goes = policy.considers(idle.bytes) && policy.should_evict(idle, survey);
      if (goes && machine.release(b)) freed += idle.bytes;
      return goes;
    });
  }
}

}  // namespace tessera
