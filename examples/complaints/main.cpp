// SPDX-License-Identifier: Apache-2.0
// Replays complaints of users about memory allocators, each with the recipe of that system and with a cure. Prints a table,
// and fails if a row does not show what it promises.
#include <cstdio>

#include "complaints.hpp"

int main() {
  bool holds = true;
  std::printf("%-27s  %-5s  %-34s %9s %9s %9s\n", "issue", "sizes", "figure", "reported", "replayed",
              "cured");
  for (const complaints::complaint& each : complaints::all()) {
    const complaints::outcome now{each.replayed(), each.cured()};
    char reported[32] = "-";
    if (each.reported) std::snprintf(reported, sizeof reported, "%.5g", *each.reported);
    std::printf("%-27s  %-5s  %-34s %9s %9.5g %9.5g\n", each.issue,
                each.requests == complaints::source::report ? "issue" : "shape", each.figure, reported,
                now.replayed, now.cured);
    std::printf("    %s\n    %s -> %s\n", each.says, each.recipe, each.cure);
    if (const char* const why = complaints::fault_of(each, now)) {
      std::printf("    FAILS: %s\n", why);
      holds = false;
    }
  }
  return holds ? 0 : 1;
}
