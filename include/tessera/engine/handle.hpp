// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/block.hpp>

namespace tessera {

/// An allocation together with the description of its block, so that what is asked about it looks nothing up; it is not
/// known by its address. Empty where the allocation failed.
///
/// As nothing is looked up, some mistakes go unnoticed that would be found with an address: a handle that another allocator
/// gave, and one that was given back, once its description is that of another handle's block.
///
///     const tessera::handle block = pool.allocate_by_handle(5_MiB);
///     std::printf("at %p\n", block.data());
///     pool.deallocate(block);
class handle {
 public:
  handle() = default;
  explicit handle(engine::block* described) noexcept : block_(described) {}

  /// The address, aligned to min_alignment.
  [[nodiscard]] void* data() const noexcept {
    return block_ != nullptr ? reinterpret_cast<void*>(block_->address) : nullptr;
  }
  [[nodiscard]] explicit operator bool() const noexcept { return block_ != nullptr; }
  [[nodiscard]] engine::block* block() const noexcept { return block_; }
  bool operator==(const handle&) const = default;

 private:
  engine::block* block_ = nullptr;
};

}  // namespace tessera
