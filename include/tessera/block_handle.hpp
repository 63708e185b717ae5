// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/core/bytes.hpp>
#include <tessera/detail/blocks/block.hpp>

namespace tessera::inline v0_1 {

/// Identifies a live block by its descriptor, so that a free or a record_stream looks nothing up. Choose it
/// if the caller can keep a handle beside each address. A handle is empty by default and after a failed
/// allocation.
///
/// Free such a block only by its handle. Two mistakes are not detected: a handle of another allocator, and a
/// stale handle whose descriptor now belongs to another handle's block.
///
///     const tessera::block_handle block = allocator.allocate_by_handle(5_MiB);
///     void* const context = block.to_pointer();  // for a caller in C, who keeps it and gives it back
///     allocator.deallocate(tessera::block_handle::from_pointer(context));
///
///   Cost:  as a pointer; an allocation and its free save the look-up of the address
class block_handle {
 public:
  block_handle() = default;
  /// Made by allocate_by_handle().
  explicit block_handle(detail::block* described) noexcept : block_(described) {}

  /// Returns the address, aligned to min_alignment.
  [[nodiscard]] void* data() const noexcept {
    return block_ != nullptr ? reinterpret_cast<void*>(block_->address) : nullptr;
  }
  /// Returns a pointer from which from_pointer makes the handle again; null for an empty handle. C code can
  /// carry it, but must not dereference it.
  [[nodiscard]] void* to_pointer() const noexcept {
    return block_ != nullptr ? reinterpret_cast<void*>(number(block_) + mark) : nullptr;
  }
  /// Returns the handle of a pointer; an empty handle for null.
  ///   Requires:  a result of to_pointer(); otherwise, for example for the address of a block, the program
  ///              aborts
  [[nodiscard]] static block_handle from_pointer(void* p) noexcept {
    if (p == nullptr) return {};
    if (number(p) % alignof(detail::block) != mark)
      detail::fatal("block_handle::from_pointer: not a pointer that to_pointer gave", p);
    return block_handle(reinterpret_cast<detail::block*>(number(p) - mark));
  }
  /// Whether it is the handle of a block; false if the request failed.
  [[nodiscard]] explicit operator bool() const noexcept { return block_ != nullptr; }
  /// The record of the block, for the allocator. Its type may change with any version.
  [[nodiscard]] detail::block* block() const noexcept { return block_; }
  bool operator==(const block_handle&) const = default;

 private:
  /// Added to a descriptor's address: then no aligned address, such as a block's, passes for a handle.
  static constexpr std::uintptr_t mark = 1;
  static_assert(alignof(detail::block) > mark);
  [[nodiscard]] static std::uintptr_t number(const void* p) noexcept {
    return reinterpret_cast<std::uintptr_t>(p);
  }

  detail::block* block_ = nullptr;
};

}  // namespace tessera::inline v0_1
