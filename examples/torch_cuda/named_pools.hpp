// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include <tessera/core/types.hpp>
#include <tessera/extension/private_pools.hpp>

#include "history.hpp"
#include "torch_version.hpp"

namespace torch_cuda {

/// The private pools of one device, by PyTorch's names. Each of its allocators has a pool of that name.
template <typename Allocators>
class named_pools {
 public:
  using filter = std::function<bool(cudaStream_t)>;
  using pool_options = tessera::extension::pool_options;
  static constexpr std::size_t kinds = Allocators::kinds;
  /// The pools of one name, by allocator.
  using pool_ids = std::array<tessera::pool_id, kinds>;

  /// `of` calls a function with each allocator and its number. `seen` shows PyTorch's names of the pools.
  named_pools(Allocators& of, history& seen) noexcept : of_(&of), seen_(&seen) {}

  /// Makes a pool with one use, or adds a use. A new pool takes its segments from `source`, or from the driver.
  void retain(pool_name name, segment_source source = nullptr) {
    const std::lock_guard lock(mutex_);
    pool& p = retained(name);
    if (source == nullptr) return;
    TORCH_CHECK(p.uses == 1, "only a new private pool takes an allocator");
    p.source = std::move(source);
  }
  void begin(pool_name name, filter streams) {
    const std::lock_guard lock(mutex_);
    pool& p = retained(name);
    TORCH_CHECK(!p.streams, "beginAllocateToPool: already recording to mempool_id");
    p.streams = std::move(streams);
    p.opened = ++last_opened_;
    if (p.source != nullptr) ++open_sources_;
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
    if (p.source != nullptr) --open_sources_;
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
  /// The allocator that gives the segments for requests of a stream now; null for the driver.
  [[nodiscard]] segment_source source_for(cudaStream_t stream) {
    if (open_sources_.load(std::memory_order_relaxed) == 0) [[likely]]
      return nullptr;
    const std::lock_guard lock(mutex_);
    pool* first = nullptr;
    for (auto& [name, p] : pools_) {
      if (p.streams && (first == nullptr || p.opened < first->opened) && p.streams(stream)) first = &p;
    }
    return first != nullptr ? first->source : nullptr;
  }
  /// Changes the options of a pool, by change(options).
  ///   Returns:  false if the pool has memory already; then nothing has changed
  template <typename F>
  [[nodiscard]] bool set_options(pool_name name, F change) {
    const std::lock_guard lock(mutex_);
    pool& p = checked(name);
    bool has_memory = static_cast<bool>(p.streams);
    of_->for_each([&](auto& in, std::size_t kind) {
      has_memory = has_memory || pools_of(in).usage_of(p.ids[kind]).reserved > 0;
    });
    if (has_memory) return false;
    change(p.options);
    // An allocator takes the options when it makes a pool.
    of_->for_each([&](auto& in, std::size_t kind) {
      for (int i = 0; i < p.uses; ++i) (void)pools_of(in).release(p.ids[kind]);
      seen_->forget_pool(p.ids[kind]);
      make_all(in, kind, name, p);
    });
    return true;
  }
  /// Says that a graph is captured from now on: no allocator asks for events or waits for them, until as many ends.
  void begin_capture() {
    const std::lock_guard lock(mutex_);
    if (captures_++ > 0) return;
    of_->for_each([this](auto& in, std::size_t kind) { this->mark_capture(in, kind); });
  }
  void end_capture() {
    const std::lock_guard lock(mutex_);
    if (captures_ == 0 || --captures_ > 0) return;
    of_->for_each([this](auto& in, std::size_t kind) {
      (void)pools_of(in).close(captured_[kind]);
      (void)pools_of(in).release(captured_[kind]);
    });
  }
  /// Makes the pools in another allocator.
  template <typename Allocator>
  void add(Allocator& in, std::size_t kind) {
    const std::lock_guard lock(mutex_);
    for (auto& [name, p] : pools_) {
      if (p.uses == 0) continue;
      make_all(in, kind, name, p);
      if (p.streams) open(in, kind, p);
    }
    if (captures_ > 0) mark_capture(in, kind);
  }

 private:
  struct pool {
    pool_ids ids{};
    int uses = 0;
    filter streams;            // of the open scope
    std::uint64_t opened = 0;  // the number of the open scope: the oldest has the lowest
    pool_options options{};
    segment_source source;
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
  static bool selects_none(void*, tessera::stream_id) noexcept { return false; }
  template <typename Allocator>
  static void open(Allocator& in, std::size_t kind, pool& p) {
    (void)pools_of(in).open(p.ids[kind], {&selects, &p}, scopes);
  }
  /// A scope of the kind capture says that a graph is captured. It selects no stream, so its pool stays empty.
  template <typename Allocator>
  void mark_capture(Allocator& in, std::size_t kind) {
    captured_[kind] = pools_of(in).create();
    TORCH_CHECK(captured_[kind] != tessera::default_pools, "host memory for the mark of a capture ran out");
    (void)pools_of(in).open(captured_[kind], {&selects_none, nullptr},
                            tessera::extension::scope_kind::capture);
  }
  template <typename Allocator>
  void make(Allocator& in, std::size_t kind, pool_name name, pool& p) {
    p.ids[kind] = pools_of(in).create(p.options);
    TORCH_CHECK(p.ids[kind] != tessera::default_pools, "host memory for a private pool ran out");
    seen_->name_pool(p.ids[kind], name);
  }
  /// Makes the pool in an allocator, with all its uses.
  template <typename Allocator>
  void make_all(Allocator& in, std::size_t kind, pool_name name, pool& p) {
    make(in, kind, name, p);
    for (int i = 1; i < p.uses; ++i) (void)pools_of(in).retain(p.ids[kind]);
  }
  [[nodiscard]] bool exists(const pool& p) {
    bool any = p.uses > 0;
    of_->for_each([&](auto& in, std::size_t kind) { any = any || pools_of(in).has(p.ids[kind]); });
    return any;
  }
  [[nodiscard]] pool& retained(pool_name name) {
    std::erase_if(pools_, [this](const auto& entry) {
      const bool is_gone = !exists(entry.second);
      for (const tessera::pool_id id : entry.second.ids) {
        if (is_gone) seen_->forget_pool(id);
      }
      return is_gone;
    });
    const auto [found, is_new] = pools_.try_emplace(name);
    pool& p = found->second;
    TORCH_CHECK(is_new || p.uses > 0, "the private pool was released, and owns memory");
    of_->for_each([&](auto& in, std::size_t kind) {
      if (p.uses == 0)
        make(in, kind, name, p);
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
  history* seen_;
  std::mutex mutex_;
  std::map<pool_name, pool> pools_;
  std::uint64_t last_opened_ = 0;
  std::atomic<int> open_sources_{0};  // open scopes of pools with a source
  int captures_ = 0;
  pool_ids captured_{};  // by allocator: the pool whose scope marks that a graph is captured
};

}  // namespace torch_cuda
