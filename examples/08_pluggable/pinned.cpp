// SPDX-License-Identifier: Apache-2.0
// A library of C functions that a program loads to take its memory from, as PyTorch does with CUDAPluggableAllocator. The
// devices are two shares of this machine's memory, so that it runs anywhere; ../cuda_driver has it for GPUs.
#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include <tessera/concurrent/per_stream.hpp>
#include <tessera/interop/torch_functions.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/provider_ref.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

// Nothing here has a name that other files could know, so that another such library may use the same ones.
namespace {

/// Two devices, which stay until the program ends, as tensors may.
tessera::host_pinned& device(int number) {
  constexpr tessera::host_pinned::options share{.capacity = 256_MiB,
                                                .pin = tessera::host_pinned::pinning::where_allowed};
  static const std::array all{new tessera::host_pinned(share), new tessera::host_pinned(share)};
  // What is thrown here, the functions below tell their caller.
  if (number < 0 || number > 1) throw std::out_of_range("there are the devices 0 and 1");
  return *all[static_cast<std::size_t>(number)];
}

/// Refers to one. Its memory is unmapped when it is released, whatever a stream is doing with it, so that must be waited for.
struct device_memory : tessera::provider_ref<tessera::host_pinned> {
  static constexpr bool release_waits = false;
  using provider_ref::provider_ref;
};

/// What the library is made of: a recipe, and what it takes memory from.
struct pinned {
  static auto make_device(int number) { return device_memory(device(number)); }
  static auto make_allocator(auto device) {
    return tessera::per_stream<tessera::pytorch<"max_split_size_mb:64">, decltype(device)>(std::move(device));
  }
};

tessera::stream_id name(void* stream) { return {reinterpret_cast<std::uintptr_t>(stream)}; }

}  // namespace

TESSERA_TORCH_FUNCTIONS(pinned, pinned);

// A GPU's program has streams of its own. This device's are made here; what is submitted to one runs in order.

TESSERA_C_FUNCTION(void*) pinned_create_stream(int number) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(device(number).create_stream().handle));
}
TESSERA_C_FUNCTION(void) pinned_destroy_stream(int number, void* stream) {
  device(number).destroy_stream(name(stream));
}
TESSERA_C_FUNCTION(void) pinned_submit(int number, void* stream, void (*work)(void*), void* with) {
  device(number).submit(name(stream), [=] { work(with); });
}
TESSERA_C_FUNCTION(void) pinned_synchronize(int number, void* stream) {
  device(number).synchronize(name(stream));
}
