// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/detail/blocks/free_list_map.hpp>
#include <tessera/detail/blocks/introspection.hpp>

namespace tessera::inline v0_1::detail {

[[nodiscard]] inline block_view view_of(const block& b) noexcept {
  using state = block_view::state;
  if (b.is_free()) return {b.address, b.size, 0, state::free, b.list->key};
  const state is = b.status.state == block::state::pending ? state::pending : state::live;
  return {b.address, b.size, b.request.bytes, is, b.list->key};
}

/// Calls f(const segment_view&, first block, block after the last) for each part of a segment or range that begins with a
/// block: a whole segment, or adjacent mapped blocks that all have memory, or all have none.
///   Cost:  linear in the blocks, and in the pages of a group without memory
template <typename Allocator, typename F>
void for_each_part_of(Allocator& allocator, const block& first, F f) {
  const auto blocks = detail::introspect(allocator);
  constexpr bool has_ranges = decltype(blocks)::has_ranges;
  [[maybe_unused]] std::uintptr_t found_to = 0;  // the end of the last chunk that was found
  const auto is_unbacked = [&](const block& b) {
    if (blocks.has_memory(b)) return false;
    if constexpr (has_ranges)  // an extension may keep a chunk
      blocks.for_each_chunk(b.address, b.address, b.end(),
                            [&found_to](const auto& c) { found_to = c.address + c.bytes; });
    return b.address >= found_to;
  };
  const block* const end = first.prev;
  for (const block* b = &first; b != end;) {
    if (b->is_unmapped()) {
      b = b->next;
      continue;
    }
    const block& low = *b;
    const free_list& list = *low.list;
    segment_view part{low.address,     0, list.key, list.where.pool, has_ranges, {list.where.group->number},
                      is_unbacked(low)};
    for (; b != end && !b->is_unmapped() && is_unbacked(*b) == part.is_unbacked; b = b->next)
      part.bytes += b->size;
    f(static_cast<const segment_view&>(part), low, b);
  }
}

/// Counts the cached bytes of a caching_allocator that trim() cannot release, because live or pending blocks
/// share their segments or pages.
///   Cost:  linear in the blocks, and in ranges in their pages
template <typename Allocator>
[[nodiscard]] std::size_t non_releasable_bytes(Allocator& allocator) {
  const auto blocks = detail::introspect(allocator);
  constexpr bool has_ranges = decltype(blocks)::has_ranges;
  std::size_t result = 0;
  blocks.for_each_segment([&](const block& first) {
    std::size_t free = 0;
    bool any_used = has_ranges;
    for (const block *b = &first, *end = first.prev; b != end; b = b->next) {
      any_used = any_used || !b->is_free();
      if (b->is_free()) free += b->size - (has_ranges ? blocks.releasable(*b) : 0);
    }
    if (any_used) result += free;
  });
  return result;
}

/// Calls f(const segment_view&, const block_view&) for each block of a caching_allocator.
template <typename Allocator, typename F>
void for_each_block_of(Allocator& allocator, F& f) {
  const auto look = [&](const block& first) {
    for_each_part_of(allocator, first, [&f](const segment_view& part, const block& low, const block* after) {
      for (const block* b = &low; b != after; b = b->next) f(part, detail::view_of(*b));
    });
  };
  detail::introspect(allocator).for_each_segment(look, true);
}

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::observe {

/// Calls f(const segment_view&, const block_view&) for each block of an allocator of any kind. The blocks that a
/// plan serves come last.
///
/// The blocks of a segment are visited in address order; segments are visited in no particular order.
/// Segments that are being released are included.
///   Requires:  f does not use the allocator
///
///     std::size_t largest = 0;  // bytes of the largest free block
///     tessera::observe::for_each_block(allocator, [&](const tessera::segment_view&, const tessera::block_view& b) {
///       if (b.is == tessera::block_view::state::free && b.bytes > largest) largest = b.bytes;
///     });
///
///   Cost:  linear in the blocks
template <typename Allocator, typename F>
void for_each_block(Allocator& allocator, F f) {
  if constexpr (requires { detail::introspect(allocator); }) {
    detail::for_each_block_of(allocator, f);
  } else {
    allocator.for_each_allocator([&f](auto& one) { detail::for_each_block_of(one, f); });
  }
  detail::visit_plan_of(allocator, [&f](const auto& plan) { plan.for_each_block(f); });
}

/// Looks up the live block that begins at an address, in any allocator.
///
///     void* const p = allocator.allocate(1000);
///     const tessera::block_view block = tessera::observe::live_block_at(allocator, p);
///     std::printf("%zu bytes serve %zu\n", block.bytes, block.requested);
///     allocator.deallocate(p);
///
///   Returns:  the block; a block of 0 bytes if there is none
///   Cost:     constant
template <typename Allocator>
[[nodiscard]] block_view live_block_at(Allocator& allocator, const void* p) noexcept {
  block_view result{};
  detail::visit_plan_of(allocator, [&result, p](const auto& plan) { result = plan.live_block_at(p); });
  if (result.bytes > 0) return result;
  allocator.visit_owner(p, [&result, p](auto& in) {
    if (const detail::block* const live = detail::introspect(in).find_live(p))
      result = detail::view_of(*live);
  });
  return result;
}

/// Finds the segment of the live block at an address, in any allocator.
///
/// Interprocess handles of CUDA and ACL refer to segments. To share a block, send its segment's handle and
/// its offset in the segment.
///
///     void* const p = allocator.allocate(1000);
///     const tessera::segment_view segment = tessera::observe::segment_of(allocator, p);
///     std::printf("%zu bytes into a segment of %zu\n",
///                 reinterpret_cast<std::uintptr_t>(p) - segment.address, segment.bytes);
///     allocator.deallocate(p);
///
///   Returns:  the segment; a segment of 0 bytes if there is no such block
///   Cost:     linear in the blocks of that segment; for a block that a plan serves, in the plan's places
template <typename Allocator>
[[nodiscard]] segment_view segment_of(Allocator& allocator, const void* p) noexcept {
  segment_view result{};
  detail::visit_plan_of(allocator, [&result, p](const auto& plan) {
    if (plan.live_block_at(p).bytes > 0) result = plan.segment_around(p);
  });
  if (result.bytes > 0) return result;
  allocator.visit_owner(p, [&result, p](auto& in) {
    const detail::block* const live = detail::introspect(in).find_live(p);
    if (live == nullptr) return;
    const detail::block* first = live;
    while (first->prev->status.state != detail::block::state::segment) first = first->prev;
    detail::for_each_part_of(in, *first, [&](const segment_view& part, const auto&...) {
      if (live->address - part.address < part.bytes) result = part;
    });
  });
  return result;
}
}  // namespace tessera::inline v0_1::observe
