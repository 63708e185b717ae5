// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/provider/shared_chunks.hpp>

namespace tessera::observe {

/// Lists the physical chunks behind the live block that begins at an address, by ascending address. The block begins inside
/// the first chunk. Other blocks may use parts of the chunks.
///
/// The list is valid until the block is freed or sleeps. export_chunks and imported_range [provider/shared_chunks.hpp] map the
/// chunks in another process.
///   Returns:  nothing if no live block begins there, if it sleeps, if a plan serves it, or if the recipe maps no ranges
///   Cost:     linear in the bytes of the chunks, by units of the smallest one; an allocator with a mutex holds it
template <typename Allocator>
[[nodiscard]] auto list_chunks(Allocator& allocator, const void* p) {
  using provider_type = typename Allocator::provider_type;
  std::vector<provider::mapped_chunk<provider_type>> list;
  allocator.visit_owner(p, [&list, p](auto& in) {
    const auto blocks = detail::introspect(in);
    if constexpr (decltype(blocks)::has_ranges) {
      const detail::block* const live = blocks.find_live(p);
      if (live == nullptr || !blocks.has_memory(*live)) return;
      auto& ranges = detail::core_access::backend(in).ranges();
      const std::size_t unit = ranges.alignment();
      std::uintptr_t at = live->address / unit * unit;
      while (ranges.end_of_chunk(at) == at) at -= unit;  // memory of a live block is mapped
      while (at < live->end()) {
        const auto* const c = ranges.chunks().first_from(at, at + 1, unit);
        if (c == nullptr) return list.clear();
        list.push_back({c->address, c->bytes, c->memory});
        at += c->bytes;
      }
    }
  });
  return list;
}

}  // namespace tessera::observe
