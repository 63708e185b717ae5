// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/caching_allocator.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/core/types.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/opencl.hpp>
#include <tessera/recipe/pytorch.hpp>

namespace opencl {

/// An allocator over a device. A request for a queue that was not added fails, because its memory could never wait for the
/// work of that queue. Thread-safe.
///   Requires:  the device outlives it, and does not move
///   Cost:      a look-up of the queue for each request
template <typename Recipe = tessera::recipe::pytorch<>, typename Device = tessera::provider::opencl_device<>>
class pool : public tessera::allocator_adaptor<pool<Recipe, Device>,
                                               tessera::concurrent::locked<tessera::caching_allocator<
                                                   Recipe, tessera::provider::provider_ref<Device>>>> {
  using allocator = tessera::concurrent::locked<
      tessera::caching_allocator<Recipe, tessera::provider::provider_ref<Device>>>;
  using base = tessera::allocator_adaptor<pool, allocator>;

 public:
  explicit pool(Device& of) : device_(of), allocator_(tessera::provider::provider_ref(of)) {}

  using base::try_allocate;
  [[nodiscard]] void* try_allocate(std::size_t bytes, tessera::stream_id stream = {}) noexcept {
    return device_.expects(stream) ? base::try_allocate(bytes, stream) : nullptr;
  }
  [[nodiscard]] tessera::block_handle allocate_by_handle(std::size_t bytes,
                                                         tessera::stream_id stream = {}) noexcept {
    return device_.expects(stream) ? base::allocate_by_handle(bytes, stream) : tessera::block_handle{};
  }

 private:
  friend base;
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& call) {
    return std::forward<F>(call)(me.allocator_);
  }

  Device& device_;
  allocator allocator_;
};

}  // namespace opencl
