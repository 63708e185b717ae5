// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <tessera/core/allocator_event.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/range_heap.hpp>
#include <tessera/detail/range_machine.hpp>
#include <tessera/detail/window.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::detail {

/// A range_machine whose pieces may be of any size, and move from where they are idle, in any pool and on any stream, to
/// where memory is wanted.
template <virtual_memory_provider Provider, event_observer Observer, typename Counting, std::size_t Pools,
          bool UsesEvents>
class stitching_machine : public range_machine<Provider, Observer, Counting, Pools, UsesEvents> {
  using base = range_machine<Provider, Observer, Counting, Pools, UsesEvents>;
  using piece = typename base::piece;

 public:
  using base::base;
  using typename base::action;
  ~stitching_machine() { drop_spare(); }

  /// What is known where memory is to be got for another block, which is counted as live already.
  [[nodiscard]] growth_state state(std::size_t size, std::size_t limit) noexcept {
    const usage now = this->usage_under(limit);
    const std::size_t live = now.live + now.pending + size;
    if (live > peak_live_) peak_live_ = live;
    return {now.reserved, now.limit, peak_live_, peak_reserved_};
  }

  /// The best-fitting free block.
  [[nodiscard]] block* best_fit(free_list& home, std::size_t size) noexcept {
    return this->heap_.best_fit(home, size);
  }
  /// Bytes to leave out at the start of a free block: so that a block lies where a window was made for it, and else as in
  /// any range.
  [[nodiscard]] std::size_t gap(const block& free, std::size_t size, std::size_t alignment) noexcept {
    const std::uintptr_t begin = std::exchange(window_begin_, 0);
    const bool fits =
        begin >= free.address && begin <= free.end() && size <= free.end() - begin && begin % alignment == 0;
    return fits ? begin - free.address : base::gap(free, size, alignment);
  }

  /// Bytes of whole free pages that `size` bytes at the start of a free block would break into.
  [[nodiscard]] static std::size_t breaks(const block& free, std::size_t size, std::size_t page) noexcept {
    return whole_pages(free.address, free.end(), page) - whole_pages(free.address + size, free.end(), page);
  }

  /// Where `size` bytes could come to lie; where no range has room, in a new one of `range` bytes, unless that is 0. None
  /// where that cannot be had.
  [[nodiscard]] window find(free_list& home, std::size_t size, std::size_t page, std::size_t range,
                            bool saves_pages) noexcept {
    this->note_granule(page);
    this->pieces_.retry_stray(this->device_);
    const window found = window_search(size, page, saves_pages).best(home);
    if (found.first != nullptr || range == 0) return found;
    (void)this->add_range(home, size, {page, range, {}});
    return window_search(size, page, saves_pages).best(home);
  }

  /// Takes idle pieces that lie outside a window away from where they are mapped, few and `wanted` bytes together if
  /// there are as many; none where there are not `needed` bytes. What is taken is spare until drop_spare().
  ///   Returns:  bytes taken
  std::size_t take_idle(const window& around, std::size_t wanted, std::size_t needed) noexcept {
    if (choose_idle(around, wanted) < needed) return 0;
    std::size_t taken = 0;
    this->heap_.for_each_idle(
        [&](block& idle) {
          const std::size_t from_here = this->take_pieces(
              idle, [](const piece& p) { return p.is_chosen; },
              [this](piece& p, block&) { p.next = std::exchange(spare_, &p); });
          return taken += from_here, from_here > 0;
        },
        this->granule());
    return taken;
  }

  /// The block that is handed out next is to lie just at the window that map() made for it.
  void place_at(const window& w) noexcept { window_begin_ = w.begin; }

  /// Maps a window from spare and new pieces, all or nothing, and returns the free block that it became part of, or null
  /// where the device refuses. Spare pieces that are of no use go back before new ones are taken, so that the device never
  /// holds more than is reserved before or after. `largest(reserved)` says how large a piece may be; the last one is up to `least` bytes
  /// where addresses behind the window are free, and no more than `room` bytes are mapped in all.
  template <typename Largest>
  [[nodiscard]] block* map(window w, free_list& home, const page_order& kinds, std::size_t page,
                           std::size_t least, std::size_t room, Largest largest) noexcept {
    locate(w, home);
    piece* made = nullptr;
    piece** last = &made;
    std::size_t bytes = 0;
    std::size_t holes = 0;
    bool works = true;
    for (const block* b = w.first; works && b->is_open() && b->address < w.end; b = b->above) {
      if (!b->is_unmapped()) continue;
      ++holes;
      const auto [begin, needed_end] = part(w, *b, page);
      std::uintptr_t end = needed_end;
      const std::uintptr_t stretched = begin + least < b->end() ? begin + least : b->end();
      if (end >= w.end && stretched > end && bytes + (stretched - begin) <= room) end = stretched;
      for (std::uintptr_t at = begin; works && at < end; at += (*last)->bytes, last = &(*last)->next) {
        const std::size_t most = largest(this->ledger_.reserved() + bytes);
        const std::size_t size = end - at < most ? end - at : most;
        *last = this->pieces_.plan(at, size);
        works = *last != nullptr;
        if (!works) break;
        bytes += size;
      }
    }
    works = works && this->heap_.make_room(2 * holes + 2);
    for (piece* p = made; works && p != nullptr; p = p->next) use_spare(*p);
    drop_spare();
    if (!works) this->pieces_.destroy_all(this->device_, made);
    if (!works || !this->pieces_.provide_all(this->device_, made, kinds)) {
      this->tell(action::refused, 0, w.missing, w.missing, home.key());
      return nullptr;
    }
    return fill(w, made, bytes);
  }

  /// Also gives ranges back whose pages all moved away, and once nothing is reserved, forgets what was needed at most.
  void shrink() noexcept {
    this->for_each_range([this](const segment& range) {
      if (range.first().is_unmapped() && !range.first().is_split()) this->remove_range(range.first());
    });
    base::shrink();
    if (this->ledger_.reserved() == 0) peak_live_ = peak_reserved_ = 0;
  }

  /// Gives spare pieces back to the device.
  void drop_spare() noexcept { this->pieces_.destroy_all(this->device_, std::exchange(spare_, nullptr)); }

 private:
  /// Finds the block again in which a window begins, after pieces were taken away around it.
  static void locate(window& w, const free_list& home) noexcept {
    const segment* range = home.ranges;
    while (w.begin - range->address >= range->size) range = range->next_range;
    w.first = range->links[1];
    while (w.first->end() <= w.begin && w.first->links[1] != range) w.first = w.first->links[1];
    while (w.first->address > w.begin) w.first = w.first->below;
    while (w.first->end() <= w.begin) w.first = w.first->above;
  }

  struct part_of_block {
    std::uintptr_t begin, end;
  };
  /// The pages of an unmapped block that a window needs.
  [[nodiscard]] static part_of_block part(const window& w, const block& b, std::size_t page) noexcept {
    const std::uintptr_t low = w.begin / page * page;
    const std::uintptr_t high = align_up(w.end, page);
    return {low > b.address ? low : b.address, high < b.end() ? high : b.end()};
  }

  /// Lets a planned piece have the memory of a spare one of just its size, if there is one.
  void use_spare(piece& planned) noexcept {
    for (piece** at = &spare_; *at != nullptr; at = &(*at)->next) {
      if ((*at)->bytes != planned.bytes) continue;
      piece& taken = *std::exchange(*at, (*at)->next);
      return this->pieces_.hand_over(taken, planned);
    }
  }

  /// Lets what was mapped for a window become free.
  [[nodiscard]] block* fill(const window& w, const piece* made, std::size_t bytes) noexcept {
    const free_list& home = *w.first->home;
    block* b = w.first;
    for (const piece* p = made; p != nullptr;) {
      while (!b->is_unmapped() || b->end() <= p->address) b = b->above;
      const std::uintptr_t begin = p->address;
      std::uintptr_t end = begin;
      const std::uintptr_t room = b->end();
      for (; p != nullptr && p->address == end && end < room; end += p->bytes, p = p->next)
        this->tell(action::segment_map, p->address, p->bytes, p->bytes, home.key());
      b = &this->heap_.fill(*b, begin, end - begin);
    }
    this->ledger_.mapped(home.pool(), bytes);
    if (this->ledger_.reserved() > peak_reserved_) peak_reserved_ = this->ledger_.reserved();
    return b;
  }

  /// Chooses idle pieces outside of a window: while bytes are wanted, the smallest that is enough by itself, else the
  /// largest. Returns their bytes.
  std::size_t choose_idle(const window& around, std::size_t wanted) noexcept {
    piece* largest_first = nullptr;
    this->heap_.for_each_idle(
        [&](const block& idle) {
          this->for_each_piece(idle, [&](piece& p) {
            p.is_chosen = false;
            const bool inside = p.address < around.end && p.address + p.bytes > around.begin;
            if (!inside) p.next = std::exchange(largest_first, &p);
            return true;
          });
          return false;
        },
        this->granule());
    largest_first = sorted(largest_first);
    std::size_t chosen = 0;
    while (largest_first != nullptr && chosen < wanted) {
      piece** at = &largest_first;
      while ((*at)->next != nullptr && (*at)->next->bytes >= wanted - chosen) at = &(*at)->next;
      piece* const taken = std::exchange(*at, (*at)->next);
      taken->is_chosen = true;
      chosen += taken->bytes;
    }
    return chosen;
  }
  /// A list of pieces, the largest first, by merging.
  [[nodiscard]] static piece* sorted(piece* list) noexcept {
    if (list == nullptr || list->next == nullptr) return list;
    piece* middle = list;
    for (const piece* fast = list->next; fast != nullptr && fast->next != nullptr; fast = fast->next->next)
      middle = middle->next;
    piece* high = sorted(std::exchange(middle->next, nullptr));
    piece* low = sorted(list);
    piece* merged = nullptr;
    piece** last = &merged;
    while (low != nullptr && high != nullptr) {
      piece*& larger = low->bytes >= high->bytes ? low : high;
      *last = larger;
      last = &larger->next;
      larger = larger->next;
    }
    *last = low != nullptr ? low : high;
    return merged;
  }

  piece* spare_ = nullptr;
  std::uintptr_t window_begin_ = 0;  // where the next block is to lie
  std::size_t peak_live_ = 0;
  std::size_t peak_reserved_ = 0;
};

}  // namespace tessera::detail
