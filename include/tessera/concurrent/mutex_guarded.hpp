// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>

#include <tessera/caching_allocator.hpp>
#include <tessera/core/allocator_event.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/provider.hpp>

/// A caching_allocator with a mutex that is unlocked during slow device calls. Also checks that user
/// functions do not re-enter the allocator while a lock is held.
namespace tessera::detail {

/// Lists the threads that run a user function while they hold a lock of an allocator. Such a function would
/// deadlock if it used the allocator. The program aborts with a message instead.
class reentrancy_guard {
 public:
  /// The locks of an allocator in locking order. A thread that holds a lock may take only later locks.
  enum class lock : unsigned char { settings, blocks, observer, device };

  /// Lists the calling thread during its lifetime.
  class call {
   public:
    call(reentrancy_guard& guard, lock held, const char* rule) noexcept
        : guard_(guard), held_(held), rule_(rule) {
      insert();
    }
    call(const call&) = delete;
    call& operator=(const call&) = delete;
    ~call() {
      const std::lock_guard changing(guard_.mutex_);
      if (guard_.first_.load(std::memory_order_relaxed) == this) {
        guard_.first_.store(next_, std::memory_order_relaxed);
      } else {
        call* before = guard_.first_.load(std::memory_order_relaxed);
        while (before->next_ != this) before = before->next_;
        before->next_ = next_;
      }
    }

   private:
    friend reentrancy_guard;
    void insert() noexcept {
      const std::lock_guard changing(guard_.mutex_);
      next_ = guard_.first_.exchange(this, std::memory_order_relaxed);
    }

    reentrancy_guard& guard_;
    lock held_;
    const char* rule_;
    std::thread::id thread_ = std::this_thread::get_id();
    call* next_ = nullptr;
  };

  reentrancy_guard() = default;
  reentrancy_guard(const reentrancy_guard&) = delete;
  reentrancy_guard& operator=(const reentrancy_guard&) = delete;

  /// Reports an event to an observer.
  ///   Requires:  one thread at a time calls it, with a lock held
  template <event_observer Observer>
  void report(Observer& observer, const allocator_event& event) noexcept {
    reporting_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    observer.on(event);
    reporting_.store(std::thread::id{}, std::memory_order_relaxed);
  }

  /// Aborts if the calling thread must not take a lock. Call it before taking the lock.
  ///   Cost:  one load while no user function runs; a second load with an observer
  template <event_observer Observer>
  void check(lock wanted) const noexcept {
    const bool is_reporting =
        is_heard<Observer> && reporting_.load(std::memory_order_relaxed) != std::thread::id{};
    if (is_reporting || first_.load(std::memory_order_relaxed) != nullptr) [[unlikely]]
      check_this_thread(wanted);
  }

 private:
  [[gnu::noinline, gnu::cold]] void check_this_thread(lock wanted) const noexcept {
    const std::thread::id me = std::this_thread::get_id();
    if (wanted <= lock::observer && reporting_.load(std::memory_order_relaxed) == me)
      fatal("an observer must not use the allocator that calls it");
    const std::lock_guard reading(mutex_);
    for (const call* c = first_.load(std::memory_order_relaxed); c != nullptr; c = c->next_) {
      if (c->thread_ == me && wanted <= c->held_) fatal(c->rule_);
    }
  }

  std::atomic<call*> first_{nullptr};
  std::atomic<std::thread::id> reporting_{};
  mutable std::mutex mutex_;  // guards the list
};

/// During its lifetime, each call of an allocator checks for re-entrancy.
template <typename Allocator>
class scoped_watch {
 public:
  explicit scoped_watch(Allocator& pool) noexcept : pool_(pool) { pool_.watch(1); }
  scoped_watch(const scoped_watch&) = delete;
  scoped_watch& operator=(const scoped_watch&) = delete;
  ~scoped_watch() { pool_.watch(-1); }

 private:
  Allocator& pool_;
};

/// An observer with a mutex. The guard knows which thread the observer runs in.
template <event_observer Observer>
class reported_observer : public Observer {
 public:
  reported_observer(Observer to, reentrancy_guard& guard) noexcept
      : Observer(std::move(to)), guard_(&guard) {}
  void on(const allocator_event& event) noexcept { guard_->report(static_cast<Observer&>(*this), event); }

 private:
  reentrancy_guard* guard_;
};
/// The specialization for an observer class that is final.
template <event_observer Observer>
  requires std::is_final_v<Observer>
class reported_observer<Observer> {
 public:
  reported_observer(Observer to, reentrancy_guard& guard) noexcept : to_(std::move(to)), guard_(&guard) {}
  void on(const allocator_event& event) noexcept { guard_->report(to_, event); }
  explicit operator Observer&() noexcept { return to_; }

 private:
  Observer to_;
  reentrancy_guard* guard_;
};
/// The specialization without an observer: does nothing.
template <>
class reported_observer<ignore_events> : public ignore_events {
 public:
  reported_observer(ignore_events, reentrancy_guard&) noexcept {}
};

/// A mutex that its holder unlocks during a call, and a list of the calls in progress.
class unlockable_mutex {
 public:
  std::mutex mutex;

  /// Unlocks the mutex during its lifetime.
  ///   Requires:  the calling thread holds the mutex
  class call {
   public:
    explicit call(unlockable_mutex& of) noexcept : of_(of), serial_(++of.latest_), previous_(of.newest_) {
      if (previous_ != nullptr) ++of.counts_.overlaps;
      (previous_ != nullptr ? previous_->next_ : of.oldest_) = this;
      of.newest_ = this;
      of.mutex.unlock();
    }
    call(const call&) = delete;
    call& operator=(const call&) = delete;
    ~call() {
      of_.mutex.lock();
      (previous_ != nullptr ? previous_->next_ : of_.oldest_) = next_;
      (next_ != nullptr ? next_->previous_ : of_.newest_) = previous_;
      of_.ended_.notify_all();
    }

   private:
    friend unlockable_mutex;
    unlockable_mutex& of_;
    std::uint64_t serial_;
    std::thread::id thread_ = std::this_thread::get_id();
    call* previous_;
    call* next_ = nullptr;
  };

  /// Unlocks the mutex while f() runs. wait_for_calls() does not wait for f(), so f() may wait for calls of
  /// other allocators.
  ///   Requires:  the calling thread holds the mutex
  template <typename F>
  auto without(F f) noexcept {
    mutex.unlock();
    struct locks_at_its_end {
      std::mutex& left;
      ~locks_at_its_end() { left.lock(); }
    } const back{mutex};
    return f();
  }

  /// Unlocks the mutex while f() runs, and counts these calls. f() makes other allocators release cached
  /// memory.
  template <typename F>
  bool reclaim(F f) noexcept {
    ++counts_.reclaims;
    return without(f);
  }

  // The members below require that the calling thread holds the mutex.

  struct counts {
    std::uint64_t overlaps;  ///< calls that began while another call was in progress
    std::uint64_t reclaims;
  };
  [[nodiscard]] counts counted() const noexcept { return counts_; }
  [[nodiscard]] bool any_in_progress() const noexcept { return oldest_ != nullptr; }
  /// Waits until the calls that are in progress now have ended.
  ///   Requires:  the calling thread made none of these calls; aborts otherwise
  void wait_for_calls(std::unique_lock<std::mutex>& held) {
    for (const call* c = oldest_; c != nullptr; c = c->next_) {
      if (c->thread_ == std::this_thread::get_id())
        fatal("a provider must not use the allocator that calls it");
    }
    const std::uint64_t latest = latest_;
    ended_.wait(held, [this, latest] { return oldest_ == nullptr || oldest_->serial_ > latest; });
  }

 private:
  std::condition_variable ended_;
  call* oldest_ = nullptr;
  call* newest_ = nullptr;
  std::uint64_t latest_ = 0;
  counts counts_{};
};

/// A provider adaptor that unlocks the allocator's mutex during calls that may take long. The mutex stays
/// locked during map, unmap and the synchronize before them, because the allocator does all of these in one
/// step.
template <typename Device>
class unlocking_provider : public provider_adaptor<Device> {
 public:
  using typename provider_adaptor<Device>::event;

  unlocking_provider(Device& to, unlockable_mutex& mutex) noexcept
      : provider_adaptor<Device>(to), mutex_(&mutex) {}

  template <std::same_as<page_kind>... Kind>
    requires requires(Device& d, std::size_t bytes, Kind... kind) { d.acquire(bytes, kind...); }
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    const unlockable_mutex::call unlocked(*mutex_);
    return this->inner().acquire(bytes, kind...);
  }
  bool release(void* p, std::size_t bytes) noexcept {
    const unlockable_mutex::call unlocked(*mutex_);
    return this->inner().release(p, bytes);
  }
  bool reclaim() noexcept
    requires requires(Device& d) { d.reclaim(); }
  {
    return mutex_->reclaim([this] { return this->inner().reclaim(); });
  }
  bool wait(event& mark) noexcept
    requires requires(Device& d) { d.wait(mark); }
  {
    const unlockable_mutex::call unlocked(*mutex_);
    return this->inner().wait(mark);
  }

 private:
  unlockable_mutex* mutex_;
};

/// A caching allocator and its mutex. The mutex is unlocked while the device acquires or releases segments or
/// waits for events, and while a callback of on_pressure runs. `Device` must accept concurrent calls.
///   Requires:  `guard`, which several allocators may share, outlives it
template <typename Recipe, typename Device, event_observer Observer, typename Counting>
class mutex_guarded {
 public:
  using allocator = caching_allocator<Recipe, unlocking_provider<Device>, Observer, Counting>;

  template <typename From>
  mutex_guarded(reentrancy_guard& guard, From&& device, policies<Recipe> settings, Observer observer)
      : device_(std::forward<From>(device)),
        allocator_(unlocking_provider<Device>(device_, mutex_), std::move(settings), std::move(observer)),
        guard_(&guard) {}
  mutex_guarded(const mutex_guarded&) = delete;
  mutex_guarded& operator=(const mutex_guarded&) = delete;
  ~mutex_guarded() {
    while (callbacks_ != nullptr) delete std::exchange(callbacks_, callbacks_->next);
    mutex_.mutex.lock();  // the allocator unlocks it when it releases its segments
  }

  /// Calls f(allocator) with the mutex held. Slow device calls and callbacks unlock it, as described for the
  /// class.
  template <typename F>
  decltype(auto) enter(F&& f) {
    check();
    const std::lock_guard lock(mutex_.mutex);
    return std::forward<F>(f)(allocator_);
  }
  template <typename F>
  decltype(auto) enter(F&& f) const {
    check();
    const std::lock_guard lock(mutex_.mutex);
    return std::forward<F>(f)(std::as_const(allocator_));
  }
  /// Calls f(allocator) with the mutex held, for a user function. If f uses the allocator, the program aborts
  /// with the message `rule`.
  template <typename F>
  decltype(auto) enter_for_user(const char* rule, F&& f) {
    return enter([&](allocator& in) -> decltype(auto) {
      const scoped_watch<mutex_guarded> watch(*this);
      const reentrancy_guard::call running(*guard_, reentrancy_guard::lock::blocks, rule);
      return std::forward<F>(f)(in);
    });
  }
  /// Between watch(1) and watch(-1), each call checks for re-entrancy.
  void watch(int change) noexcept { watches_.fetch_add(change, relaxed); }

  /// Calls f(allocator), then try_allocate, which may be retried:
  ///
  /// * If it failed while other threads were in device calls, waits for these calls and retries once. The
  ///   calls may have released enough memory.
  /// * If it still fails, and other allocators were asked to release cached memory, asks them again and
  ///   retries up to eight times. They may have cached the memory again meanwhile.
  ///
  /// The statistics count each try.
  template <typename F>
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream, F&& f) noexcept {
    check();
    const std::lock_guard lock(mutex_.mutex);
    f(allocator_);
    const unlockable_mutex::counts before = mutex_.counted();
    void* const p = allocator_.try_allocate(bytes, stream);
    return p != nullptr ? p : try_again(bytes, stream, before);
  }
  /// Waits for the device calls in progress, then empties the cache. Returns whether it released memory.
  bool trim_after_calls() noexcept {
    check();
    std::unique_lock lock(mutex_.mutex);
    mutex_.wait_for_calls(lock);
    const std::size_t before = allocator_.current_usage().reserved;
    allocator_.trim();
    return allocator_.current_usage().reserved < before;
  }

  using callback = bool (*)(void* context) noexcept;
  [[nodiscard]] bool on_pressure(callback call, void* context) noexcept {
    check();
    const std::lock_guard lock(mutex_.mutex);
    auto* const added = new (std::nothrow) unlocked_callback{this, call, context, callbacks_};
    if (added == nullptr) return false;
    callbacks_ = added;
    return allocator_.on_pressure(
        [](void* added_before) noexcept {
          auto& self = *static_cast<unlocked_callback*>(added_before);
          return self.pool->mutex_.without([&self] { return self.call(self.context); });
        },
        added);
  }

  [[nodiscard]] Device& device() noexcept { return device_; }

 private:
  static constexpr std::memory_order relaxed = std::memory_order_relaxed;
  static constexpr int max_tries = 8;

  [[nodiscard, gnu::noinline]] void* try_again(std::size_t bytes, stream_id stream,
                                               unlockable_mutex::counts before) noexcept {
    if (bytes == 0 || bytes > max_request) return nullptr;
    std::unique_lock held(mutex_.mutex, std::adopt_lock);
    void* p = nullptr;
    if (before.overlaps != mutex_.counted().overlaps || mutex_.any_in_progress()) {
      mutex_.wait_for_calls(held);
      p = allocator_.try_allocate(bytes, stream);
    }
    if constexpr (detail::reclaiming_provider<unlocking_provider<Device>>) {
      const bool may_help = before.reclaims != mutex_.counted().reclaims;
      for (int i = 0; p == nullptr && may_help && i < max_tries && allocator_.device().reclaim(); ++i)
        p = allocator_.try_allocate(bytes, stream);
    }
    held.release();
    return p;
  }
  /// Checks for re-entrancy before it takes the mutex, because this thread may hold it in a user function.
  [[gnu::always_inline]] void check() const noexcept {
    if (is_heard<Observer> || watches_.load(relaxed) != 0) [[unlikely]]
      check_reentrancy();
  }
  [[gnu::noinline, gnu::cold]] void check_reentrancy() const noexcept {
    guard_->template check<Observer>(reentrancy_guard::lock::blocks);
  }

  struct unlocked_callback {
    mutex_guarded* pool;
    callback call;
    void* context;
    unlocked_callback* next;
  };

  struct unlocks_at_its_end {
    std::mutex& held;
    ~unlocks_at_its_end() { held.unlock(); }
  };

  mutable unlockable_mutex mutex_;
  Device device_;
  unlocks_at_its_end end_{mutex_.mutex};  // unlocks; destroyed after the allocator
  allocator allocator_;
  unlocked_callback* callbacks_ = nullptr;
  reentrancy_guard* guard_;
  std::atomic<int> watches_{0};
};

}  // namespace tessera::detail
