// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <tessera/replay/recording.hpp>

#include "tune_advice.hpp"

namespace replay::tune {

/// What is told about one trace.
struct report {
  const std::string& trace;
  const trace::program& program;
  const question& asked;
  const advice& given;
};

void print(const report& r);
void print_json(const report& r);

}  // namespace replay::tune
