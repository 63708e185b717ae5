// SPDX-License-Identifier: Apache-2.0
// Builds a shared library that makes a tessera allocator PyTorch's CPU allocator when it is loaded.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <utility>

#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <tessera/facade.hpp>
#include <tessera/interop/memory_fraction.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/observe/report.hpp>
#include <tessera/tessera.hpp>

#include "private_memory.hpp"

namespace {

// CPU operators are done when they return, so a freed block can be reused at once.
using recipe = tessera::with<tessera::pytorch<"expandable_segments:True">, tessera::reuse_immediately>;
using inner_allocator = tessera::caching_allocator<recipe, torch_cpu::private_memory>;

/// An allocator with a mutex that stays usable in a child process. `locked` has no functions for fork().
class fork_safe : public tessera::facade<fork_safe, inner_allocator> {
 public:
  void lock() noexcept { mutex_.lock(); }
  void unlock() noexcept { mutex_.unlock(); }

 private:
  friend tessera::facade<fork_safe, inner_allocator>;
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& call) {
    const std::lock_guard held(me.mutex_);
    return std::forward<F>(call)(me.allocator_);
  }

  mutable std::mutex mutex_;
  inner_allocator allocator_{torch_cpu::private_memory{}};
};

/// The allocator is never destroyed, because tensors may be freed after static objects were destroyed.
fork_safe& memory() {
  static fork_safe& instance = *new fork_safe;
  return instance;
}

c10::DeleterFnPtr free_of_previous = nullptr;

/// oneDNN frees memory with the current allocator, so an address may be of the previous one.
void free_block(void* p) {
  if (p == nullptr) return;
  c10::profiledCPUMemoryReporter().Delete(p);  // first, because another thread may get the address at once
  if (free_of_previous == nullptr) return memory().deallocate(p);
  if (!memory().try_deallocate(p)) free_of_previous(p);
}

/// Throws the type and the first line of PyTorch's own allocator.
[[noreturn, gnu::noinline, gnu::cold]] void refuse(std::size_t bytes) {
  c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
  CAFFE_THROW("DefaultCPUAllocator: can't allocate memory: you tried to allocate ", bytes,
              " bytes. Error code 12 (Cannot allocate memory)\n",
              tessera::explain(memory(), bytes, tessera::stream_id{}).text().c_str());
}

class cpu_allocator final : public c10::Allocator {
 public:
  /// Returns null for 0 bytes. Addresses are multiples of 512 bytes; PyTorch needs 64.
  c10::DataPtr allocate(std::size_t bytes) const override {
    void* const p = memory().try_allocate(bytes);
    if (p == nullptr && bytes != 0) refuse(bytes);
    c10::DataPtr block(p, p, &free_block, c10::Device(c10::DeviceType::CPU));
    c10::profiledCPUMemoryReporter().New(p, bytes);
    return block;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
};

/// Installs the allocator while the library is loaded.
const bool is_installed = [] {
  free_of_previous = c10::GetCPUAllocator()->raw_deleter();
  (void)::pthread_atfork([] { memory().lock(); }, [] { memory().unlock(); }, [] { memory().unlock(); });
  constexpr std::uint8_t highest_priority = 255;
  c10::SetCPUAllocator(new cpu_allocator, highest_priority);
  return true;
}();

}  // namespace

#define EXPORT(type) extern "C" [[gnu::visibility("default")]] type

/// Releases all cached memory to the system.
EXPORT(void) tessera_cpu_empty_cache() { memory().trim(); }
/// Limits reserved memory to a fraction of the machine's memory.
///   Returns:  false if the fraction is not from 0 to 1
EXPORT(bool) tessera_cpu_memory_fraction(double fraction) {
  return tessera::set_memory_fraction(memory(), fraction);
}
/// Before growth, releases memory that was idle for long if more than this fraction of the limit is reserved.
/// It has an effect after tessera_cpu_memory_fraction. 0 switches it off.
///   Returns:  false if the fraction is not from 0 to 1
EXPORT(bool) tessera_cpu_garbage_collection_threshold(double fraction) {
  if (!(fraction >= 0 && fraction <= 1)) return false;
  memory().with_policies([fraction](auto& settings) {
    settings.eviction.threshold = tessera::fraction{static_cast<std::uint64_t>(fraction * 1e9)};
  });
  return true;
}
/// Writes JSON with the keys of torch.cuda.memory_stats_as_nested_dict().
///   Returns:  the length of the text, whatever the size
EXPORT(std::size_t) tessera_cpu_statistics(char* out, std::size_t size) {
  const std::string text = tessera::memory_report(memory()).json();
  return static_cast<std::size_t>(std::snprintf(out, size, "%s", text.c_str()));
}
EXPORT(void) tessera_cpu_reset_peak_statistics() { memory().reset_peak_statistics(); }
EXPORT(void) tessera_cpu_reset_accumulated_statistics() { memory().reset_accumulated_statistics(); }
