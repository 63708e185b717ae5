// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <tessera/core/bytes.hpp>

namespace replay {

/// What the command line says.
struct arguments {
  std::vector<std::string> files;
  std::string recipe = "pytorch";    // the last that was named
  std::vector<std::string> recipes;  // all that were named
  std::string system = "pytorch";
  std::string conf;
  std::string out;                    // a file to write
  std::string at;                     // the moment to show: peak or end
  std::optional<std::size_t> device;  // of a snapshot; all if none was named
  std::size_t capacity = tessera::operator""_GiB(80);
  bool has_capacity = false;              // whether one was named
  std::optional<double> memory_fraction;  // that set_per_process_memory_fraction was called with
  std::size_t max_ns = 0;                 // host nanoseconds for each operation; 0 for any
  bool json = false;
};

/// Exit codes: 0 done, 1 a verification found a difference or a trace did not complete, 2 the input was wrong.
enum : int { done = 0, differs = 1, wrong_input = 2 };

int compare(const arguments& said);
int decisions(const arguments& said);
int verify(const arguments& said);
int fit(const arguments& said);
int explain(const arguments& said);
int snapshot(const arguments& said);
int draw(const arguments& said);
int explain_oom(const arguments& said);
int tune_recipe(const arguments& said);

}  // namespace replay
