// SPDX-License-Identifier: Apache-2.0
// Recipes with policies that no recipe of the library has.
#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/policy/chunks.hpp>
#include <tessera/policy/reuse_across_streams.hpp>
#include <tessera/recipe/with.hpp>

#include "suite.hpp"

namespace conformance {
namespace {

using namespace tessera;
constexpr chunk_schedule small_chunks{.first = 40_MiB, .further = 5_MiB};

compositions variations() {
  compositions all;
  const auto add = [&all]<typename Recipe>(named<Recipe> r) {
    all.push_back({r.name, &bare<Recipe, simulated>, rules_of<Recipe>(), simulated_habits(), 0.2});
  };
  add(named<with<pytorch<>, split_below<32_MiB>, evict_idle_above<percent(60)>>>{"eager"});
  add(named<with<pytorch<>, split_if_remainder_at_least<512, block_end::high>, pool_together>>{"high_end"});
  add(named<with<pytorch<>, reuse_immediately>>{"ignoring_streams"});
  add(named<with<passthrough, prefer_pages<page_preference::huge_first>>>{"huge_pages"});
  add(named<
      with<paddle_family::auto_growth, pool_small_and_large<1_MiB>, grow_by_chunks<2_MiB, 10_MiB, 1_MiB>,
           evict_idle_segments<true, true>, recover_by_emptying_cache<true>>>{"idle_chunks"});
  add(named<with<paddle_family::naive_best_fit, grow_by_schedule<small_chunks>,
                 evict_at_free_above_schedule<small_chunks>>>{"small_chunks"});
  add(named<with<torch_npu_family::native,
                 poll_events_lazily<reuse_on_same_stream_after_own_events, std::size_t{4}>>>{"late"});
  add(named<
      with<pytorch_family::expandable, split_below<32_MiB, 20_MiB, 1_MiB, 0>, evict_idle_above<percent(60)>>>{
      "eager_in_ranges"});
  add(named<
      with<pytorch_family::expandable, split_if_remainder_at_least<512, block_end::high>, pool_together>>{
      "high_end_in_ranges"});
  add(named<with<pytorch_family::expandable, reuse_immediately, evict_at_free<>>>{"evicting_in_ranges"});
  add(named<with<pytorch_family::expandable, prefer_pages<page_preference::huge_first>,
                 grow_by_mapping<2_MiB, 6_MiB, tunable(unlimited), 16_KiB>>>{"aligned_in_ranges"});
  add(named<with<stitched, pool_together, evict_idle_above<percent(60)>>>{"stitched_together"});
  add(named<with<stitched, split_below<32_MiB, 20_MiB, limit_of_pools, 0>, reuse_immediately>>{
      "stitched_up_to"});
  add(named<with<pytorch<>, pool_small_and_large<2_MiB>, last_search<pytorch<>::recovery>>>{
      "searching_again"});
  add(named<with<pytorch_family::expandable, pool_small_and_large<4_MiB>, last_search<recover_never>>>{
      "searching_again_in_ranges"});
  add(named<with<cuda_async, pool_small_and_large<1_MiB>, evict_idle_above<percent(60)>>>{"crossing_pools"});
  add(named<with<cuda_async, reuse_across_streams<true, false, false>, evict_at_free<>>>{"following"});
  add(named<with<cuda_async, reuse_across_streams<false, false, true>, split_below<32_MiB, 20_MiB>>>{
      "inserting"});
  return all;
}

INSTANTIATE_TEST_SUITE_P(variations, suite, testing::ValuesIn(variations()), name_of);
INSTANTIATE_TEST_SUITE_P(variations, suite_of_failures, testing::ValuesIn(variations()), name_of);

}  // namespace
}  // namespace conformance
