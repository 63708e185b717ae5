// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/detail/block.hpp>
#include <tessera/detail/free_list.hpp>

namespace tessera::detail {

/// A block that was handed out and is neither cut nor counted yet: it is when something else is asked of the allocator.
/// Many blocks come back before that, and then nothing was cut, mapped, merged, filed and counted in vain. What is
/// reserved does not depend on it, nor does what the device has; all else is read once it is kept.
struct promise {
  block* from;             ///< the free block that serves
  std::uintptr_t address;  ///< of the part that is promised; 0 where nothing is
  std::size_t size;
  std::size_t requested;
  bool low_end;
  bool oversize;

  /// Gives what is promised to the user, to be found by its address or not.
  ///   Requires:  a make_room() that covers it
  template <typename Heap, typename Books>
  [[gnu::always_inline]] block& keep(Heap& blocks, Books& books, bool by_handle) noexcept {
    const std::size_t pool = from->home->pool();
    const std::size_t rest = from->size - size;
    if constexpr (!Heap::has_ranges) {
      if (from->is_split()) {
        books.split_shrank(pool, rest == 0, size);
      } else if (rest > 0) {
        books.split_grew(pool, 1, rest);
      }
    }
    block& given = blocks.take(*from, address, size, low_end);
    if (by_handle) {
      given.mark.is = block::state::live_by_handle;
      given.facts.requested = requested;
    } else {
      blocks.make_live(given, address, requested);
    }
    books.handed_out(pool, requested, size);
    if (oversize) {
      books.oversize_allocations.increase(1);
      given.note({true, false, by_handle});
    }
    address = 0;
    return given;
  }

  /// The block that is promised comes back.
  template <typename Heap, typename Books>
  [[gnu::always_inline]] void withdraw(Heap& blocks, Books& books) noexcept {
    const std::size_t pool = from->home->pool();
    const std::size_t rest = from->size - size;
    address = 0;
    const bool is_idle = blocks.became_idle(*from);
    if constexpr (!Heap::has_ranges) {
      if (!is_idle) {
        books.split_dipped(pool, rest == 0, size);
      } else if (rest > 0) {
        books.split_rose(pool, rest);
      }
    }
    if (oversize) books.oversize_allocations.increase(1), books.oversize_allocations.decrease(1);
    books.lent(pool, requested, size);
  }
};

}  // namespace tessera::detail
