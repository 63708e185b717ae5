// SPDX-License-Identifier: Apache-2.0
// The memory and the streams of a device that consists of host memory and threads, and its allocators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <tessera/concurrent/locked.hpp>
#include <tessera/configured.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/interop/torch_device.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/recipe/pytorch_2_14.hpp>
#include <tessera/tessera.hpp>

namespace chip {

using namespace tessera::literals;
using tessera::provider::host_pinned;
using watch = tessera::extension::observer<tessera::observe::history<>>;

inline constexpr int device_count = 2;

/// Stands for a driver: the memory of all devices, and their streams, which are threads. Stream 0 is the default stream of
/// device 0, and stream 1 that of device 1.
inline host_pinned& driver() {
  static host_pinned& made = *[] {
    auto* const machine = new host_pinned({.pin = host_pinned::pinning::where_allowed});
    for (int device = 1; device < device_count; ++device) (void)machine->create_stream();
    return machine;
  }();
  return made;
}
struct streams {
  static tessera::stream_id to_stream(const c10::Stream& stream) {
    return tessera::stream_id(
        static_cast<std::uint64_t>(stream.id() != 0 ? stream.id() : stream.device_index()));
  }
};

/// The allocators of the devices. PYTORCH_ALLOC_CONF selects the recipe, as in PyTorch 2.14.
struct device_memory : streams {
  using provider = tessera::provider::limiting<tessera::provider::provider_ref<host_pinned>>;
  static provider make_device(int) { return provider(tessera::provider::provider_ref(driver()), 1_GiB); }
  static auto make_allocator(auto device) {
    using allocator = tessera::caching_allocator<tessera::recipe::pytorch_2_14<>, decltype(device), watch>;
    return tessera::configured<tessera::recipe::pytorch_2_14_family,
                               tessera::concurrent::locked<allocator>>::from_environment(std::move(device));
  }

  static int device_count() noexcept { return chip::device_count; }
  static tessera::stream_id create_stream(int) { return driver().create_stream(); }
  static void synchronize(tessera::stream_id stream) { driver().synchronize(stream); }
  static bool is_idle(tessera::stream_id stream) {
    return driver().is_done(stream, driver().position(stream));
  }
  static void make_wait(tessera::stream_id stream, const host_pinned::event& mark) {
    driver().make_wait(stream, mark);
  }
};
/// Pinned host memory. Its streams are those of the devices, which copy from it and to it.
struct pinned_memory : streams {
  using provider = tessera::provider::provider_ref<host_pinned>;
  static provider make_device(int) { return provider(driver()); }
  static auto make_allocator(auto device) {
    return tessera::concurrent::locked<
        tessera::caching_allocator<tessera::recipe::pinned_2_14, decltype(device)>>(std::move(device));
  }
};
using devices = tessera::interop::torch_device<device_memory>;
using pinned = tessera::interop::torch_host<pinned_memory>;

}  // namespace chip
