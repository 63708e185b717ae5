// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/free_order.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/detail/backend.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/free_list.hpp>
#include <tessera/detail/mapped_ranges.hpp>
#include <tessera/detail/placement.hpp>

namespace tessera::detail {

/// The members of a policy that grows by stitching, in addition to the members for ranges.
template <typename P>
concept answers_stitching_questions =
    answers_range_questions<P> && requires(const P& p, const growth_state& state, std::size_t bytes) {
      { p.move_threshold(state) } noexcept -> std::same_as<std::size_t>;
      { p.max_chunk(state) } noexcept -> std::same_as<std::size_t>;
      { p.min_chunk(bytes) } noexcept -> std::same_as<std::size_t>;
      { p.should_save_pages(bytes, bytes) } noexcept -> std::same_as<bool>;
    };

/// Maps chunks of any size into ranges. Idle chunks of any pool and stream move to the address that needs
/// memory.
///   Source:  GMLake (arXiv 2401.08156) for the idea
struct stitching_backend : range_backend_defaults {
  static constexpr bool moves_memory = true;
  [[nodiscard]] static constexpr bool accepts_order(free_order order) noexcept {
    return order == free_order::lowest_address;
  }
  template <typename Growth>
  static constexpr bool accepts_growth = answers_stitching_questions<Growth>;
  template <typename Growth>
  static consteval void require_growth() {
    static_assert(accepts_growth<Growth>,
                  "Recipe::growth must answer what its backend needs: a stitching_growth_policy's questions "
                  "[tessera/policy/growth.hpp]");
  }

  template <typename Manager>
  class instance {
   public:
    using action = typename Manager::action;
    using chunk = typename mapped_ranges<Manager>::chunk;

    explicit instance(Manager& manager) noexcept : manager_(manager), ranges_(manager) {}
    instance(const instance&) = delete;
    instance& operator=(const instance&) = delete;
    ~instance() {
      release_detached();
      ranges_.release_all();
    }

    /// Finds the best-fitting free block. To save whole free pages, it may map another placement instead.
    template <typename Policies>
    [[nodiscard]] block* best_fit(free_list& list, std::size_t size, const Policies& p) noexcept {
      block* const fit = manager_.best_fit(list, size);
      if (fit == nullptr) return nullptr;
      const usage now = manager_.usage_under(limit(p));
      return p.growth.should_save_pages(now.reserved, now.limit) ? save_pages(list, size, *fit, p) : fit;
    }
    /// Returns the start of the placement if one was mapped for the block; otherwise as in any range.
    template <typename Policies>
    [[nodiscard]] std::size_t offset_in(const block& free, std::size_t size, const Policies& p) noexcept {
      const std::size_t alignment = p.growth.base_alignment(size);
      const std::uintptr_t begin = std::exchange(next_begin_, 0);
      const bool fits = begin >= free.address && begin <= free.end() && size <= free.end() - begin &&
                        begin % alignment == 0;
      return fits ? begin - free.address : mapped_ranges<Manager>::offset_to(free, size, alignment);
    }
    /// Maps memory at the placement with the lowest cost.
    template <typename Policies>
    [[nodiscard]] block* grow(free_list& list, std::size_t size, std::size_t, const Policies& p) noexcept {
      const growth_state now = state_with(size, limit(p));
      const chunk_pages pages = pages_for(size, p);
      const placement at =
          find_placement(list, size, pages.page, p.growth.range_size(manager_.provider().capacity()),
                         p.growth.should_save_pages(now.reserved, now.limit));
      if (at.first == nullptr) return nullptr;
      if (block* const found = fill(list, size, at, pages, p.growth.move_threshold(now), p)) return found;
      // The device may give less than it has, because other programs use it, too. Idle memory then replaces
      // all new memory.
      return fill(list, size, at, pages, state_with(size, limit(p)).reserved, p);
    }

    [[nodiscard]] std::size_t releasable(const block& idle) const noexcept {
      return ranges_.releasable(idle);
    }
    std::size_t release(block& idle) noexcept { return ranges_.release(idle); }
    template <typename Policies>
    [[nodiscard]] block* restore(const segment_view& s, std::size_t size, const Policies& p) noexcept {
      free_list* const list = manager_.find_or_create_list(s.pool, s.stream);
      if (list == nullptr || !manager_.reserve_blocks()) return nullptr;
      const std::size_t page = p.growth.page_size(size);
      return ranges_.map_at(
          *list, s.address, s.bytes,
          {page, p.growth.range_size(manager_.provider().capacity()), p.pages.backing(page)});
    }
    std::size_t release_idle_at(std::uintptr_t address, std::size_t bytes) noexcept {
      return ranges_.release_idle_at(address, bytes);
    }
    /// Frees unused host memory, and gives back ranges without mapped memory. If nothing is reserved, resets
    /// the peaks.
    void shrink() noexcept {
      ranges_.for_each_range([this](const segment& range) {
        if (range.first().is_unmapped() && !range.first().is_split()) ranges_.unreserve_range(range.first());
      });
      ranges_.shrink();
      if (manager_.counters().reserved() == 0) peak_active_ = peak_reserved_ = 0;
    }
    [[nodiscard]] std::size_t footprint() const noexcept { return ranges_.footprint(); }
    [[nodiscard]] std::uintptr_t end_of_chunk(std::uintptr_t begin) const noexcept {
      return ranges_.end_of_chunk(begin);
    }

    // The steps of growth; tests call them separately.

    /// Returns the state that policies see if another block of `size` bytes is wanted. That block counts as
    /// live.
    [[nodiscard]] growth_state state_with(std::size_t size, std::size_t limit) noexcept {
      const usage now = manager_.usage_under(limit);
      const std::size_t live = now.live + now.pending + size;
      if (live > peak_active_) peak_active_ = live;
      return {now.reserved, now.limit, peak_active_, peak_reserved_};
    }
    /// Returns the bytes of whole free pages that a request of `size` bytes would break in a free block.
    [[nodiscard]] static std::size_t pages_broken(const block& free, std::size_t size,
                                                  std::size_t page) noexcept {
      return whole_pages(free.address, free.end(), page) - whole_pages(free.address + size, free.end(), page);
    }
    /// Finds the best placement of `size` bytes. If no range has room, reserves a new range of `range` bytes,
    /// unless that is 0. Returns none if the device refuses.
    [[nodiscard]] placement find_placement(free_list& list, std::size_t size, std::size_t page,
                                           std::size_t range, bool should_save_pages) noexcept {
      ranges_.note_page(page);
      ranges_.chunks().retry_orphaned(manager_.provider());
      const placement found = placement_search(size, page, should_save_pages).best(list);
      if (found.first != nullptr || range == 0) return found;
      (void)ranges_.reserve_range(list, size, {page, range, {}});
      return placement_search(size, page, should_save_pages).best(list);
    }
    /// Detaches idle chunks outside a placement from their addresses, few rather than many. Detaches `wanted`
    /// bytes if there are enough, at least `needed` bytes, or nothing. They stay detached until
    /// release_detached().
    ///   Returns:  the detached bytes
    std::size_t detach_idle(const placement& at, std::size_t wanted, std::size_t needed) noexcept {
      if (choose_idle(at, wanted) < needed) return 0;
      std::size_t detached = 0;
      manager_.for_each_idle(
          [&](block& idle) {
            const std::size_t bytes = ranges_.unmap_chunks(
                idle, [](const chunk& c) { return c.is_chosen; },
                [this](chunk& c, block&) { c.next = std::exchange(detached_, &c); });
            detached += bytes;
            return bytes > 0;
          },
          ranges_.alignment());
      return detached;
    }
    /// Maps a placement from detached and new chunks, all or nothing. Returns the free block that contains
    /// it, or null if the device refuses. A new chunk has at most `largest(reserved)` bytes.
    ///
    /// Detached chunks that do not fit go back before new chunks are created. Therefore, the device never
    /// holds more than is reserved before or after the call.
    ///
    /// The last chunk is stretched to `min_chunk` bytes on two conditions. The addresses after the placement
    /// are unmapped, and at most `room` bytes are mapped.
    template <typename Largest>
    [[nodiscard]] block* map(placement at, free_list& list, const page_order& kinds, std::size_t page,
                             std::size_t min_chunk, std::size_t room, Largest largest) noexcept {
      find_first_block(at, list);
      chunk* made = nullptr;
      chunk** last = &made;
      std::size_t bytes = 0;
      std::size_t holes = 0;
      bool works = true;
      for (const block* b = at.first; works && b->is_unused() && b->address < at.end; b = b->above) {
        if (!b->is_unmapped()) continue;
        ++holes;
        const auto [begin, needed_end] = needed_part(at, *b, page);
        std::uintptr_t end = needed_end;
        const std::uintptr_t stretched = begin + min_chunk < b->end() ? begin + min_chunk : b->end();
        if (end >= at.end && stretched > end && bytes + (stretched - begin) <= room) end = stretched;
        for (std::uintptr_t next = begin; works && next < end;) {
          const std::size_t max = largest(manager_.counters().reserved() + bytes);
          const std::size_t size = end - next < max ? end - next : max;
          *last = ranges_.chunks().plan(next, size);
          works = *last != nullptr;
          if (!works) break;
          bytes += size;
          next += size;
          last = &(*last)->next;
        }
      }
      works = works && manager_.reserve_blocks(2 * holes + 2);
      for (chunk* c = made; works && c != nullptr; c = c->next) use_detached(*c);
      release_detached();
      if (!works) ranges_.chunks().destroy_all(manager_.provider(), made);
      if (!works || !ranges_.chunks().map_all(manager_.provider(), made, kinds)) {
        manager_.report(action::refused, 0, at.unmapped_bytes, at.unmapped_bytes, list.key());
        return nullptr;
      }
      return mark_mapped(at, made, bytes);
    }
    /// Makes the next block begin at this placement, which map() has mapped.
    void place_next_at(const placement& at) noexcept { next_begin_ = at.begin; }
    /// Gives detached chunks back to the device.
    void release_detached() noexcept {
      ranges_.chunks().destroy_all(manager_.provider(), std::exchange(detached_, nullptr));
    }

   private:
    /// The pages of new chunks.
    struct chunk_pages {
      page_order kinds;
      std::size_t page;  ///< granularity of the chunks' sizes and addresses, in bytes
    };
    template <typename Policies>
    [[nodiscard]] chunk_pages pages_for(std::size_t size, const Policies& p) const noexcept {
      const std::size_t page = p.growth.page_size(size);
      if (page == 0 || page % min_alignment != 0 || page > max_request)
        refuse_answer("growth: page_size", size, page,
                      "a page is a multiple of min_alignment, up to max_request");
      const page_order kinds = p.pages.backing(page);
      return {kinds, align_up(page, ranges_.granularity(kinds))};
    }
    template <typename Policies>
    [[nodiscard]] std::size_t limit(const Policies& p) const noexcept {
      return p.growth.limit.on(manager_.provider().capacity());
    }

    /// Maps a placement. Keeps reserved memory within `freely` bytes if idle memory suffices for the rest,
    /// and always within the limit. Returns null if that is impossible; idle memory may then have gone back
    /// to the device.
    template <typename Policies>
    [[nodiscard]] block* fill(free_list& list, std::size_t size, const placement& at,
                              const chunk_pages& pages, std::size_t freely, const Policies& p) noexcept {
      const growth_state now = state_with(size, limit(p));
      const auto excess = [&](std::size_t max) {
        const std::size_t after = now.reserved + at.unmapped_bytes;
        return at.unmapped_bytes > 0 && after > max ? after - max : 0;
      };
      const std::size_t needed = excess(now.limit);
      const std::size_t wanted = excess(freely);
      const std::size_t detached = wanted > 0 ? detach_idle(at, wanted, needed) : 0;
      block* found = nullptr;
      if (detached >= needed) {
        const std::size_t left = now.reserved - detached;
        found = map(at, list, pages.kinds, pages.page, p.growth.min_chunk(size),
                    freely > left ? freely - left : 0, [&](std::size_t reserved) {
                      growth_state then = now;
                      then.reserved = reserved;
                      const std::size_t count = p.growth.max_chunk(then) / pages.page;
                      return count > 0 ? count * pages.page : pages.page;
                    });
      }
      release_detached();
      return found;
    }
    /// Maps a placement instead of using a fitting free block, if that breaks fewer whole free pages.
    template <typename Policies>
    [[nodiscard, gnu::noinline]] block* save_pages(free_list& list, std::size_t size, block& fit,
                                                   const Policies& p) noexcept {
      const chunk_pages pages = pages_for(size, p);
      const std::size_t broken = pages_broken(fit, size, pages.page);
      if (broken == 0) return &fit;
      const placement at = find_placement(list, size, pages.page, 0, true);
      if (at.first == nullptr || at.pages_consumed >= broken) return &fit;
      const std::size_t freely = p.growth.move_threshold(state_with(size, limit(p)));
      block* const found = fill(list, size, at, pages, freely, p);
      if (found == nullptr) return manager_.best_fit(list, size);
      place_next_at(at);
      return found;
    }

    /// Finds the block in which a placement begins. Call again after unmapping: blocks changed.
    static void find_first_block(placement& at, const free_list& list) noexcept {
      const segment* range = list.ranges;
      while (at.begin - range->address >= range->size) range = range->next_range;
      at.first = range->links[1];
      while (at.first->end() <= at.begin && at.first->links[1] != range) at.first = at.first->links[1];
      while (at.first->address > at.begin) at.first = at.first->below;
      while (at.first->end() <= at.begin) at.first = at.first->above;
    }
    struct interval {
      std::uintptr_t begin, end;
    };
    /// Returns the part of an unmapped block, in whole pages, that a placement needs.
    [[nodiscard]] static interval needed_part(const placement& at, const block& b,
                                              std::size_t page) noexcept {
      const std::uintptr_t low = at.begin / page * page;
      const std::uintptr_t high = align_up(at.end, page);
      return {low > b.address ? low : b.address, high < b.end() ? high : b.end()};
    }
    /// Moves the memory of a detached chunk of the same size to a planned chunk, if there is one.
    void use_detached(chunk& planned) noexcept {
      for (chunk** at = &detached_; *at != nullptr; at = &(*at)->next) {
        if ((*at)->bytes != planned.bytes) continue;
        chunk& found = *std::exchange(*at, (*at)->next);
        return ranges_.chunks().move_memory(found, planned);
      }
    }
    /// Makes the memory mapped for a placement free.
    [[nodiscard]] block* mark_mapped(const placement& at, const chunk* made, std::size_t bytes) noexcept {
      const free_list& list = *at.first->list;
      block* b = at.first;
      for (const chunk* c = made; c != nullptr;) {
        while (!b->is_unmapped() || b->end() <= c->address) b = b->above;
        const std::uintptr_t begin = c->address;
        std::uintptr_t end = begin;
        const std::uintptr_t room = b->end();
        for (; c != nullptr && c->address == end && end < room; c = c->next) {
          manager_.report(action::segment_map, c->address, c->bytes, c->bytes, list.key());
          end += c->bytes;
        }
        b = &ranges_.mark_mapped(*b, begin, end - begin);
      }
      manager_.counters().mapped(list.pool(), bytes);
      const std::size_t reserved = manager_.counters().reserved();
      if (reserved > peak_reserved_) peak_reserved_ = reserved;
      return b;
    }

    /// Selects idle chunks outside a placement until they have `wanted` bytes. Takes the smallest chunk that
    /// suffices alone, otherwise the largest chunk.
    ///   Returns:  the bytes of the selected chunks
    std::size_t choose_idle(const placement& around, std::size_t wanted) noexcept {
      chunk* largest_first = nullptr;
      manager_.for_each_idle(
          [&](const block& idle) {
            ranges_.for_each_chunk(idle, [&](chunk& c) {
              c.is_chosen = false;
              const bool inside = c.address < around.end && c.address + c.bytes > around.begin;
              if (!inside) c.next = std::exchange(largest_first, &c);
              return true;
            });
            return false;
          },
          ranges_.alignment());
      largest_first = sorted(largest_first);
      std::size_t chosen = 0;
      while (largest_first != nullptr && chosen < wanted) {
        chunk** at = &largest_first;
        while ((*at)->next != nullptr && (*at)->next->bytes >= wanted - chosen) at = &(*at)->next;
        chunk* const found = std::exchange(*at, (*at)->next);
        found->is_chosen = true;
        chosen += found->bytes;
      }
      return chosen;
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

    Manager& manager_;
    mapped_ranges<Manager> ranges_;
    chunk* detached_ = nullptr;
    std::uintptr_t next_begin_ = 0;  // start address of the next block, or 0
    std::size_t peak_active_ = 0;
    std::size_t peak_reserved_ = 0;
  };
};

}  // namespace tessera::detail
