// SPDX-License-Identifier: Apache-2.0
// A library of C functions that PyTorch takes GPU memory from, by CUDAPluggableAllocator: it decides as PYTORCH_CUDA_ALLOC_CONF
// says, over CUDA's driver, which is loaded when the first memory is asked for. README.md says how to use it.
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

/// PyTorch would use null as the address of a tensor; what is thrown it tells its user.
struct on_gpus {
  static constexpr bool throws_out_of_memory = true;

  static cuda_driver::gpu make_device(int number) {
    static const auto* const through = new auto(std::make_shared<const cuda_driver::driver>());
    return {*through, number};
  }
  static auto make_allocator(auto device) {
    return tessera::configured<tessera::pytorch_family, decltype(device), tessera::locked_front>(
        tessera::settings_from_environment<tessera::pytorch_family>(), std::move(device));
  }
};

}  // namespace

TESSERA_TORCH_FUNCTIONS(tessera, on_gpus);
