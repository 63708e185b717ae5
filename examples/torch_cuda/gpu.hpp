// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/provider/cuda_driver.hpp>

#include "torch_version.hpp"

namespace torch_cuda {

/// The limit on the memory of a GPU that several allocators take. A memory fraction sets it.
class memory_budget {
 public:
  [[nodiscard]] std::size_t limit() const noexcept {
    const std::lock_guard lock(mutex_);
    return limit_;
  }
  void set_limit(std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
  }
  [[nodiscard]] std::size_t peak() const noexcept {
    const std::lock_guard lock(mutex_);
    return peak_;
  }
  void reset_peak() noexcept {
    const std::lock_guard lock(mutex_);
    peak_ = taken_;
  }
  [[nodiscard]] bool has_room(std::size_t bytes) const noexcept {
    const std::lock_guard lock(mutex_);
    return fits(bytes);
  }

  /// Takes `bytes`, of which those of `beyond` may exceed the limit. Returns false if there is no room.
  [[nodiscard]] bool take(std::size_t bytes, std::size_t beyond) noexcept {
    const std::lock_guard lock(mutex_);
    if (!fits(bytes - beyond)) return false;
    taken_ += bytes;
    peak_ = std::max(peak_, taken_);
    return true;
  }
  void give_back(std::size_t bytes) noexcept {
    const std::lock_guard lock(mutex_);
    taken_ -= bytes;
  }

 private:
  [[nodiscard]] bool fits(std::size_t bytes) const noexcept {
    return taken_ <= limit_ && bytes <= limit_ - taken_;
  }

  mutable std::mutex mutex_;
  std::size_t limit_ = tessera::unlimited;
  std::size_t taken_ = 0;
  std::size_t peak_ = 0;
};

/// A GPU for one of several allocators that share a budget. When one can get no memory, the others empty their caches.
///
/// Segments come from the allocator of PyTorch's MemPool while one with an allocator is in use, as in PyTorch.
class gpu : public tessera::provider::cuda_device {
 public:
  struct physical {
    cuda_device::physical memory;
    std::size_t bytes = 0;
  };
  /// Makes the other allocators release memory. Returns whether any did.
  using empty_others = std::function<bool()>;

  gpu(const tessera::provider::cuda_driver& driver, int number, memory_budget& budget, empty_others empty)
      : cuda_device(driver, number), state_(std::make_unique<state>(budget, std::move(empty))) {}

  [[nodiscard]] void* acquire(std::size_t bytes,
                              tessera::page_kind kind = tessera::page_kind::normal) noexcept {
    if (!state_->budget.take(bytes, 0)) return nullptr;
    void* const segment = acquire_anywhere(bytes, kind);
    if (segment == nullptr) state_->budget.give_back(bytes);
    return segment;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    torch::CUDAAllocator* const owner = take_owner(p);
    if (owner != nullptr ? !give_back(*owner, p) : !cuda_device::release(p, bytes)) return false;
    state_->budget.give_back(bytes);
    return true;
  }
  // The last page may exceed the limit, as in PyTorch.
  bool create(std::size_t bytes, tessera::page_kind kind, physical& made) noexcept {
    if (!state_->budget.take(bytes, bytes - 1)) return false;
    if (cuda_device::create(bytes, kind, made.memory)) {
      made.bytes = bytes;
      return true;
    }
    state_->budget.give_back(bytes);
    return false;
  }
  bool destroy(const physical& leaving) noexcept {
    if (!cuda_device::destroy(leaving.memory)) return false;
    state_->budget.give_back(leaving.bytes);
    return true;
  }
  bool map(void* p, std::size_t bytes, const physical& made) noexcept {
    return cuda_device::map(p, bytes, made.memory);
  }
  [[nodiscard]] bool would_exceed_limit(std::size_t bytes) const noexcept {
    return !state_->budget.has_room(bytes);
  }
  bool reclaim() noexcept { return state_->empty(); }

  /// Lets another device access the memory of ranges, from the next mapping on.
  void add_peer(int device) {
    const std::lock_guard lock(state_->mutex);
    state_->peers.push_back(device);
  }
  bool grant(void* p, std::size_t bytes) noexcept {
    const std::lock_guard lock(state_->mutex);
    return cuda_device::grant(p, bytes) &&
           std::all_of(state_->peers.begin(), state_->peers.end(),
                       [&](int device) { return grant_to(device, p, bytes); });
  }

 private:
  struct state {
    state(memory_budget& shared, empty_others others) : budget(shared), empty(std::move(others)) {}
    memory_budget& budget;
    empty_others empty;
    std::mutex mutex;
    std::map<void*, torch::CUDAAllocator*> owners;  // of the segments that do not come from the driver
    std::vector<int> peers;                         // devices with access to ranges
  };

  [[nodiscard]] void* acquire_anywhere(std::size_t bytes, tessera::page_kind kind) noexcept {
    torch::CUDAAllocator* const from = current_source();
    if (from == nullptr) return cuda_device::acquire(bytes, kind);
    void* segment = nullptr;
    try {
      segment = from->raw_alloc(bytes);
      const std::lock_guard lock(state_->mutex);
      if (segment != nullptr) state_->owners.emplace(segment, from);
      return segment;
    } catch (const std::exception&) {
      if (segment != nullptr) (void)give_back(*from, segment);
      return nullptr;
    }
  }
  [[nodiscard]] static bool give_back(torch::CUDAAllocator& to, void* p) noexcept {
    try {
      to.raw_delete(p);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }
  [[nodiscard]] torch::CUDAAllocator* take_owner(void* p) noexcept {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->owners.find(p);
    if (found == state_->owners.end()) return nullptr;
    torch::CUDAAllocator* const owner = found->second;
    state_->owners.erase(found);
    return owner;
  }

  std::unique_ptr<state> state_;
};

}  // namespace torch_cuda
