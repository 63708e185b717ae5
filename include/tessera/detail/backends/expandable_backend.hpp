// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/backends/backend.hpp>
#include <tessera/detail/backends/mapped_ranges.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>

namespace tessera::inline v0_1::detail {

/// Maps pages into ranges of addresses, at the lowest place with room for the block.
///   Source:  PyTorch's expandable segments
struct expandable_backend : range_backend_defaults {
  template <typename Growth>
  static constexpr bool accepts_growth = answers_range_questions<Growth>;

  template <typename Manager>
  class instance : public mapped_ranges<Manager> {
    using base = mapped_ranges<Manager>;
    using base::manager_;

   public:
    using base::base;
    using base::ranges;

    /// Starts at the smallest free block that fits. Moves to the next larger one while that one, with the
    /// unmapped bytes above it, is smaller than the current one with its own.
    ///   Source:  PyTorch's get_free_block
    template <typename Policies>
    [[nodiscard]] block* obtain_block(free_list& list, std::size_t size, const Policies& p) noexcept {
      block* found = manager_.best_fit(list, size, p);
      if (Manager::traits::order == free_order::by_policy) return found;
      if (found == nullptr || !found->next->is_unmapped()) return found;
      list.template flush<order>();
      for (block* next = list.template after<order>(*found);
           next != nullptr && size_in_place(*next) < size_in_place(*found);) {
        found = next;
        next = list.template after<order>(*next);
      }
      return found;
    }
    template <typename Policies>
    [[nodiscard]] static std::size_t consume_placement(const block& free, std::size_t size,
                                                       const Policies& p) noexcept {
      return peek_placement(free, size, p);
    }
    template <typename Policies>
    [[nodiscard]] static std::size_t peek_placement(const block& free, std::size_t size,
                                                    const Policies& p) noexcept {
      return mapped_ranges<Manager>::offset_to(free, size, p.growth.base_alignment(size));
    }
    /// Makes `size` contiguous bytes free, at the lowest possible place of the list's ranges, or in a new
    /// range. If the device refuses in between, the mapped part stays and is free.
    ///   Source:  PyTorch's try_allocate_expandable_block
    template <typename Policies>
    [[nodiscard]] block* grow(free_list& list, std::size_t size, std::size_t, const Policies& p) noexcept {
      const range_growth growth = ranges().growth_for(size, p);
      ranges().retry_orphaned();
      const std::size_t granularity = ranges().granularity(growth.kinds);
      ranges().note_alignment(growth.mapping);
      block* at = lowest_place(list, size, granularity);
      if (at == nullptr) at = new_range<keeps_short_ranges<decltype(p.growth)>>(list, size, growth);
      while (at != nullptr && (at->is_unmapped() || at->size < size)) {
        block& hole = at->is_unmapped() ? *at : *at->next;
        const std::size_t missing = at->is_unmapped() ? size : size - at->size;
        at = ranges().map_new(hole, hole.address, missing < hole.size ? missing : hole.size, growth);
      }
      return at;
    }

   private:
    using order = typename Manager::order;

    /// Bytes of a free block and the unmapped block above it.
    [[nodiscard]] static std::size_t size_in_place(const block& free) noexcept {
      return free.size + (free.next->is_unmapped() ? free.next->size : 0);
    }
    /// Finds the lowest place with `size` contiguous bytes in free and unmapped blocks. Returns its lowest
    /// block, or null. One free block may suffice: recovery may have enlarged it, or may_serve refused it
    /// before.
    [[nodiscard]] static block* lowest_place(const free_list& list, std::size_t size,
                                             std::size_t granularity) noexcept {
      block* const hole = find_unmapped(list, [size, granularity](const block& unmapped) {
        if (unmapped.address % granularity != 0) return false;  // kept for smaller pages
        std::size_t room = 0;
        for (const block* b = unmapped.prev->is_free() ? unmapped.prev : &unmapped; room < size;
             b = b->next) {
          const std::size_t usable = mapped_ranges<Manager>::usable(*b, granularity);
          room += usable;
          if (usable < b->size) break;
        }
        return room >= size;
      });
      return hole != nullptr && hole->prev->is_free() ? hole->prev : hole;
    }

    /// Whether a new range stays although it is too short for its request.
    template <typename Growth>
    static constexpr bool keeps_short_ranges = !requires { requires !bool(Growth::keeps_short_ranges); };
    /// Reserves a range. Returns its unmapped block, or null if it cannot hold `size` bytes. With `KeepsShort`, a
    /// range as large as the device then stays, as in PyTorch 2.6, and later requests use it. Another one is not reserved.
    template <bool KeepsShort>
    [[nodiscard]] block* new_range(free_list& list, std::size_t size, const range_growth& growth) noexcept {
      const bool is_limited =
          !KeepsShort || growth.range < manager_.provider().capacity() || size <= growth.range;
      block* const whole = ranges().reserve_range(list, is_limited ? size : growth.mapping, growth);
      if (whole == nullptr || whole->size >= size) return whole;
      manager_.report(Manager::action::refused, 0, growth.mapping, growth.mapping, list);
      return nullptr;
    }
  };
};

}  // namespace tessera::inline v0_1::detail
