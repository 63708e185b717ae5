// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/trace/recording.hpp>

namespace replay {

/// How the neighbours of a recorded program differ from it.
struct variation {
  bool order = true;   ///< of frees: those in a row in any order, each up to `reach` events earlier or later
  bool timing = true;  ///< of streams: a recorded use takes up to 2 ms on its stream, an event up to 20 us
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

/// Makes a neighbour of a recorded program. Each seed gives another; 0 gives the program itself.
[[nodiscard]] inline tessera::trace::recording neighbour_of(const tessera::trace::recording& from,
                                                            const variation& by, std::uint64_t seed) {
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
  if (!by.order) return made;
  random_numbers random(seed);
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
