// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <utility>

#include <tessera/caching_allocator.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/oom_report.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/allocate_calls.hpp>
#include <tessera/observe/explain_failure.hpp>
#include <tessera/observe/oom_advice.hpp>

namespace tessera {

/// An allocator for several threads (`locked`, `per_stream`) that waits where memory ran out: until another thread frees
/// something through it, then it tries again, and so on until it was patient for long enough. All else is as there.
///
/// A thread that waits for what it holds itself, or for frees that do not come this way, waits in vain; where a collector
/// holds it, on_pressure may flush that. Each try counts as one in the statistics. However often others free, no wait
/// begins once that time is over, and none lasts longer; one last try follows. `Clock` says what time it is, and `Changed`,
/// a condition variable, waits by it. A callback of on_pressure that allocates through this waits as long as others do,
/// within the wait of the thread that calls it.
///
///     #include <tessera/concurrent/locked.hpp>
///     using shared = tessera::locked<tessera::pytorch<>, tessera::simulated_device>;
///     tessera::retrying<shared> patient(std::chrono::seconds(2));
///     void* p = patient.allocate(5_MiB);  // throws out_of_memory two seconds after it found none
///     patient.deallocate(p);
///
///   Source:  Paddle's gpu_allocator_retry_time, where a free may be missed
template <typename Allocator, typename Clock = std::chrono::steady_clock,
          typename Changed = std::condition_variable>
class retrying : public Allocator, public allocate_calls<retrying<Allocator, Clock, Changed>> {
  using calls = allocate_calls<retrying>;

 public:
  static constexpr std::chrono::milliseconds usual_patience{10'000};

  retrying() = default;
  using Allocator::Allocator;
  /// With a patience of 0 or less it never waits.
  template <typename... Rest>
  explicit retrying(std::chrono::milliseconds patience, Rest&&... rest)
      : Allocator(std::forward<Rest>(rest)...), patience_(patience < longest ? patience : longest) {}

  [[nodiscard]] std::chrono::milliseconds patience() const noexcept { return patience_; }

  using calls::allocate, calls::try_allocate, calls::deallocate, Allocator::record_stream;
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    const auto once = [&] { return Allocator::try_allocate(bytes, stream); };
    void* const p = try_in_time(bytes, once);
    return p != nullptr ? p : once();
  }
  [[nodiscard]] handle allocate_by_handle(std::size_t bytes, stream_id stream = {}) noexcept
    requires requires(Allocator& a) { a.allocate_by_handle(bytes, stream); }
  {
    const auto once = [&] { return Allocator::allocate_by_handle(bytes, stream); };
    const handle h = try_in_time(bytes, once);
    return h ? h : once();
  }

  /// The allocator's, which says also how long was waited.
  [[nodiscard]] out_of_memory failure(std::size_t bytes, stream_id stream = {}) noexcept {
    oom_report told = Allocator::failure(bytes, stream).report();
    if (bytes <= max_request) told.waited_ms = patience_.count();
    advise(told);
    return out_of_memory(told);
  }

  void deallocate(void* p) noexcept { Allocator::deallocate(p), freed(); }
  void deallocate(void* p, std::size_t bytes) noexcept { Allocator::deallocate(p, bytes), freed(); }
  void deallocate(handle h) noexcept
    requires requires(Allocator& a) { a.deallocate(h); }
  {
    Allocator::deallocate(h), freed();
  }
  [[nodiscard]] bool try_deallocate(void* p) noexcept {
    const bool done = Allocator::try_deallocate(p);
    if (done) freed();
    return done;
  }
  void trim(std::size_t keep = 0) noexcept { Allocator::trim(keep), freed(); }

 private:
  static constexpr std::chrono::milliseconds longest = std::chrono::hours(24 * 365);

  struct waiter {
    std::thread::id thread;
    bool hopes;  ///< something was freed since its latest try began
    waiter* next;
  };

  /// What once() gives before the time is over; the last try of all is left to the caller.
  template <typename F>
  [[nodiscard]] auto try_in_time(std::size_t bytes, F once) noexcept -> decltype(once()) {
    decltype(once()) got{};
    if (bytes == 0 || bytes > max_request || patience_.count() <= 0) return got;
    got = once();
    if (got) return got;
    const auto deadline = Clock::now() + patience_;
    waiting_.fetch_add(1, std::memory_order_acq_rel);
    std::unique_lock lock(mutex_);
    waiter me{std::this_thread::get_id(), false, first_};
    first_ = &me;
    for (bool in_time = true; !got && in_time;) {
      me.hopes = false;
      lock.unlock();
      got = once();
      lock.lock();
      in_time =
          got || (changed_.wait_until(lock, deadline, [&me] { return me.hopes; }) && Clock::now() < deadline);
    }
    waiter** at = &first_;
    while (*at != &me) at = &(*at)->next;
    *at = me.next;
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    return got;
  }
  void freed() noexcept {
    // Whoever begins to wait behind this, in the order of changes of `waiting_`, finds what was freed in its next try.
    if (waiting_.fetch_add(0, std::memory_order_acq_rel) == 0) return;
    const std::lock_guard lock(mutex_);
    // What a callback frees in a thread's own try, that try has found already.
    for (waiter* w = first_; w != nullptr; w = w->next)
      w->hopes = w->hopes || w->thread != std::this_thread::get_id();
    changed_.notify_all();
  }

  std::chrono::milliseconds patience_ = usual_patience;
  std::atomic<std::size_t> waiting_{0};
  std::mutex mutex_;
  Changed changed_;
  waiter* first_ = nullptr;
};

}  // namespace tessera
