// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/observe/explain.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/torch_npu.hpp>
#include <tessera/tessera.hpp>

#include "../../by_day.hpp"
#include "../oom.hpp"

// Random programs make every shipped recipe fail. Each report must agree with the allocator. No hint names
// what the recipe already does.
namespace {

using namespace tessera;
using oom_tests::advises;

template <typename Recipe>
bool empties_the_cache(const policies<Recipe>& chosen, failure_reason why) {
  for (const recovery_steps::step step : chosen.recovery.steps(why)) {
    if (step == recovery_steps::step::release_cached) return true;
  }
  return false;
}
template <typename Recipe>
bool grows_exactly(const policies<Recipe>& chosen) {
  for (const recovery_steps::step step : chosen.recovery.steps(failure_reason::by_device)) {
    if (step == recovery_steps::step::retry_exact_size) return true;
  }
  return false;
}
template <typename Recipe>
bool rounds_little(const policies<Recipe>& chosen) {
  for (std::size_t bytes = 1; bytes < 100_MiB; bytes += bytes / 3 + 1) {
    if (chosen.rounding.block_size(bytes) > align_up(bytes, 512)) return false;
  }
  return true;
}

/// The hint that contradicts the recipe, or -1.
template <typename Recipe>
int contradiction(const oom_report& report, const policies<Recipe>& chosen) {
  using growth = typename Recipe::growth;
  const bool empties = empties_the_cache(chosen, failure_reason::by_device) &&
                       empties_the_cache(chosen, failure_reason::by_limit);
  std::array<bool, static_cast<std::size_t>(oom_report::hint::free_memory)> on{};
  const auto is_on = [&on](oom_report::hint what) -> bool& { return on[static_cast<std::size_t>(what)]; };
  is_on(oom_report::hint::map_pages) = growth::backend::has_ranges;
  is_on(oom_report::hint::stitch) = growth::backend::moves_memory;
  is_on(oom_report::hint::use_smaller_chunks) = !growth::backend::moves_memory;
  is_on(oom_report::hint::empty_cache) = is_on(oom_report::hint::wait_for_streams) = empties;
  is_on(oom_report::hint::try_later) = !empties;
  is_on(oom_report::hint::release_later) =
      !Recipe::streams::reuses_across_streams;  // no other recipe leaves idle memory at its address
  is_on(oom_report::hint::grow_exactly) = grows_exactly(chosen);
  is_on(oom_report::hint::share_pool) = Recipe::pools::count == 1;
  is_on(oom_report::hint::reuse_across_streams) =
      Recipe::streams::reuses_across_streams || growth::backend::has_ranges ||
      stream_id(chosen.streams.reuse_key(stream_id{1})) == stream_id{};
  is_on(oom_report::hint::insert_dependencies) =
      chosen.streams.reuse_rules().insert_dependencies || !Recipe::streams::reuses_across_streams;
  is_on(oom_report::hint::raise_split_limit) = chosen.split.oversize_from() == unlimited;
  is_on(oom_report::hint::split_blocks) = chosen.split.should_split(1_MiB, 100_MiB);
  is_on(oom_report::hint::split_off_remainders) = chosen.split.should_split(2_MiB, 2_MiB + 512);
  is_on(oom_report::hint::round_less) = rounds_little(chosen);
  is_on(oom_report::hint::raise_limit) = chosen.growth.limit.on(1_GiB) >= 1_GiB;
  is_on(oom_report::hint::raise_device_limit) = true;  // the device has none
  is_on(oom_report::hint::share_arenas) = true;        // there are none
  for (std::size_t i = 0; i < report.hint_count; ++i) {
    const oom_report::hint what = report.hints[i].what;
    if (what != oom_report::hint::free_memory && is_on(what)) return static_cast<int>(what);
  }
  return -1;
}

/// The first error in the text of an exception, or nothing.
std::string fault_of(const oom_report& error) {
  const tessera::detail::oom_text whole = error.text();
  const std::string_view text = whole.c_str();
  if (text.size() + 1 >= tessera::detail::oom_text::capacity) return "the text is cut short";
  std::size_t lines = 0;
  for (std::size_t at = 0; at <= text.size(); ++lines) {
    const std::size_t end = text.find('\n', at);
    const std::string_view line = text.substr(at, end - at);
    if (line.empty()) return "a line is empty";
    if (line.size() > 160) return "too long: " + std::string(line);
    if (end == std::string_view::npos) break;
    at = end + 1;
  }
  return lines + 1 <= 12 ? "" : "too many lines";
}

/// The first wrong statement of a report about blocks, or nothing.
template <typename Allocator>
std::string fault_of(const oom_report& report, Allocator& pool) {
  const usage now = pool.current_usage();
  if (report.now != now) return "usage";
  if (report.non_releasable != tessera::detail::non_releasable_bytes(pool)) return "pinned bytes";
  if (report.idle + report.non_releasable != now.cached) return "all that is cached is idle or pinned";
  std::size_t largest = 0, used = 0, live_bytes = 0;
  for_each_block(pool, [&](const segment_view&, const block_view& b) {
    if (b.is == block_view::state::free && b.bytes > largest) largest = b.bytes;
    if (b.is == block_view::state::live) live_bytes += b.bytes;
    if (b.is != block_view::state::free) ++used;
  });
  if (report.largest.bytes != largest) return "the largest free block";
  if (report.rounding + report.unsplit > live_bytes + report.block) return "waste";
  for (std::size_t i = 0; i < report.units.size(); ++i) {
    const oom_report::non_releasable_unit& p = report.units[i];
    if (i > 0 && p.worth() > report.units[i - 1].worth()) return "the order of pins";
    if (p.bytes > 0 && (p.blocks == 0 || p.blocks > used || p.bytes > p.length)) return "a pin";
    if (p.bytes == 0 && report.non_releasable_units > i) return "a pin is missing";
  }
  if (report.missing() > 0 && report.hint_count == 0) return "no advice";
  return {};
}

template <typename Recipe>
class advice : public testing::Test {};
using recipes =
    types_by_day<4, pytorch<>, stitched, cuda_async, pinned_packed, pytorch_family::expandable,
                 torch_npu_family::native, torch_npu_family::expandable, paddle_family::auto_growth,
                 paddle_family::naive_best_fit, pinned, torch_npu_family::pinned_expandable, power_of_two,
                 passthrough, pytorch<"max_split_size_mb:32,garbage_collection_threshold:0.6">,
                 pytorch<"roundup_power2_divisions:4">, torch_npu<"page_size:1g">,
                 with<pytorch<>, recover_never>, with<pytorch<>, recover_by_emptying_cache<true>>,
                 with<pytorch<>, grow_by_segments<2_MiB, 20_MiB, 10_MiB, memory_limit(percent(50))>>,
                 with<cuda_async, reuse_across_streams<true, false, false>>,
                 with<pytorch_family::expandable, recover_never>>;
TYPED_TEST_SUITE(advice, recipes);

TYPED_TEST(advice, suggests_only_changes_and_fits_twelve_lines) {
  std::size_t failures = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](std::size_t below) { return static_cast<std::size_t>(random() % below); };
    caching_allocator<TypeParam, simulated_device> pool{
        simulated_device{simulated_device::options{.capacity = 100_MiB + pick(1_GiB)}}};
    std::vector<void*> live;
    for (int i = 0; i < 3000; ++i) {
      if (!live.empty() && pick(100) < 35) {
        std::swap(live[pick(live.size())], live.back());
        if (pick(8) == 0) (void)pool.record_stream(live.back(), stream_id{pick(3)});
        pool.deallocate(live.back());
        live.pop_back();
        continue;
      }
      if (i % 500 == 0) pool.provider().hold_events(pick(2) == 0);
      const std::size_t bytes = 1 + pick(std::size_t{1} << (8 + pick(19)));
      const stream_id stream{pick(3)};
      if (void* const p = pool.try_allocate(bytes, stream)) {
        live.push_back(p);
        continue;
      }
      ++failures;
      const oom_report error = explain(pool, bytes, stream);
      ASSERT_EQ(contradiction<TypeParam>(error, pool.policies()), -1) << error.text().c_str();
      ASSERT_EQ(fault_of(error), "") << error.text().c_str();
      ASSERT_EQ(fault_of(error, pool), "") << error.text().c_str();
      ASSERT_STREQ(pool.audit(), nullptr);
      if (pick(4) == 0) {
        for (std::size_t k = live.size() / 2; k > 0; --k) {
          std::swap(live[pick(live.size())], live.back());
          pool.deallocate(live.back());
          live.pop_back();
        }
      }
    }
  }
  EXPECT_GE(failures, 100u);
}

}  // namespace
