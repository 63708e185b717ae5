// SPDX-License-Identifier: Apache-2.0
// A policy and a backend add a way to grow, in files of their own.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/law/policy_laws.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "bump_growth.hpp"

namespace {

using namespace tessera;

using recipe = with<pytorch<>, grow_by_bumping>;
using pool_type = caching_allocator<recipe, simulated_device>;
static_assert(law::policy(grow_by_bumping{}));
static_assert(provider_for<simulated_device, recipe>);

std::uintptr_t number(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

/// Intervals of addresses that do not overlap.
class intervals {
 public:
  [[nodiscard]] bool add(std::uintptr_t begin, std::size_t bytes) {
    const auto next = ends_.lower_bound(begin);
    if (next != ends_.end() && next->first < begin + bytes) return false;
    if (next != ends_.begin() && std::prev(next)->second > begin) return false;
    ends_[begin] = begin + bytes;
    return true;
  }

 private:
  std::map<std::uintptr_t, std::uintptr_t> ends_;
};

TEST(bump_growth, hands_out_neighbouring_addresses_and_reuses_none) {
  pool_type pool;
  void* const p = pool.allocate(5_MiB);
  void* const q = pool.allocate(3_MiB);
  EXPECT_EQ(number(q), number(p) + 5_MiB);
  pool.deallocate(q);
  pool.deallocate(p);
  void* const r = pool.allocate(3_MiB);
  EXPECT_EQ(number(r), number(p) + 8_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.deallocate(r);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_EQ(pool.provider().used(), 0u);
}

TEST(bump_growth, runs_a_random_program_with_streams) {
  struct held {
    void* address;
    std::size_t bytes;
  };
  std::mt19937_64 random(5);
  pool_type pool;
  std::vector<held> live;
  intervals given;
  for (int i = 0; i < 4000; ++i) {
    if (live.size() < 60 && random() % 2 == 0) {
      const std::size_t bytes = 1 + random() % (i % 16 == 0 ? 30_MiB : 300_KiB);
      void* const p = pool.allocate(bytes, stream_id{random() % 3});
      ASSERT_TRUE(given.add(number(p), bytes)) << i;
      if (i % 5 == 0) {
        EXPECT_TRUE(pool.record_stream(p, stream_id{7}));
      }
      live.push_back({p, bytes});
    } else if (!live.empty()) {
      const std::size_t at = random() % live.size();
      pool.deallocate(live[at].address, live[at].bytes);
      live[at] = live.back();
      live.pop_back();
    }
    if (i % 50 == 0) {
      ASSERT_STREQ(pool.audit(), nullptr) << i;
    }
    if (i % 1000 == 999) {  // an address may return after its segment is released
      pool.trim();
      given = {};
      for (const held& h : live) ASSERT_TRUE(given.add(number(h.address), h.bytes));
    }
  }
  ASSERT_STREQ(pool.audit(), nullptr);
  const usage now = pool.current_usage();
  EXPECT_EQ(now.reserved, now.active + now.cached);
  for (const held& h : live) pool.deallocate(h.address);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_EQ(pool.statistics().all.inactive_split_bytes.current, 0);
  EXPECT_EQ(pool.provider().used(), 0u);
}

TEST(bump_growth, recovers_by_releasing_idle_segments) {
  pool_type pool{simulated_device{simulated_device::options{.capacity = 128_MiB}}};
  void* const p = pool.allocate(60_MiB);
  void* const q = pool.allocate(60_MiB);
  EXPECT_EQ(pool.try_allocate(60_MiB), nullptr);
  pool.deallocate(p);
  void* const r = pool.try_allocate(60_MiB);
  EXPECT_NE(r, nullptr) << "the idle segment went back first";
  EXPECT_EQ(pool.statistics().num_ooms, 1u);
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.deallocate(q);
  pool.deallocate(r);
}

}  // namespace
