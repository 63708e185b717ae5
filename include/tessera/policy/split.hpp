// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/core/parameter.hpp>
#include <tessera/core/types.hpp>

/// The policies of the axis `split`: may a free block serve, and is it split? As in each header of an axis, a concept with
/// the required members and their laws comes first, then the policies. tessera/caching_allocator.hpp asks them; read it
/// next.

namespace tessera::inline v0_1::policy {

/// The end of a split block that serves the request; the remainder stays free. With `high`, a growth
/// policy's base_alignment applies only to blocks that are not split.
enum class block_end : unsigned char { low, high };

/// Decides whether the best-fitting free block may serve a request, and whether it is split.
///
///   p.may_serve(wanted, block)      whether the best fit, a free block of `block` bytes, may be used; if not, the
///                                   request is a miss, even if a larger free block would fit
///   p.should_split(wanted, block)   whether the block is split at `wanted` bytes; if not, all of it is used
///   p.allocated_end()               the end of a split block that is allocated
///   p.oversize_from()               size in bytes from which a block is oversize; `unlimited` for none
///
/// Optional members. Without them, they cost nothing:
///
///   P::order                        a free_order, which decides which of the fitting free blocks is asked about; the
///                                   default is the smallest, then the one at the lowest address
///   p.precedes(a, b, wanted)        an order of its own: whether free_block `a` should serve the wanted_block rather
///                                   than `b`. Both are large enough and may serve. A search is then linear in the free blocks
///                                   that are large enough. Not with stitching or reuse across streams
///   p.note_served(served_request)   called, with a policy that is not const, after each request that a free block or new
///                                   memory served. A policy learns here; its other functions stay const
///   P::splits_oversize              true tells law::policy that should_split may be true for oversize blocks
///
/// should_split may take a third argument, `pool_traits in = {}`, to learn which blocks are small.
///
/// What a policy learned is part of its value, so a copy of the policies of an allocator has it, too. Each arena of a
/// per_stream learns from its own requests. A checkpoint holds blocks, not policies, so a restore keeps what was learned.
///
/// Laws, checked by law::policy: a block of exactly the wanted size serves and is not split; without
/// `splits_oversize`, oversize blocks stay whole. `precedes` is an order: not a before a; not both a before b and b
/// before a; with a before b and b before c, also a before c. All hold after any requests were noted.
template <typename P>
concept split_policy = detail::regular<P> && detail::has_no_wrong_order<P> &&
                       requires(const P& p, std::size_t wanted, std::size_t block) {
                         { p.may_serve(wanted, block) } noexcept -> std::same_as<bool>;
                         { p.should_split(wanted, block) } noexcept -> std::same_as<bool>;
                         { p.allocated_end() } noexcept -> std::same_as<block_end>;
                         { p.oversize_from() } noexcept -> std::same_as<std::size_t>;
                       };

/// Which whole blocks may serve a request.
enum class block_fit : unsigned char {
  any,               ///< every block that is large enough
  exact,             ///< blocks of exactly the wanted size
  same_power_of_two  ///< blocks with the same next power of two as the wanted size
};

/// Serves with whole blocks.
///
/// Choose it if splitting is not possible, or if sizes repeat exactly. With block_fit::any, a small request
/// may take a large block. The others make size classes.
///   Source:  PyTorch's pinned host memory, with block_fit::same_power_of_two
template <block_fit Fit = block_fit::any>
struct split_never {
  [[nodiscard]] static constexpr bool may_serve(std::size_t wanted, std::size_t block) noexcept {
    if (Fit == block_fit::exact) return wanted == block;
    return Fit == block_fit::any || std::bit_ceil(wanted) == std::bit_ceil(block);
  }
  [[nodiscard]] static constexpr bool should_split(std::size_t, std::size_t) noexcept { return false; }
  [[nodiscard]] static constexpr block_end allocated_end() noexcept { return block_end::low; }
  [[nodiscard]] static constexpr std::size_t oversize_from() noexcept { return unlimited; }
  bool operator==(const split_never&) const = default;
};

/// Splits a block if at least `Remainder` bytes remain.
///
/// Choose it for the least waste inside blocks. A larger `Remainder` leaves fewer tiny free blocks.
///   Source:  Paddle. auto_growth serves with the high end; naive_best_fit serves with the low end and a
///            remainder above 64 bytes.
template <std::size_t Remainder, block_end End = block_end::low>
struct split_if_remainder_at_least : split_never<> {
  static constexpr const char* hint = "split_if_remainder_at_least";  ///< what explain() suggests
  static_assert(Remainder > 0, "split_if_remainder_at_least<Remainder>: the remainder must be above 0 bytes");

  [[nodiscard]] static constexpr bool should_split(std::size_t wanted, std::size_t block) noexcept {
    return block - wanted >= Remainder;
  }
  [[nodiscard]] static constexpr block_end allocated_end() noexcept { return End; }
  bool operator==(const split_if_remainder_at_least&) const = default;
};

/// Splits blocks of less than `max` bytes. Blocks of `max` bytes or more are oversize, and serve only
/// requests of at least `max` bytes.
///
/// Choose a finite `max` to keep small requests from splitting huge segments. The limit of small
/// blocks is that of the pools policy, or 1 MiB if that has none. With `SmallLimit`, the pools policy must have this
/// limit. `max` must stay above the limit. The rules, all in bytes:
///   * A request of up to the limit splits a block if anything remains.
///   * A larger request, below `max`, splits a block if more than `Waste` remains, by default the limit.
///   * An oversize block serves a request of at least `max` that leaves less than `slack` unused.
///   * An oversize block is split only with a `Waste` of 0; otherwise it serves as a whole.
///
///     constexpr tessera::policy::split_below<128_MiB> below;
///     static_assert(!below.may_serve(5_MiB, 200_MiB) && below.may_serve(190_MiB, 200_MiB));
///
///   Source:  PyTorch's max_split_size_mb and max_non_split_rounding_mb; `Waste` is 1 MiB, or 0 with
///            expandable segments
template <auto Max = tunable<std::size_t>{unlimited}, auto Slack = tunable<std::size_t>{20_MiB},
          std::size_t SmallLimit = limit_of_pools, std::size_t Waste = SmallLimit>
struct split_below {
  static constexpr const char* hint = "split_below";  ///< what explain() suggests
  static_assert(
      detail::initial_bytes<Max>() > (SmallLimit != limit_of_pools ? SmallLimit : 1_MiB),
      "split_below<Max, Slack, SmallLimit>: Max is in bytes and above SmallLimit (default 1 MiB), as smaller "
      "blocks are always split; write 32_MiB for 32 MiB");
  static_assert(
      detail::initial_bytes<Slack>() >= min_alignment,
      "split_below<Max, Slack>: Slack is in bytes, at least min_alignment; write 20_MiB for 20 MiB");

  /// Bytes; limit_of_pools if the pools policy has the limit.
  static constexpr std::size_t max_small_block = SmallLimit;
  static constexpr bool splits_oversize = Waste == 0;
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Max> max{};
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Slack> slack{};

  [[nodiscard]] constexpr bool may_serve(std::size_t wanted, std::size_t block) const noexcept {
    return block < max || (wanted >= max && block < detail::saturating_add(wanted, slack));
  }
  [[nodiscard]] constexpr bool should_split(std::size_t wanted, std::size_t block,
                                            pool_traits in = {}) const noexcept {
    constexpr std::size_t otherwise = SmallLimit != limit_of_pools ? SmallLimit : 1_MiB;
    const std::size_t limit = in.small_limit_or(otherwise);
    const bool splits_any = wanted <= limit || splits_oversize;
    const std::size_t waste = Waste != limit_of_pools ? Waste : limit;
    const std::size_t max_waste = splits_any ? 0 : wanted < max ? waste : unlimited;
    return block - wanted > max_waste;
  }
  [[nodiscard]] static constexpr block_end allocated_end() noexcept { return block_end::low; }
  [[nodiscard]] constexpr std::size_t oversize_from() const noexcept { return max; }
  bool operator==(const split_below&) const = default;
};

/// Splits like `Split`. Another order decides which of the fitting free blocks serves.
///   Cost:    with free_order::newest_in_class, linear in the number of newer, too small blocks
///   Source:  PyTorch 2.14: oldest_segment for devices, newest_in_class for pinned host memory
template <typename Split, free_order Order>
struct ordered : Split {
  static_assert(split_policy<Split>,
                "ordered<Split, Order>: Split is a split policy, such as split_below<> "
                "[tessera/policy/split.hpp]");
  static constexpr free_order order = Order;
  bool operator==(const ordered&) const = default;
};

}  // namespace tessera::inline v0_1::policy
