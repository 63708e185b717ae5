// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <variant>

#include <tessera/config/parse.hpp>
#include <tessera/config/pytorch_conf.hpp>
#include <tessera/observe/snapshot.hpp>

#include "files.hpp"

namespace replay {

using namespace tessera;
using namespace tessera::trace;

/// The settings of a snapshot that affect decisions.
[[nodiscard]] inline config::pytorch::settings settings_of(const observe::snapshot& source) {
  const observe::snapshot::settings& s = source.configured;
  config::pytorch::settings found;
  const auto conf = config::parse<config::pytorch>(s.conf);
  if (const auto* parsed = std::get_if<config::pytorch::settings>(&conf)) found = *parsed;
  found.max_split_size = s.max_split_size;
  found.expandable_segments = s.expandable_segments;
  std::copy(std::begin(s.roundup_power2_divisions), std::end(s.roundup_power2_divisions),
            std::begin(found.roundup.in_slot));
  return found;
}

/// Rejects snapshots that were recorded while the driver decided, not PyTorch.
[[nodiscard]] inline std::optional<input_error> check_allocator(const observe::snapshot& source,
                                                                std::size_t device) {
  if (!settings_of(source).async_backend) return {};
  return input_error{source.name + ": device " + std::to_string(device),
                     "was recorded under backend:cudaMallocAsync, where the driver decides, not PyTorch"};
}

}  // namespace replay
