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
  bool has_limit = true;      ///< whether that was set; else it is what the device has
  bool operator==(const usage&) const = default;
};

/// What a policy of growth is told, in bytes, where pages may move instead of new ones being taken.
struct growth_state {
  std::size_t reserved = 0;  ///< now
  std::size_t limit = 0;     ///< the most that may be reserved
  std::size_t peak_live =
      0;  ///< the most that was live where memory was got, the block that is wanted now included
  std::size_t peak_reserved = 0;  ///< the most that was reserved; neither peak ever falls
};

}  // namespace tessera
