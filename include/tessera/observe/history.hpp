// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tessera/core/allocator_event.hpp>
#include <tessera/fwd.hpp>

namespace tessera {

namespace detail {
/// Returns the microseconds since 1970.
struct wall_time {
  [[nodiscard]] std::uint64_t operator()() const noexcept {
    const auto elapsed = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(elapsed).count());
  }
};
}  // namespace detail

/// An observer that stores the latest events of an allocator, with times and labels. When full, it drops the
/// oldest.
///
///     tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device, tessera::history<>> watched;
///     watched.observer().label("forward");
///     watched.deallocate(watched.allocate(1000));
///     watched.observer().for_each([](const auto& entry) { std::printf("%zu bytes\n", entry.event.bytes); });
///
/// `Time` is callable, returns microseconds, and must not use the allocator. A moved-from history may only be
/// assigned to and destroyed.
///   Cost:  a call of `Time` and a store for each event; 64 bytes for each stored event
template <typename Time>
class history {
 public:
  struct entry {
    allocator_event event{};
    std::uint64_t time_us = 0;
    std::size_t label = 0;  ///< for label_of()
  };
  static constexpr std::size_t default_capacity = std::size_t{1} << 16;
  static constexpr std::size_t max_labels = std::size_t{1} << 12;

  history() : history(default_capacity) {}
  /// Stores up to `capacity` events, at least 1.
  ///   Throws:  std::bad_alloc or std::length_error
  explicit history(std::size_t capacity, Time time = {})
      : capacity_(capacity > 0 ? capacity : 1), time_(time), labels_(1) {
    ring_.reserve(capacity_);
  }
  history(history&&) noexcept = default;
  history& operator=(history&&) noexcept = default;
  history(const history& other)
      : capacity_(other.capacity_),
        time_(other.time_),
        labels_(other.labels_),
        label_(other.label_),
        total_(other.total_) {
    ring_.reserve(capacity_);  // a copied vector does not keep its capacity
    ring_.insert(ring_.end(), other.ring_.begin(), other.ring_.end());
  }
  history& operator=(const history& other) {
    *this = history(other);
    return *this;
  }
  ~history() = default;

  void on(const allocator_event& event) noexcept {
    const entry next{event, time_(), label_};
    if (ring_.size() < capacity_) {
      ring_.push_back(next);
    } else {
      ring_[static_cast<std::size_t>(total_ % capacity_)] = next;
    }
    ++total_;
  }

  /// Labels all events from now on, in all threads. An empty text removes the label.
  ///
  /// Stores at most 4,095 different labels. Later labels all become "(more labels)".
  void label(std::string_view text) {
    label_ = 0;
    while (label_ < labels_.size() && labels_[label_] != text) ++label_;
    if (label_ < labels_.size()) return;
    if (labels_.size() == max_labels) {
      label_ = max_labels - 1;
    } else {
      labels_.emplace_back(labels_.size() == max_labels - 1 ? std::string_view("(more labels)") : text);
    }
  }
  [[nodiscard]] std::string_view label_of(const entry& e) const noexcept { return labels_[e.label]; }

  /// Calls f(const entry&) for each stored event, oldest first.
  template <typename F>
  void for_each(F f) const {
    const std::size_t begin = total_ > ring_.size() ? static_cast<std::size_t>(total_ % capacity_) : 0;
    for (std::size_t i = 0; i < ring_.size(); ++i) f(ring_[(begin + i) % ring_.size()]);
  }
  [[nodiscard]] std::size_t size() const noexcept { return ring_.size(); }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  /// The number of events that were dropped.
  [[nodiscard]] std::uint64_t dropped() const noexcept { return total_ - ring_.size(); }
  /// Removes all events; labels stay.
  void clear() noexcept {
    ring_.clear();
    total_ = 0;
  }

 private:
  std::size_t capacity_;
  [[no_unique_address]] Time time_;
  std::vector<entry> ring_;
  std::vector<std::string> labels_;  // the first is empty: no label
  std::size_t label_ = 0;
  std::uint64_t total_ = 0;  // events observed
};

}  // namespace tessera
