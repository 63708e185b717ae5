// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include <tessera/concurrent/mutex_guarded.hpp>
#include <tessera/core/allocator_event.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/facade.hpp>
#include <tessera/fwd.hpp>
#include <tessera/provider/serialized_provider.hpp>

namespace tessera {

/// A caching_allocator with a mutex, for several threads. It has the same template arguments and makes the
/// same decisions. Instead of policies(), observer() and provider(), call with_policies, with_observer and
/// with_provider. Call for_each_allocator for introspect, restore and synchronize.
///
/// Choose it by default if threads share an allocator. per_stream scales better if each thread has its own
/// stream.
///
///     tessera::locked<tessera::pytorch<>, tessera::simulated_device> shared;
///     void* p = shared.allocate(5_MiB);  // by any thread
///     shared.deallocate(p);              // by any other
///     shared.with_policies([](auto& settings) { settings.split.max = 128_MiB; });
///
/// The mutex is unlocked while the device acquires or releases segments or waits for events. So a cache hit
/// does not wait for another thread's miss. There are two exceptions:
///
/// * The recipe maps pages into ranges: map and unmap calls keep the mutex.
/// * A provider that is not thread-safe serves one call at a time. A free that must record an event then
///   waits, with the mutex held, until another thread's acquire, release or wait returns.
///
/// While another thread is in acquire, release or wait:
///
/// * A request that fails waits until these calls return, and then retries once.
/// * A trim does not release blocks that other threads are waiting for or releasing.
///
/// Some providers can reclaim memory from other allocators. Then a request that still fails reclaims and
/// retries up to eight more times.
///
/// Before pages are unmapped, the allocator waits with the mutex held until their streams finish their work.
/// Host functions queued on these streams must not use the allocator.
///
/// Rules for user code:
///
/// * Callbacks of on_pressure run without the mutex. They may use the allocator, but must not destroy it.
///   While they run, requests of other threads skip them.
/// * The observer and the functions passed to with_policies, with_observer and for_each_allocator run with
///   the mutex held. The program aborts if they use the allocator.
/// * A provider that is not thread-safe receives calls from one thread at a time. Then neither the provider
///   nor a function passed to with_provider may use the allocator.
template <typename Recipe, device_provider Provider, allocator_observer Observer, typename Counting>
class locked
    : public facade<
          locked<Recipe, Provider, Observer, Counting>,
          typename detail::mutex_guarded<Recipe, detail::serialized_provider<Provider>,
                                         detail::forwarding_observer<Observer>, Counting>::allocator> {
  using inner_type = detail::mutex_guarded<Recipe, detail::serialized_provider<Provider>,
                                           detail::forwarding_observer<Observer>, Counting>;
  using allocator = typename inner_type::allocator;
  using facade_type = facade<locked, allocator>;

 public:
  locked() : locked(Provider{}) {}
  explicit locked(Provider device, policies<Recipe> settings = {}, Observer observer = {})
      : observer_(std::move(observer)),
        inner_(guard_, std::move(device), std::move(settings),
               detail::forwarding_observer<Observer>(observer_, guard_)) {}

  using facade_type::allocate, facade_type::try_allocate;
  /// Serves a request like caching_allocator. The numbers of the exception are those of the moment when the
  /// request failed.
  [[nodiscard]] void* allocate(std::size_t bytes, stream_id stream = {}) {
    return inner_.try_allocate(
        bytes, stream, [](allocator&) {}, [=](allocator& in) { raise_failure(in, bytes, stream); });
  }
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    return inner_.try_allocate(bytes, stream, [](allocator&) {}, [](allocator&) {});
  }
  [[nodiscard]] bool on_pressure(bool (*callback)(void* context) noexcept, void* context) noexcept {
    return inner_.on_pressure(callback, context);
  }

  template <typename F>
  decltype(auto) with_policies(F f) {
    return inner_.enter_for_user("with_policies: the function must not use the allocator",
                                 [&f](allocator& in) -> decltype(auto) { return f(in.policies()); });
  }
  template <typename F>
  decltype(auto) with_observer(F f) {
    return inner_.enter_for_user("with_observer: the function must not use the allocator",
                                 [&](allocator&) -> decltype(auto) { return f(observer_); });
  }
  template <typename F>
  decltype(auto) with_provider(F f) {
    if constexpr (detail::is_thread_safe<Provider>) {
      return inner_.provider().with_provider(f);
    } else {
      using guard = detail::reentrancy_guard;
      guard_.template check_lock<Observer>(guard::lock::device);
      return inner_.provider().with_provider([&](Provider& device) -> decltype(auto) {
        const guard::call running(guard_, guard::lock::device,
                                  "with_provider: the function must not use the allocator");
        return f(device);
      });
    }
  }
  template <typename F>
  void for_each_allocator(F f) {
    inner_.enter_for_user("for_each_allocator: the function must not use the allocator that is locked", f);
  }
  template <typename F>
  void for_each_device(F f) {
    f(*this, std::size_t{0});
  }

 private:
  friend facade_type;
  template <typename, device_provider, allocator_observer, typename>
  friend class background_reclaiming;
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& f) {
    return inner_type::enter(me.inner_, std::forward<F>(f));
  }
  [[noreturn, gnu::noinline, gnu::cold]] static void raise_failure(allocator& in, std::size_t bytes,
                                                                   stream_id stream) {
    locked::raise(in.make_out_of_memory(bytes, stream));
  }

  detail::reentrancy_guard guard_;
  Observer observer_;
  inner_type inner_;
};

}  // namespace tessera
