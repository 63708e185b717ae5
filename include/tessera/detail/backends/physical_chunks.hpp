// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/detail/containers/containers.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::inline v0_1::detail {

/// The physical memory of one allocator, in chunks that are mapped whole. A chunk is found by its start
/// address. A `Counter` counts the bytes that the device has given for the chunks.
///
/// If the device fails to take a chunk back, the chunk is orphaned. Its address no longer finds it, and
/// retry_orphaned() tries again.
template <provider::virtual_memory_provider Provider, typename Counter = counter>
class physical_chunks {
 public:
  struct chunk {
    std::uintptr_t address;  ///< start address of the mapping, present or planned
    std::size_t bytes;
    typename Provider::physical memory;
    bool is_created;  ///< whether the memory exists
    bool is_mapped;
    bool is_selected;  ///< for callers that select chunks
    chunk* next;       ///< for callers that keep a list
    [[nodiscard]] std::uint64_t map_key() const noexcept { return address; }
  };

  ///   Requires:  `device_bytes` outlives this object
  explicit physical_chunks(Counter& device_bytes) noexcept : device_bytes_(device_bytes) {}
  physical_chunks& operator=(physical_chunks&&) = delete;

  /// Describes a chunk to be created later. Returns null if host memory ran out.
  [[nodiscard]] chunk* plan(std::uintptr_t address, std::size_t bytes) noexcept {
    if (!nodes_.reserve(1)) return nullptr;
    chunk& planned = *nodes_.take();
    planned = {address, bytes, {}, false, false, false, nullptr};
    return &planned;
  }
  /// Creates the memory of a planned chunk, of the first available kind. Returns false if no kind is
  /// available. `provider` may also be one bank of the provider.
  [[nodiscard]] bool create(auto& provider, chunk& c, const page_order& kinds) noexcept {
    for (const page_kind& kind : kinds) {
      if (!provider.create(c.bytes, kind, c.memory)) continue;
      device_bytes_.increase(static_cast<std::int64_t>(c.bytes));
      c.is_created = true;
      return true;
    }
    return false;
  }
  /// Moves the memory of an unmapped chunk to a planned chunk, and erases the unmapped chunk.
  ///   Requires:  both have the same size
  void move_memory(chunk& from, chunk& to) noexcept {
    to.memory = from.memory;
    to.is_created = true;
    nodes_.give_back(&from);
  }
  /// Maps a chunk at its address. Returns false if the device failed; the caller must then destroy the chunk.
  [[nodiscard]] bool map(Provider& provider, chunk& c) noexcept {
    void* const at = reinterpret_cast<void*>(c.address);
    if (!by_address_.reserve_one() || !provider.map(at, c.bytes, c.memory)) return false;
    c.is_mapped = true;
    by_address_.insert(c.address, c);
    if constexpr (!Provider::map_grants_access) {
      if (!provider.grant(at, c.bytes)) return false;
    }
    return true;
  }
  /// Unmaps a chunk. Returns false if the device failed; the chunk then stays mapped.
  [[nodiscard]] bool unmap(Provider& provider, chunk& c) noexcept {
    if (!provider.unmap(reinterpret_cast<void*>(c.address), c.bytes)) return false;
    by_address_.remove(c.address);
    c.is_mapped = false;
    return true;
  }
  /// Creates the missing memory of all chunks of a list, then maps all chunks. If the device fails, destroys
  /// all chunks and returns false.
  [[nodiscard]] bool map_all(Provider& provider, chunk* first, const page_order& kinds) noexcept {
    bool works = true;
    for (chunk* c = first; works && c != nullptr; c = c->next)
      works = c->is_created || create(provider, *c, kinds);
    for (chunk* c = first; works && c != nullptr; c = c->next) works = map(provider, *c);
    if (!works) destroy_all(provider, first);
    return works;
  }
  void destroy_all(Provider& provider, chunk* first) noexcept {
    while (first != nullptr) destroy(provider, *std::exchange(first, first->next));
  }
  /// Unmaps a chunk if it is mapped, and destroys its memory.
  void destroy(Provider& provider, chunk& c) noexcept {
    if ((!c.is_mapped || unmap(provider, c)) && (!c.is_created || provider.destroy(c.memory))) {
      if (c.is_created) device_bytes_.decrease(static_cast<std::int64_t>(c.bytes));
      nodes_.give_back(&c);
      return;
    }
    if (c.is_mapped) by_address_.remove(c.address);
    c.next = orphaned_;
    orphaned_ = &c;
  }
  void retry_orphaned(Provider& provider) noexcept {
    for (chunk* c = std::exchange(orphaned_, nullptr); c != nullptr;) {
      chunk* const following = c->next;
      destroy(provider, *c);
      c = following;
    }
  }

  /// Finds the mapped chunk that begins at an address, or null.
  [[nodiscard]] chunk* find(std::uintptr_t address) const noexcept { return by_address_.find(address); }
  /// Finds the lowest mapped chunk that begins in [begin, end), or null.
  ///   Requires:  every chunk begins at a multiple of `alignment`
  ///   Cost:      linear in (end - begin) / alignment
  [[nodiscard]] chunk* first_from(std::uintptr_t begin, std::uintptr_t end,
                                  std::size_t alignment) const noexcept {
    for (std::uintptr_t at = align_up(begin, alignment); at < end; at += alignment) {
      if (chunk* const found = by_address_.find(at)) return found;
    }
    return nullptr;
  }

  void shrink() noexcept { nodes_.purge(); }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return nodes_.metadata_bytes() + by_address_.metadata_bytes();
  }

 private:
  Counter& device_bytes_;
  slab<chunk> nodes_;
  key_map<chunk> by_address_;
  chunk* orphaned_ = nullptr;
};

}  // namespace tessera::inline v0_1::detail
