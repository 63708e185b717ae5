// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/detail/backends/backend.hpp>
#include <tessera/detail/backends/mapped_ranges.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>

namespace tessera::inline v0_1::detail {

/// The members of a policy whose backend appends to ranges.
template <typename P>
concept answers_appending_questions = answers_range_questions<P> && requires(const P& p, std::size_t bytes) {
  { p.bytes_to_map(bytes, bytes) } noexcept -> std::same_as<std::size_t>;
  { p.bytes_of_chunk(bytes, bytes) } noexcept -> std::same_as<std::size_t>;
  { p.moves_idle(bytes, pool_traits{}) } noexcept -> std::same_as<bool>;
};

/// Maps memory after the last mapped byte of a range. A free block there counts, so only the rest is mapped. Addresses
/// below that went back to the device are used first, if the whole block fits there.
///   Source:  Paddle's allocators with virtual memory
struct appending_backend : range_backend_defaults {
  /// At the limit, growth may work, too: the free block at the end counts, and idle chunks may move.
  static constexpr bool moves_memory = true;
  template <typename Growth>
  static constexpr bool accepts_growth = answers_appending_questions<Growth>;

  template <typename Manager>
  class instance : public placing_ranges<Manager> {
    using base = placing_ranges<Manager>;
    using base::manager_;

   public:
    using base::base;
    using base::ranges;

    template <typename Policies>
    [[nodiscard, gnu::always_inline]] block* obtain_block(free_list& list, std::size_t size,
                                                          const Policies& p) noexcept {
      return manager_.best_fit(list, size, p);
    }
    /// Maps the smallest hole that holds the block, else the rest of the block at the end of a range. If the device
    /// refuses and the policy allows it, idle chunks of the list move there.
    template <typename Policies>
    [[nodiscard]] block* grow(free_list& list, std::size_t size, std::size_t, const Policies& p) noexcept {
      const range_growth growth = ranges().growth_for(size, p);
      ranges().retry_orphaned();
      ranges().note_alignment(growth.mapping);
      const std::size_t whole = p.growth.bytes_to_map(size, growth.mapping);
      const std::size_t page = ranges().granularity(growth.kinds);
      if (block* const hole = smallest_hole(list, whole, page)) {
        const std::uintptr_t begin = hole->address;
        if (block* const found = map(*hole, whole, growth, p)) {
          this->place_next_at(begin);
          return found;
        }
      }
      block* end = end_with_room(list, size, growth, page, p);
      if (end == nullptr && growth.range >= whole) end = ranges().reserve_range(list, whole, growth);
      if (end == nullptr || mapped_ranges<Manager>::usable(*end, page) < missing_at(*end, size, growth, p)) {
        manager_.report(Manager::action::refused, 0, whole, whole, list);
        return nullptr;
      }
      const std::size_t missing = missing_at(*end, size, growth, p);
      if (block* const found = map(*end, missing, growth, p)) return found;
      return p.growth.moves_idle(size, traits_of(p.pools)) ? move_idle(list, *end, missing, whole, growth, p)
                                                           : nullptr;
    }

   private:
    using chunk = typename mapped_ranges<Manager>::chunk;
    using action = typename Manager::action;

    /// Whether an unmapped block ends its range.
    [[nodiscard]] static bool is_end(const block& unmapped) noexcept {
      return unmapped.next->status.state == block::state::segment;
    }
    /// The free block directly below an unmapped block, or null.
    [[nodiscard]] static block* free_below(const block& unmapped) noexcept {
      return unmapped.prev->is_free() ? unmapped.prev : nullptr;
    }
    /// Bytes to map at the end of a range for a block of `size` bytes.
    template <typename Policies>
    [[nodiscard]] static std::size_t missing_at(const block& end, std::size_t size,
                                                const range_growth& growth, const Policies& p) noexcept {
      const block* const below = free_below(end);
      const std::size_t there = below != nullptr ? below->size : 0;
      return p.growth.bytes_to_map(size > there ? size - there : min_alignment, growth.mapping);
    }
    /// Finds the smallest unmapped block of at least `bytes` bytes below mapped memory, or null.
    [[nodiscard]] static block* smallest_hole(const free_list& list, std::size_t bytes,
                                              std::size_t page) noexcept {
      block* found = nullptr;
      for_each_unmapped(list, [&](block& hole) {
        const bool fits = !is_end(hole) && mapped_ranges<Manager>::usable(hole, page) >= bytes;
        if (fits && (found == nullptr || hole.size < found->size)) found = &hole;
      });
      return found;
    }
    /// Finds the unmapped end of the first range with room for a block, or null.
    template <typename Policies>
    [[nodiscard]] static block* end_with_room(const free_list& list, std::size_t size,
                                              const range_growth& growth, std::size_t page,
                                              const Policies& p) noexcept {
      return find_unmapped(list, [&](const block& end) {
        return is_end(end) && mapped_ranges<Manager>::usable(end, page) >= missing_at(end, size, growth, p);
      });
    }
    template <typename Policies>
    [[nodiscard]] bool is_over_limit(std::size_t bytes, const Policies& p) const noexcept {
      return manager_.would_exceed_limit(p.growth.limit.on(manager_.provider().capacity()), bytes);
    }
    /// Maps new memory at the start of an unmapped block, all or none. Returns the free block that contains it, or null.
    template <typename Policies>
    [[nodiscard]] block* map(block& unmapped, std::size_t bytes, range_growth growth,
                             const Policies& p) noexcept {
      if (is_over_limit(bytes, p)) {
        manager_.report(action::refused, 0, bytes, bytes, *unmapped.list);
        return nullptr;
      }
      growth.mapping = p.growth.bytes_of_chunk(bytes, growth.mapping);
      return ranges().map_new(unmapped, unmapped.address, bytes, growth);
    }

    /// Moves idle chunks of the list to the end of a range, as few as suffice with what the device still gives. If the
    /// device gives nothing and no free memory there helps, the lowest hole with room is used instead. If the idle
    /// chunks are too few, nothing moves. Returns the free block that holds the request, or null.
    ///   Cost:  linear in the chunks of the list's free blocks, times the free blocks that give chunks
    template <typename Policies>
    [[nodiscard]] block* move_idle(free_list& list, block& end, std::size_t missing, std::size_t whole,
                                   const range_growth& growth, const Policies& p) noexcept {
      const std::size_t unit = growth.mapping;
      if (p.growth.bytes_of_chunk(missing, unit) != unit || !manager_.may_wait()) return nullptr;
      chunk* fresh = nullptr;
      if (!plan(end.address, missing, unit, fresh)) return nullptr;
      const std::size_t created = create(fresh, growth, p);
      const std::size_t needed = missing / unit - created;
      bool works = manager_.may_acquire(Manager::group_of(list), created * unit) &&
                   select_idle(list, free_below(end), unit, needed) >= needed;
      std::uintptr_t begin = end.address;
      const block* const hole =
          needed == whole / unit ? first_hole(list, whole, ranges().granularity(growth.kinds)) : nullptr;
      if (works && hole != nullptr) {
        begin = hole->address;
        for (chunk* c = fresh; c != nullptr; c = c->next) c->address = c->address - end.address + begin;
      }
      works = works && fill_from_selected(list, fresh) && manager_.reserve_blocks(4);
      if (!works) ranges().chunks().destroy_all(manager_.provider(), fresh);
      if (works && ranges().chunks().map_all(manager_.provider(), fresh, growth.kinds)) {
        const auto has_begin = [begin](const block& b) { return begin - b.address < b.size; };
        return &ranges().add_mapped(*find_unmapped(list, has_begin), fresh);
      }
      manager_.report(action::refused, 0, missing, missing, list);
      return nullptr;
    }
    /// Plans chunks of `unit` bytes. Returns false if host memory ran out; then none is planned.
    [[nodiscard]] bool plan(std::uintptr_t begin, std::size_t bytes, std::size_t unit,
                            chunk*& first) noexcept {
      chunk** last = &first;
      for (std::uintptr_t at = begin; at < begin + bytes; at += unit) {
        *last = ranges().chunks().plan(at, unit);
        if (*last == nullptr) {
          ranges().chunks().destroy_all(manager_.provider(), std::exchange(first, nullptr));
          return false;
        }
        last = &(*last)->next;
      }
      return true;
    }
    /// Creates the memory of the first planned chunks, until the limit or the device refuses. Returns how many were
    /// created.
    template <typename Policies>
    [[nodiscard]] std::size_t create(chunk* planned, const range_growth& growth, const Policies& p) noexcept {
      std::size_t created = 0;
      for (chunk* c = planned; c != nullptr; c = c->next) {
        if (is_over_limit((created + 1) * growth.mapping, p)) break;
        if (!ranges().chunks().create(manager_.provider(), *c, growth.kinds)) break;
        ++created;
      }
      return created;
    }
    /// Selects `wanted` chunks of `unit` bytes that lie wholly in free blocks other than `spared`: those of the block
    /// with the most such chunks first, in the order of addresses. Returns how many were selected.
    [[nodiscard]] std::size_t select_idle(const free_list& list, const block* spared, std::size_t unit,
                                          std::size_t wanted) noexcept {
      for_each_free(list, [&](const block& idle) {
        for_each_unit(idle, unit, [](chunk& c) {
          c.is_selected = false;
          return true;
        });
      });
      std::size_t selected = 0;
      while (selected < wanted) {
        const block* most = nullptr;
        std::size_t most_chunks = 0;
        for_each_free(list, [&](const block& idle) {
          std::size_t count = 0;
          for_each_unit(idle, unit, [&count](const chunk& c) {
            count += c.is_selected ? 0 : 1;
            return !c.is_selected;  // the chunks of a block are selected together
          });
          if (&idle != spared && count > most_chunks) {
            most = &idle;
            most_chunks = count;
          }
        });
        if (most == nullptr) break;
        for_each_unit(*most, unit, [&](chunk& c) {
          c.is_selected = true;
          return ++selected < wanted;
        });
      }
      return selected;
    }
    /// Detaches the selected chunks and gives their memory to the planned chunks that have none. Returns false if the
    /// device failed to unmap one.
    [[nodiscard]] bool fill_from_selected(const free_list& list, chunk* planned) noexcept {
      const auto skip = [&planned] {
        while (planned != nullptr && planned->is_created) planned = planned->next;
      };
      skip();
      while (planned != nullptr) {
        block* const idle = next_with_selected(list);
        const std::size_t bytes = idle == nullptr ? 0
                                                  : ranges().unmap_chunks(
                                                        *idle, [](const chunk& c) { return c.is_selected; },
                                                        [&](chunk& from, block&) {
                                                          ranges().chunks().move_memory(from, *planned);
                                                          skip();
                                                        });
        if (bytes == 0) return false;
      }
      return true;
    }
    /// Finds the lowest unmapped block of at least `bytes` bytes below mapped memory, or null.
    [[nodiscard]] static block* first_hole(const free_list& list, std::size_t bytes,
                                           std::size_t page) noexcept {
      return find_unmapped(list, [&](const block& hole) {
        return !is_end(hole) && mapped_ranges<Manager>::usable(hole, page) >= bytes;
      });
    }
    /// Calls f(block) for each free block of a list, in the order of addresses.
    template <typename F>
    static void for_each_free(const free_list& list, F f) {
      for (segment* range = list.ranges; range != nullptr; range = range->next_range) {
        for (block* b = &range->first(); b != range; b = b->next) {
          if (b->is_free()) f(*b);
        }
      }
    }
    /// Calls f(chunk) for each chunk of `unit` bytes that lies wholly in a block. Stops if f returns false.
    template <typename F>
    void for_each_unit(const block& in, std::size_t unit, F f) const {
      ranges().for_each_chunk(in, [&](chunk& c) { return c.bytes != unit || f(c); });
    }
    [[nodiscard]] block* next_with_selected(const free_list& list) const noexcept {
      block* found = nullptr;
      for_each_free(list, [&](block& idle) {
        if (found != nullptr) return;
        ranges().for_each_chunk(idle, [&](const chunk& c) {
          if (c.is_selected) found = &idle;
          return found == nullptr;
        });
      });
      return found;
    }
  };
};

}  // namespace tessera::inline v0_1::detail
