// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/detail/blocks/free_list_map.hpp>

namespace tessera::inline v0_1::detail {

/// Memory that goes back to the device as a whole: a segment, or in ranges a physical chunk.
struct heap_unit {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;  ///< 0 for none
  [[nodiscard]] std::uintptr_t end() const noexcept { return address + bytes; }
  bool operator==(const heap_unit&) const = default;
};

/// Walks and finds the memory of an allocator: its segments, blocks and units, by address or all. introspect() makes one
/// that only reads. With `Block` = `block`, which core_access::map() makes for extensions, blocks may be changed.
///
/// It stays valid, but what it found does not outlive the next change of the allocator. Segments that the device is being
/// asked to take back are left out, unless a call says otherwise.
template <typename Manager, typename Backend, typename Block = const block>
class heap_map {
 public:
  using group = typename Manager::group;

  /// A unit, with the lowest block that has bytes of it.
  struct unit : heap_unit {
    Block* lowest;
    /// Calls f(block, low, high) for each block with bytes of the unit: those from the offset `low` up to `high`.
    void for_each_block(auto f) const {
      const std::uintptr_t begin = this->address;
      const std::uintptr_t end = this->end();
      for (Block* b = lowest; b->status.state != block::state::segment && b->address < end; b = b->next)
        f(*b, larger(b->address, begin) - begin, smaller(b->end(), end) - begin);
    }
  };

  heap_map(const Manager& manager, const Backend& backend) noexcept
      : manager_(&manager), backend_(&backend) {}

  /// Whether segments are ranges of addresses in which memory is mapped and unmapped.
  static constexpr bool has_ranges = Manager::traits::has_ranges;

  /// Calls f(block) with the first block of each segment, in no particular order. `first.prev` is the segment, which ends
  /// the list of its blocks. With `with_releasing`, includes the segments that the device is being asked to take back.
  void for_each_segment(auto f, bool with_releasing = false) const {
    manager_->for_each_segment([&f](Block& first) { f(first); }, with_releasing);
  }
  /// Calls f(block) with the first block of each segment of a group.
  void for_each_segment_of(const pool_group& in, auto f) const {
    for_each_segment([&](Block& first) {
      if (first.list->where.group == &in) f(first);
    });
  }
  /// Calls f(const block&) for each block of these segments.
  void for_each_block(auto f, bool with_releasing = false) const {
    manager_->for_each_block(f, with_releasing);
  }
  /// Calls f(block) for each block with bytes in [begin, end). f may split that block, or make it free, so that it merges with
  /// its neighbours, but may change no other.
  void for_each_block_in(std::uintptr_t begin, std::uintptr_t end, auto f) const {
    (void)find_in(begin, end, [&f](Block& b) {
      f(b);
      return false;
    });
  }
  /// Finds a block with bytes in [begin, end) for which which(block) is true, or null.
  ///   Cost:  linear in the segments, and in the blocks of those with such bytes
  [[nodiscard]] Block* find_in(std::uintptr_t begin, std::uintptr_t end, auto which) const {
    Block* found = nullptr;
    for_each_segment([&](Block& first) {
      Block* const owner = first.prev;
      if (found != nullptr || first.address >= end || begin >= owner->prev->end()) return;
      for (Block* b = &first; b != owner && b->address < end;) {
        const std::uintptr_t top = b->end();
        // It stays if `which` makes the block free: a block merges into the lower neighbour, or else into the higher one.
        const block* const before = b->prev;
        if (begin < top && which(*b)) {
          found = b;
          return;
        }
        for (b = before->next; b != owner && b->end() <= top;) b = b->next;
      }
    });
    return found;
  }
  /// Finds the block that an address lies in, or null. It may be unmapped.
  [[nodiscard]] Block* block_at(std::uintptr_t address) const {
    return find_in(address, address + 1, [](const block&) { return true; });
  }
  /// Finds the live block that begins at an address, or null.
  ///   Cost:  constant
  [[nodiscard]] Block* find_live(const void* p) const noexcept { return manager_->find_live(p); }
  /// Returns the requested bytes of the live block at an address; 0 if there is none.
  [[nodiscard]] std::size_t requested_at(const void* p) const noexcept {
    const block* const live = find_live(p);
    return live != nullptr ? live->request.bytes : 0;
  }

  /// Calls f(unit) for each unit with bytes in [begin, end); in a range, in the order of addresses. Memory that sleeps is no
  /// unit. f changes no block.
  ///   Cost:  linear in the segments; in ranges, also in the blocks of those with such bytes and in these bytes
  void for_each_unit(auto f, std::uintptr_t begin = 0, std::uintptr_t end = ~std::uintptr_t{0}) const {
    for_each_segment([&](Block& first) {
      if (first.address < end && begin < first.address + segment_bytes(first))
        for_each_unit_of(first, f, begin, end);
    });
  }
  /// Does the same in the segment of its first block.
  void for_each_unit_of(Block& first, auto f, std::uintptr_t begin = 0,
                        std::uintptr_t end = ~std::uintptr_t{0}) const {
    if constexpr (has_ranges) {
      const block* const owner = first.prev;
      for (Block *low = &first, *after = nullptr; low != owner; low = after) {
        after = low->next;
        if (low->is_unmapped()) continue;
        while (after != owner && !after->is_unmapped()) after = after->next;
        const std::uintptr_t top = after->prev->end();  // of adjacent mapped blocks
        if (begin >= top) continue;
        for_each_chunk(low->address, larger(begin, low->address), smaller(end, top), [&](const auto& c) {
          while (low->end() <= c.address) low = low->next;
          f(unit{{c.address, c.bytes}, low});
        });
      }
    } else {
      f(unit{{first.address, segment_bytes(first)}, &first});
    }
  }
  /// The unit that an address lies in; of 0 bytes if there is none.
  [[nodiscard]] heap_unit unit_at(std::uintptr_t address) const {
    heap_unit found;
    for_each_segment([&](const block& first) {
      if (address < first.address || address - first.address >= segment_bytes(first)) return;
      if constexpr (has_ranges)
        for_each_chunk(first.address, address, address + 1,
                       [&](const auto& c) { found = {c.address, c.bytes}; });
      else
        found = {first.address, segment_bytes(first)};
    });
    return found;
  }
  /// The bytes of the unit that begins at an address; 0 if none does.
  ///   Cost:  constant in ranges; otherwise linear in the segments
  [[nodiscard]] std::size_t unit_bytes(std::uintptr_t address) const {
    if constexpr (has_ranges) {
      const auto* const c = backend_->ranges().chunks().find(address);
      return c != nullptr ? c->bytes : 0;
    } else {
      const heap_unit found = unit_at(address);
      return found.address == address ? found.bytes : 0;
    }
  }
  /// In ranges: calls f(chunk) for each physical chunk that begins at `low` or above and has bytes in [begin, end).
  ///   Cost:  linear in these bytes; if no chunk has `begin`, also in those down to `low`
  void for_each_chunk(std::uintptr_t low, std::uintptr_t begin, std::uintptr_t end, auto f) const {
    backend_->ranges().for_each_chunk_with(low, begin, end, f);
  }
  /// Calls f(group, bytes) for the memory that emptying the cache gives back if it may release that group: segments, and in
  /// ranges chunks, of free and withheld blocks. Segments that are being released count, too.
  ///   Cost:  linear in the segments; in ranges, in the blocks
  void for_each_idle(auto f) const {
    for_each_segment(
        [&](const block& first) {
          if constexpr (has_ranges) {
            for (const block *b = &first, *end = first.prev; b != end; b = b->next) {
              if (!b->is_idle()) continue;
              const block& low = *b;
              while (b->next->is_idle()) b = b->next;
              f(group_of(low), backend_->ranges().releasable(low, *b));
            }
          } else {
            const std::size_t bytes = idle_bytes(first);
            if (bytes > 0 && manager_->may_unmap(first.address, bytes)) f(group_of(first), bytes);
          }
        },
        true);
  }
  /// The bytes that emptying the cache gives back of a group, if it may release that group.
  [[nodiscard]] std::size_t idle_bytes_of(const pool_group& in) const {
    std::size_t sum = 0;
    for_each_idle([&](const pool_group& of, std::size_t bytes) { sum += &of == &in ? bytes : 0; });
    return sum;
  }
  /// Returns the bytes of a free block that can go back to the device.
  [[nodiscard]] std::size_t releasable(const block& free) const noexcept {
    return backend_->releasable(free);
  }

  /// The group that a block belongs to.
  [[nodiscard]] static group& group_of(const block& b) noexcept { return Manager::group_of(*b.list); }
  /// Whether a block belongs to the pool that serves requests of a stream.
  [[nodiscard]] bool serves_requests(const block& b, std::size_t pool, stream_id stream) const noexcept {
    return b.list->where.pool == pool && b.list->where.group == &manager_->group_for(stream);
  }
  /// Whether emptying the cache gives back the idle memory of a block's group.
  [[nodiscard]] bool may_release(const block& b) const noexcept { return manager_->may_release(group_of(b)); }
  /// Whether the memory of a block's group is mapped.
  [[nodiscard]] bool has_memory(const block& b) const noexcept {
    return manager_->extensions().has_memory(group_of(b));
  }
  /// Whether the device may be waited for, so that recovery can empty the cache.
  [[nodiscard]] bool may_wait() const noexcept { return manager_->may_wait(); }

  [[nodiscard]] const auto& provider() const noexcept { return manager_->provider(); }
  [[nodiscard]] usage usage_under(std::size_t limit) const noexcept { return manager_->usage_under(limit); }
  /// Whether reserving `bytes` more would exceed `limit`, or a limit that the provider knows.
  [[nodiscard]] bool would_exceed_limit(std::size_t limit, std::size_t bytes) const noexcept {
    return manager_->would_exceed_limit(limit, bytes);
  }

 private:
  const Manager* manager_;
  const Backend* backend_;
};

}  // namespace tessera::inline v0_1::detail
