// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/growth_way.hpp>
#include <tessera/core/oom_report.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/free_list.hpp>
#include <tessera/detail/get_memory.hpp>
#include <tessera/detail/window.hpp>
#include <tessera/observe/oom_advice.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/recipe/recipe.hpp>

/// Why a request failed, found out once it has.
namespace tessera {

/// Finds out why a request cannot be served, from the policies and from a walk over all blocks.
template <typename Recipe, typename Introspection>
class failure_survey {
  using provider = std::remove_cvref_t<decltype(std::declval<const Introspection&>().device())>;
  static constexpr bool has_segments = Recipe::growth::way == growth_way::segments;

 public:
  failure_survey(const Introspection& blocks, const policies<Recipe>& chosen, std::size_t bytes,
                 stream_id stream) noexcept
      : blocks_(blocks), chosen_(chosen), key_(chosen.streams.reuse_key(stream)) {
    told_.requested = bytes;
    told_.stream = stream;
    told_.segment = bytes;
    told_.now = usage_of(blocks, chosen.growth);
    told_.capacity = blocks.device().capacity();
    told_.available = detail::left_on(blocks.device(), told_.now.reserved);
    if (told_.is_absurd()) return;
    note_request();
    note_composition();
    look_at_blocks();
    look_at_what_stays();
  }
  [[nodiscard]] const oom_report& told() const noexcept { return told_; }

 private:
  using block = detail::block;

  void note_request() noexcept {
    const std::size_t size = chosen_.rounding.block_size(told_.requested);
    told_.block = size;
    told_.pool = chosen_.pools.select(size);
    told_.segment = segment_for(blocks_, chosen_, size);
    told_.wanted = told_.segment;
    if constexpr (!has_segments) told_.wanted = align_up(size, chosen_.growth.page_size(size));
    told_.exact_segment = has_segments ? segment_for(blocks_, chosen_, size, true) : told_.wanted;
    told_.page_in_place = grow_in_place<>{}.page_size(size);
    told_.rounding = oom_report::above(size, align_up(told_.requested, 512));
    const std::size_t unpaged =
        align_up(chosen_.growth.segment_size(size, told_.now), blocks_.device().granularity());
    told_.unpaged_segment = has_segments ? oom_report::least(unpaged, told_.segment) : told_.wanted;
  }

  void note_composition() noexcept {
    for (const recovery_step step : chosen_.recovery.steps(refusal_ahead(blocks_, chosen_, told_.segment))) {
      told_.empties_cache = told_.empties_cache || step == recovery_step::evict_all;
      told_.accepts_exact_size = told_.accepts_exact_size || step == recovery_step::grow_exactly;
    }
    told_.accepts_exact_size = told_.accepts_exact_size || !has_segments;
    told_.pools = Recipe::pools::count;
    told_.way = Recipe::growth::way;
    const auto key_of = [this](std::uint64_t stream) {
      return stream_id(chosen_.streams.reuse_key(stream_id{stream}));
    };
    told_.crosses = Recipe::streams::reuses_across_streams;
    told_.shares_streams = told_.crosses || key_of(1) == key_of(2);
    told_.device_has_order = ordering_provider<provider>;
    told_.device_has_ranges = virtual_memory_provider<provider>;
    if constexpr (limited_provider<provider>)
      told_.device_is_limited = blocks_.device().over_limit(told_.segment);
    std::size_t backed = told_.segment;
    if constexpr (!has_segments) {
      backed = chosen_.growth.page_size(told_.block);
      told_.range =
          align_up(oom_report::least(chosen_.growth.range_size(told_.capacity), max_request), backed);
    }
    for (const page_kind& kind : chosen_.pages.backing(backed))
      told_.pages_fall_back = kind.size == page_size::normal;
    told_.split_limit = chosen_.split.oversize();
  }

  /// What is free and why it did not serve, and what live blocks have too much.
  void look_at_blocks() noexcept {
    blocks_.for_each_segment([this](const block& first, std::size_t) {
      std::size_t usable = 0;  // bytes side by side that are free once pending blocks are
      for (const block *b = &first, *end = first.below; b != end; b = b->above) {
        if (b->is_free()) look_at_free(*b);
        const bool is_used = !b->is_open() && b->mark.is != block::state::pending;
        if (is_used) look_at_live(*b);
        const bool is_ours =
            !is_used && !b->is_unmapped() && b->home->pool() == told_.pool && b->home->key() == key_;
        usable = is_ours ? usable + b->size : 0;
        if (usable > told_.after_pending && chosen_.split.may_serve(told_.block, usable))
          told_.after_pending = usable;
      }
    });
  }
  void look_at_live(const block& b) noexcept {
    const std::size_t requested = b.facts.requested;
    if (requested == 0) return;
    const std::size_t rounded = oom_report::least(chosen_.rounding.block_size(requested), b.size);
    told_.rounding += oom_report::above(rounded, align_up(requested, 512));
    told_.unsplit += b.size - rounded;
  }
  void look_at_free(const block& b) noexcept {
    const obstacle is = obstacle_to(b);
    const oom_report::free_block here{b.address, b.size, b.home->pool(), b.home->key()};
    if (here.bytes > told_.largest.bytes) told_.largest = here, told_.largest_is = is;
    if (is == obstacle::too_small) return;
    std::size_t& most = told_.but_for[static_cast<std::size_t>(is)];
    if (count_obstacles(b) <= 1 && b.size > most) most = b.size;
  }
  [[nodiscard]] bool may_not_cross(const block& b) const noexcept {
    return b.home->key() != key_ && !chosen_.streams.reuse_rules().insert_dependencies;
  }
  [[nodiscard]] int count_obstacles(const block& b) const noexcept {
    return (b.home->pool() != told_.pool) + may_not_cross(b) + !chosen_.split.may_serve(told_.block, b.size);
  }
  [[nodiscard]] obstacle obstacle_to(const block& b) const noexcept {
    if (b.size < told_.block) return obstacle::too_small;
    if (b.home->pool() != told_.pool) return obstacle::pool;
    if (may_not_cross(b))
      return Recipe::streams::reuses_across_streams ? obstacle::unfinished : obstacle::stream;
    if (chosen_.split.may_serve(told_.block, b.size)) return obstacle::none;
    return b.size >= told_.split_limit || told_.block >= told_.split_limit ? obstacle::split_limit
                                                                           : obstacle::size_class;
  }

  /// What cannot go back to the device, and because of which blocks.
  void look_at_what_stays() noexcept {
    blocks_.for_each_segment([this](const block& first, std::size_t bytes) {
      if constexpr (has_segments) {
        look_at_unit(first, first.address, first.address + bytes);
      } else {
        look_at_pieces(first, first.below);
      }
    });
  }
  void look_at_pieces(const block& first, const block* end) noexcept {
    const block* b = &first;
    for (std::uintptr_t at = first.address; b != end;) {
      const std::uintptr_t after = b->is_unmapped() ? b->end() : blocks_.end_of_piece(at);
      if (!b->is_unmapped()) look_at_unit(*b, at, after);
      at = after > at ? after : b->end();
      while (b != end && b->end() <= at) b = b->above;
    }
  }
  /// A segment or a piece of mapped memory: what goes back as a whole or not at all.
  void look_at_unit(const block& lowest, std::uintptr_t begin, std::uintptr_t end) noexcept {
    oom_report::pin here{.begin = begin, .length = end - begin};
    std::size_t pending = 0;
    std::size_t live = 0;     // blocks
    std::size_t largest = 0;  // of those in use
    for_each_part(lowest, begin, end, [&](const block& b, std::size_t low, std::size_t high) {
      if (b.is_free()) return void(here.bytes += high - low);
      if (here.blocks++ == 0) here.first = b.address;
      here.held += b.size;
      largest = (std::max)(largest, b.size);
      b.mark.is == block::state::pending ? pending += high - low : ++live;
    });
    if (here.blocks == 0) return void(told_.idle += here.bytes);
    if (live == 0) told_.idle_later += here.bytes + pending;
    const std::uintptr_t best = told_.largest.address;
    if (begin < best + told_.largest.bytes && best < end) told_.largest_neighbours += here.blocks;
    if (here.bytes == 0) return;
    told_.pinned += here.bytes;
    ++told_.pinning;
    told_.rank(here);
    // Pages are taken for the largest of the blocks, if in pages, and not for what is wanted now.
    const std::size_t in_place = grow_in_place<>{}.page_size(largest);
    const std::size_t stitched = grow_by_stitching<>{}.page_size(largest);
    for_each_part(lowest, begin, end, [&](const block& b, std::size_t low, std::size_t high) {
      if (b.is_free()) told_.pages_in_place += detail::whole_pages(low, high, in_place);
      if (b.is_free()) told_.pages_stitched += detail::whole_pages(low, high, stitched);
    });
  }
  /// Calls f(block, low, high) for each block of which a part lies at [begin, end), and where that is, counted from there.
  template <typename F>
  static void for_each_part(const block& lowest, std::uintptr_t begin, std::uintptr_t end, F f) noexcept {
    for (const block* b = &lowest; b->mark.is != block::state::segment && b->address < end; b = b->above)
      f(*b, (std::max)(b->address, begin) - begin, (std::min)(b->end(), end) - begin);
  }

  Introspection blocks_;
  const policies<Recipe>& chosen_;
  stream_id key_;
  oom_report told_{};
};

/// Why a request of `bytes` on `stream` cannot be served, and what could be done; says what is so now.
///   Cost:  linear in the blocks, and in ranges in their pages
template <typename Recipe, typename Introspection>
[[nodiscard, gnu::noinline, gnu::cold]] oom_report explain_failure(const Introspection& blocks,
                                                                   const policies<Recipe>& chosen,
                                                                   std::size_t bytes,
                                                                   stream_id stream) noexcept {
  oom_report told = failure_survey<Recipe, Introspection>(blocks, chosen, bytes, stream).told();
  advise(told);
  return told;
}

/// Throws what an allocator says of a failure; out of line, as the error is large.
template <typename Allocator>
[[noreturn, gnu::noinline, gnu::cold]] void raise_failure(Allocator& pool, std::size_t bytes,
                                                          stream_id stream) {
  raise(pool.failure(bytes, stream));
}

}  // namespace tessera
