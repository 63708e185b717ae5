// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/detail/backends/placement.hpp>
#include <tessera/detail/backends/stitching_backend.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/block_manager.hpp>
#include <tessera/detail/extensions/extension.hpp>
#include <tessera/provider/simulated_device.hpp>

#include "../traits_of_tests.hpp"

namespace {

using namespace tessera;
using namespace tessera::detail;

struct keep_events : no_extensions {
  static constexpr bool hears_events = true;
  std::vector<allocator_event> kept;
  void on_event(const allocator_event& e) noexcept { kept.push_back(e); }
};
struct traits : traits_of_tests {
  static constexpr bool has_ranges = true;
  static constexpr bool places_blocks = true;
  using extensions = keep_events;
};
using manager_type = block_manager<simulated_device, traits>;
using ranges_type = stitched_ranges<manager_type>;

/// Pages of 2 MiB in ranges of some bytes.
constexpr range_growth pages(std::size_t range) { return {2_MiB, range, {{page_kind::normal}, 1}}; }

void* address_of(const block& b) { return reinterpret_cast<void*>(b.address); }

/// Moves chunks step by step, in pages of 2 MiB.
class stitching : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(list, nullptr); }
  placement find(std::size_t size) { return ranges.prepare_placement(*list, size, pages(1_GiB), false); }
  block* map(const placement& w, std::size_t piece = unlimited, std::size_t least = 0, std::size_t room = 0) {
    return ranges.map(w, *list, pages(0), least, room, [piece](std::size_t) { return piece; });
  }
  void* use(std::size_t size, std::size_t piece = unlimited) {
    block* const found = map(find(size), piece);
    if (found == nullptr || !manager.reserve_blocks()) return nullptr;
    return address_of(manager.allocate(*found, size, size, 0, false, stream_id{}));
  }
  /// Idle chunks of these sizes, in the order of addresses.
  void make_idle(const std::vector<std::size_t>& sizes) {
    std::vector<void*> used;
    for (const std::size_t size : sizes) used.push_back(use(size));
    for (void* p : used) {
      ASSERT_NE(p, nullptr);
      ASSERT_EQ(manager.deallocate(p), free_result::free);
    }
  }
  std::size_t take(std::size_t wanted, std::size_t needed = 0) {
    const std::size_t taken = ranges.detach_idle(placement{}, wanted, needed);
    ranges.release_detached();
    return taken;
  }
  std::size_t peak_active_with(std::size_t size) {
    ranges.raise_peak_active(size);
    return ranges.peak_active();
  }
  std::size_t reserved() { return manager.counters().current_usage().reserved; }

  keep_events extensions;
  std::vector<allocator_event>& events = extensions.kept;
  manager_type manager{simulated_device{simulated_device::options{.capacity = 200_MiB}}, extensions};
  ranges_type ranges{manager};
  free_list* list = manager.find_or_create_list(manager.own(), 0, stream_id{});
};

TEST_F(stitching, detaches_the_smallest_chunk_that_is_enough) {
  make_idle({10_MiB, 2_MiB, 6_MiB, 4_MiB, 20_MiB});
  EXPECT_EQ(take(5_MiB), 6_MiB);
  EXPECT_EQ(take(12_MiB), 20_MiB);
  EXPECT_EQ(take(4_MiB), 4_MiB);
  EXPECT_EQ(reserved(), 12_MiB);
  EXPECT_EQ(manager.provider().used(), 12_MiB);
}
TEST_F(stitching, detaches_the_largest_chunks_first_if_none_is_enough) {
  make_idle({2_MiB, 10_MiB, 4_MiB, 20_MiB, 6_MiB, 8_MiB});
  EXPECT_EQ(take(33_MiB), 34_MiB);  // 20, 10, and enough of the rest
  EXPECT_EQ(reserved(), 16_MiB);    // 2, 6 and 8
  EXPECT_EQ(take(15_MiB), 16_MiB);
  EXPECT_EQ(reserved(), 0u);
}
TEST_F(stitching, detaches_nothing_if_there_is_not_enough) {
  make_idle({2_MiB, 10_MiB});
  EXPECT_EQ(take(20_MiB, 13_MiB), 0u);
  EXPECT_EQ(reserved(), 12_MiB);
  EXPECT_EQ(take(20_MiB, 12_MiB), 12_MiB);
}
TEST_F(stitching, detaches_no_chunk_of_the_placement) {
  make_idle({4_MiB, 4_MiB, 4_MiB});
  const std::uintptr_t base = manager.best_fit(*list, 64)->address;
  const placement middle{.begin = base + 4_MiB, .end = base + 8_MiB};
  EXPECT_EQ(ranges.detach_idle(middle, 12_MiB, 0), 8_MiB);
  ranges.release_detached();
  EXPECT_EQ(manager.best_fit(*list, 64)->address, base + 4_MiB);
}
TEST_F(stitching, maps_a_detached_chunk_again) {
  make_idle({4_MiB, 6_MiB, 8_MiB});
  ASSERT_NE(use(18_MiB), nullptr);
  const auto created = manager.provider().calls().create;
  void* const p = use(8_MiB);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(manager.provider().calls().create, created + 1);
  ASSERT_EQ(manager.deallocate(p), free_result::free);
  ASSERT_EQ(ranges.detach_idle(placement{}, 8_MiB, 8_MiB), 8_MiB);
  void* const q = use(8_MiB);
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(manager.provider().calls().create, created + 1) << "it was detached";
  EXPECT_TRUE(manager.provider().can_use(q, 8_MiB));
}

TEST_F(stitching, stretches_the_last_chunk_as_far_as_there_is_room) {
  const placement w = find(2_MiB);
  block* const found = map(w, unlimited, 16_MiB, 15_MiB);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->size, 2_MiB) << "16 are too many";
  EXPECT_EQ(map(find(4_MiB), unlimited, 16_MiB, 16_MiB)->size, 18_MiB);
  EXPECT_EQ(manager.provider().calls().map, 2u);
  ASSERT_TRUE(manager.reserve_blocks());
  (void)manager.allocate(*manager.best_fit(*list, 18_MiB), 18_MiB, 18_MiB, 0, false, stream_id{});
  ASSERT_TRUE(manager.reserve_blocks());
  EXPECT_EQ(map(find(6_MiB), unlimited, 4_MiB, unlimited)->size, 6_MiB) << "it is longer already";
}
TEST_F(stitching, stretches_no_chunk_beyond_its_range) {
  const placement w = ranges.prepare_placement(*list, 4_MiB, pages(10_MiB), false);
  block* const found = map(w, unlimited, 16_MiB, unlimited);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->size, 10_MiB);
}

TEST_F(stitching, reports_refused_device_calls) {
  ASSERT_NE(use(150_MiB), nullptr);
  const placement w = find(60_MiB);
  events.clear();
  EXPECT_EQ(map(w), nullptr);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].what, allocator_event::action::refused);
  EXPECT_EQ(events[0].address, 0u);
  EXPECT_EQ(events[0].bytes, 60_MiB);
  EXPECT_EQ(events[0].block, 60_MiB);
  EXPECT_EQ(reserved(), 150_MiB);
}

struct aligning_growth {
  std::size_t alignment;
  [[nodiscard]] std::size_t base_alignment(std::size_t) const noexcept { return alignment; }
};
struct aligning_policies {
  aligning_growth growth;
};
TEST_F(stitching, places_only_the_next_block_at_its_placement) {
  make_idle({20_MiB});
  const block& free = *manager.best_fit(*list, 20_MiB);
  const auto take = [&](std::size_t size, std::size_t alignment) {
    return ranges.consume_placement(free, size, aligning_policies{{alignment}});
  };
  ranges.place_next_at(free.address + 4_MiB);
  EXPECT_EQ(take(16_MiB, 1), 4_MiB);
  EXPECT_EQ(take(16_MiB, 1), 0u);
  ranges.place_next_at(free.address + 4_MiB);
  EXPECT_EQ(take(17_MiB, 1), 0u) << "it is too large for that";
  ranges.place_next_at(free.address + 64);
  EXPECT_EQ(take(1_MiB, 512), 0u) << "it is not aligned there";
  ranges.place_next_at(free.address - 4_MiB);
  EXPECT_EQ(take(1_MiB, 1), 0u);
  ranges.place_next_at(free.end() + 4_MiB);
  EXPECT_EQ(take(1_MiB, 1), 0u);
}
TEST_F(stitching, counts_the_bytes_of_whole_pages_that_a_block_breaks) {
  make_idle({20_MiB});
  const block& free = *manager.best_fit(*list, 20_MiB);
  EXPECT_EQ(ranges.broken_page_bytes(free, 1, 2_MiB), 2_MiB);
  EXPECT_EQ(ranges.broken_page_bytes(free, 2_MiB, 2_MiB), 2_MiB);
  EXPECT_EQ(ranges.broken_page_bytes(free, 2_MiB + 1, 2_MiB), 4_MiB);
  EXPECT_EQ(ranges.broken_page_bytes(free, 20_MiB, 2_MiB), 20_MiB);
}

// To save pages, a placement may lie in a free block above an unmapped one. Then nothing is mapped.
TEST_F(stitching, finds_the_first_block_of_a_placement_that_is_mapped) {
  void* const low = use(4_MiB);
  void* const high = use(8_MiB);
  ASSERT_NE(use(2_MiB), nullptr);
  ASSERT_EQ(manager.deallocate(low), free_result::free);
  ASSERT_EQ(manager.deallocate(high), free_result::free);
  const auto begin = reinterpret_cast<std::uintptr_t>(high);
  ASSERT_EQ(ranges.detach_idle({.begin = begin, .end = begin + 8_MiB}, 4_MiB, 4_MiB), 4_MiB);
  ranges.release_detached();
  const placement w = ranges.prepare_placement(*list, 4_MiB, pages(0), true);
  EXPECT_EQ(w.unmapped_bytes, 0u);
  block* const found = map(w);
  ASSERT_NE(found, nullptr);
  EXPECT_TRUE(found->is_free());
  EXPECT_EQ(found->address, begin);
}

TEST_F(stitching, remembers_the_peaks) {
  void* const p = use(40_MiB);
  EXPECT_EQ(peak_active_with(10_MiB), 50_MiB);
  ASSERT_EQ(manager.deallocate(p), free_result::free);
  EXPECT_EQ(peak_active_with(1_MiB), 50_MiB);
  EXPECT_EQ(ranges.peak_reserved(), 40_MiB);
  EXPECT_EQ(take(40_MiB), 40_MiB);
  EXPECT_EQ(ranges.peak_reserved(), 40_MiB);
}

TEST_F(stitching, forgets_the_peaks_once_nothing_is_reserved) {
  void* const p = use(40_MiB);
  void* const small = use(2_MiB);
  EXPECT_EQ(peak_active_with(10_MiB), 52_MiB);
  ASSERT_EQ(manager.deallocate(p), free_result::free);
  EXPECT_EQ(take(40_MiB), 40_MiB);
  ranges.shrink();
  EXPECT_EQ(peak_active_with(1_MiB), 52_MiB) << "something lives";
  EXPECT_EQ(ranges.peak_reserved(), 42_MiB);
  ASSERT_EQ(manager.deallocate(small), free_result::free);
  ranges.shrink();
  EXPECT_EQ(peak_active_with(1_MiB), 52_MiB) << "something is cached";
  EXPECT_EQ(take(2_MiB), 2_MiB);
  ranges.shrink();
  EXPECT_EQ(peak_active_with(1_MiB), 1_MiB);
  EXPECT_EQ(ranges.peak_reserved(), 0u);
}

TEST_F(stitching, counts_pending_blocks_as_live) {
  void* const p = use(40_MiB);
  ASSERT_TRUE(manager.record_stream(*manager.find_live(p), stream_id{1}));
  manager.provider().hold_events(true);
  ASSERT_EQ(manager.deallocate(p), free_result::pending);
  EXPECT_EQ(peak_active_with(10_MiB), 50_MiB);
  manager.provider().hold_events(false);
}

// In several ranges, after parts in use, the first block of a placement is found after chunks around it were
// unmapped.
TEST_F(stitching, maps_a_placement_in_any_range) {
  manager_type small{simulated_device{simulated_device::options{.capacity = 200_MiB}}, extensions};
  ranges_type of_small{small};
  free_list* const in = small.find_or_create_list(small.own(), 0, stream_id{});
  std::vector<void*> used;
  for (int i = 0; i < 12; ++i) {
    const placement w = of_small.prepare_placement(*in, 4_MiB, pages(12_MiB), false);
    ASSERT_NE(w.first, nullptr);
    block* const found = of_small.map(w, *in, pages(0), 0, 0, [](std::size_t) { return std::size_t{2_MiB}; });
    ASSERT_TRUE(found != nullptr && small.reserve_blocks());
    used.push_back(address_of(small.allocate(*found, 4_MiB, 4_MiB, 0, false, stream_id{})));
  }
  EXPECT_EQ(small.provider().held().reserved, 48_MiB);
  for (const std::size_t i : {0u, 4u, 5u, 7u, 11u}) ASSERT_EQ(small.deallocate(used[i]), free_result::free);
  ASSERT_EQ(of_small.detach_idle(placement{}, 20_MiB, 0), 20_MiB);
  of_small.release_detached();
  for (int i = 0; i < 5; ++i) {
    const placement w = of_small.prepare_placement(*in, 4_MiB, pages(0), false);
    ASSERT_NE(w.first, nullptr);
    block* const found = of_small.map(w, *in, pages(0), 0, 0, [](std::size_t) { return unlimited; });
    ASSERT_TRUE(found != nullptr && small.reserve_blocks());
    EXPECT_EQ(small.allocate(*found, 4_MiB, 4_MiB, 0, false, stream_id{}).address, w.begin);
    EXPECT_TRUE(small.provider().can_use(reinterpret_cast<void*>(w.begin), 4_MiB));
  }
  EXPECT_EQ(of_small.prepare_placement(*in, 4_MiB, pages(0), false).first, nullptr);
}

}  // namespace
