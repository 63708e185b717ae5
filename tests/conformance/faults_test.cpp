// SPDX-License-Identifier: Apache-2.0
// Any call of the device fails, alone or with others. After every operation, the allocator and the device
// agree, and live blocks keep their contents. Once calls work again, the allocator works as if none had
// failed.
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "by_day.hpp"
#include "tested_allocator.hpp"

namespace {

using namespace tessera;
using conformance::watched_device;
using conformance::faults::long_workload;
using conformance::faults::program;
using conformance::faults::tested_allocator;
using conformance::faults::under;

template <typename Case>
class faults : public testing::Test {
 public:
  /// The result of the program without failures, and the number of its calls that can fail.
  static inline std::vector<usage> undisturbed;
  static inline std::string wrong_at_best;
  static inline std::uint64_t calls = 0;
  static void SetUpTestSuite() {
    tested_allocator<Case> healthy;
    wrong_at_best = healthy.run(plan(), undisturbed);
    calls = healthy.provider().made();
    if (wrong_at_best.empty()) wrong_at_best = healthy.empty();
  }
  void SetUp() override {
    ASSERT_EQ(wrong_at_best, "") << "though nothing failed";
    ASSERT_GT(calls, 20u);
  }
  static const program& plan() {
    static const program all = long_workload(Case::scale);
    return all;
  }

  static std::string consequences(std::vector<watched_device::interval> failing) {
    return conformance::faults::consequences<Case>(
        plan(), undisturbed, [&](watched_device& device) { device.fail(std::move(failing)); },
        [](watched_device& device) { device.fail({}); });
  }
};

using mixed_pages = grow_by_mapping<256_KiB, 6_MiB>;
constexpr chunk_schedule small_chunks{.first = 20_MiB, .further = 3_MiB};
using cases = testing::Types<
    under<pytorch<>>, under<passthrough>, under<power_of_two>,
    under<with<pytorch<>, split_below<32_MiB>, evict_idle_above<percent(60)>>>,
    under<with<pytorch<>, split_if_remainder_at_least<512, block_end::high>, pool_together>>,
    under<with<pytorch<>, reuse_immediately>>,
    under<with<passthrough, prefer_pages<page_preference::huge_first>>>, under<paddle_family::naive_best_fit>,
    under<with<paddle_family::auto_growth, pool_small_and_large<1_MiB>, grow_by_chunks<2_MiB, 10_MiB, 1_MiB>,
               evict_idle_segments<true, true>, recover_by_emptying_cache<true>>>,
    under<with<paddle_family::naive_best_fit, grow_by_schedule<small_chunks>,
               evict_at_free_above_schedule<small_chunks>, recover_by_emptying_cache<>>>,
    // With the other rules, a block may go to a stream that waits. The device would report that as an error.
    under<with<cuda_async, reuse_across_streams<false, true, false>>>,
    under<with<cuda_async, reuse_across_streams<false, true, false>, split_below<32_MiB>, evict_at_free<>>>,
    under<pytorch_family::expandable>,
    under<with<pytorch_family::expandable, split_below<32_MiB, 20_MiB, 1_MiB, 0>,
               evict_idle_above<percent(60)>>>,
    under<with<pytorch_family::expandable, split_if_remainder_at_least<512, block_end::high>, pool_together,
               mixed_pages>>,
    under<with<pytorch_family::expandable, reuse_immediately, evict_at_free<>>>,
    under<with<pytorch_family::expandable, evict_at_free<>, grow_by_mapping<2_MiB, 10_MiB>>>,
    under<with<pytorch_family::expandable, prefer_pages<page_preference::huge_first>, pool_together,
               mixed_pages>>,
    under<with<pytorch_family::expandable, recover_by_emptying_cache<>,
               grow_by_mapping<2_MiB, 6_MiB, tunable(unlimited), 16_KiB>>>,
    under<with<pytorch_family::expandable, prefer_pages<page_preference::huge_1g_first>,
               grow_by_mapping<2_MiB, 1_GiB>>,
          40>,
    under<stitched>, under<with<stitched, pool_together, evict_idle_above<percent(60)>>>,
    under<with<stitched, reuse_immediately, prefer_pages<page_preference::huge_first>>>>;
TYPED_TEST_SUITE(faults, cases);

TYPED_TEST(faults, of_any_call_are_survived) {
  for (std::uint64_t k = 1; k <= this->calls; k += step_by_day(this->calls, 20))
    ASSERT_EQ(this->consequences({{k, k}}), "") << "with call " << k << " failing";
}

TYPED_TEST(faults, of_several_calls_are_survived) {
  for (std::uint64_t seed = 1; seed <= by_day(8u, 150u); ++seed) {
    std::mt19937_64 random(seed);
    std::vector<watched_device::interval> failing;
    for (std::uint64_t bursts = 1 + random() % 6; bursts > 0; --bursts) {
      const std::uint64_t first = 1 + random() % this->calls;
      failing.emplace_back(first, first + random() % (seed % 3 == 0 ? 30 : 4));
    }
    ASSERT_EQ(this->consequences(failing), "") << "seed " << seed;
  }
}

TYPED_TEST(faults, of_every_call_from_one_on_are_survived) {
  for (std::uint64_t first = 1; first <= this->calls; first += by_day(this->calls / 5 | 1, 9))
    ASSERT_EQ(this->consequences({{first, ~std::uint64_t{0}}}), "") << "from call " << first << " on";
}

// The destructor of an allocator tries each chunk twice, and each segment and range once.
TYPED_TEST(faults, in_the_destructor_leak_only_memory_whose_release_failed) {
  for (std::size_t length = 20; length <= this->plan().size(); length += by_day(125, 25)) {
    const program part(this->plan().begin(), this->plan().begin() + static_cast<std::ptrdiff_t>(length));
    std::vector<usage> standing;
    bool any_failed = true;
    for (std::uint64_t k = 1; any_failed; k += by_day(7, 1)) {
      tested_allocator<TypeParam> p;
      watched_device& device = p.provider();
      ASSERT_EQ(p.run(part, standing), "");
      device.fail({{k, k}});
      p.end();
      ASSERT_EQ(device.held().named + device.held().mapped, 0u) << "with call " << k << " of the end failing";
      ASSERT_EQ(device.used(), device.segments_refused()) << "with call " << k << " of the end failing";
      ASSERT_EQ(device.held().reserved, device.ranges_refused())
          << "with call " << k << " of the end failing";
      any_failed = device.calls().failed > 0;
    }
    tested_allocator<TypeParam> p;
    ASSERT_EQ(p.run(part, standing), "");
    const std::size_t used = p.provider().used();
    p.provider().fail({{1, ~std::uint64_t{0}}});
    p.end();
    ASSERT_EQ(p.provider().used(), used) << "with all calls of the end failing";
  }
}

}  // namespace
