// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tessera/provider/address_book.hpp>
#include <tessera/provider/host_posix.hpp>
#include <tessera/provider/host_windows.hpp>

/// The segments and the virtual memory of host_pinned, and the user's memory that it locks. The header of the system has the
/// calls. Functions that can fail return null on success. Otherwise they return the broken rule, or a text that names the
/// missing resource and a remedy.

namespace tessera::inline v0_1::detail {

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
