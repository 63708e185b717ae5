// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/paddle.hpp>
#include <tessera/recipe/torch_npu.hpp>
#include <tessera/tessera.hpp>

#include "../oom.hpp"

namespace {

using namespace tessera;
constexpr std::uint64_t long_time = 1'000'000'000'000;
using oom_tests::advises;
using oom_tests::hints_of;

template <typename Recipe>
using over = caching_allocator<Recipe, simulated_device>;

simulated_device of(std::size_t capacity) {
  return simulated_device{simulated_device::options{.capacity = capacity}};
}

/// The report of an allocator about a request that must fail.
template <typename Allocator>
oom_report refused(Allocator& pool, std::size_t bytes, stream_id stream = {}) {
  EXPECT_EQ(pool.try_allocate(bytes, stream), nullptr);
  const oom_report report = explain(pool, bytes, stream);
  EXPECT_EQ(report.requested, bytes);
  EXPECT_EQ(report.stream, stream);
  EXPECT_EQ(report.now, pool.current_usage());
  EXPECT_EQ(report.non_releasable, tessera::detail::non_releasable_bytes(pool));
  return report;
}

/// A device with only segments and events.
class segments_alone {
 public:
  using event = simulated_device::event;
  explicit segments_alone(std::size_t capacity) : device_(of(capacity)) {}
  void* acquire(std::size_t bytes) noexcept { return device_.acquire(bytes); }
  bool release(void* p, std::size_t bytes) noexcept { return device_.release(p, bytes); }
  std::size_t capacity() const noexcept { return device_.capacity(); }
  std::size_t granularity() const noexcept { return device_.granularity(); }
  bool record(stream_id stream, event& mark) noexcept { return device_.record(stream, mark); }
  bool query(event& mark) noexcept { return device_.query(mark); }
  bool wait(event& mark) noexcept { return device_.wait(mark); }
  void discard(event& mark) noexcept { device_.discard(mark); }

 private:
  simulated_device device_;
};

TEST(explain, names_the_request) {
  over<pytorch<>> pool{of(30_MiB)};
  (void)pool.allocate(5_MiB);
  const oom_report report = refused(pool, 25_MiB - 100, stream_id{3});
  EXPECT_EQ(report.block, 25_MiB);
  EXPECT_EQ(report.pool, 1u);
  EXPECT_EQ(report.pools, 2u);
  EXPECT_EQ(report.segment, 26_MiB);
  EXPECT_EQ(report.wanted, 26_MiB);
  EXPECT_EQ(report.exact_segment, 25_MiB);
  EXPECT_EQ(report.room(), 10_MiB);
  EXPECT_EQ(report.missing(), 16_MiB);
}

TEST(explain, suggests_smaller_pages_if_those_of_the_recipe_do_not_fit) {
  over<pytorch_family::expandable> pool{of(256_MiB)};
  const oom_report report = refused(pool, 250_MiB);
  EXPECT_EQ(hints_of(report), std::vector{oom_report::hint::map_smaller_pages});
  EXPECT_EQ(report.hints[0].bytes, 250_MiB);
  over<with<pytorch_family::expandable, grow_by_mapping<2_MiB, 2_MiB>>> smaller{of(256_MiB)};
  EXPECT_NE(smaller.try_allocate(250_MiB), nullptr);
  EXPECT_EQ(hints_of(refused(pool, 258_MiB)), std::vector{oom_report::hint::free_memory});
}

// During a capture, nothing goes back to the device, and only the pool's own blocks serve.
TEST(explain, suggests_in_a_capture_only_what_helps) {
  using pool_type = caching_allocator<pytorch<>, simulated_device, extension::private_pools>;
  pool_type pool{of(64_MiB)};
  pool.deallocate(pool.allocate(40_MiB));
  {
    extension::private_pool graph(pool);
    const extension::pool_scope capture(graph, extension::scope_kind::capture);
    const oom_report report = refused(pool, 40_MiB);
    EXPECT_TRUE(advises(report, oom_report::hint::end_capture)) << report.text().c_str();
    for (const auto other : {oom_report::hint::empty_cache, oom_report::hint::share_pool,
                             oom_report::hint::wait_for_streams, oom_report::hint::reuse_across_streams})
      EXPECT_FALSE(advises(report, other)) << report.text().c_str();
  }
  EXPECT_NE(pool.try_allocate(40_MiB), nullptr) << "after the capture";
}

TEST(explain, says_may_unless_the_numbers_tell) {
  over<pytorch<>> pool{of(30_MiB)};
  (void)pool.allocate(5_MiB);
  EXPECT_NE(pool.try_allocate(5_MiB), nullptr);
  const oom_report stitched_would = refused(pool, 20_MiB);
  for (std::size_t i = 0; i < stitched_would.hint_count; ++i)
    EXPECT_EQ(stitched_would.hints[i].what, oom_report::hint::stitch);
  EXPECT_NE(std::string(stitched_would.text().c_str()).find("\n  hint: may help: map pages, of which "),
            std::string::npos)
      << stitched_would.text().c_str();
}

/// Makes the change that a hint names. Returns false if it is none of the allocator's state.
template <typename Pool>
bool apply(Pool& pool, oom_report::hint what) {
  using enum tessera::detail::oom_hint;
  auto& now = pool.policies();
  switch (what) {
    case raise_limit: now.growth.limit = memory_limit(); return true;
    case empty_cache:
    case wait_for_streams: pool.trim(); return true;  // as recover_by_emptying_cache does
    case insert_dependencies:
      if constexpr (requires { now.streams.insert_dependencies = true; })
        now.streams.insert_dependencies = true;
      return requires { now.streams.insert_dependencies = true; };
    case try_again: return true;
    case try_later:
    case release_later: pool.provider().advance(long_time); return true;
    default: return false;
  }
}
/// Runs programs at random until a request fails, then makes the change of one of its hints that do not say "may".
///   Returns:  the hints that served
template <typename Recipe>
std::set<oom_report::hint> hints_that_serve(policies<Recipe> settings = {}) {
  const auto no_law = [](const auto&) { return law::growth_witness{}; };  // it takes long
  std::set<oom_report::hint> served;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](std::size_t n) { return random() % n; };
    over<Recipe> pool{of(100_MiB + pick(200_MiB)), settings};
    std::vector<void*> live;
    for (int i = 0; i < 1200; ++i) {
      if (!live.empty() && pick(100) < 38) {
        std::swap(live[pick(live.size())], live.back());
        if (pick(6) == 0) (void)pool.record_stream(live.back(), stream_id{pick(3)});
        if (pick(3) == 0) pool.provider().submit(stream_id{pick(3)}, long_time / 10000);
        pool.deallocate(live.back());
        live.pop_back();
        continue;
      }
      const std::size_t bytes = 1 + pick(std::size_t{1} << (14 + pick(14)));
      const stream_id stream{pick(3)};
      void* p = pool.try_allocate(bytes, stream);
      const oom_report report =
          p == nullptr ? tessera::detail::explain_with(pool, bytes, stream, no_law) : oom_report{};
      const bool has_hint = report.hint_count > 0 && report.hints[0].what != oom_report::hint::free_memory;
      const auto what = has_hint ? report.hints[pick(report.hint_count)].what : oom_report::hint::free_memory;
      const auto text = tessera::detail::text_of(what);
      const bool says_may =
          has_hint && !text.is_sure && text.header != std::string_view("concurrent/waiting");
      if (has_hint && !says_may && apply(pool, what)) {
        p = pool.try_allocate(bytes, stream);
        EXPECT_NE(p, nullptr) << text.sentence << ", seed " << seed << "\n" << report.text().c_str();
        served.insert(what);
        pool.policies() = settings;
      }
      if (p != nullptr) live.push_back(p);
    }
  }
  return served;
}
TEST(explain, names_without_may_only_what_serves_the_request) {
  using enum tessera::detail::oom_hint;
  policies<pytorch<>> limited;
  limited.growth.limit = memory_limit(percent(50));
  EXPECT_TRUE(hints_that_serve<pytorch<>>(limited).contains(raise_limit));
  policies<cuda_async> apart;
  apart.streams.follow_dependencies = apart.streams.opportunistic = apart.streams.insert_dependencies = false;
  EXPECT_TRUE(hints_that_serve<cuda_async>(apart).contains(insert_dependencies));
  const auto of_a_final_cache = hints_that_serve<paddle_virtual_memory_v2>();
  EXPECT_TRUE(of_a_final_cache.contains(empty_cache) && of_a_final_cache.contains(wait_for_streams));
}

TEST(explain, names_a_free_block_that_is_too_small) {
  over<pytorch<>> pool{of(30_MiB)};
  void* const live = pool.allocate(5_MiB);
  const oom_report report = refused(pool, 25_MiB);
  EXPECT_EQ(report.largest.bytes, 15_MiB);
  EXPECT_EQ(report.largest.address, reinterpret_cast<std::uintptr_t>(live) + 5_MiB);
  EXPECT_EQ(report.largest_is, oom_report::reason::too_small);
  EXPECT_EQ(report.largest_neighbours, 1u);
  EXPECT_EQ(report.non_releasable, 15_MiB);
  EXPECT_EQ(report.non_releasable_units, 1u);
  EXPECT_EQ(report.units[0].bytes, 15_MiB);
  EXPECT_EQ(report.units[0].blocks, 1u);
  EXPECT_EQ(report.units[0].used, 5_MiB);
  EXPECT_EQ(report.units[0].first_block, reinterpret_cast<std::uintptr_t>(live));
  EXPECT_EQ(report.units[0].length, 20_MiB);
  EXPECT_EQ(report.units[1].bytes, 0u);
  EXPECT_EQ(hints_of(report), std::vector{oom_report::hint::free_memory})
      << "14 MiB in whole pages are too little";
}

TEST(explain, lists_the_segments_with_the_highest_worth) {
  over<pytorch<>> pool{of(84_MiB)};
  // Live blocks take 19, 2 and 10 MiB of three of the four segments of 20 MiB. Two blocks of the last one
  // take 4 MiB together.
  std::vector<void*> spare;
  const auto segment = [&](std::initializer_list<std::size_t> kept) {
    std::size_t rest = 20_MiB;
    for (const std::size_t bytes : kept) rest -= bytes;
    std::vector<void*> filled;
    for (const std::size_t bytes : kept) filled.push_back(pool.allocate(bytes));
    spare.push_back(pool.allocate(rest));
    return filled;
  };
  const auto full = segment({9_MiB, 9_MiB});
  const auto nearly_empty = segment({2_MiB});
  const auto half = segment({5_MiB, 5_MiB});
  const auto few = segment({2_MiB, 2_MiB});
  for (void* p : spare) pool.deallocate(p);
  const oom_report report = refused(pool, 30_MiB);
  EXPECT_EQ(report.non_releasable_units, 4u);
  EXPECT_EQ(report.non_releasable, (2 + 18 + 10 + 16) * 1_MiB);
  const void* const firsts[] = {nearly_empty[0], few[0], half[0]};
  const std::size_t blocks[] = {1, 2, 2};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(report.units[i].first_block, reinterpret_cast<std::uintptr_t>(firsts[i])) << i;
    EXPECT_EQ(report.units[i].blocks, blocks[i]) << i;
  }
}

TEST(explain, pages_between_live_blocks_could_be_released_or_moved) {
  over<pytorch<>> pool{of(60_MiB)};
  void* const large = pool.allocate(50_MiB);
  pool.deallocate(large);
  void* const low = pool.allocate(5_MiB);  // split from the segment of 50 MiB
  EXPECT_EQ(low, large);
  const oom_report report = refused(pool, 46_MiB);
  EXPECT_EQ(report.pages_in_place, 20_MiB) << "of pages of 20 MiB, one is whole";
  EXPECT_EQ(report.pages_stitched, 44_MiB);
  EXPECT_EQ(hints_of(report), std::vector{oom_report::hint::stitch});

  over<with<pytorch<>, grow_by_stitching<>>> stitching{of(60_MiB)};
  stitching.deallocate(stitching.allocate(50_MiB));
  (void)stitching.allocate(5_MiB);
  EXPECT_NE(stitching.try_allocate(46_MiB), nullptr) << "the advice is true";
}

TEST(explain, names_the_conditions_of_mapped_pages) {
  over<with<pytorch<>, split_below<64_MiB>>> limited_split{of(60_MiB)};
  limited_split.deallocate(limited_split.allocate(50_MiB));
  (void)limited_split.allocate(5_MiB);
  const oom_report with_limit = explain(limited_split, 46_MiB);
  EXPECT_TRUE(advises(with_limit, oom_report::hint::stitch));
  EXPECT_NE(std::string_view(with_limit.text().c_str())
                .find("grow_by_stitching, with no split limit [policy/grow_by_stitching"),
            std::string_view::npos)
      << with_limit.text().c_str();

  over<cuda_async> crossing{of(60_MiB)};
  crossing.deallocate(crossing.allocate(50_MiB));
  (void)crossing.allocate(5_MiB);
  const oom_report across = explain(crossing, 46_MiB);
  EXPECT_NE(std::string_view(across.text().c_str()).find("grow_by_stitching, with reuse_on_same_stream ["),
            std::string_view::npos)
      << across.text().c_str();

  caching_allocator<pytorch<>, segments_alone> plain{segments_alone(60_MiB)};
  plain.deallocate(plain.allocate(50_MiB));
  (void)plain.allocate(5_MiB);
  const oom_report without = explain(plain, 46_MiB);
  EXPECT_NE(
      std::string_view(without.text().c_str()).find("grow_by_stitching, over a virtual_memory_provider ["),
      std::string_view::npos)
      << without.text().c_str();
}

TEST(explain, names_a_free_block_of_another_stream) {
  const stream_id other{7};
  over<pytorch<>> pool{of(22_MiB)};
  (void)pool.allocate(3_MiB / 2, other);
  const oom_report report = refused(pool, 12_MiB);
  EXPECT_EQ(report.largest_is, oom_report::reason::stream);
  EXPECT_EQ(report.largest.stream, other);
  EXPECT_EQ(report.largest.bytes, 20_MiB - 3_MiB / 2);
  EXPECT_TRUE(advises(report, oom_report::hint::stitch));
  EXPECT_FALSE(advises(report, oom_report::hint::reuse_across_streams)) << "pages are surer";

  caching_allocator<pytorch<>, segments_alone> plain{segments_alone(22_MiB)};
  (void)plain.allocate(3_MiB / 2, other);
  const oom_report here = refused(plain, 12_MiB);
  EXPECT_TRUE(advises(here, oom_report::hint::reuse_across_streams));
  EXPECT_NE(std::string_view(explain(plain, 12_MiB).text().c_str())
                .find("reuse_across_streams, over an ordering_provider ["),
            std::string_view::npos);

  over<with<pytorch<>, reuse_across_streams<>>> crossing{of(22_MiB)};
  (void)crossing.allocate(3_MiB / 2, other);
  EXPECT_NE(crossing.try_allocate(12_MiB), nullptr) << "the advice is true";
}

TEST(explain, names_a_free_block_of_another_pool) {
  caching_allocator<pytorch<>, segments_alone> plain{segments_alone(20_MiB)};
  (void)plain.allocate(3_MiB / 2);
  const oom_report report = refused(plain, 512);
  EXPECT_EQ(report.pool, 0u);
  EXPECT_EQ(report.largest_is, oom_report::reason::pool);
  EXPECT_EQ(report.largest.pool, 1u);
  EXPECT_TRUE(advises(report, oom_report::hint::share_pool));
  over<with<pytorch<>, pool_together>> together{of(20_MiB)};
  (void)together.allocate(3_MiB / 2);
  EXPECT_NE(together.try_allocate(512), nullptr) << "the advice is true";
}

TEST(explain, a_pending_block_waits_if_streams_do_not_wait) {
  const stream_id one{1}, two{2};
  using never_waits = with<cuda_async, reuse_across_streams<true, false, false>, recover_never>;
  const auto prepare = [&](auto& pool) {
    pool.provider().submit(one, 1'000'000'000);
    pool.deallocate(pool.allocate(10_MiB, one));
    (void)pool.allocate(1_MiB, one);  // split from those
  };
  over<never_waits> pool{of(11_MiB)};
  prepare(pool);
  const oom_report report = refused(pool, 9_MiB, two);
  EXPECT_EQ(report.largest_is, oom_report::reason::unfinished);
  EXPECT_EQ(hints_of(report).front(), oom_report::hint::insert_dependencies);
  over<with<never_waits, reuse_across_streams<true, false, true>>> waiting{of(11_MiB)};
  prepare(waiting);
  EXPECT_NE(waiting.try_allocate(9_MiB, two), nullptr) << "the advice is true";
}

TEST(explain, names_an_oversize_block) {
  using careless = with<pytorch<>, split_below<32_MiB>, recover_never>;
  over<careless> pool{of(60_MiB)};
  pool.deallocate(pool.allocate(40_MiB));
  const oom_report report = refused(pool, 25_MiB);
  EXPECT_EQ(report.largest_is, oom_report::reason::split_limit);
  EXPECT_EQ(report.split_limit, 32_MiB);
  EXPECT_EQ(report.idle, 40_MiB);
  EXPECT_EQ(hints_of(report),
            (std::vector{oom_report::hint::empty_cache, oom_report::hint::raise_split_limit}));
  over<with<careless, recover_by_emptying_cache<>>> emptying{of(60_MiB)};
  emptying.deallocate(emptying.allocate(40_MiB));
  EXPECT_NE(emptying.try_allocate(25_MiB), nullptr) << "the first advice is true";
  over<with<careless, split_below<41_MiB>>> higher{of(60_MiB)};
  higher.deallocate(higher.allocate(40_MiB));
  EXPECT_NE(higher.try_allocate(25_MiB), nullptr) << "and so is the second";
}

TEST(explain, names_a_block_of_another_size_class) {
  over<with<power_of_two, recover_never>> pool{of(700_KiB)};
  pool.deallocate(pool.allocate(512_KiB));
  const oom_report report = refused(pool, 200_KiB);
  EXPECT_EQ(report.block, 256_KiB);
  EXPECT_EQ(report.largest_is, oom_report::reason::size_class);
  EXPECT_EQ(hints_of(report), (std::vector{oom_report::hint::empty_cache, oom_report::hint::split_blocks}));
}

TEST(explain, suggests_to_wait_for_pending_blocks) {
  over<with<pytorch<>, recover_never>> pool{of(40_MiB)};
  void* const p = pool.allocate(30_MiB);
  ASSERT_TRUE(pool.record_stream(p, stream_id{1}));
  pool.provider().hold_events(true);
  pool.deallocate(p);
  const oom_report report = refused(pool, 30_MiB);
  EXPECT_EQ(report.now.pending(), 30_MiB);
  EXPECT_EQ(report.after_pending, 30_MiB);
  EXPECT_EQ(report.largest.bytes, 0u);
  EXPECT_EQ(hints_of(report), std::vector{oom_report::hint::wait_for_streams});
  EXPECT_EQ(hints_of(refused(pool, 20_MiB)), std::vector{oom_report::hint::wait_for_streams})
      << "or a part of it";
  EXPECT_EQ(hints_of(refused(pool, 40_MiB)), std::vector{oom_report::hint::wait_for_streams})
      << "or the device";
  EXPECT_EQ(hints_of(refused(pool, 41_MiB)), std::vector{oom_report::hint::free_memory});
}

TEST(explain, suggests_to_raise_the_limit) {
  over<pytorch<>> pool{of(100_MiB), {.growth = {.limit = 30_MiB}}};
  (void)pool.allocate(20_MiB);
  const oom_report error = explain(pool, 20_MiB);
  EXPECT_EQ(error.now.limit, 30_MiB);
  EXPECT_EQ(error.capacity, 100_MiB);
  EXPECT_EQ(hints_of(error), std::vector{oom_report::hint::raise_limit});
  EXPECT_NE(std::string_view(error.text().c_str()).find("of at most 30.00 MiB (device: 100.00 MiB)"),
            std::string_view::npos);
  EXPECT_EQ(hints_of(refused(pool, 90_MiB)), std::vector{oom_report::hint::free_memory})
      << "no limit is high enough";
}

TEST(explain, says_that_live_blocks_exceed_the_device) {
  over<passthrough> pool{of(10_MiB)};
  (void)pool.allocate(8_MiB);
  const oom_report report = refused(pool, 4_MiB);
  EXPECT_EQ(report.largest.bytes, 0u);
  EXPECT_EQ(report.needed(), 12_MiB);
  ASSERT_EQ(hints_of(report), std::vector{oom_report::hint::free_memory});
  EXPECT_EQ(report.hints[0].bytes, 2_MiB);
}

TEST(explain, rounding_and_rests_are_named_if_they_use_the_missing_bytes) {
  over<power_of_two> rounding{of(1_MiB + 256_KiB)};
  (void)rounding.allocate(520_KiB);
  const oom_report report = refused(rounding, 260_KiB);
  EXPECT_EQ(report.rounding, 504_KiB + 252_KiB);
  EXPECT_EQ(hints_of(report), std::vector{oom_report::hint::round_less});
  over<with<power_of_two, round_to_multiple<512>>> exact{of(1_MiB + 256_KiB)};
  (void)exact.allocate(520_KiB);
  EXPECT_NE(exact.try_allocate(260_KiB), nullptr) << "the advice is true";

  over<with<pytorch<>, split_never<>>> whole{of(22_MiB)};
  (void)whole.allocate(3_MiB / 2);
  const oom_report rests = refused(whole, 5_MiB);
  EXPECT_EQ(rests.unsplit, 20_MiB - 3_MiB / 2);
  EXPECT_EQ(hints_of(rests), std::vector{oom_report::hint::split_off_remainders});
  over<with<pytorch<>, split_if_remainder_at_least<512>>> cut{of(22_MiB)};
  (void)cut.allocate(3_MiB / 2);
  EXPECT_NE(cut.try_allocate(5_MiB), nullptr) << "the advice is true";
}

TEST(explain, suggests_a_smaller_segment) {
  over<pytorch<>> pool{of(30_MiB)};
  (void)pool.allocate(15_MiB);
  const oom_report report = refused(pool, 5_MiB);
  EXPECT_EQ(report.segment, 20_MiB);
  EXPECT_EQ(hints_of(report), std::vector{oom_report::hint::grow_exactly});
  over<with<pytorch<>, recover_by_emptying_cache<true>>> settling{of(30_MiB)};
  (void)settling.allocate(15_MiB);
  EXPECT_NE(settling.try_allocate(5_MiB), nullptr) << "the advice is true";
  EXPECT_FALSE(advises(refused(settling, 11_MiB), oom_report::hint::grow_exactly));
}

TEST(explain, suggests_other_pages) {
  over<with<passthrough, prefer_pages<page_preference::huge_only>>> huge{
      simulated_device{simulated_device::options{.capacity = 100_MiB, .huge_budget = 2_MiB}}};
  const oom_report ran_out = refused(huge, 3_MiB);
  EXPECT_EQ(ran_out.segment, 4_MiB);
  EXPECT_EQ(ran_out.missing(), 0u);
  EXPECT_EQ(hints_of(ran_out), std::vector{oom_report::hint::use_other_pages});
  over<with<passthrough, prefer_pages<page_preference::huge_first>>> falls_back{
      simulated_device{simulated_device::options{.capacity = 100_MiB, .huge_budget = 2_MiB}}};
  EXPECT_NE(falls_back.try_allocate(3_MiB), nullptr) << "the advice is true";

  over<with<passthrough, prefer_pages<page_preference::huge_1g_only>>> giant{of(500_MiB)};
  EXPECT_EQ(hints_of(refused(giant, 20_MiB)), (std::vector{oom_report::hint::use_normal_pages}));
}

TEST(explain, suggests_a_larger_range) {
  over<pytorch_family::expandable> pool{of(4_GiB), {.growth = {.range = 1_GiB}}};
  const oom_report error = explain(pool, 2_GiB);
  EXPECT_EQ(pool.try_allocate(2_GiB), nullptr);
  EXPECT_EQ(error.range, 1040_MiB) << "in whole pages";
  EXPECT_EQ(hints_of(error).front(), oom_report::hint::enlarge_range);
  EXPECT_NE(std::string_view(error.text().c_str()).find("enough, but no range of addresses is long enough"),
            std::string_view::npos)
      << error.text().c_str();
}

TEST(explain, counts_non_releasable_chunks_of_ranges) {
  over<pytorch_family::expandable> pool{of(40_MiB)};
  void* const low = pool.allocate(18_MiB);
  void* const middle = pool.allocate(4_MiB);  // the last 2 MiB of one chunk, the first of the other
  pool.deallocate(low);
  const oom_report report = refused(pool, 30_MiB);
  EXPECT_EQ(report.now.reserved, 40_MiB);
  EXPECT_EQ(report.non_releasable, 36_MiB);
  EXPECT_EQ(report.non_releasable_units, 2u);
  EXPECT_EQ(report.units[0].bytes, 18_MiB);
  EXPECT_EQ(report.units[0].length, 20_MiB);
  EXPECT_EQ(report.units[0].first_block, reinterpret_cast<std::uintptr_t>(middle));
  EXPECT_EQ(report.units[1].first_block, report.units[0].first_block);
  EXPECT_EQ(report.pages_stitched, 36_MiB);
  EXPECT_EQ(hints_of(report), std::vector{oom_report::hint::stitch});
  over<with<pytorch_family::expandable, grow_by_stitching<>>> stitching{of(40_MiB)};
  void* const first = stitching.allocate(18_MiB);
  (void)stitching.allocate(4_MiB);
  stitching.deallocate(first);
  EXPECT_NE(stitching.try_allocate(30_MiB), nullptr) << "the advice is true";
}

TEST(explain, suggests_smaller_chunks) {
  using large_pieces =
      with<stitched, grow_by_stitching<std::size_t{64}, percent(4), memory_limit{}, std::size_t{1}>>;
  over<large_pieces> pool{of(32_MiB)};
  void* const first = pool.allocate(15_MiB);
  (void)pool.allocate(1_MiB);
  pool.deallocate(first);
  const oom_report report = refused(pool, 30_MiB);
  EXPECT_EQ(hints_of(report), std::vector{oom_report::hint::use_smaller_chunks});
  over<stitched> smaller{of(32_MiB)};
  void* const other = smaller.allocate(15_MiB);
  (void)smaller.allocate(1_MiB);
  smaller.deallocate(other);
  EXPECT_NE(smaller.try_allocate(30_MiB), nullptr) << "the advice is true";
}

TEST(explain, knows_that_others_use_the_device) {
  simulated_device shared = of(100_MiB);
  (void)shared.acquire(90_MiB);
  caching_allocator<pytorch<>, provider_ref<simulated_device>> pool{provider_ref(shared)};
  const oom_report report = refused(pool, 20_MiB);
  EXPECT_EQ(report.available, 10_MiB);
  EXPECT_EQ(report.room(), 10_MiB);
  EXPECT_EQ(hints_of(report), std::vector{oom_report::hint::free_memory});
  EXPECT_NE(std::string_view(explain(pool, 20_MiB).text().c_str()).find("others use the device, too"),
            std::string_view::npos);
}

TEST(explain, names_a_block_that_became_free_after_the_request) {
  over<pytorch<>> pool{of(30_MiB)};
  pool.deallocate(pool.allocate(30_MiB));
  const oom_report late = explain(pool, 30_MiB);
  EXPECT_EQ(late.largest_is, oom_report::reason::none);
  EXPECT_EQ(late.idle, 30_MiB);
  EXPECT_NE(std::string_view(late.text().c_str()).find("would serve now"), std::string_view::npos);
  EXPECT_NE(pool.try_allocate(30_MiB), nullptr);
}

TEST(explain, warns_of_growth_without_bound) {
  using grows = pytorch<"max_split_size_mb:128,expandable_segments:True">;
  caching_allocator<grows, simulated_device> pool;
  const oom_report report = explain(pool, 100_GiB);
  ASSERT_FALSE(report.growth);
  const std::string text = report.text().c_str();
  const std::size_t at = text.find("\n  warning: growth has no bound: 100 cycles that free ");
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_LE(text.find('\n', at + 1) - at, 161u);
  caching_allocator<pytorch<>, simulated_device> bounded;
  EXPECT_EQ(std::string(explain(bounded, 100_GiB).text().c_str()).find("warning"), std::string::npos);
}

TEST(explain, adds_up_the_arenas_behind_a_handle) {
  using arenas = per_stream<over<pytorch<>>>;
  auto pool = interop::shared_allocator<waiting<arenas>>::make(std::chrono::milliseconds(1), of(630_MiB));
  void* const p = pool.allocate(500_MiB, stream_id{1});
  (void)pool.allocate(130_MiB, stream_id{2});
  pool.deallocate(p);
  const oom_report report = explain(pool, 600_MiB, stream_id{2});
  EXPECT_EQ(report.now, pool.current_usage());
  EXPECT_EQ(report.now.reserved, 630_MiB);
  EXPECT_EQ(report.elsewhere, 500_MiB);
  EXPECT_EQ(report.waited_ms, 1);
}

TEST(explain, suggests_to_try_again) {
  over<pytorch<>> pool{of(24_MiB)};
  void* const p = pool.allocate(8_MiB);
  (void)pool.allocate(8_MiB);
  ASSERT_TRUE(pool.record_stream(p, stream_id{1}));
  pool.provider().hold_events(true);
  pool.deallocate(p);
  const oom_report report =
      refused(pool, 7_MiB);  // which waited for the stream, and then asked only the device
  EXPECT_EQ(report.largest_is, oom_report::reason::none);
  EXPECT_EQ(hints_of(report).front(), oom_report::hint::try_again);
  EXPECT_NE(pool.try_allocate(7_MiB), nullptr) << "the advice is true";
}

TEST(explain, idle_memory_of_pending_work_is_released_later) {
  const stream_id one{1};
  over<cuda_async> pool{of(100_MiB)};
  pool.provider().submit(one, 1'000'000'000);
  pool.deallocate(pool.allocate(60_MiB, one));
  pool.provider().fail_every(1);  // waits, too
  const oom_report report = refused(pool, 80_MiB);
  EXPECT_EQ(report.now.allocated, 0u);
  EXPECT_EQ(report.now.pending(), 0u);
  EXPECT_EQ(report.idle, 60_MiB);
  EXPECT_EQ(hints_of(report), std::vector{oom_report::hint::release_later});
  EXPECT_NE(std::string_view(explain(pool, 80_MiB).text().c_str())
                .find("hint: try again once streams are done; 60.00 MiB is idle but was not released, or the "
                      "device failed: waiting [concurrent/waiting.hpp]"),
            std::string_view::npos)
      << explain(pool, 80_MiB).text().c_str();
  pool.provider().fail_every(0);
  EXPECT_NE(pool.try_allocate(80_MiB), nullptr) << "the advice is true";
}

TEST(explain, reports_idle_memory_that_the_device_does_not_take) {
  over<pytorch<>> pool{of(100_MiB)};
  pool.deallocate(pool.allocate(60_MiB));
  pool.provider().fail_every(1);
  const oom_report report = refused(pool, 80_MiB);
  EXPECT_EQ(report.idle, 60_MiB);
  EXPECT_EQ(hints_of(report), std::vector{oom_report::hint::release_later});
  pool.provider().fail_every(0);
  EXPECT_NE(pool.try_allocate(80_MiB), nullptr) << "the advice is true";
}

TEST(explain, says_that_the_request_exceeds_the_device) {
  over<pytorch<>> pool{of(100_MiB)};
  const auto says_so = [&pool] {
    return std::string_view(explain(pool, 200_MiB).text().c_str())
        .ends_with("  no policy would help: the request alone exceeds the device, 100.00 MiB");
  };
  EXPECT_TRUE(says_so()) << explain(pool, 200_MiB).text().c_str();
  (void)pool.allocate(60_MiB);
  EXPECT_TRUE(says_so()) << explain(pool, 200_MiB).text().c_str();
}

TEST(explain, reports_a_device_that_refuses_although_it_has_memory) {
  over<pytorch<>> pool{of(30_MiB)};
  pool.provider().fail_every(1);
  const oom_report error = explain(pool, 20_MiB);
  EXPECT_EQ(pool.try_allocate(20_MiB), nullptr);
  EXPECT_TRUE(hints_of(error).empty());
  EXPECT_NE(
      std::string_view(error.text().c_str()).find("30.00 MiB, which is enough, but the device refused it"),
      std::string_view::npos)
      << error.text().c_str();
}

TEST(explain, reports_a_request_above_the_maximum) {
  over<pytorch<>> pool{of(30_MiB)};
  const oom_report error = explain(pool, ~std::size_t{0}, stream_id{0xabcdef0});
  EXPECT_EQ(error.segment, ~std::size_t{0});
  EXPECT_STREQ(error.text().c_str(),
               "tessera: out of memory: 18446744073709551615 bytes requested on stream 0xabcdef0; no request "
               "above 1152921504606846975 bytes is served");
  EXPECT_TRUE(hints_of(error).empty());
}

}  // namespace
