// SPDX-License-Identifier: Apache-2.0
// Recipes with policies that no recipe of the library has.
#include <array>
#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>
#include <tessera/policy/chunks.hpp>
#include <tessera/policy/reuse_across_streams.hpp>
#include <tessera/recipe/with.hpp>

#include "suite.hpp"

namespace conformance {
namespace {

using namespace tessera;
constexpr chunk_schedule small_chunks{.first = 40_MiB, .further = 5_MiB};

/// Searches from where the last request of the pool ended.
struct next_fit : split_below<32_MiB> {
  std::array<std::uintptr_t, 2> ends{};
  [[nodiscard]] bool precedes(const free_block& a, const free_block& b,
                              const wanted_block& wanted) const noexcept {
    return a.address - ends[wanted.pool] < b.address - ends[wanted.pool];
  }
  void note_served(const served_request& now) noexcept { ends[now.wanted.pool] = now.address + now.size; }
  bool operator==(const next_fit&) const = default;
};

/// Compares by chance, against the law. It may choose badly, but no block gets lost.
struct any_fit : split_below<> {
  std::uint64_t requests = 0;
  [[nodiscard]] bool precedes(const free_block& a, const free_block& b, const wanted_block&) const noexcept {
    return ((a.address / 512 * 31 + b.address / 512 + requests) * 0x9E3779B97F4A7C15u) >> 63 != 0;
  }
  void note_served(const served_request&) noexcept { ++requests; }
  bool operator==(const any_fit&) const = default;
};

struct no_time {
  [[nodiscard]] static std::uint64_t now(const auto&) noexcept { return 0; }
};
/// Keeps at most 60 MiB of idle segments, of those the most used.
struct evict_least_used {
  static constexpr bool counts_reuses = true;
  using call_clock = no_time;
  [[nodiscard]] static std::size_t bytes_to_evict(eviction_trigger, const usage& now) noexcept {
    return now.cached > 60_MiB ? now.cached - 60_MiB : 0;
  }
  [[nodiscard]] static bool is_candidate(std::size_t bytes, const usage&) noexcept { return bytes > 2_MiB; }
  [[nodiscard]] static double value(const idle_segment& s) noexcept {
    return static_cast<double>(s.reuses + s.acquire_ticks + s.release_ticks) / static_cast<double>(s.bytes);
  }
  [[nodiscard]] static bool should_evict(const idle_segment& s) noexcept {
    return s.remaining > 0 && s.value <= s.min_value;
  }
  bool operator==(const evict_least_used&) const = default;
};

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
  add(named<with<pytorch<>, next_fit, evict_least_used>>{"next_fit"});
  add(named<with<pytorch<>, any_fit>>{"any_fit"});
  add(named<with<pytorch_family::expandable, any_fit>>{"any_fit_in_ranges"});
  return all;
}

INSTANTIATE_TEST_SUITE_P(variations, suite, testing::ValuesIn(variations()), name_of);
INSTANTIATE_TEST_SUITE_P(variations, suite_of_failures, testing::ValuesIn(variations()), name_of);

}  // namespace
}  // namespace conformance
