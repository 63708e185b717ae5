// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace tessera {

/// Where an allocator's memory stands, in bytes.
struct usage {
  std::size_t requested = 0;  ///< asked for by the user, in blocks that are live or pending
  std::size_t live = 0;       ///< in blocks handed out and not freed
  std::size_t pending = 0;    ///< in blocks freed while a stream still uses them
  std::size_t cached = 0;     ///< in free blocks
  std::size_t reserved = 0;   ///< taken from the device: live + pending + cached
  std::size_t limit = 0;      ///< the most that may be reserved
  bool operator==(const usage&) const = default;
};

}  // namespace tessera
