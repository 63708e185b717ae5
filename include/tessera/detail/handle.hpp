// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <tessera/core/fatal.hpp>
#include <tessera/detail/block.hpp>

namespace tessera {

/// Names a live block by its description, so that freeing it or recording a stream looks nothing up. Choose it where the
/// caller can keep a handle beside each address. Empty where the allocation failed, and where default.
///
/// The block is given back by its handle only: its address is not known to the allocator. As nothing is looked up, some
/// mistakes go unnoticed that would be found with an address: a handle that another allocator gave, and one that was given
/// back, once its description is that of another handle's block.
///
///     const tessera::handle block = pool.allocate_by_handle(5_MiB);
///     void* const context = block.to_pointer();  // for a caller in C, who keeps it and gives it back
///     pool.deallocate(tessera::handle::from_pointer(context));
///
///   Cost:  that of a pointer; a pair of calls saves the look-up of the address
class handle {
 public:
  handle() = default;
  explicit handle(detail::block* described) noexcept : block_(described) {}

  /// The address, aligned to min_alignment.
  [[nodiscard]] void* data() const noexcept {
    return block_ != nullptr ? reinterpret_cast<void*>(block_->address) : nullptr;
  }
  /// A pointer that stands for it, in which C can carry it; null of an empty one. It points to nothing that may be used.
  [[nodiscard]] void* to_pointer() const noexcept {
    return block_ != nullptr ? reinterpret_cast<void*>(number(block_) + mark) : nullptr;
  }
  /// The handle for which a pointer stands; an empty one of null.
  ///   Requires:  a pointer that to_pointer() gave; else the program ends, as of the address of a block
  [[nodiscard]] static handle from_pointer(void* p) noexcept {
    if (p == nullptr) return {};
    if (number(p) % alignof(detail::block) != mark)
      fatal("handle::from_pointer: not a pointer that to_pointer gave", p);
    return handle(reinterpret_cast<detail::block*>(number(p) - mark));
  }
  [[nodiscard]] explicit operator bool() const noexcept { return block_ != nullptr; }
  [[nodiscard]] detail::block* block() const noexcept { return block_; }
  bool operator==(const handle&) const = default;

 private:
  /// Added to a description's address, so that no address of a block, nor of anything aligned, passes for a handle.
  static constexpr std::uintptr_t mark = 1;
  static_assert(alignof(detail::block) > mark);
  [[nodiscard]] static std::uintptr_t number(const void* p) noexcept {
    return reinterpret_cast<std::uintptr_t>(p);
  }

  detail::block* block_ = nullptr;
};

}  // namespace tessera
