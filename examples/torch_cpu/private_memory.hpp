// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <new>

#include <sys/mman.h>
#include <unistd.h>

#include <tessera/provider/provider.hpp>
#include <tessera/tessera.hpp>

namespace torch_cpu {

using namespace tessera::literals;

/// Provides private memory of this process, as malloc does. Linux 5.7 or later.
///
/// Unlike host_pinned, it locks no pages, and a page takes physical memory when it is first used. After
/// fork(), the child has copies of all memory and may use its copy of the provider. Physical memory moves
/// between addresses with its contents: mremap moves the page tables.
class private_memory {
 public:
  static constexpr bool is_host_visible = true, map_grants_access = true, unmap_wants_size = true;
  struct physical {
    std::uint64_t number = 0;  ///< 0 if empty
    bool operator==(const physical&) const = default;
  };

  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::size_t granularity() const noexcept { return small_page; }
  [[nodiscard]] std::size_t page_size(tessera::page_kind kind) const noexcept {
    return kind.granularity() > page ? kind.granularity() : page;
  }

  [[nodiscard]] void* acquire(std::size_t bytes) noexcept {
    if (bytes == 0 || bytes > capacity_ - used_) return nullptr;
    const std::size_t whole = whole_pages(bytes);  // as `capacity_` and `used_` are
    const std::uintptr_t at = find_addresses(whole, page, PROT_READ | PROT_WRITE);
    if (at == 0) return nullptr;
    if (!insert(segments_, at, bytes)) {
      (void)::munmap(pointer_to(at), whole);
      return nullptr;
    }
    used_ += whole;
    return pointer_to(at);
  }
  bool release(void* p, std::size_t bytes) noexcept {
    const auto found = segments_.find(address_of(p));
    if (found == segments_.end() || found->second != bytes || ::munmap(p, whole_pages(bytes)) != 0)
      return false;
    segments_.erase(found);
    used_ -= whole_pages(bytes);
    return true;
  }

  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t to) noexcept {
    if (bytes == 0 || bytes % page != 0) return nullptr;
    const std::uintptr_t at = find_addresses(bytes, to > page ? to : page, PROT_NONE);
    if (at != 0 && insert(ranges_, at, bytes)) return pointer_to(at);
    if (at != 0) (void)::munmap(pointer_to(at), bytes);
    return nullptr;
  }
  bool unreserve(void* p, std::size_t bytes) noexcept {
    const auto found = ranges_.find(address_of(p));
    if (found == ranges_.end() || found->second != bytes || has_mapping(address_of(p), bytes)) return false;
    if (::munmap(p, bytes) != 0) return false;
    ranges_.erase(found);
    return true;
  }
  /// Until it is mapped, the memory has addresses of its own.
  bool create(std::size_t bytes, tessera::page_kind kind, physical& made) noexcept {
    if (kind.granularity() > page || bytes == 0 || bytes % page != 0 || bytes > capacity_ - used_)
      return false;
    const std::uintptr_t at = find_addresses(bytes, page, PROT_READ | PROT_WRITE);
    if (at == 0) return false;
    if (!insert(chunks_, next_, chunk{at, bytes})) {
      (void)::munmap(pointer_to(at), bytes);
      return false;
    }
    used_ += bytes;
    made.number = next_++;
    return true;
  }
  bool destroy(const physical& memory) noexcept {
    const auto found = chunks_.find(memory.number);
    if (found == chunks_.end() || found->second.is_destroyed) return false;
    found->second.is_destroyed = true;
    if (!found->second.is_mapped) {
      (void)::munmap(pointer_to(found->second.at), found->second.bytes);
      erase(found);
    }
    return true;
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept {
    const std::uintptr_t at = address_of(p);
    const auto found = chunks_.find(memory.number);
    if (found == chunks_.end()) return false;
    chunk& moved = found->second;
    if (moved.is_destroyed || moved.is_mapped || moved.bytes != bytes || at % page != 0) return false;
    if (!is_reserved(at, bytes) || has_mapping(at, bytes)) return false;
    if (!insert(mappings_, at, memory.number)) return false;
    if (::mremap(pointer_to(moved.at), bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, p) == MAP_FAILED) {
      mappings_.erase(at);
      return false;
    }
    moved.at = at;
    moved.is_mapped = true;
    return true;
  }
  bool grant(void* p, std::size_t bytes) noexcept {
    const auto found = mappings_.find(address_of(p));
    return found != mappings_.end() && chunks_.at(found->second).bytes == bytes;
  }
  bool unmap(void* p, std::size_t bytes) noexcept {
    if (!grant(p, bytes)) return false;
    const auto mapping = mappings_.find(address_of(p));
    const auto found = chunks_.find(mapping->second);
    if (found->second.is_destroyed) {
      constexpr int reserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
      if (::mmap(p, bytes, PROT_NONE, reserved, -1, 0) == MAP_FAILED) return false;
      erase(found);
    } else {
      // The pages move away, and their old addresses stay reserved, so that no other thread can take them.
      void* const to = ::mremap(p, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, nullptr);
      if (to == MAP_FAILED) return false;
      (void)::mprotect(p, bytes, PROT_NONE);
      found->second.at = address_of(to);
      found->second.is_mapped = false;
    }
    mappings_.erase(mapping);
    return true;
  }
  /// Nothing to wait for: PyTorch's CPU operators are done when they return.
  bool synchronize(tessera::stream_id) noexcept { return true; }

 private:
  static constexpr std::size_t page = 2_MiB;  // a multiple of the page tables that mremap moves at once
  static constexpr std::size_t small_page = 4_KiB;
  struct chunk {
    std::uintptr_t at;
    std::size_t bytes;
    bool is_mapped = false, is_destroyed = false;
  };
  using chunk_map = std::map<std::uint64_t, chunk>;

  [[nodiscard]] static std::uintptr_t address_of(const void* p) noexcept {
    return reinterpret_cast<std::uintptr_t>(p);
  }
  [[nodiscard]] static void* pointer_to(std::uintptr_t address) noexcept {
    return reinterpret_cast<void*>(address);
  }
  [[nodiscard]] static constexpr std::size_t whole_pages(std::size_t bytes) noexcept {
    return (bytes + small_page - 1) & ~(small_page - 1);
  }
  /// Makes a mapping at a multiple of `alignment`; 0 if the system refuses.
  [[nodiscard]] static std::uintptr_t find_addresses(std::size_t bytes, std::size_t alignment,
                                                     int protection) noexcept {
    if (bytes > tessera::unlimited - alignment) return 0;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (protection == PROT_NONE ? MAP_NORESERVE : 0);
    void* const p = ::mmap(nullptr, bytes + alignment, protection, flags, -1, 0);
    if (p == MAP_FAILED) return 0;
    const std::uintptr_t begin = address_of(p), at = (begin + alignment - 1) & ~(alignment - 1);
    if (at != begin) (void)::munmap(p, at - begin);
    if (at != begin + alignment) (void)::munmap(pointer_to(at + bytes), begin + alignment - at);
    return at;
  }
  /// Adds an entry; false if memory for it ran out.
  template <typename Map>
  [[nodiscard]] static bool insert(Map& to, std::uint64_t key, typename Map::mapped_type value) noexcept {
    try {
      return to.emplace(key, value).second;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
  void erase(chunk_map::iterator entry) noexcept {
    used_ -= entry->second.bytes;
    chunks_.erase(entry);
  }
  [[nodiscard]] bool is_reserved(std::uintptr_t at, std::size_t bytes) const noexcept {
    auto after = ranges_.upper_bound(at);
    if (after == ranges_.begin()) return false;
    --after;
    return at - after->first < after->second && bytes <= after->second - (at - after->first);
  }
  [[nodiscard]] bool has_mapping(std::uintptr_t at, std::size_t bytes) const noexcept {
    auto next = mappings_.lower_bound(at);
    if (next != mappings_.end() && next->first - at < bytes) return true;
    if (next == mappings_.begin()) return false;
    --next;
    return at - next->first < chunks_.at(next->second).bytes;
  }

  std::size_t capacity_ =
      static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::size_t used_ = 0;
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, std::uint64_t> segments_, ranges_;  // bytes by address
  std::map<std::uint64_t, std::uint64_t> mappings_;           // numbers of chunks by address
  chunk_map chunks_;                                          // by number
};
static_assert(tessera::provider::virtual_memory_provider<private_memory>);

}  // namespace torch_cpu
