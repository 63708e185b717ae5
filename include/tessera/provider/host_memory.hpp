// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#if !defined(_WIN32)
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif
#if defined(__linux__)
#include <sys/random.h>

#include <tessera/provider/numa_nodes.hpp>
#endif
#include <tessera/provider/address_book.hpp>
#include <tessera/provider/host_windows.hpp>

/// The memory of host_pinned: the calls of systems with POSIX, which are Linux, macOS, and others with arc4random_buf; segments,
/// virtual memory, and the user's memory that it locks. host_windows.hpp has the calls of Windows. Functions that can fail return
/// null on success. Otherwise they return the broken rule, or a text that names the missing resource and a remedy.

namespace tessera::inline v0_1::detail {

#if !defined(_WIN32)

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

#if defined(__linux__)

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

/// The maximum number of mappings of one process; `unlimited` if unknown.
[[nodiscard]] inline std::size_t host_max_mappings() noexcept {
  std::size_t number = unlimited, at = 0;
  const auto read = [&] {
    std::string text;
    if (!read_small_file("/proc/sys/vm/max_map_count", text) || !read_digits(text, at, unlimited, number))
      number = unlimited;
  };
  return try_run(read) ? number : unlimited;
}

/// Locks memory. It is never swapped out then.
[[nodiscard]] inline const char* host_lock_pages(void* p, std::size_t bytes) noexcept {
  if (::mlock(p, bytes) == 0) return nullptr;
  const int code = errno;
  (void)::munlock(p, bytes);  // the pages before the one that failed
  return code == ENOMEM || code == EPERM
             ? "the locked-memory limit is reached; raise it (ulimit -l, limits.conf, or the right "
               "CAP_IPC_LOCK), or choose pinning::where_allowed"
             : "the system cannot lock the memory now";
}

/// Bytes available in normal pages without swapping, of a node unless it is negative; `unlimited` if unknown. A control group
/// may allow less.
[[nodiscard]] inline std::size_t host_available(int node) noexcept {
  const std::size_t of_machine = sum_of_kib("/proc/meminfo", {"MemAvailable:"});
  return node < 0 ? of_machine : smaller(of_machine, numa_available(node));
}

/// Allocates all pages of a memory file, so that later accesses cannot fail.
///   Requires:  `bytes` is a multiple of host_page_size(kind)
[[nodiscard]] inline const char* host_fill(int file, std::size_t bytes, page_kind kind,
                                           int node = -1) noexcept {
  constexpr std::size_t at_once = 64_MiB;  // a signal undoes only the current step
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t next = bytes - done < at_once ? bytes - done : at_once;
    // For normal pages, the system kills processes rather than refusing the request.
    if (kind.size == page_kind::page_size::normal && host_available(node) < bytes - done)
      return host_lacks_pages(kind);
    if (::fallocate(file, 0, static_cast<off_t>(done), static_cast<off_t>(next)) == 0)
      done += next;
    else if (errno != EINTR)
      return host_lacks_pages(kind);
  }
  return nullptr;
}

/// Binds all pages of an empty memory file to a node, and sets its size; nothing for a negative node.
[[nodiscard]] inline const char* host_bind_file(int file, std::size_t bytes, int node) noexcept {
  if (node < 0) return nullptr;
  if (::ftruncate(file, static_cast<off_t>(bytes)) != 0) return "the system cannot set the memory's size";
  void* const p = ::mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0);
  if (p == MAP_FAILED) return "the process has no addresses left, or too many mappings";
  const char* const fault = bind_to_numa_node(p, bytes, node);  // the file keeps it
  ::munmap(p, bytes);
  return fault;
}

/// Acquires pages, which are not locked yet.
///   Requires:  `bytes` is a multiple of host_page_size(kind)
[[nodiscard]] inline const char* host_acquire(std::size_t bytes, page_kind kind, int node,
                                              void*& made) noexcept {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | static_cast<int>(host_page_flags(kind, MAP_HUGETLB));
  void* const p = ::mmap(nullptr, bytes, host_protection(kind), flags, -1, 0);
  if (p == MAP_FAILED) return host_lacks_pages(kind);
  if (const char* const fault = bind_to_numa_node(p, bytes, node)) {
    ::munmap(p, bytes);
    return fault;
  }
  made = p;
  return nullptr;
}

/// Maps a memory file with all its pages over reserved addresses.
[[nodiscard]] inline bool host_map(void* p, std::size_t bytes, page_kind kind, int file) noexcept {
  return ::mmap(p, bytes, host_protection(kind), MAP_SHARED | MAP_FIXED | MAP_POPULATE, file, 0) !=
         MAP_FAILED;
}
inline constexpr const char* host_no_addresses =
    "the process has no addresses left, or too many mappings; the system administrator raises "
    "/proc/sys/vm/max_map_count";

/// Creates a memory file with all its pages and a fixed size.
///   Requires:  `bytes` is a multiple of host_page_size(kind)
[[nodiscard]] inline const char* host_make_file(std::size_t bytes, page_kind kind, host_descriptor& made,
                                                int node = -1) noexcept {
  host_descriptor file{
      ::memfd_create("tessera", MFD_CLOEXEC | MFD_ALLOW_SEALING | host_page_flags(kind, MFD_HUGETLB))};
  if (!file)
    return errno == EMFILE || errno == ENFILE ? "the limit of open files is reached; raise it (ulimit -n)"
                                              : host_lacks_pages(kind);
  if (const char* const fault = host_bind_file(file.get(), bytes, node)) return fault;
  if (const char* const lack = host_fill(file.get(), bytes, kind, node)) return lack;
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

/// Why memory cannot be bound to a node; empty if it can, or for a negative node.
[[nodiscard]] inline std::string host_node_fault(int node) { return why_no_numa_node(node); }
/// Bytes of a node's memory; of all memory if it is negative or unknown.
[[nodiscard]] inline std::size_t host_all_memory(int node) {
  for (const provider::numa_node& each : provider::list_numa_nodes().nodes) {
    if (each.number == node) return each.bytes;
  }
  return host_all_memory();
}

/// A random number that differs between providers of all processes.
[[nodiscard]] inline std::uint64_t host_random_number() noexcept {
  std::uint64_t number = 0;
  while (::getrandom(&number, sizeof number, 0) != sizeof number || number == 0) {
  }
  return number;
}

#else

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

#endif

#endif

/// Whether memory is locked. Locked memory is never swapped out.
enum class host_pinning : unsigned char {
  required,       ///< fails if memory cannot be locked
  where_allowed,  ///< uses the memory unlocked if it cannot be locked
  never
};

/// Locks memory, and sets `locked` to the result. Larger pages need no lock, because they are never swapped
/// out.
[[nodiscard]] inline const char* host_lock(void* p, std::size_t bytes, page_kind kind, host_pinning pin,
                                           bool& locked) noexcept {
  locked = false;
  if (pin == host_pinning::never || kind.size != page_kind::page_size::normal) return nullptr;
  const char* const fault = host_lock_pages(p, bytes);
  locked = fault == nullptr;
  return pin == host_pinning::where_allowed ? nullptr : fault;
}

/// The part of host memory that one host_pinned gives.
struct host_bank {
  std::size_t capacity;
  host_pinning pin;
  int node;                ///< negative for any
  std::string node_fault;  ///< why no memory can be bound to the node; empty if it can
  std::size_t acquired = 0, created = 0;

  [[nodiscard]] std::size_t used() const noexcept { return acquired + created; }
};

struct host_segment {
  std::size_t bytes;      ///< in whole pages
  std::size_t requested;  ///< bytes of the request
  host_bank* bank;
  bool locked = false;
};
/// The user's memory, in whole pages.
struct host_registration {
  std::size_t bytes;
  bool locked = false;
};

/// The segments of a host_pinned and its other banks.
class host_memory {
 public:
  host_memory() = default;
  host_memory& operator=(host_memory&&) = delete;
  ~host_memory() {
    segments_.for_each([](void* p, const host_segment& s) { host_unmap(p, s.bytes); });
  }

  /// Adds a bank, which lives as long as this.
  [[nodiscard]] host_bank* add_bank(host_bank added) {
    banks_.push_back(std::make_unique<host_bank>(std::move(added)));
    return banks_.back().get();
  }
  [[nodiscard]] const host_bank& first_bank() const noexcept { return *banks_[0]; }

  [[nodiscard]] const char* acquire(host_bank& bank, std::size_t bytes, page_kind kind,
                                    void*& result) noexcept {
    if (!bank.node_fault.empty()) return bank.node_fault.c_str();
    if (bytes == 0 || bytes > max_request) return bad_size;
    const std::size_t whole = align_up(bytes, host_page_size(kind));
    if (whole > bank.capacity - bank.used()) return at_capacity;
    if (kind.size == page_kind::page_size::normal && bank.pin != host_pinning::never &&
        whole > host_available(bank.node))
      return host_lacks_pages(kind);
    void* p = nullptr;
    if (const char* const fault = host_acquire(whole, kind, bank.node, p)) return fault;
    host_segment segment{whole, bytes, &bank};
    const char* fault = host_lock(p, whole, kind, bank.pin, segment.locked);
    if (fault == nullptr && !segments_.insert(p, segment)) fault = no_host_memory;
    if (fault != nullptr) {
      host_unmap(p, whole);
      return fault;
    }
    bank.acquired += whole;
    result = p;
    return nullptr;
  }

  [[nodiscard]] const char* release(void* p, std::size_t bytes) noexcept {
    const host_segment* const found = segments_.find(p);
    if (found == nullptr || found->requested != bytes) return "not a segment of this provider";
    if (!host_unmap(p, found->bytes)) return system_failed;
    found->bank->acquired -= found->bytes;
    segments_.extract(p);
    return nullptr;
  }

  [[nodiscard]] const range_map<host_segment>& segments() const noexcept { return segments_; }

  static constexpr const char* bad_size = "the size is 0 or too large";
  static constexpr const char* at_capacity = "the capacity of this provider is reached";
  static constexpr const char* system_failed = "the system call failed";

 private:
  std::vector<std::unique_ptr<host_bank>> banks_;
  range_map<host_segment> segments_;
};

/// The user's memory that one host_pinned has locked, in whole pages.
class host_registered {
 public:
  host_registered& operator=(host_registered&&) = delete;
  ~host_registered() { memory_.for_each(unlock); }

  [[nodiscard]] const char* add(void* p, std::size_t bytes, host_pinning pin) noexcept {
    if (p == nullptr || address_of(p) % host_page() != 0) return "the address is no multiple of the page";
    if (bytes == 0 || bytes > max_request) return "the size is 0 or too large";
    host_registration memory{align_up(bytes, host_page())};
    if (memory_.overlaps(p, memory.bytes)) return "a part is registered already";
    if (memory.bytes > ~address_of(p) || !host_is_memory(p, memory.bytes))
      return "a part is not memory of this process";
    if (const char* const fault = host_lock(p, memory.bytes, page_kind::normal, pin, memory.locked))
      return fault;
    if (memory_.insert(p, memory)) return nullptr;
    unlock(p, memory);
    return no_host_memory;
  }

  [[nodiscard]] const char* remove(void* p) noexcept {
    if (memory_.find(p) == nullptr) return "no registered memory begins here";
    unlock(p, memory_.extract(p));
    return nullptr;
  }

  [[nodiscard]] const range_map<host_registration>& memory() const noexcept { return memory_; }

 private:
  static void unlock(void* p, const host_registration& e) noexcept {
    if (e.locked) host_unlock_pages(p, e.bytes);
  }

  range_map<host_registration> memory_;
};

#if !defined(_WIN32)

/// A memory file that is a physical chunk of a host_pinned.
struct host_chunk {
  struct give_back {
    std::size_t bytes;
    void operator()(host_bank* of) const noexcept { of->created -= bytes; }
  };
  host_descriptor file;  ///< empty once the handle is destroyed
  page_kind kind;
  std::unique_ptr<host_bank, give_back> bank;  ///< null if it is imported
  bool locked = false;                         ///< where it is mapped
};

/// The virtual memory of a host_pinned and its other banks.
class host_ranges {
 public:
  /// Numbers chunks from the number after `latest`.
  ///   Requires:  `memory` outlives it
  host_ranges(const host_memory& memory, std::uint64_t latest) noexcept : memory_(&memory), book_(latest) {}
  host_ranges& operator=(host_ranges&&) = delete;
  ~host_ranges() {
    book_.ranges().for_each([](void* p, const auto& range) { host_unmap(p, range.bytes); });
  }

  [[nodiscard]] const char* create(host_bank& bank, std::size_t bytes, page_kind kind,
                                   std::uint64_t& number) noexcept {
    if (!bank.node_fault.empty()) return bank.node_fault.c_str();
    if (bytes == 0 || bytes > max_request) return host_memory::bad_size;
    if (bytes % host_page_size(kind) != 0) return "the size is no multiple of page_size(kind)";
    if (bytes > bank.capacity - bank.used()) return host_memory::at_capacity;
    host_descriptor file;
    if (const char* const fault = host_make_file(bytes, kind, file, bank.node)) return fault;
    bank.created += bytes;
    return book_.add_chunk({bytes, host_page_size(kind), {std::move(file), kind, {&bank, {bytes}}}}, number);
  }
  /// Adopts a checked memory file of another process, which has it under the number `source`.
  [[nodiscard]] const char* adopt(host_descriptor file, std::size_t bytes, page_kind kind,
                                  std::uint64_t source, std::uint64_t& number) noexcept {
    return book_.add_chunk({bytes, host_page_size(kind), {std::move(file), kind, nullptr}, source}, number);
  }
  [[nodiscard]] const char* destroy(std::uint64_t number) noexcept {
    if (auto* const leaving = book_.find(number)) leaving->data.file = {};
    return book_.destroy(number);
  }

  [[nodiscard]] const char* reserve(std::size_t bytes, std::size_t to, void*& result) noexcept {
    if (bytes == 0 || bytes > max_request || bytes % host_page() != 0)
      return "the size is 0, too large, or no multiple of the page";
    if (!std::has_single_bit(to) || to > max_request) return "the alignment is no power of two, or too large";
    const std::size_t slack = to > host_page() ? to - host_page() : 0;
    void* const p = host_reserve(bytes + slack);
    if (p == nullptr) return host_no_addresses;
    const std::uintptr_t begin = address_of(p), at = (begin + slack) & ~(std::uintptr_t{to} - 1);
    const std::uintptr_t from = at < begin ? begin : at, end = begin + bytes + slack;
    if (from != begin) host_unmap(p, from - begin);
    if (from + bytes != end) host_unmap(pointer_to(from + bytes), end - from - bytes);
    result = pointer_to(from);
    if (book_.add_range(result, bytes)) return nullptr;
    host_unmap(std::exchange(result, nullptr), bytes);
    return no_host_memory;
  }
  [[nodiscard]] const char* unreserve(void* p, std::size_t bytes) noexcept {
    if (const char* const fault = book_.why_not_unreserve(p, bytes)) return fault;
    if (!host_unmap(p, bytes)) return host_memory::system_failed;
    book_.remove_range(p);
    return nullptr;
  }

  [[nodiscard]] const char* map(void* p, std::size_t bytes, std::uint64_t number) noexcept {
    if (const char* const fault = book_.map(p, bytes, number)) return fault;
    host_chunk& memory = book_.find(number)->data;
    const host_pinning pin = memory.bank != nullptr ? memory.bank->pin : memory_->first_bank().pin;
    const char* fault = host_no_addresses;
    if (host_map(p, bytes, memory.kind, memory.file.get()))
      fault = host_lock(p, bytes, memory.kind, pin, memory.locked);
    if (fault == nullptr) return nullptr;
    (void)host_reserve_again(p, bytes);
    book_.unmap(p);
    return fault;
  }
  [[nodiscard]] const char* unmap(void* p, std::size_t bytes) noexcept {
    if (const char* const fault = book_.why_no_mapping(p, bytes)) return fault;
    if (!host_reserve_again(p, bytes)) return host_memory::system_failed;
    book_.unmap(p);
    return nullptr;
  }

  [[nodiscard]] const address_book<host_chunk>& book() const noexcept { return book_; }

 private:
  const host_memory* memory_;
  address_book<host_chunk> book_;
};

#endif

}  // namespace tessera::inline v0_1::detail
