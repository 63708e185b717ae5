// SPDX-License-Identifier: Apache-2.0
// Builds a shared library that PyTorch loads with CUDAPluggableAllocator to allocate GPU memory. PYTORCH_CUDA_ALLOC_CONF selects
// the recipe. The first allocation loads CUDA's driver. README.md explains how to use it.
#include <cstddef>
#include <memory>
#include <utility>

#include <tessera/concurrent/locked.hpp>
#include <tessera/configured.hpp>
#include <tessera/interop/torch_pluggable.hpp>
#include <tessera/tessera.hpp>

#include "device.hpp"
#include "driver.hpp"

namespace {

/// Throws if memory is exhausted: PyTorch reports an exception to its user, but takes null for the address of a tensor.
struct on_gpus {
  static constexpr bool throws_out_of_memory = true;

  static cuda_driver::gpu make_device(int number) {
    static const auto* const library = new auto(std::make_shared<const cuda_driver::driver>());
    return {*library, number};
  }
  static auto make_allocator(auto device) {
    using allocator = tessera::configured<tessera::pytorch_family, decltype(device), tessera::locked>;
    return allocator::from_environment(std::move(device));
  }
};

}  // namespace

TESSERA_TORCH_FUNCTIONS(tessera, on_gpus);
