// SPDX-License-Identifier: Apache-2.0
// Sleep and wake, over the recipes that map memory into ranges. On host_pinned, contents are compared.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/configured.hpp>
#include <tessera/extension/checkpoints.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include "by_day.hpp"
#include "extensions.hpp"
#include "stress.hpp"

namespace {

using namespace tessera;
using enum extension::sleep_contents;

constexpr stream_id one{1}, two{2};

/// Makes the n-th call that can fail, and each call after it up to `count` calls, fail.
struct fail_calls {
  struct plan {
    std::size_t made = 0, first = 0, count = 0;
  };
  plan* of;
  template <typename F>
  auto operator()(provider_call call, F f) {
    if (!call.may_fail()) return f();
    const std::size_t number = ++of->made;
    if (of->first != 0 && number >= of->first && number - of->first < of->count) return decltype(f()){};
    return f();
  }
};
template <bool Buffered>
struct failing_host : provider_adaptor<host_pinned, fail_calls> {
  using provider_adaptor<host_pinned, fail_calls>::provider_adaptor;
  static constexpr bool copies_page_locked = Buffered;
};
static_assert(copying_provider<failing_host<true>> && virtual_memory_provider<failing_host<true>>);

[[nodiscard]] host_pinned host(std::size_t capacity) {
  return host_pinned({.capacity = capacity, .pin = host_pinned::pinning::where_allowed});
}

/// A block of which some words depend on a seed.
struct filled {
  std::byte* at;
  std::size_t bytes;
  std::uint64_t seed;

  /// Words between two that are written, so that a page has some, and not each page the same ones.
  static constexpr std::size_t apart = 61;
  [[nodiscard]] std::uint64_t* words() const { return reinterpret_cast<std::uint64_t*>(at); }
  [[nodiscard]] std::uint64_t expected(std::size_t i) const { return i * 0x9e3779b97f4a7c15 + seed; }
  void fill() const {
    for_each_word([this](std::size_t i) { words()[i] = expected(i); });
  }
  [[nodiscard]] bool is_intact() const {
    std::uint64_t wrong = 0;
    for_each_word([&](std::size_t i) { wrong |= words()[i] ^ expected(i); });
    return wrong == 0;
  }
  template <typename F>
  void for_each_word(F f) const {
    if (bytes < 8) return;
    for (std::size_t i = 0; i < bytes / 8; i += apart) f(i);
    f(bytes / 8 - 1);
  }
};

template <typename Case>
struct sleep_contents_of : testing::Test {
  using device = typename Case::device;
  using allocator = caching_allocator<typename Case::recipe, device, extension::private_pools,
                                      extension::checkpoints, extension::sleep_mode>;

  void SetUp() override { ASSERT_EQ(memory.create_stream(), one); }
  filled allocate(std::size_t bytes, stream_id stream = {}) {
    auto* const p = static_cast<std::byte*>(device_memory.try_allocate(bytes, stream));
    const filled made{p, p != nullptr ? bytes : 0, ++last_seed};
    made.fill();
    return made;
  }
  std::size_t held() { return memory.used(); }
  fail_calls::plan failing;
  host_pinned memory = host(256_MiB);
  allocator device_memory{device(memory, {&failing})};
  unsigned last_seed = 0;
};
template <typename Recipe, bool Buffered>
struct on_host {
  using recipe = Recipe;
  using device = failing_host<Buffered>;
};
using small_steps = with<pytorch_family::expandable, grow_by_mapping<64_KiB, 1_MiB>>;
using host_cases = types_by_day<2, on_host<small_steps, false>, on_host<stitched, true>,
                                on_host<stitched, false>, on_host<small_steps, true>>;
TYPED_TEST_SUITE(sleep_contents_of, host_cases);

TYPED_TEST(sleep_contents_of, are_saved_or_discarded_for_each_pool) {
  auto& on = this->device_memory;
  extension::private_pool weights(on), cache(on);
  std::vector<filled> kept, lost;
  {
    const extension::pool_scope scope(weights, one, extension::scope_kind::capture);
    kept = {this->allocate(30_MiB, one), this->allocate(100_KiB, one), this->allocate(3_MiB, one)};
  }
  {
    const extension::pool_scope scope(cache, one, extension::scope_kind::capture);
    lost = {this->allocate(40_MiB, one)};
  }
  const filled other = this->allocate(9_MiB);
  const std::size_t before = this->held();
  const extension::sleep_result of_weights = sleep_mode_of(weights).sleep(save);
  ASSERT_TRUE(of_weights) << of_weights.why;
  EXPECT_TRUE(sleep_mode_of(weights).is_asleep() && !sleep_mode_of(cache).is_asleep() &&
              !sleep_mode_of(on).is_asleep());
  EXPECT_EQ(this->held(), before - of_weights.bytes);
  const extension::sleep_result of_cache = sleep_mode_of(cache).sleep(discard);
  ASSERT_TRUE(of_cache) << of_cache.why;
  EXPECT_GE(of_weights.bytes, 33_MiB);
  EXPECT_GE(of_cache.bytes, 40_MiB);
  EXPECT_EQ(this->held(), before - of_weights.bytes - of_cache.bytes);
  EXPECT_TRUE(other.is_intact()) << "a pool that is awake";
  EXPECT_EQ(on.current_usage().unbacked, of_weights.bytes + of_cache.bytes);
  EXPECT_EQ(on.audit(), nullptr);
  ASSERT_TRUE(sleep_mode_of(weights).wake());
  for (const filled& f : kept) EXPECT_TRUE(f.is_intact());
  ASSERT_TRUE(sleep_mode_of(cache).wake());
  for (const filled& f : lost) {
    f.fill();  // its memory is there
    EXPECT_TRUE(f.is_intact());
  }
  EXPECT_EQ(this->held(), before);
  EXPECT_EQ(on.current_usage().unbacked, 0u);
  EXPECT_EQ(on.audit(), nullptr);
}

TYPED_TEST(sleep_contents_of, survive_a_failure_of_each_call) {
  auto& on = this->device_memory;
  auto& calls = this->failing;
  extension::private_pool pool(on);
  std::vector<filled> blocks;
  {
    const extension::pool_scope scope(pool, one, extension::scope_kind::capture);
    for (const std::size_t bytes : {5_MiB, 100_KiB}) blocks.push_back(this->allocate(bytes, one));
  }
  const auto intact = [&blocks] {
    for (const filled& f : blocks) {
      if (!f.is_intact()) return false;
    }
    return true;
  };
  for (const std::size_t count : {std::size_t{1}, std::size_t{1000}}) {
    bool reached = true;
    for (std::size_t n = 1; reached; n += by_day(1 + n / 8, 1)) {
      calls = {.made = 0, .first = n, .count = count};
      const extension::sleep_result slept = sleep_mode_of(pool).sleep(save, one);
      const bool asleep = sleep_mode_of(pool).is_asleep();
      reached = calls.made >= n;
      ASSERT_EQ(asleep, static_cast<bool>(slept));
      ASSERT_EQ(on.audit(), nullptr) << "call " << n;
      calls = {};
      if (!asleep) {
        ASSERT_TRUE(intact()) << "after a failed sleep, call " << n;
        ASSERT_TRUE(sleep_mode_of(pool).sleep(save, one));
      }
      ASSERT_TRUE(sleep_mode_of(pool).wake(one)) << "call " << n;
      ASSERT_TRUE(intact()) << "after sleep, call " << n;
    }
    reached = true;
    for (std::size_t n = 1; reached; n += by_day(1 + n / 8, 1)) {
      ASSERT_TRUE(sleep_mode_of(pool).sleep(save, one));
      calls = {.made = 0, .first = n, .count = count};
      const extension::sleep_result woke = sleep_mode_of(pool).wake(one);
      reached = calls.made >= n;
      ASSERT_EQ(sleep_mode_of(pool).is_asleep(), !woke);
      ASSERT_EQ(on.audit(), nullptr) << "call " << n;
      calls = {};
      ASSERT_TRUE(woke || sleep_mode_of(pool).wake(one)) << "call " << n;
      ASSERT_TRUE(intact()) << "after wake, call " << n;
    }
  }
  for (const filled& f : blocks) on.deallocate(f.at);
  on.trim();
  EXPECT_EQ(on.audit(), nullptr);
}

TYPED_TEST(sleep_contents_of, stay_after_random_sleeps_under_load) {
  auto& on = this->device_memory;
  std::mt19937 random(7);
  std::vector<extension::private_pool<std::remove_reference_t<decltype(on)>>> pools;
  std::vector<std::vector<filled>> blocks(4);
  for (int i = 0; i < 3; ++i) pools.emplace_back(on);
  std::size_t sleeps = 0;
  for (int step = 0; step < 2500 && sleeps < by_day(60u, 250u); ++step) {
    const std::size_t which = random() % 4;
    const pool_id id = which < 3 ? pools[which].id() : pool_id{};
    if (random() % 4 == 0) {
      const extension::sleep_result changed = sleep_mode_of(on).is_asleep(id)
                                                  ? sleep_mode_of(on).wake(id, one)
                                                  : sleep_mode_of(on).sleep(id, save, one);
      ASSERT_TRUE(changed) << changed.why;
      sleeps += sleep_mode_of(on).is_asleep(id);
      continue;
    }
    if (blocks[which].size() > 3 || (!blocks[which].empty() && random() % 2 == 0)) {
      const std::size_t at = random() % blocks[which].size();
      const filled freed = blocks[which][at];
      ASSERT_TRUE(sleep_mode_of(on).is_asleep(id) || freed.is_intact());
      on.deallocate(freed.at);
      blocks[which].erase(blocks[which].begin() + static_cast<std::ptrdiff_t>(at));
    } else if (!sleep_mode_of(on).is_asleep(id)) {
      const std::size_t bytes = 1 + random() % (random() % 8 == 0 ? 3_MiB : 200_KiB);
      if (which == 3) {
        blocks[which].push_back(this->allocate(bytes, one));
      } else {
        const extension::pool_scope scope(pools[which], one, extension::scope_kind::capture);
        blocks[which].push_back(this->allocate(bytes, one));
      }
      ASSERT_NE(blocks[which].back().at, nullptr);
    } else if (which == 3) {
      ASSERT_EQ(on.try_allocate(1000, one), nullptr);
    }
    if (random() % 50 == 0) on.trim();
    ASSERT_EQ(on.audit(), nullptr);
  }
  EXPECT_GE(sleeps, by_day(50u, 200u));
  ASSERT_TRUE(sleep_mode_of(on).wake());
  for (std::vector<filled>& of_pool : blocks) {
    for (const filled& f : of_pool) {
      EXPECT_TRUE(f.is_intact());
      on.deallocate(f.at);
    }
  }
  pools.clear();
  on.trim();
  EXPECT_EQ(on.current_usage().reserved, 0u);
  EXPECT_EQ(on.audit(), nullptr);
}

/// The private pool whose memory a live block is in, or none.
template <typename Allocator>
[[nodiscard]] pool_id holder_of(Allocator& on, const void* p) {
  pool_id found{};
  for_each_block(on, [&](const segment_view& s, const block_view& b) {
    if (b.address == reinterpret_cast<std::uintptr_t>(p)) found = s.private_pool;
  });
  return found;
}

/// Pools that lend to the default pools sleep and wake, alone and together, while memory is short. After each
/// step, each block whose pool is awake has its contents, also if another pool's memory serves it.
TYPED_TEST(sleep_contents_of, stay_in_blocks_that_other_pools_lend) {
  constexpr std::size_t defaults = 3;
  struct used : filled {
    std::size_t pool, holder;  // the pool that the request was for, and the pool whose memory serves it
  };
  auto& on = this->device_memory;
  on.policies().growth.limit = memory_limit(8_MiB);
  std::mt19937 random(11);
  std::vector<extension::private_pool<std::remove_reference_t<decltype(on)>>> pools;
  for (std::size_t i = 0; i < defaults; ++i)
    pools.emplace_back(on, extension::pool_options{.serves_on_oom = i != 0});
  const auto id = [&pools](std::size_t which) { return which < defaults ? pools[which].id() : pool_id{}; };
  const auto sleeps = [&](std::size_t which) { return sleep_mode_of(on).is_asleep(id(which)); };
  std::vector<used> blocks;
  // Whether a pool for which which(pool) is true lends a live block.
  const auto lends = [&blocks](auto which) {
    for (const used& b : blocks) {
      if (b.pool != b.holder && which(b.holder)) return true;
    }
    return false;
  };
  // A seed of 0 marks lost contents.
  const auto lose = [&blocks](auto which) {
    for (used& b : blocks) {
      if (which(b.holder)) b.seed = 0;
    }
  };
  std::vector<extension::pool_checkpoint> checkpoints(defaults);
  std::vector<std::vector<used>> recorded(defaults);
  std::size_t lent = 0, refused_sleeps = 0, refused_wakes = 0, common_sleeps = 0, lent_by_restore = 0;
  for (int step = 0; step < 8000; ++step) {
    const std::size_t which = random() % 4;
    const extension::sleep_contents contents = random() % 2 == 0 ? save : discard;
    const auto what = random() % 40;
    if (what < 2 && sleeps(which)) {
      const bool waits = which == defaults && lends(sleeps);
      const extension::sleep_result woke = sleep_mode_of(on).wake(id(which), one);
      ASSERT_TRUE(waits ? !woke && woke.missing == 0 : woke || woke.missing > 0) << step;
      refused_wakes += waits;
    } else if (what < 2) {
      const bool is_lender = lends([which](std::size_t holder) { return holder == which; });
      ASSERT_EQ(static_cast<bool>(sleep_mode_of(on).sleep(id(which), contents, one)), !is_lender) << step;
      refused_sleeps += is_lender;
      if (!is_lender && contents == discard) lose([which](std::size_t holder) { return holder == which; });
    } else if (what == 2) {
      bool before[defaults + 1];
      for (std::size_t i = 0; i <= defaults; ++i) before[i] = sleeps(i);
      const auto falls_asleep = [&before](std::size_t holder) { return !before[holder]; };
      const bool is_lender = sleeps(defaults) && lends(falls_asleep);
      ASSERT_EQ(static_cast<bool>(sleep_mode_of(on).sleep(contents, one)), !is_lender) << step;
      refused_sleeps += is_lender;
      common_sleeps += !is_lender && lends(falls_asleep);
      if (!is_lender && contents == discard) lose(falls_asleep);
    } else if (what == 3) {
      const extension::sleep_result woke = sleep_mode_of(on).wake(one);
      ASSERT_TRUE(woke || woke.missing > 0) << step;
    } else if (what == 4) {
      on.trim();
    } else if ((what == 5 || what == 6 ||
                (what == 10 && lends([which](std::size_t holder) { return holder == which; }))) &&
               which < defaults && !sleeps(which)) {
      checkpoints[which] = checkpoints_of(pools[which]).record();
      ASSERT_TRUE(checkpoints[which]) << checkpoints[which].why();
      recorded[which].clear();
      for (const used& b : blocks) {
        if (b.holder == which) recorded[which].push_back(b);
      }
    } else if (what < 10 && which < defaults && checkpoints[which] &&
               checkpoints_of(pools[which]).restore(checkpoints[which])) {
      std::erase_if(blocks, [which](const used& b) { return b.holder == which; });
      for (used b : recorded[which]) {
        b.seed = 0;
        blocks.push_back(b);
        lent_by_restore += b.pool != b.holder;
      }
    }
    if (!blocks.empty() && (blocks.size() > 30 || random() % 2 == 0)) {
      const std::size_t at = random() % blocks.size();
      if (blocks[at].pool == defaults && random() % 4 != 0) continue;  // so that the default pools fill up
      on.deallocate(blocks[at].at);
      blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (!sleeps(which)) {
      const std::size_t bytes = 1 + random() % (random() % 4 == 0 ? 2_MiB : 500_KiB);
      filled made{};
      if (which == defaults) {
        made = this->allocate(bytes, one);
      } else {
        const extension::pool_scope scope(pools[which], one, extension::scope_kind::capture);
        made = this->allocate(bytes, one);
      }
      if (made.at != nullptr) {
        std::size_t holder = 0;
        while (id(holder) != holder_of(on, made.at)) ++holder;
        ASSERT_FALSE(sleeps(holder)) << step;
        blocks.push_back({made, which, holder});
        lent += which != holder;
      }
    } else if (which == defaults) {
      ASSERT_EQ(on.try_allocate(1000, one), nullptr) << step;
    }
    for (used& b : blocks) {
      if (sleeps(b.pool)) continue;
      if (b.seed == 0) {
        b.seed = ++this->last_seed;
        b.fill();
      }
      const bool is_intact = step % 16 == 0 ? b.is_intact() : b.bytes < 8 || *b.words() == b.expected(0);
      ASSERT_TRUE(is_intact) << step;
    }
    if (step % by_day(8, 1) == 0) {
      ASSERT_EQ(on.audit(), nullptr) << step;
    }
  }
  EXPECT_GE(lent, 20u);
  EXPECT_GE(refused_sleeps, 10u);
  EXPECT_GE(refused_wakes, 3u);
  EXPECT_GE(common_sleeps, 3u);
  EXPECT_GE(lent_by_restore, 3u);
}

template <typename Recipe>
struct sleeping : testing::Test {
  using allocator = caching_allocator<Recipe, simulated_device, extension::private_pools,
                                      extension::checkpoints, extension::sleep_mode>;
  allocator device_memory{simulated_device{simulated_device::options{.capacity = 200_MiB}}};

  void* in(const extension::private_pool<allocator>& pool, std::size_t bytes) {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    return device_memory.try_allocate(bytes, one);
  }
};
using recipes = testing::Types<pytorch_family::expandable, stitched,
                               with<pytorch_family::expandable, prefer_pages<page_preference::huge_first>,
                                    pool_together, grow_by_mapping<256_KiB, 6_MiB>>,
                               torch_npu<"expandable_segments:True">>;
TYPED_TEST_SUITE(sleeping, recipes);

TYPED_TEST(sleeping, serves_no_request_until_it_wakes) {
  auto& on = this->device_memory;
  void* const live = on.allocate(30_MiB, one);
  void* const freed = on.allocate(10_MiB, one);
  extension::private_pool pool(on);
  void* const inside = this->in(pool, 5_MiB);
  ASSERT_TRUE(sleep_mode_of(on).sleep({}, discard));
  EXPECT_EQ(on.try_allocate(1_MiB, one), nullptr);
  EXPECT_STREQ(
      on.make_out_of_memory(1_MiB, one).what(),
      "tessera: out of memory: 1.00 MiB (1048576 bytes) requested on stream 1; needs a block of 1.00 MiB\n"
      "  the pool that serves them sleeps, so wake it first");
  EXPECT_FALSE(on.try_record_stream(live, two));
  EXPECT_FALSE(on.reuse_in_place(live, 30_MiB, one));
  EXPECT_TRUE(on.try_record_stream(inside, two)) << "its pool is awake";
  EXPECT_NE(this->in(pool, 1_MiB), nullptr);
  on.deallocate(freed);
  EXPECT_EQ(on.audit(), nullptr);
  const extension::sleep_result woke = sleep_mode_of(on).wake();
  ASSERT_TRUE(woke) << woke.why;
  EXPECT_NE(on.try_allocate(1_MiB, one), nullptr);
  EXPECT_TRUE(on.try_record_stream(live, two));
  on.deallocate(live);
  EXPECT_EQ(on.audit(), nullptr);
}

TYPED_TEST(sleeping, refuses_to_record_streams_in_words) {
  void* const live = this->device_memory.allocate(30_MiB, one);
  ASSERT_TRUE(sleep_mode_of(this->device_memory).sleep(discard));
  EXPECT_DEATH((void)this->device_memory.record_stream(live, two),
               "record_stream: the pool of the block sleeps; wake it first");
}

TYPED_TEST(sleeping, says_why_it_is_refused) {
  auto& on = this->device_memory;
  extension::private_pool pool(on);
  void* const inside = this->in(pool, 5_MiB);
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    EXPECT_STREQ(sleep_mode_of(on).sleep(discard).why,
                 "an extension forbids waiting for the device, for example while a graph is recorded");
  }
  EXPECT_STREQ(sleep_mode_of(on).sleep(pool_id{123456789}, discard).why, "no such pool exists");
  EXPECT_STREQ(sleep_mode_of(on).wake(pool.id()).why, "the pool does not sleep");
  ASSERT_TRUE(sleep_mode_of(pool).sleep(discard));
  EXPECT_STREQ(sleep_mode_of(pool).sleep(discard).why, "the pool sleeps");
  EXPECT_FALSE(pools(on).open(pool.id(), extension::scope_kind::capture));
  EXPECT_DEATH(const extension::pool_scope scope(pool, extension::scope_kind::capture),
               "the pool sleeps; wake it first");
  const extension::sleep_result nothing = sleep_mode_of(on).sleep(discard);
  EXPECT_TRUE(nothing && nothing.bytes == 0) << "the default pools have no memory";
  on.deallocate(inside);
}

TYPED_TEST(sleeping, takes_nothing_that_a_pool_lends) {
  auto& on = this->device_memory;
  extension::private_pool pool(on, {.serves_on_oom = true});
  on.deallocate(this->in(pool, 80_MiB));
  (void)on.allocate(95_MiB, one);
  void* const lent = on.allocate(40_MiB, one);
  ASSERT_EQ(holder_of(on, lent), pool.id());
  const std::size_t used = on.provider().used();
  const char* const lends =
      "a live block of the pool serves a request of the default pools: free it, or put all pools to sleep";
  EXPECT_STREQ(sleep_mode_of(pool).sleep(discard).why, lends);
  EXPECT_STREQ(sleep_mode_of(pool).sleep(save).why, lends);
  EXPECT_TRUE(on.try_record_stream(lent, two)) << "its memory is there";
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    EXPECT_FALSE(on.reuse_in_place(lent, 40_MiB, one)) << "the pool did not get it back";
  }
  EXPECT_EQ(on.provider().used(), used);
  ASSERT_TRUE(sleep_mode_of(on).sleep({}, discard));
  EXPECT_STREQ(sleep_mode_of(pool).sleep(save).why, lends) << "the default pools wake without it";
  EXPECT_STREQ(sleep_mode_of(on).sleep(save).why, lends);
  ASSERT_TRUE(sleep_mode_of(on).wake(pool_id{}));
  ASSERT_TRUE(sleep_mode_of(on).sleep(save));
  EXPECT_EQ(on.provider().used(), 0u);
  EXPECT_STREQ(
      sleep_mode_of(on).wake(pool_id{}).why,
      "a pool that sleeps has a live block of the default pools: wake that pool first, or all pools");
  ASSERT_TRUE(sleep_mode_of(pool).wake());
  ASSERT_TRUE(sleep_mode_of(on).wake(pool_id{}));
  ASSERT_TRUE(sleep_mode_of(on).sleep(discard));
  ASSERT_TRUE(sleep_mode_of(on).wake());
  on.deallocate(lent);
  EXPECT_TRUE(sleep_mode_of(pool).sleep(discard));
  EXPECT_EQ(on.audit(), nullptr);
}

TYPED_TEST(sleeping, takes_nothing_that_a_restored_pool_lent) {
  auto& on = this->device_memory;
  extension::private_pool pool(on, {.serves_on_oom = true});
  on.deallocate(this->in(pool, 80_MiB));
  (void)on.allocate(95_MiB, one);
  void* const lent = on.allocate(40_MiB, one);
  const extension::pool_checkpoint made = checkpoints_of(pool).record();
  void* const later = on.allocate(30_MiB, one);
  ASSERT_EQ(holder_of(on, later), pool.id());
  ASSERT_TRUE(checkpoints_of(pool).restore(made));
  EXPECT_FALSE(on.try_deallocate(later));
  EXPECT_FALSE(sleep_mode_of(pool).sleep(discard)) << "the restored block is the one of the request";
  on.deallocate(lent);
  EXPECT_TRUE(sleep_mode_of(pool).sleep(discard));
}

TYPED_TEST(sleeping, wakes_all_its_memory_or_none) {
  auto& on = this->device_memory;
  const auto reserved = [&on] { return on.current_usage().reserved; };
  extension::private_pool pool(on);
  void* const inside = this->in(pool, 120_MiB);
  const extension::sleep_result slept = sleep_mode_of(pool).sleep(save, one);
  ASSERT_TRUE(slept) << slept.why;
  // A part of the device is in use, another part is cached.
  void* const taken = on.allocate(100_MiB, one);
  on.deallocate(on.allocate(60_MiB, one));
  const extension::sleep_result woke = sleep_mode_of(pool).wake();
  EXPECT_FALSE(woke);
  EXPECT_TRUE(sleep_mode_of(pool).is_asleep());
  EXPECT_EQ(woke.missing, slept.bytes + reserved() - 200_MiB) << "after the cache was emptied";
  EXPECT_EQ(on.audit(), nullptr);
  on.deallocate(taken);
  const extension::sleep_result again = sleep_mode_of(pool).wake();
  EXPECT_TRUE(again) << again.why;
  EXPECT_EQ(again.bytes, slept.bytes);
  EXPECT_EQ(reserved(), slept.bytes);
  on.deallocate(inside);
}

TYPED_TEST(sleeping, keeps_the_limit_of_the_allocator) {
  auto& on = this->device_memory;
  extension::private_pool pool(on);
  (void)this->in(pool, 60_MiB);
  const extension::sleep_result slept = sleep_mode_of(pool).sleep(discard);
  (void)on.allocate(50_MiB);
  on.policies().growth.limit = memory_limit(100_MiB);
  const extension::sleep_result woke = sleep_mode_of(pool).wake();
  EXPECT_STREQ(woke.why, "the limit of the allocator leaves too little");
  EXPECT_EQ(woke.missing, slept.bytes + on.current_usage().reserved - 100_MiB);
  on.policies().growth.limit = {};
  EXPECT_TRUE(sleep_mode_of(pool).wake());
}

TYPED_TEST(sleeping, gives_its_addresses_back_if_all_blocks_are_freed) {
  auto& on = this->device_memory;
  {
    extension::private_pool pool(on);
    void* const inside = this->in(pool, 30_MiB);
    ASSERT_TRUE(sleep_mode_of(pool).sleep(save));
    on.deallocate(inside);
  }
  on.trim();
  EXPECT_EQ(on.current_usage().unbacked, 0u);
  EXPECT_EQ(on.provider().held().reserved, 0u);
  EXPECT_EQ(on.audit(), nullptr);
  on.deallocate(on.allocate(10_MiB));
  ASSERT_TRUE(sleep_mode_of(on).sleep(discard)) << "the cache is emptied";
  EXPECT_EQ(on.provider().used(), 0u);
  ASSERT_TRUE(sleep_mode_of(on).wake());
  EXPECT_EQ(on.provider().used(), 0u) << "nothing needs memory";
}

TYPED_TEST(sleeping, waits_for_the_work_on_its_blocks) {
  auto& on = this->device_memory;
  extension::private_pool pool(on);
  void* const live = this->in(pool, 10_MiB);
  void* const pending = this->in(pool, 10_MiB);
  ASSERT_TRUE(on.record_stream(live, two) && on.record_stream(pending, two));
  on.provider().submit(one, 1'000'000'000);
  on.provider().submit(two, 2'000'000'000);
  const std::uint64_t end = on.provider().now_ns() + 2'000'000'000;
  on.deallocate(pending);
  ASSERT_TRUE(sleep_mode_of(pool).sleep(discard));
  EXPECT_GE(on.provider().now_ns(), end);
  EXPECT_EQ(on.current_usage().pending(), 0u);
  on.deallocate(live);
  on.process_events();
  EXPECT_EQ(on.audit(), nullptr);
}

TYPED_TEST(sleeping, is_reported) {
  using watched =
      caching_allocator<TypeParam, simulated_device, extension::private_pools, extension::checkpoints,
                        extension::sleep_mode, extension::observer<history<>>>;
  watched on;
  extension::private_pool pool(on);
  {
    const extension::pool_scope scope(pool, one, extension::scope_kind::capture);
    (void)on.allocate(30_MiB, one);
  }
  const std::int64_t reserved = on.statistics().all.reserved_bytes.current;
  const extension::sleep_result slept = sleep_mode_of(pool).sleep(discard);
  const auto bytes = static_cast<std::int64_t>(slept.bytes);
  EXPECT_EQ(on.statistics().unbacked_bytes.current, bytes);
  EXPECT_EQ(on.statistics().all.reserved_bytes.current, reserved - bytes);
  EXPECT_EQ(on.statistics().device_bytes.current, reserved - bytes);
  const auto all_are = [&on](bool asleep) {
    for_each_block(on, [&](const segment_view& s, const block_view&) { EXPECT_EQ(s.is_unbacked, asleep); });
  };
  all_are(true);
  ASSERT_TRUE(sleep_mode_of(pool).wake());
  all_are(false);
  EXPECT_EQ(on.statistics().unbacked_bytes.current, 0);
  EXPECT_EQ(on.statistics().unbacked_bytes.peak, bytes);
  EXPECT_EQ(on.statistics().all.reserved_bytes.current, reserved);
  std::size_t went = 0, came = 0;
  observer_of(on).for_each([&](const auto& entry) {
    using action = allocator_event::action;
    went += entry.event.what == action::sleep ? entry.event.bytes : 0;
    came += entry.event.what == action::wake ? entry.event.bytes : 0;
  });
  EXPECT_EQ(went, slept.bytes);
  EXPECT_EQ(came, slept.bytes);
}

TEST(sleeping_configured, is_refused_in_words_over_whole_segments) {
  using configured_type =
      configured<pytorch_family, caching_allocator<pytorch<>, simulated_device, extension::private_pools,
                                                   extension::checkpoints, extension::sleep_mode>>;
  configured_type segments{configured_type::settings_type{}};
  EXPECT_STREQ(sleep_mode_of(segments).sleep(discard).why,
               "sleep needs a recipe that maps memory into ranges, such as stitched");
  configured_type ranges{configured_type::settings_type{.expandable_segments = true}};
  extension::private_pool pool(ranges);
  (void)ranges.allocate(10_MiB);
  EXPECT_EQ(sleep_mode_of(ranges).sleep(save).bytes, 20_MiB);
  EXPECT_TRUE(sleep_mode_of(ranges).wake());
}

/// A provider that cannot copy.
class without_copies : public simulated_device {
  using simulated_device::copy_to_device, simulated_device::copy_to_host;
};
static_assert(!copying_provider<without_copies>);

TEST(sleeping_without_copies, only_discards) {
  caching_allocator<stitched, without_copies, extension::private_pools, extension::checkpoints,
                    extension::sleep_mode>
      on;
  (void)on.allocate(10_MiB);
  EXPECT_STREQ(sleep_mode_of(on).sleep(save).why,
               "the provider is no copying_provider, so it cannot save contents");
  EXPECT_TRUE(sleep_mode_of(on).sleep(discard));
  EXPECT_TRUE(sleep_mode_of(on).wake());
}

/// The resident bytes of the mappings of this process, as /proc/self/smaps has them, in [begin, end).
std::size_t resident(const void* begin, std::size_t bytes) {
  std::ifstream file("/proc/self/smaps");
  const auto from = reinterpret_cast<std::uintptr_t>(begin);
  bool inside = false;
  std::size_t sum = 0;
  for (std::string line; std::getline(file, line);) {
    unsigned long long low = 0, high = 0, kib = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &low, &high) == 2) inside = low < from + bytes && high > from;
    if (inside && std::sscanf(line.c_str(), "Rss: %llu kB", &kib) == 1) sum += kib * 1024;
  }
  return sum;
}

TEST(sleeping_host_memory, leaves_the_process_and_comes_back) {
  caching_allocator<stitched, host_pinned, extension::private_pools, extension::checkpoints,
                    extension::sleep_mode>
      on(host(256_MiB));
  auto* const p = static_cast<std::byte*>(on.allocate(64_MiB));
  const filled block{p, 64_MiB, 1};
  block.fill();
  EXPECT_GE(resident(p, 64_MiB), 64_MiB);
  ASSERT_TRUE(sleep_mode_of(on).sleep(save));
  EXPECT_EQ(resident(p, 64_MiB), 0u);
  EXPECT_EQ(on.provider().used(), 0u);
  ASSERT_TRUE(sleep_mode_of(on).wake());
  EXPECT_GE(resident(p, 64_MiB), 64_MiB);
  EXPECT_TRUE(block.is_intact());
}

/// Copies take time, and pass through buffers.
struct slow_copies : simulated_device {
  using simulated_device::simulated_device;
  static constexpr bool copies_page_locked = true;
  bool copy_to_host(void* to, const void* from, std::size_t bytes, stream_id s) noexcept {
    return simulated_device::copy_to_host(to, from, bytes, s) && (submit(s, 1'000'000), true);
  }
};
TEST(sleeping_locked, discards_the_events_of_copies) {
  locked<caching_allocator<stitched, slow_copies, extension::sleep_mode>> pool;
  (void)pool.allocate(20_MiB);
  auto sleeper = pool.get<extension::sleep_mode>();
  EXPECT_TRUE(sleeper.sleep(save));
  EXPECT_TRUE(sleeper.wake());
  EXPECT_EQ(pool.visit_provider([](slow_copies& device) { return device.live_events(); }), 0u);
}

TEST(sleeping_threads, do_not_disturb_pools_that_are_awake) {
  constexpr int rounds = by_day(100, 1000);
  locked<caching_allocator<stitched, host_pinned, extension::private_pools, extension::checkpoints,
                           extension::sleep_mode>>
      on(host(256_MiB));
  extension::private_pool pool(on);
  const stream_id mine = on.visit_provider([](auto& device) { return device.create_stream(); });
  std::vector<filled> kept;
  {
    const extension::pool_scope scope(pool, mine, extension::scope_kind::capture);
    for (unsigned i = 0; i < 4; ++i) {
      kept.push_back({static_cast<std::byte*>(on.allocate(1_MiB + i, mine)), 1_MiB + i, i});
      kept.back().fill();
    }
  }
  std::atomic<bool> ends{false}, is_wrong{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      while (!ends) {
        const std::size_t bytes = 1 + random() % 300'000;
        auto* const p = static_cast<std::byte*>(on.try_allocate(bytes));
        if (p == nullptr) continue;
        const filled f{p, bytes, t};
        f.fill();
        if (!f.is_intact()) is_wrong = true;
        on.deallocate(p);
      }
    });
  }
  for (int round = 0; round < rounds; ++round) {
    const bool saves = round % 3 != 0;
    ASSERT_TRUE(sleep_mode_of(pool).sleep(saves ? save : discard, mine));
    if (round % 16 == 0) on.trim();
    ASSERT_TRUE(sleep_mode_of(pool).wake(mine));
    if (saves && round % 100 == 1) {
      for (const filled& f : kept) EXPECT_TRUE(f.is_intact());
    }
    if (!saves) {
      for (const filled& f : kept) f.fill();
    }
  }
  for (const filled& f : kept) {
    EXPECT_TRUE(f.is_intact());
    on.deallocate(f.at);
  }
  ends = true;
  for (std::thread& t : threads) t.join();
  EXPECT_FALSE(is_wrong);
  EXPECT_EQ(on.audit(), nullptr);
}

/// Host memory that is copied through page-locked buffers.
struct page_locked_host : provider_adaptor<host_pinned> {
  using provider_adaptor<host_pinned>::provider_adaptor;
  static constexpr bool copies_page_locked = true;
};

TEST(sleeping_threads, may_free_blocks_and_trim_meanwhile) {
  host_pinned memory = host(256_MiB);
  locked<caching_allocator<stitched, page_locked_host, extension::private_pools, extension::checkpoints,
                           extension::sleep_mode>>
      on{page_locked_host(memory)};
  for (int round = 0; round < by_day(5, 30); ++round) {
    extension::private_pool pool(on);
    std::vector<filled> blocks;
    {
      const extension::pool_scope scope(pool, extension::scope_kind::capture);
      for (unsigned i = 0; i < 6; ++i) {
        blocks.push_back({static_cast<std::byte*>(on.allocate(3_MiB)), 3_MiB, i});
        blocks.back().fill();
      }
    }
    std::thread other([&] {
      for (std::size_t i = 1; i < blocks.size(); ++i) {
        on.deallocate(blocks[i].at);
        on.trim();
        on.process_events();
      }
    });
    const extension::sleep_result slept = sleep_mode_of(pool).sleep(save);
    EXPECT_TRUE(slept) << slept.why;
    const extension::sleep_result woke = sleep_mode_of(pool).wake();
    EXPECT_TRUE(woke) << woke.why;
    other.join();
    EXPECT_TRUE(blocks[0].is_intact());
    on.deallocate(blocks[0].at);
    EXPECT_EQ(on.audit(), nullptr);
  }
}

}  // namespace
