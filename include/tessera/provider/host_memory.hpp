// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tessera/provider/numa_nodes.hpp>
#include <tessera/provider/range_map.hpp>

/// The Linux calls of host_pinned. Functions that can fail return null on success. Otherwise they return the
/// broken rule, or a text that names the missing resource and a remedy.

namespace tessera::inline v0_1::detail {

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

/// Bytes available in normal pages, of a node unless it is negative.
[[nodiscard]] inline std::size_t host_available(int node) noexcept {
  const std::size_t of_machine = host_available();
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
struct host_range {
  std::size_t bytes;
  std::size_t mappings = 0;  ///< the number of mappings in the range
};
struct host_mapping {
  std::size_t bytes;
  std::uint64_t number;  ///< of its physical memory
  bool locked = false;
};
/// The user's memory, in whole pages.
struct host_registration {
  std::size_t bytes;
  bool locked = false;
};

/// The memory of a host_pinned and its other banks. Segments are mappings; physical memory is stored in memory files. Functions
/// that can fail return null on success, else the reason.
class host_memory {
 public:
  struct physical_memory {
    host_descriptor file;  ///< empty after destroy()
    std::size_t bytes;
    page_kind kind;
    host_bank* bank;  ///< null if it is imported
    bool mapped = false;

    [[nodiscard]] bool imported() const noexcept { return bank == nullptr; }
  };

  /// Physical memory is numbered from `first`.
  explicit host_memory(std::uint64_t first) noexcept : next_(first) {}
  host_memory& operator=(host_memory&&) = delete;
  ~host_memory() {
    segments_.for_each([](void* p, const host_segment& s) { ::munmap(p, s.bytes); });
  }

  /// Adds a bank, which lives as long as this.
  [[nodiscard]] host_bank* add_bank(host_bank added) {
    banks_.push_back(std::make_unique<host_bank>(std::move(added)));
    return banks_.back().get();
  }

  [[nodiscard]] const char* acquire(host_bank& bank, std::size_t bytes, page_kind kind,
                                    void*& result) noexcept {
    if (!bank.node_fault.empty()) return bank.node_fault.c_str();
    if (bytes == 0 || bytes > max_request) return bad_size;
    const std::size_t whole = align_up(bytes, host_page_size(kind));
    if (whole > bank.capacity - bank.used()) return at_capacity;
    if (kind.size == page_kind::page_size::normal && bank.pin != host_pinning::never &&
        whole > host_available(bank.node))
      return host_lacks_pages(kind);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | static_cast<int>(host_page_flags(kind, MAP_HUGETLB));
    void* const p = ::mmap(nullptr, whole, host_protection(kind), flags, -1, 0);
    if (p == MAP_FAILED) return host_lacks_pages(kind);
    host_segment segment{whole, bytes, &bank};
    const char* fault = bind_to_numa_node(p, whole, bank.node);
    if (fault == nullptr) fault = host_lock(p, whole, kind, bank.pin, segment.locked);
    if (fault == nullptr && !segments_.insert(p, segment)) fault = no_host_memory;
    if (fault != nullptr) {
      ::munmap(p, whole);
      return fault;
    }
    bank.acquired += whole;
    result = p;
    return nullptr;
  }

  [[nodiscard]] const char* release(void* p, std::size_t bytes) noexcept {
    const host_segment* const found = segments_.find(p);
    if (found == nullptr || found->requested != bytes) return "not a segment of this provider";
    if (::munmap(p, found->bytes) != 0) return system_failed;
    found->bank->acquired -= found->bytes;
    segments_.extract(p);
    return nullptr;
  }

  [[nodiscard]] const char* create(host_bank& bank, std::size_t bytes, page_kind kind,
                                   std::uint64_t& number) noexcept {
    if (!bank.node_fault.empty()) return bank.node_fault.c_str();
    if (bytes == 0 || bytes > max_request) return bad_size;
    if (bytes % host_page_size(kind) != 0) return "the size is no multiple of page_size(kind)";
    if (bytes > bank.capacity - bank.used()) return at_capacity;
    host_descriptor file;
    if (const char* const fault = host_make_file(bytes, kind, file, bank.node)) return fault;
    return add({std::move(file), bytes, kind, &bank}, number);
  }

  /// Adopts a checked memory file of another process.
  [[nodiscard]] const char* adopt(host_descriptor file, std::size_t bytes, page_kind kind,
                                  std::uint64_t& number) noexcept {
    return add({std::move(file), bytes, kind, nullptr}, number);
  }

  /// The physical memory with this number; null if it was destroyed.
  [[nodiscard]] physical_memory* find(std::uint64_t number) noexcept {
    physical_memory* const found = physical_.find(number);
    return found != nullptr && found->file ? found : nullptr;
  }

  /// Destroys physical memory. Mapped memory stays until it is unmapped.
  [[nodiscard]] const char* destroy(std::uint64_t number) noexcept {
    physical_memory* const memory = find(number);
    if (memory == nullptr) return no_memory;
    memory->file = {};
    if (!memory->mapped) erase(number);
    return nullptr;
  }

  ///   Requires:  the memory is mapped, or was not destroyed
  void set_mapped(std::uint64_t number, bool mapped) noexcept {
    physical_memory& memory = *physical_.find(number);
    memory.mapped = mapped;
    if (!mapped && !memory.file) erase(number);
  }

  [[nodiscard]] const range_map<host_segment>& segments() const noexcept { return segments_; }
  /// How memory is locked when it is mapped: as its bank says; imported memory as the first.
  [[nodiscard]] host_pinning pin_of(const physical_memory& memory) const noexcept {
    return memory.imported() ? banks_[0]->pin : memory.bank->pin;
  }
  [[nodiscard]] std::size_t created() const noexcept { return created_; }
  [[nodiscard]] std::size_t imported() const noexcept { return imported_; }

  static constexpr const char* no_memory = "the handle is unknown or destroyed";
  static constexpr const char* system_failed = "the system call failed";

 private:
  static constexpr const char* bad_size = "the size is 0 or too large";
  static constexpr const char* at_capacity = "the capacity of this provider is reached";

  [[nodiscard]] const char* add(physical_memory made, std::uint64_t& number) noexcept {
    const std::size_t bytes = made.bytes;
    host_bank* const bank = made.bank;
    if (!physical_.insert(next_, std::move(made))) return no_host_memory;
    (bank == nullptr ? imported_ : created_) += bytes;
    if (bank != nullptr) bank->created += bytes;
    number = next_++;
    return nullptr;
  }
  void erase(std::uint64_t number) noexcept {
    const physical_memory erased = physical_.extract(number);
    (erased.imported() ? imported_ : created_) -= erased.bytes;
    if (!erased.imported()) erased.bank->created -= erased.bytes;
  }

  std::vector<std::unique_ptr<host_bank>> banks_;
  std::uint64_t next_;
  range_map<host_segment> segments_;
  ordered_map<physical_memory> physical_;
  std::size_t created_ = 0, imported_ = 0;
};

/// The address ranges of one host_pinned and its mappings. Functions that can fail return null on success,
/// else the reason.
class host_ranges {
 public:
  /// Maps physical memory of `memory`.
  ///   Requires:  `memory` outlives it
  explicit host_ranges(host_memory& memory) noexcept : memory_(&memory) {}
  host_ranges& operator=(host_ranges&&) = delete;
  ~host_ranges() {
    ranges_.for_each([](void* p, const host_range& r) { ::munmap(p, r.bytes); });
  }

  [[nodiscard]] const char* reserve(std::size_t bytes, std::size_t to, void*& result) noexcept {
    if (bytes == 0 || bytes > max_request || bytes % host_page() != 0)
      return "the size is 0, too large, or no multiple of the page";
    if (!std::has_single_bit(to) || to > max_request) return "the alignment is no power of two, or too large";
    const std::size_t slack = to > host_page() ? to - host_page() : 0;
    void* const p = ::mmap(nullptr, bytes + slack, PROT_NONE, reserved_only, -1, 0);
    if (p == MAP_FAILED) return no_addresses;
    const std::uintptr_t begin = address_of(p), at = (begin + slack) & ~(std::uintptr_t{to} - 1);
    const std::uintptr_t from = at < begin ? begin : at, end = begin + bytes + slack;
    if (from != begin) ::munmap(p, from - begin);
    if (from + bytes != end) ::munmap(pointer_to(from + bytes), end - from - bytes);
    if (!ranges_.insert(pointer_to(from), {bytes})) {
      ::munmap(pointer_to(from), bytes);
      return no_host_memory;
    }
    result = pointer_to(from);
    return nullptr;
  }

  [[nodiscard]] const char* unreserve(void* p, std::size_t bytes) noexcept {
    const host_range* const found = ranges_.find(p);
    if (found == nullptr || found->bytes != bytes) return "not a whole range of this provider";
    if (found->mappings != 0) return "memory is mapped in the range";
    if (::munmap(p, bytes) != 0) return host_memory::system_failed;
    ranges_.extract(p);
    return nullptr;
  }

  [[nodiscard]] const char* map(void* p, std::size_t bytes, std::uint64_t number) noexcept {
    const host_memory::physical_memory* const memory = memory_->find(number);
    if (memory == nullptr) return host_memory::no_memory;
    if (memory->mapped) return "the memory is mapped already";
    if (memory->bytes != bytes) return "the memory has another size";
    if (address_of(p) % host_page_size(memory->kind) != 0)
      return "the address is no multiple of page_size(kind)";
    host_range* const range = ranges_.around(p, bytes);
    if (range == nullptr) return "not inside one range of this provider";
    if (mappings_.overlaps(p, bytes)) return "memory is mapped here already";

    host_mapping mapping{bytes, number};
    const char* fault = no_addresses;
    if (::mmap(p, bytes, host_protection(memory->kind), MAP_SHARED | MAP_FIXED | MAP_POPULATE,
               memory->file.get(), 0) != MAP_FAILED)
      fault = host_lock(p, bytes, memory->kind, memory_->pin_of(*memory), mapping.locked);
    if (fault == nullptr && !mappings_.insert(p, mapping)) fault = no_host_memory;
    if (fault != nullptr) {
      (void)reserve_again(p, bytes);
      return fault;
    }
    ++range->mappings;
    memory_->set_mapped(number, true);
    return nullptr;
  }

  [[nodiscard]] const char* unmap(void* p, std::size_t bytes) noexcept {
    if (const char* const fault = grant(p, bytes)) return fault;
    if (!reserve_again(p, bytes)) return host_memory::system_failed;
    --ranges_.around(p, bytes)->mappings;
    memory_->set_mapped(mappings_.extract(p).number, false);
    return nullptr;
  }

  /// Checks the arguments only, because mapped memory can be used at once.
  [[nodiscard]] const char* grant(void* p, std::size_t bytes) const noexcept {
    const host_mapping* const found = mappings_.find(p);
    return found != nullptr && found->bytes == bytes ? nullptr : "not a whole mapping";
  }

  [[nodiscard]] const range_map<host_range>& ranges() const noexcept { return ranges_; }
  [[nodiscard]] const range_map<host_mapping>& mappings() const noexcept { return mappings_; }

 private:
  static constexpr int reserved_only = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  static constexpr const char* no_addresses =
      "the process has no addresses left, or too many mappings; the system administrator raises "
      "/proc/sys/vm/max_map_count";

  /// Reserves the addresses again in one step, so that no other thread can take them.
  [[nodiscard]] static bool reserve_again(void* p, std::size_t bytes) noexcept {
    return ::mmap(p, bytes, PROT_NONE, reserved_only | MAP_FIXED, -1, 0) != MAP_FAILED;
  }

  host_memory* memory_;
  range_map<host_range> ranges_;
  range_map<host_mapping> mappings_;
};

/// The user's memory that one host_pinned has locked, in whole pages. Functions that can fail return null on
/// success, else the reason.
class host_registered {
 public:
  host_registered& operator=(host_registered&&) = delete;
  ~host_registered() { memory_.for_each(unlock); }

  [[nodiscard]] const char* add(void* p, std::size_t bytes, host_pinning pin) noexcept {
    if (p == nullptr || address_of(p) % host_page() != 0) return "the address is no multiple of the page";
    if (bytes == 0 || bytes > max_request) return "the size is 0 or too large";
    host_registration memory{align_up(bytes, host_page())};
    if (memory_.overlaps(p, memory.bytes)) return "a part is registered already";
    if (::msync(p, memory.bytes, MS_ASYNC) != 0) return "a part is not memory of this process";
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
    if (e.locked) (void)::munlock(p, e.bytes);
  }

  range_map<host_registration> memory_;
};

}  // namespace tessera::inline v0_1::detail
