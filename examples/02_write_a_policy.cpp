// SPDX-License-Identifier: Apache-2.0
// A recipe names eight policies, one for each decision of an allocator. This example writes a rounding policy, and checks its
// law at compile time. Two recipes use it: a variation of pytorch<>, and a recipe that names all eight policies.
// 20_own_policies.cpp has a growth policy, an order of free blocks, a split that learns, and an eviction by cost.
#include <cstddef>
#include <cstdio>

#include <tessera/law/policy_laws.hpp>
#include <tessera/law/recipe_laws.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

/// Rounds requests up to 1 MiB to 512 bytes, and larger ones to 64 KiB.
struct round_in_two_steps {
  [[nodiscard]] static constexpr std::size_t block_size(std::size_t requested) noexcept {
    return tessera::align_up(requested, requested <= 1_MiB ? 512 : 64_KiB);
  }
  bool operator==(const round_in_two_steps&) const = default;
};
static_assert(tessera::policy::rounding_policy<round_in_two_steps>);  // has the required members
static_assert(tessera::law::policy(round_in_two_steps{}));            // obeys the law of rounding

// Replaces two policies of a known recipe. Their order does not matter.
using variation = tessera::recipe::with<tessera::recipe::pytorch<>, round_in_two_steps,
                                        tessera::policy::evict_idle_above<tessera::percent(60)>>;

// A recipe that names all eight policies. All are required, so a misspelt name is a compile error.
struct inference_server final {
  using rounding = round_in_two_steps;
  using pools = tessera::policy::pool_small_and_large<1_MiB>;
  using streams = tessera::policy::reuse_on_same_stream;
  using split = tessera::policy::split_below<32_MiB>;
  using pages = tessera::policy::prefer_pages<tessera::page_preference::huge_first>;
  using growth = tessera::policy::grow_by_segments<>;
  using eviction = tessera::policy::evict_idle_above<tessera::percent(60)>;
  using recovery = tessera::policy::recover_by_releasing_oversize;
};
// The policies fit together. with<> checks that by itself.
static_assert(tessera::law::recipe<inference_server>());

int main() {
  tessera::caching_allocator<variation, tessera::provider::simulated_device> first;
  tessera::caching_allocator<inference_server, tessera::provider::simulated_device> second;
  second.policies().split.slack = 8_MiB;  // parameters can be set at run time
  void* p = first.allocate(3_MiB + 1);
  void* q = second.allocate(3_MiB + 1);
  std::printf("live: %zu and %zu bytes\n", first.current_usage().allocated, second.current_usage().allocated);
  first.deallocate(p);
  second.deallocate(q);
  return 0;
}
