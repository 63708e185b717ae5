// SPDX-License-Identifier: Apache-2.0
// A recipe names eight policies, one for each decision of an allocator. This example writes a rounding policy and a growth
// policy, and checks their laws at compile time. Two recipes use them: a variation of pytorch<>, and a recipe that names all
// eight policies.
#include <algorithm>
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

/// Doubles the reserved memory with each segment. So the number of device calls is logarithmic in the peak.
struct grow_by_doubling {
  using backend = tessera::policy::segment_backend;  // acquires whole segments
  static constexpr tessera::memory_limit limit{};

  [[nodiscard]] static constexpr std::size_t segment_size(std::size_t block,
                                                          const tessera::usage& now) noexcept {
    return std::max(tessera::align_up(block, 2_MiB), tessera::align_up(now.reserved, 2_MiB));
  }
  bool operator==(const grow_by_doubling&) const = default;
};
static_assert(tessera::policy::growth_policy<grow_by_doubling>);
static_assert(tessera::law::policy(grow_by_doubling{}));

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
  using growth = grow_by_doubling;
  using eviction = tessera::policy::evict_idle_above<tessera::percent(60)>;
  using recovery = tessera::policy::recover_by_releasing_oversize;
};
static_assert(tessera::law::recipe<inference_server>());  // its policies fit together; with<> checks that by itself

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
