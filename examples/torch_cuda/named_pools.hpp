// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include <c10/cuda/CUDACachingAllocator.h>

#include <tessera/core/types.hpp>
#include <tessera/extension/private_pools.hpp>

#include "history.hpp"

namespace torch_cuda {

using pool_name = c10::cuda::MempoolId_t;

/// The private pools of one device, by PyTorch's names. Each of its allocators has a pool of that name.
template <typename Allocators>
class named_pools {
 public:
  using filter = std::function<bool(cudaStream_t)>;
  static constexpr std::size_t kinds = Allocators::kinds;
  /// The pools of one name, by allocator.
  using pool_ids = std::array<tessera::pool_id, kinds>;

  /// `of` calls a function with each allocator and its number.
  explicit named_pools(Allocators& of) noexcept : of_(&of) {}

  /// Makes a pool with one use, or adds a use.
  void retain(pool_name name) {
    const std::lock_guard lock(mutex_);
    (void)retained(name);
  }
  void begin(pool_name name, filter streams) {
    const std::lock_guard lock(mutex_);
    pool& p = retained(name);
    TORCH_CHECK(!p.streams, "beginAllocateToPool: already recording to mempool_id");
    p.streams = std::move(streams);
    of_->for_each([&p](auto& in, std::size_t kind) { open(in, kind, p); });
  }
  void end(pool_name name) {
    const std::lock_guard lock(mutex_);
    const auto found = pools_.find(name);
    TORCH_CHECK(found != pools_.end() && found->second.streams,
                "endAllocatePool: not currently recording to mempool_id");
    pool& p = found->second;
    of_->for_each([&p](auto& in, std::size_t kind) { (void)pools_of(in).close(p.ids[kind]); });
    p.streams = nullptr;
  }
  void release(pool_name name) {
    const std::lock_guard lock(mutex_);
    pool& p = checked(name);
    TORCH_CHECK(p.uses > (p.streams ? 1 : 0),
                "releasePool: the pool has no use, or its last use is an open scope");
    --p.uses;
    of_->for_each([&p](auto& in, std::size_t kind) { (void)pools_of(in).release(p.ids[kind]); });
  }
  [[nodiscard]] int uses(pool_name name) {
    const std::lock_guard lock(mutex_);
    return checked(name).uses;
  }
  /// The pools of a name. Throws if there are none.
  [[nodiscard]] pool_ids find(pool_name name) {
    const std::lock_guard lock(mutex_);
    return checked(name).ids;
  }
  /// The name of a pool of an allocator; (0, 0) for the default pools.
  [[nodiscard]] pool_name name_of(std::size_t kind, tessera::pool_id id) {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, p] : pools_) {
      if (id != tessera::default_pools && p.ids[kind] == id) return name;
    }
    return {0, 0};
  }
  /// Makes the pools in another allocator.
  template <typename Allocator>
  void add(Allocator& in, std::size_t kind) {
    const std::lock_guard lock(mutex_);
    for (auto& [name, p] : pools_) {
      if (p.uses == 0) continue;
      make(in, kind, p);
      for (int i = 1; i < p.uses; ++i) (void)pools_of(in).retain(p.ids[kind]);
      if (p.streams) open(in, kind, p);
    }
  }

 private:
  struct pool {
    pool_ids ids{};
    int uses = 0;
    filter streams;  // of the open scope
  };
  template <typename Allocator>
  [[nodiscard]] static auto pools_of(Allocator& in) noexcept {
    return in.template get<tessera::extension::private_pools>();
  }
  static bool selects(void* context, tessera::stream_id stream) noexcept {
    try {
      return static_cast<pool*>(context)->streams(to_cuda(stream));
    } catch (const std::exception&) {
      return false;
    }
  }
  template <typename Allocator>
  static void open(Allocator& in, std::size_t kind, pool& p) {
    (void)pools_of(in).open(p.ids[kind], {&selects, &p});
  }
  template <typename Allocator>
  static void make(Allocator& in, std::size_t kind, pool& p) {
    p.ids[kind] = pools_of(in).create();
    TORCH_CHECK(p.ids[kind] != tessera::default_pools, "host memory for a private pool ran out");
  }
  [[nodiscard]] bool exists(const pool& p) {
    bool any = p.uses > 0;
    of_->for_each([&](auto& in, std::size_t kind) { any = any || pools_of(in).has(p.ids[kind]); });
    return any;
  }
  [[nodiscard]] pool& retained(pool_name name) {
    std::erase_if(pools_, [this](const auto& entry) { return !exists(entry.second); });
    const auto [found, is_new] = pools_.try_emplace(name);
    pool& p = found->second;
    TORCH_CHECK(is_new || p.uses > 0, "the private pool was released, and owns memory");
    of_->for_each([&p](auto& in, std::size_t kind) {
      if (p.uses == 0)
        make(in, kind, p);
      else
        (void)pools_of(in).retain(p.ids[kind]);
    });
    ++p.uses;
    return p;
  }
  [[nodiscard]] pool& checked(pool_name name) {
    const auto found = pools_.find(name);
    TORCH_CHECK(found != pools_.end() && exists(found->second), "Could not find pool of id");
    return found->second;
  }

  Allocators* of_;
  std::mutex mutex_;
  std::map<pool_name, pool> pools_;
};

}  // namespace torch_cuda
