// SPDX-License-Identifier: Apache-2.0
#include <tessera/observe/would_fit.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../../by_day.hpp"

namespace {

using namespace tessera;
using observe::expected_request;
using observe::fit_answer;
using observe::would_fit;
using device = provider::simulated_device;

/// What a program can see of an allocator and its device.
template <typename Allocator>
[[nodiscard]] auto state_of(Allocator& allocator) {
  std::vector<std::array<std::uint64_t, 6>> blocks;
  observe::for_each_block(allocator, [&](const segment_view& s, const block_view& b) {
    blocks.push_back({s.address, s.bytes, b.address, b.bytes, b.requested, static_cast<std::uint64_t>(b.is)});
  });
  const usage now = allocator.current_usage();
  const auto& calls = allocator.provider().calls();
  return std::tuple(blocks, now.reserved, now.active, now.cached, allocator.provider().available(),
                    calls.acquire, calls.release, calls.map, calls.unmap, calls.create, calls.record,
                    calls.wait);
}

struct tally {
  std::size_t questions = 0;
  std::size_t yes = 0;
  std::size_t other_places = 0;    // a request got another address in the memory that the allocator had
  std::size_t fewer = 0;           // fewer requests succeeded than foreseen
  std::size_t other_counts = 0;    // another number of requests succeeded
  std::size_t other_reserved = 0;  // all succeeded, with other reserved bytes
};

/// A random program that asks before some of its requests, then makes them. With private_pools, some requests go to these.
template <typename Recipe, typename... Extension>
class asking_program {
 public:
  /// While the device holds its events, work ends only when the program waits for it, as would_fit assumes.
  asking_program(std::uint64_t seed, bool holds_events, std::uint64_t address_seed)
      : random_(seed),
        reuses_addresses_(address_seed != 0),
        allocator_(device({.capacity = 256_MiB, .address_seed = address_seed})) {
    allocator_.provider().hold_events(holds_events);
    if (seed % 3 == 0) allocator_.policies().growth.limit = memory_limit(200_MiB);
  }

  void run(int steps, tally& result) {
    for (int i = 0; i < steps && !testing::Test::HasFatalFailure(); ++i) {
      if (below(3) == 0) {
        ask(result);
      } else if (has_pools && below(4) == 0) {
        change_pools();
      } else {
        change();
      }
    }
  }

 private:
  static constexpr bool has_pools = sizeof...(Extension) > 0;

  [[nodiscard]] std::size_t below(std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_);
  }
  [[nodiscard]] expected_request request() {
    const std::size_t shift = 9 + below(18);
    return {(std::size_t{1} << shift) + below(std::size_t{1} << shift), stream_id{below(3)}};
  }
  void change() {
    const std::size_t what = below(10);
    if (what < 5) {
      const expected_request r = request();
      if (void* const p = allocator_.try_allocate(r.bytes, r.stream)) live_.push_back(p);
    } else if (what < 9 && !live_.empty()) {
      std::swap(live_[below(live_.size())], live_.back());
      if (Recipe::streams::uses_events && below(4) == 0)
        (void)allocator_.record_stream(live_.back(), stream_id{below(3)});
      allocator_.deallocate(live_.back());
      live_.pop_back();
    } else if (what == 9 && below(8) == 0) {
      allocator_.trim();
    } else {
      allocator_.provider().submit(stream_id{below(3)}, 1000);
      if (below(2) == 0) allocator_.provider().advance(below(2000));
    }
  }
  /// Opens a scope of an old or a new pool, or closes one; some pools then lose their use.
  void change_pools() {
    if constexpr (has_pools) {
      auto pools = allocator_.template get<Extension...>();
      if (below(2) == 0) {
        const pool_id pool = pools_.empty() || below(3) == 0 ? pools.create() : pools_[below(pools_.size())];
        const bool is_new = pools_.empty() || std::find(pools_.begin(), pools_.end(), pool) == pools_.end();
        if (is_new) pools_.push_back(pool);
        const auto kind = below(4) != 0 ? extension::scope_kind::plain : extension::scope_kind::capture;
        (void)pools.open(pool, extension::stream_filter(stream_id{below(3)}), kind);
      } else if (!pools_.empty()) {
        std::swap(pools_[below(pools_.size())], pools_.back());
        (void)pools.close(pools_.back());
        if (below(2) == 0 && pools.release(pools_.back())) pools_.pop_back();
      }
    }
  }
  /// Whether a block of the state contains an address.
  [[nodiscard]] static bool existed(const auto& state, const void* p) {
    const auto at = reinterpret_cast<std::uintptr_t>(p);
    for (const auto& b : std::get<0>(state)) {
      if (at >= b[2] && at < b[2] + b[3]) return true;
    }
    return false;
  }
  void ask(tally& result) {
    std::vector<expected_request> wanted(1 + below(5));
    for (expected_request& r : wanted) {
      r = request();
      if (has_pools) r.stream = wanted.front().stream;  // all requests are those of one pool
    }
    const auto before = state_of(allocator_);
    const fit_answer answer = would_fit(allocator_, wanted);
    std::vector<void*> foreseen;
    {
      tessera::detail::allocator_copy copy(allocator_, wanted.front().stream);
      for (const expected_request& r : wanted)
        foreseen.push_back(copy.allocator().try_allocate(r.bytes, r.stream));
    }
    ASSERT_EQ(state_of(allocator_), before);
    ASSERT_EQ(allocator_.audit(), nullptr);
    ASSERT_EQ(bool(answer), answer.served == wanted.size());
    std::size_t served = 0;
    for (const expected_request& r : wanted) {
      void* const p = allocator_.try_allocate(r.bytes, r.stream);
      if (p == nullptr) break;
      live_.push_back(p);
      // New memory may get any address. With a seed, even one that was released right before.
      result.other_places += !reuses_addresses_ && existed(before, p) && foreseen[served] != p;
      ++served;
    }
    ++result.questions;
    result.yes += bool(answer);
    result.fewer += served < answer.served;
    result.other_counts += answer.served != served;
    result.other_reserved +=
        served == wanted.size() && answer.reserved != allocator_.current_usage().reserved;
  }

  std::mt19937_64 random_;
  bool reuses_addresses_;
  caching_allocator<Recipe, device, Extension...> allocator_;
  std::vector<void*> live_;
  std::vector<pool_id> pools_;
};

template <typename Recipe>
struct would_fit_in : testing::Test {
  template <typename... Extension>
  static tally run(int programs, bool holds_events) {
    tally result;
    for (int seed = 1; seed <= programs && !testing::Test::HasFatalFailure(); ++seed) {
      const auto number = static_cast<std::uint64_t>(seed);
      asking_program<Recipe, Extension...>(number, holds_events, number % 2 == 0 ? number : 0)
          .run(300, result);
    }
    return result;
  }
};
using recipes =
    types_by_day<4, recipe::pytorch<>,
                 recipe::pytorch<"max_split_size_mb:40,garbage_collection_threshold:0.6">, recipe::stitched,
                 recipe::cuda_async, recipe::pytorch<"expandable_segments:True">, recipe::power_of_two,
                 recipe::paddle<>, recipe::pytorch_2_14<>, recipe::symmetric<recipe::pytorch<>>>;
TYPED_TEST_SUITE(would_fit_in, recipes, );

TYPED_TEST(would_fit_in, foresees_what_the_requests_do) {
  const tally all = this->run(by_day(3, 8), true);
  EXPECT_GT(all.yes, all.questions / 10);
  EXPECT_GT(all.questions - all.yes, all.questions / 10);
  EXPECT_EQ(all.other_counts, 0u);
  EXPECT_EQ(all.other_reserved, 0u);
  EXPECT_EQ(all.other_places, 0u);
}

TYPED_TEST(would_fit_in, promises_nothing_that_fails_if_work_ends_meanwhile) {
  const tally all = this->run(by_day(3, 8), false);
  EXPECT_GT(all.yes, all.questions / 10);
  EXPECT_EQ(all.fewer, 0u);
}

/// Evicts before it grows, and does not recover.
using fails_fast = recipe::pytorch<
    "garbage_collection_threshold:0.5,throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.9">;
template <typename Recipe>
using would_fit_with_pools = would_fit_in<Recipe>;
using recipes_with_pools =
    types_by_day<3, recipe::pytorch<>, fails_fast, recipe::stitched,
                 recipe::with<recipe::pytorch<>, policy::recover_never>, recipe::passthrough,
                 recipe::pytorch<"expandable_segments:True">, recipe::cuda_async, recipe::power_of_two,
                 recipe::paddle<>, recipe::pytorch_2_14<>>;
TYPED_TEST_SUITE(would_fit_with_pools, recipes_with_pools, );

TYPED_TEST(would_fit_with_pools, foresees_what_recovery_releases_of_other_pools) {
  const tally all = this->template run<extension::private_pools>(by_day(6, 20), true);
  EXPECT_GT(all.yes, all.questions / 10);
  EXPECT_GT(all.questions - all.yes, all.questions / 10);
  EXPECT_EQ(all.other_counts, 0u);
  EXPECT_EQ(all.other_places, 0u);
  if (!TypeParam::growth::backend::moves_memory) {
    EXPECT_EQ(all.other_reserved, 0u);
  }
}

TYPED_TEST(would_fit_with_pools, promises_nothing_that_fails_if_work_ends_meanwhile_or_graphs_are_captured) {
  const tally all = this->template run<extension::private_pools>(by_day(6, 20), false);
  EXPECT_GT(all.yes, all.questions / 10);
  EXPECT_EQ(all.fewer, 0u);
}

/// A device that may hold 64 MiB, whatever its capacity.
struct shared_quota : device {
  shared_quota() : device({.capacity = 160_MiB}) {}
  [[nodiscard]] bool would_exceed_limit(std::size_t bytes) const noexcept {
    return capacity() - available() + bytes > 64_MiB;
  }
};

/// A device on which 100 MiB are taken of 160.
template <typename Recipe, typename... Extension>
struct busy {
  caching_allocator<Recipe, device, Extension...> allocator{device({.capacity = 160_MiB})};
  void* block = allocator.allocate(100_MiB);
};

TEST(would_fit, says_which_request_fails_and_why) {
  busy<recipe::pytorch<>> in;
  const fit_answer yes = would_fit(in.allocator, {{30_MiB}, {0}, {30_MiB}});
  EXPECT_TRUE(yes);
  EXPECT_EQ(yes.served, 3u);
  EXPECT_EQ(yes.reserved, 160_MiB);
  EXPECT_EQ(yes.why, "");
  const fit_answer no = would_fit(in.allocator, {{30_MiB}, {40_MiB}, {1}});
  EXPECT_FALSE(no);
  EXPECT_EQ(no.served, 1u);
  EXPECT_EQ(no.reserved, 130_MiB);
  EXPECT_NE(no.why.find("40.00 MiB (41943040 bytes) requested on stream 0"), std::string::npos) << no.why;
  const fit_answer never = would_fit(in.allocator, {{max_request + 1}});
  EXPECT_NE(never.why.find("requested"), std::string::npos) << never.why;
  EXPECT_TRUE(would_fit(in.allocator, {}));
}

TEST(would_fit, admits_what_fits_in_a_queue) {
  busy<recipe::stitched> in;
  auto& allocator = in.allocator;
  std::vector<tessera::observe::expected_request> queue(10, {16_MiB});
  const std::size_t admitted = tessera::observe::would_fit(allocator, queue).served;
  EXPECT_EQ(admitted, 3u);
}

TEST(would_fit, counts_on_recovery) {
  busy<recipe::pytorch<>> in;
  EXPECT_FALSE(would_fit(in.allocator, {{140_MiB}}));
  in.allocator.deallocate(in.block);
  EXPECT_TRUE(would_fit(in.allocator, {{140_MiB}}));
  EXPECT_EQ(in.allocator.current_usage().reserved, 100_MiB);
}

template <typename Recipe>
struct would_fit_by_age : testing::Test {};
using by_age = testing::Types<
    recipe::with<recipe::pytorch<>, policy::evict_idle_above<percent(60)>>,
    recipe::with<recipe::pytorch<"expandable_segments:True">, policy::evict_idle_above<percent(60)>>>;
TYPED_TEST_SUITE(would_fit_by_age, by_age, );

// Eviction releases the memory that was idle for longer. Of memory of equal age, it would release the smaller first.
TYPED_TEST(would_fit_by_age, knows_how_long_memory_was_idle) {
  caching_allocator<TypeParam, device> allocator(device({.capacity = 320_MiB}));
  std::vector<void*> live{allocator.allocate(2_MiB)};
  void* const used_often = allocator.allocate(4_MiB);
  live.push_back(allocator.allocate(2_MiB));
  void* const old = allocator.allocate(80_MiB);
  live.push_back(allocator.allocate(12_MiB));
  void* const recent = allocator.allocate(40_MiB);
  for (const std::size_t bytes : {12_MiB, 60_MiB}) live.push_back(allocator.allocate(bytes));
  allocator.deallocate(used_often);
  allocator.deallocate(old);
  for (int i = 0; i < 100; ++i) allocator.deallocate(allocator.allocate(2_MiB));
  allocator.deallocate(recent);
  const std::size_t before = allocator.current_usage().reserved;
  const fit_answer answer = would_fit(allocator, {{90_MiB}});
  EXPECT_EQ(allocator.current_usage().reserved, before);
  live.push_back(allocator.allocate(90_MiB));
  EXPECT_EQ(answer.reserved, allocator.current_usage().reserved);
  EXPECT_LT(allocator.current_usage().reserved, before + 90_MiB) << "memory went back";
  EXPECT_EQ(allocator.allocate(40_MiB), recent) << "but not this";
  allocator.deallocate(recent);
  for (void* const p : live) allocator.deallocate(p);
}

TEST(would_fit, obeys_a_limit_of_the_policy_and_of_the_provider) {
  busy<recipe::pytorch<>> in;
  in.allocator.policies().growth.limit = memory_limit(120_MiB);
  EXPECT_FALSE(would_fit(in.allocator, {{40_MiB}}));
  EXPECT_TRUE(would_fit(in.allocator, {{20_MiB}}));
  caching_allocator<recipe::stitched, provider::limiting<device>> limited{
      provider::limiting<device>(device(), 64_MiB)};
  EXPECT_TRUE(would_fit(limited, {{64_MiB}}));
  EXPECT_FALSE(would_fit(limited, {{64_MiB}, {2_MiB}}));
  // A limit of others, which the capacity does not show, and which what is released does not count towards.
  caching_allocator<recipe::pytorch<>, shared_quota> sharing;
  void* const p = sharing.allocate(40_MiB);
  EXPECT_TRUE(would_fit(sharing, {{20_MiB}}));
  EXPECT_FALSE(would_fit(sharing, {{30_MiB}}));
  sharing.deallocate(p);
  EXPECT_TRUE(would_fit(sharing, {{60_MiB}}));
  EXPECT_FALSE(would_fit(sharing, {{60_MiB}, {20_MiB}}));
}

TEST(would_fit, counts_the_memory_of_other_pools) {
  busy<recipe::pytorch<>, extension::private_pools> in;
  in.allocator.policies().growth.limit = memory_limit(140_MiB);
  auto pools = in.allocator.get<extension::private_pools>();
  ASSERT_TRUE(pools.open(pools.create(), extension::scope_kind::plain));
  EXPECT_TRUE(would_fit(in.allocator, {{40_MiB}}));
  EXPECT_FALSE(would_fit(in.allocator, {{50_MiB}}));
}

TEST(would_fit, counts_on_the_idle_memory_of_pools_without_a_use) {
  busy<recipe::pytorch<>, extension::private_pools> in;
  in.allocator.deallocate(in.block);  // 100 MiB are cached in the default pools
  auto pools = in.allocator.get<extension::private_pools>();
  const pool_id pool = pools.create();
  ASSERT_TRUE(pools.open(pool, extension::scope_kind::plain));
  EXPECT_TRUE(would_fit(in.allocator, {{140_MiB}})) << "the default pools give theirs back";
  in.allocator.deallocate(in.allocator.allocate(140_MiB));
  EXPECT_FALSE(would_fit(in.allocator, {{150_MiB}})) << "the pool in use keeps its own";
  EXPECT_EQ(in.allocator.try_allocate(150_MiB), nullptr);
  ASSERT_TRUE(pools.close(pool));
  EXPECT_FALSE(would_fit(in.allocator, {{100_MiB}}));
  ASSERT_TRUE(pools.release(pool));
  EXPECT_TRUE(would_fit(in.allocator, {{100_MiB}}));
}

TEST(would_fit, knows_no_pool_that_lends) {
  busy<recipe::pytorch<>, extension::private_pools> in;
  const extension::private_pool lender(in.allocator, {.serves_on_oom = true});
  const fit_answer answer = would_fit(in.allocator, {{1_MiB}});
  EXPECT_FALSE(answer);
  EXPECT_EQ(answer.why, "would_fit: it does not know what a pool lends");
}

// A release of this device waits for no stream, so the pending block stays.
TEST(would_fit, waits_for_a_stream_before_a_release_only_if_the_allocator_does) {
  const auto foreseen = [](auto& allocator) {
    void* const p = allocator.allocate(30_MiB, stream_id{1});
    allocator.deallocate(allocator.allocate(50_MiB, stream_id{2}));
    allocator.provider().submit(stream_id{2}, 1'000'000'000);
    EXPECT_TRUE(allocator.record_stream(p, stream_id{2}));
    allocator.deallocate(p);
    const std::size_t served = would_fit(allocator, {{35_MiB, stream_id{1}}, {30_MiB, stream_id{1}}}).served;
    EXPECT_NE(allocator.try_allocate(35_MiB, stream_id{1}), nullptr);
    EXPECT_EQ(allocator.try_allocate(30_MiB, stream_id{1}) != nullptr, served == 2);
    return served;
  };
  caching_allocator<fails_fast, device> one(device({.capacity = 100_MiB}));
  EXPECT_EQ(foreseen(one), 1u);
  caching_allocator<fails_fast, simulated_npu> other(simulated_npu({.capacity = 100_MiB}));
  EXPECT_EQ(foreseen(other), 2u);
}

TEST(would_fit, does_not_wait_during_a_capture) {
  busy<recipe::pytorch<>, extension::private_pools> in;
  void* const used = in.allocator.allocate(1_MiB);
  EXPECT_TRUE(in.allocator.record_stream(used, stream_id{1}));
  in.allocator.provider().submit(stream_id{1}, 1000);
  in.allocator.deallocate(used);
  in.allocator.deallocate(in.block);
  auto pools = in.allocator.get<extension::private_pools>();
  const pool_id graph = pools.create();
  const stream_id captured{7};
  ASSERT_TRUE(pools.open(graph, extension::stream_filter(captured), extension::scope_kind::capture));
  const std::uint64_t queries = in.allocator.provider().calls().query;
  EXPECT_FALSE(would_fit(in.allocator, {{140_MiB}}));
  EXPECT_EQ(in.allocator.try_allocate(140_MiB), nullptr);
  EXPECT_FALSE(would_fit(in.allocator, {{1_MiB}, {1_MiB, captured}}));
  EXPECT_EQ(in.allocator.provider().calls().query, queries);
  ASSERT_TRUE(pools.close(graph));
  EXPECT_TRUE(would_fit(in.allocator, {{140_MiB}}));
}

TEST(would_fit, works_behind_a_lock) {
  locked<caching_allocator<recipe::stitched, device>> allocator(device({.capacity = 64_MiB}));
  EXPECT_TRUE(would_fit(allocator, {{64_MiB}}));
  EXPECT_FALSE(would_fit(allocator, {{65_MiB}}));
}

TEST(would_fit, asks_the_pool_that_serves_the_stream) {
  busy<recipe::pytorch<>, extension::private_pools> in;
  auto pools = in.allocator.get<extension::private_pools>();
  in.allocator.deallocate(in.block);  // 100 MiB are cached in the default pools
  const pool_id graph = pools.create();
  ASSERT_TRUE(pools.open(graph, extension::scope_kind::capture));
  // While a graph is recorded, nothing may wait, so that the cache of the other pools stays.
  EXPECT_TRUE(would_fit(in.allocator, {{60_MiB}}));
  EXPECT_FALSE(would_fit(in.allocator, {{80_MiB}}));
  EXPECT_EQ(in.allocator.try_allocate(80_MiB), nullptr);
  void* const p = in.allocator.allocate(60_MiB);
  in.allocator.deallocate(p);
  ASSERT_TRUE(pools.close(graph));
  EXPECT_TRUE(would_fit(in.allocator, {{90_MiB}}));
}

TEST(would_fit, says_that_a_pool_sleeps) {
  busy<recipe::stitched, extension::sleep_mode> in;
  auto memory = in.allocator.get<extension::sleep_mode>();
  ASSERT_TRUE(memory.sleep(extension::sleep_contents::discard));
  const fit_answer answer = would_fit(in.allocator, {{1_MiB}});
  EXPECT_FALSE(answer);
  EXPECT_EQ(in.allocator.try_allocate(1_MiB), nullptr);
  EXPECT_NE(answer.why.find("sleep"), std::string::npos) << answer.why;
  ASSERT_TRUE(memory.wake());
  EXPECT_TRUE(would_fit(in.allocator, {{1_MiB}}));
  in.allocator.deallocate(in.block);
}

#if !defined(_WIN32)  // where host_pinned has no virtual memory
TEST(would_fit, knows_real_memory) {
  caching_allocator<recipe::stitched, provider::host_pinned> allocator;
  void* const p = allocator.allocate(3_MiB);
  EXPECT_TRUE(would_fit(allocator, {{5_MiB}, {1_KiB}}));
  EXPECT_FALSE(would_fit(allocator, {{allocator.provider().capacity()}}));
  allocator.deallocate(p);
}
#endif

TEST(would_fit, says_which_pools_it_does_not_know) {
  struct upstream {
    void* acquire(std::size_t) noexcept { return nullptr; }
    bool release(void*, std::size_t) noexcept { return true; }
  } source;
  caching_allocator<recipe::pytorch<>, simulated_device, extension::private_pools> memory(
      simulated_device({.capacity = 128_MiB}));
  {
    const extension::private_pool whole(memory, {.never_splits = true});
    const extension::pool_scope scope(whole, {}, extension::scope_kind::plain);
    EXPECT_EQ(observe::would_fit(memory, {{20_MiB}}).why,
              "would_fit: it does not know pools that never split");
  }
  {
    const extension::private_pool elsewhere(memory, extension::pool_upstream(source));
    const extension::pool_scope scope(elsewhere, {}, extension::scope_kind::plain);
    const observe::fit_answer answer = observe::would_fit(memory, {{100_MiB}});
    EXPECT_EQ(answer.why, "would_fit: it does not know pools with a pool_upstream");
    EXPECT_EQ(answer.served, 0u);
  }
  EXPECT_TRUE(observe::would_fit(memory, {{100_MiB}}));
}

}  // namespace
