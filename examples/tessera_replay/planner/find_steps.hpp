// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>

#include "recorded_track.hpp"

namespace tessera::inline v0_1::detail {

/// Finds where the requests of a stream repeat, from their sizes alone.
///
/// A gram is a sequence of requests. For each length that is a power of two, each request has the distance to the
/// previous request that begins the same gram. Frequent distances are the periods of loops: short grams show inner
/// loops, and grams that are longer than an inner loop show those around it. A step then begins at or behind a gram
/// that comes once in each period. Steps may differ a little, and frees play no part.
///   Cost:  n log^2 n, for n requests
class period_finder {
 public:
  /// A way to divide the requests: where the steps begin, and how well they repeat.
  struct division {
    std::uint32_t period = 0;
    std::vector<std::uint32_t> starts{};  // of the steps, and of the requests behind the last of them
    std::uint32_t steps = 0;
    std::uint64_t matched = 0;   // requests that repeat those of the step before
    std::uint64_t compared = 0;  // requests of all steps but the first

    [[nodiscard]] std::uint64_t covered() const noexcept { return compared + period; }
    [[nodiscard]] double mismatch() const noexcept {
      return 1 - static_cast<double>(matched) / static_cast<double>((std::max)(compared, std::uint64_t{1}));
    }
  };

  ///   Requires:  `live` has the live bytes before each request
  period_finder(const recorded_track& track, const std::vector<std::int64_t>& live)
      : count_(static_cast<std::uint32_t>(track.requests.size())), live_(live) {
    std::vector<std::uint32_t> grams;
    for (const recorded_request& r : track.requests) grams.push_back(r.kind);
    for (std::uint32_t length = 1; length <= count_ / 2; length *= 2) {
      level one{length, std::move(grams), {}};
      one.distances = distances(one.grams);
      const bool repeats =
          std::any_of(one.distances.begin(), one.distances.end(), [](std::uint32_t d) { return d != 0; });
      if (!repeats) break;
      grams = doubled(one);
      levels_.push_back(std::move(one));
    }
  }

  /// Proposes divisions. The first is the best guess: the shortest period with which nearly all steps repeat.
  [[nodiscard]] std::vector<division> propose() const {
    std::vector<division> all;
    for (const std::uint32_t period : periods()) add_divisions(all, period);
    std::uint64_t most_covered = 0;
    for (const division& d : all) most_covered = (std::max)(most_covered, d.covered());
    std::erase_if(all, [&](const division& d) { return d.covered() < most_covered / 4 * 3; });
    double least = 1;
    for (const division& d : all) {
      if (d.steps >= min_steps) least = (std::min)(least, d.mismatch());
    }
    const auto is_good = [&](const division& d) {
      return d.steps >= min_steps && d.mismatch() <= least * 1.5 + 0.005;
    };
    std::sort(all.begin(), all.end(), [&](const division& a, const division& b) {
      if (is_good(a) != is_good(b)) return is_good(a);
      if (!is_good(a) && a.mismatch() != b.mismatch()) return a.mismatch() < b.mismatch();
      if (a.period != b.period) return a.period < b.period;
      return a.covered() != b.covered() ? a.covered() > b.covered() : a.starts < b.starts;
    });
    return all;
  }

 private:
  struct level {
    std::uint32_t length;
    std::vector<std::uint32_t> grams;      // the number of the gram that begins at each request
    std::vector<std::uint32_t> distances;  // to the previous request with that gram; 0 if there is none
  };

  /// Numbers the grams of twice the length.
  [[nodiscard]] static std::vector<std::uint32_t> doubled(const level& of) {
    if (of.grams.size() <= of.length) return {};
    const std::size_t count = of.grams.size() - of.length;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> pairs;
    pairs.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i)
      pairs.emplace_back(std::uint64_t{of.grams[i]} << 32 | of.grams[i + of.length], i);
    std::sort(pairs.begin(), pairs.end());
    std::vector<std::uint32_t> grams(count);
    std::uint32_t number = 0;
    for (std::size_t k = 0; k < count; ++k) {
      if (k > 0 && pairs[k].first != pairs[k - 1].first) ++number;
      grams[pairs[k].second] = number;
    }
    return grams;
  }
  [[nodiscard]] static std::vector<std::uint32_t> distances(const std::vector<std::uint32_t>& grams) {
    std::vector<std::uint32_t> found(grams.size());
    std::vector<std::uint32_t> latest(grams.empty() ? 0 : *std::max_element(grams.begin(), grams.end()) + 1);
    for (std::uint32_t i = 0; i < grams.size(); ++i) {
      std::uint32_t& before = latest[grams[i]];  // plus 1
      if (before > 0) found[i] = i + 1 - before;
      before = i + 1;
    }
    return found;
  }

  /// The most frequent distances of each length of grams, without those that are nearly equal to others.
  [[nodiscard]] std::vector<std::uint32_t> periods() const {
    std::vector<std::uint32_t> found;
    for (const level& of : levels_) {
      std::vector<std::uint32_t> votes(count_ / 2 + 1);
      for (const std::uint32_t d : of.distances) {
        if (d <= count_ / 2) ++votes[d];
      }
      votes[0] = 0;
      for (int k = 0; k < max_periods; ++k) {
        const auto most = std::max_element(votes.begin(), votes.end());
        if (*most < 2) break;
        const auto period = static_cast<std::uint32_t>(most - votes.begin());
        *most = 0;
        const bool is_known = std::any_of(found.begin(), found.end(), [&](std::uint32_t other) {
          return (std::max)(period, other) - (std::min)(period, other) <= period / 64;
        });
        if (!is_known && period > 1) found.push_back(period);
      }
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  /// The requests with one gram.
  struct anchor {
    std::uint32_t on_period = 0;   // how many of them are about a period behind the previous one
    std::uint32_t off_period = 0;  // how many are not
    std::uint32_t first = 0, last = 0;
    std::uint64_t live = 0;        // the sum of the live bytes before the gram
    std::uint64_t live_after = 0;  // and behind it
  };
  /// Steps begin `shift` requests after a gram does: at it, or behind it.
  struct choice {
    const level* of = nullptr;
    std::uint32_t gram = 0;
    std::uint32_t shift = 0;
    std::uint32_t covered = 0;  // requests of the first step, and those that repeat it
    std::uint64_t quiet = 0;    // the mean of the live bytes where steps begin
  };

  /// Adds the divisions of a period: one that covers most requests, and one whose steps begin when least is live.
  void add_divisions(std::vector<division>& all, std::uint32_t period) const {
    const std::vector<std::uint32_t> same = equal_before(period);
    choice widest, quietest;
    std::uint32_t best = 0;  // requests covered
    for (const bool is_final : {false, true}) {
      for (const level& of : levels_) {
        if (of.length > period) break;
        for (const auto& [gram, a] : anchors(of, period)) {
          for (const std::uint32_t shift : {std::uint32_t{0}, of.length}) {
            const std::uint32_t first = first_start(a.first + shift, period, same);
            const std::uint32_t last = a.last + shift;
            const std::uint32_t repeated =
                same[(std::min)(last + period, count_)] - same[(std::min)(first + period, count_)];
            const std::uint64_t live = shift == 0 ? a.live : a.live_after;
            const choice one{&of, gram, shift, period + repeated, live / (a.on_period + a.off_period + 1)};
            best = (std::max)(best, one.covered);
            if (!is_final || one.covered < best - (std::min)(best, (std::max)(best / 8, period))) continue;
            const bool is_wider = one.covered > widest.covered;
            if (is_wider || (one.covered == widest.covered && one.quiet < widest.quiet)) widest = one;
            if (quietest.of == nullptr || one.quiet < quietest.quiet) quietest = one;
          }
        }
      }
    }
    if (widest.of == nullptr) return;
    for (const choice& one : {widest, quietest}) {
      division d = divide(one, period, same);
      const bool is_known = std::any_of(all.begin(), all.end(),
                                        [&](const division& other) { return other.starts == d.starts; });
      if (!is_known && d.compared > 0) all.push_back(std::move(d));
    }
  }
  /// A gram that ends before a step misses the first one. So goes back while the requests repeat.
  [[nodiscard]] static std::uint32_t first_start(std::uint32_t first, std::uint32_t period,
                                                 const std::vector<std::uint32_t>& same) {
    while (first >= period && first + period < same.size() && same[first + period] - same[first] == period)
      first -= period;
    return first;
  }
  /// Counts, before each request, those that equal the request one period before them.
  [[nodiscard]] std::vector<std::uint32_t> equal_before(std::uint32_t period) const {
    const std::vector<std::uint32_t>& kinds = levels_.front().grams;
    std::vector<std::uint32_t> counts(count_ + std::size_t{1});
    for (std::uint32_t i = 0; i < count_; ++i)
      counts[i + std::size_t{1}] = counts[i] + (i >= period && kinds[i] == kinds[i - period] ? 1 : 0);
    return counts;
  }
  /// Returns the grams that come once in most periods, in the order in which they first come.
  [[nodiscard]] std::vector<std::pair<std::uint32_t, anchor>> anchors(const level& of,
                                                                      std::uint32_t period) const {
    std::vector<anchor> by_gram(of.grams.size());
    std::vector<std::pair<std::uint32_t, anchor>> found;
    for (std::uint32_t i = 0; i < of.grams.size(); ++i) {
      anchor& a = by_gram[of.grams[i]];
      if (of.distances[i] == 0) {
        a.first = i;
        found.push_back({of.grams[i], {}});
      } else {
        ++(is_near(of.distances[i], period) ? a.on_period : a.off_period);
      }
      a.last = i;
      a.live += static_cast<std::uint64_t>(live_[i]);
      a.live_after += static_cast<std::uint64_t>(live_[i + of.length]);
    }
    for (auto& [gram, a] : found) a = by_gram[gram];
    std::erase_if(found,
                  [](const auto& one) { return one.second.on_period < 1 + 8 * one.second.off_period; });
    return found;
  }
  [[nodiscard]] static bool is_near(std::uint32_t distance, std::uint32_t period) noexcept {
    return distance >= period - period / 4 && distance <= period + period / 4;
  }

  [[nodiscard]] division divide(const choice& by, std::uint32_t period,
                                const std::vector<std::uint32_t>& same) const {
    division made;
    made.period = period;
    for (std::uint32_t i = 0; i < by.of->grams.size(); ++i) {
      if (by.of->grams[i] != by.gram || i + by.shift >= count_) continue;
      if (made.starts.empty()) {
        for (std::uint32_t at = first_start(i + by.shift, period, same); at < i + by.shift; at += period)
          made.starts.push_back(at);
      }
      const bool is_apart = made.starts.empty() || i + by.shift - made.starts.back() >= period / 2;
      if (is_apart) made.starts.push_back(i + by.shift);
    }
    if (made.starts.size() > 2) {
      // A gram may come before the steps by chance.
      compare(made, made.starts[0], made.starts[1], made.starts[2]);
      if (made.matched < made.compared / 4) made.starts.erase(made.starts.begin());
      made.matched = made.compared = 0;
    }
    if (made.starts.empty()) return made;
    const std::uint32_t last = made.starts.back();
    const std::uint32_t end = (std::min)(last + period, count_);
    const bool is_whole = same[end] - same[last] == period;
    std::uint64_t matched_before = 0;
    for (std::size_t s = 1; s < made.starts.size(); ++s) {
      matched_before = made.matched;
      compare(made, made.starts[s - 1], made.starts[s],
              s + 1 < made.starts.size() ? made.starts[s + 1] : end);
    }
    made.steps = static_cast<std::uint32_t>(made.starts.size());
    if (made.steps > 1) made.period = (last - made.starts.front()) / (made.steps - 1);
    // Requests that belong to no step may begin at the last start.
    const bool repeats = made.matched - matched_before >= (end - last) / 2;
    if (count_ - last < period / 2 || (made.steps > 1 && !repeats)) --made.steps;
    if (is_whole && end < count_) made.starts.push_back(end);
    return made;
  }
  /// Counts how many requests of a step equal those of the step before it, in the same order. Either may have some
  /// more.
  void compare(division& made, std::uint32_t before, std::uint32_t from, std::uint32_t to) const {
    const std::vector<std::uint32_t>& kinds = levels_.front().grams;
    const std::vector<std::uint32_t>& grams = levels_[levels_.size() > 2 ? 2 : 0].grams;
    const auto agree = [&](std::uint32_t a, std::uint32_t b) {
      return b < grams.size() && grams[a] == grams[b];
    };
    made.compared += to - from;
    std::uint32_t a = before, b = from;
    while (a < from && b < to) {
      if (kinds[a] == kinds[b]) {
        ++made.matched;
        ++a;
        ++b;
        continue;
      }
      std::uint32_t shift = 1, skip_a = 1, skip_b = 1;
      for (; shift <= max_shift; ++shift) {
        skip_a = agree(a + shift, b + shift) || agree(a + shift, b) ? shift : 0;
        skip_b = agree(a + shift, b + shift) || agree(a, b + shift) ? shift : 0;
        if (skip_a + skip_b > 0) break;
      }
      a += shift > max_shift ? 1 : skip_a;
      b += shift > max_shift ? 1 : skip_b;
    }
  }

  static constexpr std::uint32_t min_steps = 3;  // two that are equal may be so by chance
  static constexpr int max_periods = 3;          // of each length of grams
  static constexpr std::uint32_t max_shift =
      16;  // requests that a step has more than the one before, in one place

  std::uint32_t count_;
  const std::vector<std::int64_t>& live_;
  std::vector<level> levels_;
};

/// Divides the requests of a stream into steps.
///
/// The program's own marks count first, then the periods of its requests. Else, a step begins where nearly all live
/// blocks also live at a later, quiet moment. The blocks of that moment are kept, and few others outlive a step.
class step_finder {
 public:
  enum class source : unsigned char { marks, period, quiet_moments, none };
  struct division {
    std::vector<std::uint32_t> starts;
    source from = source::none;
    std::uint32_t kept_life = at_no_event;     // blocks that live for so many requests are kept
    std::uint32_t first_step = 0;              // the requests before it belong to no step
    std::uint32_t end_of_steps = at_no_event;  // nor do those from here on
  };

  step_finder(const recorded_track& track, std::size_t alignment)
      : track_(track), count_(track.requests.size()) {
    live_.resize(count_ + 1);
    std::vector<std::int64_t> change(count_ + 2);
    for (std::size_t i = 0; i < count_; ++i) {
      const auto bytes = static_cast<std::int64_t>(align_up(track.kinds[track.requests[i].kind], alignment));
      bytes_.push_back(bytes);
      change[i + 1] += bytes;
      if (track.requests[i].end <= count_) change[track.requests[i].end] -= bytes;
    }
    std::int64_t now = 0;
    for (std::size_t p = 0; p <= count_; ++p) live_[p] = now += change[p];
  }

  /// Proposes divisions: first that of the marks, then those of periods, the best first, then those with most steps.
  /// The last has no steps.
  [[nodiscard]] std::vector<division> propose() const {
    std::vector<division> found;
    const auto add = [&](division one) {
      const bool is_known =
          std::any_of(found.begin(), found.end(), [&](const division& d) { return d.starts == one.starts; });
      if (!is_known && one.starts.size() > 1) found.push_back(std::move(one));
    };
    if (!track_.marks.empty()) found.push_back(from_marks());
    for (const period_finder::division& d : period_finder(track_, live_).propose()) add(from_period(d));
    if (found.size() > max_periods) found.resize(max_periods);
    const std::int64_t peak = *std::max_element(live_.begin(), live_.end());
    for (const std::size_t quiet : quiet_moments()) {
      for (const std::int64_t most :
           {std::int64_t{0}, peak / 16384, peak / 1024, peak / 256, peak / 64, peak / 16, peak / 8}) {
        add({divide(quiet, most), source::quiet_moments});
      }
    }
    if (track_.kinds.size() <= max_ring_kinds) {
      division ring{std::vector<std::uint32_t>(count_), source::quiet_moments, 0};
      std::iota(ring.starts.begin(), ring.starts.end(), 0u);
      found.push_back(std::move(ring));
    }
    found.push_back({{0}, source::none, static_cast<std::uint32_t>(count_ / 2)});
    found.push_back({{0}});
    return found;
  }

 private:
  [[nodiscard]] division from_marks() const {
    division made{{0}, source::marks};
    made.first_step = track_.marks.front().position;
    for (const recorded_mark& m : track_.marks) {
      if (m.position > made.starts.back() && m.position < count_) made.starts.push_back(m.position);
    }
    return made;
  }
  [[nodiscard]] static division from_period(const period_finder::division& of) {
    division made{of.starts, source::period};
    made.first_step = of.starts.front();
    if (of.steps < of.starts.size()) made.end_of_steps = of.starts[of.steps];
    if (made.first_step > 0) made.starts.insert(made.starts.begin(), 0);
    return made;
  }
  /// Moments at which little is live, in several parts of the recording. Its end may be a teardown.
  [[nodiscard]] std::vector<std::size_t> quiet_moments() const {
    std::vector<std::size_t> found;
    for (const auto& [from, to] : {std::pair{50, 100}, {40, 90}, {25, 75}}) {
      const auto begin =
          live_.begin() + static_cast<std::ptrdiff_t>(count_ * static_cast<std::size_t>(from) / 100);
      const auto end =
          live_.begin() + static_cast<std::ptrdiff_t>(count_ * static_cast<std::size_t>(to) / 100);
      if (begin >= end) continue;
      // The last of the lowest.
      const auto lowest = *std::min_element(begin, end);
      auto last = end;
      while (*--last != lowest) {
      }
      found.push_back(static_cast<std::size_t>(last - live_.begin()));
    }
    return found;
  }
  /// The largest of some requests. A step that begins with a small one is easily mistaken for another.
  [[nodiscard]] std::uint32_t largest_from(std::size_t p) const {
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(p);
    const auto end = begin + static_cast<std::ptrdiff_t>((std::min)(count_ - p, std::size_t{32}));
    return static_cast<std::uint32_t>(std::max_element(begin, end) - bytes_.begin());
  }
  /// Begins a step wherever at most `most` bytes are live that do not live at the quiet moment, after a moment with
  /// many more.
  [[nodiscard]] std::vector<std::uint32_t> divide(std::size_t quiet, std::int64_t most) const {
    std::vector<std::int64_t> kept(count_ + 1);
    for (std::size_t i = 0; i < quiet; ++i) {
      const std::uint32_t end = track_.requests[i].end;
      if (end <= quiet) continue;
      kept[i + 1] += bytes_[i];
      if (end <= count_) kept[end] -= bytes_[i];
    }
    std::vector<std::int64_t> passing;
    std::int64_t now = 0;
    for (std::size_t p = 0; p < count_; ++p) passing.push_back(live_[p] - (now += kept[p]));
    const std::int64_t loud = most + (*std::max_element(passing.begin(), passing.end()) - most) / 2;
    std::vector<std::uint32_t> starts{0};
    bool was_loud = false;
    for (std::size_t p = 0; p < passing.size(); ++p) {
      if (was_loud && passing[p] <= most) starts.push_back(largest_from(p));
      was_loud = passing[p] > most && (was_loud || passing[p] > loud);
    }
    starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
    return starts;
  }

  static constexpr std::size_t max_periods = 8;  // divisions; each is tried
  // With each request as a step of its own, the kinds are searched in turn.
  static constexpr std::size_t max_ring_kinds = 16;

  const recorded_track& track_;
  std::size_t count_;
  std::vector<std::int64_t> bytes_;  // of the place of each request
  std::vector<std::int64_t> live_;   // before each request
};

}  // namespace tessera::inline v0_1::detail
