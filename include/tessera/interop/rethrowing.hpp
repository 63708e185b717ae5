// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <type_traits>

#include <tessera/core/error.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/allocate_calls.hpp>

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
class rethrowing : public Allocator, public allocate_calls<rethrowing<Allocator, Raise>> {
  using calls = allocate_calls<rethrowing>;
  static_assert(std::is_default_constructible_v<Raise> && std::is_invocable_v<Raise, const std::exception&>,
                "rethrowing: Raise must be a function object that takes a const std::exception&");

 public:
  using Allocator::Allocator;
  using Allocator::deallocate, Allocator::record_stream, Allocator::try_allocate, calls::allocate;

  ///   Throws:  what `Raise` throws
  [[nodiscard]] void* allocate(std::size_t bytes, stream_id stream = {}) {
    if (void* const p = Allocator::try_allocate(bytes, stream); p != nullptr || bytes == 0) return p;
    raise(Allocator::failure(bytes, stream));
  }

  /// Throws an exception as this allocator does.
  template <typename Error>
  [[noreturn]] static void raise(const Error& error) {
    Raise{}(error);
    tessera::raise(error);
  }
};

/// Throws an exception as an allocator of this type does.
template <typename Allocator, typename Error>
[[noreturn]] void raise_as(const Error& error) {
  if constexpr (requires { Allocator::raise(error); }) {
    Allocator::raise(error);
  } else {
    raise(error);
  }
}

}  // namespace tessera
