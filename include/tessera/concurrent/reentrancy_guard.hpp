// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

#include <tessera/core/allocator_event.hpp>
#include <tessera/core/fatal.hpp>

namespace tessera {

/// Which threads are in a function of the user that an allocator calls with a lock of its own held. Where such a function
/// uses the allocator it would wait for itself, or for a thread that waits for it: then the program ends in words.
class user_calls {
 public:
  /// The locks of an allocator, in the order of taking: under each, a thread may take those behind it.
  enum class lock : unsigned char { settings, blocks, observer, device };

  /// Notes a call as long as it lives.
  class call {
   public:
    call(user_calls& in, lock held, const char* rule) noexcept : in_(in), held_(held), rule_(rule) {
      begin();
    }
    call(const call&) = delete;
    call& operator=(const call&) = delete;
    ~call() {
      const std::lock_guard changing(in_.mutex_);
      if (in_.first_.load(std::memory_order_relaxed) == this) {
        in_.first_.store(next_, std::memory_order_relaxed);
      } else {
        call* before = in_.first_.load(std::memory_order_relaxed);
        while (before->next_ != this) before = before->next_;
        before->next_ = next_;
      }
    }

   private:
    friend user_calls;
    void begin() noexcept {
      const std::lock_guard changing(in_.mutex_);
      next_ = in_.first_.exchange(this, std::memory_order_relaxed);
    }

    user_calls& in_;
    lock held_;
    const char* rule_;
    std::thread::id thread_ = std::this_thread::get_id();
    call* next_ = nullptr;
  };

  user_calls() = default;
  user_calls(const user_calls&) = delete;
  user_calls& operator=(const user_calls&) = delete;

  /// Tells a sink.
  ///   Requires:  one thread at a time does, with a lock held
  template <event_observer Observer>
  void tell(Observer& observer, const allocator_event& event) noexcept {
    told_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    observer.on(event);
    told_.store(std::thread::id{}, std::memory_order_relaxed);
  }

  /// Asks whether the calling thread may take a lock, before it does; else the program ends.
  ///   Cost:  a load where no thread is in such a function, and another one where there is a sink
  template <event_observer Observer>
  void check(lock wanted) const noexcept {
    const bool is_telling =
        detail::is_heard<Observer> && told_.load(std::memory_order_relaxed) != std::thread::id{};
    if (is_telling || first_.load(std::memory_order_relaxed) != nullptr) [[unlikely]]
      check_this_thread(wanted);
  }

 private:
  [[gnu::noinline, gnu::cold]] void check_this_thread(lock wanted) const noexcept {
    const std::thread::id me = std::this_thread::get_id();
    if (wanted <= lock::observer && told_.load(std::memory_order_relaxed) == me)
      fatal("a sink must not use the allocator that tells it");
    const std::lock_guard reading(mutex_);
    for (const call* c = first_.load(std::memory_order_relaxed); c != nullptr; c = c->next_) {
      if (c->thread_ == me && wanted <= c->held_) fatal(c->rule_);
    }
  }

  std::atomic<call*> first_{nullptr};
  std::atomic<std::thread::id> told_{};
  mutable std::mutex mutex_;  // of the list
};

/// While one lives, who enters an allocator asks its users first.
template <typename Allocator>
class watched {
 public:
  explicit watched(Allocator& of) noexcept : of_(of) { of_.watch(1); }
  watched(const watched&) = delete;
  watched& operator=(const watched&) = delete;
  ~watched() { of_.watch(-1); }

 private:
  Allocator& of_;
};

/// A sink behind one mutex, which notes who is in it.
template <event_observer Observer>
class reported_observer : public Observer {
 public:
  reported_observer(Observer to, user_calls& in) noexcept : Observer(std::move(to)), in_(&in) {}
  void on(const allocator_event& event) noexcept { in_->tell(static_cast<Observer&>(*this), event); }

 private:
  user_calls* in_;
};
/// One that cannot be derived from.
template <event_observer Observer>
  requires std::is_final_v<Observer>
class reported_observer<Observer> {
 public:
  reported_observer(Observer to, user_calls& in) noexcept : to_(std::move(to)), in_(&in) {}
  void on(const allocator_event& event) noexcept { in_->tell(to_, event); }
  explicit operator Observer&() noexcept { return to_; }

 private:
  Observer to_;
  user_calls* in_;
};
/// Of nobody, nothing is to be noted.
template <>
class reported_observer<ignore_events> : public ignore_events {
 public:
  reported_observer(ignore_events, user_calls&) noexcept {}
};

}  // namespace tessera
