// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/detail/backends/mapped_ranges.hpp>
#include <tessera/detail/blocks/block_manager.hpp>
#include <tessera/detail/blocks/counters.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/detail/blocks/free_list_map.hpp>
#include <tessera/detail/extensions/extension.hpp>
#include <tessera/detail/policies/stream_sharing.hpp>
#include <tessera/provider/simulated_device.hpp>

#include "../traits_of_tests.hpp"

namespace {

using namespace tessera;
using namespace tessera::detail;

no_extensions none;

template <typename Traits>
using manager_of = block_manager<simulated_device, Traits>;
using manager_type = manager_of<traits_of_tests>;
constexpr page_order normal{{page_kind::normal}, 1};
using sizes = std::vector<std::size_t>;

TEST(free_list_map, erases_lists_without_users_before_their_number_doubles) {
  free_list_map lists;
  free_list* const owner = lists.find_or_create(stream_id{1'000'000});
  ASSERT_NE(owner, nullptr);
  owner->users = 1;
  std::size_t max = 0;
  for (std::uint64_t key = 0; key < 1000; ++key) {
    ASSERT_NE(lists.find_or_create(stream_id{key}), nullptr);
    std::size_t count = 0;
    for (const free_list* list = lists.first(); list != nullptr; list = list->next) {
      ++count;
      if (list->next != nullptr) {
        ASSERT_LT(list->key, list->next->key);
      }
    }
    max = count > max ? count : max;
  }
  EXPECT_EQ(max, 18u);  // twice the one that is kept, and 16
  EXPECT_EQ(lists.find_or_create(stream_id{1'000'000}), owner);
}

/// Segments of some sizes in one free list, and the ones that are released.
struct oversize_blocks {
  manager_type manager{simulated_device{}, none};
  free_list* list = manager.find_or_create_list(manager.own(), 0, stream_id{});
  sizes released;

  explicit oversize_blocks(const sizes& all) {
    for (const std::size_t size : all) EXPECT_NE(manager.acquire(*list, size, true, normal), nullptr);
  }
  ~oversize_blocks() { manager.release_all(); }
  bool release(std::size_t wanted, std::size_t oversize) {
    const auto release_one = [this](block& b) {
      const std::size_t bytes = manager.release(b);
      released.push_back(bytes);
      return bytes;
    };
    return release_largest<manager_type::order, false>(*list, wanted, oversize, release_one);
  }
};

TEST(release_largest, releases_the_block_that_fits_best) {
  oversize_blocks tested({40_MiB, 30_MiB, 20_MiB});
  EXPECT_TRUE(tested.release(25_MiB, 10_MiB));
  EXPECT_EQ(tested.released, sizes{30_MiB});
  EXPECT_TRUE(tested.release(1_MiB, 10_MiB));  // at least an oversize one
  EXPECT_EQ(tested.released, (sizes{30_MiB, 20_MiB}));
}

TEST(release_largest, releases_nothing_that_is_not_oversize) {
  oversize_blocks tested({8_MiB, 6_MiB});
  EXPECT_FALSE(tested.release(5_MiB, 10_MiB));
  EXPECT_EQ(tested.released, sizes{});
}

TEST(release_largest, releases_the_largest_until_they_are_just_enough) {
  oversize_blocks tested({10_MiB, 20_MiB, 10_MiB, 10_MiB, 6_MiB});
  EXPECT_TRUE(tested.release(30_MiB, 10_MiB));
  EXPECT_EQ(tested.released, (sizes{20_MiB, 10_MiB}));
  EXPECT_FALSE(tested.release(30_MiB, 10_MiB));
  EXPECT_EQ(tested.released, (sizes{20_MiB, 10_MiB, 10_MiB, 10_MiB}));
  EXPECT_FALSE(tested.release(30_MiB, 10_MiB));
  EXPECT_EQ(tested.released.size(), 4u);
}

TEST(release_largest, releases_no_part_of_a_segment) {
  oversize_blocks tested({40_MiB});
  ASSERT_TRUE(tested.manager.reserve_blocks());
  block* const whole = tested.manager.best_fit(*tested.list, 1_MiB);
  (void)tested.manager.allocate(*whole, 10_MiB, 10_MiB, 0, false, {});
  EXPECT_FALSE(tested.release(20_MiB, 10_MiB));
  EXPECT_FALSE(tested.release(60_MiB, 10_MiB));
  EXPECT_EQ(tested.released, sizes{});
}

TEST(block_manager, counts_the_age_of_an_idle_segment_in_searches_of_its_pool) {
  oversize_blocks tested({10_MiB});
  block* const whole = tested.manager.best_fit(*tested.list, 10_MiB);
  EXPECT_EQ(tested.manager.age(*whole), 1u);
  (void)tested.manager.best_fit(*tested.list, 50_MiB);
  EXPECT_EQ(tested.manager.age(*whole), 2u);
  ASSERT_TRUE(tested.manager.mark_idle(*whole));
  EXPECT_EQ(tested.manager.age(*whole), 0u);
}

struct placing_traits : traits_of_tests {
  static constexpr bool places_blocks = true;
};
TEST(block_manager, splits_from_the_middle_and_counts_both_rests) {
  manager_of<placing_traits> manager{simulated_device{}, none};
  block* const whole =
      manager.acquire(*manager.find_or_create_list(manager.own(), 0, stream_id{}), 10_MiB, false, normal);
  ASSERT_TRUE(whole != nullptr && manager.reserve_blocks(4));
  const block& middle = manager.allocate(*whole, 2_MiB, 2_MiB, 4_MiB, false, {});
  EXPECT_EQ(middle.prev->size, 4_MiB);
  EXPECT_EQ(middle.next->size, 4_MiB);
  EXPECT_EQ(manager.counters().report(0).all.inactive_split, (counter{2, 2, 2, 0}));
  const block& inner = manager.allocate(*middle.next, 1_MiB, 1_MiB, 1_MiB, false, {});
  EXPECT_EQ(manager.counters().report(0).all.inactive_split.current, 3);
  EXPECT_EQ(manager.counters().report(0).all.inactive_split_bytes.current, std::int64_t{7_MiB});
  EXPECT_EQ(manager.deallocate(reinterpret_cast<void*>(inner.address)), free_result::free);
  EXPECT_EQ(manager.deallocate(reinterpret_cast<void*>(middle.address)), free_result::free);
  EXPECT_EQ(manager.counters().report(0).all.inactive_split.current, 0);
  EXPECT_EQ(manager.counters().report(0).all.inactive_split_bytes.current, 0);
  manager.release_all();
}

struct range_traits : traits_of_tests {
  static constexpr bool has_ranges = true;
  static constexpr bool places_blocks = true;
};
using range_manager = manager_of<range_traits>;

TEST(mapped_ranges, release_parts_of_a_range) {
  range_manager manager{simulated_device{}, none};
  mapped_ranges<range_manager> ranges(manager);
  free_list* const list = manager.find_or_create_list(manager.own(), 0, stream_id{});
  block* const all = ranges.insert_range(*list, 1_GiB, 100_MiB);
  ASSERT_NE(all, nullptr);
  ASSERT_TRUE(manager.reserve_blocks(8));
  block& first = ranges.mark_mapped(*all, 1_GiB, 60_MiB);
  (void)manager.allocate(first, 10_MiB, 10_MiB, 20_MiB, false, {});
  sizes offered;
  const auto refuse = [&](block& b) {
    offered.push_back(b.size);
    return std::size_t{0};
  };
  using order = range_manager::order;
  EXPECT_FALSE((release_largest<order, true>(*list, 25_MiB, 10_MiB, refuse)));
  EXPECT_EQ(offered, sizes{30_MiB});
  EXPECT_FALSE((release_largest<order, true>(*list, 50_MiB, 10_MiB, refuse)));
  EXPECT_EQ(offered, (sizes{30_MiB, 30_MiB, 20_MiB}));
}

TEST(mapped_ranges, are_in_the_order_of_addresses) {
  range_manager manager{simulated_device{}, none};
  mapped_ranges<range_manager> ranges(manager);
  free_list* const list = manager.find_or_create_list(manager.own(), 0, stream_id{});
  ASSERT_NE(list, nullptr);
  for (const std::uintptr_t address : {2_GiB, 4_GiB, 1_GiB, 3_GiB})
    ASSERT_NE(ranges.insert_range(*list, address, 1_MiB), nullptr);
  sizes found;
  for_each_unmapped(*list, [&](const block& b) { found.push_back(b.address); });
  EXPECT_EQ(found, (sizes{1_GiB, 2_GiB, 3_GiB, 4_GiB}));
}

TEST(mapped_ranges, keep_the_age_of_both_rests_beside_a_block) {
  range_manager manager{simulated_device{}, none};
  mapped_ranges<range_manager> ranges(manager);
  free_list* const list = manager.find_or_create_list(manager.own(), 0, stream_id{});
  ASSERT_NE(list, nullptr);
  block* const range = ranges.insert_range(*list, 1_GiB, 10_MiB);
  ASSERT_TRUE(range != nullptr && manager.reserve_blocks(4));
  for (int i = 0; i < 3; ++i) (void)manager.best_fit(*list, 10_MiB);
  block& free = ranges.mark_mapped(*range, 1_GiB, 10_MiB);
  for (int i = 0; i < 7; ++i) (void)manager.best_fit(*list, 10_MiB);
  const block& middle = manager.extract(free, 4_MiB, 2_MiB);
  EXPECT_EQ(manager.age(*middle.prev), 7u);
  EXPECT_EQ(manager.age(*middle.next), 7u);
}

struct sharing_traits : traits_of_tests {
  static constexpr std::size_t pools = 2;
  static constexpr bool reuses_across_streams = true;
  using group = pool_group_of<pools>;
  using counters = full_counters<pools>;
};
TEST(stream_sharing, finds_the_smallest_run_and_the_lowest_among_equals) {
  using sharing_manager = manager_of<sharing_traits>;
  sharing_manager manager{simulated_device{}, none};
  stream_sharing<sharing_manager> sharing(manager);
  free_list* const list = manager.find_or_create_list(manager.own(), 0, stream_id{1});
  free_list* const elsewhere = manager.find_or_create_list(manager.own(), 1, stream_id{1});
  std::uintptr_t address = 1_GiB;
  for (const std::size_t size : {30_MiB, 20_MiB, 20_MiB, 20_MiB, 10_MiB}) {
    ASSERT_NE(manager.insert_segment(*list, address, size, false), nullptr);
    address += 1_GiB;
  }
  ASSERT_NE(manager.insert_segment(*elsewhere, 99_GiB, 15_MiB, false), nullptr);
  const auto any = [](const block&) { return true; };
  const auto found = sharing.smallest_run(list->where, 15_MiB, any);
  ASSERT_NE(found.first, nullptr);
  EXPECT_EQ(found.first->address, 2_GiB);
  EXPECT_EQ(found.bytes, 20_MiB);
  EXPECT_EQ(sharing.smallest_run(list->where, 20_MiB + 1, any).first->address, 1_GiB);
  EXPECT_EQ(sharing.smallest_run(list->where, 10_MiB, any).first->address, 5_GiB);
  EXPECT_EQ(sharing.smallest_run(list->where, 31_MiB, any).first, nullptr);
  EXPECT_EQ(sharing.smallest_run(elsewhere->where, 1_MiB, any).first->address, 99_GiB);
  EXPECT_FALSE(sharing.has_several_lists(list->where));
  ASSERT_NE(manager.find_or_create_list(manager.own(), 0, stream_id{2}), nullptr);
  EXPECT_TRUE(sharing.has_several_lists(list->where));
  EXPECT_FALSE(sharing.has_several_lists(elsewhere->where));
}

}  // namespace
