// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <exception>
#include <type_traits>
#include <utility>

#include <tessera/core/error.hpp>
#include <tessera/facade.hpp>

namespace tessera {

/// An allocator of any kind that throws the exceptions of another library, so that its users catch what they know. All
/// other calls are the allocator's. Choose it under a shape, for a library that catches a type of its own.
///
/// `Raise` is called with what was to be thrown, an out_of_memory or a wait_failed, and throws the other library's type.
/// Where it returns instead, the exception itself is thrown.
///
///     #include <stdexcept>
///     #include <tessera/concurrent/locked.hpp>
///     struct their_errors {
///       void operator()(const std::exception& error) const { throw std::runtime_error(error.what()); }
///     };
///     using locked_pool = tessera::locked<tessera::pytorch<>, tessera::simulated_device>;
///     tessera::rethrowing<locked_pool, their_errors> theirs;
///     theirs.deallocate(theirs.allocate(1000));  // throws std::runtime_error where nothing is left
///
///   Cost:  nothing where memory is found
template <typename Allocator, typename Raise>
class rethrowing : public facade<rethrowing<Allocator, Raise>, Allocator> {
  static_assert(std::is_default_constructible_v<Raise> && std::is_invocable_v<Raise, const std::exception&>,
                "rethrowing: Raise must be a function object that takes a const std::exception&");

 public:
  template <typename... Args>
    requires std::constructible_from<Allocator, Args...>
  explicit rethrowing(Args&&... args) : allocator_(std::forward<Args>(args)...) {}

  /// The wrapped allocator.
  [[nodiscard]] Allocator& inner() noexcept { return allocator_; }

  /// Throws an exception as this allocator does.
  template <typename Error>
  [[noreturn]] static void raise(const Error& error) {
    Raise{}(error);
    tessera::raise(error);
  }

 private:
  friend facade<rethrowing, Allocator>;
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& f) {
    return std::forward<F>(f)(me.allocator_);
  }

  Allocator allocator_;
};

}  // namespace tessera
