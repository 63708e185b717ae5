// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>

namespace tessera::detail {

/// Finds the first broken invariant of a block manager. `expected` is the usage according to the statistics.
///   Returns:  the invariant as text, or null
///   Cost:     linear in the blocks; logarithmic for each free block in a treap
template <typename Manager>
[[nodiscard]] const char* audit(const Manager& manager, const usage& expected) {
  constexpr bool shares = Manager::traits::reuses_across_streams;
  const char* broken = nullptr;
  const auto must_hold = [&broken](bool holds, const char* rule) {
    if (!holds && broken == nullptr) broken = rule;
  };
  usage found{.cached = manager.releasing_bytes(), .reserved = manager.releasing_bytes()};
  std::size_t live = 0;
  std::size_t free = 0;
  std::size_t in_lists = 0;
  manager.for_each_segment([&](const block& head) {
    const block* const end = head.prev;
    must_hold(!end->is_free(), "a segment closes its list of blocks");
    for (const block* b = &head; b != end; b = b->next) {
      must_hold(b->size > 0, "no block is empty");
      must_hold(b->list == head.list || (shares && b->list->where() == head.list->where()),
                "all blocks of a segment share one pool, and one stream unless streams share blocks");
      in_lists += shares ? 1 : 0;
      must_hold(b->next->prev == b, "neighbours agree");
      if (b->next != end) {
        must_hold(b->next->address == b->address + b->size, "neighbours touch");
        must_hold(!b->is_free() || !b->next->is_free() || b->list != b->next->list,
                  "free neighbours are coalesced");
        must_hold(!b->is_unmapped() || !b->next->is_unmapped(), "unmapped neighbours are joined");
      }
      if (b->is_unmapped()) continue;
      found.reserved += b->size;
      if (b->is_free()) {
        ++free;
        found.cached += b->size;
        continue;
      }
      found.requested += b->request.bytes;
      found.active += b->size;
      must_hold(b->request.bytes <= b->size, "a block holds what was requested");
      if (b->status.state == block::state::pending) {
        must_hold(b->request.pending_events > 0, "a pending block awaits an event");
      } else {
        found.allocated += b->size;
        if (b->is_by_handle()) continue;
        ++live;
        must_hold(manager.find_live(reinterpret_cast<const void*>(b->address)) == b,
                  "a live block is found by address");
      }
    }
  });
  std::size_t in_groups = 0;
  manager.for_each_group([&in_groups](const auto& of) { in_groups += of.reserved; });
  must_hold(in_groups == expected.reserved, "the groups of free lists have what is reserved");
  std::size_t indexed = 0;
  manager.for_each_list([&](const free_list& list) {
    if (shares) in_lists -= list.segments;
    if (const block* const resized = list.last_resized(); resized != nullptr) {
      ++indexed;
      must_hold(resized->is_free() && resized->list == &list, "the last resized block is free");
    }
    using order = typename Manager::order;
    for (const block *b = list.first(), *last = nullptr; b != nullptr;
         last = b, b = list.template after<order>(*b)) {
      ++indexed;
      must_hold(b->is_free() && b->list == &list, "an index holds its own free blocks only");
      must_hold(last == nullptr || !order::is_by_size || order::precedes(*last, *b),
                "an index is in its order, by size first");
    }
  });
  must_hold(indexed == free, "each free block is indexed once");
  must_hold(in_lists == 0 || manager.releasing_bytes() + manager.requested_bytes() > 0,
            "free lists count their blocks");
  must_hold(live == manager.live_count(), "each live block is mapped once");
  must_hold(found.requested == expected.requested, "statistics: requested bytes");
  must_hold(found.allocated == expected.allocated, "statistics: allocated bytes");
  must_hold(found.active == expected.active, "statistics: active bytes");
  must_hold(found.cached == expected.cached, "statistics: cached bytes");
  must_hold(found.reserved == expected.reserved + expected.unbacked, "statistics: reserved bytes");
  return broken;
}

}  // namespace tessera::detail
