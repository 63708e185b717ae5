// SPDX-License-Identifier: Apache-2.0
// A provider is the source of an allocator's memory. This example writes the smallest provider, with the four required
// functions. It tests the provider with the law of providers and uses it in an allocator.
// tessera/provider/provider.hpp specifies each function.
// Complete providers, with events, page kinds and virtual memory:
//   tessera/provider/cuda_driver.hpp       CUDA's driver
//   tessera/provider/host_pinned.hpp       memory of this machine
//   tessera/provider/simulated_device.hpp  a simulation
#include <array>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <new>
#include <utility>

#include <tessera/law/provider_laws.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

/// A device with 64 pages of 1 MiB of host memory.
class host_pages {
 public:
  void* acquire(std::size_t bytes) noexcept {
    for (std::size_t i = 0, run = 0; memory_ != nullptr && i < pages; ++i) {
      run = used_[i] ? 0 : run + 1;
      if (run != 0 && run == bytes / page) return mark(i + 1 - run, run, true);
    }
    return nullptr;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    mark(static_cast<std::size_t>(static_cast<std::byte*>(p) - memory_.get()) / page, bytes / page, false);
    return true;
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return page * pages; }
  [[nodiscard]] std::size_t granularity() const noexcept { return page; }

 private:
  static constexpr std::size_t page = 1_MiB, pages = 64;
  struct deleter {
    void operator()(std::byte* p) const noexcept { ::operator delete(p, std::align_val_t{page}); }
  };

  void* mark(std::size_t first, std::size_t count, bool used) noexcept {
    for (std::size_t i = first; i < first + count; ++i) used_[i] = used;
    return memory_.get() + first * page;
  }
  std::unique_ptr<std::byte, deleter> memory_{
      static_cast<std::byte*>(::operator new(page * pages, std::align_val_t{page}, std::nothrow))};
  std::array<bool, pages> used_{};
};

int main() {
  host_pages device;
  const tessera::law::provider_check_result found = tessera::law::provider(device);
  std::puts(found.report().c_str());
  if (!found) return 1;

  // The provider has no events, so the streams policy must not need any. Otherwise this does not compile.
  using recipe = tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::reuse_immediately>;
  tessera::caching_allocator<recipe, host_pages> allocator{std::move(device)};
  auto* numbers = static_cast<int*>(allocator.allocate(1000 * sizeof(int)));
  numbers[999] = 42;
  std::printf("%d, in %zu bytes reserved\n", numbers[999], allocator.current_usage().reserved);
  allocator.deallocate(numbers);
}
