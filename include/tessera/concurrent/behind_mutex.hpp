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
#include <utility>

#include <tessera/caching_allocator.hpp>
#include <tessera/concurrent/reentrancy_guard.hpp>
#include <tessera/core/allocator_event.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/forwarding.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// A mutex that its holder lets go of for the time of a call, and the calls for which that is so now.
class leavable_mutex {
 public:
  std::mutex mutex;

  /// Lets go of the mutex as long as it lives.
  ///   Requires:  the calling thread holds the mutex
  class call {
   public:
    explicit call(leavable_mutex& of) noexcept : of_(of), serial_(++of.latest_), previous_(of.newest_) {
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
    friend leavable_mutex;
    leavable_mutex& of_;
    std::uint64_t serial_;
    std::thread::id thread_ = std::this_thread::get_id();
    call* previous_;
    call* next_ = nullptr;
  };

  /// Unlocks the mutex while f() runs. No call waits for f(), so f() may wait for calls behind other mutexes.
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

  /// The same, and counts how often f() was called, which has others give back what they cache.
  template <typename F>
  bool reclaim(F f) noexcept {
    ++counts_.reclaims;
    return without(f);
  }

  // All that follows is asked with the mutex held.

  struct counts {
    std::uint64_t overlaps;  ///< calls that began while another one was under way
    std::uint64_t reclaims;
  };
  [[nodiscard]] counts counted() const noexcept { return counts_; }
  [[nodiscard]] bool any_under_way() const noexcept { return oldest_ != nullptr; }
  /// Returns once the calls that are under way now have ended.
  ///   Requires:  none of them is the calling thread's; else the program ends
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

/// What the engine below a mutex takes for its provider: lets go of the mutex where a call may take long. Not where pages
/// are mapped and unmapped, nor in synchronize, which comes before that: the engine does all of it in one piece.
template <typename Device>
class outside : public forwarding<Device> {
 public:
  using typename forwarding<Device>::event;

  outside(Device& to, leavable_mutex& inside) noexcept : forwarding<Device>(to), inside_(&inside) {}

  template <std::same_as<page_kind>... Kind>
    requires requires(Device& d, std::size_t bytes, Kind... kind) { d.acquire(bytes, kind...); }
  [[nodiscard]] void* acquire(std::size_t bytes, Kind... kind) noexcept {
    const leavable_mutex::call under_way(*inside_);
    return this->to().acquire(bytes, kind...);
  }
  bool release(void* p, std::size_t bytes) noexcept {
    const leavable_mutex::call under_way(*inside_);
    return this->to().release(p, bytes);
  }
  bool reclaim() noexcept
    requires requires(Device& d) { d.reclaim(); }
  {
    return inside_->reclaim([this] { return this->to().reclaim(); });
  }
  bool wait(event& mark) noexcept
    requires requires(Device& d) { d.wait(mark); }
  {
    const leavable_mutex::call under_way(*inside_);
    return this->to().wait(mark);
  }

 private:
  leavable_mutex* inside_;
};

/// A caching allocator and the mutex before it, which nobody holds while the device gives or takes back segments or waits
/// for events, nor while a callback of on_pressure runs. `Device` may be called from several threads at once.
///   Requires:  `users`, which may be those of several, outlives it
template <typename Recipe, typename Device, event_observer Observer, typename Counting>
class behind_mutex {
 public:
  using allocator = caching_allocator<Recipe, outside<Device>, Observer, Counting>;

  template <typename From>
  behind_mutex(user_calls& users, From&& device, policies<Recipe> chosen, Observer observer)
      : device_(std::forward<From>(device)),
        allocator_(outside<Device>(device_, mutex_), std::move(chosen), std::move(observer)),
        users_(&users) {}
  behind_mutex(const behind_mutex&) = delete;
  behind_mutex& operator=(const behind_mutex&) = delete;
  ~behind_mutex() {
    while (callbacks_ != nullptr) delete std::exchange(callbacks_, callbacks_->next);
    mutex_.mutex.lock();  // which the allocator lets go of when it gives its segments back
  }

  /// Calls f(allocator) with the mutex held, except as said above.
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

  /// The same for a function of the user, which the users note under a rule.
  template <typename F>
  decltype(auto) lend(const char* rule, F&& f) {
    return enter([&](allocator& in) -> decltype(auto) {
      const watched<behind_mutex> here(*this);
      const user_calls::call noted(*users_, user_calls::lock::blocks, rule);
      return std::forward<F>(f)(in);
    });
  }
  /// From 1 to -1, who enters asks the users first.
  void watch(int change) noexcept { watched_by_.fetch_add(change, relaxed); }

  /// The allocator's try_allocate, behind f(allocator). Where that fails while other threads are at the device, which may
  /// be about to give back what is wanted, waits for those calls to end and tries once more. Where others were asked to give
  /// back what they cache, tries again as long as they do, for they may have cached it anew before it was asked for. Each
  /// try is counted.
  template <typename F>
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream, F&& f) noexcept {
    check();
    const std::lock_guard lock(mutex_.mutex);
    f(allocator_);
    const leavable_mutex::counts before = mutex_.counted();
    void* const p = allocator_.try_allocate(bytes, stream);
    return p != nullptr ? p : try_again(bytes, stream, before);
  }
  /// Waits for the calls to the device that are under way, then empties the cache; whether that gave something back.
  bool trim_after_calls() noexcept {
    check();
    std::unique_lock lock(mutex_.mutex);
    mutex_.wait_for_calls(lock);
    const std::size_t before = allocator_.now().reserved;
    allocator_.trim();
    return allocator_.now().reserved < before;
  }

  using callback = bool (*)(void* context) noexcept;
  [[nodiscard]] bool on_pressure(callback call, void* context) noexcept {
    check();
    const std::lock_guard lock(mutex_.mutex);
    auto* const made = new (std::nothrow) outside_callback{this, call, context, callbacks_};
    if (made == nullptr) return false;
    callbacks_ = made;
    return allocator_.on_pressure(
        [](void* given) noexcept {
          auto& self = *static_cast<outside_callback*>(given);
          return self.of->mutex_.without([&self] { return self.call(self.context); });
        },
        made);
  }

  [[nodiscard]] Device& device() noexcept { return device_; }

 private:
  static constexpr std::memory_order relaxed = std::memory_order_relaxed;
  static constexpr int most_tries = 8;

  [[nodiscard, gnu::noinline]] void* try_again(std::size_t bytes, stream_id stream,
                                               leavable_mutex::counts before) noexcept {
    if (bytes == 0 || bytes > max_request) return nullptr;
    std::unique_lock held(mutex_.mutex, std::adopt_lock);
    void* p = nullptr;
    if (before.overlaps != mutex_.counted().overlaps || mutex_.any_under_way()) {
      mutex_.wait_for_calls(held);
      p = allocator_.try_allocate(bytes, stream);
    }
    if constexpr (reclaiming_provider<outside<Device>>) {
      const bool may_help = before.reclaims != mutex_.counted().reclaims;
      for (int i = 0; p == nullptr && may_help && i < most_tries && allocator_.device().reclaim(); ++i)
        p = allocator_.try_allocate(bytes, stream);
    }
    held.release();
    return p;
  }
  /// Before the mutex is taken: its holder may be this thread, in a function of the user.
  [[gnu::always_inline]] void check() const noexcept {
    if (detail::is_heard<Observer> || watched_by_.load(relaxed) != 0) [[unlikely]]
      check_users();
  }
  [[gnu::noinline, gnu::cold]] void check_users() const noexcept {
    users_->template check<Observer>(user_calls::lock::blocks);
  }

  struct outside_callback {
    behind_mutex* of;
    callback call;
    void* context;
    outside_callback* next;
  };

  struct unlocks_at_its_end {
    std::mutex& held;
    ~unlocks_at_its_end() { held.unlock(); }
  };

  mutable leavable_mutex mutex_;
  Device device_;
  unlocks_at_its_end end_{mutex_.mutex};  // behind that of the allocator
  allocator allocator_;
  outside_callback* callbacks_ = nullptr;
  user_calls* users_;
  std::atomic<int> watched_by_{0};
};

}  // namespace tessera
