// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/mman.h>

#include <tessera/core/bytes.hpp>
#include <tessera/provider/host_extents.hpp>
#include <tessera/provider/host_memory.hpp>
#include <tessera/provider/host_system.hpp>

namespace tessera {

/// Addresses that one host_pinned has reserved, and what is mapped there. Functions that can fail return null or what
/// hinders them.
class host_ranges {
 public:
  /// Maps pieces of `memory`, which outlives it.
  explicit host_ranges(host_memory& memory) noexcept : memory_(&memory) {}
  host_ranges(const host_ranges&) = delete;
  host_ranges& operator=(const host_ranges&) = delete;
  ~host_ranges() {
    ranges_.each([](void* p, const host_extents::extent& r) { ::munmap(p, r.bytes); });
  }

  [[nodiscard]] const char* reserve(std::size_t bytes, std::size_t to, void*& given) noexcept {
    if (bytes == 0 || bytes > max_request || bytes % host_page() != 0)
      return "a range is a multiple of the page long";
    if (!is_power_of_two(to) || to > max_request) return "the alignment is a power of two";
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
    if (host_address(p) % host_step(piece->kind) != 0) return "memory is mapped at a multiple of step(kind)";
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

  /// What is mapped can be used at once.
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

  /// Reserves the addresses as before, in one step, so that nobody else can take them.
  [[nodiscard]] static bool take_away(void* p, std::size_t bytes) noexcept {
    return ::mmap(p, bytes, PROT_NONE, nothing | MAP_FIXED, -1, 0) != MAP_FAILED;
  }

  host_memory* memory_;
  host_extents ranges_;    // each with how many mappings are in it
  host_extents mappings_;  // each with the number of its piece
};

}  // namespace tessera
