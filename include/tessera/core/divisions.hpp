// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace tessera {

/// Into how many equal steps the range between two powers of two is divided, by size; 0 and 1 mean not at all, other
/// numbers must be powers of two.
///
/// Slot 0 holds sizes below 2 MiB, slot i those from 2^(20+i) bytes up to twice that, and slot 15 all from 32 GiB on.
///   Source:  PyTorch's roundup_power2_divisions
struct divisions {
  static constexpr std::size_t slots = 16;
  std::uint32_t in_slot[slots] = {};

  [[nodiscard]] static constexpr divisions all(std::uint32_t parts) noexcept {
    divisions same;
    for (std::uint32_t& slot : same.in_slot) slot = parts;
    return same;
  }
  [[nodiscard]] constexpr std::uint32_t of(std::size_t bytes) const noexcept {
    constexpr std::size_t first_of_slot_1 = std::size_t{1} << 21;
    const auto slot = static_cast<unsigned>(std::bit_width(bytes | (first_of_slot_1 - 1)) - 21);
    return in_slot[slot < slots ? slot : slots - 1];
  }
  [[nodiscard]] constexpr bool are_powers_of_two() const noexcept {
    for (const std::uint32_t parts : in_slot) {
      if (parts != 0 && !std::has_single_bit(parts)) return false;
    }
    return true;
  }
  bool operator==(const divisions&) const = default;
};

/// The next of `parts` equal steps between the powers of two around `n`; a power of two stays.
///   Requires:  1 <= n <= 2^63; parts is a power of two and at most n
[[nodiscard]] constexpr std::size_t next_division(std::size_t n, std::size_t parts) noexcept {
  const std::size_t step = std::bit_floor(n) >> std::countr_zero(parts);
  return (n + step - 1) & ~(step - 1);
}

}  // namespace tessera
