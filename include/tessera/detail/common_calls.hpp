// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <new>

#include <tessera/core/error.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/aligned_request.hpp>

namespace tessera::detail {

/// Adds the calls that follow from an allocator's own allocate, try_allocate, deallocate and record_stream: those that
/// take an alignment, and access to the allocator's parts.
///
///     void* const table = allocator.allocate(1000, std::align_val_t{4096});
///     allocator.deallocate(table, 1000, std::align_val_t{4096});
///
/// Free and record an aligned block with the bytes and alignment of its request: its address may lie inside
/// the block. An alignment must be a power of two; otherwise the program aborts.
template <typename Self>
class common_calls {
 public:
  /// Serves a request at a multiple of `alignment`.
  ///   Cost:  extra bytes: none if `alignment` is at most 512 and the block is aligned; otherwise up to
  ///          `alignment`
  [[nodiscard]] void* allocate(std::size_t bytes, std::align_val_t alignment, stream_id stream = {}) {
    const aligned_request request(bytes, alignment);
    return bytes != 0 ? request.allocate(self(), stream) : nullptr;
  }
  /// Serves a request at a multiple of `alignment`. Returns null if allocate would throw.
  [[nodiscard]] void* try_allocate(std::size_t bytes, std::align_val_t alignment,
                                   stream_id stream = {}) noexcept {
    const aligned_request request(bytes, alignment);
    return bytes != 0 ? request.try_allocate(self(), stream) : nullptr;
  }
  /// Frees an aligned block. Null is ignored.
  ///   Requires:  the bytes and alignment of the request; aborts if it detects others
  void deallocate(void* p, std::size_t bytes, std::align_val_t alignment) noexcept {
    if (p != nullptr) aligned_request(bytes, alignment).deallocate(self(), p);
  }
  /// Records that `stream` uses an aligned block.
  [[nodiscard]] bool record_stream(void* p, std::size_t bytes, std::align_val_t alignment,
                                   stream_id stream) noexcept {
    return p != nullptr && aligned_request(bytes, alignment).record_stream(self(), p, stream);
  }

  /// Calls f(provider).
  template <typename F>
  decltype(auto) with_provider(F f) {
    return f(self().provider());
  }
  /// Calls f(policies).
  template <typename F>
  decltype(auto) with_policies(F f) {
    return f(self().policies());
  }
  /// Calls f(caching_allocator) for each caching_allocator inside, with its mutex held if it has one. `f`
  /// must not use the front end.
  template <typename F>
  void for_each_allocator(F f) {
    f(self());
  }
  /// Calls f(caching_allocator) for the allocator that may own an address, with its mutex held if it has one.
  /// Does not call f if the address is known to be foreign. `f` must not use the front end.
  ///   Cost:  constant
  template <typename F>
  void with_owner(const void*, F f) {
    f(self());
  }
  /// Calls f(allocator, device number) with the allocator of each device.
  template <typename F>
  void for_each_device(F f) {
    f(self(), std::size_t{0});
  }

  /// Throws `error`; a front end may throw another library's type instead.
  template <typename Error>
  [[noreturn]] static void raise(const Error& error) {
    tessera::detail::raise(error);
  }

 protected:
  // Not private with Self as a friend: facade lies between the two.
  // NOLINTNEXTLINE(bugprone-crtp-constructor-accessibility)
  common_calls() = default;
  [[noreturn, gnu::noinline, gnu::cold]] void raise_failure(std::size_t bytes, stream_id stream) {
    Self::raise(self().make_out_of_memory(bytes, stream));
  }

 private:
  [[nodiscard]] Self& self() noexcept { return static_cast<Self&>(*this); }
};

}  // namespace tessera::detail
