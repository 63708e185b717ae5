// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <tessera/law/policies.hpp>
#include <tessera/law/provider.hpp>
#include <tessera/law/recipe.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

static_assert(law::rounding(round_to_multiple<64>{}) && law::rounding(round_to_multiple<512>{}));
static_assert(law::rounding(round_to_power_of_two<64>{}) && law::rounding(round_to_power_of_two<512>{}));
static_assert(law::rounding(round_to_divisions<512>{}));
static_assert(law::rounding(round_to_divisions<512>{.table = divisions::all(4)}));
static_assert(law::rounding(round_to_divisions<512, divisions::all(8)>{}));
static_assert(law::pools(pool_together{}) && law::pools(pool_small_and_large<1_MiB>{}));
static_assert(law::streams(reuse_on_same_stream{}) && law::streams(reuse_ignoring_streams{}));
static_assert(law::split(split_never{}) && law::split(split_never_and_fit_exactly{}));
static_assert(law::split(split_if_rest_at_least<512>{}) &&
              law::split(split_if_rest_at_least<64, block_end::high>{}));
static_assert(law::split(split_up_to<>{}) && law::split(split_up_to<32_MiB>{}) &&
              law::split(split_up_to<>{.max = 20_MiB}));
static_assert(law::pages(back_with_normal_pages{}) && law::pages(back_with_huge_pages_first{}));
static_assert(law::growth(grow_exactly<>{}) && law::growth(grow_by_segments<2_MiB, 20_MiB>{}));
static_assert(law::eviction(evict_never{}) && law::eviction(evict_at_free{}));
static_assert(law::eviction(evict_idle_above<percent(60)>{}) &&
              law::eviction(evict_idle_above<>{.threshold = percent(99)}));
static_assert(law::recovery(recover_never{}) && law::recovery(recover_by_emptying_the_cache{}));
static_assert(law::recovery(recover_like_pytorch{}) && law::recovery(recover_unless_over_limit{}));

static_assert(law::recipe<pytorch>() && law::recipe<passthrough>() && law::recipe<power_of_two>());
static_assert(law::recipe<with<pytorch, split_up_to<32_MiB>, evict_idle_above<percent(60)>>>());
static_assert(law::recipe<with<passthrough, round_to_multiple<256>>>());

// A number given as a template argument takes no room and no time; one set at run time is a member.
static_assert(std::is_empty_v<split_up_to<32_MiB, 20_MiB>> && std::is_empty_v<evict_idle_above<percent(60)>>);
static_assert(std::is_empty_v<grow_by_segments<2_MiB, 20_MiB, unlimited>>);
static_assert(sizeof(split_up_to<>) == 2 * sizeof(std::size_t));

// No type answers for two axes.
static_assert(axis_of<split_up_to<>> == axis::split && axis_of<evict_never> == axis::eviction &&
              axis_of<int> == axis::none);

TEST(law, holds_for_the_providers) {
  simulated_device simulated;
  EXPECT_STREQ(law::provider(simulated).broken, nullptr);
  EXPECT_EQ(simulated.used(), 0u);
  provider_ref<simulated_device> reference(simulated);
  EXPECT_STREQ(law::provider(reference).broken, nullptr);
  host_pinned pinned{host_pinned::options{.capacity = 1_MiB, .pin = host_pinned::pinning::where_allowed}};
  EXPECT_STREQ(law::provider(pinned).broken, nullptr);
}

/// A device that keeps every law but the one that a test takes away.
struct crooked {
  struct event {
    int n = 0;
    bool operator==(const event&) const = default;
  };
  simulated_device inner{simulated_device::options{.capacity = 64_MiB}};
  bool misaligned = false, overlapping = false, keeps = false, endless = false, forgets = false,
       unready = false;
  bool forgetful = false, shrinks = false;
  std::size_t step = 512;
  std::uintptr_t last = 0;

  void* acquire(std::size_t bytes) noexcept {
    if (endless) bytes = bytes > 1_MiB ? 512 : bytes;
    void* p = inner.acquire(bytes);
    if (overlapping && last != 0 && p != nullptr) return reinterpret_cast<void*>(last);
    last = reinterpret_cast<std::uintptr_t>(p);
    return misaligned && p != nullptr ? static_cast<char*>(p) + 64 : p;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    last = 0;
    if (keeps) return false;
    if (shrinks) step = 1024;
    return forgets || overlapping || endless ||
           inner.release(misaligned ? static_cast<char*>(p) - 64 : p, bytes);
  }
  std::size_t capacity() const noexcept { return forgets ? 16 * 512 : inner.capacity(); }
  std::size_t granularity() const noexcept { return step; }
  bool record(stream_id, event&) noexcept { return true; }
  bool query(event& e) noexcept { return !unready && !(forgetful && e.n++ > 0); }
  bool wait(event&) noexcept { return true; }
  void discard(event&) noexcept {}
};

TEST(law, names_what_a_provider_breaks) {
  crooked straight;
  EXPECT_STREQ(law::provider(straight).broken, nullptr);
  crooked d;
  d.step = 48;
  EXPECT_STREQ(law::provider(d).broken, "granularity is a power of two, at least min_alignment");
  crooked misaligned;
  misaligned.misaligned = true;
  EXPECT_STREQ(law::provider(misaligned).broken, "segments start at a multiple of the granularity");
  crooked overlapping;
  overlapping.overlapping = true;
  EXPECT_STREQ(law::provider(overlapping).broken, "segments do not overlap");
  crooked keeps;
  keeps.keeps = true;
  EXPECT_STREQ(law::provider(keeps).broken, "release takes back what was acquired");
  crooked endless;
  endless.endless = true;
  EXPECT_STREQ(law::provider(endless).broken, "acquire refuses what goes beyond the capacity");
  crooked shrinks;
  shrinks.shrinks = true;
  EXPECT_STREQ(law::provider(shrinks).broken, "capacity and granularity are constant");
  crooked unready;
  unready.unready = true;
  EXPECT_STREQ(law::provider(unready).broken, "an event that was waited for is ready");
  crooked forgetful;
  forgetful.forgetful = true;
  EXPECT_STREQ(law::provider(forgetful).broken, "a ready event stays ready when its stream goes on");
  crooked forgets;
  forgets.inner = simulated_device{simulated_device::options{.capacity = 10 * 512}};
  forgets.forgets = true;
  EXPECT_STREQ(law::provider(forgets).broken, "released memory can be acquired again");
}

}  // namespace
