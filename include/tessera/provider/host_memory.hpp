// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include <sys/mman.h>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/provider/host_system.hpp>

namespace tessera::detail {

/// The memory of one host_pinned. Segments are mappings; physical memory is stored in memory files. Functions
/// that can fail return null on success, else the reason.
class host_memory {
 public:
  struct piece {
    host_descriptor file;  ///< empty after destroy()
    std::size_t bytes;
    page_kind kind;
    bool imported;
    bool mapped = false;
  };

  /// Physical memory is numbered from `first`.
  host_memory(std::size_t capacity, host_pinning pin, std::uint64_t first) noexcept
      : capacity_(capacity), pin_(pin), next_(first) {}
  host_memory(const host_memory&) = delete;
  host_memory& operator=(const host_memory&) = delete;
  ~host_memory() {
    segments_.each([](void* p, const host_extents::extent& s) { ::munmap(p, s.bytes); });
  }

  [[nodiscard]] const char* acquire(std::size_t bytes, page_kind kind, void*& given) noexcept {
    if (bytes == 0 || bytes > max_request) return not_possible;
    const std::size_t whole = align_up(bytes, host_page_size(kind));
    if (whole > capacity_ - used()) return at_capacity;
    if (kind.size == page_kind::page_size::normal && pin_ != host_pinning::never && whole > host_available())
      return host_lacks_pages(kind);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | static_cast<int>(host_page_flags(kind, MAP_HUGETLB));
    void* const p = ::mmap(nullptr, whole, host_protection(kind), flags, -1, 0);
    if (p == MAP_FAILED) return host_lacks_pages(kind);
    host_extents::extent made{whole, bytes};
    const char* fault = host_lock(p, whole, kind, pin_, made.locked);
    if (fault == nullptr && !segments_.add(p, made)) fault = host_cannot_remember;
    if (fault != nullptr) {
      ::munmap(p, whole);
      return fault;
    }
    given = p;
    return nullptr;
  }

  [[nodiscard]] const char* release(void* p, std::size_t bytes) noexcept {
    const host_extents::extent* const found = segments_.find(p);
    if (found == nullptr || found->note != bytes) return "not a segment of this provider";
    if (::munmap(p, found->bytes) != 0) return host_refuses;
    segments_.remove(p);
    return nullptr;
  }

  [[nodiscard]] const char* create(std::size_t bytes, page_kind kind, std::uint64_t& number) noexcept {
    if (bytes == 0 || bytes > max_request) return not_possible;
    if (bytes % host_page_size(kind) != 0) return "physical memory is a multiple of page_size(kind) long";
    if (bytes > capacity_ - used()) return at_capacity;
    host_descriptor file;
    if (const char* const fault = host_make_file(bytes, kind, file)) return fault;
    return add({std::move(file), bytes, kind, false}, number);
  }

  /// Adopts a checked memory file of another process.
  [[nodiscard]] const char* adopt(host_descriptor file, std::size_t bytes, page_kind kind,
                                  std::uint64_t& number) noexcept {
    return add({std::move(file), bytes, kind, true}, number);
  }

  /// The physical memory with this number; null if it was destroyed.
  [[nodiscard]] piece* find(std::uint64_t number) noexcept {
    const auto found = pieces_.find(number);
    return found != pieces_.end() && found->second.file ? &found->second : nullptr;
  }

  /// Destroys physical memory. Mapped memory stays until it is unmapped.
  [[nodiscard]] const char* destroy(std::uint64_t number) noexcept {
    piece* const leaving = find(number);
    if (leaving == nullptr) return no_piece;
    leaving->file = {};
    if (!leaving->mapped) drop(number);
    return nullptr;
  }

  ///   Requires:  the memory is mapped, or was not destroyed
  void set_mapped(std::uint64_t number, bool mapped) noexcept {
    piece& is = pieces_.find(number)->second;
    is.mapped = mapped;
    if (!mapped && !is.file) drop(number);
  }

  [[nodiscard]] const host_extents& segments() const noexcept { return segments_; }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] host_pinning pin() const noexcept { return pin_; }
  [[nodiscard]] std::size_t used() const noexcept { return segments_.bytes() + created_; }
  [[nodiscard]] std::size_t created() const noexcept { return created_; }
  [[nodiscard]] std::size_t imported() const noexcept { return imported_; }

  static constexpr const char* no_piece = "no physical memory of this provider, or destroyed";
  static constexpr const char* host_refuses = "the system refuses";

 private:
  static constexpr const char* not_possible = "not a possible number of bytes";
  static constexpr const char* at_capacity = "the capacity of this provider is reached";

  [[nodiscard]] const char* add(piece made, std::uint64_t& number) noexcept {
    const std::size_t bytes = made.bytes;
    std::size_t& counted = made.imported ? imported_ : created_;
    if (!host_remembers([&] { pieces_.emplace(next_, std::move(made)); })) return host_cannot_remember;
    counted += bytes;
    number = next_++;
    return nullptr;
  }
  void drop(std::uint64_t number) noexcept {
    const auto found = pieces_.find(number);
    (found->second.imported ? imported_ : created_) -= found->second.bytes;
    pieces_.erase(found);
  }

  std::size_t capacity_;
  host_pinning pin_;
  std::uint64_t next_;
  host_extents segments_;  // with the requested size; `bytes` is in whole pages
  std::map<std::uint64_t, piece> pieces_;
  std::size_t created_ = 0, imported_ = 0;
};

/// The address ranges of one host_pinned and its mappings. Functions that can fail return null on success,
/// else the reason.
class host_ranges {
 public:
  /// Maps physical memory of `memory`.
  ///   Requires:  `memory` outlives it
  explicit host_ranges(host_memory& memory) noexcept : memory_(&memory) {}
  host_ranges(const host_ranges&) = delete;
  host_ranges& operator=(const host_ranges&) = delete;
  ~host_ranges() {
    ranges_.each([](void* p, const host_extents::extent& r) { ::munmap(p, r.bytes); });
  }

  [[nodiscard]] const char* reserve(std::size_t bytes, std::size_t to, void*& given) noexcept {
    if (bytes == 0 || bytes > max_request || bytes % host_page() != 0)
      return "a range is a multiple of the page long";
    if (!std::has_single_bit(to) || to > max_request) return "the alignment is a power of two";
    const std::size_t slack = to > host_page() ? to - host_page() : 0;
    void* const p = ::mmap(nullptr, bytes + slack, PROT_NONE, nothing, -1, 0);
    if (p == MAP_FAILED) return no_addresses;
    const std::uintptr_t begin = host_address(p), at = (begin + slack) & ~(std::uintptr_t{to} - 1);
    const std::uintptr_t from = at < begin ? begin : at, end = begin + bytes + slack;
    if (from != begin) ::munmap(p, from - begin);
    if (from + bytes != end) ::munmap(host_pointer(from + bytes), end - from - bytes);
    if (!ranges_.add(host_pointer(from), {bytes, 0})) {
      ::munmap(host_pointer(from), bytes);
      return host_cannot_remember;
    }
    given = host_pointer(from);
    return nullptr;
  }

  [[nodiscard]] const char* unreserve(void* p, std::size_t bytes) noexcept {
    const host_extents::extent* const found = ranges_.find(p);
    if (found == nullptr || found->bytes != bytes) return "not a range of this provider, or not all of it";
    if (found->note != 0) return "something is still mapped in the range";
    if (::munmap(p, bytes) != 0) return host_memory::host_refuses;
    ranges_.remove(p);
    return nullptr;
  }

  [[nodiscard]] const char* map(void* p, std::size_t bytes, std::uint64_t number) noexcept {
    const host_memory::piece* const piece = memory_->find(number);
    if (piece == nullptr) return host_memory::no_piece;
    if (piece->mapped) return "the memory is mapped already; it has one place at a time";
    if (piece->bytes != bytes) return "physical memory is mapped whole";
    if (host_address(p) % host_page_size(piece->kind) != 0)
      return "memory is mapped at a multiple of page_size(kind)";
    host_extents::extent* const in = ranges_.around(p, bytes);
    if (in == nullptr) return "not inside one range of this provider";
    if (mappings_.overlaps(p, bytes)) return "something is mapped there already";

    host_extents::extent made{bytes, number};
    const char* fault = no_addresses;
    if (::mmap(p, bytes, host_protection(piece->kind), MAP_SHARED | MAP_FIXED | MAP_POPULATE,
               piece->file.get(), 0) != MAP_FAILED)
      fault = host_lock(p, bytes, piece->kind, memory_->pin(), made.locked);
    if (fault == nullptr && !mappings_.add(p, made)) fault = host_cannot_remember;
    if (fault != nullptr) {
      (void)take_away(p, bytes);
      return fault;
    }
    ++in->note;
    memory_->set_mapped(number, true);
    return nullptr;
  }

  [[nodiscard]] const char* unmap(void* p, std::size_t bytes) noexcept {
    if (const char* const fault = grant(p, bytes)) return fault;
    if (!take_away(p, bytes)) return host_memory::host_refuses;
    --ranges_.around(p, bytes)->note;
    memory_->set_mapped(mappings_.remove(p).note, false);
    return nullptr;
  }

  /// Checks the arguments only, because mapped memory can be used at once.
  [[nodiscard]] const char* grant(void* p, std::size_t bytes) const noexcept {
    const host_extents::extent* const found = mappings_.find(p);
    return found != nullptr && found->bytes == bytes ? nullptr : "not what one map put there";
  }

  [[nodiscard]] const host_extents& ranges() const noexcept { return ranges_; }
  [[nodiscard]] const host_extents& mappings() const noexcept { return mappings_; }

 private:
  static constexpr int nothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  static constexpr const char* no_addresses =
      "the system has no addresses left for this process, or it has too many mappings; the system "
      "administrator "
      "raises /proc/sys/vm/max_map_count";

  /// Reserves the addresses again in one step, so that no other thread can take them.
  [[nodiscard]] static bool take_away(void* p, std::size_t bytes) noexcept {
    return ::mmap(p, bytes, PROT_NONE, nothing | MAP_FIXED, -1, 0) != MAP_FAILED;
  }

  host_memory* memory_;
  host_extents ranges_;    // note: the number of mappings in the range
  host_extents mappings_;  // note: the number of its physical memory
};

/// The user's memory that one host_pinned has locked, in whole pages. Functions that can fail return null on
/// success, else the reason.
class host_registered {
 public:
  host_registered() = default;
  host_registered(const host_registered&) = delete;
  host_registered& operator=(const host_registered&) = delete;
  ~host_registered() { extents_.each(unlock); }

  [[nodiscard]] const char* add(void* p, std::size_t bytes, host_pinning pin) noexcept {
    if (p == nullptr || host_address(p) % host_page() != 0)
      return "registered memory begins at a multiple of the page";
    if (bytes == 0 || bytes > max_request) return "not a possible number of bytes";
    host_extents::extent made{align_up(bytes, host_page()), 0};
    if (extents_.overlaps(p, made.bytes)) return "a part is registered already";
    if (::msync(p, made.bytes, MS_ASYNC) != 0) return "a part of it is no memory of this process";
    if (const char* const fault = host_lock(p, made.bytes, page_kind::normal, pin, made.locked)) return fault;
    if (extents_.add(p, made)) return nullptr;
    unlock(p, made);
    return host_cannot_remember;
  }

  [[nodiscard]] const char* remove(void* p) noexcept {
    if (extents_.find(p) == nullptr) return "nothing is registered there";
    unlock(p, extents_.remove(p));
    return nullptr;
  }

  [[nodiscard]] const host_extents& extents() const noexcept { return extents_; }

 private:
  static void unlock(void* p, const host_extents::extent& e) noexcept {
    if (e.locked) (void)::munlock(p, e.bytes);
  }

  host_extents extents_;
};

}  // namespace tessera::detail
