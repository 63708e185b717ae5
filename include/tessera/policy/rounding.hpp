// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/core/divisions.hpp>
#include <tessera/core/parameter.hpp>
#include <tessera/core/regular.hpp>

namespace tessera {

/// Decides how big a block serves a request.
///
///   p.block_size(requested)   bytes the block must have, for 1 <= requested <= max_request
///
/// Laws, checked by law::rounding:
///   covers      block_size(n) >= n
///   aligned     block_size(n) is a multiple of min_alignment
///   idempotent  block_size(block_size(n) - p.padding) == block_size(n), where a policy without that has no padding
///   monotonic   a <= b  implies  block_size(a) <= block_size(b)
template <typename P>
concept rounding_policy = regular<P> && requires(const P& p, std::size_t requested) {
  { p.block_size(requested) } noexcept -> std::same_as<std::size_t>;
};

/// Whether no answer of a rounding_policy needs a look when the program runs, as tests have shown that each keeps the law.
/// Never so for a policy that is derived from such a one.
template <typename P>
inline constexpr bool always_lawful = false;

/// Rounds up to the next multiple of `Step` bytes: little waste, many distinct sizes.
template <std::size_t Step>
  requires(Step >= min_alignment && Step % min_alignment == 0)
struct round_to_multiple {
  [[nodiscard]] static constexpr std::size_t block_size(std::size_t requested) noexcept {
    return align_up(requested, Step);
  }
  bool operator==(const round_to_multiple&) const = default;
};
template <std::size_t Step>
inline constexpr bool always_lawful<round_to_multiple<Step>> = true;

/// Rounds up to a power of two, at least `Least` bytes: few distinct sizes, up to half of each block wasted. Above
/// `threshold`, rounds only to a multiple of `Least`, and nothing below it is rounded to more than it.
///   Source:  PyTorch's pinned_max_round_threshold_mb
template <std::size_t Least, auto Threshold = unlimited>
  requires(is_power_of_two(Least) && Least >= min_alignment)
struct round_to_power_of_two {
  static_assert(
      bytes_said<Threshold>() == 0 || bytes_said<Threshold>() >= Least,
      "round_to_power_of_two<Least, Threshold>: Threshold is in bytes, at least Least, or 0; 64 MiB are "
      "64_MiB");
  [[no_unique_address]] parameter<Threshold> threshold{};

  [[nodiscard]] constexpr std::size_t block_size(std::size_t requested) const noexcept {
    const std::size_t least = requested <= Least ? Least : align_up(requested, Least);
    if (requested > threshold) return least;
    const std::size_t power = std::bit_ceil(least);
    return power <= threshold ? power : align_up(threshold, Least);
  }
  bool operator==(const round_to_power_of_two&) const = default;
};
template <std::size_t Least, auto Threshold>
inline constexpr bool always_lawful<round_to_power_of_two<Least, Threshold>> = true;

/// Rounds large requests up to one of D equal steps between two powers of two, D taken from a table by size;
/// requests up to Step x D, and where D is 0 or 1, to a multiple of `Step` bytes.
///
/// For programs whose sizes vary a little from step to step: the variants share blocks.
///
///     constexpr tessera::round_to_divisions<512, tessera::divisions::all(4)> four_steps;
///     static_assert(four_steps.block_size(1'100'000) == 1_MiB + 256_KiB);
///
///   Source:  PyTorch's roundup_power2_divisions
template <std::size_t Step, auto Table = tunable<divisions>{divisions{}}>
  requires(is_power_of_two(Step) && Step >= min_alignment)
struct round_to_divisions {
  static_assert(parameter<Table>{}.get().are_powers_of_two(),
                "round_to_divisions<Step, Table>: parts are 0, 1 or another power of two");
  [[no_unique_address]] parameter<Table> table{};

  [[nodiscard]] constexpr std::size_t block_size(std::size_t requested) const noexcept {
    const std::size_t parts = table.get().of(requested);
    return parts > 1 && requested > Step * parts ? next_division(requested, parts)
                                                 : align_up(requested, Step);
  }
  bool operator==(const round_to_divisions&) const = default;
};
template <std::size_t Step, auto Table>
inline constexpr bool always_lawful<round_to_divisions<Step, Table>> = true;

/// Adds `Padding` bytes to each request, then rounds as `Inner` does: for what lies beside the user's bytes, or is read
/// behind them.
///   Source:  32 bytes in torch_npu and ACL, 64 in Paddle's naive_best_fit
template <std::size_t Padding, rounding_policy Inner>
  requires(Padding <= 1_MiB)
struct round_padded {
  static constexpr std::size_t padding = Padding;
  [[no_unique_address]] Inner inner{};

  [[nodiscard]] constexpr std::size_t block_size(std::size_t requested) const noexcept {
    return inner.block_size(requested + Padding);
  }
  bool operator==(const round_padded&) const = default;
};
template <std::size_t Padding, typename Inner>
inline constexpr bool always_lawful<round_padded<Padding, Inner>> = always_lawful<Inner>;

}  // namespace tessera
