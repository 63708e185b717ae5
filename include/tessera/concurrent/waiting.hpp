// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/provider/own_process.hpp>

namespace tessera::inline v0_1::concurrent {

/// Waits on out-of-memory until another thread frees memory or the timeout expires; otherwise behaves like
/// `Allocator`.
///
/// Choose it if threads take turns because the memory does not suffice for all of them. `Allocator` is an
/// allocator for several threads, such as `locked` or `per_stream`.
///
///     #include <tessera/concurrent/locked.hpp>
///     using shared = tessera::concurrent::locked<tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>;
///     tessera::concurrent::waiting<shared> allocator(std::chrono::seconds(2));
///     void* p = allocator.allocate(5_MiB);  // throws out_of_memory two seconds after it found none
///     allocator.deallocate(p);
///
/// Each free by another thread through this allocator starts a retry. Frees by the waiting thread itself do
/// not. After the timeout, it retries once more and then fails. The statistics count each try. A request in
/// an on_pressure callback may wait, too, but not longer than the request that runs the callback. Let a
/// callback flush each deferred_free_queue, which otherwise keeps freed blocks from other threads.
///
/// Tests replace `Clock`, and `Changed`, a condition variable that uses it.
///   Source:  Paddle's gpu_allocator_retry_time; Paddle may miss a free
template <typename Allocator, typename Clock = std::chrono::steady_clock,
          typename Changed = std::condition_variable>
class waiting : public detail::wrapping_adaptor<waiting<Allocator, Clock, Changed>, Allocator> {
  using adaptor_type = detail::wrapping_adaptor<waiting, Allocator>;
  using adaptor_type::allocator_;

 public:
  /// As Paddle's gpu_allocator_retry_time.
  static constexpr std::chrono::milliseconds default_timeout{10'000};

  waiting() = default;
  /// Makes the allocator from the arguments. Frees through inner() wake no waiting thread.
  using adaptor_type::adaptor_type;
  /// Makes the allocator from `args`, with a timeout. With a timeout of 0 or less, it never waits.
  template <typename... Args>
    requires std::constructible_from<Allocator, Args...>
  explicit waiting(std::chrono::milliseconds timeout, Args&&... args)
      : adaptor_type(std::forward<Args>(args)...), timeout_(timeout < max_timeout ? timeout : max_timeout) {}

  /// How long a request waits for memory that other threads free, before it fails.
  [[nodiscard]] std::chrono::milliseconds timeout() const noexcept { return timeout_; }

  /// Returns the exception that allocate would throw, with the time waited.
  [[nodiscard]] out_of_memory make_out_of_memory(std::size_t bytes, stream_id stream = {}) const noexcept {
    detail::oom_numbers numbers = allocator_.make_out_of_memory(bytes, stream).numbers();
    if (bytes <= max_request) numbers.waited_ms = timeout_.count();
    return out_of_memory(numbers);
  }

 private:
  friend allocator_adaptor<waiting, Allocator>;

  using adaptor_type::on_call;
  template <typename F>
  static auto on_call(waiting& me, const detail::request_call& call, F once) noexcept {
    const auto got = me.try_in_time(call.bytes, once);
    return got ? got : once();
  }
  static void after_free(waiting& me) noexcept { me.notify(); }

  static constexpr std::chrono::milliseconds max_timeout = std::chrono::hours(24 * 365);

  struct waiter {
    std::thread::id thread;
    bool may_succeed;  ///< memory was freed since the latest try began
    waiter* next;
  };

  /// Calls once() until it succeeds or the timeout expires. The caller makes the last try.
  template <typename F>
  [[nodiscard]] auto try_in_time(std::size_t bytes, F once) noexcept -> decltype(once()) {
    decltype(once()) got{};
    if (bytes == 0 || bytes > max_request || timeout_.count() <= 0) return got;
    got = once();
    if (got) return got;
    const auto deadline = Clock::now() + timeout_;
    waiters_.fetch_add(1, std::memory_order_acq_rel);
    std::unique_lock lock(mutex_);
    waiter me{std::this_thread::get_id(), false, first_};
    first_ = &me;
    for (bool in_time = true; !got && in_time;) {
      me.may_succeed = false;
      lock.unlock();
      got = once();
      lock.lock();
      in_time = got || ((*changed_).wait_until(lock, deadline, [&me] { return me.may_succeed; }) &&
                        Clock::now() < deadline);
    }
    waiter** at = &first_;
    while (*at != &me) at = &(*at)->next;
    *at = me.next;
    waiters_.fetch_sub(1, std::memory_order_relaxed);
    return got;
  }
  void notify() noexcept {
    // A thread that increments `waiters_` after this operation finds the freed block in its next try.
    if (waiters_.fetch_add(0, std::memory_order_acq_rel) == 0) return;
    const std::lock_guard lock(mutex_);
    // A thread needs no wake-up for blocks that a callback frees during its own try, because that try finds
    // them.
    for (waiter* w = first_; w != nullptr; w = w->next)
      w->may_succeed = w->may_succeed || w->thread != std::this_thread::get_id();
    (*changed_).notify_all();
  }

  std::chrono::milliseconds timeout_ = default_timeout;
  std::atomic<std::size_t> waiters_{0};
  std::mutex mutex_;
  detail::own_process<Changed> changed_;
  waiter* first_ = nullptr;
};

}  // namespace tessera::inline v0_1::concurrent
