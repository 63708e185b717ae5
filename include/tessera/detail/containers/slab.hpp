// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace tessera::detail {

/// Allocates default-initialised nodes of one type from small chunks, and frees empty chunks. The last
/// returned node is reused first. The destructor does not destroy nodes in use.
///
///   Cost:  constant, amortised; some calls allocate a chunk, or search the unused nodes for empty chunks
template <typename Node>
class slab {
 public:
  slab() = default;
  slab(const slab&) = delete;
  slab& operator=(const slab&) = delete;
  ~slab() {
    while (chunks_ != nullptr) {
      chunk* const following = chunks_->next;
      free_chunk(*chunks_);
      chunks_ = following;
    }
  }

  /// Makes sure that the next `count` calls of take() succeed. Returns false if host memory ran out.
  [[nodiscard]] bool reserve(std::size_t count) noexcept { return spare_ >= count || grow(count); }
  /// Does the same, and keeps every spare node until purge(), whatever comes back before.
  [[nodiscard]] bool hold_reserve(std::size_t count) noexcept {
    purge_at_ = ~std::size_t{0};
    return reserve(count);
  }

  /// Takes a node.
  ///   Requires:  a preceding reserve()
  [[nodiscard]] Node* take() noexcept {
    slot* const taken = latest_;
    latest_ = taken->next;
    --spare_;
    return ::new (static_cast<void*>(taken)) Node;
  }

  void give_back(Node* node) noexcept {
    node->~Node();
    latest_ = ::new (static_cast<void*>(node)) slot{latest_};
    if (++spare_ >= purge_at_) purge();
  }

  /// Frees the chunks without nodes in use, and ends hold_reserve(). It also runs by itself once a quarter of all nodes have come back
  /// since the last time.
  ///   Cost:  linear in the spare nodes
  [[gnu::noinline]] void purge() noexcept {
    for (chunk* c = chunks_; c != nullptr; c = c->next) c->spare = 0;
    for (const slot* s = latest_; s != nullptr; s = s->next) ++chunk_of(s).spare;
    for (slot** at = &latest_; *at != nullptr;) {
      slot& here = **at;
      if (chunk_of(&here).spare == per_chunk) {
        *at = here.next;
      } else {
        at = &here.next;
      }
    }
    for (chunk** at = &chunks_; *at != nullptr;) {
      chunk& here = **at;
      if (here.spare != per_chunk) {
        at = &here.next;
        continue;
      }
      *at = here.next;
      free_chunk(here);
      --held_;
      spare_ -= per_chunk;
    }
    purge_at_ = spare_ + held_ * per_chunk / 4 + 2 * per_chunk;
  }

  /// Number of nodes in use.
  [[nodiscard]] std::size_t in_use() const noexcept { return held_ * per_chunk - spare_; }
  /// Bytes held from the host heap.
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return held_ * chunk_bytes; }

 private:
  struct slot {
    slot* next;
  };
  static_assert(sizeof(Node) >= sizeof(slot) && alignof(Node) >= alignof(slot));
  struct chunk {
    chunk* next;
    std::size_t spare;  // spare nodes, counted by purge()
  };
  static constexpr std::size_t chunk_bytes = 4096;  // size and alignment of a chunk
  static constexpr std::size_t header = 64;         // keeps each node of 64 bytes on its own cache line
  static constexpr std::size_t heap_header = 64;    // left to the host heap for its metadata between blocks
  static constexpr std::size_t per_chunk = (chunk_bytes - heap_header - header) / sizeof(Node);
  static_assert(sizeof(chunk) <= header && header % alignof(Node) == 0 && per_chunk > 1);

  // Not inlined, because rare paths must not keep the hit path from being inlined.
  [[gnu::noinline]] bool grow(std::size_t count) noexcept {
    while (spare_ < count) {
      void* const memory =
          ::operator new(chunk_bytes - heap_header, std::align_val_t{chunk_bytes}, std::nothrow);
      if (memory == nullptr) return false;
      chunks_ = ::new (memory) chunk{chunks_, 0};
      auto* const nodes = static_cast<unsigned char*>(memory) + header;
      for (std::size_t i = per_chunk; i-- > 0;) latest_ = ::new (nodes + i * sizeof(Node)) slot{latest_};
      spare_ += per_chunk;
      ++held_;
    }
    return true;
  }

  [[nodiscard]] static chunk& chunk_of(const slot* s) noexcept {
    return *reinterpret_cast<chunk*>(reinterpret_cast<std::uintptr_t>(s) & ~(chunk_bytes - 1));
  }
  static void free_chunk(chunk& one) noexcept {
    ::operator delete(static_cast<void*>(&one), std::align_val_t{chunk_bytes});
  }

  slot* latest_ = nullptr;
  std::size_t spare_ = 0;
  std::size_t purge_at_ = 2 * per_chunk;
  chunk* chunks_ = nullptr;
  std::size_t held_ = 0;
};

}  // namespace tessera::detail
