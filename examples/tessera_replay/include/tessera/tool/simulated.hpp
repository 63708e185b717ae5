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
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/recipe.hpp>
#include <tessera/tool/composition.hpp>
#include <tessera/tool/simulated_allocator.hpp>

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

/// Compiles no second allocator for the law if the policies can be chosen at run time.
struct find_growth {
  template <typename Recipe>
  [[nodiscard]] law::growth_witness operator()(const recipe::policies<Recipe>& settings) const noexcept {
    if constexpr (axis_out_of_search<Recipe>() == nullptr) {
      return growth_of(composition_of<Recipe>(settings));
    } else {
      return law::growth_is_bounded<Recipe>(settings);
    }
  }
};

template <typename A>
simulated_allocator::simulated_allocator(A& made)
    : owned_(&made, [](void* p) { delete static_cast<A*>(p); }),
      device_(&made.provider()),
      private_pools_(tessera::detail::find_access<extension::private_pools, A>()),
      sleep_mode_(tessera::detail::find_access<extension::sleep_mode, A>()),
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
      trim_to_(made, [](A& a, std::size_t keep) { a.trim(keep); }) {
  if constexpr (tessera::detail::is_caching_allocator<A>) {
    explain = {made, [](A& a, std::size_t bytes, stream_id s) {
                 return tessera::detail::explain_with(a, bytes, s, find_growth{});
               }};
    for_each_block = {made, [](A& a, auto f) { observe::for_each_block(a, f); }};
    live_block_at = {made, [](A& a, const void* p) { return observe::live_block_at(a, p); }};
    take_snapshot = {made, [](A& a) { return observe::take_snapshot(a); }};
    trim_without_waiting = {made, []([[maybe_unused]] A& a) {  // nothing if the recipe always waits
                              if constexpr (requires { a.trim_without_waiting(); }) a.trim_without_waiting();
                            }};
    on_pressure = {made, [](A& a, auto... given) { return a.on_pressure(given...); }};
    delays_reuse = {made, [](A& a, auto... given) { return a.delays_reuse(given...); }};
  }
}

template <typename Recipe, typename... Extension>
simulated_allocator simulated_allocator::make(provider::simulated_device device,
                                              const recipe::policies<Recipe>& settings,
                                              const made_with& with) {
  using allocator = typename simulated<Recipe, watched, Extension...>::type;
  auto& in = *new allocator(std::move(device), settings, watched{with.observer});
  simulated_allocator made(in);
  if (with.plan != nullptr) return with_plan(std::move(made), *with.plan);
  ((made.recorded = Extension::recorded_memory_of(in)), ...);
  return made;
}

}  // namespace tessera::inline v0_1::tool::detail
