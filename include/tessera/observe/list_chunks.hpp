// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <vector>

#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/shared_chunks.hpp>

namespace tessera::inline v0_1::observe {

/// The physical chunks behind bytes of a live block, by ascending address. If it is false, there are none, and `why` says why.
template <provider::virtual_memory_provider D>
struct chunk_list {
  std::vector<provider::mapped_chunk<D>> chunks{};  ///< empty if there are none
  const char* why = nullptr;                        ///< why there are no chunks, as text; null if there are
  /// Whether there are chunks.
  [[nodiscard]] explicit operator bool() const noexcept { return why == nullptr; }
};

}  // namespace tessera::inline v0_1::observe

namespace tessera::inline v0_1::detail {

inline constexpr const char* no_live_block = "list_chunks: the address lies in no live block";

/// Returns why [at, at + bytes) is no part of a live block; null if it is. Replaces `unlimited` by the bytes up to the end.
[[nodiscard]] inline const char* refuse_part(std::uintptr_t at, std::size_t& bytes,
                                             const block_view& in) noexcept {
  if (in.bytes == 0 || in.is != block_view::state::live) return no_live_block;
  const std::size_t left = in.address + in.bytes - at;
  if (bytes == unlimited) bytes = left;
  if (bytes == 0) return "list_chunks: 0 bytes have no chunks";
  return bytes <= left ? nullptr : "list_chunks: the bytes end outside the live block of the address";
}
/// The memory of a provider, in that of a front end's device, which may count its bytes.
template <typename Physical, typename Counted>
[[nodiscard]] const Physical& memory_of(const Counted& memory) noexcept {
  if constexpr (std::is_same_v<Physical, Counted>) {
    return memory;
  } else {
    return memory_of<Physical>(memory.memory);
  }
}
}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::observe {

/// Lists the physical chunks behind [p, p + bytes), which lie in one live block, for example to register or export a part of it.
/// `p` may be any address of the block. Without `bytes`, lists those behind `p` to the end of the block.
///
/// `p` lies in the first chunk, at the offset `p - chunks[0].address`, and the last byte in the last one. Other blocks may use
/// parts of both. The list is valid until the block is freed or sleeps. export_chunks and imported_range
/// [provider/shared_chunks.hpp] map the chunks in another process.
///
///     using mapping_allocator = tessera::caching_allocator<tessera::recipe::stitched, tessera::provider::simulated_device>;
///     mapping_allocator memory;
///     auto* const p = static_cast<std::byte*>(memory.allocate(20_MiB));
///     const auto list = tessera::observe::list_chunks(memory, p + 5_MiB, 64_KiB);
///     if (!list) std::puts(list.why);
///     for (const auto& c : list.chunks) std::printf("%zu bytes at %#zx\n", c.bytes, std::size_t{c.address});
///     memory.deallocate(p);
///
///   Returns:  no chunks, and why, if no live block has all these bytes, if it sleeps, or if the recipe maps no ranges. The
///             blocks that a plan serves have chunks with any recipe
///   Cost:     linear in the bytes of the chunks, one step for each size of the smallest chunk. If `p` is not the first
///             address of the block, also linear in the ranges and in the blocks of one; for a block that a plan serves,
///             in the plan's places. An allocator with a mutex holds it
template <typename Allocator>
[[nodiscard]] auto list_chunks(Allocator& allocator, const void* p, std::size_t bytes = unlimited) {
  using provider_type = typename Allocator::provider_type;
  const auto begin = reinterpret_cast<std::uintptr_t>(p);
  chunk_list<provider_type> list;
  const auto add = [&list](const auto& c) {
    list.chunks.push_back(
        {c.address, c.bytes, detail::memory_of<typename provider_type::physical>(c.memory)});
  };

  bool is_of_plan = false;
  detail::visit_plan_of(allocator, [&](const auto& plan) {
    if (!plan.contains(p)) return;
    is_of_plan = true;
    list.why = detail::refuse_part(begin, bytes, plan.block_around(p));
    if (list.why == nullptr) plan.for_each_chunk(begin, bytes, add);
  });
  if (is_of_plan) return list;

  list.why = detail::no_live_block;
  allocator.visit_owner(p, [&](auto& in) {
    const auto blocks = detail::introspect(in);
    if constexpr (decltype(blocks)::has_ranges) {
      const detail::block* live = blocks.find_live(p);
      if (live == nullptr) live = blocks.block_at(begin);
      if (live == nullptr || !live->is_live()) return;
      list.why = detail::refuse_part(begin, bytes, detail::view_of(*live));
      if (list.why == nullptr && !blocks.has_memory(*live)) list.why = "list_chunks: the block sleeps";
      if (list.why == nullptr) blocks.for_each_chunk(0, begin, begin + bytes, add);
    } else {
      list.why = "list_chunks: the recipe maps no ranges, so there are no chunks";
    }
  });
  return list;
}

}  // namespace tessera::inline v0_1::observe
