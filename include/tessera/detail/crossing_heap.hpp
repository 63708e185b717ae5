// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/detail/block.hpp>
#include <tessera/detail/free_list.hpp>
#include <tessera/detail/heap.hpp>

namespace tessera::detail {

/// Free blocks that lie side by side.
struct row {
  block* first = nullptr;  ///< null where there is none
  const block* end = nullptr;
  std::size_t bytes = 0;
};

/// A heap whose free blocks may cross from one stream's home to another's, of the same pool.
///
/// Blocks merge at a free only where they wait in one home: one that was free behind the work of two streams would be
/// free for neither at once, and what serves a stream at once is what homes are for. Free neighbours of several homes
/// count as one row where memory is wanted, or is to go back, and are gathered then.
template <std::size_t Pools>
class crossing_heap : public heap<Pools, false, true> {
 public:
  /// Lets a live block be free in another home, once it is.
  void change_home(block& live, free_list& home) noexcept {
    this->count_in(*live.home, -1);
    live.home = &home;
    this->count_in(home, 1);
  }

  /// Whether the blocks of a pool have more homes than one.
  [[nodiscard]] bool has_several_homes(std::size_t pool) const noexcept {
    int count = 0;
    this->for_each_home([&](const free_list& home) { count += home.pool() == pool ? 1 : 0; });
    return count > 1;
  }
  /// The smallest row in a pool that holds `size` bytes, of blocks of which each is usable(block), the lowest among equals.
  ///   Cost:  linear in the blocks
  template <typename F>
  [[nodiscard]] row smallest_row(std::size_t pool, std::size_t size, F usable) const noexcept {
    row best;
    this->for_each_segment([&](block& head, std::size_t) {
      if (head.home->pool() != pool) return;
      row here;
      for (block* b = &head; here.end != head.below; b = b->above) {
        if (b->is_free() && usable(*b)) {
          if (here.first == nullptr) here.first = b;
          here.bytes += b->size;
          continue;
        }
        here.end = b;
        if (here.bytes >= size && (best.first == nullptr || precedes(here, best))) best = here;
        here = {nullptr, b, 0};
      }
    });
    return best;
  }

  /// Cuts `size` bytes off the low end of a free block; both stay free. Returns the part. The observer is make_free's.
  ///   Requires:  a make_room() that covers it; size < rest.size
  template <typename SplitCounter>
  block& split_free(block& rest, std::size_t size, SplitCounter split) noexcept {
    rest.is_split() ? split.grew(1, 0) : split.grew(2, rest.size);
    block& part = this->cut(rest, rest.address, size, true);
    part.free_behind = rest.free_behind;
    part.home->insert(part);
    return part;
  }
  /// Makes one free block, in `home`, out of a row.
  template <typename SplitCounter>
  void gather(const row& of, free_list& home, SplitCounter split) noexcept {
    block& whole = *of.first;
    const bool was_split = whole.is_split();
    int count = 0;
    std::size_t bytes = 0;
    for (block *b = &whole, *following = nullptr; b != of.end; b = following, ++count) {
      following = b->above;
      bytes += b->size;
      b->home->remove(*b);
      this->count_in(*b->home, -1);
      if (b == &whole) continue;
      b->unlink();
      this->blocks_.give_back(b);
    }
    whole.size = bytes;
    whole.home = &home;
    this->count_in(home, 1);
    home.insert(whole);
    if (was_split) this->became_idle(whole) ? split.shrank(count, bytes) : split.grew(1 - count, 0);
  }

 private:
  static bool precedes(const row& a, const row& b) noexcept {
    return a.bytes < b.bytes || (a.bytes == b.bytes && a.first->address < b.first->address);
  }
};

}  // namespace tessera::detail
