// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::inline v0_1::detail {

/// A value for each thread that has set one, and a value for all others. Threads are told apart by their ids, so no
/// storage is thread-local. A system may give the id of a thread that ended to a new thread.
///   Requires:  one call at a time
///   Cost:      linear in the threads that have set a value
template <typename T>
class per_thread {
 public:
  /// The value of the calling thread.
  [[nodiscard]] T get() const noexcept {
    for (const auto& [thread, value] : values_) {
      if (thread == std::this_thread::get_id()) return value;
    }
    return of_others_;
  }
  /// Sets the value of the calling thread; without a value, that of the other threads holds for it again.
  ///   Returns:  the value set before
  ///   Throws:   std::bad_alloc if the thread had none
  std::optional<T> set(std::optional<T> value) {
    const auto found = std::find_if(values_.begin(), values_.end(),
                                    [](const auto& of) { return of.first == std::this_thread::get_id(); });
    if (found == values_.end()) {
      if (value) values_.emplace_back(std::this_thread::get_id(), *value);
      return {};
    }
    const std::optional<T> before = found->second;
    if (value) {
      found->second = *value;
    } else {
      *found = values_.back();
      values_.pop_back();
    }
    return before;
  }
  /// Sets the value of the threads that have none.
  void set_for_others(T value) noexcept { of_others_ = value; }
  [[nodiscard]] T of_others() const noexcept { return of_others_; }

 private:
  T of_others_{};
  std::vector<std::pair<std::thread::id, T>> values_;
};

}  // namespace tessera::inline v0_1::detail
