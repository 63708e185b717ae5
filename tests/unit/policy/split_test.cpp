// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/extension/checkpoints.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/policy/split.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

TEST(split_never, lets_larger_blocks_of_the_same_class_serve_and_no_others) {
  constexpr split_never<block_fit::same_power_of_two> split{};
  EXPECT_TRUE(split.may_serve(64_MiB, 64_MiB));
  EXPECT_TRUE(split.may_serve(70_MiB, 100_MiB));
  EXPECT_TRUE(split.may_serve(64_MiB + 64, 128_MiB));
  EXPECT_FALSE(split.may_serve(64_MiB, 65_MiB));
  EXPECT_FALSE(split.may_serve(64_MiB, 128_MiB));
  EXPECT_FALSE(split.may_serve(100_MiB, 129_MiB));
  EXPECT_FALSE(split.should_split(70_MiB, 100_MiB));
}

TEST(split_never, lets_any_block_serve_whole) {
  EXPECT_TRUE(split_never<>::may_serve(1_MiB, 1_GiB));
  EXPECT_FALSE(split_never<>::should_split(1_MiB, 1_GiB));
  EXPECT_EQ(split_never<>::oversize_from(), unlimited);
  EXPECT_TRUE(split_never<block_fit::exact>::may_serve(1_MiB, 1_MiB));
  EXPECT_FALSE(split_never<block_fit::exact>::may_serve(1_MiB, 1_MiB + 512));
}

TEST(split_if_remainder_at_least, splits_if_exactly_this_much_remains) {
  constexpr split_if_remainder_at_least<64, block_end::high> split{};
  EXPECT_TRUE(split.may_serve(1_MiB, 1_GiB));
  EXPECT_TRUE(split.should_split(1_MiB, 1_MiB + 64));
  EXPECT_FALSE(split.should_split(1_MiB + 64, 1_MiB + 64));
  constexpr split_if_remainder_at_least<128> more{};
  EXPECT_TRUE(more.should_split(1_MiB, 1_MiB + 128));
  EXPECT_FALSE(more.should_split(1_MiB, 1_MiB + 64));
  EXPECT_EQ(split.allocated_end(), block_end::high);
  EXPECT_EQ(more.allocated_end(), block_end::low);
  EXPECT_EQ(split.oversize_from(), unlimited);
}

TEST(split_below, keeps_oversize_blocks_for_oversize_requests) {
  constexpr split_below<32_MiB, 20_MiB> split{};
  EXPECT_TRUE(split.may_serve(1_MiB, 32_MiB - 512));
  EXPECT_FALSE(split.may_serve(1_MiB, 32_MiB));
  EXPECT_FALSE(split.may_serve(32_MiB - 512, 32_MiB));
  EXPECT_TRUE(split.may_serve(32_MiB, 32_MiB));
  EXPECT_TRUE(split.may_serve(32_MiB, 52_MiB - 512));
  EXPECT_FALSE(split.may_serve(32_MiB, 52_MiB));
  EXPECT_EQ(split.oversize_from(), 32_MiB);
  EXPECT_TRUE(split_below<>{}.may_serve(1, unlimited - 1));
}

TEST(split_below, splits_small_blocks_always_and_larger_ones_if_enough_remains) {
  constexpr split_below<32_MiB, 20_MiB, 1_MiB, 256_KiB> split{};
  EXPECT_TRUE(split.should_split(1_MiB, 1_MiB + 64));
  EXPECT_FALSE(split.should_split(1_MiB, 1_MiB));
  EXPECT_FALSE(split.should_split(1_MiB + 64, 1_MiB + 64 + 256_KiB));
  EXPECT_TRUE(split.should_split(1_MiB + 64, 1_MiB + 128 + 256_KiB));
  EXPECT_TRUE(split.should_split(32_MiB - 64, 33_MiB));
  EXPECT_FALSE(split.should_split(32_MiB, 51_MiB));
  EXPECT_EQ(split.allocated_end(), block_end::low);
}

static_assert(std::is_empty_v<split_never<block_fit::same_power_of_two>>);

/// Searches from where the last request of the pool ended, and begins again at the lowest address.
struct next_fit : split_below<> {
  std::array<std::uintptr_t, 2> ends{};

  [[nodiscard]] bool precedes(const free_block& a, const free_block& b,
                              const wanted_block& wanted) const noexcept {
    const std::uintptr_t from = ends[wanted.pool];
    return a.address - from < b.address - from;
  }
  void note_served(const served_request& now) noexcept { ends[now.wanted.pool] = now.address + now.size; }
  bool operator==(const next_fit&) const = default;
};

/// Keeps the last request that it heard of.
struct remember_last : split_below<32_MiB> {
  served_request last{};
  std::size_t requests = 0;
  void note_served(const served_request& now) noexcept {
    last = now;
    ++requests;
  }
  bool operator==(const remember_last& other) const noexcept { return requests == other.requests; }
};

template <typename Recipe>
using allocator_of = caching_allocator<Recipe, simulated_device>;

/// The free block that serves a request by next fit, found without the allocator: 0 if none holds it.
template <typename Allocator>
std::uintptr_t next_from(Allocator& in, std::uintptr_t from, std::size_t size, stream_id stream) {
  std::uintptr_t best = 0;
  for_each_block(in, [&](const segment_view& segment, const block_view& b) {
    const bool is_large = segment.pool == 1;
    if (b.is != block_view::state::free || b.bytes < size || b.stream != stream || is_large != (size > 1_MiB))
      return;
    if (best == 0 || b.address - from < best - from) best = b.address;
  });
  return best;
}

template <typename Recipe>
void serves_by_next_fit(std::size_t min_hits) {
  allocator_of<Recipe> pool;
  std::vector<void*> live;
  std::array<std::uintptr_t, 2> ends{};
  std::uint64_t random = 7;
  std::size_t hits = 0;
  for (int i = 0; i < 4000; ++i) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const std::uint64_t dice = random >> 33;
    if (dice % 5 < 2 && !live.empty()) {
      std::swap(live[dice / 5 % live.size()], live.back());
      pool.deallocate(live.back());
      live.pop_back();
      continue;
    }
    if (live.size() > 120) {
      pool.deallocate(live.back());
      live.pop_back();
    }
    const std::size_t size = align_up(std::size_t{1} << (9 + dice % 17), 512) + (dice / 64 % 64) * 512;
    const stream_id stream{dice / 8 % 2};
    const std::size_t number = size > 1_MiB ? 1 : 0;
    const std::uintptr_t expected = next_from(pool, ends[number], size, stream);
    void* const got = pool.allocate(size, stream);
    live.push_back(got);
    const auto address = reinterpret_cast<std::uintptr_t>(got);
    if (expected != 0) {
      ASSERT_EQ(address, expected) << "request " << i << " of " << size << " bytes";
      ++hits;
    }
    ends[number] = pool.policies().split.ends[number];
    ASSERT_GE(ends[number], address + size);
  }
  EXPECT_GE(hits, min_hits);
  EXPECT_EQ(pool.audit(), nullptr);
  for (void* p : live) pool.deallocate(p);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TEST(order_of_a_split_policy, decides_which_fitting_block_serves) {
  serves_by_next_fit<with<pytorch<>, next_fit>>(1000);
  serves_by_next_fit<with<pytorch<"expandable_segments:True">, next_fit>>(1000);
}

struct lowest_address_first : split_below<32_MiB> {
  [[nodiscard]] static bool precedes(const free_block& a, const free_block& b, const wanted_block&) noexcept {
    return a.address < b.address;
  }
  bool operator==(const lowest_address_first&) const = default;
};

TEST(order_of_a_split_policy, chooses_among_the_blocks_that_may_serve) {
  allocator_of<with<pytorch<>, lowest_address_first>> pool;
  void* const oversize = pool.allocate(64_MiB);  // a lower address, but it serves no small request
  void* const small = pool.allocate(12_MiB);
  ASSERT_LT(oversize, small);
  pool.deallocate(oversize);
  pool.deallocate(small);
  EXPECT_EQ(pool.allocate(5_MiB), small);
  EXPECT_EQ(pool.allocate(60_MiB), oversize);
}

TEST(order_of_a_split_policy, sees_segments_in_the_order_in_which_they_came) {
  struct newest_segment : split_below<> {
    static bool precedes(const free_block& a, const free_block& b, const wanted_block&) noexcept {
      return a.segment > b.segment;
    }
    bool operator==(const newest_segment&) const = default;
  };
  allocator_of<with<pytorch<>, newest_segment>> pool;
  void* const first = pool.allocate(20_MiB);
  void* const second = pool.allocate(30_MiB);
  pool.deallocate(second);
  pool.deallocate(first);
  EXPECT_EQ(pool.allocate(20_MiB), second);
  void* const rest = pool.allocate(10_MiB);  // a block keeps the number of its segment when it is split
  EXPECT_EQ(rest, static_cast<char*>(second) + 20_MiB);
}

TEST(split_policy_that_learns, hears_of_each_served_request_once) {
  allocator_of<with<pytorch<>, remember_last>> pool(simulated_device({.capacity = 64_MiB}));
  const auto& split = pool.policies().split;
  void* const p = pool.allocate(3_MiB + 1, stream_id{5});  // new memory
  EXPECT_EQ(split.requests, 1u);
  EXPECT_EQ(split.last.requested, 3_MiB + 1);
  EXPECT_EQ(split.last.wanted.size, 3_MiB + 512);
  EXPECT_EQ(split.last.wanted.pool, 1u);
  EXPECT_EQ(split.last.wanted.stream, stream_id{5});
  EXPECT_EQ(split.last.from.size, 20_MiB);
  EXPECT_TRUE(split.last.from.is_segment);
  EXPECT_EQ(split.last.address, reinterpret_cast<std::uintptr_t>(p));
  EXPECT_EQ(split.last.size, 3_MiB + 512);
  const block_handle h = pool.allocate_by_handle(1_MiB + 512, stream_id{5});  // a hit
  EXPECT_EQ(split.requests, 2u);
  EXPECT_FALSE(split.last.from.is_segment);
  EXPECT_EQ(split.last.from.size, 17_MiB - 512);
  EXPECT_EQ(pool.try_allocate(1_GiB), nullptr);  // fails, so it is not heard
  EXPECT_EQ(split.requests, 2u);
  pool.deallocate(p);
  pool.deallocate(h);
  pool.trim();
  EXPECT_EQ(split.requests, 2u);
}

TEST(split_policy_that_learns, is_copied_with_all_that_it_learned) {
  using recipe = with<pytorch<>, remember_last>;
  allocator_of<recipe> first;
  first.deallocate(first.allocate(5_MiB));
  const policies<recipe> copy = first.policies();
  EXPECT_EQ(copy.split.requests, 1u);
  first.deallocate(first.allocate(5_MiB));
  EXPECT_EQ(copy.split.requests, 1u);
  EXPECT_FALSE(copy == first.policies());
  allocator_of<recipe> second(simulated_device{}, copy);
  second.deallocate(second.allocate(5_MiB));
  EXPECT_TRUE(second.policies() == first.policies());
}

TEST(split_policy_that_learns, keeps_what_it_learned_if_a_checkpoint_is_restored) {
  using recipe = with<pytorch<>, next_fit>;
  caching_allocator<recipe, simulated_device, extension::private_pools, extension::checkpoints> pool;
  extension::private_pool memory(pool);
  void* live = nullptr;
  {
    const extension::pool_scope scope(memory, extension::scope_kind::capture);
    live = pool.allocate(3_MiB);
    pool.deallocate(pool.allocate(4_MiB));
  }
  auto checkpoints = pool.get<extension::checkpoints>();
  const extension::pool_checkpoint before = checkpoints.record(memory.id());
  pool.deallocate(live);
  const next_fit learned = pool.policies().split;
  ASSERT_TRUE(checkpoints.restore(before));
  EXPECT_TRUE(pool.policies().split == learned);
  EXPECT_EQ(pool.audit(), nullptr);
  {
    const extension::pool_scope scope(memory, extension::scope_kind::capture);
    void* const next = pool.allocate(2_MiB);  // behind the block of 4 MiB, as if there had been no restore
    EXPECT_EQ(next, static_cast<char*>(live) + 3_MiB);
    pool.deallocate(next);
  }
  pool.deallocate(live);
  EXPECT_EQ(pool.audit(), nullptr);
}

// Without these members, an allocator is as large as without a split policy that has them.
static_assert(sizeof(allocator_of<with<pytorch<>, lowest_address_first>>) ==
              sizeof(allocator_of<with<pytorch<>, split_below<32_MiB>>>));

}  // namespace
