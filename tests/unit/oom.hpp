// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <tessera/observe/oom_report.hpp>

/// Helpers for tests of out-of-memory reports.
namespace oom_tests {

inline std::vector<tessera::observe::oom_report::hint> hints_of(const tessera::observe::oom_report& report) {
  std::vector<tessera::observe::oom_report::hint> named;
  for (std::size_t i = 0; i < report.hint_count; ++i) named.push_back(report.hints[i].what);
  return named;
}
inline bool advises(const tessera::observe::oom_report& report, tessera::observe::oom_report::hint what) {
  const std::vector<tessera::observe::oom_report::hint> named = hints_of(report);
  return std::find(named.begin(), named.end(), what) != named.end();
}

}  // namespace oom_tests
