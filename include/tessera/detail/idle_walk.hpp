// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/detail/block.hpp>
#include <tessera/detail/block_order.hpp>
#include <tessera/detail/free_list.hpp>

/// Walks over the free blocks of a home while some of them are given back.
namespace tessera::detail {

/// The first block behind another one, which may be gone, or null; where they are not ordered by size, the first of all.
template <typename Order>
[[nodiscard]] block* first_after(free_list& home, const block& key) noexcept {
  home.put_down<Order>();
  if constexpr (!Order::is_by_size) return home.lowest();
  block* found = home.best_fit<Order>(key.size);
  while (found != nullptr && !Order::precedes(key, *found)) found = home.after<Order>(*found);
  return found;
}

/// Calls f(block&) for each free block of at least `least` bytes that is a whole segment, and in ranges for every one. f
/// says whether it tried to release that one, during which blocks may come and go; the walk ends when it has done so
/// `tries` times, and is false then.
template <typename Order, bool Ranges, typename F>
[[nodiscard]] bool walk_idle(free_list& home, std::size_t least, std::size_t& tries, F& f) {
  home.put_down<Order>();
  for (block* b = home.best_fit<Order>(least); b != nullptr;) {
    const block key = *b;
    if ((!Ranges && b->is_split()) || !f(*b)) {
      b = home.after<Order>(*b);
    } else if (--tries > 0) {
      b = first_after<Order>(home, key);
    } else {
      return false;
    }
  }
  return true;
}

/// Releases one free oversize block that holds `wanted` bytes, or where there is none, the largest ones until they add up;
/// whether that was enough. `release` says how many bytes went; blocks may come and go during it.
///   Source:  PyTorch's release_available_cached_blocks
template <typename Order, bool Ranges, typename F>
[[nodiscard]] bool release_largest(free_list& home, std::size_t wanted, std::size_t oversize, F& release) {
  const std::size_t least = wanted > oversize ? wanted : oversize;
  if (block* fitting = home.best_fit<Order>(least); fitting != nullptr)
    return (Ranges || !fitting->is_split()) && release(*fitting) >= (Ranges ? wanted : least);
  home.put_down<Order>();
  std::size_t released = 0;
  block key;  // before all of its size
  key.size = least;
  key.address = 0;
  key.segment_number = 0;
  key.home = &home;
  for (block* b = home.last_before<Order>(key); b != nullptr && b->size >= oversize && released < least;) {
    key = *b;
    if (Ranges || !b->is_split()) {
      released += release(*b);
      home.put_down<Order>();
    }
    b = home.last_before<Order>(key);
  }
  return released >= least;
}

}  // namespace tessera::detail
