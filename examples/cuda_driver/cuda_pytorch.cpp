// SPDX-License-Identifier: Apache-2.0
// Builds a shared library that PyTorch loads with CUDAPluggableAllocator to allocate GPU memory. PYTORCH_CUDA_ALLOC_CONF selects
// the recipe. The first allocation loads CUDA's driver. README.md explains how to use it.
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include <tessera/concurrent/locked.hpp>
#include <tessera/configured.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/error.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/interop/torch_pluggable.hpp>
#include <tessera/tessera.hpp>

#include "device.hpp"
#include "driver.hpp"
#include "torch_error.hpp"

namespace {

/// The first line has PyTorch's words, because programs search for them.
std::string in_words_of_pytorch(int device, const tessera::out_of_memory& error, const char* explanation) {
  const auto& n = error.numbers();
  const auto bytes = [](std::size_t count) { return std::string(tessera::format_bytes(count).text()); };
  std::string text = "CUDA out of memory. Tried to allocate " + bytes(n.requested) + ". GPU " +
                     std::to_string(device) + " has a total capacity of " + bytes(n.capacity) + " of which " +
                     bytes(n.available) + " is free. ";
  if (n.now.limit < n.capacity) text += bytes(n.now.limit) + " allowed; ";
  text += "Of the allocated memory " + bytes(n.now.allocated) + " is allocated by PyTorch, and " +
          bytes(n.now.reserved - n.now.allocated) + " is reserved by PyTorch but unallocated.\n";
  return text + explanation;
}

/// Throws if memory is exhausted: PyTorch reports an exception to its user, but takes null for the address of a tensor.
struct on_gpus {
  static constexpr bool throws_out_of_memory = true;

  static cuda_driver::gpu make_device(int number) {
    static const auto* const library = new auto(std::make_shared<const cuda_driver::driver>());
    (void)error_of_pytorch();
    return {*library, number};
  }
  static auto make_allocator(auto device) {
    using allocator =
        tessera::configured<tessera::recipe::pytorch_family,
                            tessera::concurrent::locked<tessera::caching_allocator<
                                tessera::recipe::pytorch<>, decltype(device),
                                tessera::extension::private_pools, tessera::extension::sleep_mode>>>;
    return allocator::from_environment(std::move(device));
  }
  /// PyTorch's own allocator reads this variable, too.
  static bool bypasses_cache() {
    static const bool is_set = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr;
    return is_set;
  }
  /// PyTorch catches some of these errors and goes on, for example to try an algorithm that needs less memory.
  static bool prints_out_of_memory() {
    static const bool is_set = std::getenv("TESSERA_PRINT_OUT_OF_MEMORY") != nullptr;
    return is_set;
  }
  static void raise_out_of_memory(int device, const tessera::out_of_memory& error, const char* explanation) {
    if (error_of_pytorch()) error_of_pytorch().raise(in_words_of_pytorch(device, error, explanation).c_str());
  }

 private:
  /// Found when the first device is made: PyTorch, which calls, is loaded then.
  static const cuda_driver::torch_error& error_of_pytorch() {
    static const auto* const found = new cuda_driver::torch_error;
    return *found;
  }
};

}  // namespace

TESSERA_TORCH_FUNCTIONS(tessera, on_gpus);
