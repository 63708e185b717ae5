// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include <tessera/core/types.hpp>
#include <tessera/observe/oom_report.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/plan/memory_plan.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/recipe.hpp>
#include <tessera/trace/recording.hpp>

/// An allocator over a simulated device, whose recipe is known only when the tool runs. So the tool is compiled once,
/// and each recipe once. The sources of verbs include this header and no allocator.

namespace tessera::inline v0_1::tool::detail {

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
              [=](const auto& entry) { visit(to, stored_event{entry.event, entry.time_us}); });
        }
      }};

  void* to_;
  const calls* calls_;
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

/// Owns a simulated allocator of any recipe.
///
/// It has what trace::replay and the commands need. A call costs one indirect call, with every recipe. An allocator with a
/// plan has no explain and no take_snapshot.
class simulated_allocator {
 public:
  /// Makes one; simulated.hpp defines it.
  template <typename Recipe>
  [[nodiscard]] static simulated_allocator make(provider::simulated_device device,
                                                const recipe::policies<Recipe>& settings,
                                                const made_with& with);
  /// Takes an allocator that has further extensions; simulated.hpp defines it.
  template <typename Allocator>
  [[nodiscard]] static simulated_allocator own(Allocator* made);

  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    return calls_->try_allocate(owned_.get(), bytes, stream);
  }
  void deallocate(void* p) noexcept { calls_->deallocate(owned_.get(), p); }
  /// Returns false if there is no such block, or if it sleeps.
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) noexcept {
    return calls_->try_record_stream(owned_.get(), p, stream);
  }
  void trim(std::size_t keep = 0) noexcept { calls_->trim(owned_.get(), keep); }
  /// Does nothing without a plan.
  void begin_step(std::uint64_t key) noexcept { calls_->begin_step(owned_.get(), key); }
  [[nodiscard]] usage current_usage() const noexcept { return calls_->current_usage(owned_.get()); }
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
  /// Looks up the live block at an address, as observe::live_block_at does.
  [[nodiscard]] block_view live_block_at(const void* p) const noexcept {
    return calls_->live_block_at(owned_.get(), p);
  }
  [[nodiscard]] observe::snapshot take_snapshot() const { return calls_->take_snapshot(owned_.get()); }

 private:
  friend trace::pool_operations<simulated_allocator>;
  using visitor = void (*)(void*, const segment_view&, const block_view&);
  using owner = std::unique_ptr<void, void (*)(void*)>;
  struct calls {
    void* (*try_allocate)(void*, std::size_t, stream_id) noexcept;
    void (*deallocate)(void*, void*) noexcept;
    bool (*try_record_stream)(void*, void*, stream_id) noexcept;
    void (*trim)(void*, std::size_t) noexcept;
    void (*begin_step)(void*, std::uint64_t) noexcept;
    usage (*current_usage)(const void*) noexcept;
    totals (*statistics)(const void*);
    owner (*make_pools)(void*);
    trace::pool_outcome (*run_on_pools)(void*, const trace::event&);
    void (*for_each_block)(void*, void*, visitor);
    block_view (*live_block_at)(void*, const void*) noexcept;
    observe::oom_report (*explain)(void*, std::size_t, stream_id);
    observe::snapshot (*take_snapshot)(void*);
  };
  template <typename T>
  [[nodiscard]] static T& to(void* object) noexcept {
    return *static_cast<T*>(object);
  }
  template <typename T>
  [[nodiscard]] static owner owned(T* made) noexcept {
    return owner(made, [](void* p) { delete static_cast<T*>(p); });
  }
  template <typename Allocator>
  [[nodiscard]] static consteval calls make_calls();
  template <typename Allocator>
  static constexpr calls calls_of = make_calls<Allocator>();

  simulated_allocator(owner made, provider::simulated_device& device, const calls& by) noexcept
      : owned_(std::move(made)), device_(&device), calls_(&by) {}

  owner owned_;
  provider::simulated_device* device_;
  const calls* calls_;
};

}  // namespace tessera::inline v0_1::tool::detail

namespace tessera::inline v0_1::trace {

/// Executes the operations of a recording on the private pools of an allocator of any recipe.
template <>
class pool_operations<tool::detail::simulated_allocator> {
  using allocator = tool::detail::simulated_allocator;

 public:
  static constexpr bool can_sleep =
      true;  // so replay calls try_record_stream, which refuses a block that sleeps

  explicit pool_operations(allocator& in)
      : calls_(in.calls_), owned_(in.calls_->make_pools(in.owned_.get())) {}
  pool_outcome run(const event& e) { return calls_->run_on_pools(owned_.get(), e); }

 private:
  const allocator::calls* calls_;
  allocator::owner owned_;
};

}  // namespace tessera::inline v0_1::trace
