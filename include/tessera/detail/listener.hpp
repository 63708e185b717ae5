// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/core/allocator_event.hpp>
#include <tessera/core/fatal.hpp>

namespace tessera::detail {

/// A sink, which is told one event at a time: one that changes an allocator while it is told finds it half changed.
template <event_observer Observer>
class listener {
 public:
  explicit listener(Observer to) : to_(std::move(to)) {}

  ///   Requires:  the sink is not being told; else the program ends
  void tell(const allocator_event& event) noexcept {
    if (std::exchange(is_told_, true)) fatal("an observer must not use the allocator that calls it");
    to_.on(event);
    is_told_ = false;
  }
  [[nodiscard]] Observer& observer() noexcept { return to_; }

 private:
  [[no_unique_address]] Observer to_;
  bool is_told_ = false;
};

/// Of nobody, nothing is to be noted.
template <event_observer Observer>
  requires(!is_heard<Observer>)
class listener<Observer> {
 public:
  explicit listener(Observer to) : to_(std::move(to)) {}
  static constexpr void tell(const allocator_event&) noexcept {}
  [[nodiscard]] Observer& observer() noexcept { return to_; }

 private:
  [[no_unique_address]] Observer to_;
};

}  // namespace tessera::detail
