// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>

#include <tessera/provider/simulated_device.hpp>

namespace replay {

[[nodiscard]] inline tessera::simulated_device device_of(std::size_t capacity) {
  return tessera::simulated_device{tessera::simulated_device::options{.capacity = capacity}};
}

/// Halves what lies between a number that does not do and one that does, until that is at most `step`.
template <typename Does>
[[nodiscard]] std::size_t bisected(std::size_t does_not, std::size_t does, std::size_t step, Does test) {
  while (does - does_not > step) {
    const std::size_t middle = does_not + (does - does_not) / 2;
    (test(middle) ? does : does_not) = middle;
  }
  return does;
}

/// A capacity with which `completes` is true and with a byte less is not, found by doubling from the peak of what lives,
/// below which none suffices, and by bisection; nothing where none was found up to `most`.
///   Requires:  peak_live > 0 and most > 0
template <typename Completes>
[[nodiscard]] std::optional<std::size_t> least_capacity(std::size_t peak_live, std::size_t most,
                                                        Completes completes) {
  std::size_t enough = std::min(peak_live, most);
  std::size_t too_small = enough - 1;
  while (!completes(enough)) {
    too_small = enough;
    if (enough >= most) return {};
    enough = enough <= most / 2 ? 2 * enough : most;
  }
  return bisected(too_small, enough, 1, completes);
}

}  // namespace replay
