// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/detail/policies/ask_policies.hpp>

/// A backend carries out one way to grow. A growth policy names it: `using backend = segment_backend;`. It is
/// a struct that derives from backend_defaults, redefines members, and has a template `instance<Manager>`.
///
/// | member of the struct      |                                                                    |
/// |---------------------------|--------------------------------------------------------------------|
/// | B::has_ranges             | segments are ranges, in which memory is mapped page by page; the   |
/// |                           | provider must be a virtual_memory_provider                         |
/// | B::places_blocks          | consume_placement may return a value other than 0                  |
/// | B::moves_memory           | idle memory moves, so that growth may work at the limit            |
/// | B::supports_stream_reuse  | free blocks may serve other streams, see stream_sharing            |
/// | B::accepts_order(order)   | whether it supports an order of free blocks                        |
/// | B::accepts_growth<P>      | whether a growth policy has all members that it needs              |
///
/// | member of an instance(Manager&)       |                                                            |
/// |---------------------------------------|------------------------------------------------------------|
/// | obtain_block(list, size, policies)    | the best free block, or null; the caller then asks         |
/// |                                       | split.may_serve. A backend may map memory to provide it    |
/// | consume_placement(block, size, p)     | bytes to leave free at the start of that block; called     |
/// |                                       | once, just before the block is allocated                   |
/// | peek_placement(block, size, p)        | what consume_placement would return; with quotas           |
/// | newly_held(block, offset, size)       | bytes of a free block that could no longer go back if this |
/// |                                       | part of it were used; with quotas                          |
/// | grow(list, size, segment, policies)   | gets memory for `size` bytes by a segment of `segment`     |
/// |                                       | bytes; returns the free block that holds them, or null     |
/// | releasable(block)                     | bytes that release() would give back; may query the device |
/// | release(block)                        | gives an idle block's memory back; returns its bytes, or 0 |
/// | ranges()                              | with ranges: its mapped_ranges                             |
/// | shrink()                              | frees host memory of unused metadata                       |
/// | metadata_bytes()                      | bytes of host memory, without the manager's                |
/// | ~instance()                           | releases all memory; the manager still exists              |
///
/// `list` is a free list, `size` the size of the wanted block, `policies` and `p` the allocator's policies.
/// The allocator may be re-entered while the device acquires, releases or waits. Look up blocks again after
/// that.

namespace tessera::inline v0_1::detail {

/// The members of most backends.
struct backend_defaults {
  static constexpr bool has_ranges = false;
  static constexpr bool places_blocks = false;
  static constexpr bool moves_memory = false;
  static constexpr bool supports_stream_reuse = false;
  [[nodiscard]] static constexpr bool accepts_order(free_order) noexcept { return true; }
  template <typename Growth>
  static constexpr bool accepts_growth = true;
};

/// Acquires and releases whole segments.
struct segment_backend : backend_defaults {
  static constexpr bool supports_stream_reuse = true;

  template <typename Manager>
  class instance {
   public:
    explicit instance(Manager& manager) noexcept : manager_(manager) {}
    instance& operator=(instance&&) = delete;
    ~instance() {
      manager_.wait_for_pending();
      manager_.release_all();
    }

    template <typename Policies>
    [[nodiscard, gnu::always_inline]] block* obtain_block(free_list& list, std::size_t size,
                                                          const Policies& p) noexcept {
      return manager_.best_fit(list, size, p);
    }
    template <typename Policies>
    [[nodiscard]] static constexpr std::size_t consume_placement(const block&, std::size_t,
                                                                 const Policies&) noexcept {
      return 0;
    }
    template <typename Policies>
    [[nodiscard]] static constexpr std::size_t peek_placement(const block&, std::size_t,
                                                              const Policies&) noexcept {
      return 0;
    }
    [[nodiscard]] std::size_t newly_held(const block& free, std::size_t, std::size_t) const noexcept {
      const block* first = &free;
      while (first->is_idle()) first = first->prev;
      // If streams share blocks, free neighbours of several streams do not coalesce.
      const std::size_t idle = first->status.state == block::state::segment ? idle_bytes(*first->next) : 0;
      return idle > 0 && manager_.may_unmap(first->next->address, idle) ? idle : 0;
    }
    template <typename Policies>
    [[nodiscard]] block* grow(free_list& list, std::size_t size, std::size_t segment,
                              const Policies& p) noexcept {
      if (block* const idle = idle_like_new(list, size, segment, p)) return idle;
      return manager_.acquire(list, segment, segment >= p.split.oversize_from(), p.pages.backing(segment));
    }

    [[nodiscard]] std::size_t releasable(const block& idle) const noexcept {
      return manager_.may_unmap(idle.address, idle.size) && manager_.is_stream_work_done(idle) ? idle.size
                                                                                               : 0;
    }
    std::size_t release(block& idle) noexcept {
      return manager_.is_stream_work_done(idle) ? manager_.release(idle) : 0;
    }

    void shrink() noexcept { manager_.shrink(); }
    [[nodiscard]] static constexpr std::size_t metadata_bytes() noexcept { return 0; }

   private:
    /// Finds a cached segment that the split policy refuses although growth would acquire an equal one, or
    /// null. block_fit::exact refuses a segment that was rounded up to granularity or pages. A segment that
    /// the policy admits is left alone: recovery freed it, and PyTorch does not search again.
    template <typename Policies>
    [[nodiscard]] static block* idle_like_new(free_list& list, std::size_t size, std::size_t segment,
                                              const Policies& p) noexcept {
      const bool is_refused = segment != size && !p.split.may_serve(size, segment);
      if (!is_refused || segment >= p.split.oversize_from() || should_split(p, size, segment)) return nullptr;
      block* const fit = list.template best_fit<typename Manager::order>(size);
      return fit != nullptr && fit->size == segment ? fit : nullptr;
    }

    Manager& manager_;
  };
};

}  // namespace tessera::inline v0_1::detail
