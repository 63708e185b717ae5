// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include <gtest/gtest.h>

#include <tessera/law/policy_laws.hpp>
#include <tessera/law/provider_laws.hpp>
#include <tessera/law/recipe_laws.hpp>
#include <tessera/policy/chunks.hpp>
#include <tessera/policy/evict_above.hpp>
#include <tessera/policy/evict_after.hpp>
#include <tessera/policy/reuse_across_streams.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/power_of_two.hpp>
#include <tessera/recipe/symmetric.hpp>
#include <tessera/recipe/torch_npu.hpp>
#include <tessera/tessera.hpp>

#include "../conformance/shipped.hpp"

namespace {

using namespace tessera;

static_assert(law::policy(policy::round_to_multiple<64>{}) && law::policy(policy::round_to_multiple<512>{}));
static_assert(law::policy(policy::round_to_power_of_two<64>{}) &&
              law::policy(policy::round_to_power_of_two<512>{}));
static_assert(law::policy(policy::round_to_power_of_two<4_KiB, 64_MiB>{}) &&
              law::policy(policy::round_to_power_of_two<4_KiB, 100_MiB + 1>{}) &&
              law::policy(policy::round_to_power_of_two<512, tunable(unlimited)>{.threshold = 100}) &&
              law::policy(policy::round_to_power_of_two<512, 0_MiB>{}));
static_assert(law::policy(policy::round_to_divisions<512>{}));
static_assert(law::policy(policy::round_to_divisions<512>{.table = divisions::all(4)}));
static_assert(law::policy(policy::round_to_divisions<512, divisions::all(8)>{}));
static_assert(law::policy(policy::round_padded<64, policy::round_to_multiple<256>>{}) &&
              law::policy(policy::round_padded<0, policy::round_to_multiple<64>>{}));
static_assert(law::policy(policy::round_padded<32, policy::round_to_divisions<512>>{}) &&
              law::policy(policy::round_padded<32, policy::round_to_divisions<512>>{
                  .inner = {.table = divisions::all(4)}}));
static_assert(law::policy(policy::pool_together{}) && law::policy(policy::pool_small_and_large<1_MiB>{}) &&
              law::policy(policy::pool_small_and_large<tunable(0_MiB)>{}));
static_assert(law::policy(policy::reuse_on_same_stream{}) && law::policy(policy::reuse_immediately{}));
static_assert(law::policy(policy::reuse_on_same_stream_after_own_events{}) &&
              law::policy(policy::reuse_after_events{}));
static_assert(law::policy(policy::wait_for_events<policy::reuse_on_same_stream>{}) &&
              law::recipe<recipe::symmetric<recipe::pytorch<>>>() &&
              law::recipe<recipe::symmetric<recipe::power_of_two>>());
static_assert(law::policy(policy::poll_events_lazily<policy::reuse_on_same_stream>{{}, 512}) &&
              law::policy(policy::poll_events_lazily<policy::reuse_on_same_stream_after_own_events,
                                                     std::size_t{512}>{}));
static_assert(law::policy(policy::split_never<>{}) &&
              law::policy(policy::split_never<policy::block_fit::exact>{}) &&
              law::policy(policy::split_never<policy::block_fit::same_power_of_two>{}));
static_assert(law::policy(policy::reuse_across_streams<>{}) &&
              law::policy(policy::reuse_across_streams<false, true, false>{}) &&
              law::policy(policy::reuse_across_streams<>{.opportunistic = false}));
static_assert(law::policy(policy::split_if_remainder_at_least<512>{}) &&
              law::policy(policy::split_if_remainder_at_least<64, policy::block_end::high>{}));
static_assert(law::policy(policy::split_below<>{}) && law::policy(policy::split_below<32_MiB>{}) &&
              law::policy(policy::split_below<32_MiB, 20_MiB, 1_MiB, 0>{}) &&
              !policy::split_below<32_MiB>::splits_oversize &&
              law::policy(policy::split_below<>{.max = 20_MiB}));
static_assert(law::policy(policy::prefer_pages<page_preference::normal_only>{}) &&
              law::policy(policy::prefer_pages<page_preference::huge_first>{}) &&
              law::policy(policy::prefer_pages<page_preference::huge_only>{}));
static_assert(law::policy(policy::prefer_pages<page_preference::huge_1g_first>{}) &&
              law::policy(policy::prefer_pages<page_preference::huge_1g_only>{}));
static_assert(law::policy(policy::prefer_pages<>{}) &&
              law::policy(policy::prefer_pages<>{
                  .choice = page_choice{.pages = page_preference::huge_1g_first}}));
static_assert(
    law::policy(
        policy::prefer_pages<page_choice{.speed = page_kind::bandwidth::high, .read_only = true}>{}) &&
    law::policy(policy::prefer_pages<page_choice{.peer_to_peer = true}>{}));
static_assert(law::policy(policy::grow_exactly<>{}) &&
              law::policy(policy::grow_by_segments<2_MiB, 20_MiB>{}));
static_assert(law::policy(policy::grow_by_chunks<>{}) &&
              law::policy(policy::grow_by_chunks<2_MiB, 16_MiB, 1_MiB>{}));
static_assert(law::policy(policy::grow_by_schedule<>{}) &&
              law::policy(policy::grow_by_schedule<policy::chunk_schedule{100_MiB, 50_MiB}>{}));
static_assert(law::policy(policy::grow_by_mapping<>{}) && law::policy(policy::grow_by_stitching<>{}));
static_assert(law::policy(policy::grow_at_end<>{}) && law::policy(policy::grow_at_end<>{.large = 6_MiB}) &&
              law::policy(policy::grow_at_end<2_MiB, 2_MiB, 256, policy::append_in::one_chunk, false>{}));
static_assert(law::policy(policy::evict_never{}) && law::policy(policy::evict_at_free<>{}));
static_assert(law::policy(policy::evict_idle_segments<>{}) &&
              law::policy(policy::evict_idle_segments<true, true>{}));
static_assert(
    law::policy(policy::evict_at_free_above_schedule<>{}) &&
    law::policy(policy::evict_at_free_above_schedule<policy::chunk_schedule{.share = percent(0)}>{}));
static_assert(law::policy(policy::evict_at_free<tunable(unlimited)>{}) &&
              law::policy(policy::evict_at_free<1_MiB>{}));
static_assert(law::policy(policy::evict_idle_above<percent(60)>{}) &&
              law::policy(policy::evict_idle_above<>{.threshold = percent(99)}));
static_assert(law::policy(policy::evict_above<1_GiB>{}) && law::policy(policy::evict_above<percent(10)>{}) &&
              law::policy(policy::evict_above<tunable(percent(10))>{.cap = percent(99)}));
static_assert(law::policy(policy::evict_after<>{}) && law::policy(policy::evict_after<0>{}) &&
              law::policy(policy::evict_after<unlimited>{}));
static_assert(law::policy(policy::evict_after<200, policy::decay_curve::smooth>{}) &&
              law::policy(policy::evict_after<tunable(std::uint64_t{0}), policy::decay_curve::smooth>{}) &&
              law::policy(policy::evict_after<unlimited, policy::decay_curve::smooth>{}));
static_assert(law::policy(policy::evict_at_synchronize_above<>{}) &&
              law::policy(policy::evict_at_synchronize_above<1_GiB>{}));
static_assert(law::policy(policy::recover_never{}) && law::policy(policy::recover_by_emptying_cache<>{}));
static_assert(law::policy(policy::recover_by_emptying_cache<tunable(false)>{}) &&
              law::policy(policy::recover_by_emptying_cache<true>{}));
static_assert(law::policy(policy::recover_by_releasing_oversize{}) &&
              law::policy(policy::fail_fast<policy::recover_by_releasing_oversize, true>{}) &&
              law::policy(policy::last_search<policy::recover_never>{}) &&
              law::policy(policy::last_search<policy::fail_fast<policy::recover_by_releasing_oversize>>{}));

constexpr auto obeys_the_laws = []<typename Recipe>(conformance::named<Recipe>) {
  static_assert(law::recipe<Recipe>());
};
static_assert((conformance::for_each_shipped(obeys_the_laws), true));
static_assert(law::recipe<recipe::pinned>(recipe::pinned::configured(config::pytorch::settings{
    .pinned_max_round_threshold = 300_MiB, .pinned_max_cached_size = 100_MiB})));
static_assert(
    law::recipe<recipe::torch_npu_family::under<config::torch_npu::settings{.huge_1g_pages = true}>>() &&
    law::recipe<recipe::torch_npu_family::under<config::torch_npu::settings{
        .expandable_segments = true, .base_addr_aligned = 3_KiB, .segment_size = 21_MiB}>>());
static_assert(law::recipe<recipe::with<recipe::pytorch<>, policy::split_below<32_MiB>,
                                       policy::evict_idle_above<percent(60)>>>());
static_assert(
    law::recipe<recipe::with<recipe::stitched, policy::evict_after<200, policy::decay_curve::smooth>>>());
static_assert(law::recipe<recipe::with<recipe::pytorch<>, policy::pool_small_and_large<2_MiB>>>() &&
              law::recipe<recipe::with<recipe::stitched, policy::pool_small_and_large<2_MiB>>>());
static_assert(law::recipe<recipe::with<recipe::passthrough, policy::round_to_multiple<256>>>());
static_assert(
    law::recipe<recipe::with<recipe::pytorch<>, policy::prefer_pages<page_preference::huge_first>>>() &&
    law::recipe<recipe::with<recipe::pytorch<>, policy::prefer_pages<page_preference::huge_1g_first>>>());

// A number that is a template argument takes no memory and no time. A number set at run time is a member.
static_assert(std::is_empty_v<policy::split_below<32_MiB, 20_MiB>> &&
              std::is_empty_v<policy::evict_idle_above<percent(60)>>);
static_assert(std::is_empty_v<policy::grow_by_segments<2_MiB, 20_MiB, 10_MiB, unlimited>>);
static_assert(std::is_empty_v<policy::reuse_across_streams<true, false, true>> &&
              sizeof(policy::reuse_across_streams<>) == 3 &&
              std::is_empty_v<policy::evict_at_synchronize_above<std::size_t{0}>>);
static_assert(sizeof(policy::split_below<>) == 2 * sizeof(std::size_t));

// No type answers the questions of two axes.
static_assert(tessera::detail::axis_of<policy::split_below<>> == tessera::detail::axis::split &&
              tessera::detail::axis_of<policy::evict_never> == tessera::detail::axis::eviction &&
              tessera::detail::axis_of<int> == tessera::detail::axis::none);

TEST(law, holds_for_the_providers) {
  provider::simulated_device simulated;
  EXPECT_STREQ(law::provider(simulated).broken, nullptr);
  EXPECT_EQ(simulated.used(), 0u);
  provider::provider_ref<provider::simulated_device> reference(simulated);
  EXPECT_STREQ(law::provider(reference).broken, nullptr);
  provider::simulated_device second = simulated.another_process();
  EXPECT_STREQ(law::sharing(simulated, second).broken, nullptr);
  provider::simulated_npu npu, other = npu.another_process();
  EXPECT_STREQ(law::provider(npu).broken, nullptr);
  EXPECT_STREQ(law::sharing(npu, other).broken, nullptr);
  provider::host_pinned pinned{provider::host_pinned::options{
      .capacity = 1_MiB, .pin = provider::host_pinned::pinning::where_allowed}};
  EXPECT_STREQ(law::provider(pinned).broken, nullptr);
  law::provider_check_result found;
  law::detail::ordering(found, simulated, stream_id{1}, stream_id{2});
  law::detail::ordering(found, pinned, stream_id{}, pinned.create_stream());
  EXPECT_STREQ(found.broken, nullptr);
}

}  // namespace
