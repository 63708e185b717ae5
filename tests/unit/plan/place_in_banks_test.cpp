// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/debug/checked_provider.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/memory_domains.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/provider/timed.hpp>
#include <tessera/tessera.hpp>

#include "../../by_day.hpp"
#include "../../conformance/planned_model.hpp"
#include "random_programs.hpp"
#include "recorded_steps.hpp"
#include "tessera_replay/planner/make_plan.hpp"
#include "tessera_replay/planner/place_in_banks.hpp"
#include "tessera_replay/planner/plan_file.hpp"

namespace {

using namespace tessera;
using namespace tessera::literals;
using plan::banked_placement;
using plan::is_valid;
using plan::lifetime;
using plan::made_plan;
using plan::place_in_banks;
using plan::time_span;
using plan_tests::make;
using plan_tests::program;
using plan_tests::random_program;
using plan_tests::recorder;
using domains = memory_domains<simulated_device, spill_banks>;

/// The least bytes outside the first bank: each choice of the blocks that leave it, each placed as well as can be.
std::size_t least_outside(const std::vector<lifetime>& blocks, std::size_t capacity) {
  std::size_t least = unlimited;
  for (std::size_t choice = 0; choice < std::size_t{1} << blocks.size(); ++choice) {
    std::vector<lifetime> stays, leaves;
    for (std::size_t i = 0; i < blocks.size(); ++i)
      ((choice >> i & 1) != 0 ? leaves : stays).push_back(blocks[i]);
    const plan::placement outside = plan::place(leaves, {.effort = 0.1});
    if (outside.bytes >= least || plan::place(stays, {.effort = 0.1}).bytes > capacity) continue;
    EXPECT_TRUE(outside.is_optimal);
    least = outside.bytes;
  }
  return least;
}

TEST(place_in_banks, is_near_the_optimum_of_small_programs) {
  plan::detail::random_numbers random(1);
  std::size_t optimal = 0, found_bytes = 0, least_bytes = 0;
  constexpr int rounds = by_day(30, 100);
  for (int round = 0; round < rounds; ++round) {
    const program all = random_program(random, 1 + random.below(7), 8, 10, round % 2 == 0 ? 1 : 2);
    const std::size_t banks[] = {1 + random.below(15), 1000};
    const banked_placement found = place_in_banks(all.blocks(), banks, {.effort = 1});
    ASSERT_TRUE(is_valid(all.blocks(), found)) << "round " << round;
    ASSERT_TRUE(found.fits) << "round " << round;
    ASSERT_LE(found.bytes[0], banks[0]) << "round " << round;
    const std::size_t least = least_outside(all.blocks(), banks[0]);
    ASSERT_LE(found.lower_bound, least) << "round " << round;
    ASSERT_GE(found.outside, least) << "round " << round;
    optimal += found.outside == least ? 1 : 0;
    found_bytes += found.outside;
    least_bytes += least;
  }
  EXPECT_GE(optimal, rounds * 9u / 10);
  EXPECT_LE(found_bytes, least_bytes + least_bytes / 50);
}

TEST(place_in_banks, is_valid_for_random_programs_and_any_number_of_banks) {
  plan::detail::random_numbers random(2);
  for (int round = 0; round < by_day(60, 300); ++round) {
    const program all = random_program(random, random.below(40), 30, 100, 1 + random.below(4));
    const std::size_t alignment = std::size_t{1} << random.below(6);
    std::vector<std::size_t> banks(1 + random.below(4));
    for (std::size_t& bank : banks) bank = random.below(600);
    const banked_placement found =
        place_in_banks(all.blocks(), banks, {.effort = 0.001, .seed = random.next(), .alignment = alignment});
    ASSERT_TRUE(is_valid(all.blocks(), found, alignment)) << "round " << round;
    ASSERT_EQ(found.bytes.size(), banks.size());
    ASSERT_GE(found.outside, found.lower_bound);
    for (std::size_t bank = 0; bank + 1 < banks.size(); ++bank) ASSERT_LE(found.bytes[bank], banks[bank]);
    ASSERT_EQ(found.fits, found.bytes.back() <= banks.back()) << "round " << round;
  }
}

// All bytes of the first bank are in use at all times, so that none of the overload is avoidable.
TEST(place_in_banks, leaves_the_overload_outside_and_hardly_more) {
  plan::detail::random_numbers random(3);
  for (int round = 0; round < by_day(2, 5); ++round) {
    const program all = random_program(random, 400, 300, 1000, 1);
    const std::size_t peak = plan::place(all.blocks(), {.effort = 0}).lower_bound;
    const std::size_t banks[] = {peak / 4 * 3, unlimited};
    const banked_placement found = place_in_banks(all.blocks(), banks, {.effort = by_day(0.1, 1)});
    ASSERT_TRUE(is_valid(all.blocks(), found));
    EXPECT_GE(found.lower_bound, peak - banks[0]);
    EXPECT_LE(found.outside - found.lower_bound, peak / 20) << "round " << round;
  }
}

TEST(place_in_banks, puts_everything_in_the_first_bank_that_fits) {
  const std::vector<lifetime> none;
  const std::size_t banks[] = {100, 100};
  EXPECT_TRUE(place_in_banks(none, banks).fits);
  const time_span early[] = {{0, 2}}, late[] = {{2, 4}};
  const lifetime blocks[] = {{100, early}, {100, late}, {0, early}, {5, {}}};
  const banked_placement found = place_in_banks(blocks, banks);
  EXPECT_EQ(found.banks, (std::vector<std::uint32_t>{0, 0, 0, 0}));
  EXPECT_TRUE(is_valid(blocks, found));
  EXPECT_EQ(found.outside, 0u);
  EXPECT_EQ(found.lower_bound, 0u);
}

TEST(place_in_banks, lets_long_lived_blocks_leave_first) {
  program all;
  all.add(40, {{0, 1000}});
  for (std::uint32_t i = 0; i < 500; ++i) all.add(40, {{2 * i, 2 * i + 2}});
  const std::size_t banks[] = {40, 100};
  const banked_placement found = place_in_banks(all.blocks(), banks);
  EXPECT_EQ(found.banks[0], 1u);
  EXPECT_EQ(std::count(found.banks.begin(), found.banks.end(), 0u), 500);
  EXPECT_EQ(found.outside, 40u);
}

TEST(place_in_banks, sends_blocks_on_that_no_bank_before_has_room_for) {
  const time_span always[] = {{0, 1}};
  const lifetime blocks[] = {{10, always}, {20, always}, {30, always}};
  const std::size_t banks[] = {12, 25, 40};
  const banked_placement found = place_in_banks(blocks, banks);
  EXPECT_EQ(found.banks, (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_TRUE(found.fits);
  const std::size_t less[] = {12, 25, 29};
  EXPECT_FALSE(place_in_banks(blocks, less).fits);
  // The block with which the smaller ones exceed 50 bytes has 30.
  const std::size_t most[] = {50, 40};
  EXPECT_EQ(place_in_banks(blocks, most).lower_bound, 10u);
  const std::size_t least[] = {29, 40};
  EXPECT_EQ(place_in_banks(blocks, least).lower_bound, 31u);
}

TEST(place_in_banks, finds_the_mistakes_of_a_placement) {
  const time_span always[] = {{0, 4}};
  const lifetime blocks[] = {{100, always}, {100, always}};
  const banked_placement right{{0, 1}, {0, 0}, {100, 100}, 100, 0, true};
  EXPECT_TRUE(is_valid(blocks, right));
  const auto is_wrong = [&](auto change) {
    banked_placement wrong = right;
    change(wrong);
    return !is_valid(blocks, wrong);
  };
  EXPECT_TRUE(is_wrong([](banked_placement& p) { p.banks[1] = 0; }));
  EXPECT_TRUE(is_wrong([](banked_placement& p) { p.banks[1] = 2; }));
  EXPECT_TRUE(is_wrong([](banked_placement& p) { p.banks.pop_back(); }));
  EXPECT_TRUE(is_wrong([](banked_placement& p) { p.offsets.pop_back(); }));
  EXPECT_TRUE(is_wrong([](banked_placement& p) { p.bytes[1] = 50; }));
  EXPECT_TRUE(is_wrong([](banked_placement& p) { p.outside = 50; }));
}

// No placement of such blocks is within 2^64 bytes, so there is none in the last bank either.
TEST(place_in_banks, says_that_sizes_whose_sums_overflow_do_not_fit) {
  const time_span always[] = {{0, 4}};
  const std::vector<lifetime> blocks(6, {std::size_t{1} << 62, always});
  const std::size_t banks[] = {std::size_t{1} << 62, unlimited - 1};
  const banked_placement found = place_in_banks(blocks, banks);
  EXPECT_FALSE(found.fits);
  EXPECT_EQ(found.outside, unlimited);
}

// Plans.

/// A device with two banks, of which the second is large.
domains two_banks(std::size_t first) {
  std::vector<domains::bank> banks;
  banks.push_back({simulated_device({.capacity = first}), "hbm"});
  banks.push_back({banks[0].provider.another_bank({.capacity = 8_GiB}), "ddr"});
  return domains(std::move(banks));
}
using banked_pool = planned<caching_allocator<pytorch<>, domains>>;

/// Weights, then steps with activations. Of 64 MiB at their peak, 24 MiB are weights.
recorder training() {
  recorder of;
  for (int i = 0; i < 3; ++i) of.allocate(8_MiB);
  for (int i = 0; i < 10; ++i) {
    of.begin_step();
    of.step({20_MiB, 16_MiB, 24_MiB, 4_MiB, 12_MiB});
  }
  return of;
}
/// Runs a recorded program. Returns how many requests found no memory.
template <typename Pool>
std::size_t run(const trace::recording& recorded, Pool& pool) {
  const trace::program events(recorded);
  std::vector<void*> blocks(events.slot_count());
  std::size_t failed = 0;
  for (std::size_t i = 0; i < events.events().size(); ++i) {
    const trace::event& e = events.events()[i];
    void*& block = blocks[events.slot(i)];
    if (e.what == trace::event::kind::begin_step) pool.begin_step(e.id);
    if (e.what == trace::event::kind::free) pool.deallocate(block);
    if (e.what != trace::event::kind::allocate) continue;
    block = pool.try_allocate(e.bytes, e.stream);
    failed += block == nullptr ? 1 : 0;
  }
  return failed;
}

TEST(plan_over_banks, serves_each_place_from_its_bank) {
  const recorder of = training();
  const std::size_t banks[] = {40_MiB, 64_MiB};
  const made_plan made = make(of.made, {.banks = banks});
  ASSERT_STREQ(plan::find_fault(made.view()), nullptr);
  ASSERT_TRUE(made.fits(banks));
  EXPECT_EQ(made.outside(), made.outside_bound);
  EXPECT_TRUE(made.is_optimal);
  EXPECT_EQ(made.bank_ends.size(), 1u);
  banked_pool pool(made.view(), two_banks(banks[0]));
  EXPECT_EQ(run(of.made, pool), 0u);
  const plan_usage used = pool.statistics().by_plan;
  EXPECT_EQ(used.fault, nullptr);
  EXPECT_EQ(used.unplanned_requests, 0u);
  const domains& device = pool.provider();
  EXPECT_EQ(device.statistics(0).peak_held, align_up(made.bank_bytes[0], 2_MiB));
  EXPECT_EQ(device.statistics(1).peak_held, align_up(made.bank_bytes[1], 2_MiB));
  EXPECT_EQ(device.statistics(0).refused, 0u);
  pool.trim();
  EXPECT_EQ(device.statistics(0).held + device.statistics(1).held, 24_MiB);  // the weights
}

// The policy of the device must not move it to another bank.
TEST(plan_over_banks, stays_in_the_first_bank_if_all_fits_there) {
  const recorder of = training();
  const std::size_t banks[] = {1_GiB, 64_MiB};
  const made_plan made = make(of.made, {.banks = banks});
  ASSERT_STREQ(plan::find_fault(made.view()), nullptr);
  EXPECT_EQ(made.outside(), 0u);
  EXPECT_EQ(made.outside_bound, 0u);
  EXPECT_EQ(made.bank_bytes[0], make(of.made).numbers.bytes);
  using second_first = memory_domains<simulated_device, prefer_bank>;
  std::vector<second_first::bank> both;
  both.push_back({simulated_device({.capacity = 1_GiB}), "hbm"});
  both.push_back({both[0].provider.another_bank({.capacity = 1_GiB}), "ddr"});
  planned<caching_allocator<pytorch<>, second_first>> pool(made.view(),
                                                           second_first(std::move(both), prefer_bank{1}));
  EXPECT_EQ(run(of.made, pool), 0u);
  EXPECT_EQ(pool.provider().statistics(0).peak_held, align_up(made.bank_bytes[0], 2_MiB));
  EXPECT_EQ(pool.provider().statistics(1).peak_held, 0u);
}

TEST(plan_over_banks, with_one_bank_is_a_plan_without_banks) {
  const recorder of = training();
  const std::size_t bank[] = {1_GiB};
  const made_plan made = make(of.made, {.banks = bank});
  EXPECT_EQ(plan::to_csv(made.view()), plan::to_csv(make(of.made).view()));
  EXPECT_TRUE(made.fits(bank));
  const std::size_t less[] = {16_MiB};
  EXPECT_FALSE(make(of.made, {.banks = less}).fits(less));
  EXPECT_EQ(make(of.made, {.banks = less}).outside_bound, 0u);
}

// Kept blocks of one size, such as the weights of equal layers, may lie in two banks.
TEST(plan_over_banks, fills_the_first_bank_with_some_of_equal_weights) {
  recorder of;
  for (int i = 0; i < 20; ++i) of.allocate(12_MiB);
  for (int i = 0; i < 10; ++i) {
    of.begin_step();
    of.step({16_MiB, 8_MiB, 12_MiB});
  }
  for (const std::size_t first : {200_MiB, 100_MiB, 36_MiB}) {
    const std::size_t banks[] = {first, 1_GiB};
    const made_plan made = make(of.made, {.banks = banks});
    ASSERT_STREQ(plan::find_fault(made.view()), nullptr);
    ASSERT_TRUE(made.fits(banks));
    EXPECT_LT(made.outside(), made.numbers.lower_bound - first + 12_MiB) << first;
    EXPECT_GE(made.outside(), made.outside_bound);
    EXPECT_LE(made.outside_bound, made.numbers.lower_bound - first + 12_MiB) << first;
    banked_pool pool(made.view(), two_banks(first));
    EXPECT_EQ(run(of.made, pool), 0u);
    EXPECT_EQ(pool.statistics().by_plan.unplanned_requests, 0u) << first;
    EXPECT_STREQ(pool.audit(), nullptr);
  }
}

TEST(plan_over_banks, says_that_the_banks_are_too_small) {
  const std::size_t banks[] = {8_MiB, 8_MiB};
  const made_plan made = make(training().made, {.banks = banks});
  EXPECT_STREQ(plan::find_fault(made.view()), nullptr);
  EXPECT_FALSE(made.fits(banks));
  const std::size_t three[] = {24_MiB, 20_MiB, 24_MiB};
  const made_plan over_three = make(training().made, {.banks = three});
  EXPECT_STREQ(plan::find_fault(over_three.view()), nullptr);
  EXPECT_TRUE(over_three.fits(three));
  EXPECT_EQ(over_three.bank_ends.size(), 2u);
  EXPECT_FALSE(over_three.fits({three, 2}));
}

// Streams share no bytes, so what a stream leaves in the first bank is for the next ones.
TEST(plan_over_banks, gives_each_stream_places_of_its_own) {
  recorder of;
  for (int i = 0; i < 8; ++i) {
    of.begin_step();
    of.step({30_MiB, 40_MiB, 10_MiB}, 0);
    of.step({512_KiB, 300_KiB}, 9);
  }
  const std::size_t banks[] = {48_MiB, 48_MiB};
  const made_plan made = make(of.made, {.banks = banks});
  ASSERT_STREQ(plan::find_fault(made.view()), nullptr);
  ASSERT_EQ(made.tracks.size(), 2u);
  EXPECT_TRUE(made.fits(banks));
  EXPECT_GE(made.outside(), made.outside_bound);
  banked_pool pool(made.view(), two_banks(banks[0]));
  EXPECT_EQ(run(of.made, pool), 0u);
  EXPECT_EQ(pool.statistics().by_plan.unplanned_requests, 0u);
}

// Someone else uses the first bank: the allocator inside serves what the plan cannot.
TEST(plan_over_banks, lets_the_allocator_inside_serve_if_a_bank_is_full) {
  const recorder of = training();
  const std::size_t banks[] = {40_MiB, 64_MiB};
  const made_plan made = make(of.made, {.banks = banks});
  banked_pool pool(made.view(), two_banks(16_MiB));
  EXPECT_EQ(run(of.made, pool), 0u);
  EXPECT_GT(pool.statistics().by_plan.unplanned_requests, 0u);
  EXPECT_GT(pool.provider().statistics(0).refused, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

// A full bank does not keep the places of other banks from their memory.
TEST(plan_over_banks, still_uses_the_other_banks_if_one_is_full) {
  recorder of;
  for (int i = 0; i < 20; ++i) {
    of.begin_step();
    of.step({20_MiB, 16_MiB, 24_MiB, 4_MiB, 12_MiB});
  }
  const std::size_t banks[] = {6_MiB, 64_MiB};
  const made_plan made = make(of.made, {.banks = banks});
  ASSERT_EQ(made.entries.size(), 5u);
  std::uint64_t in_second = 0;  // of the requests of a step
  for (const memory_plan::entry& e : made.entries) in_second += made.view().bank_of(e.place * 512ull);
  ASSERT_GT(in_second, 0u);
  ASSERT_LT(in_second, 5u);
  banked_pool pool(made.view(), two_banks(2_MiB));  // the places in the first bank have 4 MiB
  EXPECT_EQ(run(of.made, pool), 0u);
  EXPECT_EQ(pool.statistics().by_plan.requests, 20 * in_second);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(plan_over_banks, is_kept_by_adaptors_of_the_device) {
  const recorder of = training();
  const std::size_t banks[] = {40_MiB, 64_MiB};
  const made_plan made = make(of.made, {.banks = banks});
  const auto expect_kept = [&](auto wrap) {
    domains device = two_banks(banks[0]);
    {
      auto wrapped = wrap(device);
      using ref = provider_ref<decltype(wrapped)>;
      planned<caching_allocator<pytorch<>, ref>> pool(made.view(), ref(wrapped));
      EXPECT_EQ(run(of.made, pool), 0u);
      EXPECT_EQ(pool.statistics().by_plan.unplanned_requests, 0u);
    }
    EXPECT_EQ(device.statistics(0).peak_held, align_up(made.bank_bytes[0], 2_MiB));
    EXPECT_EQ(device.statistics(1).peak_held, align_up(made.bank_bytes[1], 2_MiB));
  };
  expect_kept([](domains& d) { return provider_ref(d); });
  call_times times;
  expect_kept([&times](domains& d) { return timed<domains>(d, times); });
  expect_kept([](domains& d) { return limiting<provider_ref<domains>>(provider_ref(d), 2_GiB); });
  expect_kept([](domains& d) { return checked_provider<provider_ref<domains>>(provider_ref(d)); });
  EXPECT_GT(times.of(provider_call::create).count, 0u);
}

// What the second stream leaves outside depends on what the first one took, so it bounds nothing.
TEST(plan_over_banks, has_a_lower_bound_for_all_streams_together) {
  recorder of;
  const std::uint64_t early = of.allocate(10_MiB, 1);
  for (const std::size_t bytes : {12_MiB, 10_MiB, 8_MiB}) {
    const std::uint64_t first = of.allocate(bytes), second = of.allocate(30_MiB - bytes);
    of.free(first);
    const std::uint64_t third = of.allocate(bytes + 2_MiB);
    of.free(second);
    of.free(third);
  }
  of.free(early);
  const made_plan one = make(of.made);
  const std::size_t banks[] = {static_cast<std::size_t>(one.numbers.lower_bound) / 2_MiB * 2_MiB, 1_GiB};
  const made_plan made = make(of.made, {.banks = banks});
  ASSERT_STREQ(plan::find_fault(made.view()), nullptr);
  if (made.tracks.size() > 1) {
    EXPECT_EQ(made.outside_bound, one.numbers.lower_bound - banks[0]);
  }
  EXPECT_GE(made.outside(), made.outside_bound);
}

TEST(plan_over_banks, is_refused_by_devices_that_cannot_keep_the_banks) {
  const std::size_t banks[] = {10_MiB, 64_MiB};
  recorder of;
  for (int i = 0; i < 10; ++i) of.step({3_MiB, 4_MiB + 1000, 7_MiB + 1});
  made_plan made = make(of.made, {.banks = banks});
  const auto fault_of = [&](domains device) {
    return banked_pool(made.view(), std::move(device)).statistics().by_plan.fault;
  };
  std::vector<domains::bank> one;
  one.push_back({simulated_device({.capacity = 1_GiB}), "hbm"});
  EXPECT_STREQ(fault_of(domains(std::move(one))), "the plan has more banks than the device");
  using segments = conformance::plans::segments_of<simulated_device>;
  simulated_device device;
  const planned<caching_allocator<pytorch<>, segments>> without_pages(made.view(), segments(device));
  EXPECT_STREQ(without_pages.statistics().by_plan.fault, "a plan over several banks needs virtual memory");
  made.bank_ends[0] -= 512;
  EXPECT_STREQ(fault_of(two_banks(1_GiB)), "the banks of the plan end within pages of the device");
}

// A device with one memory gives that for all places.
TEST(plan_over_banks, is_served_by_a_device_with_one_memory) {
  const recorder of = training();
  const std::size_t banks[] = {40_MiB, 64_MiB};
  const made_plan made = make(of.made, {.banks = banks});
  planned<caching_allocator<pytorch<>, simulated_device>> pool(made.view());
  EXPECT_EQ(trace::replay(trace::program(of.made), pool), 0u);
  EXPECT_EQ(pool.statistics().by_plan.unplanned_requests, 0u);
}

TEST(plan_over_banks, is_sound_for_random_programs) {
  for (std::uint64_t seed = 1; seed <= by_day(15u, 60u); ++seed) {
    const conformance::plans::script program(seed);
    const made_plan single = make(program.record());
    if (single.numbers.bytes < 8_MiB) continue;
    const std::size_t banks[] = {(std::max)(2_MiB, static_cast<std::size_t>(single.numbers.bytes) / 3), 2_MiB,
                                 single.numbers.bytes + 2_MiB};
    const made_plan made = make(program.record(), {.banks = banks});
    ASSERT_STREQ(plan::find_fault(made.view()), nullptr) << "seed " << seed;
    EXPECT_TRUE(made.fits(banks)) << "seed " << seed;
    EXPECT_GE(made.outside(), made.outside_bound) << "seed " << seed;
    const std::string text = plan::to_csv(made.view());
    const auto read = plan::read_csv(text, "plan.csv");
    ASSERT_TRUE(std::holds_alternative<made_plan>(read)) << "seed " << seed;
    EXPECT_EQ(plan::to_csv(std::get<made_plan>(read).view()), text);
  }
}

}  // namespace
