// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/core/statistics.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/free_list.hpp>

namespace tessera::detail {

/// Walks a heap and names the first broken invariant, or null; `expected` is what the statistics claim.
///   Cost:  linear in the blocks, and where a bin is a treap, its logarithm for each free one
template <typename Heap>
[[nodiscard]] const char* audit(const Heap& blocks, const usage& expected) {
  const char* broken = nullptr;
  const auto require = [&broken](bool holds, const char* rule) {
    if (!holds && broken == nullptr) broken = rule;
  };
  usage found{.cached = blocks.leaving(), .reserved = blocks.leaving()};
  std::size_t live = 0;
  std::size_t free = 0;
  std::size_t of_homes = 0;
  blocks.for_each_segment([&](const block& head, std::size_t) {
    const block* const end = head.below;
    require(!end->is_free(), "a segment ends its row of blocks");
    for (const block* b = &head; b != end; b = b->above) {
      require(b->size > 0, "no block is empty");
      require(b->home == head.home || (Heap::crosses && b->home->pool() == head.home->pool()),
              "all blocks of a segment share one pool, and one stream where they do not cross");
      of_homes += Heap::crosses ? 1 : 0;
      require(b->above->below == b, "neighbours agree");
      if (b->above != end) {
        require(b->above->address == b->address + b->size, "neighbours touch");
        require(!b->is_free() || !b->above->is_free() || b->home != b->above->home,
                "free neighbours are merged");
        require(!b->is_unmapped() || !b->above->is_unmapped(), "unmapped neighbours are merged");
      }
      if (b->is_unmapped()) continue;
      found.reserved += b->size;
      if (b->is_free()) {
        ++free;
        found.cached += b->size;
        continue;
      }
      found.requested += b->facts.requested;
      require(b->facts.requested <= b->size, "a block holds what was requested");
      if (b->mark.is == block::state::pending) {
        found.pending += b->size;
        require(b->facts.awaited > 0, "a pending block awaits an event");
      } else {
        found.live += b->size;
        if (b->is_by_handle()) continue;
        ++live;
        require(blocks.find_live(reinterpret_cast<const void*>(b->address)) == b,
                "a live block is found by address");
      }
    }
  });
  std::size_t indexed = 0;
  blocks.for_each_home([&](const free_list& home) {
    if (Heap::crosses) of_homes -= home.segments;
    if (const block* const held = home.in_hand(); held != nullptr) {
      ++indexed;
      require(held->is_free() && held->home == &home, "the block in hand is free");
    }
    using order = typename Heap::block_order;
    for (const block *b = home.lowest(), *last = nullptr; b != nullptr;
         last = b, b = home.template after<order>(*b)) {
      ++indexed;
      require(b->is_free() && b->home == &home, "an index holds its own free blocks only");
      require(last == nullptr || !order::is_by_size || order::precedes(*last, *b),
              "an index is in its order, by size first");
    }
  });
  require(indexed == free, "each free block is indexed once");
  require(of_homes == 0 || blocks.leaving() > 0, "homes count their blocks");
  require(live == blocks.live_count(), "each live block is mapped once");
  require(found.requested == expected.requested, "statistics: requested bytes");
  require(found.live == expected.live, "statistics: live bytes");
  require(found.pending == expected.pending, "statistics: pending bytes");
  require(found.cached == expected.cached, "statistics: cached bytes");
  require(found.reserved == expected.reserved, "statistics: reserved bytes");
  return broken;
}

}  // namespace tessera::detail
