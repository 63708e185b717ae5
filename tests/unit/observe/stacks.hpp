// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include <tessera/observe/history.hpp>

namespace stacks_tests {

/// A stack_source of a program whose calls are numbers: it is in `function_1`, called by `function_0`. The innermost calls
/// are of the allocator. A call scope enters a function.
struct numbered_calls {
  using frame = int;
  static constexpr int inside = 1000;  // a function of tessera
  const int* depth;                    // the number of the innermost function of the program

  std::size_t operator()(std::span<frame> frames) const noexcept {
    std::size_t count = 0;
    if (count < frames.size()) frames[count++] = inside;
    for (int i = *depth; i >= 0 && count < frames.size(); --i) frames[count++] = i;
    return count;
  }
  [[nodiscard]] static tessera::observe::stack_frame describe(frame f) {
    if (f == inside) return {"tessera::caching_allocator::serve", "caching_allocator.hpp", 600};
    return {"function_" + std::to_string(f), "program.cpp", static_cast<std::uint64_t>(10 + f)};
  }
};
static_assert(tessera::observe::stack_source<numbered_calls>);
using with_stacks = tessera::observe::history_with_stacks<numbered_calls>;

}  // namespace stacks_tests
