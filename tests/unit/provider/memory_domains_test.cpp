// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/debug/checked_provider.hpp>
#include <tessera/law/bank_policy_laws.hpp>
#include <tessera/law/provider_laws.hpp>
#include <tessera/observe/list_chunks.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/memory_domains.hpp>
#include <tessera/provider/shared_chunks.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/recording.hpp>

#include "../../by_day.hpp"

namespace {

using namespace tessera;

using by_turn = memory_domains<simulated_device, interleave_banks>;
static_assert(ordering_provider<by_turn> && paged_provider<by_turn> && sharing_provider<by_turn> &&
              copying_provider<by_turn> && detail::measured_provider<by_turn>);
static_assert(!detail::is_thread_safe<by_turn> && !registering_provider<by_turn>);

/// Banks of these capacities, the first of which has the streams.
template <typename Device = simulated_device>
std::vector<memory_bank<Device>> banks_of(const std::vector<std::size_t>& capacities) {
  std::vector<memory_bank<Device>> banks;
  for (const std::size_t bytes : capacities) {
    const simulated_device::options settings{.capacity = bytes};
    banks.push_back({banks.empty() ? Device(settings) : banks[0].provider.another_bank(settings)});
  }
  return banks;
}

/// Chooses the bank with the most bytes left.
struct most_left {
  std::size_t choose(const bank_request&, const bank_list& all) const noexcept {
    std::size_t chosen = no_bank;
    for (std::size_t i = 0; i < all.count(); ++i) {
      if (!all.has_refused(i) && (chosen == no_bank || all.left(i) > all.left(chosen))) chosen = i;
    }
    return chosen;
  }
  bool uses(std::size_t) const noexcept { return true; }
};

template <typename F>
void for_each_policy(F f) {
  f(bind_bank{0}, "bind 0");
  f(bind_bank{2}, "bind 2");
  f(prefer_bank{1}, "prefer 1");
  f(interleave_banks{}, "interleave by turn");
  f(interleave_banks{interleave_banks::by::bytes}, "interleave by bytes");
  f(spill_banks{}, "spill");
  f(spill_banks{percent(50)}, "spill at 50 percent");
  f(most_left{}, "of the user");
}

TEST(memory_domains, keep_the_laws_of_a_provider) {
  for_each_policy([](auto policy, const char* name) {
    memory_domains device(banks_of({3_GiB, 8_GiB, 5_GiB}), policy);
    const auto found = law::provider(device, {.tries_wrong_releases = true});
    EXPECT_TRUE(found) << name << ": " << found.report();
    memory_domains npu(banks_of<simulated_npu>({3_GiB, 8_GiB, 5_GiB}), policy);
    EXPECT_STREQ(law::provider(npu).broken, nullptr) << name;
    for (std::size_t i = 0; i < device.count(); ++i) {
      EXPECT_EQ(device.provider(i).used(), 0u) << name;
      EXPECT_EQ(device.statistics(i).held, 0u) << name;
    }
  });
}

TEST(memory_domains, share_memory_with_another_process) {
  by_turn device(banks_of({3_GiB, 8_GiB}));
  std::vector<by_turn::bank> others;
  others.push_back({device.provider(0).another_process()});
  others.push_back({others[0].provider.another_bank({.capacity = 8_GiB})});
  by_turn other(std::move(others));
  EXPECT_STREQ(law::sharing(device, other).broken, nullptr);
}

TEST(memory_domains, replay_recordings_that_hold_events) {
  using trace::event;
  const trace::recording recorded{"banks",
                                  {{event::kind::answer_events, 0, 0},
                                   {event::kind::allocate, 1, 5_MiB},
                                   {event::kind::record_stream, 1, 0, stream_id{1}},
                                   {event::kind::free, 1},
                                   {event::kind::allocate, 2, 5_MiB},
                                   {event::kind::answer_events, 0, 1},
                                   {event::kind::allocate, 3, 5_MiB}}};
  caching_allocator<recipe::passthrough, by_turn> memory(by_turn(banks_of({3_GiB, 8_GiB})));
  std::vector<std::size_t> reserved;
  const std::size_t failures = trace::replay(
      trace::program(recorded), memory, [](std::size_t) {},
      [&](std::size_t, const void*) { reserved.push_back(memory.current_usage().reserved / 5_MiB); });
  EXPECT_EQ(failures, 0u);
  EXPECT_EQ(reserved, (std::vector<std::size_t>{0, 1, 1, 1, 2, 2, 2}));
}

// Two blocks lie in one chunk, and two processes import them.
TEST(memory_domains, export_the_chunks_of_each_block_to_several_processes) {
  caching_allocator<recipe::stitched, by_turn> memory(by_turn(banks_of({3_GiB, 8_GiB})));
  void* const blocks[] = {memory.allocate(512_KiB), memory.allocate(512_KiB), memory.allocate(40_MiB)};
  for (int process = 0; process < 2; ++process) {
    std::vector<by_turn::bank> others;
    others.push_back({memory.provider().provider(0).another_process()});
    others.push_back({others[0].provider.another_bank({.capacity = 8_GiB})});
    by_turn other(std::move(others));
    for (void* const p : blocks) {
      const auto listed = list_chunks(memory, p);
      ASSERT_TRUE(listed) << listed.why;
      const auto made = export_chunks<by_turn>(memory.provider(), listed.chunks, other.process());
      ASSERT_TRUE(made) << made.why.text();
      const imported_range<by_turn> range(other, made.chunks);
      ASSERT_TRUE(range) << range.why();
      EXPECT_TRUE(other.provider(0).can_use(range.begin(), range.bytes()));
    }
  }
  for (void* const p : blocks) memory.deallocate(p);
}

TEST(memory_domains, accept_limited_banks) {
  using limited = limiting<provider_ref<simulated_device>>;
  simulated_device fast({.capacity = 2_GiB}), slow = fast.another_bank({.capacity = 8_GiB});
  std::vector<memory_bank<limited>> banks;
  banks.push_back({limited(provider_ref(fast), 1_GiB), "fast"});
  banks.push_back({limited(provider_ref(slow), 4_GiB), "slow"});
  memory_domains device(std::move(banks), spill_banks{});
  EXPECT_EQ(device.capacity(), 5_GiB);
  EXPECT_FALSE(device.would_exceed_limit(4_GiB));
  EXPECT_TRUE(device.would_exceed_limit(4_GiB + 512));
  EXPECT_STREQ(device.explain_limit(4_GiB).text(), "");
  EXPECT_NE(std::string(device.explain_limit(5_GiB).text()).find("limit is 4.00 GiB"), std::string::npos);
  EXPECT_STREQ(law::provider(device).broken, nullptr);
}

TEST(bank_policies, keep_their_law) {
  for (std::size_t count = 3; count <= 5; ++count)
    for_each_policy([&](auto policy, const char* name) {
      EXPECT_STREQ(law::bank_policy(policy, count), nullptr) << name;
    });
  EXPECT_STREQ(law::bank_policy(bind_bank{4}, 3), "a policy uses at least one bank");
  EXPECT_STREQ(law::bank_policy(prefer_bank{4}, 3), "a policy chooses one of the banks");
}

struct stubborn : most_left {
  std::size_t choose(const bank_request&, const bank_list&) const noexcept { return 0; }
};
struct counting : most_left {
  mutable std::size_t next = 0;
  std::size_t choose(const bank_request&, const bank_list& all) const noexcept {
    return next++ % all.count();
  }
};
struct unused : most_left {
  bool uses(std::size_t bank) const noexcept { return bank == 0; }
};

TEST(bank_policies, that_are_wrong_break_their_law) {
  EXPECT_STREQ(law::bank_policy(stubborn{}, 2), "a policy chooses no bank that refused the request");
  EXPECT_STREQ(law::bank_policy(counting{}, 2), "a choice changes nothing");
  EXPECT_STREQ(law::bank_policy(unused{}, 2), "a policy chooses only banks that it uses");
}

TEST(memory_domains, refuse_what_a_wrong_policy_chooses) {
  memory_domains repeats(banks_of({1_GiB, 1_GiB}), stubborn{});
  EXPECT_EQ(repeats.acquire(2_GiB), nullptr);
  EXPECT_STREQ(repeats.take_refusal().text(),
               "acquire: bank '0' holds 0 B of 1.00 GiB; the policy chose bank 0 of 2, which had refused");
  memory_domains outside(banks_of({1_GiB, 1_GiB}), prefer_bank{7});
  EXPECT_EQ(outside.acquire(512), nullptr);
  EXPECT_STREQ(outside.take_refusal().text(), "acquire: the policy chose bank 7 of 2");
}

/// The banks of segments of 100 MiB each.
template <typename Domains>
std::vector<std::size_t> banks_that_serve(Domains& device, std::size_t count) {
  std::vector<std::size_t> served;
  for (std::size_t i = 0; i < count; ++i) served.push_back(device.bank_of(device.acquire(100_MiB)));
  return served;
}
using numbers = std::vector<std::size_t>;

TEST(memory_domains, follow_their_policy) {
  memory_domains bound(banks_of({1_GiB, 250_MiB}), bind_bank{1});
  EXPECT_EQ(bound.capacity(), 250_MiB);
  EXPECT_EQ(banks_that_serve(bound, 3), (numbers{1, 1, no_bank}));
  EXPECT_EQ(bound.available(), 50_MiB);

  auto near = banks_of({1_GiB, 250_MiB, 150_MiB});
  near[1].distances = {30, 10, 20};
  memory_domains preferred(std::move(near), prefer_bank{1});
  EXPECT_EQ(banks_that_serve(preferred, 5), (numbers{1, 1, 2, 0, 0}));

  memory_domains in_turn(banks_of({1_GiB, 150_MiB, 1_GiB}), interleave_banks{});
  EXPECT_EQ(banks_that_serve(in_turn, 6), (numbers{0, 1, 2, 0, 2, 2}));

  memory_domains by_bytes(banks_of({400_MiB, 800_MiB}), interleave_banks{interleave_banks::by::bytes});
  EXPECT_EQ(banks_that_serve(by_bytes, 6), (numbers{0, 1, 1, 0, 1, 1}));

  memory_domains spilling(banks_of({400_MiB, 400_MiB}), spill_banks{percent(50)});
  EXPECT_EQ(banks_that_serve(spilling, 7), (numbers{0, 0, 1, 1, 0, 0, 1}));
}

TEST(memory_domains, count_as_numastat_does) {
  auto banks = banks_of({200_MiB, 1_GiB});
  banks[0].name = "hbm";
  banks[1].name = "ddr";
  memory_domains device(std::move(banks), prefer_bank{0});
  void* const first = device.acquire(150_MiB);
  void* const second = device.acquire(100_MiB);
  EXPECT_EQ(
      device.statistics(0),
      (bank_statistics{
          .held = 150_MiB, .peak_held = 150_MiB, .served = 150_MiB, .hits = 1, .foreign = 1, .refused = 1}));
  EXPECT_EQ(device.statistics(1),
            (bank_statistics{.held = 100_MiB, .peak_held = 100_MiB, .served = 100_MiB, .misses = 1}));
  EXPECT_FALSE(device.take_refusal());
  EXPECT_EQ(device.acquire(1_GiB), nullptr);
  EXPECT_STREQ(device.take_refusal().text(),
               "acquire: bank 'hbm' holds 150.00 MiB of 200.00 MiB; bank 'ddr' holds 100.00 MiB of 1.00 GiB");
  device.provider(0).fail_call(1);
  EXPECT_FALSE(device.release(first, 150_MiB));
  EXPECT_EQ(device.statistics(0).held, 150_MiB);
  EXPECT_EQ(device.bank_of(static_cast<std::byte*>(first) + 149_MiB), 0u);
  EXPECT_TRUE(device.release(first, 150_MiB) && device.release(second, 100_MiB));
  EXPECT_EQ(device.bank_of(first), no_bank);
  EXPECT_EQ(device.statistics(0).held, 0u);
  EXPECT_EQ(device.statistics(0).peak_held, 150_MiB);
}

TEST(memory_domains, say_why_an_allocator_gets_no_memory) {
  auto banks = banks_of({200_MiB, 300_MiB});
  caching_allocator<pytorch<>, memory_domains<simulated_device, spill_banks>> pool{
      memory_domains(std::move(banks), spill_banks{})};
  try {
    (void)pool.allocate(400_MiB);
    FAIL() << "400 MiB fit in no bank";
  } catch (const out_of_memory& error) {
    EXPECT_STREQ(error.why(), "acquire: bank '0' holds 0 B of 200.00 MiB; bank '1' holds 0 B of 300.00 MiB");
  }
}

TEST(memory_domains, create_memory_in_the_bank_that_is_named) {
  by_turn device(banks_of({20_MiB, 40_MiB}));
  by_turn::physical made;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(device.create_in(1, 2_MiB, page_kind::normal, made));
    EXPECT_EQ(made.bank, 1u);
  }
  EXPECT_EQ(device.statistics(1).held, 6_MiB);
  EXPECT_EQ(device.statistics(1).requests(), 3u);
  EXPECT_EQ(device.statistics(0).requests(), 0u);
  const by_turn::physical before = made;
  EXPECT_FALSE(device.create_in(0, 22_MiB, page_kind::normal, made));
  EXPECT_TRUE(made == before);
  EXPECT_EQ(device.statistics(0).refused, 1u);
  EXPECT_NE(std::string(device.take_refusal().text()).find("create_in: bank '0'"), std::string::npos);
  EXPECT_FALSE(device.create_in(7, 2_MiB, page_kind::normal, made));
  EXPECT_STREQ(device.take_refusal().text(), "create_in: there is no bank 7, only 2 banks");
  EXPECT_TRUE(device.destroy(before));
}

// An older reason must not stand for this one.
TEST(memory_domains, say_why_memory_is_not_exported) {
  by_turn device(banks_of({20_MiB, 40_MiB}));
  by_turn::physical made;
  by_turn::shareable name;
  ASSERT_TRUE(device.create_in(1, 2_MiB, page_kind::normal, made));
  ASSERT_TRUE(device.export_memory(made, importers::listed, name));
  by_turn::physical other;
  EXPECT_FALSE(device.create_in(0, 22_MiB, page_kind::normal, other));
  EXPECT_FALSE(device.export_memory(made, importers::listed, name));
  const std::string why = device.take_refusal().text();
  EXPECT_NE(why.find("exported already"), std::string::npos) << why;
  EXPECT_NE(why.find("bank '1'"), std::string::npos) << why;
  name.bank = 9;
  EXPECT_FALSE(device.import_memory(name, other));
  EXPECT_STREQ(device.take_refusal().text(), "import_memory: there is no bank 9, only 2 banks");
  EXPECT_FALSE(device.allow(name, 1));
  EXPECT_STREQ(device.take_refusal().text(), "allow: there is no bank 9, only 2 banks");
  EXPECT_TRUE(device.destroy(made));
}

TEST(memory_domains, move_with_their_memory) {
  by_turn device(banks_of({1_GiB, 1_GiB}));
  void* const first = device.acquire(2_MiB);
  void* const second = device.acquire(2_MiB);
  by_turn moved = std::move(device);
  EXPECT_EQ(moved.bank_of(second), 1u);
  EXPECT_TRUE(moved.release(first, 2_MiB) && moved.release(second, 2_MiB));
}

TEST(memory_domains_death_test, refuse_banks_that_do_not_fit_together) {
  EXPECT_DEATH(by_turn(std::vector<by_turn::bank>{}), "the number of banks is not 1 to 64");
  EXPECT_DEATH(memory_domains(banks_of({1_GiB}), bind_bank{1}), "the policy uses none of the banks");
  const auto unrelated = [] {
    std::vector<by_turn::bank> banks;
    banks.push_back({simulated_device{}});
    banks.push_back({simulated_device{}, "far"});
    by_turn device(std::move(banks));
  };
  EXPECT_DEATH(unrelated(), "bank 'far' has other addresses than the first bank; make it with another_bank");
  const auto coarse = [] {
    std::vector<by_turn::bank> banks = banks_of({1_GiB});
    banks.push_back({banks[0].provider.another_bank({.granularity = 4_KiB})});
    by_turn device(std::move(banks));
  };
  EXPECT_DEATH(coarse(), "bank '1' has another granularity than the first bank");
  const auto near = [] {
    std::vector<by_turn::bank> banks = banks_of({1_GiB, 1_GiB});
    banks[1].distances = {10};
    by_turn device(std::move(banks));
  };
  EXPECT_DEATH(near(), "bank '1' needs as many distances as there are banks, or none");
}

/// Random calls, compared with a map of address to bank and bytes.
template <typename Domains>
void run_random_calls(Domains device, unsigned seed) {
  struct piece {
    std::size_t bytes, bank;
    bool is_mapped;
    typename Domains::physical memory;
  };
  std::mt19937 random(seed);
  std::map<char*, piece> live;
  std::vector<std::size_t> held(device.count()), used(device.count());
  constexpr std::size_t slots = 64, slot = 64_MiB;
  auto* const range = static_cast<char*>(device.reserve(slots * slot, 2_MiB));
  std::size_t refused = 0;
  const auto count_used = [&] {
    for (std::size_t i = 0; i < device.count(); ++i) used[i] = device.inner_used(i);
    return used;
  };
  std::vector<std::size_t> before = count_used();
  // The bank whose memory changed.
  const auto changed = [&] {
    std::size_t bank = no_bank;
    const std::vector<std::size_t> now = count_used();
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (now[i] == before[i]) continue;
      EXPECT_EQ(bank, no_bank) << "two banks changed";
      bank = i;
    }
    before = now;
    return bank;
  };
  for (int i = 0; i < 4000; ++i) {
    const std::size_t bytes = 2_MiB * (1 + random() % 24);
    const bool takes = live.empty() || random() % 16 < (i / 500 % 2 == 0 ? 10u : 6u);
    if (takes && random() % 2 == 0) {
      if (random() % 16 == 0) device.fail_next(random() % device.count());
      auto* const p = static_cast<char*>(device.acquire(bytes));
      device.fail_none();
      const std::size_t bank = changed();
      EXPECT_EQ(p == nullptr, bank == no_bank);
      EXPECT_EQ(device.bank_of(p), bank);
      if (p == nullptr) {
        ++refused;
        EXPECT_TRUE(device.take_refusal());
        continue;
      }
      EXPECT_FALSE(device.take_refusal());
      live[p] = {bytes, bank, false, {}};
      held[bank] += bytes;
    } else if (takes) {
      char* const p = range + slot * (random() % slots);
      if (live.contains(p)) continue;
      typename Domains::physical memory{};
      const bool created = device.create(bytes, page_kind::normal, memory);
      const std::size_t bank = changed();
      EXPECT_EQ(created, bank != no_bank);
      EXPECT_EQ(created, !device.take_refusal());
      if (!created) {
        ++refused;
        continue;
      }
      held[bank] += bytes;
      ASSERT_TRUE(device.map(p, bytes, memory) && device.grant(p, bytes));
      live[p] = {bytes, bank, true, memory};
    } else {
      const auto at = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      const auto& [p, piece] = *at;
      EXPECT_FALSE(device.release(p + 512, piece.bytes));
      EXPECT_FALSE(device.release(p, piece.bytes + 512));
      EXPECT_TRUE(piece.is_mapped ? device.unmap(p, piece.bytes) && device.destroy(piece.memory)
                                  : device.release(p, piece.bytes));
      EXPECT_EQ(changed(), piece.bank);
      held[piece.bank] -= piece.bytes;
      live.erase(at);
    }
    if (live.empty()) continue;
    const auto& [p, piece] = *std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
    EXPECT_EQ(device.bank_of(p + random() % piece.bytes), piece.bank);
    EXPECT_EQ(device.bank_of(p + piece.bytes) == no_bank, !live.contains(p + piece.bytes));
    std::size_t left = 0;
    for (std::size_t b = 0; b < device.count(); ++b) {
      EXPECT_EQ(device.statistics(b).held, held[b]);
      if (device.policy().uses(b)) left += device.provider(b).capacity() - held[b];
    }
    EXPECT_EQ(device.available(), left);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(refused, 0u);
  for (const auto& [p, piece] : live)
    EXPECT_TRUE(piece.is_mapped ? device.unmap(p, piece.bytes) && device.destroy(piece.memory)
                                : device.release(p, piece.bytes));
  EXPECT_TRUE(device.unreserve(range, slots * slot));
  for (const std::size_t bytes : count_used()) EXPECT_EQ(bytes, 0u);
}

template <typename Policy>
struct watched_domains : memory_domains<simulated_device, Policy> {
  using memory_domains<simulated_device, Policy>::memory_domains;
  std::size_t inner_used(std::size_t number) const { return this->provider(number).used(); }
  void fail_next(std::size_t number) { this->provider(number).fail_call(1); }
  void fail_none() {
    for (std::size_t i = 0; i < this->count(); ++i) this->provider(i).fail_call(0);
  }
};

TEST(memory_domains, know_the_bank_of_each_address) {
  for_each_policy([](auto policy, const char* name) {
    SCOPED_TRACE(name);
    for (unsigned seed = 1; seed <= by_day(2u, 5u); ++seed)
      run_random_calls(watched_domains<decltype(policy)>(banks_of({200_MiB, 500_MiB, 300_MiB}), policy),
                       seed);
  });
}

/// Random requests of an allocator, under which every call is checked.
template <typename Recipe, typename Policy>
void run_allocator(Policy policy, unsigned seed) {
  using checked = debug::checked_provider<memory_domains<simulated_device, Policy>>;
  caching_allocator<Recipe, checked> pool{
      checked(memory_domains(banks_of({200_MiB, 500_MiB, 300_MiB}), policy))};
  std::mt19937 random(seed);
  std::vector<void*> live;
  for (int i = 0; i < 1500; ++i) {
    if (random() % 16 < (i / 300 % 2 == 0 ? 10u : 6u)) {
      void* const p =
          pool.try_allocate(1 + random() % (random() % 4 == 0 ? 40_MiB : 2_MiB), stream_id{random() % 2});
      if (p == nullptr) continue;
      EXPECT_LT(pool.provider().inner().bank_of(p), 3u);
      live.push_back(p);
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      pool.deallocate(live.back());
      live.pop_back();
    }
  }
  EXPECT_STREQ(pool.audit(), nullptr);
  for (void* const p : live) pool.deallocate(p);
  pool.trim(0);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TEST(memory_domains, serve_allocators_of_segments_and_of_ranges) {
  for_each_policy([](auto policy, const char* name) {
    SCOPED_TRACE(name);
    run_allocator<pytorch<>>(policy, 1);
    run_allocator<pytorch_expandable>(policy, 2);
    run_allocator<stitched>(policy, 3);
  });
}

TEST(memory_domains, map_memory_of_several_banks_into_one_range) {
  caching_allocator<pytorch_expandable, by_turn> pool{by_turn(banks_of({1_GiB, 1_GiB}))};
  auto* const p = static_cast<std::byte*>(pool.allocate(200_MiB));
  EXPECT_EQ(pool.provider().bank_of(p), 0u);
  EXPECT_EQ(pool.provider().bank_of(p + 21_MiB), 1u);
  EXPECT_EQ(pool.provider().statistics(0).held, 100_MiB);
  EXPECT_EQ(pool.provider().statistics(1).held, 100_MiB);
  pool.deallocate(p);
}

}  // namespace
