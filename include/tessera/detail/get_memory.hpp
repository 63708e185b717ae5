// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/growth_way.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/free_list.hpp>
#include <tessera/detail/window.hpp>
#include <tessera/policy/recovery.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/recipe/check_policies.hpp>
#include <tessera/recipe/recipe.hpp>

/// How memory comes from the device, once it is decided that it must.
namespace tessera {

/// The most bytes that may be reserved.
template <typename Machine, typename Growth>
[[nodiscard, gnu::always_inline]] inline std::size_t limit_of(const Machine& machine,
                                                              const Growth& growth) noexcept {
  return growth.limit(machine.device().capacity());
}

template <typename Machine, typename Growth>
[[nodiscard, gnu::always_inline]] inline usage usage_of(const Machine& machine,
                                                        const Growth& growth) noexcept {
  return machine.usage_under(limit_of(machine, growth));
}

/// Bytes to ask the device for, so that a block of `size` bytes fits: what growth wants, or exactly that, in whole pages.
template <typename Recipe, typename Machine>
[[nodiscard]] std::size_t segment_for(const Machine& machine, const policies<Recipe>& chosen,
                                      std::size_t size, bool exactly = false) noexcept {
  usage now = usage_of(machine, chosen.growth);
  const std::size_t most = saturating_add(now.reserved, detail::left_on(machine.device(), now.reserved));
  if (most < now.limit) now.limit = most;
  if (now.limit > unlimited / 2) now.limit = unlimited / 2;  // so that a share of it is a size, on any device
  const std::size_t wanted = exactly ? size : chosen.growth.segment_size(size, now);
  if (wanted < size || wanted > unlimited / 2)
    refuse_answer("growth: segment_size", size, wanted,
                  "a segment must hold the block it is taken for, and be smaller than 2^63");
  return in_whole_pages(chosen.pages, align_up(wanted, machine.device().granularity()));
}

/// What will refuse a segment without the device being asked; by_device where it may be asked.
template <typename Recipe, typename Machine>
[[nodiscard]] failure_reason refusal_ahead(const Machine& machine, const policies<Recipe>& chosen,
                                           std::size_t segment) noexcept {
  if (machine.would_pass(limit_of(machine, chosen.growth), segment)) return failure_reason::by_limit;
  if constexpr (requires { Recipe::recovery::checks_capacity; }) {
    if (machine.would_pass(machine.device().capacity(), segment)) return failure_reason::by_capacity;
  }
  return failure_reason::by_device;
}

namespace detail {
/// Returns the numbers of a request that fails now.
///   Cost:  linear in the blocks
template <typename Recipe, typename Introspection>
[[nodiscard, gnu::noinline, gnu::cold]] oom_numbers numbers_of(const Introspection& blocks,
                                                               const policies<Recipe>& settings,
                                                               std::size_t bytes, stream_id stream) noexcept {
  oom_numbers numbers{.requested = bytes, .segment = bytes, .stream = stream};
  numbers.now = usage_of(blocks, settings.growth);
  numbers.capacity = blocks.device().capacity();
  numbers.available = left_on(blocks.device(), numbers.now.reserved);
  blocks.for_each_segment([&numbers](const block& first, std::size_t) {
    for (const block *b = &first, *end = first.below; b != end; b = b->above) {
      if (b->is_free() && b->size > numbers.largest_free) numbers.largest_free = b->size;
    }
  });
  if (bytes > max_request) return numbers;
  numbers.block = settings.rounding.block_size(bytes);
  numbers.segment = segment_for(blocks, settings, numbers.block);
  return numbers;
}
}  // namespace detail

/// Whether the device need not be asked. Where pieces move, some may serve below a limit.
template <typename Recipe>
[[nodiscard]] constexpr bool is_refused_ahead(const policies<Recipe>& chosen, failure_reason why) noexcept {
  if (why == failure_reason::by_limit) return Recipe::growth::way != growth_way::stitching;
  return why == failure_reason::by_capacity && chosen.recovery.steps(why).count == 0;
}

/// What pieces are made of where a policy stitches.
struct stitching_pages {
  page_order kinds;
  std::size_t page;  ///< bytes that their sizes and addresses are multiples of
};
template <typename Machine, typename Growth, typename Pages>
stitching_pages pages_for(const Machine& machine, const Growth& growth, const Pages& pages,
                          std::size_t size) noexcept {
  const std::size_t page = growth.page_size(size);
  if (page == 0 || page % min_alignment != 0 || page > max_request)
    refuse_answer("growth: page_size", size, page,
                  "a page is a multiple of min_alignment, up to max_request");
  const page_order kinds = pages.backing(page);
  return {kinds, align_up(page, machine.page_size(kinds))};
}

/// Makes a window usable: idle pieces move there, or new ones are taken, so that at most `freely` bytes are reserved, and
/// no more than the limit in any case. Null where that cannot be, and idle pieces may be gone.
template <typename Machine, typename Growth>
detail::block* fill_window(Machine& machine, const Growth& growth, detail::free_list& home, std::size_t size,
                           const detail::window& w, const stitching_pages& pages,
                           std::size_t freely) noexcept {
  const growth_state now = machine.state(size, limit_of(machine, growth));
  const auto excess = [&](std::size_t most) {
    const std::size_t after = now.reserved + w.missing;
    return w.missing > 0 && after > most ? after - most : 0;
  };
  const std::size_t needed = excess(now.limit);
  const std::size_t wanted = excess(freely);
  const std::size_t taken = wanted > 0 ? machine.take_idle(w, wanted, needed) : 0;
  detail::block* found = nullptr;
  if (taken >= needed) {
    const std::size_t left = now.reserved - taken;
    found = machine.map(w, home, pages.kinds, pages.page, growth.min_growth(size),
                        freely > left ? freely - left : 0, [&](std::size_t reserved) {
                          growth_state then = now;
                          then.reserved = reserved;
                          const std::size_t count = growth.largest_piece(then) / pages.page;
                          return count > 0 ? count * pages.page : pages.page;
                        });
  }
  machine.drop_spare();
  return found;
}

/// Takes a window instead of a free block that would serve, if that breaks into fewer whole pages.
template <typename Machine, typename Growth, typename Pages>
[[gnu::noinline]] detail::block* save_pages(Machine& machine, const Growth& growth, const Pages& pages,
                                            detail::free_list& home, std::size_t size,
                                            detail::block* fit) noexcept {
  const stitching_pages plan = pages_for(machine, growth, pages, size);
  const std::size_t broken = machine.breaks(*fit, size, plan.page);
  if (broken == 0) return fit;
  const detail::window w = machine.find(home, size, plan.page, 0, true);
  if (w.first == nullptr || w.taken >= broken) return fit;
  const std::size_t freely = growth.take_freely(machine.state(size, limit_of(machine, growth)));
  detail::block* const found = fill_window(machine, growth, home, size, w, plan, freely);
  if (found == nullptr) return machine.best_fit(home, size);
  machine.place_at(w);
  return found;
}

/// The free block that serves `size` bytes best, or null; where pages are to be saved, it may have been made for that.
template <typename Recipe, typename Machine>
[[gnu::always_inline]] inline detail::block* best_fit(Machine& machine, const policies<Recipe>& chosen,
                                                      detail::free_list& home, std::size_t size) noexcept {
  detail::block* const fit = machine.best_fit(home, size);
  if constexpr (Recipe::growth::way == growth_way::stitching) {
    const usage now = usage_of(machine, chosen.growth);
    if (fit != nullptr && chosen.growth.saves_pages(now.reserved, now.limit))
      return save_pages(machine, chosen.growth, chosen.pages, home, size, fit);
  }
  return fit;
}

/// Gets memory for a block of `size` bytes where that costs least; the free block that holds it, or null.
template <typename Machine, typename Growth, typename Pages>
detail::block* stitch(Machine& machine, const Growth& growth, const Pages& pages, detail::free_list& home,
                      std::size_t size) noexcept {
  const growth_state now = machine.state(size, limit_of(machine, growth));
  const stitching_pages plan = pages_for(machine, growth, pages, size);
  const detail::window w = machine.find(home, size, plan.page, growth.range_size(machine.device().capacity()),
                                        growth.saves_pages(now.reserved, now.limit));
  if (w.first == nullptr) return nullptr;
  if (auto* const found = fill_window(machine, growth, home, size, w, plan, growth.take_freely(now)))
    return found;
  // The device may give less than it has, as others use it too: then all that is new is made up for.
  return fill_window(machine, growth, home, size, w, plan,
                     machine.state(size, limit_of(machine, growth)).reserved);
}

/// An idle segment of just the size of one that would be taken and handed out whole, or null. The policy may have refused
/// it, as it knows neither the device's granularity nor what pages the segment would be made of.
template <typename Machine, typename Split>
detail::block* like_new(const Split& split, detail::free_list& home, std::size_t size,
                        std::size_t segment) noexcept {
  if (segment == size || segment >= split.oversize() || split.should_split(size, segment)) return nullptr;
  detail::block* const fit = home.template best_fit<typename Machine::block_order>(size);
  return fit != nullptr && fit->size == segment ? fit : nullptr;
}

/// The free block that holds `size` bytes, taken over from other streams where the recipe lets it serve this one, or null.
template <typename Recipe, typename Machine, typename Key>
detail::block* borrow(Machine& machine, const policies<Recipe>& chosen, std::size_t pool, Key key,
                      std::size_t size) noexcept {
  if constexpr (Recipe::streams::reuses_across_streams) {
    detail::free_list* const home = machine.home(pool, key);
    if (home == nullptr || !machine.make_room()) return nullptr;
    return machine.borrow(
        *home, size, chosen.streams.reuse_rules(),
        [&](std::size_t bytes) { return chosen.split.may_serve(size, bytes); },
        [&](std::size_t bytes) { return chosen.split.should_split(size, bytes); });
  }
  return nullptr;
}

/// Gets memory for a block of `size` bytes, and where the recipe grows by segments, one of `segment` bytes; the free
/// block that holds it, or null.
template <typename Recipe, typename Machine>
detail::block* get_memory(Machine& machine, const policies<Recipe>& chosen, detail::free_list& home,
                          std::size_t size, std::size_t segment) noexcept {
  const auto& growth = chosen.growth;
  if constexpr (Recipe::growth::way == growth_way::segments) {
    if (detail::block* const idle = like_new<Machine>(chosen.split, home, size, segment)) return idle;
    return machine.acquire(home.pool(), home.key(), segment, segment >= chosen.split.oversize(),
                           chosen.pages.backing(segment));
  } else if constexpr (Recipe::growth::way == growth_way::in_place) {
    const std::size_t page = growth.page_size(size);
    return machine.extend(home, size,
                          {page, growth.range_size(machine.device().capacity()), chosen.pages.backing(page)});
  } else {
    return stitch(machine, growth, chosen.pages, home, size);
  }
}

}  // namespace tessera
