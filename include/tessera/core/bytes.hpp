// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

/// Sizes are bytes, held in std::size_t; every prefix is binary.
namespace tessera {

inline namespace literals {
[[nodiscard]] constexpr std::size_t operator""_KiB(unsigned long long count) { return count << 10; }
[[nodiscard]] constexpr std::size_t operator""_MiB(unsigned long long count) { return count << 20; }
[[nodiscard]] constexpr std::size_t operator""_GiB(unsigned long long count) { return count << 30; }
}  // namespace literals

/// Stands for "no bound" wherever a size bounds something.
inline constexpr std::size_t unlimited = (std::numeric_limits<std::size_t>::max)();

/// The largest request that is served: below 1 EiB, as in PyTorch, so that rounding a legal size cannot wrap.
inline constexpr std::size_t max_request = (std::size_t{1} << 60) - 1;

/// Every block starts at a multiple of this and is a multiple of it long.
inline constexpr std::size_t min_alignment = 64;

[[nodiscard]] constexpr bool is_power_of_two(std::size_t n) noexcept { return std::has_single_bit(n); }

/// Whether a block can be of n bytes, or n is 0.
[[nodiscard]] constexpr bool is_block_size_or_0(std::size_t n) noexcept {
  return n == 0 || n >= min_alignment;
}

///   Requires:  step > 0; n + step does not wrap
[[nodiscard]] constexpr std::size_t align_up(std::size_t n, std::size_t step) noexcept {
  return (n + step - 1) / step * step;
}

/// a + b, or `unlimited` where the sum does not fit.
[[nodiscard]] constexpr std::size_t saturating_add(std::size_t a, std::size_t b) noexcept {
  return a > unlimited - b ? unlimited : a + b;
}

}  // namespace tessera
