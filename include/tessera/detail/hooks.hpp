// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>

namespace tessera::detail {

/// Functions that a user asked to be called, in the order of asking.
class hooks {
 public:
  using function = bool (*)(void* context) noexcept;

  hooks() = default;
  hooks(const hooks&) = delete;
  hooks& operator=(const hooks&) = delete;
  ~hooks() {
    while (first_ != nullptr) {
      hook* const following = first_->next;
      delete first_;
      first_ = following;
    }
  }

  /// False where host memory ran out.
  [[nodiscard]] bool add(function call, void* context) noexcept {
    hook** at = &first_;
    while (*at != nullptr) at = &(*at)->next;
    *at = new (std::nothrow) hook{call, context, nullptr};
    return *at != nullptr;
  }

  /// Calls all; whether any said true. While they run, asking again, also for another thread, calls none and gives
  /// false, so that they may use the allocator; one that is added then is called too.
  bool run() noexcept {
    if (running_) return false;
    running_ = true;
    bool any = false;
    for (const hook* h = first_; h != nullptr; h = h->next) any = h->call(h->context) || any;
    running_ = false;
    return any;
  }

 private:
  struct hook {
    function call;
    void* context;
    hook* next;
  };
  hook* first_ = nullptr;
  bool running_ = false;
};

}  // namespace tessera::detail
