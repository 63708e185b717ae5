// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>

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

}  // namespace tessera::detail
