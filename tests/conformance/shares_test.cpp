// SPDX-License-Identifier: Apache-2.0
// Quotas of pools: what a pool may hold, and what the others leave for it. An oracle counts from the blocks
// what each pool holds, and compares that with the quotas.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/extension/checkpoints.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/quotas.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include "by_day.hpp"
#include "extensions.hpp"
#include "stress.hpp"

namespace {

using namespace tessera;

template <typename Recipe, typename Device = simulated_device>
using allocator_of = caching_allocator<Recipe, Device, extension::private_pools, extension::checkpoints,
                                       extension::quotas, extension::sleep_mode>;

/// The bytes that a pool holds: its segments, or in ranges its chunks, with a block that is not free.
template <typename Allocator>
std::size_t held_by(const Allocator& allocator, pool_id pool) {
  const auto view = tessera::detail::introspect(allocator);
  std::size_t held = 0;
  view.for_each_unit([&](const auto& unit) {
    bool is_used = false;
    unit.for_each_block([&](const detail::block& b, auto...) { is_used = is_used || !b.is_unused(); });
    if (is_used && unit.lowest->list->where.group->number == pool.number) held += unit.bytes;
  });
  return held;
}

struct tenant {
  pool_id pool;
  stream_id stream;
  extension::quota share{};
  std::vector<void*> blocks{};
  bool is_released = false;
};

/// An allocator whose pools have quotas, and the rules that hold after each call. If it is careless, it admits
/// everything, as if there were no quotas.
template <typename Allocator, bool IsCareless = false>
struct shared_device {
  explicit shared_device(std::size_t capacity) : on(simulated_device({.capacity = capacity})) {
    tenants.push_back({{}, stream_id{}});
  }
  ~shared_device() {
    for (const tenant& t : tenants) {
      for (void* const p : t.blocks) on.deallocate(p);
    }
  }
  /// Adds a tenant whose requests are those of a stream.
  void add(std::uint64_t stream) {
    tenants.push_back({pools(on).create(), stream_id{stream}});
    EXPECT_TRUE(pools(on).open(tenants.back().pool, stream_id{stream}, extension::scope_kind::plain));
  }
  /// Releases the pool of a tenant, which gets a new one. The blocks stay in the old one.
  void renew(std::size_t number) {
    tenant old = tenants[number];
    EXPECT_TRUE(pools(on).close(old.pool) && pools(on).release(old.pool));
    old.share = {};
    old.is_released = true;
    tenants[number] = {pools(on).create(), old.stream};
    EXPECT_TRUE(pools(on).open(tenants[number].pool, old.stream, extension::scope_kind::plain));
    tenants.push_back(std::move(old));
  }
  bool give(tenant& t, extension::quota share) {
    const extension::quota lenient{.limit = share == extension::quota{} ? unlimited : unlimited - 1};
    const bool fits = static_cast<bool>(quotas_of(on).set(t.pool, IsCareless ? lenient : share));
    if (fits) t.share = share;
    return fits;
  }
  /// Counts the bytes that a tenant holds. Without a share, its private pool keeps all that it has.
  [[nodiscard]] std::size_t held(const tenant& t) {
    const bool keeps = t.pool != pool_id{} && t.share == extension::quota{} && !t.is_released;
    return keeps ? pools(on).usage_of(t.pool).reserved : held_by(on, t.pool);
  }
  /// Counts for each other tenant what it holds, or what it is guaranteed if that is more.
  [[nodiscard]] std::size_t others(const tenant& of) {
    std::size_t sum = 0;
    for (const tenant& t : tenants) sum += &t != &of ? (std::max)(held(t), t.share.guaranteed) : 0;
    return sum;
  }
  [[nodiscard]] std::size_t limit() { return on.current_usage().limit; }

  /// The first rule that does not hold, or an empty text.
  [[nodiscard]] std::string broken_rule() {
    if (const char* const broken = on.audit(); broken != nullptr) return broken;
    std::size_t sum = 0;
    std::size_t reserved = 0;
    for (const tenant& t : tenants) {
      const extension::pool_usage now = pools(on).usage_of(t.pool);
      const std::size_t held_now = held(t);
      if (now.non_releasable != held_now) return "usage_of says what the pool holds";
      if (held_now > t.share.limit) return "a pool holds at most its limit";
      sum += (std::max)(held_now, t.share.guaranteed);
      reserved += now.reserved;
    }
    if (sum > limit()) return "what is guaranteed is not held by others";
    if (reserved != on.current_usage().reserved) return "the pools have what is reserved";
    return {};
  }
  /// The most bytes that a request may add to what its pool holds. An exact segment is tried, too.
  [[nodiscard]] std::size_t most_added(std::size_t bytes) {
    const std::size_t size = on.policies().rounding.block_size(bytes);
    if constexpr (requires { on.policies().growth.mapping_unit(size); }) {
      const std::size_t unit = align_up(on.policies().growth.mapping_unit(size), 2_MiB);
      std::size_t chunk = 0;
      if constexpr (requires { on.policies().growth.min_chunk(size); })
        chunk = on.policies().growth.min_chunk(size);
      return align_up(size, unit) + unit + chunk;
    }
    return align_up(size, 2_MiB);
  }
  /// Whether the shares give a reason to refuse a request.
  [[nodiscard]] bool may_fail(const tenant& t, std::size_t bytes) {
    if (std::all_of(tenants.begin(), tenants.end(),
                    [](const tenant& each) { return each.share == extension::quota{}; }))
      return true;  // then the recipe decides
    const std::size_t after = held(t) + most_added(bytes);
    return after > t.share.guaranteed && (after > t.share.limit || after > limit() - others(t));
  }
  Allocator on;
  std::vector<tenant> tenants;
};

/// A random program of tenants that take all they get. Returns the first broken rule.
template <typename Recipe, bool IsCareless = false>
std::string run_greedy_tenants(std::uint64_t seed, int steps) {
  std::mt19937_64 random(seed);
  const auto below = [&random](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  shared_device<allocator_of<Recipe>, IsCareless> device(400_MiB);
  for (std::uint64_t stream = 1; stream <= 3; ++stream) device.add(stream);
  std::size_t refused = 0;
  std::size_t served = 0;
  for (int step = 0; step < steps; ++step) {
    if (below(200) == 0) device.renew(1 + below(3));
    tenant& t = device.tenants[below(device.tenants.size())];
    const std::size_t choice = below(100);
    if (t.is_released && (choice < 50 || choice >= 98)) continue;
    if (choice < 2) {
      const std::size_t guaranteed = below(8) * 20_MiB;
      const std::size_t limit = below(3) == 0 ? unlimited : guaranteed + below(8) * 20_MiB;
      (void)device.give(t, {guaranteed, limit});
    } else if (choice < 50) {
      constexpr std::size_t sizes[] = {700, 300_KiB, 1500_KiB, 7_MiB, 15_MiB, 30_MiB, 90_MiB};
      const std::size_t bytes = 1 + below(sizes[below(std::size(sizes))]);
      const bool may_fail = device.may_fail(t, bytes);
      void* const p = device.on.try_allocate(bytes, t.stream);
      if (p != nullptr) t.blocks.push_back(p);
      (p != nullptr ? served : refused) += 1;
      if (p == nullptr && !may_fail)
        return "request " + std::to_string(step) + " of " + std::to_string(bytes) + " bytes was refused";
    } else if (choice < 96) {
      // Frees come in bursts, so that a tenant fills up again and again.
      for (std::size_t n = below(16) == 0 ? t.blocks.size() / 2 : below(2); n > 0 && !t.blocks.empty(); --n) {
        const std::size_t at = below(t.blocks.size());
        if (below(8) == 0) (void)device.on.record_stream(t.blocks[at], stream_id{4 + below(3)});
        device.on.deallocate(t.blocks[at]);
        t.blocks[at] = t.blocks.back();
        t.blocks.pop_back();
      }
    } else if (choice < 97) {
      device.on.trim();
    } else if (choice < 98) {
      (void)device.on.process_events();
    } else if constexpr (allocator_of<Recipe>::has_ranges) {
      if (!sleep_mode_of(device.on).is_asleep(t.pool) && choice < 99) {
        const bool slept =
            static_cast<bool>(sleep_mode_of(device.on).sleep(t.pool, extension::sleep_contents::discard));
        for (int i = 0; slept && i < 4 && !device.tenants.empty(); ++i) {
          tenant& other = device.tenants[below(4)];
          if (void* const p = device.on.try_allocate(1 + below(40_MiB), other.stream))
            other.blocks.push_back(p);
          if (std::string broken = device.broken_rule(); !broken.empty()) return "asleep: " + broken;
        }
        if (slept && !sleep_mode_of(device.on).wake(t.pool)) {
          // Others took what was not guaranteed. They give it back.
          for (tenant& other : device.tenants) {
            if (&other == &t) continue;
            for (void* const p : other.blocks) device.on.deallocate(p);
            other.blocks.clear();
            if (other.share == extension::quota{} && !other.is_released)
              (void)device.give(other, {.limit = unlimited - 1});
          }
          if (!sleep_mode_of(device.on).wake(t.pool))
            return "a pool does not wake though the others hold nothing";
        }
      }
    }
    if (std::string broken = device.broken_rule(); !broken.empty())
      return "step " + std::to_string(step) + ": " + broken;
  }
  if (served < 100 || refused < 8)
    return "the program is too easy: " + std::to_string(served) + " served, " + std::to_string(refused) +
           " refused";
  return {};
}

template <typename Recipe>
struct greedy_tenants : testing::Test {};
using recipes =
    types_by_day<5, pytorch<>, pytorch<"expandable_segments:True">, stitched, cuda_async,
                 with<pytorch<"expandable_segments:True">, fail_fast<recover_by_emptying_cache<>, true>>,
                 pytorch<"max_split_size_mb:32">, paddle<>, power_of_two, with<pytorch<>, recover_never>>;
TYPED_TEST_SUITE(greedy_tenants, recipes);

TYPED_TEST(greedy_tenants, take_only_what_is_not_guaranteed_to_others) {
  const std::size_t programs = by_day(8, 40);
  for (std::uint64_t seed = 1; seed <= programs; ++seed)
    ASSERT_EQ(run_greedy_tenants<TypeParam>(seed, 1500), "") << "seed " << seed;
}

TEST(greedy_tenants_without_quotas, are_found) {
  EXPECT_NE((run_greedy_tenants<pytorch<>, true>(1, 1500)), "");
  EXPECT_NE((run_greedy_tenants<stitched, true>(1, 1500)), "");
}

/// Two tenants: `training` on stream 1 and `serving` on stream 2, of 100 MiB.
template <typename Recipe>
struct shares : testing::Test {
  using allocator = allocator_of<Recipe>;
  allocator memory{simulated_device({.capacity = 100_MiB})};
  extension::private_pool<allocator> training{memory}, serving{memory};
  stream_id one{1}, two{2};
  extension::pool_scope<allocator> first{training, one, extension::scope_kind::plain};
  extension::pool_scope<allocator> second{serving, two, extension::scope_kind::plain};
};
using growing = testing::Types<pytorch<>, pytorch<"expandable_segments:True">, stitched>;
TYPED_TEST_SUITE(shares, growing);

TYPED_TEST(shares, lend_to_caches_only) {
  auto& on = this->memory;
  ASSERT_TRUE(quotas_of(this->serving).set({.limit = 90_MiB}));
  ASSERT_TRUE(quotas_of(this->training).set({.guaranteed = 60_MiB}));
  void* const large = on.try_allocate(40_MiB, this->two);
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(on.try_allocate(20_MiB, this->two), nullptr);  // guaranteed to the other pool
  void* const mine = on.try_allocate(20_MiB, this->one);
  ASSERT_NE(mine, nullptr);
  on.deallocate(large);
  EXPECT_EQ(usage_of(this->serving).non_releasable, 0u);
  EXPECT_EQ(usage_of(this->serving).reserved, 40_MiB);
  // The cache of 40 MiB goes back.
  void* const more = on.try_allocate(40_MiB, this->one);
  ASSERT_NE(more, nullptr);
  EXPECT_LE(on.current_usage().reserved, 100_MiB);
  void* const beyond = on.try_allocate(20_MiB, this->one);  // no other pool has a guarantee
  EXPECT_NE(beyond, nullptr);
  EXPECT_EQ(on.audit(), nullptr);
  for (void* const p : {mine, more, beyond}) on.deallocate(p);
}

TYPED_TEST(shares, refuse_cached_memory_that_would_be_held) {
  auto& on = this->memory;
  ASSERT_TRUE(quotas_of(this->serving).set({.limit = 90_MiB}));
  on.deallocate(on.try_allocate(60_MiB, this->two));
  ASSERT_TRUE(quotas_of(this->training).set({.guaranteed = 60_MiB}));
  EXPECT_EQ(on.try_allocate(60_MiB, this->two), nullptr);
  void* const fits = on.try_allocate(40_MiB, this->two);
  EXPECT_NE(fits, nullptr);
  on.deallocate(fits);
}

TYPED_TEST(shares, limit_a_pool) {
  auto& on = this->memory;
  ASSERT_TRUE(quotas_of(this->serving).set({.limit = 40_MiB}));
  void* const p = on.try_allocate(40_MiB, this->two);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(on.try_allocate(20_MiB, this->two), nullptr);
  void* const other = on.try_allocate(60_MiB, this->one);
  EXPECT_NE(other, nullptr);
  on.deallocate(p);
  on.deallocate(other);
}

TYPED_TEST(shares, wait_for_pending_frees) {
  auto& on = this->memory;
  ASSERT_TRUE(quotas_of(this->serving).set({.limit = 40_MiB}));
  void* const p = on.try_allocate(40_MiB, this->two);
  ASSERT_TRUE(on.record_stream(p, this->one));
  on.provider().submit(this->one, 1'000'000);
  on.deallocate(p);
  EXPECT_GT(on.current_usage().pending(), 0u);
  void* const again = on.try_allocate(40_MiB, this->two);
  EXPECT_NE(again, nullptr);
  on.deallocate(again);
}

TYPED_TEST(shares, that_do_not_fit_change_nothing) {
  auto& on = this->memory;
  EXPECT_STREQ(quotas_of(this->serving).set({.guaranteed = 20_MiB, .limit = 10_MiB}).why,
               "the quota guarantees more than its limit");
  EXPECT_FALSE(quotas_of(this->serving).set({.guaranteed = 101_MiB}));
  ASSERT_TRUE(quotas_of(this->training).set({.guaranteed = 60_MiB}));
  EXPECT_STREQ(quotas_of(this->serving).set({.guaranteed = 41_MiB}).why,
               "other pools hold the memory, or it is guaranteed to them");
  EXPECT_TRUE(quotas_of(this->serving).set({.guaranteed = 40_MiB}));
  void* const p = on.try_allocate(20_MiB, this->two);
  EXPECT_STREQ(quotas_of(this->serving).set({.limit = 10_MiB}).why,
               "the pool holds more than the limit of the quota");
  EXPECT_EQ(quotas_of(this->serving).get(), (extension::quota{.guaranteed = 40_MiB}));
  EXPECT_STREQ(quotas_of(on).set(pool_id{~std::uint64_t{0}}, {}).why, "no such pool exists");
  EXPECT_FALSE(quotas_of(on).set(pool_id{}, {.guaranteed = 1}));
  EXPECT_EQ(on.try_allocate(1, stream_id{}), nullptr);  // all is guaranteed to others
  on.deallocate(p);
}

TYPED_TEST(shares, end_with_the_pool) {
  auto& on = this->memory;
  ASSERT_TRUE(quotas_of(this->training).set({.guaranteed = 60_MiB}));
  {
    extension::private_pool brief(on);
    ASSERT_TRUE(quotas_of(brief).set({.guaranteed = 40_MiB}));
    EXPECT_EQ(on.try_allocate(20_MiB), nullptr);
  }
  void* const p = on.try_allocate(20_MiB);
  EXPECT_NE(p, nullptr);
  on.deallocate(p);
}

TYPED_TEST(shares, exclude_checkpoints) {
  ASSERT_TRUE(quotas_of(this->serving).set({.limit = 40_MiB}));
  EXPECT_STREQ(checkpoints_of(this->serving).record().why(),
               "the pool has a quota, so its memory may go back at any time");
}

TYPED_TEST(shares, count_all_memory_of_a_pool_that_keeps_it) {
  auto& on = this->memory;
  ASSERT_TRUE(quotas_of(this->training).set({.guaranteed = 60_MiB}));
  void* const p = on.try_allocate(20_MiB, this->two);  // the pool has no share, so its cache stays
  ASSERT_NE(p, nullptr);
  on.deallocate(p);
  EXPECT_EQ(usage_of(this->serving).non_releasable, usage_of(this->serving).reserved);
  EXPECT_EQ(on.try_allocate(30_MiB), nullptr);
  void* const mine = on.try_allocate(60_MiB, this->one);
  EXPECT_NE(mine, nullptr);
  on.deallocate(mine);
}

TYPED_TEST(shares, stay_as_they_are_during_a_capture) {
  auto& on = this->memory;
  ASSERT_TRUE(quotas_of(this->training).set({.guaranteed = 60_MiB}));
  ASSERT_TRUE(quotas_of(this->serving).set({.limit = 90_MiB}));
  on.deallocate(on.try_allocate(40_MiB, this->two));
  extension::private_pool graph(on);
  const extension::pool_scope capture(graph, stream_id{}, extension::scope_kind::capture);
  EXPECT_TRUE(pools(on).is_capturing());
  on.trim();
  EXPECT_EQ(on.current_usage().reserved, 40_MiB);
  if constexpr (!TypeParam::growth::backend::moves_memory) {
    EXPECT_EQ(on.try_allocate(80_MiB, this->one), nullptr);  // the cache may not be emptied
  }
}

TYPED_TEST(shares, are_named_by_errors) {
  auto& on = this->memory;
  ASSERT_TRUE(quotas_of(this->training).set({.guaranteed = 60_MiB}));
  ASSERT_TRUE(quotas_of(this->serving).set({.guaranteed = 10_MiB, .limit = 20_MiB}));
  const std::string text = on.make_out_of_memory(30_MiB, this->two).what();
  EXPECT_NE(text.find("at most 20.00 MiB, 10.00 MiB guaranteed"), std::string::npos) << text;
  EXPECT_NE(text.find("other pools hold or are guaranteed 60.00 MiB of 100.00 MiB"), std::string::npos)
      << text;
  const std::string why(explain(on, 30_MiB, this->two).text().c_str());
  EXPECT_NE(why.find("quotas refuse it"), std::string::npos) << why;
  EXPECT_EQ(std::string(on.make_out_of_memory(30_MiB, this->one).what()).find("quotas"), std::string::npos);
}

template <typename Recipe>
struct sleeping_shares : shares<Recipe> {};
using sleeping = testing::Types<pytorch<"expandable_segments:True">, stitched>;
TYPED_TEST_SUITE(sleeping_shares, sleeping);

TYPED_TEST(sleeping_shares, keep_what_a_pool_needs_to_wake) {
  auto& on = this->memory;
  ASSERT_TRUE(quotas_of(this->training).set({.guaranteed = 60_MiB}));
  void* const model = on.try_allocate(60_MiB, this->one);
  ASSERT_TRUE(sleep_mode_of(this->training).sleep(extension::sleep_contents::discard));
  EXPECT_EQ(usage_of(this->training).non_releasable, 0u);
  void* const most = on.try_allocate(40_MiB, this->two);
  EXPECT_NE(most, nullptr);
  EXPECT_EQ(on.try_allocate(20_MiB, this->two), nullptr);
  EXPECT_TRUE(sleep_mode_of(this->training).wake());
  on.deallocate(model);
  on.deallocate(most);
}

TYPED_TEST(sleeping_shares, name_the_limit_that_is_too_low_to_wake) {
  auto& on = this->memory;
  void* const model = on.try_allocate(60_MiB, this->one);
  ASSERT_TRUE(sleep_mode_of(this->training).sleep(extension::sleep_contents::discard));
  ASSERT_TRUE(quotas_of(this->training).set({.limit = 40_MiB}));
  const extension::sleep_result refused = sleep_mode_of(this->training).wake();
  EXPECT_STREQ(refused.why, "the limit of the pool is less than what it would hold");
  EXPECT_EQ(refused.missing, 20_MiB);
  on.deallocate(model);
}

TYPED_TEST(sleeping_shares, do_not_let_a_pool_wake_beyond_them) {
  auto& on = this->memory;
  ASSERT_TRUE(quotas_of(this->training).set({.guaranteed = 20_MiB}));
  void* const model = on.try_allocate(60_MiB, this->one);
  ASSERT_TRUE(sleep_mode_of(this->training).sleep(extension::sleep_contents::discard));
  ASSERT_TRUE(quotas_of(this->serving).set({.guaranteed = 60_MiB}));
  const extension::sleep_result refused = sleep_mode_of(this->training).wake();
  EXPECT_EQ(refused.missing, 20_MiB);
  EXPECT_STREQ(refused.why, "other pools hold the memory, or it is guaranteed to them");
  ASSERT_TRUE(quotas_of(this->serving).set({}));
  EXPECT_TRUE(sleep_mode_of(this->training).wake());
  EXPECT_EQ(usage_of(this->training).non_releasable, 60_MiB);
  EXPECT_EQ(on.try_allocate(60_MiB, this->two), nullptr);
  on.deallocate(model);
}

// Streams of one tenant share free blocks. A segment of free blocks is not held, even if it is split.
TEST(shares_across_streams, count_what_another_stream_frees) {
  using allocator = allocator_of<cuda_async>;
  allocator on{simulated_device({.capacity = 1000_MiB})};
  const auto is_first = [](void*, stream_id s) noexcept { return s.handle <= 2; };
  extension::private_pool first(on), second(on);
  const extension::pool_scope scope(first, {is_first, nullptr}, extension::scope_kind::plain);
  const extension::pool_scope other(second, stream_id{5}, extension::scope_kind::plain);
  ASSERT_TRUE(quotas_of(first).set({.limit = 600_MiB}));
  on.deallocate(on.try_allocate(600_MiB, stream_id{1}));
  ASSERT_TRUE(quotas_of(first).set({.limit = 100_MiB}));
  ASSERT_TRUE(quotas_of(second).set({.guaranteed = 900_MiB}));
  void* const small = on.try_allocate(50_MiB, stream_id{2});
  EXPECT_LE(held_by(on, first.id()), 100_MiB);
  void* const large = on.try_allocate(900_MiB, stream_id{5});
  EXPECT_NE(large, nullptr);
  on.deallocate(small);
  on.deallocate(large);
}
TEST(shares_across_streams, serve_a_block_whose_work_is_not_done_on_its_own_stream) {
  allocator_of<cuda_async> on{simulated_device({.capacity = 1000_MiB})};
  extension::private_pool pool(on), graph(on);
  const stream_id stream{1};
  const extension::pool_scope scope(pool, stream, extension::scope_kind::plain);
  ASSERT_TRUE(quotas_of(pool).set({.guaranteed = 100_MiB, .limit = 100_MiB}));
  void* const p = on.try_allocate(100_MiB, stream);
  on.provider().submit(stream, 1'000'000);
  on.deallocate(p);
  EXPECT_EQ(usage_of(pool).non_releasable, 0u);
  const extension::pool_scope capture(graph, stream_id{5}, extension::scope_kind::capture);
  EXPECT_EQ(on.try_allocate(100_MiB, stream), p);
}

// The plan's next chunk is larger when the cache has been emptied.
TEST(shares_of_a_plan, serve_a_guaranteed_request_at_the_first_try) {
  using recipe = paddle<"FLAGS_allocator_strategy=naive_best_fit">;
  allocator_of<recipe> on{simulated_device({.capacity = 1000_MiB})};
  extension::private_pool pool(on);
  const extension::pool_scope scope(pool, stream_id{1}, extension::scope_kind::plain);
  on.deallocate(on.try_allocate(50_MiB));
  ASSERT_TRUE(quotas_of(pool).set({.guaranteed = 160_MiB, .limit = 500_MiB}));
  EXPECT_NE(on.try_allocate(130_MiB, stream_id{1}), nullptr);
}

/// An extension that counts the questions of quotas.
struct counting {
  struct asked {
    std::size_t uses = 0;    // whether bytes may be used
    std::size_t others = 0;  // whether the memory of a pool may go back that serves nothing
    std::uint64_t idle = 0;  // the number of that pool
  };
  asked* to = nullptr;

  template <typename Core>
  class state : public tessera::detail::extension_defaults {
   public:
    state(typename Core::allocator&, const counting& from) noexcept : to_(from.to) {}
    [[nodiscard]] bool may_use(const detail::block&, std::size_t, std::size_t) noexcept {
      return ++to_->uses, true;
    }
    [[nodiscard]] bool may_release(const typename Core::group& g) const noexcept {
      to_->others += g.number == to_->idle;
      return false;
    }

   private:
    asked* to_;
  };
};

// A question about another pool would mean that all pools were counted.
TEST(shares_of_many_pools, ask_once_for_each_hit) {
  const auto run = []<typename Recipe>(Recipe) {
    counting::asked asked;
    caching_allocator<Recipe, simulated_device, counting, extension::private_pools, extension::quotas> on{
        simulated_device({.capacity = 1000_MiB}), {}, counting{&asked}};
    extension::private_pool pool(on), other(on);
    ASSERT_TRUE(quotas_of(pool).set({.guaranteed = 30_MiB, .limit = 100_MiB}) &&
                quotas_of(other).set({.limit = 1_GiB}));
    const extension::pool_scope scope(pool, stream_id{1}, extension::scope_kind::plain);
    on.deallocate(on.try_allocate(25_MiB, stream_id{1}));
    asked = {.idle = other.id().number};
    for (int hit = 0; hit < 100; ++hit) on.deallocate(on.try_allocate(25_MiB, stream_id{1}));
    EXPECT_EQ(asked.uses, 100u);
    EXPECT_EQ(asked.others, 0u);
    EXPECT_EQ(on.audit(), nullptr);
    EXPECT_GT(asked.others, 0u);
  };
  run(pytorch<>{});
  run(pytorch<"expandable_segments:True">{});
}

TEST(shares_and_options, work_together) {
  allocator_of<pytorch<>> on{simulated_device({.capacity = 1000_MiB})};
  extension::private_pool helps(on, {.serves_on_oom = true});
  void* idle = nullptr;
  {
    const extension::pool_scope scope(helps, extension::scope_kind::capture);
    idle = on.try_allocate(200_MiB);
    on.deallocate(idle);
  }
  ASSERT_TRUE(quotas_of(on).set({}, {.limit = 100_MiB}));
  EXPECT_EQ(on.try_allocate(150_MiB), idle) << "the default pools may not grow, but another pool serves";
}

// A thread that stays within its guarantee never fails, whatever the other thread does.
TEST(shares_of_threads, hold) {
  locked<caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::checkpoints,
                           extension::quotas, extension::sleep_mode>>
      on{simulated_device({.capacity = 400_MiB})};
  const stream_id modest{1}, greedy{2};
  extension::private_pool mine(on), theirs(on);
  ASSERT_TRUE(quotas_of(mine).set({.guaranteed = 160_MiB}));
  const extension::pool_scope first(mine, modest, extension::scope_kind::plain),
      second(theirs, greedy, extension::scope_kind::plain);
  ASSERT_TRUE(quotas_of(theirs).set({.limit = 390_MiB}));
  const std::size_t rounds = (std::max)(conformance::thread_stress::operations(4000), std::size_t{500});
  std::size_t refused_modest = 0;
  std::size_t refused_greedy = 0;
  std::thread other([&] {
    std::mt19937_64 random(1);
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < rounds; ++i) {
      if (void* const p = on.try_allocate(1 + random() % 60_MiB, greedy)) {
        blocks.push_back(p);
      } else {
        ++refused_greedy;
        for (void* const b : blocks) on.deallocate(b);
        blocks.clear();
      }
    }
    for (void* const b : blocks) on.deallocate(b);
  });
  std::mt19937_64 random(2);
  for (std::size_t i = 0; i < rounds; ++i) {
    void* blocks[2];
    for (void*& p : blocks) p = on.try_allocate(1 + random() % 80_MiB, modest);
    for (void* const p : blocks) {
      refused_modest += p == nullptr ? 1 : 0;
      on.deallocate(p);
    }
  }
  other.join();
  EXPECT_EQ(refused_modest, 0u);
  EXPECT_GT(refused_greedy, 0u);
}

/// Makes one provider call fail.
struct fail_one {
  struct plan {
    std::size_t made = 0, fails = 0;
  };
  plan* of;
  template <typename F>
  auto operator()(provider_call call, F f) {
    if (!call.may_fail()) return f();
    return ++of->made == of->fails ? decltype(f()){} : f();
  }
};

template <typename Recipe>
struct shares_over_a_failing_device : testing::Test {};
TYPED_TEST_SUITE(shares_over_a_failing_device, growing);

TYPED_TEST(shares_over_a_failing_device, hold) {
  using device = provider_adaptor<simulated_device, fail_one>;
  fail_one::plan plan;
  for (plan.fails = 1; plan.fails <= plan.made + 1 && plan.fails < 200; ++plan.fails) {
    plan.made = 0;
    simulated_device memory({.capacity = 100_MiB});
    allocator_of<TypeParam, device> on{device(memory, fail_one{&plan})};
    extension::private_pool training(on), serving(on);
    ASSERT_TRUE(quotas_of(training).set({.guaranteed = 60_MiB}));
    ASSERT_TRUE(quotas_of(serving).set({.limit = 60_MiB}));
    const stream_id one{1}, two{2};
    const extension::pool_scope first(training, one, extension::scope_kind::plain),
        second(serving, two, extension::scope_kind::plain);
    std::vector<void*> blocks;
    for (const stream_id stream : {two, two, one, two, one, one}) {
      blocks.push_back(on.try_allocate(20_MiB, stream));
      if (blocks.size() == 3) {
        on.deallocate(blocks[0]);
        blocks[0] = nullptr;
      }
      ASSERT_LE((std::max)(held_by(on, training.id()), 60_MiB) + held_by(on, serving.id()), 100_MiB);
      ASSERT_EQ(on.audit(), nullptr);
      ASSERT_EQ(usage_of(training).non_releasable, held_by(on, training.id()));
    }
    for (void* const p : blocks) on.deallocate(p);
  }
  EXPECT_GT(plan.fails, 5u);
}

}  // namespace
