// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include <tessera/core/fatal.hpp>

namespace tessera {

/// A share of a whole in billionths, so that it can be a template argument.
struct fraction {
  std::uint64_t billionths = 0;

  [[nodiscard]] constexpr double value() const noexcept { return static_cast<double>(billionths) / 1e9; }

  /// The share of `whole`, the product in double precision truncated to bytes; the largest size where that is none.
  [[nodiscard]] constexpr std::size_t of(std::size_t whole) const noexcept {
    const double part = value() * static_cast<double>(whole);
    return part < 0x1p64 ? static_cast<std::size_t>(part) : ~std::size_t{0};
  }

  /// The same, rounded to the nearest byte.
  [[nodiscard]] constexpr std::size_t nearest_of(std::size_t whole) const noexcept {
    const double part = value() * static_cast<double>(whole) + 0.5;
    return part < 0x1p64 ? static_cast<std::size_t>(part) : ~std::size_t{0};
  }

  bool operator==(const fraction&) const = default;
};

/// A share in hundredths, of which there are at most 100; a larger fraction is written as one.
[[nodiscard]] constexpr fraction percent(std::uint64_t count) noexcept {
  if (count > 100) fatal("percent: a share of a whole is at most 100 percent");
  return {count * 10'000'000};
}
/// Of whole ones alone, as 0.8 would be none of them.
template <std::floating_point Count>
constexpr fraction percent(Count) = delete;

}  // namespace tessera
