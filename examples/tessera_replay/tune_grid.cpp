// SPDX-License-Identifier: Apache-2.0
#include "tune_composition.hpp"

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/policy/chunks.hpp>

namespace replay::tune {
namespace {

template <typename Axis>
std::vector<Axis> roundings_to_try() {
  std::vector<Axis> all = {multiple<64>{},      multiple<128>{},     multiple<256>{},    multiple<512>{},
                           multiple<1_KiB>{},   multiple<2_KiB>{},   multiple<4_KiB>{},  multiple<8_KiB>{},
                           multiple<16_KiB>{},  multiple<32_KiB>{},  multiple<64_KiB>{}, multiple<128_KiB>{},
                           multiple<256_KiB>{}, multiple<512_KiB>{}, multiple<1_MiB>{},  multiple<2_MiB>{}};
  for (std::uint32_t parts : {0u, 2u, 4u, 8u, 16u})
    all.push_back(policy::round_to_divisions<512>{.table = divisions::all(parts)});
  for (std::size_t threshold : {1_MiB, 32_MiB, unlimited})
    all.push_back(policy::round_to_power_of_two<512, tunable(unlimited)>{.threshold = threshold});
  return all;
}

std::vector<any_split> splits_to_try() {
  std::vector<any_split> all = {policy::split_never<>{},
                                policy::split_never<policy::block_fit::exact>{},
                                policy::split_never<policy::block_fit::same_power_of_two>{},
                                rest<64>{},
                                rest<512>{},
                                rest<4_KiB>{},
                                rest<64_KiB>{},
                                rest<256_KiB>{},
                                rest<1_MiB>{},
                                rest<64, high>{},
                                rest<512, high>{},
                                rest<64_KiB, high>{},
                                rest<1_MiB, high>{}};
  for (std::size_t max :
       {unlimited, 2_MiB, 4_MiB, 8_MiB, 16_MiB, 20_MiB, 32_MiB, 64_MiB, 128_MiB, 256_MiB, 512_MiB}) {
    all.push_back(policy::split_below<>{.max = max});
    all.push_back(split_expandable{.max = max});
    if (max != unlimited) {
      all.push_back(policy::split_below<>{.max = max, .slack = 128_MiB});
    }
  }
  return all;
}

std::vector<any_growth> growths_to_try(const any_growth& now, const program_traits& of) {
  std::vector<any_growth> all = {policy::grow_exactly<>{}};
  for (std::size_t large : {2_MiB, 4_MiB, 8_MiB, 20_MiB, 32_MiB, 64_MiB, 128_MiB, 256_MiB, 512_MiB})
    all.push_back(segments_below<10_MiB>{.large = large});
  for (std::size_t large : {64_MiB, 128_MiB, 256_MiB, 512_MiB}) {
    all.push_back(segments_below<64_MiB>{.large = large});
    if (large >= 256_MiB) all.push_back(segments_below<256_MiB>{.large = large});
  }
  for (std::size_t large : {0_MiB, 2_MiB, 8_MiB, 16_MiB, 32_MiB, 64_MiB, 128_MiB, 256_MiB, 512_MiB, 1_GiB})
    all.push_back(policy::grow_by_chunks<>{.small_chunk = 0, .large = large});
  for (std::size_t percent : {100u, 102u, 105u, 110u, 120u, 135u, 150u, 200u})
    for (std::size_t further : {16_MiB, 64_MiB, 256_MiB})
      all.push_back(policy::grow_by_schedule<>{
          .schedule = policy::chunk_schedule{align_up(of.peak_live / 100 * percent, 2_MiB), further}});
  for (std::size_t large : {2_MiB, 4_MiB, 8_MiB, 16_MiB, 20_MiB, 32_MiB, 64_MiB, 128_MiB})
    all.push_back(policy::grow_by_mapping<>{.large = large});
  all.push_back(in_place_of_20{});
  const auto* held = std::get_if<policy::grow_by_stitching<>>(&now.chosen);
  const policy::grow_by_stitching<> from = held != nullptr ? *held : policy::grow_by_stitching<>{};
  for (std::size_t peak_parts : {4u, 8u, 16u, 32u, 64u, 128u, 256u}) {
    auto g = from;
    g.peak_parts = peak_parts;
    all.push_back(g);
  }
  for (std::uint64_t slack : {0u, 1u, 2u, 4u, 8u, 12u, 16u}) {
    auto g = from;
    g.slack = percent(slack);
    all.push_back(g);
  }
  for (std::size_t last : {64u, 256u, 1024u, 4096u}) {
    auto g = from;
    g.rest_parts = last;
    if (of.has_capacity) all.push_back(g);
  }
  return all;
}

std::vector<any_eviction> evictions_to_try(const program_traits& of) {
  std::vector<any_eviction> all = {any_eviction{}, policy::evict_never{}, policy::evict_at_free<>{},
                                   policy::evict_idle_segments<>{.before_growth = true}};
  for (std::size_t kept : {1_MiB, 2_MiB, 4_MiB, 8_MiB, 16_MiB, 32_MiB, 64_MiB, 128_MiB, 256_MiB, 512_MiB})
    all.push_back(policy::evict_at_free<tunable(unlimited)>{.threshold = kept});
  for (std::uint64_t share : {50u, 60u, 70u, 80u, 90u})
    if (of.has_capacity) all.push_back(policy::evict_idle_above<>{.threshold = percent(share)});
  return all;
}

}  // namespace

bool needs_program_changes(const composition& c, const program_traits& of) {
  return of.several_streams &&
         (c.streams.is<policy::reuse_immediately>() || c.streams.is<policy::reuse_after_events>());
}

composition simplified(composition c, const program_traits& of) {
  if (c.rounding.is<multiple<512>>()) c.rounding = any_rounding{};
  const auto* const pools = std::get_if<boundary_of_pools>(&c.pools.chosen);
  if (pools != nullptr && pools->boundary.get() == 0) c.pools = policy::pool_together{};
  const auto* const streams = std::get_if<late>(&c.streams.chosen);
  if (!of.several_streams || (streams != nullptr && streams->threshold.get() == 0))
    c.streams.chosen.emplace<policy::reuse_on_same_stream>();
  const auto* const chunks = std::get_if<policy::evict_idle_segments<>>(&c.eviction.chosen);
  const auto* const above = std::get_if<policy::evict_at_free<tunable(unlimited)>>(&c.eviction.chosen);
  if (c.eviction.is<policy::evict_never>() || c.eviction.is<policy::evict_at_synchronize_above<>>() ||
      (chunks != nullptr && *chunks == policy::evict_idle_segments<>{}) ||
      (above != nullptr && above->threshold.get() == unlimited))
    c.eviction = any_eviction{};
  if (!of.has_capacity) c.recovery = any_recovery{};
  return c;
}

std::vector<composition> neighbours(const composition& from, const program_traits& of) {
  std::vector<composition> all;
  const composition c = simplified(from, of);
  const auto vary = [&](auto axis, const auto& values) {
    for (const auto& value : values) {
      composition other = c;
      other.*axis = value;
      if (!(other.*axis == c.*axis)) all.push_back(simplified(other, of));
    }
  };
  all.push_back(c);
  vary(&composition::rounding, of.own.rounding);
  vary(&composition::pools, of.own.pools);
  vary(&composition::streams, of.own.streams);
  vary(&composition::split, of.own.split);
  vary(&composition::eviction, of.own.eviction);
  if (of.has_capacity) vary(&composition::recovery, of.own.recovery);
  vary(&composition::rounding, roundings_to_try<any_rounding>());
  std::vector<any_pools> pools = {policy::pool_together{}};
  for (std::size_t boundary = 64_KiB; boundary <= 64_MiB; boundary *= 2)
    pools.push_back(boundary_of_pools{.boundary = boundary});
  vary(&composition::pools, pools);
  if (of.several_streams) {
    vary(&composition::streams, std::vector<any_streams>{policy::reuse_on_same_stream{}, late{{}, 512}});
    if (!c.growth.has_ranges())
      vary(&composition::streams, std::vector<any_streams>{policy::reuse_across_streams<>{}});
  }
  vary(&composition::split, splits_to_try());
  vary(&composition::pages,
       std::vector<any_pages>{policy::normal_pages{}, policy::prefer_pages<page_preference::huge_first>{},
                              policy::prefer_pages<page_preference::huge_only>{},
                              policy::prefer_pages<page_preference::huge_1g_first>{},
                              policy::prefer_pages<page_preference::huge_1g_only>{}});
  std::vector<any_growth> growths = growths_to_try(c.growth, of);
  growths.insert(growths.end(), of.own.growth.begin(), of.own.growth.end());
  for (const any_growth& growth : growths) {
    composition other = c;
    other.growth = growth;
    if (growth.has_ranges() && c.streams.is<policy::reuse_across_streams<>>()) other.streams = any_streams{};
    if (!(other == c)) all.push_back(other);
  }
  vary(&composition::eviction, evictions_to_try(of));
  if (of.has_capacity)
    vary(&composition::recovery,
         std::vector<any_recovery>{
             policy::fail_fast<policy::release_in_captures<policy::recover_by_releasing_oversize>>{},
             policy::recover_by_emptying_cache<>{},
             policy::recover_by_emptying_cache<tunable(false)>{.accepts_exact_size = true},
             policy::recover_never{},
             policy::last_search<
                 policy::fail_fast<policy::release_in_captures<policy::recover_by_releasing_oversize>>>{},
             policy::last_search<recovery_expandable>{}});
  std::erase_if(all, [&c](const composition& other) {  // law::recipe refuses it
    const std::size_t limit = other.pools.max_small_block();
    return limit != limit_of_pools && limit >= other.split.oversize_from() && !(other == c);
  });
  return all;
}

}  // namespace replay::tune
