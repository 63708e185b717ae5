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

/// Microseconds since 1970.
struct wall_time {
  [[nodiscard]] std::uint64_t operator()() const noexcept {
    const auto since = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(since).count());
  }
};

/// The latest events of an allocator, with their times and labels: a sink that forgets the oldest once it is full.
///
///     tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device, tessera::history<>> watched;
///     watched.observer().label("forward");
///     watched.deallocate(watched.allocate(1000));
///     watched.observer().for_each([](const auto& entry) { std::printf("%zu bytes\n", entry.event.bytes); });
///
/// `Time` is a function that tells microseconds; as any sink, it must not use the allocator. Copies begin with what the original has seen; what was moved from may only
/// be assigned to and ended.
///   Cost:  a call of the time and a store for each event; 64 bytes for each that is kept
template <typename Time>
class history {
 public:
  struct entry {
    allocator_event event{};
    std::uint64_t time_us = 0;
    std::size_t label = 0;  ///< for text_of()
  };
  static constexpr std::size_t usual_capacity = std::size_t{1} << 16;
  static constexpr std::size_t most_labels = std::size_t{1} << 12;

  history() : history(usual_capacity) {}
  /// `capacity` is the number of events to keep, at least 1.
  ///   Throws:  std::bad_alloc or std::length_error where there is no room for so many
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
        seen_(other.seen_) {
    ring_.reserve(capacity_);  // which a copy of a vector has not
    ring_.insert(ring_.end(), other.ring_.begin(), other.ring_.end());
  }
  history& operator=(const history& other) {
    *this = history(other);
    return *this;
  }
  ~history() = default;

  void on(const allocator_event& event) noexcept {
    const entry made{event, time_(), label_};
    if (ring_.size() < capacity_) {
      ring_.push_back(made);
    } else {
      ring_[static_cast<std::size_t>(seen_ % capacity_)] = made;
    }
    ++seen_;
  }

  /// Names what happens from here on, for all threads; empty for nothing. The 4,096th name and all after it are one.
  void label(std::string_view text) {
    label_ = 0;
    while (label_ < labels_.size() && labels_[label_] != text) ++label_;
    if (label_ < labels_.size()) return;
    if (labels_.size() == most_labels) {
      label_ = most_labels - 1;
    } else {
      labels_.emplace_back(labels_.size() == most_labels - 1 ? std::string_view("(more labels)") : text);
    }
  }
  [[nodiscard]] std::string_view text_of(const entry& one) const noexcept { return labels_[one.label]; }

  /// Calls f(const entry&) for each event that is kept, oldest first.
  template <typename F>
  void for_each(F f) const {
    const std::size_t begin = seen_ > ring_.size() ? static_cast<std::size_t>(seen_ % capacity_) : 0;
    for (std::size_t i = 0; i < ring_.size(); ++i) f(ring_[(begin + i) % ring_.size()]);
  }
  [[nodiscard]] std::size_t size() const noexcept { return ring_.size(); }
  [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
  /// Events that are not kept any more.
  [[nodiscard]] std::uint64_t forgotten() const noexcept { return seen_ - ring_.size(); }
  /// Forgets all events; labels stay.
  void clear() noexcept {
    ring_.clear();
    seen_ = 0;
  }

 private:
  std::size_t capacity_;
  [[no_unique_address]] Time time_;
  std::vector<entry> ring_;
  std::vector<std::string> labels_;  // the first is that of what has none
  std::size_t label_ = 0;
  std::uint64_t seen_ = 0;
};

}  // namespace tessera
