// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

namespace tessera::inline v0_1::detail {

/// Holds an object that threads use, and destroys it only in the process that made it. A forked process lacks the threads: there,
/// the destructor could wait for them for ever, and locks that they held stay locked.
///   Cost:  a system call for each is_here()
template <typename T>
class own_process {
 public:
  own_process() : object() {}
  explicit own_process(T made) : object(std::move(made)) {}
  own_process(own_process&& other) noexcept : object(std::move(other.object)), process_(other.process_) {}
  own_process& operator=(own_process&& other) noexcept {
    std::swap(object, other.object);
    std::swap(process_, other.process_);
    return *this;
  }
  ~own_process() {
    if (is_here()) object.~T();
  }

  /// Whether this process made the object.
  [[nodiscard]] bool is_here() const noexcept { return process_ == this_process(); }
  /// Makes it an object of this process.
  ///   Requires:  no thread of another process has used it
  void adopt() noexcept { process_ = this_process(); }

  [[nodiscard]] T& operator*() noexcept { return object; }
  [[nodiscard]] const T& operator*() const noexcept { return object; }
  /// Calls -> of the object, which is a pointer.
  [[nodiscard]] T& operator->() noexcept { return object; }
  [[nodiscard]] const T& operator->() const noexcept { return object; }

 private:
#if __has_include(<unistd.h>)
  using process_id = ::pid_t;
  static process_id this_process() noexcept { return ::getpid(); }
#else
  using process_id = int;
  static process_id this_process() noexcept { return 0; }
#endif

  union {
    T object;
  };
  process_id process_ = this_process();
};

}  // namespace tessera::inline v0_1::detail
