// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/core/free_order.hpp>
#include <tessera/core/parameter.hpp>
#include <tessera/core/regular.hpp>

namespace tessera {

/// Which end of a free block is handed out when the rest is kept.
enum class block_end : unsigned char { low, high };

/// Decides whether the best-fitting free block may serve a request, and whether what is left of it is kept free.
///
///   p.may_serve(wanted, block)      a refused block means a miss: larger blocks are not tried
///   p.should_split(wanted, block)   whether the block is cut at `wanted` bytes, else it is handed out whole
///   p.handed_out()                  the end that is handed out
///   p.oversize()                    from this size on blocks are never cut, unless the type has a `cuts_oversize` that is
///                                   true; `unlimited` if there is no such size
///
/// A type that also has `order` says which of the free blocks serves that are equally large; else, the one at the lowest
/// address.
///
/// Law, checked by law::split: a block just large enough serves and is not cut.
template <typename P>
concept split_policy = regular<P> && requires(const P& p, std::size_t wanted, std::size_t block) {
  { p.may_serve(wanted, block) } noexcept -> std::same_as<bool>;
  { p.should_split(wanted, block) } noexcept -> std::same_as<bool>;
  { p.handed_out() } noexcept -> std::same_as<block_end>;
  { p.oversize() } noexcept -> std::same_as<std::size_t>;
};

/// Hands blocks out whole.
struct split_never {
  [[nodiscard]] static constexpr bool may_serve(std::size_t, std::size_t) noexcept { return true; }
  [[nodiscard]] static constexpr bool should_split(std::size_t, std::size_t) noexcept { return false; }
  [[nodiscard]] static constexpr block_end handed_out() noexcept { return block_end::low; }
  [[nodiscard]] static constexpr std::size_t oversize() noexcept { return unlimited; }
  bool operator==(const split_never&) const = default;
};

/// Lets only a block of the wanted size serve: what a size-class allocator does.
struct split_never_and_fit_exactly : split_never {
  [[nodiscard]] static constexpr bool may_serve(std::size_t wanted, std::size_t block) noexcept {
    return wanted == block;
  }
  bool operator==(const split_never_and_fit_exactly&) const = default;
};

/// Lets a block serve where the next power of two is that of the wanted size: what a size-class allocator does whose
/// larger sizes are not rounded. It is the best-fitting block that is asked about, so it is large enough.
///   Source:  the buckets of PyTorch's pinned memory
struct split_never_and_fit_within_power_of_two : split_never {
  [[nodiscard]] static constexpr bool may_serve(std::size_t wanted, std::size_t block) noexcept {
    return std::bit_ceil(wanted) == std::bit_ceil(block);
  }
  bool operator==(const split_never_and_fit_within_power_of_two&) const = default;
};

/// Cuts any block of which at least `Rest` bytes remain.
///   Source:  Paddle, at the high end where anything remains in auto_growth, at the low end above 64 bytes in naive_best_fit
template <std::size_t Rest, block_end End = block_end::low>
struct split_if_rest_at_least {
  static_assert(Rest > 0, "split_if_rest_at_least<Rest>: a rest of 0 bytes is no block");

  [[nodiscard]] static constexpr bool may_serve(std::size_t, std::size_t) noexcept { return true; }
  [[nodiscard]] static constexpr bool should_split(std::size_t wanted, std::size_t block) noexcept {
    return block - wanted >= Rest;
  }
  [[nodiscard]] static constexpr block_end handed_out() noexcept { return End; }
  [[nodiscard]] static constexpr std::size_t oversize() noexcept { return unlimited; }
  bool operator==(const split_if_rest_at_least&) const = default;
};

/// Cuts blocks of at most `SmallLimit` bytes wherever anything remains and larger ones if more than `Waste` bytes remain;
/// blocks of `max` bytes and more are oversize: used only for requests that large that waste less than `slack`, and kept
/// whole, unless nothing may be wasted.
///
/// A finite `max` keeps small requests from pinning huge segments.
///
///     constexpr tessera::split_up_to<128_MiB> up_to;
///     static_assert(!up_to.may_serve(5_MiB, 200_MiB) && up_to.may_serve(190_MiB, 200_MiB));
///
///   Source:  PyTorch's max_split_size_mb and max_non_split_rounding_mb; small blocks go up to 1 MiB, larger ones waste up
///            to that, or nothing where segments are expandable
template <auto Max = tunable<std::size_t>{unlimited}, auto Slack = tunable<std::size_t>{20_MiB},
          std::size_t SmallLimit = 1_MiB, std::size_t Waste = SmallLimit>
struct split_up_to {
  static_assert(bytes_said<Max>() > SmallLimit,
                "split_up_to<Max, Slack, SmallLimit>: Max is in bytes, and more than SmallLimit, 1 MiB "
                "unless said otherwise, as smaller blocks are always cut; 32 MiB are 32_MiB");
  static_assert(
      bytes_said<Slack>() >= min_alignment,
      "split_up_to<Max, Slack>: Slack is in bytes, and at least min_alignment, by which sizes of blocks "
      "differ; 20 MiB are 20_MiB");

  static constexpr bool cuts_oversize = Waste == 0;
  [[no_unique_address]] parameter<Max> max{};
  [[no_unique_address]] parameter<Slack> slack{};

  [[nodiscard]] constexpr bool may_serve(std::size_t wanted, std::size_t block) const noexcept {
    return wanted < max ? block < max : block < saturating_add(wanted, slack);
  }
  [[nodiscard]] constexpr bool should_split(std::size_t wanted, std::size_t block) const noexcept {
    const std::size_t kept = wanted <= SmallLimit || cuts_oversize ? 0 : wanted < max ? Waste : unlimited;
    return block - wanted > kept;
  }
  [[nodiscard]] static constexpr block_end handed_out() noexcept { return block_end::low; }
  [[nodiscard]] constexpr std::size_t oversize() const noexcept { return max; }
  bool operator==(const split_up_to&) const = default;
};

/// The same as `Split`, but of free blocks that are equally large, one of the segment that was taken first serves.
///   Source:  PyTorch 2.14
template <typename Split>
struct oldest_segment_first : Split {
  static constexpr free_order order = free_order::oldest_segment;
  bool operator==(const oldest_segment_first&) const = default;
};

/// The same as `Split`, but of the free blocks up to the next power of two, the one that came free last serves.
///   Cost:    linear in those that came free later and are too small
///   Source:  PyTorch 2.14's pinned memory
template <typename Split>
struct newest_first : Split {
  static constexpr free_order order = free_order::newest_in_class;
  bool operator==(const newest_first&) const = default;
};

}  // namespace tessera
