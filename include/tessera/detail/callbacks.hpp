// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <utility>

#include <tessera/core/allocator_event.hpp>
#include <tessera/core/fatal.hpp>

namespace tessera::detail {

/// User functions, called in the order of their registration.
class callback_list {
 public:
  using function = bool (*)(void* context) noexcept;

  callback_list() = default;
  callback_list(const callback_list&) = delete;
  callback_list& operator=(const callback_list&) = delete;
  ~callback_list() {
    while (first_ != nullptr) {
      callback* const following = first_->next;
      delete first_;
      first_ = following;
    }
  }

  /// Adds a function. Returns false if host memory ran out.
  [[nodiscard]] bool add(function call, void* context) noexcept {
    callback** at = &first_;
    while (*at != nullptr) at = &(*at)->next;
    *at = new (std::nothrow) callback{call, context, nullptr};
    return *at != nullptr;
  }

  /// Calls all functions, including functions added meanwhile. A nested call, also by another thread, calls
  /// nothing and returns false. Therefore, callbacks may use the allocator.
  ///   Returns:  whether any function returned true
  bool run() noexcept {
    if (running_) return false;
    running_ = true;
    bool any = false;
    for (const callback* c = first_; c != nullptr; c = c->next) any = c->call(c->context) || any;
    running_ = false;
    return any;
  }

 private:
  struct callback {
    function call;
    void* context;
    callback* next;
  };
  callback* first_ = nullptr;
  bool running_ = false;
};

/// Reports events to an observer, one at a time. The allocator is half changed during the call, so the
/// observer must not change it.
template <allocator_observer Observer>
class reporter {
 public:
  explicit reporter(Observer to) : to_(std::move(to)) {}

  /// Reports an event.
  ///   Requires:  the observer is not being called; otherwise the program aborts
  void report(const allocator_event& event) noexcept {
    if (std::exchange(reporting_, true)) fatal("an observer must not use the allocator that calls it");
    to_.on(event);
    reporting_ = false;
  }
  [[nodiscard]] Observer& observer() noexcept { return to_; }

 private:
  [[no_unique_address]] Observer to_;
  bool reporting_ = false;
};

/// Without an observer, nothing is reported.
template <allocator_observer Observer>
  requires(!is_heard<Observer>)
class reporter<Observer> {
 public:
  explicit reporter(Observer to) : to_(std::move(to)) {}
  [[nodiscard]] Observer& observer() noexcept { return to_; }

 private:
  [[no_unique_address]] Observer to_;
};

}  // namespace tessera::detail
