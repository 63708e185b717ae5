// SPDX-License-Identifier: Apache-2.0
// Builds a shared library that makes a tessera allocator PyTorch's CPU allocator when it is loaded.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/interop/memory_fraction.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/observe/report.hpp>
#include <tessera/policy/evict_after.hpp>
#include <tessera/tessera.hpp>

#include "private_memory.hpp"

namespace {

/// Before growth, decides as PyTorch's garbage collection. In evict_idle(), releases what was idle for a time.
struct evict_above_or_after {
  using clock = tessera::policy::steady_milliseconds;
  tessera::policy::evict_idle_above<tessera::tunable(tessera::fraction{}), true> above{};
  tessera::policy::evict_after<tessera::tunable<std::uint64_t>{tessera::unlimited}> after{};

  [[nodiscard]] std::size_t bytes_to_evict(tessera::policy::eviction_trigger trigger,
                                           const tessera::usage& now) const noexcept {
    return trigger == tessera::policy::eviction_trigger::on_request ? after.bytes_to_evict(trigger, now)
                                                                    : above.bytes_to_evict(trigger, now);
  }
  [[nodiscard]] static bool is_candidate(std::size_t bytes, const tessera::usage& now) noexcept {
    return decltype(after)::is_candidate(bytes, now);
  }
  [[nodiscard]] bool should_evict(const tessera::policy::idle_segment& segment) const noexcept {
    if (segment.trigger == tessera::policy::eviction_trigger::on_request) return after.should_evict(segment);
    return decltype(above)::is_candidate(segment.bytes, {}) && above.should_evict(segment);
  }
  bool operator==(const evict_above_or_after&) const = default;
};

// CPU operators are done when they return, so a freed block can be reused at once.
using recipe = tessera::recipe::with<tessera::recipe::pytorch<"expandable_segments:True">,
                                     tessera::policy::reuse_immediately, evict_above_or_after>;
using inner_allocator = tessera::caching_allocator<recipe, torch_cpu::private_memory>;

/// An allocator with a mutex that stays usable in a child process. `locked` has no functions for fork().
class fork_safe : public tessera::allocator_adaptor<fork_safe, inner_allocator> {
 public:
  void lock() noexcept { mutex_.lock(); }
  void unlock() noexcept { mutex_.unlock(); }
  /// Unlocks in a child process of fork(), which has no copies of other threads.
  void unlock_in_child() noexcept {
    if (std::exchange(has_thread_, false)) lacks_thread_ = true;
    unlock();
  }

  /// Releases memory that was idle for `milliseconds`, from a thread. `unlimited` ends the thread.
  ///   Returns:  false if the system has no thread left
  bool evict_after(std::uint64_t milliseconds) noexcept {
    const std::lock_guard held(mutex_);
    allocator_.visit_policies([=](auto& settings) { settings.eviction.after.time = milliseconds; });
    return milliseconds == tessera::unlimited || start_thread();
  }
  /// Starts the thread that a child process lacks.
  void replace_lost_thread() noexcept {
    if (!lacks_thread_.load(std::memory_order_relaxed)) return;
    const std::lock_guard held(mutex_);
    start_thread();
  }

 private:
  friend tessera::allocator_adaptor<fork_safe, inner_allocator>;

  bool start_thread() noexcept {
    lacks_thread_ = false;
    if (has_thread_) return true;
    // Signals go to the program's own threads.
    sigset_t all, before;
    (void)::sigfillset(&all);
    (void)::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([this] { evict_in_rounds(); }).detach();
      has_thread_ = true;
    } catch (const std::system_error&) {
    }
    (void)::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return has_thread_;
  }
  void evict_in_rounds() noexcept {
    for (std::unique_lock held(mutex_);;) {
      std::uint64_t time = 0;
      allocator_.visit_policies([&](const auto& settings) { time = settings.eviction.after.time; });
      if (time == tessera::unlimited) {
        has_thread_ = false;
        return;
      }
      held.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(std::clamp<std::uint64_t>(time / 4, 10, 1000)));
      held.lock();
      allocator_.evict_idle();
    }
  }
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& call) {
    const std::lock_guard held(me.mutex_);
    return std::forward<F>(call)(me.allocator_);
  }

  mutable std::mutex mutex_;
  inner_allocator allocator_{torch_cpu::private_memory{}};
  bool has_thread_ = false;
  std::atomic<bool> lacks_thread_{false};
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
  memory().replace_lost_thread();
  if (free_of_previous == nullptr) return memory().deallocate(p);
  if (!memory().try_deallocate(p)) free_of_previous(p);
}

/// Throws the type and the first line of PyTorch's own allocator.
[[noreturn, gnu::noinline, gnu::cold]] void refuse(std::size_t bytes) {
  c10::profiledCPUMemoryReporter().OutOfMemory(bytes);
  TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory: you tried to allocate ", bytes,
              " bytes. Error code 12 (Cannot allocate memory)\n",
              tessera::observe::explain(memory(), bytes, tessera::stream_id{}).text().c_str());
  std::abort();  // not reached: the compiler does not know that the check throws
}

/// Compiles with PyTorch 1.13, 2.6 and 2.14. `allocate` is const in the first, and `copy_data` is new in the second. So
/// these functions cannot say `override`.
class cpu_allocator final : public c10::Allocator {
 public:
  // NOLINTBEGIN(modernize-use-override)
  c10::DataPtr allocate(std::size_t bytes) { return make_block(bytes); }
  c10::DataPtr allocate(std::size_t bytes) const { return make_block(bytes); }
  void copy_data(void* to, const void* from, std::size_t bytes) const { std::memcpy(to, from, bytes); }
  // NOLINTEND(modernize-use-override)
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }

 private:
  /// Returns null for 0 bytes. Addresses are multiples of 512 bytes; PyTorch needs 64.
  static c10::DataPtr make_block(std::size_t bytes) {
    void* const p = memory().try_allocate(bytes);
    if (p == nullptr && bytes != 0) refuse(bytes);
    c10::DataPtr block(p, p, &free_block, c10::Device(c10::DeviceType::CPU));
    c10::profiledCPUMemoryReporter().New(p, bytes);
    return block;
  }
};

/// Installs the allocator while the library is loaded.
const bool is_installed = [] {
  free_of_previous = c10::GetCPUAllocator()->raw_deleter();
  (void)::pthread_atfork([] { memory().lock(); }, [] { memory().unlock(); },
                         [] { memory().unlock_in_child(); });
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
  return tessera::interop::set_memory_fraction(memory(), fraction);
}
/// Before growth, releases memory that was idle for long if more than this fraction of the limit is reserved.
/// It has an effect after tessera_cpu_memory_fraction. 0 switches it off.
///   Returns:  false if the fraction is not from 0 to 1
EXPORT(bool) tessera_cpu_garbage_collection_threshold(double fraction) {
  if (!(fraction >= 0 && fraction <= 1)) return false;
  memory().visit_policies([fraction](auto& settings) {
    settings.eviction.above.threshold = tessera::fraction{static_cast<std::uint64_t>(fraction * 1e9)};
  });
  return true;
}
/// Releases memory that was idle for this many milliseconds. A thread does it, about every quarter of the time, but at
/// least 10 ms and at most 1 s apart. A number below 0 stops it, as at the start.
///   Returns:  false if the system has no thread left
EXPORT(bool) tessera_cpu_evict_after(std::int64_t milliseconds) {
  return memory().evict_after(milliseconds < 0 ? tessera::unlimited
                                               : static_cast<std::uint64_t>(milliseconds));
}
/// Writes JSON with the keys of torch.cuda.memory_stats_as_nested_dict().
///   Returns:  the length of the text, whatever the size
EXPORT(std::size_t) tessera_cpu_statistics(char* out, std::size_t size) {
  const std::string text = tessera::observe::memory_report(memory()).json();
  return static_cast<std::size_t>(std::snprintf(out, size, "%s", text.c_str()));
}
EXPORT(void) tessera_cpu_reset_peak_statistics() { memory().reset_peak_statistics(); }
EXPORT(void) tessera_cpu_reset_accumulated_statistics() { memory().reset_accumulated_statistics(); }
