// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/allocator_event.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/stitching_machine.hpp>
#include <tessera/detail/totals.hpp>
#include <tessera/detail/window.hpp>
#include <tessera/provider/simulated_device.hpp>

namespace {

using namespace tessera;
using namespace tessera::detail;

struct keep_events {
  std::vector<allocator_event>* kept;
  void on(const allocator_event& e) const noexcept { kept->push_back(e); }
};
using machine_type = stitching_machine<simulated_device, keep_events, count_everything, 1, true>;
constexpr page_order normal{{normal_pages}, 1};

void* address_of(const block& b) { return reinterpret_cast<void*>(b.address); }

/// Windows are mapped and handed out by hand, in pages of 2 MiB.
class stitching : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(home, nullptr); }
  window find(std::size_t size) { return machine.find(*home, size, 2_MiB, 1_GiB, false); }
  block* map(const window& w, std::size_t piece = unlimited, std::size_t least = 0, std::size_t room = 0) {
    return machine.map(w, *home, normal, 2_MiB, least, room, [piece](std::size_t) { return piece; });
  }
  void* use(std::size_t size, std::size_t piece = unlimited) {
    block* const found = map(find(size), piece);
    if (found == nullptr || !machine.make_room()) return nullptr;
    return address_of(machine.hand_out(*found, size, size, 0, false, stream_id{}));
  }
  /// Idle pieces of these sizes, in the order of addresses.
  void make_idle(const std::vector<std::size_t>& sizes) {
    std::vector<void*> used;
    for (const std::size_t size : sizes) used.push_back(use(size));
    for (void* p : used) {
      ASSERT_NE(p, nullptr);
      ASSERT_EQ(machine.take_back(p), taken::free);
    }
  }
  std::size_t take(std::size_t wanted, std::size_t needed = 0) {
    const std::size_t taken = machine.take_idle(window{}, wanted, needed);
    machine.drop_spare();
    return taken;
  }
  std::size_t reserved() { return machine.books().now().reserved; }

  std::vector<allocator_event> events;
  machine_type machine{simulated_device{simulated_device::options{.capacity = 200_MiB}},
                       keep_events{&events}};
  free_list* home = machine.home(0, stream_id{});
};

TEST_F(stitching, takes_the_smallest_piece_that_is_enough) {
  make_idle({10_MiB, 2_MiB, 6_MiB, 4_MiB, 20_MiB});
  EXPECT_EQ(take(5_MiB), 6_MiB);
  EXPECT_EQ(take(12_MiB), 20_MiB);
  EXPECT_EQ(take(4_MiB), 4_MiB);
  EXPECT_EQ(reserved(), 12_MiB);
  EXPECT_EQ(machine.device().used(), 12_MiB);
}
TEST_F(stitching, takes_the_largest_pieces_first_where_none_is_enough) {
  make_idle({2_MiB, 10_MiB, 4_MiB, 20_MiB, 6_MiB, 8_MiB});
  EXPECT_EQ(take(33_MiB), 34_MiB);  // 20, 10, and of the rest what is enough
  EXPECT_EQ(reserved(), 16_MiB);    // 2, 6 and 8
  EXPECT_EQ(take(15_MiB), 16_MiB);
  EXPECT_EQ(reserved(), 0u);
}
TEST_F(stitching, takes_nothing_where_there_is_not_enough) {
  make_idle({2_MiB, 10_MiB});
  EXPECT_EQ(take(20_MiB, 13_MiB), 0u);
  EXPECT_EQ(reserved(), 12_MiB);
  EXPECT_EQ(take(20_MiB, 12_MiB), 12_MiB);
}
TEST_F(stitching, takes_no_piece_that_lies_in_the_window) {
  make_idle({4_MiB, 4_MiB, 4_MiB});
  const std::uintptr_t base = machine.blocks().best_fit(*home, 64)->address;
  const window middle{.begin = base + 4_MiB, .end = base + 8_MiB};
  EXPECT_EQ(machine.take_idle(middle, 12_MiB, 0), 8_MiB);
  machine.drop_spare();
  EXPECT_EQ(machine.blocks().best_fit(*home, 64)->address, base + 4_MiB);
}
TEST_F(stitching, gives_a_spare_piece_its_new_place) {
  make_idle({4_MiB, 6_MiB, 8_MiB});
  ASSERT_NE(use(18_MiB), nullptr);
  const auto created = machine.device().calls().create;
  void* const p = use(8_MiB);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(machine.device().calls().create, created + 1);
  ASSERT_EQ(machine.take_back(p), taken::free);
  ASSERT_EQ(machine.take_idle(window{}, 8_MiB, 8_MiB), 8_MiB);
  void* const q = use(8_MiB);
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(machine.device().calls().create, created + 1) << "it was spare";
  EXPECT_TRUE(machine.device().can_use(q, 8_MiB));
}

TEST_F(stitching, stretches_the_last_piece_as_far_as_there_is_room) {
  const window w = find(2_MiB);
  block* const found = map(w, unlimited, 16_MiB, 15_MiB);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->size, 2_MiB) << "16 are too many";
  EXPECT_EQ(map(find(4_MiB), unlimited, 16_MiB, 16_MiB)->size, 18_MiB);
  EXPECT_EQ(machine.device().calls().map, 2u);
  ASSERT_TRUE(machine.make_room());
  (void)machine.hand_out(*machine.best_fit(*home, 18_MiB), 18_MiB, 18_MiB, 0, false, stream_id{});
  ASSERT_TRUE(machine.make_room());
  EXPECT_EQ(map(find(6_MiB), unlimited, 4_MiB, unlimited)->size, 6_MiB) << "it is longer already";
}
TEST_F(stitching, stretches_no_piece_beyond_its_range) {
  const window w = machine.find(*home, 4_MiB, 2_MiB, 10_MiB, false);
  block* const found = map(w, unlimited, 16_MiB, unlimited);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->size, 10_MiB);
}

TEST_F(stitching, tells_what_was_missing_where_the_device_refuses) {
  ASSERT_NE(use(150_MiB), nullptr);
  const window w = find(60_MiB);
  events.clear();
  EXPECT_EQ(map(w), nullptr);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].what, allocator_event::action::refused);
  EXPECT_EQ(events[0].address, 0u);
  EXPECT_EQ(events[0].bytes, 60_MiB);
  EXPECT_EQ(events[0].block, 60_MiB);
  EXPECT_EQ(reserved(), 150_MiB);
}

TEST_F(stitching, places_the_next_block_where_its_window_is_and_only_that) {
  make_idle({20_MiB});
  const block& free = *machine.best_fit(*home, 20_MiB);
  machine.place_at({.begin = free.address + 4_MiB});
  EXPECT_EQ(machine.gap(free, 16_MiB, 1), 4_MiB);
  EXPECT_EQ(machine.gap(free, 16_MiB, 1), 0u);
  machine.place_at({.begin = free.address + 4_MiB});
  EXPECT_EQ(machine.gap(free, 17_MiB, 1), 0u) << "it is too large for that";
  machine.place_at({.begin = free.address + 64});
  EXPECT_EQ(machine.gap(free, 1_MiB, 512), 0u) << "it is not aligned there";
  machine.place_at({.begin = free.address - 4_MiB});
  EXPECT_EQ(machine.gap(free, 1_MiB, 1), 0u);
  machine.place_at({.begin = free.end() + 4_MiB});
  EXPECT_EQ(machine.gap(free, 1_MiB, 1), 0u);
}
TEST_F(stitching, knows_how_much_of_whole_pages_a_block_breaks) {
  make_idle({20_MiB});
  const block& free = *machine.best_fit(*home, 20_MiB);
  EXPECT_EQ(machine.breaks(free, 1, 2_MiB), 2_MiB);
  EXPECT_EQ(machine.breaks(free, 2_MiB, 2_MiB), 2_MiB);
  EXPECT_EQ(machine.breaks(free, 2_MiB + 1, 2_MiB), 4_MiB);
  EXPECT_EQ(machine.breaks(free, 20_MiB, 2_MiB), 20_MiB);
}

// Where pages are to be saved, a window may lie in a free block above a hole: nothing is mapped then.
TEST_F(stitching, finds_a_window_again_that_misses_nothing) {
  void* const low = use(4_MiB);
  void* const high = use(8_MiB);
  ASSERT_NE(use(2_MiB), nullptr);
  ASSERT_EQ(machine.take_back(low), taken::free);
  ASSERT_EQ(machine.take_back(high), taken::free);
  const auto begin = reinterpret_cast<std::uintptr_t>(high);
  ASSERT_EQ(machine.take_idle({.begin = begin, .end = begin + 8_MiB}, 4_MiB, 4_MiB), 4_MiB);
  machine.drop_spare();
  const window w = machine.find(*home, 4_MiB, 2_MiB, 0, true);
  EXPECT_EQ(w.missing, 0u);
  block* const found = map(w);
  ASSERT_NE(found, nullptr);
  EXPECT_TRUE(found->is_free());
  EXPECT_EQ(found->address, begin);
}

TEST_F(stitching, remembers_the_peaks) {
  void* const p = use(40_MiB);
  EXPECT_EQ(machine.state(10_MiB, unlimited).peak_live, 50_MiB);
  ASSERT_EQ(machine.take_back(p), taken::free);
  const growth_state now = machine.state(1_MiB, 100_MiB);
  EXPECT_EQ(now.peak_live, 50_MiB);
  EXPECT_EQ(now.peak_reserved, 40_MiB);
  EXPECT_EQ(now.reserved, 40_MiB);
  EXPECT_EQ(now.limit, 100_MiB);
  EXPECT_EQ(machine.state(1_MiB, unlimited).limit, 200_MiB);
  EXPECT_EQ(take(40_MiB), 40_MiB);
  EXPECT_EQ(machine.state(1_MiB, unlimited).peak_reserved, 40_MiB);
}

TEST_F(stitching, forgets_the_peaks_once_nothing_is_reserved) {
  void* const p = use(40_MiB);
  void* const small = use(2_MiB);
  EXPECT_EQ(machine.state(10_MiB, unlimited).peak_live, 52_MiB);
  ASSERT_EQ(machine.take_back(p), taken::free);
  EXPECT_EQ(take(40_MiB), 40_MiB);
  machine.shrink();
  EXPECT_EQ(machine.state(1_MiB, unlimited).peak_live, 52_MiB) << "something lives";
  EXPECT_EQ(machine.state(1_MiB, unlimited).peak_reserved, 42_MiB);
  ASSERT_EQ(machine.take_back(small), taken::free);
  machine.shrink();
  EXPECT_EQ(machine.state(1_MiB, unlimited).peak_live, 52_MiB) << "something is cached";
  EXPECT_EQ(take(2_MiB), 2_MiB);
  machine.shrink();
  EXPECT_EQ(machine.state(1_MiB, unlimited).peak_live, 1_MiB);
  EXPECT_EQ(machine.state(1_MiB, unlimited).peak_reserved, 0u);
}

TEST_F(stitching, counts_what_is_held_back_as_live) {
  void* const p = use(40_MiB);
  ASSERT_TRUE(machine.note_use(*machine.find_live(p), stream_id{1}));
  machine.device().hold_events(true);
  ASSERT_EQ(machine.take_back(p), taken::held);
  EXPECT_EQ(machine.state(10_MiB, unlimited).peak_live, 50_MiB);
  machine.device().hold_events(false);
}

// In several ranges, behind parts in use, a window is found again though pieces around it went.
TEST_F(stitching, maps_a_window_in_any_range) {
  machine_type small{simulated_device{simulated_device::options{.capacity = 200_MiB}}, keep_events{&events}};
  free_list* const in = small.home(0, stream_id{});
  std::vector<void*> used;
  for (int i = 0; i < 12; ++i) {
    const window w = small.find(*in, 4_MiB, 2_MiB, 12_MiB, false);
    ASSERT_NE(w.first, nullptr);
    block* const found =
        small.map(w, *in, normal, 2_MiB, 0, 0, [](std::size_t) { return std::size_t{2_MiB}; });
    ASSERT_TRUE(found != nullptr && small.make_room());
    used.push_back(address_of(small.hand_out(*found, 4_MiB, 4_MiB, 0, false, stream_id{})));
  }
  EXPECT_EQ(small.device().held().reserved, 48_MiB);
  for (const std::size_t i : {0u, 4u, 5u, 7u, 11u}) ASSERT_EQ(small.take_back(used[i]), taken::free);
  ASSERT_EQ(small.take_idle(window{}, 20_MiB, 0), 20_MiB);
  small.drop_spare();
  for (int i = 0; i < 5; ++i) {
    const window w = small.find(*in, 4_MiB, 2_MiB, 0, false);
    ASSERT_NE(w.first, nullptr);
    block* const found = small.map(w, *in, normal, 2_MiB, 0, 0, [](std::size_t) { return unlimited; });
    ASSERT_TRUE(found != nullptr && small.make_room());
    EXPECT_EQ(small.hand_out(*found, 4_MiB, 4_MiB, 0, false, stream_id{}).address, w.begin);
    EXPECT_TRUE(small.device().can_use(reinterpret_cast<void*>(w.begin), 4_MiB));
  }
  EXPECT_EQ(small.find(*in, 4_MiB, 2_MiB, 0, false).first, nullptr);
}

}  // namespace
