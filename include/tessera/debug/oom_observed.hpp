// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include <tessera/allocator_adaptor.hpp>

namespace tessera::inline v0_1::debug {

/// Calls an object of the program after each request that failed; otherwise behaves like `Allocator`.
///
/// Choose it to write a snapshot or a message when memory runs out. `Observer` has a function
/// `void operator()(const out_of_memory&) noexcept`, which runs in the thread of the request, after every attempt to
/// recover. No lock of `Allocator` is held, so it may use the allocator, and free blocks. It is not called for requests that
/// fail inside such a function, also not for those of another allocator of this type. Several threads may call it at the same
/// time. oom_observed<waiting<A>> calls it once for each request that fails, waiting<oom_observed<A>> for each attempt.
///
///     struct print_failure {
///       void operator()(const tessera::out_of_memory& error) noexcept {
///         std::printf("%zu bytes requested, %zu reserved, %zu left\n", error.requested(), error.at_failure().reserved,
///                     error.available());
///       }
///     };
///     using allocator_type = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>;
///     tessera::debug::oom_observed<allocator_type, print_failure> observed;
///     (void)observed.try_allocate(100_GiB);
///
/// An observer of events hears action::oom during the request instead, and must not use the allocator
/// [tessera/extension/observer.hpp]. A request that a policy rejects without recovery, as fail_fast does, counts as a failure.
///   Cost:    a comparison for each request; for one that fails, linear in the blocks
///   Source:  PyTorch's attachOutOfMemoryObserver; torch_npu's, and its attachOomRejectionObserver
template <typename Allocator, typename Observer>
class oom_observed : public detail::wrapping_adaptor<oom_observed<Allocator, Observer>, Allocator> {
  static_assert(std::is_nothrow_invocable_v<Observer&, const out_of_memory&>,
                "oom_observed<A, T>: T has void operator()(const out_of_memory&) noexcept");
  using adaptor_type = detail::wrapping_adaptor<oom_observed, Allocator>;
  using adaptor_type::allocator_;

 public:
  using adaptor_type::adaptor_type;

  /// Throws the failure that the observer saw.
  [[nodiscard]] void* allocate(std::size_t bytes, stream_id stream = {}) {
    if (void* const p = allocator_.try_allocate(bytes, stream); p != nullptr || bytes == 0) return p;
    adaptor_type::raise(observe(bytes, stream));
  }
  /// The observer. Change it only while no other thread uses the allocator.
  [[nodiscard]] Observer& observer() noexcept { return observer_; }

 private:
  friend allocator_adaptor<oom_observed, Allocator>;
  using adaptor_type::on_call;
  template <typename F>
  static auto on_call(oom_observed& me, const detail::request_call& call, F ask) noexcept {
    const auto got = ask();
    if (!got && call.bytes > 0) [[unlikely]]
      (void)me.observe(call.bytes, call.stream);
    return got;
  }

  /// Calls the observer for a request that failed, and returns the failure.
  [[nodiscard, gnu::noinline, gnu::cold]] out_of_memory observe(std::size_t bytes,
                                                                stream_id stream) noexcept {
    static thread_local bool is_observing = false;
    const out_of_memory failure = this->make_out_of_memory(bytes, stream);
    if (std::exchange(is_observing, true)) return failure;
    observer_(failure);
    is_observing = false;
    return failure;
  }

  [[TESSERA_NO_UNIQUE_ADDRESS]] Observer observer_{};
};

}  // namespace tessera::inline v0_1::debug
