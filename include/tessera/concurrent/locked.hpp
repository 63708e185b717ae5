// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/concurrent/mutex_guarded.hpp>
#include <tessera/fwd.hpp>

namespace tessera::inline v0_1::concurrent {

/// A caching_allocator with a mutex, for several threads. It takes the arguments of `Allocator` and makes the same
/// decisions. Instead of policies() and provider(), call visit_policies and visit_provider. Call for_each_allocator for
/// introspect and synchronize. Other front ends go around, as in tagged<locked<Allocator>>.
///
/// Choose it by default if threads share an allocator. per_stream scales better if each thread has its own
/// stream.
///
///     tessera::concurrent::locked<tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>> shared;
///     void* p = shared.allocate(5_MiB);  // by any thread
///     shared.deallocate(p);              // by any other
///     shared.visit_policies([](auto& settings) { settings.split.max = 128_MiB; });
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
/// * An observer and the functions passed to visit_policies, visit_extension and for_each_allocator run with
///   the mutex held. The program aborts if they use the allocator.
/// * A provider that is not thread-safe receives calls from one thread at a time. Then neither the provider
///   nor a function passed to visit_provider may use the allocator.
template <typename Allocator>
class locked
    : public allocator_adaptor<
          locked<Allocator>,
          typename detail::mutex_guarded<
              Allocator, detail::serialized_provider<typename Allocator::provider_type>>::allocator> {
 public:
  using recipe_type = typename Allocator::recipe_type;
  using provider_type = typename Allocator::provider_type;

 private:
  using inner_type = detail::mutex_guarded<Allocator, detail::serialized_provider<provider_type>>;
  using allocator = typename inner_type::allocator;
  using adaptor_type = allocator_adaptor<locked, allocator>;

 public:
  locked() : locked(provider_type{}) {}
  /// Makes the allocator inside from these arguments.
  template <typename... Given>
    requires(detail::are_extensions_of<Allocator, Given...>)
  explicit locked(provider_type device, recipe::policies<recipe_type> settings = {}, Given&&... given)
      : inner_(guard_, std::move(device), std::move(settings), std::forward<Given>(given)...) {}

  /// Serves a request like caching_allocator. The numbers of the exception are those of the moment when the
  /// request failed.
  [[nodiscard]] void* allocate(std::size_t bytes, stream_id stream = {}) {
    return try_allocate(bytes, stream, [=](allocator& in, void* p) {
      if (p == nullptr) adaptor_type::raise_failure(in, bytes, stream);
    });
  }
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    return try_allocate(bytes, stream, [](allocator&, void*) {});
  }
  /// Serves a request, and calls done(allocator, block) before it unlocks the mutex, unless 0 bytes are requested. The block is
  /// null if the request failed; `done` may then throw. `done` must not use this front end.
  template <typename Done>
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream, Done done) {
    return inner_.try_allocate(bytes, stream, [](allocator&) {}, done);
  }
  [[nodiscard]] bool on_pressure(bool (*callback)(void* context) noexcept, void* context) noexcept {
    return inner_.on_pressure(callback, context);
  }

  template <typename F>
  decltype(auto) visit_provider(F f) {
    if constexpr (detail::is_thread_safe<provider_type>) {
      return inner_.provider().visit_provider(f);
    } else {
      using guard = detail::reentrancy_guard;
      guard_.check_lock(guard::lock::device);
      return inner_.provider().visit_provider([&](provider_type& device) -> decltype(auto) {
        const guard::call running(guard_, guard::lock::device,
                                  "visit_provider: the function must not use the allocator");
        return f(device);
      });
    }
  }
  template <typename F>
  void for_each_device(F f) {
    f(*this, std::size_t{0});
  }

 private:
  friend adaptor_type;
  template <typename>
  friend class background_reclaiming;
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& f) {
    return inner_type::enter(me.inner_, std::forward<F>(f));
  }
  template <typename Me, typename F>
  static decltype(auto) enter_for_user(Me& me, const char* rule, F&& f) {
    return inner_type::enter_for_user(me.inner_, rule, std::forward<F>(f));
  }

  mutable detail::reentrancy_guard guard_;
  inner_type inner_;
};

}  // namespace tessera::inline v0_1::concurrent
