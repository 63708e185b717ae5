// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>

#include <tessera/core/bytes.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/free_list.hpp>
#include <tessera/detail/range_heap.hpp>

namespace tessera::detail {

/// Bytes of the pages, each at a multiple of `page`, that lie in [begin, end) as a whole.
[[nodiscard]] inline std::size_t whole_pages(std::uintptr_t begin, std::uintptr_t end,
                                             std::size_t page) noexcept {
  const std::uintptr_t first = align_up(begin, page);
  const std::uintptr_t last = end / page * page;
  return last > first ? last - first : 0;
}

/// Addresses of a range where a block could come to lie: of free blocks, and of unmapped ones that would be mapped.
struct window {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  block* first = nullptr;           ///< the block in which it begins; null where there is no window
  std::size_t missing = unlimited;  ///< bytes to be mapped
  std::size_t taken = 0;      ///< bytes of whole free pages that it would break into, and those to be mapped
  std::size_t fragments = 0;  ///< bytes of the free blocks that it touches
};

/// Looks through a home for the window that costs least.
class window_search {
 public:
  /// Pages begin at multiples of `page`, as does all that is unmapped. Least is what misses fewest bytes; where pages are
  /// to be saved, what takes the fewest. Among equals, what touches the smallest free blocks, then the lowest.
  window_search(std::size_t size, std::size_t page, bool saves_pages) noexcept
      : size_(size), page_(page), saves_pages_(saves_pages) {}

  /// The best window in the ranges of a home; each begins or ends with a free block, or at an end of what is not in use.
  [[nodiscard]] window best(const free_list& home) noexcept {
    for_each_unmapped(home, [this](block& b) {
      const bool is_first = !b.below->is_free() || !b.below->below->is_unmapped();
      if (is_first) look_at(b.below->is_free() ? *b.below : b);
      return false;
    });
    return best_;
  }

 private:
  /// A row of free and unmapped blocks between blocks in use, from its lowest one.
  void look_at(block& lowest) noexcept {
    block* highest = &lowest;
    while (highest->above->is_open()) highest = highest->above;
    const std::uintptr_t begin = lowest.address;
    const std::uintptr_t end = highest->end();
    const bool is_open_ended = highest->is_unmapped() && highest->above->mark.is == block::state::segment;
    for (block* b = &lowest; end - b->address >= size_; b = b->above) {
      if (b->is_free() || b == &lowest || (b == highest && is_open_ended)) upwards(*b);
      if (b == highest) break;
    }
    for (block* b = highest; b->end() - begin >= size_; b = b->below) {
      if (b->is_free() || (b == highest && !is_open_ended)) downwards(*b);
      if (b == &lowest) break;
    }
  }
  void upwards(block& from) noexcept {
    window w{.begin = from.address, .end = from.address + size_, .first = &from, .missing = 0};
    for (const block* b = &from; b->is_open() && b->address < w.end; b = b->above)
      add(w, *b, align_up(w.end - b->address, page_));
    consider(w);
  }
  void downwards(block& from) noexcept {
    window w{.begin = from.end() - size_, .end = from.end(), .first = &from, .missing = 0};
    while (true) {
      add(w, *w.first, align_up(w.first->end() - w.begin, page_));
      if (w.first->address <= w.begin) return consider(w);
      w.first = w.first->below;
    }
  }
  /// Adds what a block contributes, of which `reach` bytes would be mapped at most.
  void add(window& w, const block& b, std::size_t reach) const noexcept {
    if (b.is_unmapped()) {
      w.missing += reach < b.size ? reach : b.size;
    } else {
      w.fragments += b.size;
      w.taken +=
          whole_pages(b.address, b.end()) - whole_pages(b.address, w.begin) - whole_pages(w.end, b.end());
    }
  }
  void consider(window& w) noexcept {
    w.taken += w.missing;
    const auto cost = [this](const window& of) {
      return std::tuple(saves_pages_ ? of.taken : 0, of.missing, of.fragments);
    };
    if (best_.first == nullptr || cost(w) < cost(best_)) best_ = w;
  }
  [[nodiscard]] std::size_t whole_pages(std::uintptr_t begin, std::uintptr_t end) const noexcept {
    return detail::whole_pages(begin, end, page_);
  }

  std::size_t size_;
  std::size_t page_;
  bool saves_pages_;
  window best_{};
};

}  // namespace tessera::detail
