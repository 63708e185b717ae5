// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/core/stream.hpp>

namespace tessera {

/// A part of an allocator's memory that came in one piece, as tools see it: a segment, or in a range of addresses as much
/// as is mapped side by side.
struct segment_view {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  stream_id stream{};     ///< the key under which its blocks are shared
  std::size_t pool = 0;   ///< the number of its pool
  bool in_range = false;  ///< whether it is a part of a range
};

/// A block of such a part. All of them, in the order of addresses, are that part.
struct block_view {
  enum class state : unsigned char {
    free,
    live,
    pending  ///< freed, and a stream still uses it
  };
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  std::size_t requested = 0;  ///< bytes as asked for; 0 while free
  state is = state::free;
  stream_id stream{};  ///< the key under which it waits, or will wait, where free
};

}  // namespace tessera
