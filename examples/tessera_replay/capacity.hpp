// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <tessera/provider/simulated_device.hpp>

namespace replay {

/// A device. With a seed other than 0, it has addresses as drivers give them.
[[nodiscard]] inline tessera::provider::simulated_device device_of(std::size_t capacity,
                                                                   std::uint64_t address_seed = 0) {
  return tessera::provider::simulated_device{
      tessera::provider::simulated_device::options{.capacity = capacity, .address_seed = address_seed}};
}

/// The number of calls that acquire or release memory, or map it.
[[nodiscard]] inline std::uintmax_t memory_calls(const tessera::provider::simulated_device::counts& made) {
  return made.acquire + made.release + made.create + made.destroy + made.map + made.unmap;
}

/// Bisects between a number that fails and one that passes, until they differ by at max `step`.
template <typename Does>
[[nodiscard]] std::size_t bisect(std::size_t does_not, std::size_t does, std::size_t step, Does test) {
  while (does - does_not > step) {
    const std::size_t middle = does_not + (does - does_not) / 2;
    (test(middle) ? does : does_not) = middle;
  }
  return does;
}

/// Finds a capacity with which `completes` is true and with one byte less is false. Doubles from `min`, then
/// bisects.
///   Returns:  nothing if none is found up to `max`
///   Requires:  min > 0 and max > 0; `completes` is false below `min`
template <typename Completes>
[[nodiscard]] std::optional<std::size_t> min_capacity(std::size_t min, std::size_t max, Completes completes) {
  std::size_t enough = std::min(min, max);
  std::size_t too_small = enough - 1;
  while (!completes(enough)) {
    too_small = enough;
    if (enough >= max) return {};
    enough = enough <= max / 2 ? 2 * enough : max;
  }
  return bisect(too_small, enough, 1, completes);
}

}  // namespace replay
