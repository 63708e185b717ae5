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
#include <tessera/core/growth_way.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/detail/facade.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::trace {

/// Keeps events and tells them again, as history does.
template <typename S>
concept keeps_events = event_observer<S> &&
                       requires(const S& observer) { observer.for_each(tessera::detail::return_argument{}); };

/// The name of a type as it is written in C++.
template <typename T>
[[nodiscard]] std::string_view type_name() noexcept {
  const std::string_view all = __PRETTY_FUNCTION__;  // "... [with T = name; ...]" or "... [T = name]"
  const std::size_t begin = all.find("T = ") + 4;
  return all.substr(begin, (std::min)(all.find(';', begin), all.rfind(']')) - begin);
}

/// Collects what an allocator holds, part by part.
class capturer {
 public:
  template <typename Allocator>
  void look_at(Allocator& pool, std::size_t device) {
    const bool one_pool = number_of_pools(pool.settings()) == 1;
    for_each_block(pool, [&](const segment_view& s, const block_view& b) {
      if (made_.segments.empty() || made_.segments.back().address != s.address ||
          made_.segments.back().device != device) {
        made_.segments.push_back({.device = device,
                                  .address = s.address,
                                  .size = s.bytes,
                                  .stream = s.stream,
                                  .large = s.pool > 0 || one_pool,
                                  .expandable = s.in_range});
      }
      made_.segments.back().blocks.push_back({b.address, b.bytes, b.requested, state_of(b.is)});
    });
    if (made_.configured.recipe.empty()) note(pool.settings());
    if constexpr (keeps_events<std::remove_cvref_t<decltype(pool.observer())>>) take(pool.observer(), device);
  }

  /// Takes what a sink has kept, and tells it that it was looked at.
  template <typename Observer>
  void take(Observer& observer, std::size_t device) {
    if constexpr (keeps_events<Observer>) {
      has_history_ = true;
      if (made_.traces.size() <= device) made_.traces.resize(device + 1);
      auto& trace = made_.traces[device];
      observer.for_each([&](const auto& entry) {
        trace.push_back(entry_of(entry.event, entry.time_us));
        if constexpr (requires { trace.back().label = observer.text_of(entry); })
          trace.back().label = observer.text_of(entry);
      });
      std::size_t active = 0;
      for (const snapshot::segment& s : made_.segments) active += s.device == device ? s.add_up().active : 0;
      observer.on(allocator_event{.what = allocator_event::action::snapshot, .bytes = active});
    }
  }
  [[nodiscard]] bool has_history() const noexcept { return has_history_; }

  [[nodiscard]] snapshot finish() && {
    const auto place = [](const snapshot::segment& s) { return std::pair(s.device, s.address); };
    std::sort(made_.segments.begin(), made_.segments.end(),
              [&](const auto& a, const auto& b) { return place(a) < place(b); });
    if (!made_.segments.empty() && made_.traces.size() <= made_.segments.back().device)
      made_.traces.resize(static_cast<std::size_t>(made_.segments.back().device) + 1);
    return std::move(made_);
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
    snapshot::entry made{.what = action_of(e.what), .size = e.bytes, .stream = e.stream, .time_us = time_us};
    const bool is_oom = e.what == allocator_event::action::oom;
    is_oom ? made.device_free = e.address : made.address = e.address;
    const bool of_request = made.what <= snapshot::action::free_completed || is_oom;
    if (of_request) made.block = e.block;
    return made;
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

  /// What the policies say in PyTorch's words, where it has words for it.
  template <typename Recipe>
  void note(const policies<Recipe>& chosen) {
    snapshot::settings& to = made_.configured;
    to.recipe = type_name<Recipe>();
    to.max_split_size = chosen.split.oversize();
    to.expandable_segments = Recipe::growth::way != growth_way::segments;
    if constexpr (requires {
                    { chosen.eviction.threshold } -> std::convertible_to<fraction>;
                  })
      to.garbage_collection_threshold = fraction(chosen.eviction.threshold).value();
    if constexpr (requires { chosen.rounding.table.get().in_slot; }) {
      const auto& table = chosen.rounding.table.get().in_slot;
      std::copy(std::begin(table), std::end(table), std::begin(to.roundup_power2_divisions));
    }
  }

  snapshot made_;
  bool has_history_ = false;
};

/// How an allocator of any kind stands, with the history that a `history` among its sinks has kept, which is told of it.
///
/// What is mapped side by side is one segment. The history ends where the state is, so that it can be run backward from
/// there; of a per_stream, whose lanes are looked at one after the other, only while no other thread uses it.
///
///     #include <tessera/observe/history.hpp>
///     #include <tessera/concurrent/locked.hpp>
///     tessera::locked<tessera::pytorch<>, tessera::simulated_device, tessera::history<>> pool;
///     const tessera::trace::snapshot seen = tessera::trace::capture(pool);
///
///   Throws:  std::bad_alloc where there is no room for it
///   Cost:    linear in the blocks and in the history
template <typename Allocator>
[[nodiscard]] snapshot capture(Allocator& pool) {
  capturer looker;
  pool.for_each_device([&](auto& front, std::size_t device) {
    front.for_each_allocator([&](auto& one) { looker.look_at(one, device); });
  });
  if (!looker.has_history()) {
    pool.for_each_device([&](auto& front, std::size_t device) {
      front.with_observer([&](auto& observer) { looker.take(observer, device); });
    });
  }
  return std::move(looker).finish();
}

}  // namespace tessera::trace
