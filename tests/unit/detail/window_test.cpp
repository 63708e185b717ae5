// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <random>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/free_list.hpp>
#include <tessera/detail/range_heap.hpp>
#include <tessera/detail/window.hpp>

namespace {

using namespace tessera;
using namespace tessera::detail;

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
  free_list* home = nullptr;
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

/// What a window costs, page by page and block by block.
struct price {
  std::size_t taken = 0, missing = 0, fragments = 0;
};
bool overlap(std::uintptr_t begin, std::uintptr_t end, std::uintptr_t low, std::uintptr_t high) {
  return begin < high && low < end;
}
price price_of(const std::vector<const block*>& row, std::uintptr_t begin, std::uintptr_t end,
               std::size_t page) {
  price sum;
  for (const block* b : row) {
    if (!overlap(begin, end, b->address, b->end())) continue;
    if (b->is_free()) sum.fragments += b->size;
    for (std::uintptr_t at = align_up(b->address, page); at + page <= b->end(); at += page) {
      if (!overlap(begin, end, at, at + page)) continue;
      sum.taken += page;
      if (b->is_unmapped()) sum.missing += page;
    }
  }
  return sum;
}

// All places where a window may begin or end are tried, in ranges that were mapped and used at random.
TEST(windows_at_random, are_the_cheapest_of_all_that_begin_or_end_with_what_is_free) {
  constexpr std::size_t page = 4_KiB, unit = 1_KiB;
  std::mt19937_64 random(17);
  int found_any = 0;
  for (int round = 0; round < 300; ++round) {
    range_heap<1> heap;
    free_list* const home = heap.home(0, stream_id{});
    ASSERT_NE(home, nullptr);
    for (std::uintptr_t range = 0; range < 2; ++range) {
      block* hole = heap.add_range(*home, 1_GiB + range * 1_MiB, 24 * page);
      ASSERT_NE(hole, nullptr);
      for (std::uintptr_t at = hole->address, end = hole->end(); at < end; at += page) {
        if (random() % 2 == 0) continue;
        ASSERT_TRUE(heap.make_room(8));
        for_each_unmapped(*home, [&](block& b) { return hole = &b, b.end() > at; });
        (void)heap.fill(*hole, at, page);
      }
    }
    for (int uses = static_cast<int>(random() % 12); uses > 0; --uses) {
      ASSERT_TRUE(heap.make_room(8));
      const std::size_t bytes = unit * (1 + random() % 6);
      block* const from = heap.best_fit(*home, bytes);
      if (from == nullptr) break;
      const std::uintptr_t at = from->address + random() % ((from->size - bytes) / unit + 1) * unit;
      block& taken = heap.take(*from, at, bytes, at == from->address);
      heap.make_live(taken, at, bytes);
    }
    std::vector<std::vector<const block*>> rows(1);
    heap.for_each_segment([&](const block& head, std::size_t) {
      for (const block *b = &head, *end = head.below; b != end; b = b->above) {
        if (b->is_open()) {
          rows.back().push_back(b);
        } else {
          rows.emplace_back();
        }
      }
      rows.emplace_back();
    });
    for (const std::size_t size : {unit, 3 * unit, 2 * page, 5 * page + unit, 11 * page}) {
      for (const bool saves : {false, true}) {
        using cost = std::tuple<std::size_t, std::size_t, std::size_t>;
        bool any = false;
        cost least;
        for (const auto& row : rows) {
          bool has_hole = false;
          for (const block* b : row) has_hole = has_hole || b->is_unmapped();
          if (!has_hole) continue;
          const block &low = *row.front(), &high = *row.back();
          const bool is_open_ended = high.is_unmapped() && high.above->mark.is == block::state::segment;
          std::vector<std::uintptr_t> begins{low.address};
          if (is_open_ended) begins.push_back(high.address);
          if (!is_open_ended) begins.push_back(high.end() - size);
          for (const block* b : row) {
            if (b->is_free()) begins.insert(begins.end(), {b->address, b->end() - size});
          }
          for (const std::uintptr_t begin : begins) {
            if (begin < low.address || begin + size > high.end() || begin + size < begin) continue;
            const price p = price_of(row, begin, begin + size, page);
            const cost here{saves ? p.taken : 0, p.missing, p.fragments};
            if (!any || here < least) least = here;
            any = true;
          }
        }
        const window w = window_search(size, page, saves).best(*home);
        ASSERT_EQ(w.first != nullptr, any) << "round " << round;
        if (!any) continue;
        ++found_any;
        EXPECT_EQ(w.end, w.begin + size);
        EXPECT_TRUE(w.first->is_open() && w.first->address <= w.begin && w.begin < w.first->end());
        ASSERT_EQ((cost{saves ? w.taken : 0, w.missing, w.fragments}), least) << "round " << round;
        for (const auto& row : rows) {
          if (row.empty() || w.begin < row.front()->address || w.begin >= row.back()->end()) continue;
          const price p = price_of(row, w.begin, w.end, page);
          ASSERT_EQ(std::tuple(w.taken, w.missing, w.fragments), std::tuple(p.taken, p.missing, p.fragments));
        }
      }
    }
  }
  EXPECT_GT(found_any, 1000);
}

}  // namespace
