// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/core/parameter.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/detail/backend.hpp>
#include <tessera/detail/expandable_backend.hpp>
#include <tessera/detail/mapped_ranges.hpp>
#include <tessera/detail/stitching_backend.hpp>

namespace tessera {

using detail::expandable_backend;
using detail::segment_backend;
using detail::stitching_backend;

/// Decides how a pool grows where nothing cached fits.
///
///   P::backend                   what carries it out, see detail/backend.hpp; it may ask more questions
///   p.segment_size(block, now)   bytes to ask the device for, so that a block of `block` bytes fits
///   p.limit.on(capacity)         the most bytes that may be reserved on a device of `capacity` bytes; `unlimited` leaves
///                                it to the device. `limit` may be a memory_limit
///
/// Law, checked by law::growth: segment_size(n, now) >= n.
template <typename P>
concept growth_policy = regular<P> && requires(const P& p, std::size_t block, const usage& now) {
  typename P::backend;
  { p.segment_size(block, now) } noexcept -> std::same_as<std::size_t>;
  { p.limit.on(block) } noexcept -> std::same_as<std::size_t>;
};

/// A growth_policy for a backend that maps pages into ranges of addresses answers besides:
///
///   p.page_size(block)       bytes that are mapped at once, for a block of `block` bytes
///   p.range_size(capacity)   bytes of addresses that are reserved at once, on a device of `capacity` bytes
///   p.base_alignment(block)  of what the block's address is to be a multiple, where there is room; 1 or a multiple of
///                            min_alignment
template <typename P>
concept range_growth_policy = growth_policy<P> && detail::answers_range_questions<P>;

/// A range_growth_policy for stitching answers besides:
///
///   p.page_size(block)          the size of mapped memory is a multiple of it; all pages are of the kind that backs it
///   p.take_freely(state)        the reserved total up to which new memory is taken; above it, idle memory moves as long as
///                               there is any
///   p.largest_piece(state)      the most bytes that are mapped as one, and so move together, below 2^63
///   p.min_growth(block)         bytes to which a new chunk may be stretched, below what is taken freely
///   p.saves_pages(reserved, limit)   asked at each request: whether to map new memory in order to keep whole free pages
template <typename P>
concept stitching_growth_policy = range_growth_policy<P> && detail::answers_stitching_questions<P>;

/// The limit of a growth policy: bytes, or a share of the device. A `tunable` one may be assigned.
template <auto Limit, share_rounding Rule = share_rounding::truncate>
struct growth_limit : parameter<Limit> {
  using parameter<Limit>::parameter;
  constexpr growth_limit() noexcept = default;
  /// The limit in bytes on a device of `capacity` bytes; `unlimited` where there is none.
  [[nodiscard]] constexpr std::size_t on(std::size_t capacity) const noexcept {
    return memory_limit(this->get()).on(capacity, Rule);
  }
  bool operator==(const growth_limit&) const = default;
};

/// Takes a segment of just the block's size.
template <auto Limit = tunable<memory_limit>{no_limit}>
struct grow_exactly {
  using backend = segment_backend;
  [[no_unique_address]] growth_limit<Limit> limit{};

  [[nodiscard]] static constexpr std::size_t segment_size(std::size_t block, const usage&) noexcept {
    return block;
  }
  bool operator==(const grow_exactly&) const = default;
};

/// Takes a `Small` segment for a block of at most half of it, a `large` one for a block of less than `Own` bytes, and
/// otherwise the block's size, rounded up to a multiple of `Small`; all in bytes.
///
///     constexpr tessera::grow_by_segments<> like_pytorch;
///     static_assert(like_pytorch.segment_size(5_MiB, {}) == 20_MiB);
///     static_assert(like_pytorch.segment_size(25_MiB, {}) == 26_MiB);
///
///   Source:  PyTorch, with 2, 20 and 10 MiB, of which large_segment_size_mb changes the second; its share_rounding is truncated in
///            2.6, and nearest in 2.14
template <std::size_t Small = 2_MiB, auto Large = tunable<std::size_t>{20_MiB}, std::size_t Own = 10_MiB,
          auto Limit = tunable<memory_limit>{no_limit}, share_rounding Rule = share_rounding::truncate>
struct grow_by_segments {
  static_assert(Small >= min_alignment && Small % min_alignment == 0,
                "grow_by_segments<Small>: Small is in bytes, a multiple of min_alignment; 2 MiB are 2_MiB");
  static_assert(detail::initial_bytes<Large>() >= Small,
                "grow_by_segments<Small, Large>: Large is in bytes, and at least Small; 20 MiB are 20_MiB");
  static_assert(
      Own == 0 || Own > Small / 2,
      "grow_by_segments<Small, Large, Own>: Own is in bytes, more than half of Small, up to which blocks "
      "are small, or 0; 10 MiB are 10_MiB");
  using backend = segment_backend;
  [[no_unique_address]] parameter<Large> large{};
  [[no_unique_address]] growth_limit<Limit, Rule> limit{};

  [[nodiscard]] constexpr std::size_t segment_size(std::size_t block, const usage&) const noexcept {
    if (block <= Small / 2) return Small;
    return Own > 0 && block < Own && block <= large ? large.get() : align_up(block, Small);
  }
  bool operator==(const grow_by_segments&) const = default;
};

/// Takes a chunk of at least `small` bytes for a block of up to `boundary`, and of at least `large` for a larger one; 0 for
/// just the block's size.
///   Source:  Paddle's auto_growth, whose auto_growth_chunk_size_in_mb is `large` where there is one pool
template <auto Small = tunable<std::size_t>{0}, auto Large = tunable<std::size_t>{0},
          auto Boundary = tunable<std::size_t>{0}, auto Limit = tunable<memory_limit>{no_limit}>
struct grow_by_chunks {
  static_assert(is_block_size_or_0(detail::initial_bytes<Small>()) &&
                    is_block_size_or_0(detail::initial_bytes<Large>()) &&
                    is_block_size_or_0(detail::initial_bytes<Boundary>()),
                "grow_by_chunks<Small, Large, Boundary>: each is in bytes, at least min_alignment, or 0; 2 "
                "MiB are 2_MiB");
  using backend = segment_backend;
  [[no_unique_address]] parameter<Small> small{};
  [[no_unique_address]] parameter<Large> large{};
  [[no_unique_address]] parameter<Boundary> boundary{};
  [[no_unique_address]] growth_limit<Limit> limit{};

  [[nodiscard]] constexpr std::size_t segment_size(std::size_t block, const usage&) const noexcept {
    const std::size_t chunk = block <= boundary ? small.get() : large.get();
    return block > chunk ? block : chunk;
  }
  bool operator==(const grow_by_chunks&) const = default;
};

/// Takes chunks by a plan, the first one often nearly all that is free, and for what is larger than any of them, a segment
/// of the block's size. Where a chunk of the plan cannot be had, growth is refused, however small the block.
///   Source:  Paddle's naive_best_fit; here direct segments count as chunks that were taken
template <auto Plan = tunable<chunk_plan>{chunk_plan{}}, auto Limit = tunable<memory_limit>{no_limit}>
struct grow_by_plan {
  using backend = segment_backend;
  [[no_unique_address]] parameter<Plan> plan{};
  [[no_unique_address]] growth_limit<Limit> limit{};

  [[nodiscard]] constexpr std::size_t segment_size(std::size_t block, const usage& now) const noexcept {
    const chunk_plan& chosen = plan.get();
    const std::size_t largest = chosen.largest_pooled(now.limit);
    const bool is_sound = largest <= chunk_plan::available(now.limit);
    if (is_sound && block > largest) return block;
    const std::size_t free = now.limit > now.reserved ? now.limit - now.reserved : 0;
    const std::size_t chunk = is_sound         ? chosen.next(free, now.reserved == 0)
                              : largest > free ? largest
                                               : free + 1;
    return block > chunk ? block : chunk;
  }
  bool operator==(const grow_by_plan&) const = default;
};

/// Maps pages into ranges of addresses, at the lowest place that gets room for the block: pages of `Small` bytes for
/// blocks of at most half of that, and of `large` bytes for larger ones. So blocks of sizes that vary share one range, and
/// what is not used can go back page by page. Blocks of 2 MiB and more begin at a multiple of `alignment`, 0 or one
/// of min_alignment, where there is room.
///
/// The limit is held against the segment that grow_by_segments<Small, large> would take, so that what is reserved may pass
/// it by less than a page.
///   Source:  PyTorch's expandable_segments, with 2 MiB and 20 MiB, and torch_npu's segment_size_mb (20 to 512) and
///            base_addr_aligned_kb (0 to 16)
template <std::size_t Small = 2_MiB, auto Large = tunable<std::size_t>{20_MiB},
          auto Limit = tunable<memory_limit>{no_limit}, auto Alignment = tunable<std::size_t>{1},
          auto Reserve = tunable<memory_limit>{memory_limit{fraction{1'125'000'000}}},
          share_rounding Rule = share_rounding::truncate>
struct grow_in_place {
  static constexpr const char* hint = "grow_in_place";  ///< what explain() suggests
  static_assert(Small >= min_alignment && Small % min_alignment == 0,
                "grow_in_place<Small>: Small is in bytes, a multiple of min_alignment; 2 MiB are 2_MiB");
  static_assert(detail::initial_bytes<Large>() >= Small,
                "grow_in_place<Small, Large>: Large is in bytes, and at least Small; 20 MiB are 20_MiB");
  using backend = expandable_backend;
  [[no_unique_address]] parameter<Large> large{};
  [[no_unique_address]] growth_limit<Limit, Rule> limit{};
  [[no_unique_address]] parameter<Alignment> alignment{};
  [[no_unique_address]] parameter<Reserve> reserve{};

  [[nodiscard]] constexpr std::size_t segment_size(std::size_t block, const usage&) const noexcept {
    constexpr std::size_t own = Small / 2 < 10_MiB ? 10_MiB : 0;
    return grow_by_segments<Small, Large, own>{.large = large}.segment_size(block, {});
  }
  [[nodiscard]] constexpr std::size_t page_size(std::size_t block) const noexcept {
    return block <= Small / 2 ? Small : large.get();
  }
  [[nodiscard]] constexpr std::size_t range_size(std::size_t capacity) const noexcept {
    const std::size_t all = saturating_add(capacity, capacity / 8);
    const memory_limit said(reserve.get());
    const std::size_t wanted = said.bytes != unlimited ? said.bytes : said.share.of(capacity);
    return wanted < all ? wanted : all;
  }
  [[nodiscard]] constexpr std::size_t base_alignment(std::size_t block) const noexcept {
    return block >= 2_MiB && alignment > 0 ? alignment.get() : 1;
  }
  bool operator==(const grow_in_place&) const = default;
};

/// Serves a block from idle pieces of memory wherever they are, of any pool and stream: they move to where few bytes are
/// missing. A piece of which a part is in use stays. New memory is taken only up to `slack` above what was needed at most,
/// so that what is reserved stays close to what lives.
///
/// What was needed at most is remembered as long as something is reserved, so that a program which empties its cache on its
/// way does not begin again with small pieces. A trim() that leaves nothing reserved forgets it: the next program then costs
/// what it would cost a new allocator. Resetting statistics changes no decision.
///
/// `pieces` is the knob: of what has been reserved at most, one part in so many is mapped as one, but at least 16 MiB.
/// More of them waste less, and cost more calls of the device: over recorded programs 64 reserved 4.0 % above what lived,
/// with 1.9 times the calls of grow_in_place, and 32 reserved 4.1 % with 1.5 times. Pieces also stay below one part in
/// `last_pieces` of what is left below the limit, so that little is left unused when it is reached; so a device that is
/// nearly full is called more often. For both, 0 stands for 1. What is mapped is a multiple of 2 MiB, so with
/// back_with_huge_1g_pages_first no page is giant; with back_with_huge_1g_pages_only each is.
///   Source:  the idea is GMLake's (arXiv 2401.08156); the rule was found by replaying recorded programs
template <auto Pieces = tunable<std::size_t>{64}, auto Slack = tunable<fraction>{percent(4)},
          auto Limit = tunable<memory_limit>{no_limit}, auto LastPieces = tunable<std::size_t>{1024},
          auto Alignment = tunable<std::size_t>{1}>
struct grow_by_stitching {
  static constexpr const char* hint = "grow_by_stitching";  ///< what explain() suggests
  using backend = stitching_backend;
  [[no_unique_address]] parameter<Pieces> pieces{};
  [[no_unique_address]] parameter<Slack>
      slack{};  ///< how much may be reserved freely above the peak of what lives
  [[no_unique_address]] growth_limit<Limit> limit{};
  [[no_unique_address]] parameter<LastPieces> last_pieces{};
  [[no_unique_address]] parameter<Alignment> alignment{};

  [[nodiscard]] static constexpr std::size_t segment_size(std::size_t block, const usage&) noexcept {
    return align_up(block, page);
  }
  [[nodiscard]] static constexpr std::size_t page_size(std::size_t) noexcept { return page; }
  [[nodiscard]] static constexpr std::size_t range_size(std::size_t capacity) noexcept {
    return saturating_add(capacity, capacity / 8);
  }
  [[nodiscard]] constexpr std::size_t base_alignment(std::size_t block) const noexcept {
    return block >= page && alignment > 0 ? alignment.get() : 1;
  }
  [[nodiscard]] constexpr std::size_t take_freely(const growth_state& state) const noexcept {
    const std::size_t above = state.peak_live + slack.get().of(state.peak_live);
    const std::size_t peak = above > state.peak_reserved ? above / page * page : state.peak_reserved;
    return peak < state.limit ? peak : state.limit;
  }
  [[nodiscard]] constexpr std::size_t largest_piece(const growth_state& state) const noexcept {
    const std::size_t peak = state.peak_reserved > state.peak_live ? state.peak_reserved : state.peak_live;
    const std::size_t left = state.limit > state.reserved ? state.limit - state.reserved : 0;
    const std::size_t usual = share(peak, pieces) / page * page;
    const std::size_t at_most = share(left, last_pieces) / page * page;
    const std::size_t largest = usual > least_usual ? usual : least_usual;
    return at_most > page ? (largest < at_most ? largest : at_most) : page;
  }
  [[nodiscard]] static constexpr std::size_t min_growth(std::size_t block) noexcept {
    return block > small ? 16_MiB : 0;
  }
  [[nodiscard]] static constexpr bool saves_pages(std::size_t reserved, std::size_t limit) noexcept {
    return reserved > limit / 2;
  }
  bool operator==(const grow_by_stitching&) const = default;

 private:
  static constexpr std::size_t page = 2_MiB;
  static constexpr std::size_t least_usual = 16_MiB;
  [[nodiscard]] static constexpr std::size_t share(std::size_t whole, std::size_t parts) noexcept {
    return parts > 1 ? whole / parts : whole;
  }
  static constexpr std::size_t small = 512_KiB;
};

}  // namespace tessera
