// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <tessera/core/oom_report.hpp>

/// What tests ask of a report of failure.
namespace oom_tests {

inline std::vector<tessera::remedy> remedies_of(const tessera::oom_report& told) {
  std::vector<tessera::remedy> named;
  for (std::size_t i = 0; i < told.remedy_count; ++i) named.push_back(told.remedies[i].what);
  return named;
}
inline bool advises(const tessera::oom_report& told, tessera::remedy what) {
  const std::vector<tessera::remedy> named = remedies_of(told);
  return std::find(named.begin(), named.end(), what) != named.end();
}

}  // namespace oom_tests
