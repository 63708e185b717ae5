// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <utility>

#include <sys/mman.h>

#include <tessera/provider/host_system.hpp>
#include <tessera/provider/range_map.hpp>

namespace tessera::detail {

struct host_segment {
  std::size_t bytes;      ///< in whole pages
  std::size_t requested;  ///< bytes of the request
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

/// The memory of one host_pinned. Segments are mappings; physical memory is stored in memory files. Functions
/// that can fail return null on success, else the reason.
class host_memory {
 public:
  struct physical_memory {
    host_descriptor file;  ///< empty after destroy()
    std::size_t bytes;
    page_kind kind;
    bool imported;
    bool mapped = false;
  };

  /// Physical memory is numbered from `first`.
  host_memory(std::size_t capacity, host_pinning pin, std::uint64_t first) noexcept
      : capacity_(capacity), pin_(pin), next_(first) {}
  host_memory& operator=(host_memory&&) = delete;
  ~host_memory() {
    segments_.for_each([](void* p, const host_segment& s) { ::munmap(p, s.bytes); });
  }

  [[nodiscard]] const char* acquire(std::size_t bytes, page_kind kind, void*& result) noexcept {
    if (bytes == 0 || bytes > max_request) return bad_size;
    const std::size_t whole = align_up(bytes, host_page_size(kind));
    if (whole > capacity_ - used()) return at_capacity;
    if (kind.size == page_kind::page_size::normal && pin_ != host_pinning::never && whole > host_available())
      return host_lacks_pages(kind);
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | static_cast<int>(host_page_flags(kind, MAP_HUGETLB));
    void* const p = ::mmap(nullptr, whole, host_protection(kind), flags, -1, 0);
    if (p == MAP_FAILED) return host_lacks_pages(kind);
    host_segment segment{whole, bytes};
    const char* fault = host_lock(p, whole, kind, pin_, segment.locked);
    if (fault == nullptr && !segments_.insert(p, segment)) fault = no_host_memory;
    if (fault != nullptr) {
      ::munmap(p, whole);
      return fault;
    }
    result = p;
    return nullptr;
  }

  [[nodiscard]] const char* release(void* p, std::size_t bytes) noexcept {
    const host_segment* const found = segments_.find(p);
    if (found == nullptr || found->requested != bytes) return "not a segment of this provider";
    if (::munmap(p, found->bytes) != 0) return system_failed;
    segments_.extract(p);
    return nullptr;
  }

  [[nodiscard]] const char* create(std::size_t bytes, page_kind kind, std::uint64_t& number) noexcept {
    if (bytes == 0 || bytes > max_request) return bad_size;
    if (bytes % host_page_size(kind) != 0) return "the size is no multiple of page_size(kind)";
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
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] host_pinning pin() const noexcept { return pin_; }
  [[nodiscard]] std::size_t used() const noexcept { return segments_.bytes() + created_; }
  [[nodiscard]] std::size_t created() const noexcept { return created_; }
  [[nodiscard]] std::size_t imported() const noexcept { return imported_; }

  static constexpr const char* no_memory = "the handle is unknown or destroyed";
  static constexpr const char* system_failed = "the system call failed";

 private:
  static constexpr const char* bad_size = "the size is 0 or too large";
  static constexpr const char* at_capacity = "the capacity of this provider is reached";

  [[nodiscard]] const char* add(physical_memory made, std::uint64_t& number) noexcept {
    const std::size_t bytes = made.bytes;
    std::size_t& counted = made.imported ? imported_ : created_;
    if (!physical_.insert(next_, std::move(made))) return no_host_memory;
    counted += bytes;
    number = next_++;
    return nullptr;
  }
  void erase(std::uint64_t number) noexcept {
    const physical_memory erased = physical_.extract(number);
    (erased.imported ? imported_ : created_) -= erased.bytes;
  }

  std::size_t capacity_;
  host_pinning pin_;
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
      fault = host_lock(p, bytes, memory->kind, memory_->pin(), mapping.locked);
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

}  // namespace tessera::detail
