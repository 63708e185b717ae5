// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace tessera::engine {

/// Hands out default-initialised nodes of one type from large chunks, the last returned first, and gives empty chunks
/// back. Nodes that are still out when it ends are not destroyed.
///
///   Cost:  constant; asks the host heap once for some hundreds of nodes
template <typename Node>
class slab {
 public:
  slab() = default;
  slab(const slab&) = delete;
  slab& operator=(const slab&) = delete;
  ~slab() {
    for (chunk* list : {partial_, full_}) {
      while (list != nullptr) {
        chunk& one = *list;
        list = one.next;
        to_host(one);
      }
    }
  }

  /// Makes sure that the next `count` calls of take() succeed; false where host memory ran out.
  [[nodiscard]] bool reserve(std::size_t count) noexcept { return free_ >= count || grow(count); }

  ///   Requires:  a reserve() that covers it
  [[nodiscard]] Node* take() noexcept {
    chunk& from = *partial_;
    slot* taken = from.returned;
    if (taken != nullptr) {
      from.returned = taken->next;
    } else {
      taken = reinterpret_cast<slot*>(from.bytes() + from.untouched++ * sizeof(slot));
    }
    --free_;
    if (++from.used == per_chunk) {
      unlink(partial_, from);
      link(full_, from);
    }
    return ::new (static_cast<void*>(taken)) Node;
  }

  void give_back(Node* node) noexcept {
    node->~Node();
    chunk& home = *reinterpret_cast<chunk*>(reinterpret_cast<std::uintptr_t>(node) & ~(chunk_bytes - 1));
    if (home.used-- == per_chunk) {
      unlink(full_, home);
      link(partial_, home);
    }
    home.returned = ::new (static_cast<void*>(node)) slot{home.returned};
    ++free_;
    if (home.used == 0 && free_ >= 2 * per_chunk) drop(home);
  }

  /// Bytes held from the host heap.
  [[nodiscard]] std::size_t footprint() const noexcept { return chunks_ * chunk_bytes; }

 private:
  union slot {
    slot* next;
    alignas(Node) unsigned char storage[sizeof(Node)];
  };
  struct chunk {
    chunk* previous = nullptr;
    chunk* next = nullptr;
    slot* returned = nullptr;
    std::size_t used = 0;
    std::size_t untouched = 0;
    [[nodiscard]] unsigned char* bytes() noexcept { return reinterpret_cast<unsigned char*>(this) + header; }
  };
  static constexpr std::size_t chunk_bytes = 32768;
  static constexpr std::size_t header = 64;  // keeps nodes of 64 bytes on cache lines of their own
  static constexpr std::size_t per_chunk = (chunk_bytes - header) / sizeof(slot);
  static_assert(header % alignof(slot) == 0 && per_chunk > 1);

  // Kept out of line, as all that is rare on the way of a hit, so that what is left can be inlined.
  [[gnu::noinline]] bool grow(std::size_t count) noexcept {
    while (free_ < count) {
      void* memory = ::operator new(chunk_bytes, std::align_val_t{chunk_bytes}, std::nothrow);
      if (memory == nullptr) return false;
      link(partial_, *::new (memory) chunk{});
      free_ += per_chunk;
      ++chunks_;
    }
    return true;
  }

  static void link(chunk*& list, chunk& one) noexcept {
    one.previous = nullptr;
    one.next = list;
    if (list != nullptr) list->previous = &one;
    list = &one;
  }
  static void unlink(chunk*& list, chunk& one) noexcept {
    (one.previous != nullptr ? one.previous->next : list) = one.next;
    if (one.next != nullptr) one.next->previous = one.previous;
  }
  static void to_host(chunk& one) noexcept {
    ::operator delete(static_cast<void*>(&one), std::align_val_t{chunk_bytes});
  }
  void drop(chunk& one) noexcept {
    unlink(partial_, one);
    free_ -= per_chunk;
    --chunks_;
    to_host(one);
  }

  chunk* partial_ = nullptr;
  chunk* full_ = nullptr;
  std::size_t free_ = 0;
  std::size_t chunks_ = 0;
};

}  // namespace tessera::engine
