// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <variant>

#include <tessera/config/pytorch.hpp>
#include <tessera/observe/snapshot.hpp>
#include "recorded_device.hpp"

namespace tessera::trace {

/// How a recipe of PyTorch and a recorded device compare; sizes in bytes.
struct verification {
  std::size_t device = 0;
  const char* rules =
      "2.6";  ///< the release of PyTorch whose rules come closest: of which pytorch or pytorch_2_14 is
  std::size_t allocations = 0;
  std::size_t same_address = 0;
  std::size_t first_other_address = 0;  ///< the number of the first allocation at another address, from 0
  std::size_t segments = 0;             ///< that the recorded device gave
  std::size_t maps = 0;                 ///< how often it mapped pages
  std::string first_other_segment;      ///< what was asked there and here; empty where all are equal
  std::size_t peak_recorded = 0;        ///< reserved at most
  std::size_t peak_here = 0;
  std::size_t cached_at_start = 0;  ///< reserved, and in no block that was live
  std::size_t cached_at_end = 0;    ///< the same here, at the end
  recorded_device::counts calls{};  ///< of the device, here
  /// What ranges of addresses have at most, if that is why a block was served elsewhere first; 0 if it is not.
  std::size_t range_limit = 0;

  [[nodiscard]] bool agrees() const noexcept {
    return same_address == allocations && first_other_segment.empty() && peak_recorded == peak_here;
  }
  /// The number of the first allocation that was served otherwise, or how many there are.
  [[nodiscard]] std::size_t first_difference() const noexcept {
    return same_address == allocations ? allocations : first_other_address;
  }
  /// Whether there was anything to compare; where the history holds no allocation, agreeing says nothing.
  [[nodiscard]] bool has_compared() const noexcept { return allocations != 0; }
};

/// The settings under which a snapshot was recorded, so far as decisions depend on them.
[[nodiscard]] inline config::pytorch_settings settings_of(const snapshot& source) {
  const snapshot::settings& s = source.configured;
  config::pytorch_settings found;
  const auto conf = config::parse<config::pytorch>(s.conf);
  if (const auto* parsed = std::get_if<config::pytorch_settings>(&conf)) found = *parsed;
  found.max_split_size = s.max_split_size;
  found.expandable_segments = s.expandable_segments;
  std::copy(std::begin(s.roundup_power2_divisions), std::end(s.roundup_power2_divisions),
            std::begin(found.roundup.in_slot));
  return found;
}

}  // namespace tessera::trace
