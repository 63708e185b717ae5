// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/provider/capabilities.hpp>
#include <tessera/provider/range_map.hpp>

namespace tessera::inline v0_1::detail {

/// The processes that may import exported memory.
class importer_list {
 public:
  explicit importer_list(provider::importers who) noexcept : who_(who) {}

  /// Lists a process. Returns null on success, else the reason.
  [[nodiscard]] const char* allow(std::int32_t process) noexcept {
    if (who_ == provider::importers::any) return "any process may import the memory";
    if (process <= 0) return "the number of a process is not positive";
    if (may_import(process)) return nullptr;
    if (listed_.size() == max_listed) return "65,535 processes are listed already";
    return listed_.insert(number(process), {}) ? nullptr : no_host_memory;
  }
  [[nodiscard]] bool may_import(std::int32_t process) const noexcept {
    return who_ == provider::importers::any || listed_.find(number(process)) != nullptr;
  }

 private:
  ///   Source:  aclrtMemSetPidToShareableHandle takes at most 65,535 processes
  static constexpr std::size_t max_listed = 65'535;

  struct listed {};
  [[nodiscard]] static std::uint64_t number(std::int32_t process) noexcept {
    return static_cast<std::uint64_t>(process);
  }

  provider::importers who_;
  ordered_map<listed> listed_;
};

/// The ranges of addresses of a provider, its physical chunks, and the chunks that are mapped in ranges, with the rules of
/// virtual memory. A provider asks why_...() before it calls its device: null if the call may be made, else the broken rule. map()
/// also notes the mapping, and unmap() takes it back if the device refuses. A chunk is mapped at one place at a time.
///
/// `Data` is what the provider knows of a chunk. It is destroyed once the chunk has neither a handle nor a mapping.
///   Cost:  logarithmic in the ranges, chunks and mappings
template <typename Data>
class address_book {
 public:
  struct chunk {
    std::size_t bytes;
    std::size_t page_size;  ///< it is mapped at a multiple of this
    Data data;
    std::uint64_t source = 0;  ///< names imported memory; 0 if the chunk was created here
    bool has_handle = true;
    bool is_mapped = false;
  };
  struct mapping {
    std::size_t bytes;
    std::uintptr_t begin;
    std::uint64_t number;  ///< of the chunk
  };

  static constexpr const char* no_chunk = "the handle is unknown or destroyed";

  /// Numbers chunks from the number after `latest`.
  explicit address_book(std::uint64_t latest = 0) noexcept : latest_(latest) {}

  /// Adds a chunk, and sets its number. Returns null on success, else the reason.
  [[nodiscard]] const char* add_chunk(chunk added, std::uint64_t& number) noexcept {
    const std::uint64_t source = added.source;
    if (source != 0 && sources_.find(source) != nullptr)
      return "a handle of this memory was imported already; destroy it first";
    if (source != 0 && !sources_.insert(source, {})) return no_host_memory;
    if (chunks_.insert(latest_ + 1, std::move(added))) {
      number = ++latest_;
      return nullptr;
    }
    if (source != 0) sources_.extract(source);
    return no_host_memory;
  }
  /// The chunk with this number; null if its handle was destroyed.
  [[nodiscard]] chunk* find(std::uint64_t number) const noexcept {
    chunk* const found = chunks_.find(number);
    return found != nullptr && found->has_handle ? found : nullptr;
  }
  /// The chunk of a mapping.
  [[nodiscard]] chunk& chunk_of(const mapping& m) const noexcept { return *chunks_.find(m.number); }
  /// Destroys the handle of a chunk. A mapped chunk stays until it is unmapped. Returns null on success, else the reason.
  [[nodiscard]] const char* destroy(std::uint64_t number) noexcept {
    chunk* const gone = find(number);
    if (gone == nullptr) return no_chunk;
    gone->has_handle = false;
    if (gone->source != 0) sources_.extract(gone->source);
    if (!gone->is_mapped) chunks_.extract(number);
    return nullptr;
  }
  [[nodiscard]] const char* why_not_export(std::uint64_t number) const noexcept {
    const chunk* const exported = find(number);
    if (exported == nullptr) return no_chunk;
    return exported->source != 0 ? "imported memory cannot be exported" : nullptr;
  }
  /// Calls f(chunk) for each chunk that has a handle or a mapping.
  template <typename F>
  void for_each_chunk(F f) const noexcept {
    for (const auto* e = chunks_.from(0); e != nullptr; e = chunks_.after(*e)) f(e->value);
  }

  /// Adds a range; false if host memory ran out.
  [[nodiscard]] bool add_range(const void* p, std::size_t bytes) noexcept {
    return ranges_.insert(p, {bytes});
  }
  [[nodiscard]] const char* why_not_unreserve(const void* p, std::size_t bytes) const noexcept {
    const range* const found = ranges_.find(p);
    if (found == nullptr) return "no range begins here";
    if (found->bytes != bytes) return "the range has another size";
    return mappings_.overlaps(p, bytes) ? "memory is mapped in the range" : nullptr;
  }
  ///   Requires:  why_not_unreserve() is null
  void remove_range(const void* p) noexcept { ranges_.extract(p); }

  /// Maps a chunk. Returns null on success, else the reason.
  [[nodiscard]] const char* map(const void* p, std::size_t bytes, std::uint64_t number) noexcept {
    chunk* const mapped = find(number);
    if (mapped == nullptr) return no_chunk;
    if (mapped->bytes != bytes) return "the memory has another size";
    if (address_of(p) % mapped->page_size != 0) return "the address is no multiple of page_size(kind)";
    if (ranges_.around(p, 0) == nullptr) return "the addresses are not reserved";
    if (ranges_.around(p, bytes) == nullptr) return "the range ends before the memory does";
    if (mappings_.overlaps(p, bytes)) return "memory is mapped here already";
    if (mapped->is_mapped) return "the memory is mapped already";
    if (!mappings_.insert(p, {bytes, address_of(p), number})) return no_host_memory;
    mapped->is_mapped = true;
    return nullptr;
  }
  /// The mapping that begins at an address, or null.
  [[nodiscard]] const mapping* mapping_at(const void* p) const noexcept { return mappings_.find(p); }
  /// Why no mapping of these bytes begins at an address.
  [[nodiscard]] const char* why_no_mapping(const void* p, std::size_t bytes) const noexcept {
    const mapping* const found = mapping_at(p);
    if (found == nullptr) return "no mapping begins here";
    return found->bytes != bytes ? "the mapping has another size" : nullptr;
  }
  ///   Requires:  a mapping begins at `p`
  void unmap(const void* p) noexcept {
    const mapping removed = mappings_.extract(p);
    chunk& freed = chunk_of(removed);
    freed.is_mapped = false;
    if (!freed.has_handle) chunks_.extract(removed.number);
  }

  struct range {
    std::size_t bytes;
  };
  [[nodiscard]] const range_map<range>& ranges() const noexcept { return ranges_; }
  [[nodiscard]] const range_map<mapping>& mappings() const noexcept { return mappings_; }

 private:
  struct imported {};

  std::uint64_t latest_;
  ordered_map<chunk> chunks_;
  ordered_map<imported> sources_;  // of imported chunks with a handle
  range_map<range> ranges_;
  range_map<mapping> mappings_;
};

}  // namespace tessera::inline v0_1::detail
