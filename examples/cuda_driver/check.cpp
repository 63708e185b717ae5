// SPDX-License-Identifier: Apache-2.0
// Checks the provider on each GPU of this machine: that it obeys the laws of providers, and that allocators over it release
// all memory. Another program on the GPU may disturb the check. Exits with 77 if there is no GPU.
#include <cstddef>
#include <cstdio>
#include <exception>
#include <optional>
#include <vector>

#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/cuda_driver.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

/// Runs an allocator: grows, splits, frees every other block, uses a second stream, and empties the cache.
template <typename Recipe>
bool serves(tessera::provider::cuda_device& device, const char* recipe) {
  constexpr tessera::stream_id per_thread{2};  // CU_STREAM_PER_THREAD, which always exists
  tessera::caching_allocator<Recipe, tessera::provider::provider_ref<tessera::provider::cuda_device>> pool{
      tessera::provider::provider_ref(device)};
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < 64; ++i) {
    void* const p = pool.try_allocate((i % 7 + 1) * 500_KiB, i % 2 == 0 ? tessera::stream_id{} : per_thread);
    if (p == nullptr) {
      std::printf("  %s: %s\n", recipe, device.last_error().c_str());
      return false;
    }
    if (i % 4 == 0 && !pool.record_stream(p, per_thread)) {
      std::printf("  %s: record_stream failed\n", recipe);
      return false;
    }
    blocks.push_back(p);
    if (i % 2 == 1) pool.deallocate(blocks[i / 2]);
  }
  const std::size_t reserved = pool.current_usage().reserved;
  for (std::size_t i = 32; i < 64; ++i) pool.deallocate(blocks[i]);
  pool.trim();
  const bool released = pool.audit() == nullptr && pool.current_usage().reserved == 0;
  std::printf("  %s: reserved %zu MiB, %s\n", recipe, reserved >> 20,
              released ? "all released" : "not released");
  return released;
}

int main(int count, char** arguments) {
  const char* const path = count > 1 ? arguments[1] : "libcuda.so.1";
  std::optional<tessera::provider::cuda_driver> library;
  try {
    library.emplace(path);
  } catch (const tessera::provider::cuda_driver_error& error) {
    std::printf("%s\n", error.what());
    return 77;
  }
  bool good = library->devices() > 0;
  try {
    for (int number = 0; number < library->devices(); ++number) {
      tessera::provider::cuda_device device(*library, number);
      const tessera::law::provider_check_result found = tessera::law::provider(device);
      std::printf("device %d: %zu of %zu MiB free, pages of %zu KiB; %s\n", number, device.available() >> 20,
                  device.capacity() >> 20, device.page_size(tessera::page_kind::normal) >> 10,
                  found ? "obeys the laws of providers" : found.message());
      for (const auto& [law, why] : found.not_checked()) std::printf("  not checked: %s: %s\n", law, why);
      if (!found) std::printf("  its latest error: %s\n", device.last_error().c_str());
      good = good && found;
      good = serves<tessera::recipe::pytorch<>>(device, "pytorch") && good;
      good = serves<tessera::recipe::pytorch_family::expandable>(device, "pytorch_expandable") && good;
      good = serves<tessera::recipe::stitched>(device, "stitched") && good;
      good = serves<tessera::recipe::cuda_async>(device, "cuda_async") && good;
    }
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
  return good ? 0 : 1;
}
