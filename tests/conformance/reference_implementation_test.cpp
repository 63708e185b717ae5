// SPDX-License-Identifier: Apache-2.0
// The allocator and the reference implementation give the same addresses and statistics.
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/extension/count_totals.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../../bench/reference_implementation.hpp"
#include "by_day.hpp"

namespace {

using namespace tessera;
using tested_allocator = caching_allocator<pytorch<>, simulated_device>;
using reference_allocator = bench::reference_implementation<simulated_device>;

bool equal(const pool_statistics& a, const pool_statistics& b) {
  return a.allocation == b.allocation && a.allocated_bytes == b.allocated_bytes && a.active == b.active &&
         a.active_bytes == b.active_bytes && a.requested_bytes == b.requested_bytes &&
         a.segment == b.segment && a.reserved_bytes == b.reserved_bytes &&
         a.inactive_split == b.inactive_split && a.inactive_split_bytes == b.inactive_split_bytes;
}
bool equal(const statistics<2>& a, const statistics<2>& b) {
  return equal(a.all, b.all) && equal(a.pool[0], b.pool[0]) && equal(a.pool[1], b.pool[1]);
}

template <typename Pool>
concept has_statistics = requires(const Pool& pool) { pool.statistics(); };

struct workload {
  std::size_t max_live;
  std::size_t last_in_first_out;  // of 10 frees
  std::size_t recorded;           // of 100 blocks
  std::size_t operations;
};

class reference_implementation : public testing::TestWithParam<workload> {};

TEST_P(reference_implementation, gives_the_same_addresses_and_statistics) {
  const workload& w = GetParam();
  for (std::uint64_t seed : {1u, 2u, 3u}) {
    std::mt19937_64 random(seed);
    const auto bytes = [&]() -> std::size_t {
      if (seed == 1) return 512 * (1 + random() % 8);
      if (seed == 2) return (std::size_t{1} << (9 + random() % 14)) + random() % 700;
      return 1 + random() % 12'000'000;
    };
    tested_allocator tested;
    reference_allocator reference{simulated_device{}};
    std::vector<void*> live;
    for (std::size_t i = 0; i < w.operations; ++i) {
      const bool shrink = i % 5000 > 3500 && random() % 4 != 0;
      if (live.size() < w.max_live && !shrink && (live.size() < w.max_live / 2 || random() % 2 == 0)) {
        const std::size_t wanted = bytes();
        const stream_id stream{random() % 4 == 0 ? random() % 3 : 0};
        live.push_back(tested.try_allocate(wanted, stream));
        ASSERT_EQ(live.back(), reference.try_allocate(wanted, stream)) << "operation " << i;
        if (random() % 100 < w.recorded) {
          ASSERT_TRUE(tested.record_stream(live.back(), stream_id{7}));
          (void)reference.record_stream(live.back(), stream_id{7});
        }
      } else if (!live.empty()) {
        if (random() % 10 >= w.last_in_first_out) std::swap(live[random() % live.size()], live.back());
        tested.deallocate(live.back());
        reference.deallocate(live.back());
        live.pop_back();
      }
      if (w.recorded > 0 && i % 50 == 0) {
        const bool hold = random() % 2 == 0;
        tested.provider().hold_events(hold);
        reference.provider().hold_events(hold);
      }
      if (random() % 64 == 0) {
        ASSERT_TRUE(equal(tested.statistics(), reference.statistics())) << "operation " << i;
      }
      if (random() % 4096 == 0) {
        ASSERT_STREQ(tested.audit(), nullptr);
      }
    }
    for (void* p : live) {
      tested.deallocate(p);
      reference.deallocate(p);
    }
    ASSERT_TRUE(equal(tested.statistics(), reference.statistics()));
  }
}
INSTANTIATE_TEST_SUITE_P(workloads, reference_implementation,
                         testing::Values(workload{40, 0, 0, by_day(15'000, 60'000)},
                                         workload{40, 8, 0, by_day(15'000, 60'000)},
                                         workload{3, 5, 0, by_day(15'000, 60'000)},
                                         workload{60, 5, 20, by_day(15'000, 60'000)},
                                         workload{4000, 2, 0, by_day(15'000, 60'000)}));

// Policies get the same numbers from an allocator that counts totals only.
TEST(totals, are_those_of_the_statistics) {
  caching_allocator<pytorch<>, simulated_device> full;
  caching_allocator<pytorch<>, simulated_device, extension::count_totals> bare;
  std::mt19937_64 random(11);
  std::vector<void*> live;
  for (int i = 0; i < 50'000; ++i) {
    if (live.size() < 100 && random() % 2 == 0) {
      const std::size_t bytes = 1 + random() % 3'000'000;
      live.push_back(full.allocate(bytes));
      ASSERT_EQ(live.back(), bare.allocate(bytes));
      if (random() % 8 == 0) {
        ASSERT_TRUE(full.record_stream(live.back(), stream_id{1}));
        ASSERT_TRUE(bare.record_stream(live.back(), stream_id{1}));
      }
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      full.deallocate(live.back());
      bare.deallocate(live.back());
      live.pop_back();
    }
    ASSERT_EQ(full.current_usage(), bare.current_usage());
  }
  ASSERT_STREQ(bare.audit(), nullptr);
  static_assert(sizeof(bare) + 500 < sizeof(full));
  static_assert(has_statistics<decltype(full)> && !has_statistics<decltype(bare)>);
  for (void* p : live) {
    full.deallocate(p);
    bare.deallocate(p);
  }
}

}  // namespace
