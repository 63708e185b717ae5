// SPDX-License-Identifier: Apache-2.0
// Builds a shared library of C functions that a program loads to allocate memory, as PyTorch does with
// CUDAPluggableAllocator. Its two devices are parts of this machine's memory, so that it runs everywhere. For GPUs, see
// ../cuda_driver.
#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include <tessera/concurrent/per_stream.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/interop/torch_pluggable.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

// An unnamed namespace, so that another such library in the same program may use the same names.
namespace {

/// Returns one of the two devices. They are never destroyed, because tensors may live until the program ends.
tessera::provider::host_pinned& device(int number) {
  constexpr tessera::provider::host_pinned::options half{
      .capacity = 256_MiB, .pin = tessera::provider::host_pinned::pinning::where_allowed};
  static const std::array all{new tessera::provider::host_pinned(half),
                              new tessera::provider::host_pinned(half)};
  // The functions of the library report this exception to their caller.
  if (number < 0 || number > 1) throw std::out_of_range("there are the devices 0 and 1");
  return *all[static_cast<std::size_t>(number)];
}

/// Refers to a device. Releasing its memory unmaps it at once, so streams must be synchronized first.
struct device_memory : tessera::provider::provider_ref<tessera::provider::host_pinned> {
  static constexpr bool release_waits = false;
  using provider_ref::provider_ref;
};

/// Defines the allocators of the library: a provider for each device, and an allocator over it.
struct pinned {
  static auto make_device(int number) { return device_memory(device(number)); }
  static auto make_allocator(auto device) {
    return tessera::concurrent::per_stream<
        tessera::caching_allocator<tessera::recipe::pytorch<"max_split_size_mb:64">, decltype(device),
                                   tessera::extension::private_pools>>(std::move(device));
  }
};

tessera::stream_id to_stream(void* stream) { return tessera::stream_id(stream); }

}  // namespace

TESSERA_TORCH_FUNCTIONS(pinned, pinned);

// A program with GPUs has streams of its own. Here the library makes them. Work submitted to a stream runs in order.
#define EXPORT(type) extern "C" [[gnu::visibility("default")]] type

EXPORT(void*) pinned_create_stream(int number) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(device(number).create_stream().handle));
}
EXPORT(void) pinned_destroy_stream(int number, void* stream) {
  device(number).destroy_stream(to_stream(stream));
}
EXPORT(void) pinned_submit(int number, void* stream, void (*work)(void*), void* argument) {
  device(number).submit(to_stream(stream), [=] { work(argument); });
}
EXPORT(void) pinned_synchronize(int number, void* stream) { device(number).synchronize(to_stream(stream)); }
