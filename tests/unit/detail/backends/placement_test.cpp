// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <random>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/detail/backends/mapped_ranges.hpp>
#include <tessera/detail/backends/placement.hpp>
#include <tessera/detail/blocks/block_manager.hpp>
#include <tessera/detail/blocks/counters.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/detail/extensions/extension.hpp>
#include <tessera/provider/simulated_device.hpp>

#include "../traits_of_tests.hpp"

namespace {

using namespace tessera;
using namespace tessera::detail;

no_extensions none;

struct traits : traits_of_tests {
  static constexpr bool has_ranges = true;
  static constexpr bool places_blocks = true;
};
using manager_type = block_manager<simulated_device, traits>;

/// A range at 1 GiB, 100 MiB long. Parts of it are mapped, and parts are in use.
class placements : public testing::Test {
 protected:
  void SetUp() override {
    list = manager.find_or_create_list(manager.own(), 0, stream_id{});
    ASSERT_NE(list, nullptr);
    ASSERT_NE(ranges.insert_range(*list, base, 100_MiB), nullptr);
  }
  /// Maps [begin, end) and allocates the parts of it that must be in use.
  void map(std::size_t begin, std::size_t end) {
    ASSERT_TRUE(manager.reserve_blocks(8));
    block* const at = find_unmapped(*list, [&](const block& b) { return b.end() > base + begin; });
    (void)ranges.mark_mapped(*at, base + begin, end - begin);
  }
  void use(std::size_t begin, std::size_t bytes) {
    ASSERT_TRUE(manager.reserve_blocks(8));
    block* from = nullptr;
    manager.for_each_idle([&](block& b) {
      if (b.address <= base + begin && base + begin + bytes <= b.end()) from = &b;
      return false;
    });
    ASSERT_NE(from, nullptr);
    (void)manager.allocate(*from, bytes, bytes, base + begin - from->address, false, {});
  }
  placement best(std::size_t size, bool should_save_pages = false) {
    return placement_search(size, 2_MiB, should_save_pages).best(*list);
  }

  static constexpr std::uintptr_t base = 1_GiB;
  manager_type manager{simulated_device{}, none};
  mapped_ranges<manager_type> ranges{manager};
  free_list* list = nullptr;
};

TEST_F(placements, begin_at_the_start_of_an_empty_range) {
  const placement w = best(5_MiB);
  ASSERT_NE(w.first, nullptr);
  EXPECT_EQ(w.begin, base);
  EXPECT_EQ(w.unmapped_bytes, 6_MiB);
  EXPECT_EQ(best(101_MiB).first, nullptr);
  EXPECT_EQ(best(100_MiB).unmapped_bytes, 100_MiB);
}
TEST_F(placements, begin_in_the_rest_of_a_page_in_use) {
  map(0, 4_MiB);
  use(0, 3_MiB);
  const placement w = best(5_MiB);
  EXPECT_EQ(w.begin, base + 3_MiB);
  EXPECT_EQ(w.unmapped_bytes, 4_MiB);
  EXPECT_EQ(w.free_bytes, 1_MiB);
}
TEST_F(placements, end_with_a_free_block_below_one_in_use) {
  map(20_MiB, 24_MiB);
  use(21_MiB, 3_MiB);  // a MiB below it is free
  const placement w = best(7_MiB);
  EXPECT_EQ(w.begin, base + 14_MiB);
  EXPECT_EQ(w.end, base + 21_MiB);
  EXPECT_EQ(w.unmapped_bytes, 6_MiB);
}
TEST_F(placements, span_unmapped_parts_between_free_blocks) {
  map(0, 4_MiB);
  map(6_MiB, 10_MiB);
  use(9_MiB, 1_MiB);
  const placement w = best(9_MiB);
  EXPECT_EQ(w.begin, base);
  EXPECT_EQ(w.unmapped_bytes, 2_MiB);
  EXPECT_EQ(w.free_bytes, 7_MiB);
}
TEST_F(placements, that_save_pages_use_no_whole_page) {
  map(0, 20_MiB);       // whole free pages
  map(40_MiB, 42_MiB);  // and a rest of 1 MiB next to a block in use
  use(40_MiB, 1_MiB);
  EXPECT_EQ(best(21_MiB).begin, base) << "it misses least there";
  const placement saving = best(5_MiB, true);
  EXPECT_EQ(saving.begin, base + 41_MiB);
  EXPECT_EQ(saving.unmapped_bytes, 4_MiB);
  EXPECT_EQ(saving.consumed_page_bytes, 4_MiB);
}

/// The cost of a placement, computed page by page and block by block.
struct price {
  std::size_t consumed_page_bytes = 0, unmapped_bytes = 0, free_bytes = 0;
};
bool overlap(std::uintptr_t begin, std::uintptr_t end, std::uintptr_t low, std::uintptr_t high) {
  return begin < high && low < end;
}
price price_of(const std::vector<const block*>& row, std::uintptr_t begin, std::uintptr_t end,
               std::size_t page) {
  price sum;
  for (const block* b : row) {
    if (!overlap(begin, end, b->address, b->end())) continue;
    if (b->is_free()) sum.free_bytes += b->size;
    for (std::uintptr_t at = align_up(b->address, page); at + page <= b->end(); at += page) {
      if (!overlap(begin, end, at, at + page)) continue;
      sum.consumed_page_bytes += page;
      if (b->is_unmapped()) sum.unmapped_bytes += page;
    }
  }
  return sum;
}

// Tries all begins and ends of a placement, in ranges that were mapped and used at random.
TEST(placements_at_random, are_the_cheapest_of_all_that_begin_or_end_in_free_memory) {
  constexpr std::size_t page = 4_KiB, unit = 1_KiB;
  std::mt19937_64 random(17);
  int found_any = 0;
  for (int round = 0; round < 300; ++round) {
    manager_type manager{simulated_device{}, none};
    mapped_ranges<manager_type> ranges{manager};
    free_list* const list = manager.find_or_create_list(manager.own(), 0, stream_id{});
    ASSERT_NE(list, nullptr);
    for (std::uintptr_t range = 0; range < 2; ++range) {
      block* hole = ranges.insert_range(*list, 1_GiB + range * 1_MiB, 24 * page);
      ASSERT_NE(hole, nullptr);
      for (std::uintptr_t at = hole->address, end = hole->end(); at < end; at += page) {
        if (random() % 2 == 0) continue;
        ASSERT_TRUE(manager.reserve_blocks(8));
        hole = find_unmapped(*list, [&](const block& b) { return b.end() > at; });
        (void)ranges.mark_mapped(*hole, at, page);
      }
    }
    for (int uses = static_cast<int>(random() % 12); uses > 0; --uses) {
      ASSERT_TRUE(manager.reserve_blocks(8));
      const std::size_t bytes = unit * (1 + random() % 6);
      block* const from = manager.best_fit(*list, bytes);
      if (from == nullptr) break;
      const std::uintptr_t at = from->address + random() % ((from->size - bytes) / unit + 1) * unit;
      (void)manager.allocate(*from, bytes, bytes, at - from->address, false, {});
    }
    std::vector<std::vector<const block*>> rows(1);
    manager.for_each_segment([&](const block& head) {
      for (const block *b = &head, *end = head.prev; b != end; b = b->next) {
        if (b->is_unused()) {
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
          const bool is_open_ended = high.is_unmapped() && high.next->status.state == block::state::segment;
          std::vector<std::uintptr_t> begins{low.address};
          if (is_open_ended) begins.push_back(high.address);
          if (!is_open_ended) begins.push_back(high.end() - size);
          for (const block* b : row) {
            if (b->is_free()) begins.insert(begins.end(), {b->address, b->end() - size});
          }
          for (const std::uintptr_t begin : begins) {
            if (begin < low.address || begin + size > high.end() || begin + size < begin) continue;
            const price p = price_of(row, begin, begin + size, page);
            const cost here{saves ? p.consumed_page_bytes : 0, p.unmapped_bytes, p.free_bytes};
            if (!any || here < least) least = here;
            any = true;
          }
        }
        const placement w = placement_search(size, page, saves).best(*list);
        ASSERT_EQ(w.first != nullptr, any) << "round " << round;
        if (!any) continue;
        ++found_any;
        EXPECT_EQ(w.end, w.begin + size);
        EXPECT_TRUE(w.first->is_unused() && w.first->address <= w.begin && w.begin < w.first->end());
        ASSERT_EQ((cost{saves ? w.consumed_page_bytes : 0, w.unmapped_bytes, w.free_bytes}), least)
            << "round " << round;
        for (const auto& row : rows) {
          if (row.empty() || w.begin < row.front()->address || w.begin >= row.back()->end()) continue;
          const price p = price_of(row, w.begin, w.end, page);
          ASSERT_EQ(std::tuple(w.consumed_page_bytes, w.unmapped_bytes, w.free_bytes),
                    std::tuple(p.consumed_page_bytes, p.unmapped_bytes, p.free_bytes));
        }
      }
    }
  }
  EXPECT_GT(found_any, 1000);
}

}  // namespace
