// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lifetime.hpp"

namespace tessera::inline v0_1::plan::detail {

/// Disjoint intervals of offsets, sorted. Intervals that touch are one.
class offset_set {
 public:
  struct interval {
    std::uint64_t lower;
    std::uint64_t upper;
  };

  void clear() noexcept { intervals_.clear(); }
  [[nodiscard]] bool empty() const noexcept { return intervals_.empty(); }
  [[nodiscard]] const std::vector<interval>& intervals() const noexcept { return intervals_; }

  /// Adds an interval.
  ///   Cost:  logarithmic, and a move of the later intervals if their number changes
  void insert(interval added) {
    const auto ends_before = [](const interval& a, std::uint64_t offset) { return a.upper < offset; };
    const auto from = std::lower_bound(intervals_.begin(), intervals_.end(), added.lower, ends_before);
    auto to = from;
    while (to != intervals_.end() && to->lower <= added.upper) {
      added.lower = (std::min)(added.lower, to->lower);
      added.upper = (std::max)(added.upper, to->upper);
      ++to;
    }
    if (from == to) {
      intervals_.insert(from, added);
      return;
    }
    *from = added;
    intervals_.erase(from + 1, to);
  }

 private:
  std::vector<interval> intervals_;
};

/// The offsets that placed blocks use, by section. It finds the lowest free offset for a block.
///
/// Each node of a binary tree over the sections has two sets of offsets. One is of the blocks that are live in
/// all of its sections, but not in all of its parent's. The other is of those that are live in any of its
/// sections.
///   Cost:  a block of s sections is in 2 log(s) nodes; the sets merge, so most of them are short
class occupancy {
 public:
  explicit occupancy(std::uint32_t sections)
      : leaves_(std::bit_ceil(sections)),
        covering_(2 * leaves_),
        touching_(2 * leaves_),
        seen_(2 * leaves_) {}

  /// Returns the lowest offset at which `units` units are free in all spans. After `max_steps` steps it
  /// returns the lowest offset above all blocks that are live there.
  [[nodiscard]] std::uint64_t lowest_free(std::span<const time_span> spans, std::uint64_t units,
                                          std::uint64_t max_steps) {
    collect(spans);
    std::uint64_t offset = 0;
    std::uint64_t taken = 0;
    std::size_t agreeing = 0;  // sets in which the offset is free
    for (std::size_t k = 0; agreeing < sets_.size(); k = k + 1 < sets_.size() ? k + 1 : 0) {
      if (++taken > max_steps) break;
      const bool was_free = !sets_[k].advance(offset, units, taken);
      agreeing = was_free ? agreeing + 1 : 1;
    }
    steps_ += taken;
    if (taken <= max_steps) return offset;
    for (const cursor& set : sets_) offset = (std::max)(offset, set.intervals->back().upper);
    return offset;
  }

  /// Marks the offsets of a block as used.
  void insert(std::span<const time_span> spans, std::uint64_t offset, std::uint64_t units) {
    const offset_set::interval used{offset, saturating_add(offset, units)};
    ++round_;
    for (const time_span& span : spans) {
      for_each_node(span, [&](std::size_t node) {
        covering_[node].insert(used);
        touching_[node].insert(used);
        for (std::size_t above = node / 2; above > 0 && seen_[above] != round_; above /= 2) {
          seen_[above] = round_;
          touching_[above].insert(used);
        }
        ++steps_;
      });
    }
  }

  /// Returns how many elementary steps were taken so far.
  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }

 private:
  struct cursor {
    const std::vector<offset_set::interval>* intervals;
    std::size_t next = 0;  // the first interval that may be above the offset

    /// Moves the offset up until the units are free in this set. Returns whether it moved.
    bool advance(std::uint64_t& offset, std::uint64_t units, std::uint64_t& taken) {
      const auto& all = *intervals;
      const auto ends_before = [](const offset_set::interval& a, std::uint64_t at) { return a.upper <= at; };
      if (next < all.size() && all[next].upper <= offset) {
        const auto from = all.begin() + static_cast<std::ptrdiff_t>(next);
        next = static_cast<std::size_t>(std::lower_bound(from, all.end(), offset, ends_before) - all.begin());
      }
      bool moved = false;
      while (next < all.size() && all[next].lower < saturating_add(offset, units)) {
        offset = all[next].upper;
        moved = true;
        ++next;
        ++taken;
      }
      return moved;
    }
  };

  /// Calls a function with the nodes whose sections together are those of the span.
  template <typename Function>
  void for_each_node(const time_span& span, Function call) {
    std::size_t lower = span.lower + leaves_;
    std::size_t upper = span.upper + leaves_;
    while (lower < upper) {
      if (lower % 2 == 1) call(lower++);
      if (upper % 2 == 1) call(--upper);
      lower /= 2;
      upper /= 2;
    }
  }

  void collect(std::span<const time_span> spans) {
    sets_.clear();
    ++round_;
    const auto add = [&](const offset_set& set) {
      if (!set.empty()) sets_.push_back({&set.intervals(), 0});
    };
    for (const time_span& span : spans) {
      for_each_node(span, [&](std::size_t node) {
        add(touching_[node]);
        for (std::size_t above = node / 2; above > 0 && seen_[above] != round_; above /= 2) {
          seen_[above] = round_;
          add(covering_[above]);
        }
      });
    }
  }

  std::size_t leaves_;
  std::vector<offset_set> covering_;
  std::vector<offset_set> touching_;
  std::vector<std::uint64_t> seen_;  // the last round in which a node was visited
  std::uint64_t round_ = 0;
  std::uint64_t steps_ = 0;
  std::vector<cursor> sets_;
};

}  // namespace tessera::inline v0_1::plan::detail
