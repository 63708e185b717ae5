// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <utility>

#include <unistd.h>

#include <tessera/allocator_adaptor.hpp>

namespace tessera::inline v0_1::debug {

/// Aborts when a second thread uses a caching_allocator. The message names both threads by the numbers that
/// debuggers show.
///
/// Choose it to check that only one thread uses an allocator. The first thread that uses the allocator owns
/// it until detach_from_thread(). Any thread may destroy it. Linux.
///
///     using allocator_type = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>;
///     tessera::debug::thread_checked<allocator_type> mine;
///     mine.deallocate(mine.allocate(5_MiB));
///     mine.detach_from_thread();  // the next thread that uses it owns it
///
/// The system may reuse the number of a thread that ended. The new thread then counts as the old thread.
///   Cost:  two loads for each call
template <typename Allocator>
class thread_checked : public detail::wrapping_adaptor<thread_checked<Allocator>, Allocator> {
  using adaptor_type = detail::wrapping_adaptor<thread_checked, Allocator>;
  using adaptor_type::allocator_;

 public:
  using adaptor_type::adaptor_type;

  /// Ends the ownership. The next thread that uses the allocator owns it, and sees all changes made before.
  void detach_from_thread() noexcept {
    own_or_abort();
    owner_.store(no_thread, std::memory_order_release);
  }
  /// Makes the calling thread the owner, even if another thread is the owner. Call it to inspect the
  /// allocator before it is destroyed.
  void attach_to_thread() noexcept { owner_.store(my_number(), std::memory_order_relaxed); }

  /// The wrapped allocator, after the check.
  [[nodiscard]] Allocator& inner() noexcept {
    own_or_abort();
    return allocator_;
  }
  [[nodiscard]] auto& policies() noexcept
    requires requires(Allocator& in) { in.policies(); }
  {
    return inner().policies();
  }
  [[nodiscard]] auto& provider() noexcept
    requires requires(Allocator& in) { in.provider(); }
  {
    return inner().provider();
  }

 private:
  friend allocator_adaptor<thread_checked, Allocator>;
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& f) {
    me.own_or_abort();
    return std::forward<F>(f)(me.allocator_);
  }

  using thread_number = std::int64_t;
  static constexpr thread_number no_thread = 0;

  [[nodiscard]] static thread_number my_number() noexcept {
    static thread_local const thread_number me = ::gettid();
    return me;
  }
  /// Makes the calling thread the owner if there is none. Aborts if another thread is the owner.
  void own_or_abort() const noexcept {
    const thread_number me = my_number();
    thread_number owner = owner_.load(std::memory_order_relaxed);
    if (owner == me) return;
    if (owner == no_thread && owner_.compare_exchange_strong(owner, me, std::memory_order_acquire)) return;
    abort_for(me, owner);
  }
  [[noreturn, gnu::noinline, gnu::cold]] static void abort_for(thread_number me,
                                                               thread_number owner) noexcept {
    detail::fixed_text text;
    text.add("thread_checked: thread ")
        .add(static_cast<std::uint64_t>(me))
        .add(" uses an allocator of thread ");
    text.add(static_cast<std::uint64_t>(owner)).add(", which has not detached from it");
    detail::fatal(text.c_str());
  }

  mutable std::atomic<thread_number> owner_{no_thread};
};

}  // namespace tessera::inline v0_1::debug
