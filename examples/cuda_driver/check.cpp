// SPDX-License-Identifier: Apache-2.0
// Tries the provider on each GPU of this machine: does it keep the laws of providers, and do allocators over it give all of
// the memory back? A program that uses a GPU meanwhile may disturb it. 77 says that there is no GPU to try it on.
#include <cstddef>
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include <tessera/law/provider.hpp>
#include <tessera/provider/provider_ref.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/tessera.hpp>

#include "device.hpp"
#include "driver.hpp"

using namespace tessera::literals;

/// Grows, splits, frees every other block, uses another stream, and empties the cache.
template <typename Recipe>
bool serves(cuda_driver::gpu& device, const char* recipe) {
  constexpr tessera::stream_id per_thread{2};  // CU_STREAM_PER_THREAD, which every program has
  tessera::caching_allocator<Recipe, tessera::provider_ref<cuda_driver::gpu>> pool{
      tessera::provider_ref(device)};
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < 64; ++i) {
    void* const p = pool.try_allocate((i % 7 + 1) * 500_KiB, i % 2 == 0 ? tessera::stream_id{} : per_thread);
    if (p == nullptr) return std::printf("  %s: %s\n", recipe, device.last_error().c_str()), false;
    if (i % 4 == 0 && !pool.record_stream(p, per_thread))
      return std::printf("  %s: no stream is recorded\n", recipe), false;
    blocks.push_back(p);
    if (i % 2 == 1) pool.deallocate(blocks[i / 2]);
  }
  const std::size_t reserved = pool.now().reserved;
  for (std::size_t i = 32; i < 64; ++i) pool.deallocate(blocks[i]);
  pool.trim();
  const bool whole = pool.audit() == nullptr && pool.now().reserved == 0;
  std::printf("  %s: reserved %zu MiB, %s\n", recipe, reserved >> 20,
              whole ? "all given back" : "not given back");
  return whole;
}

int main(int count, char** arguments) {
  const char* const library = count > 1 ? arguments[1] : "libcuda.so.1";
  std::shared_ptr<const cuda_driver::driver> through;
  try {
    through = std::make_shared<const cuda_driver::driver>(library);
  } catch (const cuda_driver::driver_error& error) {
    return std::printf("%s\n", error.what()), 77;
  }
  bool good = through->devices() > 0;
  try {
    for (int number = 0; number < through->devices(); ++number) {
      cuda_driver::gpu device(through, number);
      const tessera::law::verdict found = tessera::law::provider(device);
      std::printf("device %d: %zu of %zu MiB free, pages of %zu KiB; %s\n", number, device.available() >> 20,
                  device.capacity() >> 20, device.page_size(tessera::normal_pages) >> 10,
                  found ? "keeps the laws of providers" : found.broken);
      if (!found) std::printf("  its latest error: %s\n", device.last_error().c_str());
      good = good && found;
      good = serves<tessera::pytorch<>>(device, "pytorch") && good;
      good = serves<tessera::pytorch_expandable>(device, "pytorch_expandable") && good;
      good = serves<tessera::stitched>(device, "stitched") && good;
      good = serves<tessera::cuda_async>(device, "cuda_async") && good;
    }
  } catch (const std::exception& error) {
    return std::printf("%s\n", error.what()), 1;
  }
  return good ? 0 : 1;
}
