// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/crossing_heap.hpp>
#include <tessera/detail/free_list.hpp>
#include <tessera/detail/heap.hpp>
#include <tessera/detail/homes.hpp>
#include <tessera/detail/range_heap.hpp>

namespace {

using namespace tessera;
using namespace tessera::detail;

TEST(homes, without_a_segment_go_before_their_number_doubles) {
  homes kept;
  free_list* const owner = kept.at(0, stream_id{1'000'000});
  ASSERT_NE(owner, nullptr);
  owner->segments = 1;
  std::size_t most = 0;
  for (std::uint64_t key = 0; key < 1000; ++key) {
    ASSERT_NE(kept.at(0, stream_id{key}), nullptr);
    std::size_t count = 0;
    for (const free_list* home = kept.first(); home != nullptr; home = home->next) {
      ++count;
      if (home->next != nullptr) {
        ASSERT_LT(home->key(), home->next->key());
      }
    }
    most = count > most ? count : most;
  }
  EXPECT_EQ(most, 18u);  // twice the one that is kept, and 16
  EXPECT_EQ(kept.at(0, stream_id{1'000'000}), owner);
}

/// Segments of some sizes in one home, and which of them go.
template <bool Ranges>
struct oversize_blocks {
  heap<1, Ranges> blocks;
  free_list* home = blocks.home(0, stream_id{});
  std::vector<std::size_t> gone;

  explicit oversize_blocks(std::vector<std::size_t> sizes) {
    std::uintptr_t address = 1_GiB;
    for (const std::size_t size : sizes) {
      EXPECT_NE(blocks.add_segment(*home, address, size, true), nullptr);
      address += 1_GiB;
    }
  }
  bool release(std::size_t wanted, std::size_t oversize) {
    return blocks.release_fitting(*home, wanted, oversize, [&](block& b) {
      const std::size_t bytes = b.size;
      gone.push_back(bytes);
      blocks.take_out(b);
      blocks.remove_segment(b);
      return bytes;
    });
  }
};
using sizes = std::vector<std::size_t>;

TEST(heap, releases_the_block_that_fits_best) {
  oversize_blocks<false> tested({40_MiB, 30_MiB, 20_MiB});
  EXPECT_TRUE(tested.release(25_MiB, 10_MiB));
  EXPECT_EQ(tested.gone, sizes{30_MiB});
  EXPECT_TRUE(tested.release(1_MiB, 10_MiB));  // at least an oversize one
  EXPECT_EQ(tested.gone, (sizes{30_MiB, 20_MiB}));
}

TEST(heap, releases_nothing_that_is_not_oversize) {
  oversize_blocks<false> tested({8_MiB, 6_MiB});
  EXPECT_FALSE(tested.release(5_MiB, 10_MiB));
  EXPECT_EQ(tested.gone, sizes{});
}

TEST(heap, releases_the_largest_until_they_are_just_enough) {
  oversize_blocks<false> tested({10_MiB, 20_MiB, 10_MiB, 10_MiB, 5_MiB});
  EXPECT_TRUE(tested.release(30_MiB, 10_MiB));
  EXPECT_EQ(tested.gone, (sizes{20_MiB, 10_MiB}));
  EXPECT_FALSE(tested.release(30_MiB, 10_MiB));
  EXPECT_EQ(tested.gone, (sizes{20_MiB, 10_MiB, 10_MiB, 10_MiB}));
  EXPECT_FALSE(tested.release(30_MiB, 10_MiB));
  EXPECT_EQ(tested.gone.size(), 4u);
}

TEST(heap, releases_no_part_of_a_segment) {
  oversize_blocks<false> tested({40_MiB});
  ASSERT_TRUE(tested.blocks.make_room());
  block* const whole = tested.blocks.best_fit(*tested.home, 1_MiB);
  block& used = tested.blocks.take(*whole, whole->address, 10_MiB, true);
  tested.blocks.make_live(used, used.address, 10_MiB);
  EXPECT_FALSE(tested.release(20_MiB, 10_MiB));
  EXPECT_FALSE(tested.release(60_MiB, 10_MiB));
  EXPECT_EQ(tested.gone, sizes{});
}

TEST(heap, releases_parts_of_a_range) {
  range_heap<1> blocks;
  free_list* const home = blocks.home(0, stream_id{});
  block* const all = blocks.add_range(*home, 1_GiB, 100_MiB);
  ASSERT_NE(all, nullptr);
  ASSERT_TRUE(blocks.make_room(8));
  block& first = blocks.fill(*all, 1_GiB, 60_MiB);
  block& used = blocks.take(first, 1_GiB + 20_MiB, 10_MiB, false);
  blocks.make_live(used, used.address, 10_MiB);
  sizes offered;
  const auto refuse = [&](block& b) { return offered.push_back(b.size), std::size_t{0}; };
  EXPECT_FALSE(blocks.release_fitting(*home, 25_MiB, 10_MiB, refuse));
  EXPECT_EQ(offered, sizes{30_MiB});
  EXPECT_FALSE(blocks.release_fitting(*home, 50_MiB, 10_MiB, refuse));
  EXPECT_EQ(offered, (sizes{30_MiB, 30_MiB, 20_MiB}));
}

TEST(heap, counts_the_age_of_an_idle_segment_in_searches_of_its_pool) {
  oversize_blocks<false> tested({10_MiB});
  block* const whole = tested.blocks.best_fit(*tested.home, 10_MiB);
  EXPECT_EQ(tested.blocks.age(*whole), 1u);
  (void)tested.blocks.best_fit(*tested.home, 50_MiB);
  EXPECT_EQ(tested.blocks.age(*whole), 2u);
  ASSERT_TRUE(tested.blocks.became_idle(*whole));
  EXPECT_EQ(tested.blocks.age(*whole), 0u);
}

TEST(range_heap, keeps_ranges_in_the_order_of_addresses) {
  range_heap<1> blocks;
  free_list* const home = blocks.home(0, stream_id{});
  ASSERT_NE(home, nullptr);
  for (const std::uintptr_t address : {2_GiB, 4_GiB, 1_GiB, 3_GiB})
    ASSERT_NE(blocks.add_range(*home, address, 1_MiB), nullptr);
  std::vector<std::size_t> found;
  for_each_unmapped(*home, [&](const block& b) { return found.push_back(b.address), false; });
  EXPECT_EQ(found, (sizes{1_GiB, 2_GiB, 3_GiB, 4_GiB}));
}

TEST(range_heap, leaves_what_lies_above_a_block_in_the_middle_as_old_as_it_was) {
  range_heap<1> blocks;
  free_list* const home = blocks.home(0, stream_id{});
  ASSERT_NE(home, nullptr);
  block* const range = blocks.add_range(*home, 1_GiB, 10_MiB);
  ASSERT_TRUE(range != nullptr && blocks.make_room(4));
  for (int i = 0; i < 3; ++i) (void)blocks.best_fit(*home, 10_MiB);
  block& free = blocks.fill(*range, 1_GiB, 10_MiB);
  for (int i = 0; i < 7; ++i) (void)blocks.best_fit(*home, 10_MiB);
  const block& middle = blocks.take(free, 1_GiB + 4_MiB, 2_MiB, false);
  EXPECT_EQ(blocks.age(*middle.below), 7u);
  EXPECT_EQ(blocks.age(*middle.above), 7u);
}

TEST(crossing_heap, finds_the_smallest_row_and_the_lowest_among_equals) {
  crossing_heap<2> blocks;
  free_list* const home = blocks.home(0, stream_id{1});
  free_list* const elsewhere = blocks.home(1, stream_id{1});
  std::uintptr_t address = 1_GiB;
  for (const std::size_t size : {30_MiB, 20_MiB, 20_MiB, 20_MiB, 10_MiB}) {
    ASSERT_NE(blocks.add_segment(*home, address, size, false), nullptr);
    address += 1_GiB;
  }
  ASSERT_NE(blocks.add_segment(*elsewhere, 99_GiB, 15_MiB, false), nullptr);
  const auto any = [](const block&) { return true; };
  const row found = blocks.smallest_row(0, 15_MiB, any);
  ASSERT_NE(found.first, nullptr);
  EXPECT_EQ(found.first->address, 2_GiB);
  EXPECT_EQ(found.bytes, 20_MiB);
  EXPECT_EQ(blocks.smallest_row(0, 20_MiB + 1, any).first->address, 1_GiB);
  EXPECT_EQ(blocks.smallest_row(0, 10_MiB, any).first->address, 5_GiB);
  EXPECT_EQ(blocks.smallest_row(0, 31_MiB, any).first, nullptr);
  EXPECT_EQ(blocks.smallest_row(1, 1_MiB, any).first->address, 99_GiB);
  EXPECT_FALSE(blocks.has_several_homes(0));
  ASSERT_NE(blocks.home(0, stream_id{2}), nullptr);
  EXPECT_TRUE(blocks.has_several_homes(0));
  EXPECT_FALSE(blocks.has_several_homes(1));
}

}  // namespace
