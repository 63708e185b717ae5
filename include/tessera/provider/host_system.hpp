// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tessera/provider/range_map.hpp>

/// The Linux calls of host_pinned. Functions that can fail return null on success. Otherwise they return the
/// broken rule, or a text that names the missing resource and a remedy.

namespace tessera::detail {

/// Whether memory is locked. Locked memory is never swapped out.
enum class host_pinning : unsigned char {
  required,       ///< fails if memory cannot be locked
  where_allowed,  ///< uses the memory unlocked if it cannot be locked
  never
};

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
/// The page-size flags of mmap and memfd_create for a kind: the size is in bits 26 to 31.
[[nodiscard]] inline unsigned host_page_flags(page_kind kind, unsigned hugetlb) noexcept {
  return kind.size == page_kind::page_size::huge_1g ? hugetlb | (30u << 26)
         : kind.size == page_kind::page_size::huge  ? hugetlb | (21u << 26)
                                                    : 0;
}

[[nodiscard]] inline const char* host_lacks_pages(page_kind kind) noexcept {
  switch (kind.size) {
    case page_kind::page_size::huge_1g:
      return "no 1 GiB page is free; the system administrator raises "
             "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages";
    case page_kind::page_size::huge:
      return "no 2 MiB page is free; the system administrator raises "
             "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    case page_kind::page_size::normal: break;
  }
  return "the system has too little memory left";
}

/// The number after `label` in a file of the system; `unlimited` if it is unknown or 0.
[[nodiscard]] inline std::size_t host_read_number(const char* path, const char* label) noexcept {
  const host_descriptor file{::open(path, O_RDONLY | O_CLOEXEC)};
  char text[1024];
  const ssize_t length = file ? ::read(file.get(), text, sizeof text - 1) : 0;
  if (length <= 0) return unlimited;
  text[length] = 0;
  const char* const found = std::strstr(text, label);
  const std::size_t number = found != nullptr ? std::strtoull(found + std::strlen(label), nullptr, 10) : 0;
  return number != 0 ? number : unlimited;
}
/// Bytes available in normal pages without swapping; `unlimited` if unknown. A control group may allow less.
[[nodiscard]] inline std::size_t host_available() noexcept {
  const std::size_t kib = host_read_number("/proc/meminfo", "MemAvailable:");
  return kib != unlimited ? operator""_KiB(kib) : unlimited;
}
/// The maximum number of mappings of one process; `unlimited` if unknown.
[[nodiscard]] inline std::size_t host_max_mappings() noexcept {
  return host_read_number("/proc/sys/vm/max_map_count", "");
}

/// Locks memory, and sets `locked` to the result. Larger pages need no lock, because they are never swapped
/// out.
[[nodiscard]] inline const char* host_lock(void* p, std::size_t bytes, page_kind kind, host_pinning pin,
                                           bool& locked) noexcept {
  locked = false;
  if (pin == host_pinning::never || kind.size != page_kind::page_size::normal) return nullptr;
  locked = ::mlock(p, bytes) == 0;
  if (locked || pin == host_pinning::where_allowed) return nullptr;
  return errno == ENOMEM || errno == EPERM
             ? "the locked-memory limit is reached; raise it (ulimit -l, limits.conf, or the right "
               "CAP_IPC_LOCK), or choose pinning::where_allowed"
             : "the system cannot lock the memory now";
}

/// Allocates all pages of a memory file, so that later accesses cannot fail.
///   Requires:  `bytes` is a multiple of host_page_size(kind)
[[nodiscard]] inline const char* host_fill(int file, std::size_t bytes, page_kind kind) noexcept {
  constexpr std::size_t at_once = 64_MiB;  // a signal undoes only the current step
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t next = bytes - done < at_once ? bytes - done : at_once;
    // For normal pages, the system kills processes rather than refusing the request.
    if (kind.size == page_kind::page_size::normal && host_available() < bytes - done)
      return host_lacks_pages(kind);
    if (::fallocate(file, 0, static_cast<off_t>(done), static_cast<off_t>(next)) == 0)
      done += next;
    else if (errno != EINTR)
      return host_lacks_pages(kind);
  }
  return nullptr;
}

/// Creates a memory file with all its pages and a fixed size.
///   Requires:  `bytes` is a multiple of host_page_size(kind)
[[nodiscard]] inline const char* host_make_file(std::size_t bytes, page_kind kind,
                                                host_descriptor& made) noexcept {
  host_descriptor file{
      ::memfd_create("tessera", MFD_CLOEXEC | MFD_ALLOW_SEALING | host_page_flags(kind, MFD_HUGETLB))};
  if (!file)
    return errno == EMFILE || errno == ENFILE ? "the limit of open files is reached; raise it (ulimit -n)"
                                              : host_lacks_pages(kind);
  if (const char* const lack = host_fill(file.get(), bytes, kind)) return lack;
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return "the system cannot seal the memory's size";
  made = std::move(file);
  return nullptr;
}

/// Checks a memory file of another process: it cannot shrink, and all its pages are allocated.
[[nodiscard]] inline const char* host_check_file(int file, std::size_t bytes, page_kind kind) noexcept {
  struct stat status{};
  const int seals = ::fcntl(file, F_GET_SEALS);
  if (bytes == 0 || bytes > max_request || bytes % host_page_size(kind) != 0 || ::fstat(file, &status) != 0 ||
      status.st_size < 0 || static_cast<std::size_t>(status.st_size) != bytes || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0)
    return "the exporter sent a file that is not memory of the stated size";
  return host_fill(file, bytes, kind);
}

}  // namespace tessera::detail
