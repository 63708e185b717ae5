// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdlib>

/// The number of operations of a long test: TESSERA_OPERATIONS, or `usual`.
[[nodiscard]] inline std::size_t operations_or(std::size_t usual) {
  const char* const said = std::getenv("TESSERA_OPERATIONS");
  return said != nullptr && *said != '\0' ? std::strtoull(said, nullptr, 10) : usual;
}
