// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <tessera/caching_allocator.hpp>
#include <tessera/core/types.hpp>
#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/recipe.hpp>
#include <tessera/tool/simulated_allocator.hpp>
#include <tessera/trace/recording.hpp>

/// Makes a simulated_allocator. The sources that compile recipes include this header.

namespace tessera::inline v0_1::tool::detail {

/// An extension that reports events if an observer is given when the allocator is made. One allocator type then serves
/// with and without one, so a recipe is compiled once.
struct watched {
  any_observer* to = nullptr;

  template <typename Core>
  class state : public tessera::detail::extension_defaults {
   public:
    state(typename Core::allocator&, const watched& from) noexcept : to_(from.to) {}
    void on_event(const allocator_event& event) noexcept {
      if (to_ != nullptr) [[unlikely]]
        to_->on(event);
    }
    template <typename F>
    void visit_observer(F& f) {
      if (to_ != nullptr) f(*to_);
    }

   private:
    any_observer* to_;
  };
  template <typename Allocator>
  struct door {
    explicit door(Allocator&) noexcept {}
  };
};

/// An allocator over a simulated device that executes what recordings contain: private pools, and sleeps if the recipe
/// maps memory into ranges.
template <typename Recipe, typename... Extension>
struct simulated {
  using type = caching_allocator<Recipe, provider::simulated_device, extension::private_pools, Extension...>;
};
template <typename Recipe, typename... Extension>
  requires(Recipe::growth::backend::has_ranges)
struct simulated<Recipe, Extension...> {
  using type = caching_allocator<Recipe, provider::simulated_device, extension::private_pools,
                                 extension::sleep_mode, Extension...>;
};

template <typename A>
simulated_allocator::simulated_allocator(A& made)
    : owned_(owned(&made)),
      device_(&made.provider()),
      try_allocate(made, [](A& a, std::size_t bytes, stream_id s) { return a.try_allocate(bytes, s); }),
      deallocate(made, [](A& a, void* p) { a.deallocate(p); }),
      try_record_stream(made, [](A& a, void* p, stream_id s) { return a.try_record_stream(p, s); }),
      begin_step(made,
                 []([[maybe_unused]] A& a, [[maybe_unused]] std::uint64_t key) {
                   if constexpr (requires { a.begin_step(key); }) a.begin_step(key);
                 }),
      current_usage(made, [](A& a) { return a.current_usage(); }),
      statistics(made,
                 [](A& a) {
                   const auto counted = a.statistics();
                   totals result{.all = counted.all, .num_alloc_retries = counted.num_alloc_retries};
                   if constexpr (requires { counted.by_plan; }) result.by_plan = counted.by_plan;
                   return result;
                 }),
      for_each_block(made, [](A& a, auto f) { observe::for_each_block(a, f); }),
      live_block_at(made, [](A& a, const void* p) { return observe::live_block_at(a, p); }),
      trim_to_(made, [](A& a, std::size_t keep) { a.trim(keep); }),
      make_pools_(made, [](A& a) -> pool_runner {
        using pools = trace::pool_operations<A>;
        auto* const of = new pools(a);
        return {owned(of), {*of, [](pools& on, const trace::event& e) { return on.run(e); }}};
      }) {
  if constexpr (tessera::detail::is_caching_allocator<A>) {
    explain = {made, [](A& a, std::size_t bytes, stream_id s) { return observe::explain(a, bytes, s); }};
    take_snapshot = {made, [](A& a) { return observe::take_snapshot(a); }};
  }
}

template <typename Recipe, typename... Extension>
simulated_allocator simulated_allocator::make(provider::simulated_device device,
                                              const recipe::policies<Recipe>& settings,
                                              const made_with& with) {
  using allocator = typename simulated<Recipe, watched, Extension...>::type;
  const watched reports{with.observer};
  if (with.plan != nullptr)
    return simulated_allocator(
        *new plan::planned<allocator>(*with.plan, std::move(device), settings, reports));
  auto& in = *new allocator(std::move(device), settings, reports);
  simulated_allocator made(in);
  ((made.recorded = Extension::recorded_memory_of(in)), ...);
  return made;
}

}  // namespace tessera::inline v0_1::tool::detail
