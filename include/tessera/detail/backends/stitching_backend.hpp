// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/detail/backends/backend.hpp>
#include <tessera/detail/backends/mapped_ranges.hpp>
#include <tessera/detail/backends/placement.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/detail/policies/ask_policies.hpp>

namespace tessera::inline v0_1::detail {

/// Ranges into which chunks of any size are mapped, and the mechanics of moving idle chunks. It asks no
/// policy.
template <typename Manager>
class stitched_ranges : public placing_ranges<Manager> {
  using base = placing_ranges<Manager>;

 public:
  using action = typename Manager::action;
  using chunk = typename base::chunk;
  using base::base;
  using base::ranges;

  ~stitched_ranges() { release_detached(); }

  /// Raises the peak of active bytes as if another block of `size` bytes were live.
  void raise_peak_active(std::size_t size) noexcept {
    const usage now = manager_.counters().current_usage();
    const std::size_t active = now.active + size;
    if (active > peak_active_) peak_active_ = active;
  }
  /// Copies the peaks of another allocator's ranges.
  template <typename Other>
  void copy_peaks(const stitched_ranges<Other>& from) noexcept {
    peak_active_ = from.peak_active();
    peak_reserved_ = from.peak_reserved();
  }
  [[nodiscard]] std::size_t peak_active() const noexcept { return peak_active_; }
  [[nodiscard]] std::size_t peak_reserved() const noexcept { return peak_reserved_; }

  /// Returns the bytes of whole free pages that a request of `size` bytes would break in a free block.
  [[nodiscard]] static std::size_t broken_page_bytes(const block& free, std::size_t size,
                                                     std::size_t page) noexcept {
    return whole_pages(free.address, free.end(), page) - whole_pages(free.address + size, free.end(), page);
  }
  /// Finds the best placement of `size` bytes. If no range has room, reserves a new range, unless
  /// `growth.range` is 0. Returns none if the device refuses.
  [[nodiscard]] placement prepare_placement(free_list& list, std::size_t size, const range_growth& growth,
                                            bool should_save_pages) noexcept {
    ranges().note_alignment(growth.mapping);
    ranges().retry_orphaned();
    const placement found = placement_search(size, growth.mapping, should_save_pages).best(list);
    if (found.first != nullptr || growth.range == 0) return found;
    if (reserves_left_ > 0)
      --reserves_left_;
    else if (manager_.may_wait())
      unreserve_empty_ranges();
    (void)ranges().reserve_range(list, size, growth);
    return placement_search(size, growth.mapping, should_save_pages).best(list);
  }
  /// Detaches idle chunks outside a placement from their addresses, few rather than many. Detaches `wanted`
  /// bytes if there are enough, at least `needed` bytes, or nothing. They stay detached until
  /// release_detached().
  ///   Returns:  the detached bytes
  std::size_t detach_idle(const placement& at, std::size_t wanted, std::size_t needed) noexcept {
    if (!manager_.may_wait() || select_idle(at, wanted) < needed) return 0;
    std::size_t detached = 0;
    manager_.for_each_releasable(
        [&](block& idle) {
          const std::size_t bytes = ranges().unmap_chunks(
              idle, [](const chunk& c) { return c.is_selected; },
              [this](chunk& c, block&) { c.next = std::exchange(detached_, &c); });
          detached += bytes;
          return bytes > 0;
        },
        ranges().alignment());
    return detached;
  }
  /// Maps a placement from detached and new chunks, all or nothing. Returns the free block that contains
  /// it, or null if the device refuses. A new chunk has at most `max_chunk(reserved)` bytes.
  ///
  /// Detached chunks that do not fit go back before new chunks are created. Therefore, the device never
  /// holds more than is reserved before or after the call.
  ///
  /// The last chunk is stretched to `min_chunk` bytes on two conditions. The addresses after the placement
  /// are unmapped, and at most `room` bytes are mapped.
  template <typename MaxChunk>
  [[nodiscard]] block* map(placement at, free_list& list, const range_growth& growth, std::size_t min_chunk,
                           std::size_t room, MaxChunk max_chunk) noexcept {
    find_first_block(at, list);
    chunk* planned = nullptr;
    chunk** last = &planned;
    std::size_t bytes = 0;
    std::size_t holes = 0;
    bool works = true;
    for (const block* b = at.first; works && b->is_unused() && b->address < at.end; b = b->next) {
      if (!b->is_unmapped()) continue;
      ++holes;
      const auto [begin, needed_end] = needed_part(at, *b, growth.mapping);
      std::uintptr_t end = needed_end;
      const std::uintptr_t stretched = begin + min_chunk < b->end() ? begin + min_chunk : b->end();
      if (end >= at.end && stretched > end && bytes + (stretched - begin) <= room) end = stretched;
      for (std::uintptr_t next = begin; works && next < end;) {
        const std::size_t max = max_chunk(manager_.counters().reserved() + bytes);
        const std::size_t size = end - next < max ? end - next : max;
        *last = ranges().chunks().plan(next, size);
        works = *last != nullptr;
        if (!works) break;
        bytes += size;
        next += size;
        last = &(*last)->next;
      }
    }
    works = works && manager_.may_acquire(Manager::group_of(list), bytes) &&
            manager_.reserve_blocks(2 * holes + 2);
    for (chunk* c = planned; works && c != nullptr; c = c->next) use_detached(*c);
    release_detached();
    if (!works) ranges().chunks().destroy_all(manager_.provider(), planned);
    if (!works || !ranges().chunks().map_all(manager_.provider(), planned, growth.kinds)) {
      manager_.report(action::refused, 0, at.unmapped_bytes, at.unmapped_bytes, list);
      return nullptr;
    }
    block& found = ranges().add_mapped(*at.first, planned);
    const std::size_t reserved = manager_.counters().reserved();
    if (reserved > peak_reserved_) peak_reserved_ = reserved;
    return &found;
  }
  /// Gives detached chunks back to the device.
  void release_detached() noexcept {
    ranges().chunks().destroy_all(manager_.provider(), std::exchange(detached_, nullptr));
  }

  /// Frees unused host memory, and gives back ranges without mapped memory. If nothing is reserved, resets
  /// the peaks.
  void shrink() noexcept {
    unreserve_empty_ranges();
    base::shrink();
    if (manager_.counters().reserved() != 0) return;
    peak_active_ = 0;
    peak_reserved_ = 0;
  }

 protected:
  using base::manager_;

 private:
  /// Gives back ranges without mapped memory. Before the number of ranges doubles, this runs by itself: streams that moved on
  /// leave such ranges behind, and each walk over idle memory would visit their lists.
  void unreserve_empty_ranges() noexcept {
    std::size_t kept = 0;
    ranges().for_each_range([&](segment& range) {
      if (!range.first().is_unmapped() || range.first().is_split()) ++kept;
      ranges().unreserve_if_empty(range);
    });
    reserves_left_ = kept + 64;
  }
  /// Finds the block in which a placement begins. Call again after unmapping: blocks changed.
  static void find_first_block(placement& at, const free_list& list) noexcept {
    const segment* range = list.ranges;
    while (at.begin - range->address >= range->size) range = range->next_range;
    at.first = range->links[1];
    while (at.first->end() <= at.begin && at.first->links[1] != range) at.first = at.first->links[1];
    while (at.first->address > at.begin) at.first = at.first->prev;
    while (at.first->end() <= at.begin) at.first = at.first->next;
  }
  struct interval {
    std::uintptr_t begin, end;
  };
  /// Returns the part of an unmapped block, in whole pages, that a placement needs.
  [[nodiscard]] static interval needed_part(const placement& at, const block& b, std::size_t page) noexcept {
    const std::uintptr_t low = at.begin / page * page;
    const std::uintptr_t high = align_up(at.end, page);
    return {low > b.address ? low : b.address, high < b.end() ? high : b.end()};
  }
  /// Moves the memory of a detached chunk of the same size to a planned chunk, if there is one.
  void use_detached(chunk& planned) noexcept {
    for (chunk** at = &detached_; *at != nullptr; at = &(*at)->next) {
      if ((*at)->bytes != planned.bytes) continue;
      chunk& found = *std::exchange(*at, (*at)->next);
      return ranges().chunks().move_memory(found, planned);
    }
  }
  /// Selects idle chunks outside a placement until they have `wanted` bytes. Takes the smallest chunk that
  /// suffices alone, otherwise the largest chunk.
  ///   Returns:  the bytes of the selected chunks
  std::size_t select_idle(const placement& around, std::size_t wanted) noexcept {
    chunk* largest_first = nullptr;
    manager_.for_each_releasable(
        [&](const block& idle) {
          ranges().for_each_chunk(idle, [&](chunk& c) {
            c.is_selected = false;
            const bool inside = c.address < around.end && c.address + c.bytes > around.begin;
            if (!inside) c.next = std::exchange(largest_first, &c);
            return true;
          });
          return false;
        },
        ranges().alignment());
    largest_first = sorted(largest_first);
    std::size_t selected = 0;
    while (largest_first != nullptr && selected < wanted) {
      chunk** at = &largest_first;
      while ((*at)->next != nullptr && (*at)->next->bytes >= wanted - selected) at = &(*at)->next;
      chunk* const found = std::exchange(*at, (*at)->next);
      found->is_selected = true;
      selected += found->bytes;
    }
    return selected;
  }
  /// Sorts a list of chunks by merging, the largest first.
  [[nodiscard]] static chunk* sorted(chunk* list) noexcept {
    if (list == nullptr || list->next == nullptr) return list;
    chunk* middle = list;
    for (const chunk* fast = list->next; fast != nullptr && fast->next != nullptr; fast = fast->next->next)
      middle = middle->next;
    chunk* high = sorted(std::exchange(middle->next, nullptr));
    chunk* low = sorted(list);
    chunk* merged = nullptr;
    chunk** last = &merged;
    while (low != nullptr && high != nullptr) {
      chunk*& larger = low->bytes >= high->bytes ? low : high;
      *last = larger;
      last = &larger->next;
      larger = larger->next;
    }
    *last = low != nullptr ? low : high;
    return merged;
  }

  chunk* detached_ = nullptr;
  std::size_t reserves_left_ = 64;  // until empty ranges go back
  std::size_t peak_active_ = 0;
  std::size_t peak_reserved_ = 0;
};

/// Maps chunks of any size into ranges. Idle chunks of any pool and stream move to the address that needs
/// memory.
///   Source:  GMLake (arXiv 2401.08156) for the idea
struct stitching_backend : range_backend_defaults {
  using growth_state = detail::growth_state;

  static constexpr bool moves_memory = true;
  [[nodiscard]] static constexpr bool accepts_order(free_order order) noexcept {
    return order == free_order::lowest_address;
  }
  template <typename Growth>
  static constexpr bool accepts_growth = answers_moving_questions<Growth>;

  template <typename Manager>
  class instance : public stitched_ranges<Manager> {
    using base = stitched_ranges<Manager>;
    using base::manager_;

   public:
    using base::base;
    using base::ranges;

    /// Finds the best-fitting free block. To save whole free pages, it may map another placement instead.
    template <typename Policies>
    [[nodiscard, gnu::always_inline]] block* obtain_block(free_list& list, std::size_t size,
                                                          const Policies& p) noexcept {
      block* const fit = manager_.best_fit(list, size);
      if (fit == nullptr) return nullptr;
      const usage now = manager_.usage_under(limit(p));
      return p.growth.should_save_pages(now.reserved, now.limit) ? map_to_save_pages(list, size, *fit, p)
                                                                 : fit;
    }
    /// Maps memory at the placement with the lowest cost.
    template <typename Policies>
    [[nodiscard]] block* grow(free_list& list, std::size_t size, std::size_t, const Policies& p) noexcept {
      this->raise_peak_active(size);
      const growth_state now = state(p);
      const range_growth growth = ranges().growth_for(size, p);
      const placement at =
          this->prepare_placement(list, size, growth, p.growth.should_save_pages(now.reserved, now.limit));
      if (at.first == nullptr) return nullptr;
      if (block* const found = map_within(list, size, at, growth, p.growth.move_threshold(now), p))
        return found;
      // The device may give less than it has, because other programs use it, too. Idle memory then replaces
      // all new memory.
      return map_within(list, size, at, growth, state(p).reserved, p);
    }

   private:
    template <typename Policies>
    [[nodiscard]] std::size_t limit(const Policies& p) const noexcept {
      return p.growth.limit.on(manager_.provider().capacity());
    }
    template <typename Policies>
    [[nodiscard]] growth_state state(const Policies& p) const noexcept {
      const usage now = manager_.usage_under(limit(p));
      return {now.reserved, now.limit, this->peak_active(), this->peak_reserved()};
    }

    /// Maps a placement. Keeps reserved memory within `threshold` bytes if idle memory suffices for the rest,
    /// and always within the limit. Returns null if that is impossible; idle memory may then have gone back
    /// to the device.
    template <typename Policies>
    [[nodiscard]] block* map_within(free_list& list, std::size_t size, const placement& at,
                                    const range_growth& growth, std::size_t threshold,
                                    const Policies& p) noexcept {
      const growth_state now = state(p);
      const auto excess = [&](std::size_t max) {
        const std::size_t after = now.reserved + at.unmapped_bytes;
        return at.unmapped_bytes > 0 && after > max ? after - max : 0;
      };
      const auto max_chunk = [&](std::size_t reserved) {
        growth_state then = now;
        then.reserved = reserved;
        const std::size_t count = p.growth.max_chunk(then) / growth.mapping;
        return count > 0 ? count * growth.mapping : growth.mapping;
      };
      const std::size_t needed = excess(now.limit);
      const std::size_t wanted = excess(threshold);
      const std::size_t detached = wanted > 0 ? this->detach_idle(at, wanted, needed) : 0;
      block* found = nullptr;
      if (detached >= needed) {
        const std::size_t left = now.reserved - detached;
        const std::size_t room = threshold > left ? threshold - left : 0;
        found = this->map(at, list, growth, min_chunk(p, size), room, max_chunk);
      }
      this->release_detached();
      return found;
    }
    /// Maps a placement instead of using a fitting free block, if that breaks fewer whole free pages.
    template <typename Policies>
    [[nodiscard, gnu::noinline]] block* map_to_save_pages(free_list& list, std::size_t size, block& fit,
                                                          const Policies& p) noexcept {
      range_growth growth = ranges().growth_for(size, p);
      growth.range = 0;
      const std::size_t broken = this->broken_page_bytes(fit, size, growth.mapping);
      if (broken == 0) return &fit;
      const placement at = this->prepare_placement(list, size, growth, true);
      if (at.first == nullptr || at.consumed_page_bytes >= broken) return &fit;
      this->raise_peak_active(size);
      block* const found = map_within(list, size, at, growth, p.growth.move_threshold(state(p)), p);
      if (found == nullptr) return manager_.best_fit(list, size);
      this->place_next_at(at.begin);
      return found;
    }
  };
};

}  // namespace tessera::inline v0_1::detail
