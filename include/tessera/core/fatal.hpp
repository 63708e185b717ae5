// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>

namespace tessera::detail {

/// Prints the broken rule and aborts the program. For mistakes of the caller that cannot be reported
/// otherwise.
[[noreturn]] inline void fatal(const char* rule, const void* pointer = nullptr) noexcept {
  if (pointer != nullptr) {
    std::fprintf(stderr, "tessera: %s (pointer %p)\n", rule, pointer);
  } else {
    std::fprintf(stderr, "tessera: %s\n", rule);
  }
  std::abort();
}

}  // namespace tessera::detail
