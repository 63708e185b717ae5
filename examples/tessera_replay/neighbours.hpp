// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/trace/recording.hpp>

namespace replay {

/// How the neighbours of a recorded program differ from it.
struct variation {
  bool order = true;      ///< of frees: those in a row in any order
  bool steps = true;      ///< the blocks that live within one recorded step move to the place of another step
  bool timing = true;     ///< of streams: a recorded use takes up to 2 ms on its stream, an event up to 20 us
  bool addresses = true;  ///< as drivers give them: at random places, or where memory was released
  double percent = 2;     ///< sizes, up or down; requests of one size stay equal
};

/// A sequence of random numbers that is the same everywhere, unlike the distributions of the standard library. It begins at
/// once, unlike std::mt19937_64, because each size has one of its own.
///   Source:  Steele, Lea and Flood's SplitMix64
class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) noexcept : state_(seed) {}
  [[nodiscard]] std::uint64_t below(std::uint64_t bound) noexcept { return next() % bound; }
  /// A number from -1 to 1.
  [[nodiscard]] double around_0() noexcept { return static_cast<double>(next() >> 11) * 0x1p-52 - 1; }

 private:
  [[nodiscard]] std::uint64_t next() noexcept {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }

  std::uint64_t state_;
};

/// The steps of a recorded program, and which events may move from one to another: those of blocks that are allocated and
/// freed in the same step, outside private pools. All other events, such as those of weights, stay in their place.
class recorded_steps {
 public:
  explicit recorded_steps(const tessera::trace::recording& from) : moves_(from.events.size()) {
    using kind = tessera::trace::event::kind;
    struct block {
      std::size_t step;
      std::vector<std::size_t> events;
    };
    std::map<std::uint64_t, block> live;
    std::size_t open_scopes = 0;
    for (std::size_t i = 0; i < from.events.size(); ++i) {
      const tessera::trace::event& e = from.events[i];
      if (e.what == kind::begin_step) begins_.push_back(i);
      if (e.what == kind::begin_pool) ++open_scopes;
      if (e.what == kind::end_pool && open_scopes > 0) --open_scopes;
      if (begins_.empty()) continue;
      if (e.what == kind::allocate && open_scopes == 0) {
        live[e.id] = {begins_.size(), {i}};
      } else if (e.what == kind::free || e.what == kind::record_stream) {
        const auto found = live.find(e.id);
        if (found == live.end()) continue;
        found->second.events.push_back(i);
        if (e.what == kind::record_stream) continue;
        if (found->second.step == begins_.size())
          for (const std::size_t event : found->second.events) moves_[event] = true;
        live.erase(found);
      }
    }
    begins_.push_back(from.events.size());
  }
  [[nodiscard]] std::size_t count() const noexcept { return begins_.size() - 1; }

  /// Exchanges the movable parts of the steps, in an order that the numbers give.
  void shuffle(std::vector<tessera::trace::event>& events, random_numbers& random) const {
    if (count() < 2) return;
    std::vector<std::size_t> order(count());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (std::size_t left = order.size(); left > 1; --left)
      std::swap(order[left - 1], order[random.below(left)]);
    std::vector<tessera::trace::event> made(events.begin(), events.begin() + offset(begins_[0]));
    made.reserve(events.size());
    for (std::size_t place = 0; place < count(); ++place) {
      std::vector<tessera::trace::event> moved;
      for (std::size_t i = begins_[order[place]]; i < begins_[order[place] + 1]; ++i)
        if (moves_[i]) moved.push_back(events[i]);
      // What stays keeps its share of the step before it.
      const std::size_t begin = begins_[place], length = begins_[place + 1] - begin;
      std::size_t taken = 0;
      for (std::size_t i = 0; i < length; ++i) {
        if (moves_[begin + i]) continue;
        for (const std::size_t due = i * moved.size() / length; taken < due; ++taken)
          made.push_back(moved[taken]);
        made.push_back(events[begin + i]);
      }
      made.insert(made.end(), moved.begin() + offset(taken), moved.end());
    }
    events = std::move(made);
  }

 private:
  [[nodiscard]] static std::ptrdiff_t offset(std::size_t n) noexcept {
    return static_cast<std::ptrdiff_t>(n);
  }

  std::vector<bool> moves_;
  std::vector<std::size_t> begins_;  // of the steps, and the end of the last one
};

/// Makes a neighbour of a recorded program. Each seed gives another; 0 gives the program itself.
[[nodiscard]] inline tessera::trace::recording neighbour_of(const tessera::trace::recording& from,
                                                            const recorded_steps& steps, const variation& by,
                                                            std::uint64_t seed) {
  using kind = tessera::trace::event::kind;
  tessera::trace::recording made;
  made.name = from.name;
  made.events = from.events;
  if (seed == 0) return made;
  std::vector<tessera::trace::event>& events = made.events;
  if (by.percent > 0) {
    for (tessera::trace::event& e : events) {
      if (e.what != kind::allocate && e.what != kind::free && e.what != kind::refused) continue;
      const double factor = 1 + by.percent / 100 * random_numbers(seed + e.bytes).around_0();
      const double bytes = std::round(static_cast<double>(e.bytes) * factor);
      e.bytes = bytes < 1 ? 1 : std::min(static_cast<std::size_t>(bytes), tessera::max_request);
    }
  }
  random_numbers random(seed);
  if (by.steps) steps.shuffle(events, random);
  if (!by.order) return made;
  for (std::size_t i = 0; i < events.size(); ++i) {
    std::size_t end = i;
    while (end < events.size() && events[end].what == kind::free) ++end;
    for (std::size_t left = end - i; left > 1; --left)
      std::swap(events[i + left - 1], events[i + random.below(left)]);
    i = std::max(i, end);
  }
  return made;
}

}  // namespace replay
