// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tessera/core/allocator_event.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/facade.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::trace {

namespace detail {

/// An observer that stores events and can iterate over them, such as history.
template <typename S>
concept event_store = event_observer<S> &&
                      requires(const S& observer) { observer.for_each(tessera::detail::return_argument{}); };

/// The C++ spelling of a type.
template <typename T>
[[nodiscard]] std::string_view type_name() noexcept {
  const std::string_view signature = __PRETTY_FUNCTION__;  // "... [with T = name; ...]" or "... [T = name]"
  const std::size_t begin = signature.find("T = ") + 4;
  return signature.substr(begin, (std::min)(signature.find(';', begin), signature.rfind(']')) - begin);
}

/// Builds a snapshot from one or more allocators.
class snapshot_builder {
 public:
  template <typename Allocator>
  void add_allocator(Allocator& pool, std::size_t device) {
    const bool one_pool = number_of_pools(pool.policies()) == 1;
    for_each_block(pool, [&](const segment_view& s, const block_view& b) {
      if (result_.segments.empty() || result_.segments.back().address != s.address ||
          result_.segments.back().device != device) {
        result_.segments.push_back({.device = device,
                                    .address = s.address,
                                    .size = s.bytes,
                                    .stream = s.stream,
                                    .large = s.pool > 0 || one_pool,
                                    .expandable = s.in_range});
      }
      result_.segments.back().blocks.push_back({b.address, b.bytes, b.requested, state_of(b.is)});
    });
    if (result_.configured.recipe.empty()) add_settings(pool.policies());
    if constexpr (event_store<std::remove_cvref_t<decltype(pool.observer())>>)
      add_history(pool.observer(), device);
  }

  /// Copies the events that an observer stores, and sends it a `snapshot` event.
  template <typename Observer>
  void add_history(Observer& observer, std::size_t device) {
    if constexpr (event_store<Observer>) {
      has_history_ = true;
      if (result_.traces.size() <= device) result_.traces.resize(device + 1);
      auto& trace = result_.traces[device];
      observer.for_each([&](const auto& entry) {
        trace.push_back(entry_of(entry.event, entry.time_us));
        if constexpr (requires { trace.back().label = observer.label_of(entry); })
          trace.back().label = observer.label_of(entry);
      });
      std::size_t active = 0;
      for (const snapshot::segment& s : result_.segments)
        active += s.device == device ? s.count_bytes().active : 0;
      observer.on(allocator_event{.what = allocator_event::action::snapshot, .bytes = active});
    }
  }
  [[nodiscard]] bool has_history() const noexcept { return has_history_; }

  [[nodiscard]] snapshot finish() && {
    const auto key = [](const snapshot::segment& s) { return std::pair(s.device, s.address); };
    std::sort(result_.segments.begin(), result_.segments.end(),
              [&](const auto& a, const auto& b) { return key(a) < key(b); });
    if (!result_.segments.empty() && result_.traces.size() <= result_.segments.back().device)
      result_.traces.resize(static_cast<std::size_t>(result_.segments.back().device) + 1);
    return std::move(result_);
  }

 private:
  template <typename Recipe>
  [[nodiscard]] static constexpr std::size_t number_of_pools(const policies<Recipe>&) noexcept {
    return Recipe::pools::count;
  }
  [[nodiscard]] static snapshot::block::state state_of(block_view::state is) noexcept {
    using state = snapshot::block::state;
    return is == block_view::state::free   ? state::free
           : is == block_view::state::live ? state::live
                                           : state::pending;
  }
  [[nodiscard]] static snapshot::entry entry_of(const allocator_event& e, std::uint64_t time_us) {
    snapshot::entry entry{.what = action_of(e.what), .size = e.bytes, .stream = e.stream, .time_us = time_us};
    const bool is_oom = e.what == allocator_event::action::oom;
    (is_oom ? entry.device_free : entry.address) = e.address;
    const bool is_about_request = entry.what <= snapshot::action::free_completed || is_oom;
    if (is_about_request) entry.block = e.block;
    return entry;
  }
  [[nodiscard]] static snapshot::action action_of(allocator_event::action what) noexcept {
    using from = allocator_event::action;
    using to = snapshot::action;
    switch (what) {
      case from::alloc: return to::alloc;
      case from::free_requested: return to::free_requested;
      case from::free_completed: return to::free_completed;
      case from::segment_alloc: return to::segment_alloc;
      case from::segment_free: return to::segment_free;
      case from::segment_map: return to::segment_map;
      case from::segment_unmap: return to::segment_unmap;
      case from::range_reserve: return to::range_reserve;
      case from::range_release: return to::range_release;
      case from::refused: return to::refused;
      case from::oom: return to::oom;
      case from::snapshot: return to::snapshot;
    }
    return to::other;
  }

  /// Converts the policies to PyTorch's settings. Omits settings that PyTorch does not have.
  template <typename Recipe>
  void add_settings(const policies<Recipe>& chosen) {
    snapshot::settings& to = result_.configured;
    to.recipe = type_name<Recipe>();
    to.max_split_size = chosen.split.oversize();
    to.expandable_segments = Recipe::growth::backend::has_ranges;
    if constexpr (requires {
                    { chosen.eviction.threshold } -> std::convertible_to<fraction>;
                  })
      to.garbage_collection_threshold = fraction(chosen.eviction.threshold).value();
    if constexpr (requires { chosen.rounding.table.get().in_slot; }) {
      const auto& table = chosen.rounding.table.get().in_slot;
      std::copy(std::begin(table), std::end(table), std::begin(to.roundup_power2_divisions));
    }
  }

  snapshot result_;
  bool has_history_ = false;
};

}  // namespace detail

/// Takes a snapshot of any allocator: its segments and blocks, and the history if it has a `history`
/// observer.
///
/// Adjacent mapped pages form one segment. The history ends at the captured state, so memory_viz can replay
/// it backward. The arenas of a per_stream are read one after the other. Its snapshot is consistent only if
/// no other thread uses it meanwhile.
///
///     #include <tessera/observe/history.hpp>
///     #include <tessera/concurrent/locked.hpp>
///     tessera::locked<tessera::pytorch<>, tessera::simulated_device, tessera::history<>> pool;
///     const tessera::trace::snapshot seen = tessera::trace::capture(pool);
///
///   Throws:  std::bad_alloc
///   Cost:    linear in the blocks and in the history
template <typename Allocator>
[[nodiscard]] snapshot capture(Allocator& pool) {
  detail::snapshot_builder builder;
  pool.for_each_device([&](auto& front, std::size_t device) {
    front.for_each_allocator([&](auto& one) { builder.add_allocator(one, device); });
  });
  if (!builder.has_history()) {
    pool.for_each_device([&](auto& front, std::size_t device) {
      front.with_observer([&](auto& observer) { builder.add_history(observer, device); });
    });
  }
  return std::move(builder).finish();
}

}  // namespace tessera::trace
