// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/detail/blocks/heap_map.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

template <typename Recipe>
struct heap_map : testing::Test {
  using allocator = caching_allocator<Recipe, simulated_device, extension::private_pools>;
  /// Live and free blocks of the default pools and of one private pool.
  heap_map() {
    std::mt19937 random(1);
    std::vector<void*> blocks;
    const extension::pool_scope scope(own, stream_id{1}, extension::scope_kind::plain);
    for (int i = 0; i < 200; ++i) {
      blocks.push_back(pool.allocate(1 + random() % 8_MiB, stream_id{i % 2 == 0 ? 0u : 1u}));
      if (random() % 3 != 0) continue;
      pool.deallocate(blocks[random() % blocks.size()]);
      std::erase_if(blocks,
                    [this](void* p) { return tessera::detail::introspect(pool).find_live(p) == nullptr; });
    }
  }
  allocator pool;
  extension::private_pool<allocator> own{pool};
};
using recipes = testing::Types<pytorch<>, pytorch<"expandable_segments:True">, stitched>;
TYPED_TEST_SUITE(heap_map, recipes);

TYPED_TEST(heap_map, units_are_all_memory_and_have_their_blocks) {
  const auto map = tessera::detail::introspect(this->pool);
  std::size_t reserved = 0, free = 0;
  map.for_each_unit([&](const auto& unit) {
    reserved += unit.bytes;
    std::size_t covered = 0;
    unit.for_each_block([&](const detail::block& b, std::size_t low, std::size_t high) {
      EXPECT_EQ(low, covered) << "blocks follow each other";
      covered = high;
      free += b.is_free() ? high - low : 0;
    });
    EXPECT_EQ(covered, unit.bytes);
    for (const std::uintptr_t inside : {unit.address, unit.address + unit.bytes / 2, unit.end() - 1})
      EXPECT_EQ(map.unit_at(inside), unit);
    EXPECT_EQ(map.unit_bytes(unit.address), unit.bytes);
    EXPECT_EQ(map.unit_bytes(unit.address + 1), 0u);
  });
  EXPECT_EQ(reserved, this->pool.current_usage().reserved);
  EXPECT_EQ(free, this->pool.current_usage().cached);
}

TYPED_TEST(heap_map, finds_units_and_blocks_by_address) {
  const auto map = tessera::detail::introspect(this->pool);
  std::vector<const detail::block*> blocks;
  map.for_each_block([&](const detail::block& b) { blocks.push_back(&b); });
  for (const detail::block* const b : blocks) {
    EXPECT_EQ(map.block_at(b->address), b);
    EXPECT_EQ(map.block_at(b->end() - 1), b);
    if (b->is_unmapped()) {
      EXPECT_EQ(map.unit_at(b->address).bytes, 0u);
      continue;
    }
    std::size_t covered = 0, same = 0;
    map.for_each_unit(
        [&](const auto& unit) {
          EXPECT_LT(unit.address, b->end());
          EXPECT_GT(unit.end(), b->address);
          unit.for_each_block([&](const detail::block& each, std::size_t low, std::size_t high) {
            if (&each == b) covered += high - low;
          });
        },
        b->address, b->end());
    EXPECT_EQ(covered, b->size);
    map.for_each_block_in(b->address, b->end(),
                          [&](const detail::block& each) { same += &each == b ? 1 : 100; });
    EXPECT_EQ(same, 1u);
  }
  EXPECT_EQ(map.block_at(1), nullptr);
  EXPECT_EQ(map.unit_at(1).bytes, 0u);
}

TYPED_TEST(heap_map, idle_bytes_are_what_trim_gives_back) {
  const std::size_t before = this->pool.current_usage().reserved;
  const auto map = tessera::detail::introspect(this->pool);
  std::size_t idle = 0, of_groups = 0;
  map.for_each_idle([&](const auto& group, std::size_t bytes) { idle += group.is_private() ? 0 : bytes; });
  map.for_each_segment([&](const detail::block& first) {
    if (of_groups == 0 && !first.list->where.group->is_private())
      of_groups = map.idle_bytes_of(*first.list->where.group);
  });
  EXPECT_EQ(of_groups, idle);
  this->pool.trim();
  EXPECT_EQ(this->pool.current_usage().reserved, before - idle);
}

}  // namespace
