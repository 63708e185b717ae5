// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/free_order.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/text.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/free_list.hpp>

/// A backend carries out one way to grow. A growth policy names it: `using backend = segment_backend;`. It is a
/// struct that derives from backend_defaults, redefines what differs, and has a template `instance<Manager>`.
///
/// | of the struct             |                                                                    |
/// |---------------------------|--------------------------------------------------------------------|
/// | B::has_ranges             | segments are ranges, in which memory is mapped page by page        |
/// | B::places_blocks          | offset_in may be other than 0                                      |
/// | B::moves_memory           | idle memory moves, so that growth may work at the limit            |
/// | B::shares_streams         | free blocks may serve other streams, see stream_sharing            |
/// | B::accepts_order(order)   | whether it supports an order of free blocks                        |
/// | B::accepts_provider<D>    | whether it works on a provider                                     |
/// | B::accepts_growth<P>      | whether a growth policy answers its questions                      |
/// | B::require_provider<D>()  | a static_assert that says what the provider lacks                  |
/// | B::require_growth<P>()    | a static_assert that says what the policy lacks                    |
///
/// | of an instance(Manager&)  |                                                                    |
/// |---------------------------|--------------------------------------------------------------------|
/// | best_fit(list, size, p)   | the free block that serves `size` bytes, or null                   |
/// | offset_in(block, size, p) | bytes to leave free at the start of that block                     |
/// | grow(list, size, n, p)    | gets memory for `size` bytes, where a segment of `n` is wanted;    |
/// |                           | the free block that holds it, or null                              |
/// | releasable(block)         | bytes that release() would give back                               |
/// | release(block)            | gives the memory of an idle block back; its bytes, or 0            |
/// | restore(segment, size, p) | takes memory at a recorded address; a free block, or null          |
/// | release_idle_at(at, n)    | gives back what is idle at recorded addresses; its bytes           |
/// | shrink()                  | frees host memory that describes nothing any more                  |
/// | footprint()               | bytes of host memory beside those of the manager                   |
/// | ~instance()               | releases all memory; the manager still exists                      |
///
/// `p` holds the policies of the allocator. Calls of the device may be re-entered, so look blocks up again after them.
namespace tessera::detail {

/// Ends the program for a number that a policy answered to another, with the rule that it breaks.
[[noreturn, gnu::noinline, gnu::cold]] inline void refuse_answer(const char* question, std::size_t asked,
                                                                 std::size_t answer,
                                                                 const char* rule) noexcept {
  fixed_text text;
  text.add("Recipe::").add(question).add("(").add(asked).add(") is ").add(answer).add("; ").add(rule);
  fatal(text.c_str());
}

/// What most backends answer.
struct backend_defaults {
  static constexpr bool has_ranges = false;
  static constexpr bool places_blocks = false;
  static constexpr bool moves_memory = false;
  static constexpr bool shares_streams = false;
  [[nodiscard]] static constexpr bool accepts_order(free_order) noexcept { return true; }
  template <typename Provider>
  static constexpr bool accepts_provider = true;
  template <typename Growth>
  static constexpr bool accepts_growth = true;
  template <typename Provider>
  static consteval void require_provider() {}
  template <typename Growth>
  static consteval void require_growth() {}
};

/// Takes segments that come and go whole.
struct segment_backend : backend_defaults {
  static constexpr bool shares_streams = true;

  template <typename Manager>
  class instance {
   public:
    explicit instance(Manager& manager) noexcept : manager_(manager) {}
    instance(const instance&) = delete;
    instance& operator=(const instance&) = delete;
    ~instance() {
      manager_.wait_for_pending();
      manager_.release_all();
    }

    template <typename Policies>
    [[nodiscard, gnu::always_inline]] block* best_fit(free_list& list, std::size_t size,
                                                      const Policies&) noexcept {
      return manager_.best_fit(list, size);
    }
    template <typename Policies>
    [[nodiscard]] static constexpr std::size_t offset_in(const block&, std::size_t,
                                                         const Policies&) noexcept {
      return 0;
    }
    template <typename Policies>
    [[nodiscard]] block* grow(free_list& list, std::size_t size, std::size_t segment,
                              const Policies& p) noexcept {
      if (block* const idle = idle_like_new(list, size, segment, p)) return idle;
      return manager_.acquire(list.pool(), list.key(), segment, segment >= p.split.oversize(),
                              p.pages.backing(segment));
    }

    [[nodiscard]] std::size_t releasable(const block& idle) const noexcept {
      return manager_.is_done(idle) ? idle.size : 0;
    }
    std::size_t release(block& idle) noexcept { return manager_.is_done(idle) ? manager_.release(idle) : 0; }

    template <typename Policies>
    [[nodiscard]] block* restore(const segment_view& s, std::size_t, const Policies& p) noexcept {
      return manager_.acquire(s.pool, s.stream, s.bytes, s.bytes >= p.split.oversize(),
                              p.pages.backing(s.bytes));
    }
    std::size_t release_idle_at(std::uintptr_t address, std::size_t) noexcept {
      block* const head = manager_.segment_at(address);
      return head != nullptr && head->is_free() && !head->is_split() ? release(*head) : 0;
    }

    void shrink() noexcept { manager_.shrink(); }
    [[nodiscard]] static constexpr std::size_t footprint() noexcept { return 0; }

   private:
    /// An idle segment of just the size of a new one that would be allocated whole, or null. The split policy may have refused
    /// it, as it knows neither the granularity of the device nor the pages of the segment.
    template <typename Policies>
    [[nodiscard]] static block* idle_like_new(free_list& list, std::size_t size, std::size_t segment,
                                              const Policies& p) noexcept {
      if (segment == size || segment >= p.split.oversize() || p.split.should_split(size, segment))
        return nullptr;
      block* const fit = list.template best_fit<typename Manager::order>(size);
      return fit != nullptr && fit->size == segment ? fit : nullptr;
    }

    Manager& manager_;
  };
};

}  // namespace tessera::detail
