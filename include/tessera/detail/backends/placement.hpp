// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tuple>

#include <tessera/detail/backends/mapped_ranges.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>

namespace tessera::inline v0_1::detail {

/// Returns the total bytes of the pages that lie wholly in [begin, end). Pages begin at multiples of `page`.
[[nodiscard]] inline std::size_t whole_pages(std::uintptr_t begin, std::uintptr_t end,
                                             std::size_t page) noexcept {
  const std::uintptr_t first = align_up(begin, page);
  const std::uintptr_t last = end / page * page;
  return last > first ? last - first : 0;
}

/// Addresses of a range that could hold a block. They belong to free blocks, and to unmapped blocks that
/// would be mapped.
struct placement {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  block* first = nullptr;                  ///< the block in which it begins; null for no placement
  std::size_t unmapped_bytes = unlimited;  ///< bytes to be mapped
  std::size_t consumed_page_bytes =
      0;  ///< bytes of the whole free pages that it would break into, plus unmapped_bytes
  std::size_t free_bytes = 0;  ///< bytes of the free blocks that it overlaps
};

/// Searches the ranges of a free list for the placement with the lowest cost.
class placement_search {
 public:
  /// Pages and unmapped blocks begin at multiples of `page`. The best placement has the fewest unmapped
  /// bytes. With `should_save_pages`, it consumes the fewest pages instead. Ties are decided by the fewest
  /// free bytes in overlapped blocks, then by the lowest address.
  placement_search(std::size_t size, std::size_t page, bool should_save_pages) noexcept
      : size_(size), page_(page), saves_pages_(should_save_pages) {}

  /// Finds the best placement. A candidate begins or ends at a free block, or at an end of the unused
  /// addresses.
  [[nodiscard]] placement best(const free_list& list) noexcept {
    for_each_unmapped(list, [this](block& b) {
      const bool is_first = !b.prev->is_free() || !b.prev->prev->is_unmapped();
      if (is_first) consider_run(b.prev->is_free() ? *b.prev : b);
    });
    return best_;
  }

 private:
  /// Considers a run of free and unmapped blocks between blocks in use, from its lowest block.
  void consider_run(block& lowest) noexcept {
    block* highest = &lowest;
    while (highest->next->is_unused()) highest = highest->next;
    const std::uintptr_t begin = lowest.address;
    const std::uintptr_t end = highest->end();
    const bool is_open_ended = highest->is_unmapped() && highest->next->status.state == block::state::segment;
    for (block* b = &lowest; end - b->address >= size_; b = b->next) {
      if (b->is_free() || b == &lowest || (b == highest && is_open_ended)) consider_upwards(*b);
      if (b == highest) break;
    }
    for (block* b = highest; b->end() - begin >= size_; b = b->prev) {
      if (b->is_free() || (b == highest && !is_open_ended)) consider_downwards(*b);
      if (b == &lowest) break;
    }
  }
  void consider_upwards(block& from) noexcept {
    placement p{.begin = from.address, .end = from.address + size_, .first = &from, .unmapped_bytes = 0};
    for (const block* b = &from; b->is_unused() && b->address < p.end; b = b->next)
      add(p, *b, align_up(p.end - b->address, page_));
    consider(p);
  }
  void consider_downwards(block& from) noexcept {
    placement p{.begin = from.end() - size_, .end = from.end(), .first = &from, .unmapped_bytes = 0};
    while (true) {
      add(p, *p.first, align_up(p.first->end() - p.begin, page_));
      if (p.first->address <= p.begin) return consider(p);
      p.first = p.first->prev;
    }
  }
  /// Adds the cost of a block to a placement. At most `to_map` bytes of the block would be mapped.
  void add(placement& p, const block& b, std::size_t to_map) const noexcept {
    if (b.is_unmapped()) {
      p.unmapped_bytes += to_map < b.size ? to_map : b.size;
    } else {
      p.free_bytes += b.size;
      p.consumed_page_bytes += whole_pages_in(b.address, b.end()) - whole_pages_in(b.address, p.begin) -
                               whole_pages_in(p.end, b.end());
    }
  }
  void consider(placement& p) noexcept {
    p.consumed_page_bytes += p.unmapped_bytes;
    const auto cost = [this](const placement& of) {
      return std::tuple(saves_pages_ ? of.consumed_page_bytes : 0, of.unmapped_bytes, of.free_bytes);
    };
    if (best_.first == nullptr || cost(p) < cost(best_)) best_ = p;
  }
  [[nodiscard]] std::size_t whole_pages_in(std::uintptr_t begin, std::uintptr_t end) const noexcept {
    return whole_pages(begin, end, page_);
  }

  std::size_t size_;
  std::size_t page_;
  bool saves_pages_;
  placement best_{};
};

}  // namespace tessera::inline v0_1::detail
