// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>

namespace tessera {

/// Ends the program with the broken rule in words: for a caller's mistake that cannot be answered otherwise.
[[noreturn]] inline void fatal(const char* rule, const void* pointer = nullptr) noexcept {
  pointer != nullptr ? std::fprintf(stderr, "tessera: %s (pointer %p)\n", rule, pointer)
                     : std::fprintf(stderr, "tessera: %s\n", rule);
  std::abort();
}

}  // namespace tessera
