// SPDX-License-Identifier: Apache-2.0
// A provider adaptor that counts the failed calls of a device, and a front end with a spin lock.
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <thread>
#include <utility>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;

/// Counts the calls that failed. The adaptor calls it for each provider call that has an effect.
struct count_failures {
  int* failures;

  template <typename F>
  auto operator()(tessera::provider::provider_call call, F make_call) noexcept {
    const auto result = make_call();
    if (!result && call.may_fail()) ++*failures;
    return result;
  }
};
using counted_device =
    tessera::provider::provider_adaptor<tessera::provider::simulated_device, count_failures>;
static_assert(tessera::provider::virtual_memory_provider<counted_device>);  // as simulated_device is

/// An allocator with a spin lock. The allocator_adaptor adds all other functions of an allocator. Functions given to on_pressure and
/// for_each_device run with the lock held, so they must not use the allocator.
template <typename Recipe, typename Provider>
class spin_locked : public tessera::allocator_adaptor<spin_locked<Recipe, Provider>,
                                                      tessera::caching_allocator<Recipe, Provider>> {
  using allocator = tessera::caching_allocator<Recipe, Provider>;

 public:
  explicit spin_locked(Provider device) : allocator_(std::move(device)) {}

 private:
  friend tessera::allocator_adaptor<spin_locked, allocator>;
  struct guard {
    explicit guard(std::atomic_flag& flag) : busy(flag) {
      while (busy.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
    }
    ~guard() { busy.clear(std::memory_order_release); }
    guard(const guard&) = delete;
    guard& operator=(const guard&) = delete;
    std::atomic_flag& busy;
  };
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& call) {
    const guard lock(me.busy_);
    return std::forward<F>(call)(me.allocator_);
  }

  mutable std::atomic_flag busy_;
  allocator allocator_;
};

int main() {
  tessera::provider::simulated_device device({.capacity = 100_MiB});
  int failures = 0;
  spin_locked<tessera::recipe::pytorch<>, counted_device> allocator{
      counted_device(device, count_failures{&failures})};

  const auto work = [&allocator] {
    for (int i = 0; i < 1000; ++i) allocator.deallocate(allocator.allocate(5_MiB));
  };
  std::thread other(work);
  work();
  other.join();

  std::printf("%zu MiB reserved, %d failed calls\n", allocator.current_usage().reserved >> 20, failures);
  void* const too_large = allocator.try_allocate(200_MiB);
  std::printf("%zu MiB reserved, %d failed calls\n", allocator.current_usage().reserved >> 20, failures);
  return too_large == nullptr && failures > 0 && allocator.audit() == nullptr ? 0 : 1;
}
