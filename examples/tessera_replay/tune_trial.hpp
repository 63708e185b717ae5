// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/replay/recording.hpp>

#include "tune_composition.hpp"

namespace replay::tune {

/// What came of one replay.
struct outcome {
  std::size_t peak_reserved = 0;  ///< bytes
  std::uint64_t device_ns = 0;    ///< of the simulated device's clock
  std::uint64_t calls = 0;        ///< of the device, to get and to give back memory
  std::size_t failures = 0;       ///< allocations
  double processor_ns = 0;        ///< that the thread took for each operation
  bool given_up = false;          ///< whether a limit was passed, so that the rest is not known
};

/// Where a replay is given up, as what it would tell is of no use.
struct limits {
  std::size_t reserved = unlimited;             ///< bytes
  std::uint64_t device_ns = ~std::uint64_t{0};  ///< of the simulated device's clock
  double processor_ns = 0;                      ///< for each operation of the program; 0 for no limit
  bool failures = false;                        ///< whether an allocation that fails ends it
};

/// Replays a program on a simulated device of so many bytes, until a limit is passed.
[[nodiscard]] outcome replay_once(const trace::program& program, const composition& c, std::size_t capacity,
                                  const limits& until = {});

/// The least capacity with which a program completes, as `fit` finds it; `unlimited` where 1 EiB is not enough.
[[nodiscard]] std::size_t least_capacity(const trace::program& program, const composition& c);
/// The same to within `step` bytes, where it is at most `most`, and completing means to keep the limits, too; otherwise
/// `unlimited`.
[[nodiscard]] std::size_t least_capacity_up_to(const trace::program& program, const composition& c,
                                               std::size_t most, std::size_t step, limits until);

/// Host time for each operation, in nanoseconds for which the thread had a processor: the lower quartile of repetitions.
struct host_times {
  std::vector<double> each{};   ///< of the compositions, chosen while the program runs
  double pytorch = 0;           ///< of pytorch, chosen in the same way
  double pytorch_compiled = 0;  ///< of pytorch as it is compiled
  double noise = 0;             ///< the share of it within which half of pytorch's repetitions lie

  /// What one would take if it were compiled, by what pytorch takes both ways.
  [[nodiscard]] double as_compiled(double chosen_when_run) const noexcept {
    return pytorch > 0 ? chosen_when_run / pytorch * pytorch_compiled : 0;
  }
};

/// Measures compositions and pytorch in turn, again and again, on one thread.
[[nodiscard]] host_times measure(const trace::program& program, const std::vector<composition>& some,
                                 std::size_t capacity, std::size_t repetitions);

}  // namespace replay::tune
