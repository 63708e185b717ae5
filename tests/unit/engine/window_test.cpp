// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/engine/free_blocks.hpp>
#include <tessera/engine/range_heap.hpp>
#include <tessera/engine/window.hpp>

namespace {

using namespace tessera;
using namespace tessera::engine;

/// A range at 1 GiB, 100 MiB long, of which parts are mapped and parts in use.
class windows : public testing::Test {
 protected:
  void SetUp() override {
    home = heap.home(0, stream_id{});
    ASSERT_NE(home, nullptr);
    ASSERT_NE(heap.add_range(*home, base, 100_MiB), nullptr);
  }
  /// Maps [begin, end) and hands out the parts of it that are to be in use.
  void map(std::size_t begin, std::size_t end) {
    ASSERT_TRUE(heap.make_room(8));
    block* at = nullptr;
    for_each_unmapped(*home, [&](block& b) {
      at = &b;
      return b.end() > base + begin;
    });
    (void)heap.fill(*at, base + begin, end - begin);
  }
  void use(std::size_t begin, std::size_t bytes) {
    ASSERT_TRUE(heap.make_room(8));
    block* from = nullptr;
    heap.for_each_idle([&](block& b) {
      if (b.address <= base + begin && base + begin + bytes <= b.end()) from = &b;
      return false;
    });
    ASSERT_NE(from, nullptr);
    block& taken = heap.take(*from, base + begin, bytes, from->address == base + begin);
    heap.make_live(taken, base + begin, bytes);
  }
  window best(std::size_t size, bool saves_pages = false) {
    return window_search(size, 2_MiB, saves_pages).best(*home);
  }

  static constexpr std::uintptr_t base = 1_GiB;
  range_heap<1> heap;
  free_blocks* home = nullptr;
};

TEST_F(windows, begin_at_the_start_of_an_empty_range) {
  const window w = best(5_MiB);
  ASSERT_NE(w.first, nullptr);
  EXPECT_EQ(w.begin, base);
  EXPECT_EQ(w.missing, 6_MiB);
  EXPECT_EQ(best(101_MiB).first, nullptr);
  EXPECT_EQ(best(100_MiB).missing, 100_MiB);
}
TEST_F(windows, begin_in_the_rest_of_a_page_in_use) {
  map(0, 4_MiB);
  use(0, 3_MiB);
  const window w = best(5_MiB);
  EXPECT_EQ(w.begin, base + 3_MiB);
  EXPECT_EQ(w.missing, 4_MiB);
  EXPECT_EQ(w.fragments, 1_MiB);
}
TEST_F(windows, end_with_a_free_block_below_one_in_use) {
  map(20_MiB, 24_MiB);
  use(21_MiB, 3_MiB);  // a MiB below it is free
  const window w = best(7_MiB);
  EXPECT_EQ(w.begin, base + 14_MiB);
  EXPECT_EQ(w.end, base + 21_MiB);
  EXPECT_EQ(w.missing, 6_MiB);
}
TEST_F(windows, bridge_what_is_unmapped_between_free_blocks) {
  map(0, 4_MiB);
  map(6_MiB, 10_MiB);
  use(9_MiB, 1_MiB);
  const window w = best(9_MiB);
  EXPECT_EQ(w.begin, base);
  EXPECT_EQ(w.missing, 2_MiB);
  EXPECT_EQ(w.fragments, 7_MiB);
}
TEST_F(windows, that_save_pages_leave_whole_ones_alone) {
  map(0, 20_MiB);       // whole free pages
  map(40_MiB, 42_MiB);  // and a rest of 1 MiB beside one in use
  use(40_MiB, 1_MiB);
  EXPECT_EQ(best(21_MiB).begin, base) << "it misses least there";
  const window saving = best(5_MiB, true);
  EXPECT_EQ(saving.begin, base + 41_MiB);
  EXPECT_EQ(saving.missing, 4_MiB);
  EXPECT_EQ(saving.taken, 4_MiB);
}

}  // namespace
