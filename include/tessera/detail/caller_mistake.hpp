// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/core/fatal.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/core/text.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/free_list.hpp>
#include <tessera/detail/handle.hpp>

namespace tessera {

/// What an allocator knows of the block that an address lies in; false, and nothing is added, where there is none.
///   Cost:  linear in the blocks
template <typename Introspection>
bool add_block_at(fixed_text& words, const Introspection& blocks, const void* p) noexcept {
  using state = detail::block::state;
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  const detail::block* found = nullptr;
  const auto look = [&found, at](const detail::block& first, std::size_t) {
    for (const detail::block *b = &first, *end = first.below; b != end; b = b->above) {
      if (at - b->address < b->size) found = b;
    }
  };
  blocks.for_each_segment(look, true);
  if (found == nullptr) return false;
  if (found->is_unmapped())
    return words.add("it lies in a range of addresses, where nothing is mapped"), true;
  const bool is_free = found->is_free();
  const std::size_t inside = at - found->address;
  words.add("it lies ").add(inside).add(inside == 1 ? " byte into a " : " bytes into a ");
  words.add(is_free ? "free" : found->mark.is == state::pending ? "freed, still used" : "live");
  words.add(" block of ").add(is_free ? found->size : found->facts.requested).add(" bytes at ");
  words.add_address(found->address).add(", stream ").add(stream_id(found->home->key()).handle);
  if (!is_free && found->is_by_handle()) words.add(", which was given as a handle");
  if (is_free && inside == 0) words.add(", perhaps freed before");
  return true;
}
inline constexpr const char* in_no_segment = "it lies in no segment of this allocator";

/// Ends the program for an address that lies in none of several allocators' segments.
[[noreturn, gnu::noinline, gnu::cold]] inline void refuse_stranger(const char* call, const void* p) noexcept {
  fixed_text words;
  fatal(words.add(call).add(": not the address of a live block; ").add(in_no_segment).c_str(), p);
}

/// Ends the program for an address that is not a live block's, with what is known of it.
template <typename Introspection>
[[noreturn, gnu::noinline, gnu::cold]] void refuse_address(const Introspection& blocks, const char* call,
                                                           const void* p) noexcept {
  fixed_text words;
  words.add(call).add(": not the address of a live block; ");
  if (!add_block_at(words, blocks, p)) words.add(in_no_segment);
  fatal(words.c_str(), p);
}

/// The same for a handle, of which nothing more is known.
[[noreturn, gnu::noinline, gnu::cold]] inline void refuse_handle(const char* call) noexcept {
  fixed_text words;
  fatal(words.add(call).add(": not the handle of a live block").c_str(), nullptr);
}

/// The same for a live block of which `said` bytes are said to have been requested.
template <typename Introspection>
[[noreturn, gnu::noinline, gnu::cold]] void refuse_size(const Introspection& blocks, const char* call,
                                                        const void* p, std::size_t said) noexcept {
  fixed_text words;
  words.add(call).add(": not the requested size, which is said to be ").add(said).add("; ");
  (void)add_block_at(words, blocks, p);
  fatal(words.c_str(), p);
}

}  // namespace tessera
