// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/provider/host_posix.hpp>

#if !defined(__linux__) && !defined(_WIN32)
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/// The calls of host_pinned on macOS, and on other systems with POSIX and arc4random_buf. Functions that can fail return
/// null on success. Otherwise they return the broken rule, or a text that names the missing resource and a remedy.

namespace tessera::inline v0_1::detail {

[[nodiscard]] inline const char* host_lacks_pages(page_kind kind) noexcept {
  return kind.size == page_kind::page_size::normal ? "the system has too little memory left"
                                                   : "host_pinned has larger pages on Linux alone";
}
/// The system does not say how much memory is left. It refuses a lock that exceeds it.
[[nodiscard]] inline std::size_t host_available(int) noexcept { return unlimited; }

/// Locks memory. It is never swapped out then.
[[nodiscard]] inline const char* host_lock_pages(void* p, std::size_t bytes) noexcept {
  if (::mlock(p, bytes) == 0) return nullptr;
  const int code = errno;
  (void)::munlock(p, bytes);  // the pages before the one that failed
  return code == EAGAIN || code == ENOMEM || code == EPERM
             ? "the locked-memory limit is reached; raise it (ulimit -l), or choose pinning::where_allowed"
             : "the system cannot lock the memory now";
}

/// Acquires pages, which are not locked yet.
///   Requires:  `bytes` is a multiple of host_page_size(kind)
[[nodiscard]] inline const char* host_acquire(std::size_t bytes, page_kind kind, int, void*& made) noexcept {
  if (kind.size != page_kind::page_size::normal) return host_lacks_pages(kind);
  void* const p = ::mmap(nullptr, bytes, host_protection(kind), MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return host_lacks_pages(kind);
  made = p;
  return nullptr;
}

/// Maps a memory file over reserved addresses, and allocates all its pages.
[[nodiscard]] inline bool host_map(void* p, std::size_t bytes, page_kind kind, int file) noexcept {
  if (::mmap(p, bytes, host_protection(kind), MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) return false;
  const volatile char* const pages = static_cast<const char*>(p);
  for (std::size_t at = 0; at < bytes; at += host_page()) (void)pages[at];
  return true;
}
inline constexpr const char* host_no_addresses = "the process has no addresses left, or too many mappings";

/// A random number that differs between providers of all processes.
[[nodiscard]] inline std::uint64_t host_random_number() noexcept {
  std::uint64_t number = 0;
  while (number == 0) ::arc4random_buf(&number, sizeof number);
  return number;
}

/// Creates a memory file of a fixed size. Its name is removed at once. Its pages are allocated when it is
/// mapped.
///   Requires:  `bytes` is a multiple of host_page_size(kind)
[[nodiscard]] inline const char* host_make_file(std::size_t bytes, page_kind kind, host_descriptor& made,
                                                int = -1) noexcept {
  if (kind.size != page_kind::page_size::normal || bytes > host_all_memory()) return host_lacks_pages(kind);
  char name[31];  // the most that macOS allows, with the 0
  host_descriptor file;
  do {
    TESSERA_DETAIL_SNPRINTF(name, sizeof name, "/tessera.%016" PRIx64, host_random_number());
    file = host_descriptor{::shm_open(name, O_RDWR | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR)};
  } while (!file && (errno == EEXIST || errno == EINTR));
  if (!file)
    return errno == EMFILE || errno == ENFILE ? "the limit of open files is reached; raise it (ulimit -n)"
                                              : "the system cannot create shared memory";
  (void)::shm_unlink(name);
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) return host_lacks_pages(kind);
  made = std::move(file);
  return nullptr;
}

/// Why memory cannot be bound to a node; empty for a negative node.
[[nodiscard]] inline std::string host_node_fault(int node) {
  return node < 0 ? std::string()
                  : "node " + std::to_string(node) + ": host_pinned binds memory on Linux alone";
}
[[nodiscard]] inline std::size_t host_all_memory(int) noexcept { return host_all_memory(); }

}  // namespace tessera::inline v0_1::detail
#endif
