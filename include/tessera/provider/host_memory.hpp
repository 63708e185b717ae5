// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include <sys/mman.h>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/provider/host_extents.hpp>
#include <tessera/provider/host_system.hpp>

namespace tessera {

/// Memory that one host_pinned has from the system: segments, which are mapped, and pieces of physical memory, which
/// are memory files. Functions that can fail return null or what hinders them.
class host_memory {
 public:
  struct piece {
    host_descriptor file;  ///< none once it was destroyed
    std::size_t bytes;
    page_kind kind;
    bool imported;
    bool mapped = false;
  };

  /// Pieces are numbered from `first`.
  host_memory(std::size_t capacity, host_pinning pin, std::uint64_t first) noexcept
      : capacity_(capacity), pin_(pin), next_(first) {}
  host_memory(const host_memory&) = delete;
  host_memory& operator=(const host_memory&) = delete;
  ~host_memory() {
    segments_.each([](void* p, const host_extents::extent& s) { ::munmap(p, s.bytes); });
  }

  [[nodiscard]] const char* acquire(std::size_t bytes, page_kind kind, void*& given) noexcept {
    if (bytes == 0 || bytes > max_request) return not_possible;
    const std::size_t whole = align_up(bytes, host_step(kind));
    if (whole > capacity_ - used()) return at_capacity;
    if (kind.size == page_size::normal && pin_ != host_pinning::never && whole > host_available())
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
    if (bytes % host_step(kind) != 0) return "physical memory is a multiple of step(kind) long";
    if (bytes > capacity_ - used()) return at_capacity;
    host_descriptor file;
    if (const char* const fault = host_make_file(bytes, kind, file)) return fault;
    return add({std::move(file), bytes, kind, false}, number);
  }

  /// Takes a checked memory file of another process in.
  [[nodiscard]] const char* adopt(host_descriptor file, std::size_t bytes, page_kind kind,
                                  std::uint64_t& number) noexcept {
    return add({std::move(file), bytes, kind, true}, number);
  }

  /// A piece that was not destroyed, or null.
  [[nodiscard]] piece* find(std::uint64_t number) noexcept {
    const auto found = pieces_.find(number);
    return found != pieces_.end() && found->second.file ? &found->second : nullptr;
  }

  /// Lets go of a piece, which goes once it is mapped no more.
  [[nodiscard]] const char* destroy(std::uint64_t number) noexcept {
    piece* const leaving = find(number);
    if (leaving == nullptr) return no_piece;
    leaving->file = {};
    if (!leaving->mapped) drop(number);
    return nullptr;
  }

  ///   Requires:  it is there: mapped, or not destroyed
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
  host_extents segments_;  // each with what was asked for, where `bytes` is whole pages
  std::map<std::uint64_t, piece> pieces_;
  std::size_t created_ = 0, imported_ = 0;
};

}  // namespace tessera
