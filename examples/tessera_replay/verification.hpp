// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <tessera/observe/snapshot.hpp>

#include "files.hpp"

namespace replay {

/// The successful calls of a recorded device.
struct device_calls {
  std::size_t acquire = 0, release = 0, create = 0, destroy = 0, map = 0, unmap = 0;
};

/// The comparison of a PyTorch recipe with a recorded device; sizes in bytes.
struct verification {
  std::size_t device = 0;
  const char* rules =
      "2.6";  ///< the PyTorch release whose rules match best: 2.6 is pytorch, 2.14 is pytorch_2_14
  std::size_t allocations = 0;
  std::size_t same_address = 0;
  std::size_t first_other_address = 0;  ///< the first allocation at another address, from 0
  std::size_t other_entry = 0;          ///< the entry of the history of that allocation, from 0
  std::uint64_t other_expected = 0;     ///< its address on the recorded device
  std::uint64_t other_given = 0;        ///< its address in the replay; 0 if that has no memory for it
  bool tried_2_14 = false;              ///< whether the rules of 2.14 were tried, too
  std::size_t segments = 0;             ///< acquired by the recorded device
  std::size_t maps = 0;                 ///< map calls of the recorded device
  std::string first_other_segment;      ///< the first difference in acquired memory; empty if there is none
  std::size_t peak_recorded = 0;        ///< peak reserved of the recorded device
  std::size_t peak_here = 0;
  std::size_t cached_at_start = 0;  ///< reserved bytes outside live blocks
  std::size_t cached_at_end = 0;    ///< likewise, of the replay at its end
  device_calls calls{};             ///< of the replay
  /// The range size that would explain the first difference; 0 if none would.
  std::size_t range_limit = 0;

  [[nodiscard]] bool agrees() const noexcept {
    return same_address == allocations && first_other_segment.empty() && peak_recorded == peak_here;
  }
  /// The first allocation at another address, or the number of allocations if there is none.
  [[nodiscard]] std::size_t first_difference() const noexcept {
    return same_address == allocations ? allocations : first_other_address;
  }
  /// Whether the history holds an allocation to compare.
  [[nodiscard]] bool has_compared() const noexcept { return allocations != 0; }
};

/// Compares what a snapshot recorded of a device with a replay. verify.cpp compiles the allocators of that replay.
[[nodiscard]] read_result<verification> verify_device(const tessera::observe::snapshot& source,
                                                      std::size_t device);

}  // namespace replay
