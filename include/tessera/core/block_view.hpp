// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/core/stream.hpp>

namespace tessera {

/// A contiguous part of an allocator's memory, for tools. It is a segment, or adjacent mapped pages of a
/// range of addresses.
struct segment_view {
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  stream_id stream{};        ///< the key of its blocks
  std::size_t pool = 0;      ///< the number of its pool
  bool in_range = false;     ///< whether it is part of a range
  pool_id private_pool{};    ///< the private pool that owns it, or none
  bool is_unbacked = false;  ///< whether an extension gave its memory back
};

/// A block of a segment_view. In the order of addresses, the blocks cover the whole segment_view.
struct block_view {
  enum class state : unsigned char {
    free,
    live,
    pending  ///< freed, but a stream still uses it
  };
  std::uintptr_t address = 0;
  std::size_t bytes = 0;
  std::size_t requested = 0;  ///< requested bytes; 0 while free
  state is = state::free;
  stream_id stream{};  ///< the key of the free list that it is in or will join
};

}  // namespace tessera
