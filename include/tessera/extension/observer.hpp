// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/detail/extensions/extension_set.hpp>

namespace tessera::inline v0_1::extension {

/// Reports every allocator_event to an object of the program.
///
/// Choose it to record, count or draw what an allocator does. observe::history and trace::recording are observers.
///
///     struct count_segments {
///       std::size_t count = 0;
///       void on(const tessera::allocator_event& e) noexcept {
///         count += e.what == tessera::allocator_event::action::segment_alloc;
///       }
///     };
///     using watch = tessera::extension::observer<count_segments>;
///     tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, watch> watched;
///     watched.deallocate(watched.allocate(5_MiB));
///     watched.get<watch>().with([](const count_segments& seen) { std::printf("%zu segments\n", seen.count); });
///
///   Cost:  a call for each event
template <typename Observer>
struct observer {
  static_assert(allocator_observer<Observer>,
                "observer<T>: T has a member function on(const allocator_event&) noexcept "
                "[tessera/core/types.hpp]");
  static constexpr bool spans_arenas = true;
  /// The object that receives the events. The allocator takes it over; the door's with() gives access to it
  /// later.
  Observer to = Observer();

  template <typename Core>
  class state;
  template <typename Allocator>
  class door;
};
template <typename Observer>
observer(Observer) -> observer<Observer>;

/// The observer of one allocator.
template <typename Observer>
template <typename Core>
class observer<Observer>::state : public tessera::detail::extension_defaults {
 public:
  state(typename Core::allocator&, observer&& from) noexcept : to_(std::move(from.to)) {}
  state(typename Core::allocator&, const observer& from) : to_(from.to) {}

  /// Reports an event. The allocator is half changed during the call, so the observer must not change it; otherwise
  /// the program aborts.
  void on_event(const allocator_event& event) noexcept {
    check_thread();
    calls_.call([&] { to_.on(event); });
  }
  void check_thread() const noexcept {
    calls_.check_thread("an observer must not use the allocator that calls it");
  }
  [[nodiscard]] Observer& target() noexcept { return to_; }
  [[nodiscard]] const Observer& target() const noexcept { return to_; }
  template <typename F>
  void visit_observer(F& f) {
    f(to_);
  }

 private:
  Observer to_;
  tessera::detail::user_calls calls_;
};

/// What `allocator.get<observer<T>>()` returns.
template <typename Observer>
template <typename Allocator>
class observer<Observer>::door {
 public:
  explicit door(Allocator& in) noexcept : in_(&in) {}

  /// Calls f(observer), with the lock of a front end held. f must not use the allocator.
  template <typename F>
  decltype(auto) with(F f) {
    return in_->template visit_extension<observer>([&f](auto& s) -> decltype(auto) { return f(s.target()); });
  }

 private:
  Allocator* in_;
};

}  // namespace tessera::inline v0_1::extension
