// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/core/stream.hpp>
#include <tessera/core/text.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>

/// Messages for calls with a wrong address, handle or size.

namespace tessera::detail {

inline constexpr const char* in_no_segment = "it lies in no segment of this allocator";

/// Describes the block that an address lies in. Returns false, and adds nothing, if there is none.
///   Cost:  linear in the blocks
template <typename Blocks>
bool add_block_at(fixed_text& text, const Blocks& blocks, const void* p) noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  const block* found = nullptr;
  const auto look = [&found, address](const block& b) {
    if (address - b.address < b.size) found = &b;
  };
  blocks.for_each_block(look, true);
  if (found == nullptr) return false;
  if (found->is_unmapped()) {
    text.add("it lies in a range of addresses, where nothing is mapped");
    return true;
  }
  const bool is_free = found->is_free();
  const std::size_t inside = address - found->address;
  text.add("it lies ").add(inside).add(inside == 1 ? " byte into a " : " bytes into a ");
  text.add(is_free ? "free" : found->status.state == block::state::pending ? "freed, still used" : "live");
  text.add(" block of ").add(is_free ? found->size : found->request.bytes).add(" bytes at ");
  text.add_address(found->address).add(", stream ").add(stream_id(found->list->key()).handle);
  if (!is_free && found->is_by_handle()) text.add(", which was given as a handle");
  if (is_free && inside == 0) text.add(", perhaps freed before");
  return true;
}

/// Aborts if an address is in no segment of several allocators.
[[noreturn, gnu::noinline, gnu::cold]] inline void refuse_stranger(const char* call, const void* p) noexcept {
  fixed_text text;
  fatal(text.add(call).add(": not the address of a live block; ").add(in_no_segment).c_str(), p);
}

/// Aborts if no live block begins at an address.
template <typename Blocks>
[[noreturn, gnu::noinline, gnu::cold]] void refuse_address(const Blocks& blocks, const char* call,
                                                           const void* p) noexcept {
  fixed_text text;
  text.add(call).add(": ");
  blocks.for_each_block([&](const block& b) {
    if (b.is_by_handle() && b.address == reinterpret_cast<std::uintptr_t>(p))
      fatal(text.add("this block was allocated by handle; pass its handle").c_str(), p);
  });
  text.add("not the address of a live block; ");
  if (!add_block_at(text, blocks, p)) text.add(in_no_segment);
  fatal(text.c_str(), p);
}

/// Aborts if an extension forbids the use of a live block, and says why.
[[noreturn, gnu::noinline, gnu::cold]] inline void refuse_use(const char* call, const char* why,
                                                              const void* p) noexcept {
  fixed_text text;
  fatal(text.add(call).add(": ").add(why).c_str(), p);
}

/// Aborts if a handle names no live block.
[[noreturn, gnu::noinline, gnu::cold]] inline void refuse_handle(const char* call) noexcept {
  fixed_text text;
  fatal(text.add(call).add(": not the handle of a live block").c_str(), nullptr);
}

/// Aborts if the caller gives a wrong requested size for a live block.
template <typename Blocks>
[[noreturn, gnu::noinline, gnu::cold]] void refuse_size(const Blocks& blocks, const char* call, const void* p,
                                                        std::size_t requested, std::size_t passed) noexcept {
  fixed_text text;
  text.add(call).add(": not the requested size: ").add(passed).add(" bytes were passed, ");
  text.add(requested).add(" were requested; ");
  (void)add_block_at(text, blocks, p);
  fatal(text.c_str(), p);
}

}  // namespace tessera::detail
