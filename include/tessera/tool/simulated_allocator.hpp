// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include <tessera/any_allocator.hpp>
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

/// An allocator over a simulated device, whose recipe is known only when the tool runs. So the tool is compiled once,
/// and each recipe once.

namespace tessera::tool::detail {

/// An event with its time, as an observer of any type stores it.
struct stored_event {
  allocator_event event{};
  std::uint64_t time_us = 0;
};

/// Refers to an observer of any type, which must outlive it. If the observer stores events, as history does, snapshots
/// get them.
class any_observer {
 public:
  template <typename Observer>
    requires(!std::same_as<Observer, any_observer>)
  explicit any_observer(Observer& to) noexcept : to_(&to), calls_(&calls_of<Observer>) {}

  void on(const allocator_event& event) const noexcept { calls_->on(to_, event); }
  /// Calls f(entry) for each event that the observer stores.
  template <typename F>
  void for_each(F f) const {
    calls_->for_each(to_, &f, [](void* to, const stored_event& entry) { (*static_cast<F*>(to))(entry); });
  }

 private:
  using visitor = void (*)(void*, const stored_event&);
  struct calls {
    void (*on)(void*, const allocator_event&) noexcept;
    void (*for_each)(void*, void*, visitor);
  };
  template <typename Observer>
  static constexpr calls calls_of = {
      [](void* to, const allocator_event& event) noexcept { static_cast<Observer*>(to)->on(event); },
      []([[maybe_unused]] void* from, [[maybe_unused]] void* to, [[maybe_unused]] visitor visit) {
        if constexpr (requires(const Observer& seen) { seen.for_each(tessera::detail::return_argument{}); }) {
          static_cast<const Observer*>(from)->for_each(
              [=](const auto& entry) { visit(to, {entry.event, entry.time_us}); });
        }
      }};

  void* to_;
  const calls* calls_;
};

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

/// The counters of an allocator of any recipe, of all pools together.
struct totals {
  pool_statistics all{};
  std::uint64_t num_alloc_retries = 0;
  plan::plan_usage by_plan{};
};

/// What a simulated allocator has beside its recipe.
struct made_with {
  const plan::memory_plan* plan =
      nullptr;                       ///< it serves the requests of this plan at their places, if not null
  any_observer* observer = nullptr;  ///< receives the events, if not null; it outlives the allocator
};

/// An allocator over a simulated device that executes what recordings contain: private pools, and sleeps if the recipe
/// maps memory into ranges.
template <typename Recipe>
struct simulated {
  using type = caching_allocator<Recipe, provider::simulated_device, extension::private_pools, watched>;
};
template <typename Recipe>
  requires(Recipe::growth::backend::has_ranges)
struct simulated<Recipe> {
  using type = caching_allocator<Recipe, provider::simulated_device, extension::private_pools,
                                 extension::sleep_mode, watched>;
};

/// Owns a simulated allocator of any recipe.
///
/// Requests, frees and extensions are those of an any_allocator, so a call costs one indirect call, with every recipe.
/// An allocator with a plan has no explain, for_each_block and snapshot.
class simulated_allocator {
 public:
  /// trace::replay executes sleeps; those of a recipe without ranges fail and say so.
  static constexpr bool has_ranges = true;

  template <typename Recipe>
  [[nodiscard]] static simulated_allocator make(provider::simulated_device device,
                                                const recipe::policies<Recipe>& settings,
                                                const made_with& with) {
    using allocator = typename simulated<Recipe>::type;
    const watched reports{with.observer};
    if (with.plan == nullptr) return of(new allocator(std::move(device), settings, reports));
    return of(new plan::planned<allocator>(*with.plan, std::move(device), settings, reports));
  }

  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    return front_.try_allocate(bytes, stream);
  }
  void deallocate(void* p) noexcept { front_.deallocate(p); }
  [[nodiscard]] bool record_stream(void* p, stream_id stream) noexcept {
    return front_.record_stream(p, stream);
  }
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) noexcept {
    return front_.try_record_stream(p, stream);
  }
  void trim(std::size_t keep = 0) noexcept { front_.trim(keep); }
  void begin_step(std::uint64_t key = 0) noexcept { front_.begin_step(key); }
  [[nodiscard]] usage current_usage() const noexcept { return front_.current_usage(); }
  [[nodiscard]] const char* audit() const noexcept { return front_.audit(); }

  template <typename E>
  static constexpr bool has = any_allocator::has<E>;
  template <typename E>
  using refused = any_allocator::refused<E>;
  template <typename E>
  [[nodiscard]] auto get() noexcept {
    return front_.get<E>();
  }

  [[nodiscard]] provider::simulated_device& provider() noexcept { return *device_; }
  [[nodiscard]] totals statistics() const { return calls_->statistics(owned_.get()); }
  /// Explains why a request cannot be served now, as observe::explain does.
  [[nodiscard]] observe::oom_report explain(std::size_t bytes, stream_id stream) const {
    return calls_->explain(owned_.get(), bytes, stream);
  }
  /// Calls f(const segment_view&, const block_view&) for each block, as observe::for_each_block does.
  template <typename F>
  void for_each_block(F f) const {
    calls_->for_each_block(owned_.get(), &f, [](void* to, const segment_view& s, const block_view& b) {
      (*static_cast<F*>(to))(s, b);
    });
  }
  [[nodiscard]] observe::snapshot take_snapshot() const { return calls_->take_snapshot(owned_.get()); }

 private:
  using visitor = void (*)(void*, const segment_view&, const block_view&);
  struct calls {
    totals (*statistics)(const void*);
    observe::oom_report (*explain)(void*, std::size_t, stream_id);
    void (*for_each_block)(void*, void*, visitor);
    observe::snapshot (*take_snapshot)(void*);
  };
  template <typename Allocator>
  [[nodiscard]] static totals statistics_of(const void* allocator) {
    const auto counted = static_cast<const Allocator*>(allocator)->statistics();
    totals result{.all = counted.all, .num_alloc_retries = counted.num_alloc_retries};
    if constexpr (requires { counted.by_plan; }) result.by_plan = counted.by_plan;
    return result;
  }
  template <typename Allocator>
  [[nodiscard]] static consteval calls make_calls() {
    if constexpr (requires(const Allocator& any) { any.statistics().by_plan; }) {
      return {&statistics_of<Allocator>, nullptr, nullptr, nullptr};
    } else {
      return {&statistics_of<Allocator>,
              [](void* allocator, std::size_t bytes, stream_id stream) {
                return observe::explain(*static_cast<Allocator*>(allocator), bytes, stream);
              },
              [](void* allocator, void* to, visitor visit) {
                observe::for_each_block(*static_cast<Allocator*>(allocator),
                                        [=](const segment_view& s, const block_view& b) { visit(to, s, b); });
              },
              [](void* allocator) { return observe::take_snapshot(*static_cast<Allocator*>(allocator)); }};
    }
  }
  template <typename Allocator>
  static constexpr calls calls_of = make_calls<Allocator>();

  using owner = std::unique_ptr<void, void (*)(void*)>;
  simulated_allocator(owner owned, any_allocator front, provider::simulated_device& device,
                      const calls& made) noexcept
      : owned_(std::move(owned)), front_(front), device_(&device), calls_(&made) {}
  template <typename Allocator>
  [[nodiscard]] static simulated_allocator of(Allocator* made) {
    return {owner(made, [](void* p) { delete static_cast<Allocator*>(p); }), any_allocator(*made),
            made->provider(), calls_of<Allocator>};
  }

  owner owned_;
  any_allocator front_;
  provider::simulated_device* device_;
  const calls* calls_;
};

}  // namespace tessera::tool::detail
