// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include <tessera/core/bytes.hpp>

/// The rules of policies that a concept cannot check. The compiler checks them:
/// static_assert(law::policy(my_policy{})).
///
///     #include <tessera/law/policy_laws.hpp>
///     struct round_to_pages {
///       [[nodiscard]] static constexpr std::size_t block_size(std::size_t requested) noexcept {
///         return tessera::align_up(requested, 4_KiB);
///       }
///       bool operator==(const round_to_pages&) const = default;
///     };
///     static_assert(tessera::law::policy(round_to_pages{}));

namespace tessera::law::detail {

/// Never defined. A call in a constant expression stops the compiler, which prints the text of the law.
void broken(const char* law);

constexpr void must_hold(bool holds, const char* law) {
  if (!holds) broken(law);
}

/// Sizes at which policies tend to go wrong: around powers of two, and the extremes.
[[nodiscard]] constexpr auto edge_sizes() {
  std::array<std::size_t, 3 * 40 + 6> sizes{};
  std::size_t count = 0;
  for (std::size_t bits = 0; bits < 40; ++bits) {
    const std::size_t power = std::size_t{1} << bits;
    sizes[count++] = power > 1 ? power - 1 : 1;
    sizes[count++] = power;
    sizes[count++] = power + 1;
  }
  for (std::size_t n : {1_MiB + 512, 3_MiB, 10_MiB - 512, 19_MiB, 33_MiB, max_request}) sizes[count++] = n;
  for (std::size_t i = 1; i < count; ++i) {
    const std::size_t moved = sizes[i];
    std::size_t at = i;
    for (; at > 0 && sizes[at - 1] > moved; --at) sizes[at] = sizes[at - 1];
    sizes[at] = moved;
  }
  return sizes;
}

}  // namespace tessera::law::detail

namespace tessera::law {

/// The text of the first broken law; null if all hold.
struct check_result {
  const char* broken = nullptr;

  [[nodiscard]] constexpr explicit operator bool() const noexcept { return broken == nullptr; }
  /// Stores the first law that does not hold.
  constexpr void must_hold(bool holds, const char* law) noexcept {
    if (!holds && broken == nullptr) broken = law;
  }
};

}  // namespace tessera::law
