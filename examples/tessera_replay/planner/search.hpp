// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lifetime.hpp"

namespace tessera::inline v0_1::plan::detail {

/// Searches for a placement of at most a given height, or proves that there is none.
///
/// It places a waiting block of the lowest possible offset there, below all blocks that wait. If that fails, the
/// block is skipped: it needs another waiting block below it, one that starts below its top. Otherwise it could
/// fall. So its lowest offset rises. A state fails if the blocks that wait in a section do not fit above the
/// lowest of their offsets. Blocks that no longer share a section with others are searched on their own.
///   Cost:    memory for all pairs of blocks that are live at the same time
///   Source:  canonical solutions, inference by sections and decomposition as in MiniMalloc,
///            https://doi.org/10.1145/3623278.3624752. Skipped blocks and blame are our own.
class exact_search {
 public:
  enum class outcome : unsigned char { solved, impossible, cut_short };

  explicit exact_search(const instance& blocks) : blocks_(blocks), blame_(blocks.sections()) {
    list_by_section();
    list_neighbours();
  }

  /// Returns how many pairs of blocks there are at most. They decide the memory and the speed.
  [[nodiscard]] static std::uint64_t max_pairs(const instance& blocks) {
    std::vector<std::uint32_t> live(blocks.sections() + std::size_t{1});
    std::vector<std::uint32_t> born(blocks.sections());
    for (std::uint32_t block = 0; block < blocks.size(); ++block) {
      for (const time_span& span : blocks.spans(block)) {
        ++live[span.lower];
        --live[span.upper];  // modulo 2^32
        ++born[span.lower];
      }
    }
    std::uint64_t pairs = 0;
    std::uint32_t now = 0;
    for (std::uint32_t section = 0; section < blocks.sections(); ++section) {
      now += live[section];
      pairs += std::uint64_t{born[section]} * now * 2;
    }
    return pairs;
  }

  /// Searches for a height of at most `height`. `ranks` orders blocks of the same lowest offset. It gives up
  /// after `max_nodes` decisions or `max_steps` elementary steps.
  outcome run(const std::vector<std::uint32_t>& ranks, std::uint64_t height, std::uint64_t max_nodes,
              std::uint64_t max_steps) {
    begin(ranks, height);
    const std::uint64_t last_step = steps_ + max_steps;
    std::uint64_t nodes = 0;
    while (current_ != none) {
      if (++nodes > max_nodes || steps_ > last_step) return outcome::cut_short;
      const choice chosen = choose();
      if (chosen.fails) {
        if (!skip_last()) return outcome::impossible;
      } else if (chosen.block == none) {
        leave();
      } else {
        decide(chosen.block);
        if (!put(chosen.block)) {
          if (!skip_last()) return outcome::impossible;
        } else {
          divide(blocks_.hull(chosen.block));
        }
      }
    }
    return outcome::solved;
  }

  /// Returns the offset of each block after a search that solved.
  [[nodiscard]] const std::vector<std::uint64_t>& offsets() const noexcept { return lowest_; }
  /// Returns the least height that the last search did not exclude, after it proved its height impossible.
  [[nodiscard]] std::uint64_t next_height() const noexcept { return next_height_; }
  /// Returns how often each section made a search fail. Older failures count less.
  [[nodiscard]] const std::vector<double>& blame() const noexcept { return blame_; }
  void forget_some_blame() {
    for (double& count : blame_) count *= 0.7;
  }
  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }

 private:
  static constexpr std::uint32_t none = ~std::uint32_t{0};

  /// Blocks that are searched together, and the range of sections that they are live in.
  struct part {
    std::uint32_t first;  // of members_
    std::uint32_t count;
    time_span range;
    std::uint32_t next;    // the part to search after this
    std::uint32_t parent;  // the last decision before this part was made
  };
  struct decision {
    std::uint32_t block;
    std::uint32_t part;
    std::uint32_t parent;  // the decision before it in the same part, or that of the part
    std::size_t changes;   // what was there before the decision
    std::size_t placed;
    std::size_t parts;
    std::size_t members;
  };
  struct change {
    std::uint64_t* number;
    std::uint64_t before;
  };
  struct choice {
    std::uint32_t block;
    bool fails;
  };

  void list_by_section() {
    first_in_.assign(blocks_.sections() + std::size_t{1}, 0);
    for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
      for_each_section(block, [&](std::uint32_t section) { ++first_in_[section + std::size_t{1}]; });
    }
    for (std::size_t i = 1; i < first_in_.size(); ++i) first_in_[i] += first_in_[i - 1];
    live_in_.resize(first_in_.back());
    std::vector<std::size_t> next(first_in_.begin(), first_in_.end() - 1);
    for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
      for_each_section(block, [&](std::uint32_t section) { live_in_[next[section]++] = block; });
    }
  }

  void list_neighbours() {
    std::vector<std::uint32_t> listed_for(blocks_.size(), none);
    std::vector<std::uint8_t> is_born(live_in_.size());  // whether a span of the block begins in that section
    for (std::uint32_t section = 0; section < blocks_.sections(); ++section) {
      for (std::size_t k = first_in_[section]; k < first_in_[section + std::size_t{1}]; ++k) {
        for (const time_span& span : blocks_.spans(live_in_[k])) is_born[k] |= span.lower == section;
      }
    }
    first_neighbour_.reserve(blocks_.size() + std::size_t{1});
    for (std::uint32_t block = 0; block < blocks_.size(); ++block) {
      first_neighbour_.push_back(neighbours_.size());
      listed_for[block] = block;
      for (const time_span& span : blocks_.spans(block)) {
        for (std::uint32_t section = span.lower; section < span.upper; ++section) {
          for (std::size_t k = first_in_[section]; k < first_in_[section + std::size_t{1}]; ++k) {
            const std::uint32_t other = live_in_[k];
            if ((section != span.lower && is_born[k] == 0) || listed_for[other] == block) continue;
            listed_for[other] = block;
            neighbours_.push_back(other);
          }
        }
      }
    }
    first_neighbour_.push_back(neighbours_.size());
  }

  template <typename Function>
  void for_each_section(std::uint32_t block, Function call) const {
    for (const time_span& span : blocks_.spans(block)) {
      for (std::uint32_t section = span.lower; section < span.upper; ++section) call(section);
    }
  }
  [[nodiscard]] std::span<const std::uint32_t> neighbours(std::uint32_t block) const {
    return {neighbours_.data() + first_neighbour_[block],
            neighbours_.data() + first_neighbour_[block + std::size_t{1}]};
  }

  void begin(const std::vector<std::uint32_t>& ranks, std::uint64_t height) {
    ranks_ = ranks;
    height_ = height;
    next_height_ = unlimited;
    const std::size_t count = blocks_.size();
    lowest_.assign(count, 0);
    must_start_below_.assign(count, 0);
    is_placed_.assign(count, 0);
    floors_.assign(blocks_.sections(), 0);
    waiting_ = blocks_.loads();
    crossing_.assign(blocks_.sections(), 0);
    touched_in_.assign(blocks_.sections(), 0);
    round_ = 0;
    changes_.clear();
    placed_.clear();
    decisions_.clear();
    parts_.clear();
    members_.resize(count);
    for (std::uint32_t block = 0; block < count; ++block) {
      members_[block] = block;
      const time_span hull = blocks_.hull(block);
      for (std::uint32_t section = hull.lower; section + 1 < hull.upper; ++section) ++crossing_[section];
    }
    last_ = none;
    current_ = none;
    open({0, blocks_.size(), {0, blocks_.sections()}, none, none});
    steps_ += count + blocks_.incidences();
    divide({0, blocks_.sections()});
  }

  /// Makes a part the current one.
  void open(const part& added) {
    parts_.push_back(added);
    current_ = static_cast<std::uint32_t>(parts_.size() - 1);
  }

  /// Goes on with the next part.
  void leave() {
    current_ = parts_[current_].next;
    if (current_ != none) last_ = parts_[current_].parent;
  }

  /// Returns the waiting block of the lowest possible offset in the current part; of several, the one of the
  /// lowest rank.
  choice choose() {
    while (true) {
      const part here = parts_[current_];
      std::uint32_t best = none;
      std::uint32_t left = 0;
      for (std::uint32_t k = here.first; k < here.first + here.count; ++k) {
        const std::uint32_t block = members_[k];
        if (is_placed_[block] != 0) continue;
        ++left;
        if (best == none || comes_before(block, best)) best = block;
      }
      steps_ += here.count;
      if (best == none) return {none, false};
      if (must_start_below_[best] == 0) {
        if (here.count > 64 && left < here.count / 2) open_rest(here);
        return {best, false};
      }
      if (!raise_skipped(best)) return {none, true};
    }
  }
  [[nodiscard]] bool comes_before(std::uint32_t a, std::uint32_t b) const {
    return lowest_[a] != lowest_[b] ? lowest_[a] < lowest_[b] : ranks_[a] < ranks_[b];
  }

  /// Replaces the current part by its blocks that wait.
  void open_rest(part rest) {
    const auto first = static_cast<std::uint32_t>(members_.size());
    for (std::uint32_t k = rest.first; k < rest.first + rest.count; ++k) {
      if (is_placed_[members_[k]] == 0) members_.push_back(std::uint32_t{members_[k]});
    }
    rest.first = first;
    rest.count = static_cast<std::uint32_t>(members_.size()) - first;
    rest.parent = last_;
    open(rest);
  }

  void decide(std::uint32_t block) {
    decisions_.push_back(
        {block, current_, last_, changes_.size(), placed_.size(), parts_.size(), members_.size()});
    last_ = static_cast<std::uint32_t>(decisions_.size() - 1);
  }

  /// Undoes the last decision of the current part, and skips its block. If that fails, the decision before it
  /// is undone. Returns false if there is none.
  bool skip_last() {
    while (last_ != none) {
      const decision undone = decisions_[last_];
      undo(undone);
      current_ = undone.part;
      last_ = undone.parent;
      set(must_start_below_[undone.block], lowest_[undone.block] + blocks_.units(undone.block));
      if (raise_skipped(undone.block)) return true;
    }
    return false;
  }

  void undo(const decision& to) {
    for (; changes_.size() > to.changes; changes_.pop_back())
      *changes_.back().number = changes_.back().before;
    for (; placed_.size() > to.placed; placed_.pop_back()) {
      const std::uint32_t block = placed_.back();
      is_placed_[block] = 0;
      for_each_section(block, [&](std::uint32_t section) { waiting_[section] += blocks_.units(block); });
      const time_span hull = blocks_.hull(block);
      for (std::uint32_t section = hull.lower; section + 1 < hull.upper; ++section) ++crossing_[section];
      steps_ += hull.upper - hull.lower;
    }
    parts_.resize(to.parts);
    members_.resize(to.members);
    decisions_.resize(last_);
  }

  void set(std::uint64_t& number, std::uint64_t to) {
    changes_.push_back({&number, number});
    number = to;
  }

  /// Raises a skipped block above the lowest of the tops of those that may be below it. Returns whether the
  /// state may still lead to a placement.
  bool raise_skipped(std::uint32_t block) {
    std::uint64_t to = unlimited;
    for (const std::uint32_t other : neighbours(block)) {
      if (is_placed_[other] == 0 && lowest_[other] < must_start_below_[block]) {
        to = (std::min)(to, lowest_[other] + blocks_.units(other));
      }
    }
    steps_ += neighbours(block).size();
    if (to == unlimited) return false;
    if (to <= lowest_[block]) return true;
    ++round_;
    touched_.clear();
    touch(block, lowest_[block]);
    set(lowest_[block], to);
    return check_touched();
  }

  /// Places a block at its lowest offset. Returns whether the state may still lead to a placement.
  bool put(std::uint32_t block) {
    ++round_;
    touched_.clear();
    is_placed_[block] = 1;
    placed_.push_back(block);
    const std::uint64_t top = lowest_[block] + blocks_.units(block);
    for_each_section(block, [&](std::uint32_t section) {
      waiting_[section] -= blocks_.units(block);
      touched_in_[section] = round_;
      touched_.push_back(section);
    });
    const time_span hull = blocks_.hull(block);
    for (std::uint32_t section = hull.lower; section + 1 < hull.upper; ++section) --crossing_[section];
    for (const std::uint32_t other : neighbours(block)) {
      if (is_placed_[other] != 0) continue;
      if (lowest_[block] < must_start_below_[other]) set(must_start_below_[other], 0);
      if (lowest_[other] >= top) continue;
      touch(other, lowest_[other]);
      set(lowest_[other], top);
    }
    steps_ += neighbours(block).size() + hull.upper - hull.lower;
    return check_touched();
  }

  /// Notes the sections of a block whose floor may rise because the block does.
  void touch(std::uint32_t block, std::uint64_t from) {
    for_each_section(block, [&](std::uint32_t section) {
      ++steps_;
      if (touched_in_[section] == round_ || floors_[section] < from) return;
      touched_in_[section] = round_;
      touched_.push_back(section);
    });
  }

  bool check_touched() {
    return std::all_of(touched_.begin(), touched_.end(),
                       [&](std::uint32_t section) { return check_section(section); });
  }

  /// Updates the floor of a section: the lowest offset of a block that waits. Returns whether they fit above it.
  bool check_section(std::uint32_t section) {
    if (waiting_[section] == 0) return true;
    std::uint64_t floor = unlimited;
    const std::size_t end = first_in_[section + std::size_t{1}];
    std::size_t k = first_in_[section];
    for (; k < end && floor > floors_[section]; ++k) {
      if (is_placed_[live_in_[k]] == 0) floor = (std::min)(floor, lowest_[live_in_[k]]);
    }
    steps_ += k - first_in_[section];
    if (floor != floors_[section]) set(floors_[section], floor);
    if (floor + waiting_[section] <= height_) return true;
    next_height_ = (std::min)(next_height_, floor + waiting_[section]);
    blame_[section] += 1;
    return false;
  }

  /// Divides the current part where no waiting block is live in a section of the range and in the next.
  void divide(const time_span& hull) {
    const part whole = parts_[current_];
    cuts_.clear();
    for (std::uint32_t section = hull.lower; section + 1 < hull.upper; ++section) {
      if (crossing_[section] == 0) cuts_.push_back(section + 1);
    }
    steps_ += hull.upper - hull.lower;
    if (cuts_.empty()) return;
    cuts_.push_back(whole.range.upper);
    divide_members(whole);
    std::uint32_t next = whole.next;
    for (std::size_t k = cuts_.size(); k-- > 0;) {
      const time_span range{k > 0 ? cuts_[k - 1] : whole.range.lower, cuts_[k]};
      const std::uint32_t first = k > 0 ? ends_[k - 1] : first_divided_;
      if (ends_[k] == first) continue;
      open({first, ends_[k] - first, range, next, last_});
      next = current_;
    }
    if (next == whole.next) {
      leave();
    } else {
      current_ = next;
    }
  }

  /// Appends the waiting members of a part, sorted by the cuts that they lie between.
  void divide_members(const part& whole) {
    first_divided_ = static_cast<std::uint32_t>(members_.size());
    ends_.assign(cuts_.size(), 0);
    const auto part_of = [&](std::uint32_t block) {
      const auto cut = std::upper_bound(cuts_.begin(), cuts_.end(), blocks_.hull(block).lower);
      return static_cast<std::size_t>(cut - cuts_.begin());
    };
    divided_.clear();
    for (std::uint32_t k = whole.first; k < whole.first + whole.count; ++k) {
      if (is_placed_[members_[k]] != 0) continue;
      divided_.push_back(members_[k]);
      ++ends_[part_of(members_[k])];
    }
    std::uint32_t end = first_divided_;
    for (std::uint32_t& count : ends_) {
      const std::uint32_t first = end;
      end += count;
      count = first;
    }
    members_.resize(end);
    for (const std::uint32_t block : divided_) members_[ends_[part_of(block)]++] = block;
    steps_ += whole.count;
  }

  const instance& blocks_;
  std::vector<std::size_t> first_in_;  // of live_in_, for each section
  std::vector<std::uint32_t> live_in_;
  std::vector<std::size_t> first_neighbour_;  // of neighbours_, for each block
  std::vector<std::uint32_t> neighbours_;

  std::vector<std::uint32_t> ranks_;
  std::uint64_t height_ = 0;
  std::uint64_t next_height_ = unlimited;
  std::vector<std::uint64_t> lowest_;            // the lowest possible offset of each block
  std::vector<std::uint64_t> must_start_below_;  // of a skipped block: another must start below this; else 0
  std::vector<std::uint8_t> is_placed_;
  std::vector<std::uint64_t> floors_;    // the lowest offset of the blocks that wait in a section
  std::vector<std::uint64_t> waiting_;   // the units that wait in a section
  std::vector<std::uint32_t> crossing_;  // how many waiting blocks are live in a section and in the next
  std::vector<double> blame_;

  std::vector<change> changes_;
  std::vector<std::uint32_t> placed_;
  std::vector<decision> decisions_;
  std::vector<part> parts_;
  std::vector<std::uint32_t> members_;  // of parts
  std::uint32_t current_ = none;        // the part that is searched
  std::uint32_t last_ = none;           // its last decision

  std::vector<std::uint64_t> touched_in_;  // the round in which a section was last touched
  std::uint64_t round_ = 0;
  std::vector<std::uint32_t> touched_;
  std::vector<std::uint32_t> cuts_;
  std::vector<std::uint32_t> ends_;
  std::vector<std::uint32_t> divided_;
  std::uint32_t first_divided_ = 0;
  std::uint64_t steps_ = 0;
};

}  // namespace tessera::inline v0_1::plan::detail
