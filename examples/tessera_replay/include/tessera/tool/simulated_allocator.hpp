// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include <tessera/any_allocator.hpp>
#include <tessera/core/types.hpp>
#include <tessera/detail/containers/function_ref.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
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

template <typename Signature>
using call = tessera::detail::function_ref<Signature>;

/// Refers to an observer of any type, which must outlive it. If the observer stores events, as history does, snapshots
/// get them.
struct any_observer {
  template <typename Observer>
    requires(!std::same_as<Observer, any_observer>)
  explicit any_observer(Observer& to) noexcept
      : on(to, [](Observer& o, const allocator_event& event) { o.on(event); }),
        for_each(to, []([[maybe_unused]] Observer& o, [[maybe_unused]] call<void(const stored_event&)> f) {
          if constexpr (requires { std::as_const(o).for_each(tessera::detail::return_argument{}); })
            std::as_const(o).for_each([f](const auto& entry) { f({entry.event, entry.time_us}); });
        }) {}

  call<void(const allocator_event&) noexcept> on;
  /// Calls a function for each event that the observer stores.
  call<void(call<void(const stored_event&)>)> for_each;
};

/// The counters of an allocator of any recipe, of all pools together.
struct totals {
  pool_statistics all{};
  std::uint64_t num_alloc_retries = 0;
  plan::plan_usage by_plan{};
};

/// Puts recorded memory into an empty allocator, which has an extension that can. The extension defines these calls.
struct recorded_memory {
  /// Both take a segment without an address or with the one that it must have, and a block size for which growth would take
  /// such a segment. reserve() takes addresses alone.
  ///   Returns:  the address; 0 if it cannot be had
  call<std::uintptr_t(const segment_view&, std::size_t size) noexcept> reserve;
  call<std::uintptr_t(const segment_view&, std::size_t size, std::span<const block_view>) noexcept> restore;
  call<pool_id()> create_pool;
  call<bool(pool_id) noexcept> open_pool, close_pool;
  bool has_ranges = false;
};

/// What a simulated allocator has beside its recipe.
struct made_with {
  const plan::memory_plan* plan =
      nullptr;                       ///< it serves the requests of this plan at their places, if not null
  any_observer* observer = nullptr;  ///< receives the events, if not null; it outlives the allocator
};

/// Owns a simulated allocator of any recipe.
///
/// It has what trace::replay, plan::planned and the commands need. A call costs one indirect call, with every recipe. An
/// allocator with a plan has no explain and no take_snapshot.
class simulated_allocator : public tessera::detail::hidden_extensions<simulated_allocator> {
  std::unique_ptr<void, void (*)(void*)> owned_;
  provider::simulated_device* device_;
  const void* private_pools_;  // its extension_access, or null
  const void* sleep_mode_;

 public:
  /// Makes one; simulated.hpp defines it. Each extension of the tool has a function `recorded_memory_of(allocator)`.
  template <typename Recipe, typename... Extension>
  [[nodiscard]] static simulated_allocator make(provider::simulated_device device,
                                                const recipe::policies<Recipe>& settings,
                                                const made_with& with);

  [[nodiscard]] provider::simulated_device& provider() noexcept { return *device_; }
  template <typename F>
  decltype(auto) visit_provider(F f) {
    return f(*device_);
  }
  call<void*(std::size_t bytes, stream_id stream) noexcept> try_allocate;
  call<void(void* p) noexcept> deallocate;
  /// Returns false if there is no such block, or if it sleeps.
  call<bool(void* p, stream_id stream) noexcept> try_record_stream;
  void trim(std::size_t keep = 0) const noexcept { trim_to_(keep); }
  /// Does nothing without a plan.
  call<void(std::uint64_t key) noexcept> begin_step;
  call<usage() noexcept> current_usage;
  call<totals()> statistics;
  /// Explains why a request cannot be served now, as observe::explain does.
  call<observe::oom_report(std::size_t bytes, stream_id stream)> explain;
  /// Calls a function for each block, as observe::for_each_block does.
  call<void(call<void(const segment_view&, const block_view&)>)> for_each_block;
  /// Looks up the live block at an address, as observe::live_block_at does.
  call<block_view(const void* p) noexcept> live_block_at;
  call<observe::snapshot()> take_snapshot;
  /// Empty unless the recipe is made with an extension that restores, and without a plan.
  recorded_memory recorded;
  template <typename E>
  static constexpr const char* why_missing =
      std::is_same_v<E, extension::sleep_mode> ? "the allocator cannot sleep"
                                               : "the allocator has no such extension";

  // What a plan asks of the allocator inside it; one with a plan has none.

  static constexpr bool is_for_one_thread = true;
  call<void() noexcept> trim_without_waiting;
  call<bool(bool (*callback)(void* context) noexcept, void* context) noexcept> on_pressure;
  call<bool(stream_id owner, stream_id user) noexcept> delays_reuse;

 private:
  friend tessera::detail::hidden_extensions<simulated_allocator>;
  template <typename Allocator>
  explicit simulated_allocator(Allocator& made);
  /// An allocator that serves a plan. It is compiled once, with the verb plan, because it knows no recipe.
  [[nodiscard]] static simulated_allocator with_plan(simulated_allocator inside,
                                                     const plan::memory_plan& plan);

  [[nodiscard]] void* object() const noexcept { return owned_.get(); }
  template <typename E>
  [[nodiscard]] const void* access_of() const noexcept {
    return std::is_same_v<E, extension::private_pools> ? private_pools_ : sleep_mode_;
  }

  call<void(std::size_t keep) noexcept> trim_to_;
};

}  // namespace tessera::inline v0_1::tool::detail
