// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <tessera/core/error.hpp>
#include <tessera/provider/capabilities.hpp>

/// Shares the memory of ranges between processes, chunk by chunk, over any sharing_provider.

namespace tessera::inline v0_1::detail {

/// Returns why a call for a chunk failed: what the provider says, or else the name of the call.
template <typename D>
[[nodiscard]] refusal why_not_shared(D& device, const char* call, std::size_t chunk) noexcept {
  const refusal of_device = take_refusal(device);
  return of_device ? of_device : refusal::format("%s failed for chunk %zu", call, chunk);
}

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::provider {

/// Physical memory that is mapped in this process, as list_chunks [observe/list_chunks.hpp] finds it.
template <virtual_memory_provider D>
struct mapped_chunk {
  std::uintptr_t address = 0;     ///< where it is mapped
  std::size_t bytes = 0;          ///< of the chunk
  typename D::physical memory{};  ///< the provider's handle of the memory, which stays the owner's
};

/// A chunk for other processes: plain bytes for a pipe or a file.
template <sharing_provider D>
struct exported_chunk {
  std::uint64_t address = 0;     ///< in the exporting process
  std::uint64_t bytes = 0;       ///< of the chunk
  typename D::shareable name{};  ///< the name that import_memory of another process takes
};

/// Chunks for other processes, in the order in which they were given. If it is false, there are none, and `why` says why.
template <sharing_provider D>
struct export_result {
  std::vector<exported_chunk<D>> chunks{};  ///< empty if one of them was refused
  refusal why{};                            ///< empty if there are chunks
  /// Whether there are chunks.
  [[nodiscard]] explicit operator bool() const noexcept { return !why; }
};

/// Exports chunks to one process, or to any if no number is given. The number is process() of that process's provider.
///
/// A chunk that was exported to listed processes cannot be exported to any process later, nor the reverse. Exporting a chunk
/// again needs a provider that has exported_name(). Chunks are exported whole. So also send where the block begins in the
/// first one: at its address minus the chunk's. Names stay valid while the allocator keeps the chunks, also after the block
/// is freed; other blocks may then use these.
///   Returns:   a name for each chunk; or why there is none: the provider refuses one of the chunks, there are no chunks, or
///              host memory ran out. The chunks before the refused one then stay exported
///   Requires:  no chunk is destroyed meanwhile
template <sharing_provider D>
[[nodiscard]] export_result<D> export_chunks(D& device, std::span<const mapped_chunk<D>> chunks,
                                             std::optional<std::int32_t> process = std::nullopt) noexcept {
  std::vector<exported_chunk<D>> names;
  if (chunks.empty()) return {{}, refusal("there are no chunks")};
  if (!detail::try_run([&] { names.reserve(chunks.size()); })) return {{}, refusal("host memory ran out")};
  const auto refused = [&](const char* call) -> export_result<D> {
    return {{}, detail::why_not_shared(device, call, names.size())};
  };
  for (const mapped_chunk<D>& c : chunks) {
    exported_chunk<D> made{c.address, c.bytes, {}};
    bool is_known = false;
    if constexpr (requires { device.exported_name(c.memory, made.name); })
      is_known = device.exported_name(c.memory, made.name);
    const importers who = process ? importers::listed : importers::any;
    if (!is_known && !device.export_memory(c.memory, who, made.name)) return refused("export_memory");
    // Only memory for listed processes takes one more, such as this one, which cannot import its own.
    if (is_known && !process && device.allow(made.name, device.process()))
      return {{}, refusal::format("chunk %zu was exported to listed processes", names.size())};
    if (process && !device.allow(made.name, *process)) return refused("allow");
    names.push_back(made);
  }
  return {std::move(names), {}};
}

/// Consecutive chunks of another process, mapped into one range of this one. The object converts to false if that failed;
/// why() is then the reason. The destructor unmaps the chunks. The exporter keeps the block live until the import; after that,
/// the memory stays until both processes have given it back.
///   Requires:  the provider outlives it
///   Requires:  nothing else imports one of the chunks meanwhile, because a name is imported once at a time
///   Requires:  work on the memory has ended when it is destroyed
template <sharing_provider D>
class imported_range {
 public:
  /// Imports, maps and grants each chunk. Keeps nothing if one of these calls fails.
  imported_range(D& device, std::span<const exported_chunk<D>> chunks) noexcept : device_(device) {
    if (!import_all(chunks)) give_back();
  }
  imported_range(const imported_range&) = delete;
  imported_range& operator=(const imported_range&) = delete;
  ~imported_range() { give_back(); }

  /// Whether all chunks are mapped.
  [[nodiscard]] explicit operator bool() const noexcept { return begin_ != 0; }
  /// Why they are not; empty if they are.
  [[nodiscard]] const char* why() const noexcept { return why_.text(); }
  /// The address of the first chunk; null if the import failed.
  [[nodiscard]] void* begin() const noexcept { return reinterpret_cast<void*>(begin_); }
  /// Bytes of all chunks together; 0 if the import failed.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  [[nodiscard]] bool import_all(std::span<const exported_chunk<D>> chunks) noexcept {
    std::size_t alignment = device_.page_size(page_kind::normal), total = 0;
    for (const exported_chunk<D>& c : chunks) {
      if (c.bytes == 0 || c.bytes > max_request - total || c.address != chunks.front().address + total)
        return fail("the chunks are not consecutive, or too large");
      total += c.bytes;
      // The chunk may consist of larger pages.
      for (const page_kind kind : {page_kind::huge, page_kind::huge_1g}) {
        const std::size_t page = device_.page_size(kind);
        if (page > alignment && c.bytes % page == 0) alignment = page;
      }
    }
    if (total == 0) return fail("there are no chunks");
    if (!detail::try_run([&] { mapped_.reserve(chunks.size()); })) return fail("host memory ran out");
    // Each chunk has the same place in its pages as in the exporter.
    const std::size_t lead = chunks.front().address % alignment;
    reserved_ = align_up(total + lead, device_.page_size(page_kind::normal));
    range_ = device_.reserve(reserved_, alignment);
    if (range_ == nullptr) return refused("reserve");
    begin_ = reinterpret_cast<std::uintptr_t>(range_) + lead;
    for (const exported_chunk<D>& c : chunks) {
      typename D::physical memory{};
      if (!device_.import_memory(c.name, memory)) return refused("import_memory");
      void* const at = reinterpret_cast<void*>(begin_ + bytes_);
      const bool is_mapped = device_.map(at, c.bytes, memory);
      if (!is_mapped) (void)refused("map");
      (void)device_.destroy(memory);  // mapped memory stays
      if (!is_mapped) return false;
      mapped_.push_back(c.bytes);
      bytes_ += c.bytes;
      if (!D::map_grants_access && !device_.grant(at, c.bytes)) return refused("grant");
    }
    return true;
  }
  bool fail(const char* why) noexcept {
    why_ = refusal::format("%s", why);
    return false;
  }
  bool refused(const char* call) noexcept {
    why_ = detail::why_not_shared(device_, call, mapped_.size());
    return false;
  }
  void give_back() noexcept {
    if (range_ == nullptr) return;
    std::uintptr_t at = begin_;
    for (const std::size_t bytes : mapped_) {
      (void)device_.unmap(reinterpret_cast<void*>(at), bytes);
      at += bytes;
    }
    (void)device_.unreserve(range_, reserved_);
    range_ = nullptr;
    begin_ = bytes_ = 0;
  }

  D& device_;
  void* range_ = nullptr;
  std::size_t reserved_ = 0;
  std::uintptr_t begin_ = 0;
  std::size_t bytes_ = 0;
  std::vector<std::size_t> mapped_;
  refusal why_{};
};

}  // namespace tessera::inline v0_1::provider
