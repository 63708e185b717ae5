// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/core/parameter.hpp>

namespace tessera::inline v0_1::policy {

/// Decides the size of the block that serves a request.
///
///   p.block_size(requested)   block size in bytes, for 1 <= requested <= max_request
///
/// Laws, checked by law::policy:
///   covers      block_size(n) >= n
///   aligned     block_size(n) is a multiple of min_alignment
///   idempotent  block_size(block_size(n) - padding) == block_size(n); padding is P::padding, or 0 if P has
///               no padding
///   monotonic   a <= b  implies  block_size(a) <= block_size(b)
template <typename P>
concept rounding_policy = detail::regular<P> && requires(const P& p, std::size_t requested) {
  { p.block_size(requested) } noexcept -> std::same_as<std::size_t>;
};

/// Rounds up to a multiple of `Step` bytes.
///
/// Choose it for the least waste inside blocks. Requests of many sizes then produce blocks of many sizes.
template <std::size_t Step>
  requires(Step >= min_alignment && Step % min_alignment == 0)
struct round_to_multiple {
  static constexpr const char* hint = "round_to_multiple<512>";  ///< what explain() suggests
  [[nodiscard]] static constexpr std::size_t block_size(std::size_t requested) noexcept {
    return align_up(requested, Step);
  }
  bool operator==(const round_to_multiple&) const = default;
};

/// Rounds up to a power of two of at least `Min` bytes.
///
/// Choose it for caches of whole blocks. It produces few sizes, and may waste up to half of a block that is larger
/// than `Min`. Requests above `threshold` bytes are rounded up to a multiple of `Min` instead. A smaller request gets at most
/// the threshold, which is rounded up to such a multiple, too.
///   Source:  PyTorch's pinned_max_round_threshold_mb
template <std::size_t Min, auto Threshold = unlimited>
  requires(std::has_single_bit(Min) && Min >= min_alignment)
struct round_to_power_of_two {
  static_assert(
      detail::initial_bytes<Threshold>() == 0 || detail::initial_bytes<Threshold>() >= Min,
      "round_to_power_of_two<Min, Threshold>: Threshold is in bytes, at least Min, or 0; write 64_MiB "
      "for 64 MiB");
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Threshold> threshold{};

  [[nodiscard]] constexpr std::size_t block_size(std::size_t requested) const noexcept {
    const std::size_t multiple = requested <= Min ? Min : align_up(requested, Min);
    if (requested > threshold) return multiple;
    const std::size_t power = std::bit_ceil(multiple);
    return power <= threshold ? power : align_up(threshold, Min);
  }
  bool operator==(const round_to_power_of_two&) const = default;
};

/// Rounds up to one of D equal steps between two powers of two. `table` gives D by size.
///
/// Choose it if sizes vary a little from step to step, so that the variants share blocks. Requests of up to
/// `Step` x D bytes are rounded up to a multiple of `Step` bytes. Sizes with a D of 0 or 1 are, too.
///
///     constexpr tessera::policy::round_to_divisions<512, tessera::divisions::all(4)> four_steps;
///     static_assert(four_steps.block_size(1'100'000) == 1_MiB + 256_KiB);
///
///   Source:  PyTorch's roundup_power2_divisions
template <std::size_t Step, auto Table = tunable<divisions>{divisions{}}>
  requires(std::has_single_bit(Step) && Step >= min_alignment)
struct round_to_divisions {
  static_assert(parameter<Table>{}.get().are_powers_of_two(),
                "round_to_divisions<Step, Table>: each number of divisions is 0, 1 or another power of two");
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Table> table{};

  [[nodiscard]] constexpr std::size_t block_size(std::size_t requested) const noexcept {
    const std::size_t parts = table.get().of(requested);
    return parts > 1 && requested > Step * parts ? detail::next_division(requested, parts)
                                                 : align_up(requested, Step);
  }
  bool operator==(const round_to_divisions&) const = default;
};

/// Adds `Padding` bytes to each request, then rounds like `Inner`.
///
/// Choose it if kernels read past the end of a buffer, or if other data lies beside it.
///   Source:  32 bytes in torch_npu and ACL, 64 in Paddle's naive_best_fit
template <std::size_t Padding, rounding_policy Inner>
  requires(Padding <= 1_MiB)
struct round_padded {
  static constexpr std::size_t padding = Padding;  ///< bytes added to each request
  /// Rounds the sum.
  [[TESSERA_NO_UNIQUE_ADDRESS]] Inner inner = Inner();  // no braces, as in policies

  [[nodiscard]] constexpr std::size_t block_size(std::size_t requested) const noexcept {
    return inner.block_size(requested + Padding);
  }
  bool operator==(const round_padded&) const = default;
};

}  // namespace tessera::inline v0_1::policy

namespace tessera::inline v0_1::detail {

template <std::size_t Step>
inline constexpr bool is_verified_rounding<policy::round_to_multiple<Step>> = true;
template <std::size_t Min, auto Threshold>
inline constexpr bool is_verified_rounding<policy::round_to_power_of_two<Min, Threshold>> = true;
template <std::size_t Step, auto Table>
inline constexpr bool is_verified_rounding<policy::round_to_divisions<Step, Table>> = true;
template <std::size_t Padding, typename Inner>
inline constexpr bool is_verified_rounding<policy::round_padded<Padding, Inner>> =
    is_verified_rounding<Inner>;

}  // namespace tessera::inline v0_1::detail
