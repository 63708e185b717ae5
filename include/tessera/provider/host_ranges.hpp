// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <utility>

#include <tessera/provider/host_memory.hpp>
#include <tessera/provider/range_map.hpp>

#if !defined(_WIN32)

/// The virtual memory of host_pinned. Functions that can fail return null on success, else the broken rule, or a text that
/// names the missing resource and a remedy.

namespace tessera::inline v0_1::detail {

struct host_range {
  std::size_t bytes;
  std::size_t mappings = 0;  ///< the number of mappings in the range
};
struct host_mapping {
  std::size_t bytes;
  std::uint64_t number;  ///< of its physical memory
  bool locked = false;
};

/// The physical memory of a host_pinned and its other banks, in memory files.
class host_physical {
 public:
  struct physical_memory {
    host_descriptor file;  ///< empty after destroy()
    std::size_t bytes;
    page_kind kind;
    host_bank* bank;           ///< null if it is imported
    std::uint64_t source = 0;  ///< the exporter's number of imported memory
    bool mapped = false;

    [[nodiscard]] bool imported() const noexcept { return bank == nullptr; }
  };

  /// Numbers physical memory from `first`.
  ///   Requires:  `memory` outlives it
  host_physical(const host_memory& memory, std::uint64_t first) noexcept : memory_(&memory), next_(first) {}
  host_physical& operator=(host_physical&&) = delete;

  [[nodiscard]] const char* create(host_bank& bank, std::size_t bytes, page_kind kind,
                                   std::uint64_t& number) noexcept {
    if (!bank.node_fault.empty()) return bank.node_fault.c_str();
    if (bytes == 0 || bytes > max_request) return host_memory::bad_size;
    if (bytes % host_page_size(kind) != 0) return "the size is no multiple of page_size(kind)";
    if (bytes > bank.capacity - bank.used()) return host_memory::at_capacity;
    host_descriptor file;
    if (const char* const fault = host_make_file(bytes, kind, file, bank.node)) return fault;
    return add({std::move(file), bytes, kind, &bank}, number);
  }

  /// Adopts a checked memory file of another process, which has it under the number `source`.
  [[nodiscard]] const char* adopt(host_descriptor file, std::size_t bytes, page_kind kind,
                                  std::uint64_t source, std::uint64_t& number) noexcept {
    if (sources_.find(source) != nullptr) return imported_already;
    if (!sources_.insert(source, {})) return no_host_memory;
    const char* const fault = add({std::move(file), bytes, kind, nullptr, source}, number);
    if (fault != nullptr) sources_.extract(source);
    return fault;
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
    if (memory->imported()) sources_.extract(memory->source);
    if (!memory->mapped) erase(number);
    return nullptr;
  }

  ///   Requires:  the memory is mapped, or was not destroyed
  void set_mapped(std::uint64_t number, bool mapped) noexcept {
    physical_memory& memory = *physical_.find(number);
    memory.mapped = mapped;
    if (!mapped && !memory.file) erase(number);
  }

  /// How memory is locked when it is mapped: as its bank says; imported memory as the first.
  [[nodiscard]] host_pinning pin_of(const physical_memory& memory) const noexcept {
    return memory.imported() ? memory_->first_bank().pin : memory.bank->pin;
  }
  [[nodiscard]] std::size_t created() const noexcept { return created_; }
  [[nodiscard]] std::size_t imported() const noexcept { return imported_; }

  static constexpr const char* no_memory = "the handle is unknown or destroyed";

 private:
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

  const host_memory* memory_;
  struct imported_source {};
  std::uint64_t next_;
  ordered_map<physical_memory> physical_;
  ordered_map<imported_source> sources_;  // of imported memory with a handle
  std::size_t created_ = 0, imported_ = 0;
};

/// The address ranges of one host_pinned and its mappings.
class host_ranges {
 public:
  /// Maps physical memory of `memory`.
  ///   Requires:  `memory` outlives it
  explicit host_ranges(host_physical& memory) noexcept : memory_(&memory) {}
  host_ranges& operator=(host_ranges&&) = delete;
  ~host_ranges() {
    ranges_.for_each([](void* p, const host_range& r) { host_unmap(p, r.bytes); });
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
    if (!ranges_.insert(pointer_to(from), {bytes})) {
      host_unmap(pointer_to(from), bytes);
      return no_host_memory;
    }
    result = pointer_to(from);
    return nullptr;
  }

  [[nodiscard]] const char* unreserve(void* p, std::size_t bytes) noexcept {
    const host_range* const found = ranges_.find(p);
    if (found == nullptr || found->bytes != bytes) return "not a whole range of this provider";
    if (found->mappings != 0) return "memory is mapped in the range";
    if (!host_unmap(p, bytes)) return host_memory::system_failed;
    ranges_.extract(p);
    return nullptr;
  }

  [[nodiscard]] const char* map(void* p, std::size_t bytes, std::uint64_t number) noexcept {
    const host_physical::physical_memory* const memory = memory_->find(number);
    if (memory == nullptr) return host_physical::no_memory;
    if (memory->mapped) return "the memory is mapped already";
    if (memory->bytes != bytes) return "the memory has another size";
    if (address_of(p) % host_page_size(memory->kind) != 0)
      return "the address is no multiple of page_size(kind)";
    host_range* const range = ranges_.around(p, bytes);
    if (range == nullptr) return "not inside one range of this provider";
    if (mappings_.overlaps(p, bytes)) return "memory is mapped here already";

    host_mapping mapping{bytes, number};
    const char* fault = host_no_addresses;
    if (host_map(p, bytes, memory->kind, memory->file.get()))
      fault = host_lock(p, bytes, memory->kind, memory_->pin_of(*memory), mapping.locked);
    if (fault == nullptr && !mappings_.insert(p, mapping)) fault = no_host_memory;
    if (fault != nullptr) {
      (void)host_reserve_again(p, bytes);
      return fault;
    }
    ++range->mappings;
    memory_->set_mapped(number, true);
    return nullptr;
  }

  [[nodiscard]] const char* unmap(void* p, std::size_t bytes) noexcept {
    if (const char* const fault = grant(p, bytes)) return fault;
    if (!host_reserve_again(p, bytes)) return host_memory::system_failed;
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
  host_physical* memory_;
  range_map<host_range> ranges_;
  range_map<host_mapping> mappings_;
};

}  // namespace tessera::inline v0_1::detail
#endif
