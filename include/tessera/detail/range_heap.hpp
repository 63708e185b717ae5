// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/core/free_order.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/free_list.hpp>
#include <tessera/detail/heap.hpp>

namespace tessera::detail {

/// Calls f(unmapped block) for each of a home's, in the order of addresses, until it says true.
template <typename F>
void for_each_unmapped(const free_list& home, F f) {
  for (const segment* range = home.ranges; range != nullptr; range = range->next_range) {
    for (block* b = range->links[1]; b != range; b = b->links[1]) {
      if (f(*b)) return;
    }
  }
}

/// A heap whose segments are ranges of addresses, in which some parts are unmapped: no memory is behind them. Such a part
/// is a block that is neither free nor anybody's. Two of them are never neighbours.
///
/// The unmapped parts of a range are a ring in the order of addresses, closed by the range's segment.
template <std::size_t Pools, free_order Order = free_order::lowest_address>
class range_heap : public heap<Pools, true, false, Order> {
 public:
  /// Files a range in which nothing is mapped yet; null where host memory ran out.
  [[nodiscard]] block* add_range(free_list& home, std::uintptr_t address, std::size_t bytes) noexcept {
    if (!this->segments_.reserve_one() || !this->blocks_.reserve(3)) return nullptr;
    segment& fresh = this->segments_.add(0, false);
    fresh.address = address;
    fresh.size = bytes;
    fresh.number = ++this->last_number_;
    segment** before = &home.ranges;
    while (*before != nullptr && (*before)->address < address) before = &(*before)->next_range;
    fresh.next_range = *before;
    *before = &fresh;
    ++home.segments;
    fresh.home = &home;
    fresh.link(fresh, fresh);
    fresh.links[0] = fresh.links[1] = &fresh;
    return &unmapped_beside(fresh, address, bytes);
  }
  /// Forgets a range of which nothing is mapped.
  void remove_range(block& whole) noexcept {
    segment& range = segment_of(whole);
    segment** before = &whole.home->ranges;
    while (*before != &range) before = &(*before)->next_range;
    *before = range.next_range;
    --whole.home->segments;
    this->segments_.set_aside(range, 0);
    this->segments_.forget(range, 0);
    this->blocks_.give_back(&whole);
  }

  /// Lets a part of an unmapped block become free, merged with its free neighbours; returns what it became.
  ///   Requires:  a make_room() that covers it; the part lies in the block
  block& fill(block& unmapped, std::uintptr_t address, std::size_t bytes) noexcept {
    const std::size_t low = address - unmapped.address;
    const std::size_t high = unmapped.size - low - bytes;
    block* filled = &unmapped;
    if (low > 0) {
      filled = &unmapped_beside(unmapped, address, unmapped.size - low);
      unmapped.size = low;
    }
    if (high > 0) {
      (void)unmapped_beside(*filled, address + bytes, high);
      filled->size = bytes;
    }
    unring(*filled);
    block& kept = filled->below->is_free()   ? *filled->below
                  : filled->above->is_free() ? *filled->above
                                             : *filled;
    this->make_free(*filled, filled->address, nobody{});
    return kept;
  }

  /// Lets a part of a free block become unmapped, merged with what is unmapped beside it; returns the unmapped block.
  ///   Requires:  a make_room() that covers it; the part lies in the block
  block& hollow(block& free, std::uintptr_t address, std::size_t bytes) noexcept {
    block* hole = &this->take(free, address, bytes, address == free.address);
    hole->mark.is = block::state::unmapped;
    block* before = hole->below;
    while (!before->is_unmapped() && before->mark.is != block::state::segment) before = before->below;
    ring(*before, *hole, *before->links[1]);
    if (hole->above->is_unmapped()) join(*hole, *hole->above);
    if (hole->below->is_unmapped()) hole = hole->below, join(*hole, *hole->above);
    return *hole;
  }

 private:
  struct nobody {
    static constexpr void grew(int, std::size_t) noexcept {}
    static constexpr void shrank(int, std::size_t) noexcept {}
  };
  static void ring(block& low, block& b, block& high) noexcept {
    b.links[0] = &low;
    b.links[1] = &high;
    low.links[1] = &b;
    high.links[0] = &b;
  }
  static void unring(block& b) noexcept {
    b.links[0]->links[1] = b.links[1];
    b.links[1]->links[0] = b.links[0];
  }
  /// A new unmapped block right above another one.
  block& unmapped_beside(block& below, std::uintptr_t address, std::size_t bytes) noexcept {
    block& made = *this->blocks_.take();
    made.address = address;
    made.size = bytes;
    made.home = below.home;
    made.mark.is = block::state::unmapped;
    made.link(below, *below.above);
    ring(below, made, *below.links[1]);
    return made;
  }
  /// Merges two unmapped neighbours.
  void join(block& low, block& high) noexcept {
    low.size += high.size;
    unring(high);
    high.unlink();
    this->blocks_.give_back(&high);
  }
};

}  // namespace tessera::detail
