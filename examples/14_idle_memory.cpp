// SPDX-License-Identifier: Apache-2.0
// Memory that was idle for 200 ms goes back to the device. A thread asks for it, so that other programs can use the memory.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include <tessera/concurrent/locked.hpp>
#include <tessera/policy/evict_after.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

namespace {

using recipe = tessera::recipe::with<tessera::recipe::pytorch<>,
                                     tessera::policy::evict_after<200, tessera::policy::decay_curve::smooth>>;
using allocator_type =
    tessera::concurrent::locked<tessera::caching_allocator<recipe, tessera::provider::simulated_device>>;

/// Asks an allocator every 10 ms to release its idle memory.
class idle_memory_thread {
 public:
  explicit idle_memory_thread(allocator_type& allocator) : thread_([this, &allocator] { run(allocator); }) {}
  ~idle_memory_thread() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

 private:
  void run(allocator_type& allocator) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(10), [this] { return stopped_; }))
      allocator.evict_idle();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  std::thread thread_;  // started last, when the other members exist
};

}  // namespace

int main() {
  allocator_type allocator;
  const idle_memory_thread evicting(allocator);
  void* const weights = allocator.allocate(100_MiB);
  for (std::size_t i = 1; i <= 8; ++i) allocator.deallocate(allocator.allocate(i * 20_MiB));
  std::printf("after the work: reserved %zu MiB\n", allocator.current_usage().reserved >> 20);
  while (allocator.current_usage().cached > 0) std::this_thread::yield();
  std::printf("later:          reserved %zu MiB\n", allocator.current_usage().reserved >> 20);
  allocator.deallocate(weights);
  return allocator.audit() == nullptr ? 0 : 1;
}
