// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <new>

namespace tessera::detail {

/// Allocates default-initialised nodes of one type from chunks of 4 KiB. The chunks are parts of regions, which
/// grow with the number of nodes up to 31 chunks; a region goes back to the host heap when none of its nodes is in
/// use, but the last such region stays for the next nodes. The destructor does not destroy nodes in use.
///
/// Each chunk has a list of its spare nodes. The nodes that came back last wait in an array, and are reused first.
///   Cost:  a few instructions; every eighth call moves eight nodes between the array and their chunks. A call
///          that begins a chunk links its nodes. None takes more steps than a region has chunks, or a chunk nodes
template <typename Node>
class slab {
 public:
  slab() = default;
  slab(const slab&) = delete;
  slab& operator=(const slab&) = delete;
  ~slab() {
    while (regions_ != nullptr) {
      region* const following = regions_->next;
      free_region(*regions_);
      regions_ = following;
    }
  }

  /// Makes sure that the next `count` calls of take() succeed. Returns false if host memory ran out.
  ///   Requires:  count <= max_reserve
  [[nodiscard]] bool reserve(std::size_t count) noexcept { return waiting_ >= count || refill(count); }
  static constexpr std::size_t max_reserve = 8;
  /// Makes sure that calls of reserve() succeed for the next `count` nodes together. Keeps every spare node until
  /// purge(), whatever comes back before.
  [[nodiscard]] bool hold_reserve(std::size_t count) noexcept {
    holds_ = true;
    while (spare_ + waiting_ < count) {
      if (!begin_chunk()) return false;
    }
    return true;
  }

  /// Takes a node.
  ///   Requires:  a preceding reserve()
  [[nodiscard]] Node* take() noexcept { return ::new (latest_[--waiting_]) Node; }

  void give_back(Node* node) noexcept {
    node->~Node();
    if (waiting_ == latest_.size()) return_half();
    latest_[waiting_++] = node;
  }

  /// Frees the regions without nodes in use, and ends hold_reserve().
  ///   Cost:  linear in the regions
  [[gnu::noinline]] void purge() noexcept {
    holds_ = false;
    while (waiting_ > 0) give_to_chunk(latest_[--waiting_]);
    for (region* at = regions_; at != nullptr;) {
      region& here = *at;
      at = here.next;
      if (here.is_empty()) release(here);
    }
  }

  /// Number of nodes in use.
  [[nodiscard]] std::size_t in_use() const noexcept { return begun_ * per_chunk - spare_ - waiting_; }
  /// Bytes held from the host heap.
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return held_bytes_; }

 private:
  struct slot {
    slot* next;
  };
  static_assert(sizeof(Node) >= sizeof(slot) && alignof(Node) >= alignof(slot));
  struct region;
  struct chunk {
    slot* unused;
    std::size_t spare;  // its unused nodes
    chunk* previous;    // in the list of chunks with unused nodes
    chunk* next;
    region* in;
  };
  struct region {
    region* previous;
    region* next;
    unsigned char* first_chunk;
    std::size_t size;   // chunks
    std::size_t begun;  // chunks whose nodes are linked
    std::size_t empty;  // begun chunks without nodes in use
    [[nodiscard]] bool is_empty() const noexcept { return empty == begun; }
  };
  static constexpr std::size_t chunk_bytes = 4096;  // size and alignment of a chunk
  static constexpr std::size_t line = 64;
  static constexpr std::size_t per_chunk = (chunk_bytes - line) / sizeof(Node);
  static constexpr std::size_t max_chunks = 31;  // with the bytes lost to alignment, 128 KiB
  static_assert(sizeof(chunk) <= line && line % alignof(Node) == 0 && per_chunk > 1);

  /// Returns the chunk that begins at an address. If nodes fill a cache line, its head stands in another line than
  /// that of its neighbours, because the first lines of all chunks would share a set of the processor's cache.
  [[nodiscard]] static void* head_of(std::uintptr_t begin) noexcept {
    if constexpr (sizeof(Node) == line) begin |= (begin >> 6) & (chunk_bytes - line);
    return reinterpret_cast<void*>(begin);
  }
  [[nodiscard]] static chunk& chunk_of(const void* node) noexcept {
    return *static_cast<chunk*>(head_of(reinterpret_cast<std::uintptr_t>(node) & ~(chunk_bytes - 1)));
  }

  // The rest is not inlined, because rare paths must not keep the hit path from being inlined.

  /// Moves nodes from chunks to the array until half of it is full, if host memory suffices.
  [[gnu::noinline]] bool refill(std::size_t count) noexcept {
    while (waiting_ < max_reserve) {
      if (open_ == nullptr && !begin_chunk()) return waiting_ >= count;
      chunk& from = *open_;
      if (from.spare == per_chunk) --from.in->empty;
      const std::size_t moved = (std::min)(max_reserve - waiting_, from.spare);
      for (std::size_t i = 0; i < moved; ++i) {
        latest_[waiting_++] = from.unused;
        from.unused = from.unused->next;
      }
      spare_ -= moved;
      from.spare -= moved;
      if (from.spare == 0) unlink(from);
    }
    return true;
  }
  [[gnu::noinline]] void return_half() noexcept {
    // The oldest are returned: the latest are probably in the processor's cache.
    for (std::size_t i = 0; i < max_reserve; ++i) {
      give_to_chunk(latest_[i]);
      latest_[i] = latest_[max_reserve + i];
    }
    waiting_ -= max_reserve;
  }
  void give_to_chunk(void* node) noexcept {
    chunk& to = chunk_of(node);
    to.unused = ::new (node) slot{to.unused};
    ++spare_;
    if (to.spare++ == 0) link(to);
    if (to.spare == per_chunk && ++to.in->empty == to.in->begun) keep_one_empty(*to.in);
  }
  void link(chunk& c) noexcept {
    c.previous = nullptr;
    c.next = open_;
    if (open_ != nullptr) open_->previous = &c;
    open_ = &c;
  }
  void unlink(chunk& c) noexcept {
    (c.previous != nullptr ? c.previous->next : open_) = c.next;
    if (c.next != nullptr) c.next->previous = c.previous;
  }

  /// Links the nodes of another chunk. Returns false if host memory ran out.
  [[nodiscard]] bool begin_chunk() noexcept {
    if ((regions_ == nullptr || regions_->begun == regions_->size) && !grow()) return false;
    region& in = *regions_;
    unsigned char* const begin = in.first_chunk + in.begun * chunk_bytes;
    chunk& fresh = *::new (head_of(reinterpret_cast<std::uintptr_t>(begin)))
                       chunk{nullptr, per_chunk, nullptr, nullptr, &in};
    unsigned char* const head = reinterpret_cast<unsigned char*>(&fresh);
    unsigned char* node = begin + (sizeof(Node) == line ? 0 : line);
    for (std::size_t i = 0; i < per_chunk; ++i, node += sizeof(Node)) {
      if (node == head) node += line;
      fresh.unused = ::new (node) slot{fresh.unused};
    }
    link(fresh);
    ++in.begun;
    ++in.empty;
    ++begun_;
    spare_ += per_chunk;
    return true;
  }
  [[nodiscard]] bool grow() noexcept {
    const std::size_t size = begun_ < 2 ? 1 : begun_ / 2 < max_chunks ? begun_ / 2 : max_chunks;
    void* const memory = ::operator new(bytes_of(size), std::nothrow);
    if (memory == nullptr) return false;
    const std::uintptr_t after = reinterpret_cast<std::uintptr_t>(memory) + sizeof(region);
    const std::size_t lost = (0 - after) & (chunk_bytes - 1);
    auto* const first = static_cast<unsigned char*>(memory) + sizeof(region) + lost;
    regions_ = ::new (memory) region{nullptr, regions_, first, size, 0, 0};
    if (regions_->next != nullptr) regions_->next->previous = regions_;
    held_bytes_ += bytes_of(size);
    return true;
  }
  [[nodiscard]] static constexpr std::size_t bytes_of(std::size_t size) noexcept {
    return sizeof(region) + chunk_bytes - alignof(std::max_align_t) + size * chunk_bytes;
  }

  /// Keeps a region that has no nodes in use, instead of the one that was kept before.
  void keep_one_empty(region& now) noexcept {
    region* const before = kept_;
    kept_ = &now;
    if (!holds_ && before != nullptr && before != &now && before->is_empty()) release(*before);
  }
  void release(region& r) noexcept {
    for (std::size_t i = 0; i < r.begun; ++i) unlink(chunk_of(r.first_chunk + i * chunk_bytes));
    spare_ -= r.begun * per_chunk;
    begun_ -= r.begun;
    held_bytes_ -= bytes_of(r.size);
    if (kept_ == &r) kept_ = nullptr;
    (r.previous != nullptr ? r.previous->next : regions_) = r.next;
    if (r.next != nullptr) r.next->previous = r.previous;
    free_region(r);
  }
  static void free_region(region& r) noexcept { ::operator delete(static_cast<void*>(&r)); }

  std::array<void*, 2 * max_reserve> latest_;  // spare nodes that came back last
  std::size_t waiting_ = 0;                    // their number
  chunk* open_ = nullptr;                      // chunks with unused nodes
  std::size_t spare_ = 0;                      // unused nodes of all chunks
  std::size_t begun_ = 0;                      // begun chunks
  region* regions_ = nullptr;  // the newest comes first; only it may have chunks that have not begun
  region* kept_ = nullptr;     // the last region that had no nodes in use
  std::size_t held_bytes_ = 0;
  bool holds_ = false;
};

}  // namespace tessera::detail
