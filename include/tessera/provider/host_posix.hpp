// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/core/types.hpp>

#if !defined(_WIN32)
#include <sys/mman.h>
#include <unistd.h>

/// The calls of host_pinned that are the same on all systems with POSIX.

namespace tessera::inline v0_1::detail {

/// Owns a file descriptor.
class host_descriptor {
 public:
  host_descriptor() = default;
  explicit host_descriptor(int file) noexcept : file_(file) {}
  host_descriptor(host_descriptor&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  host_descriptor& operator=(host_descriptor other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~host_descriptor() {
    if (file_ >= 0) ::close(file_);
  }
  [[nodiscard]] int get() const noexcept { return file_; }
  explicit operator bool() const noexcept { return file_ >= 0; }

 private:
  int file_ = -1;
};

[[nodiscard]] inline std::size_t host_page() noexcept {
  return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}
/// Bytes of one page of a kind.
[[nodiscard]] inline std::size_t host_page_size(page_kind kind) noexcept {
  return kind.size == page_kind::page_size::normal ? host_page() : kind.granularity();
}
[[nodiscard]] inline int host_protection(page_kind kind) noexcept {
  return kind.read_only ? PROT_READ : PROT_READ | PROT_WRITE;
}
/// Bytes of the machine's memory.
[[nodiscard]] inline std::size_t host_all_memory() noexcept {
  return host_page() * static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES));
}
inline bool host_unmap(void* p, std::size_t bytes) noexcept { return ::munmap(p, bytes) == 0; }
inline void host_unlock_pages(void* p, std::size_t bytes) noexcept { (void)::munlock(p, bytes); }
/// Whether each of these pages is memory of this process.
[[nodiscard]] inline bool host_is_memory(void* p, std::size_t bytes) noexcept {
  return ::msync(p, bytes, MS_ASYNC) == 0;
}

inline constexpr int host_reserved_only = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
/// Reserves addresses; null if the process has none left.
[[nodiscard]] inline void* host_reserve(std::size_t bytes) noexcept {
  void* const p = ::mmap(nullptr, bytes, PROT_NONE, host_reserved_only, -1, 0);
  return p != MAP_FAILED ? p : nullptr;
}
/// Reserves the addresses again in one step, so that no other thread can take them.
[[nodiscard]] inline bool host_reserve_again(void* p, std::size_t bytes) noexcept {
  return ::mmap(p, bytes, PROT_NONE, host_reserved_only | MAP_FIXED, -1, 0) != MAP_FAILED;
}

}  // namespace tessera::inline v0_1::detail
#endif
