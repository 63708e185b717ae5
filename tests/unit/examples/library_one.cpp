// SPDX-License-Identifier: Apache-2.0
// A library with the same function and type names as library_two.cpp, and other definitions.
#include <utility>

#include <tessera/concurrent/locked.hpp>
#include <tessera/interop/torch_pluggable.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/passthrough.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

namespace {
struct same {
  static auto make_device(int number) {
    return tessera::provider::simulated_device({.capacity = 64_MiB, .device = static_cast<unsigned>(number)});
  }
  static auto make_allocator(auto device) {
    return tessera::concurrent::locked<
        tessera::caching_allocator<tessera::recipe::pytorch<>, decltype(device)>>(std::move(device));
  }
};
}  // namespace

TESSERA_TORCH_FUNCTIONS(same, same);
