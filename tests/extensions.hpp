// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/core/types.hpp>
#include <tessera/extension/checkpoints.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/quotas.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/fwd.hpp>

/// Short names for what the extensions of an allocator, or of a private pool, offer.
namespace tessera::inline v0_1 {

template <typename A>
[[nodiscard]] auto pools(A& in) {
  return in.template get<extension::private_pools>();
}
template <typename A>
[[nodiscard]] auto checkpoints_of(A& in) {
  return in.template get<extension::checkpoints>();
}
template <typename A>
[[nodiscard]] auto quotas_of(A& in) {
  return in.template get<extension::quotas>();
}
template <typename A>
[[nodiscard]] auto sleep_mode_of(A& in) {
  return in.template get<extension::sleep_mode>();
}
/// A query through a const allocator calls nothing that changes it.
template <typename A>
[[nodiscard]] auto pools(const A& in) {
  return pools(const_cast<A&>(in));
}
template <typename A>
[[nodiscard]] auto sleep_mode_of(const A& in) {
  return sleep_mode_of(const_cast<A&>(in));
}
template <typename A>
[[nodiscard]] auto quotas_of(const A& in) {
  return quotas_of(const_cast<A&>(in));
}

/// Whether an allocator offers sleep, and a recipe of it maps memory into ranges.
template <typename A>
inline constexpr bool can_sleep = false;
template <typename A>
  requires detail::offers<A, extension::sleep_mode>
inline constexpr bool can_sleep<A> = A::has_ranges;

/// The observer among the extensions of an allocator.
template <typename A>
struct observed_of;
template <template <typename...> typename Front, typename A, typename... Rest>
struct observed_of<Front<A, Rest...>> : observed_of<A> {};
template <typename Recipe, typename Provider, typename First, typename... Rest>
struct observed_of<caching_allocator<Recipe, Provider, First, Rest...>>
    : observed_of<caching_allocator<Recipe, Provider, Rest...>> {};
template <typename Recipe, typename Provider, typename Observer, typename... Rest>
struct observed_of<caching_allocator<Recipe, Provider, extension::observer<Observer>, Rest...>> {
  using type = extension::observer<Observer>;
};
template <typename A, typename F>
decltype(auto) with_observer(A& in, F f) {
  return in.template get<typename observed_of<A>::type>().with(f);
}
/// The observer itself. Only one thread uses the allocator.
template <typename A>
[[nodiscard]] auto& observer_of(A& in) {
  return with_observer(in, [](auto& observer) -> auto& { return observer; });
}

/// The memory of a private pool.
template <typename A>
[[nodiscard]] extension::pool_usage usage_of(const extension::private_pool<A>& pool) {
  return pools(pool.allocator()).usage_of(pool.id());
}

/// The extensions for one private pool.
template <typename A>
struct calls_for_pool {
  const extension::private_pool<A>* pool;

  [[nodiscard]] auto record() const { return checkpoints_of(pool->allocator()).record(pool->id()); }
  auto restore(const extension::pool_checkpoint& from) const {
    return checkpoints_of(pool->allocator()).restore(from);
  }
  [[nodiscard]] auto set(const extension::quota& wanted) const {
    return quotas_of(pool->allocator()).set(pool->id(), wanted);
  }
  [[nodiscard]] auto get() const { return quotas_of(pool->allocator()).get(pool->id()); }
  auto sleep(extension::sleep_store to, stream_id copies = {}) const {
    return sleep_mode_of(pool->allocator()).sleep(pool->id(), to, copies);
  }
  auto wake(stream_id copies = {}) const { return sleep_mode_of(pool->allocator()).wake(pool->id(), copies); }
  [[nodiscard]] bool is_asleep() const { return sleep_mode_of(pool->allocator()).is_asleep(pool->id()); }
};
template <typename A>
[[nodiscard]] calls_for_pool<A> checkpoints_of(extension::private_pool<A>& in) {
  return {&in};
}
template <typename A>
[[nodiscard]] calls_for_pool<A> quotas_of(extension::private_pool<A>& in) {
  return {&in};
}
template <typename A>
[[nodiscard]] calls_for_pool<A> quotas_of(const extension::private_pool<A>& in) {
  return {&in};
}
template <typename A>
[[nodiscard]] calls_for_pool<A> sleep_mode_of(extension::private_pool<A>& in) {
  return {&in};
}
template <typename A>
[[nodiscard]] calls_for_pool<A> sleep_mode_of(const extension::private_pool<A>& in) {
  return {&in};
}

}  // namespace tessera::inline v0_1
