// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "lifetime.hpp"

namespace tessera::inline v0_1::plan::detail {

/// Finds the block of the lowest rank among those whose hull lies in a range of sections.
///
/// It is a tree over the blocks, split by their first and last sections in turn.
///   Cost:  n log n to make; a search takes about log n steps, and at most about the square root of n
class contained_blocks {
 public:
  static constexpr std::uint32_t none = ~std::uint32_t{0};

  explicit contained_blocks(const instance& blocks) : hulls_(blocks.size()), blocks_(blocks.size()) {
    for (std::uint32_t i = 0; i < blocks.size(); ++i) {
      hulls_[i] = blocks.hull(i);
      blocks_[i] = i;
    }
    while (leaves_ * 4 < blocks_.size()) leaves_ *= 2;
    ranges_.resize(2 * leaves_);
    nodes_.resize(2 * leaves_);
    leaf_of_.resize(blocks_.size());
    split(1, {0, blocks.size()}, false);
  }

  /// Puts all blocks in, with these ranks.
  void fill(const std::vector<std::uint32_t>& ranks) {
    ranks_ = ranks;
    for (std::size_t at = 2 * leaves_; at-- > leaves_;) sum_leaf(at);
    for (std::size_t at = leaves_; at-- > 1;) sum_node(at);
  }

  void erase(std::uint32_t block) {
    ranks_[block] = none;
    std::size_t at = leaf_of_[block];
    sum_leaf(at);
    while ((at /= 2) > 0) sum_node(at);
  }

  /// Returns the lowest rank of the blocks within the range, or `none`.
  [[nodiscard]] std::uint32_t lowest_rank(const time_span& range) {
    std::uint32_t best = none;
    search(1, range, best);
    return best;
  }

  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }

 private:
  struct node {
    std::uint32_t rank = none;  // the lowest
    std::uint32_t last_lower = 0;
    std::uint32_t first_upper = none;
  };

  void split(std::size_t at, time_span range, bool by_upper) {
    ranges_[at] = range;
    if (at >= leaves_) {
      for (std::uint32_t k = range.lower; k < range.upper; ++k) {
        leaf_of_[blocks_[k]] = static_cast<std::uint32_t>(at);
      }
      return;
    }
    const std::uint32_t middle = range.lower + (range.upper - range.lower) / 2;
    const auto begin = blocks_.begin();
    std::nth_element(
        begin + range.lower, begin + middle, begin + range.upper, [&](std::uint32_t a, std::uint32_t b) {
          return by_upper ? hulls_[a].upper < hulls_[b].upper : hulls_[a].lower < hulls_[b].lower;
        });
    split(2 * at, {range.lower, middle}, !by_upper);
    split(2 * at + 1, {middle, range.upper}, !by_upper);
  }

  void sum_leaf(std::size_t at) {
    node sum;
    for (std::uint32_t k = ranges_[at].lower; k < ranges_[at].upper; ++k) {
      const std::uint32_t block = blocks_[k];
      if (ranks_[block] != none) add(sum, {ranks_[block], hulls_[block].lower, hulls_[block].upper});
    }
    nodes_[at] = sum;
  }
  void sum_node(std::size_t at) {
    node sum = nodes_[2 * at];
    add(sum, nodes_[2 * at + 1]);
    nodes_[at] = sum;
  }
  static void add(node& sum, const node& other) {
    sum.rank = (std::min)(sum.rank, other.rank);
    sum.last_lower = (std::max)(sum.last_lower, other.last_lower);
    sum.first_upper = (std::min)(sum.first_upper, other.first_upper);
  }

  void search(std::size_t at, const time_span& range, std::uint32_t& best) {
    ++steps_;
    const node& here = nodes_[at];
    if (here.rank >= best || here.last_lower < range.lower || here.first_upper > range.upper) return;
    if (at < leaves_) {
      const std::size_t better = nodes_[2 * at].rank < nodes_[2 * at + 1].rank ? 0 : 1;
      search(2 * at + better, range, best);
      search(2 * at + 1 - better, range, best);
      return;
    }
    for (std::uint32_t k = ranges_[at].lower; k < ranges_[at].upper; ++k) {
      const time_span& hull = hulls_[blocks_[k]];
      if (hull.lower >= range.lower && hull.upper <= range.upper) best = (std::min)(best, ranks_[blocks_[k]]);
    }
  }

  std::vector<time_span> hulls_;
  std::vector<std::uint32_t> blocks_;  // in the order of the leaves
  std::size_t leaves_ = 1;
  std::vector<time_span> ranges_;  // of blocks_, for each node
  std::vector<node> nodes_;
  std::vector<std::uint32_t> leaf_of_;
  std::vector<std::uint32_t> ranks_;
  std::uint64_t steps_ = 0;
};

/// Places blocks from the bottom up, each at the lowest place of the skyline that a block fits into.
///
/// The skyline is the top of the placed blocks in each section. The lowest stretch of it takes the first block
/// in the order that is live only there. If there is none, the stretch rises to its lower neighbour.
///   Cost:  n log n in practice
///   Source:  the order from the bottom up is that of MiniMalloc's canonical solutions; a skyline with the
///            lowest stretch first is usual for packing strips
class skyline {
 public:
  explicit skyline(const instance& blocks) : blocks_(blocks), waiting_(blocks) {
    left_.resize(blocks.sections() + std::size_t{1});
    right_.resize(blocks.sections() + std::size_t{1});
    heights_.resize(blocks.sections() + std::size_t{1});
  }

  /// Writes the offset of each block, for blocks taken in this order. Returns the height.
  std::uint64_t place(const std::vector<std::uint32_t>& order, std::vector<std::uint64_t>& offsets) {
    begin(order);
    std::uint64_t height = 0;
    for (std::uint32_t placed = 0; placed < blocks_.size();) {
      const auto [low, lower] = *lowest_.begin();
      const std::uint32_t rank = waiting_.lowest_rank({lower, right_[lower]});
      if (rank == contained_blocks::none) {
        rise(low, lower);
        continue;
      }
      const std::uint32_t block = order[rank];
      waiting_.erase(block);
      offsets[block] = low;
      height = (std::max)(height, put(block, low, lower));
      ++placed;
    }
    return height;
  }

  [[nodiscard]] std::uint64_t steps() const noexcept { return steps_ + waiting_.steps(); }

 private:
  void begin(const std::vector<std::uint32_t>& order) {
    std::vector<std::uint32_t> ranks(order.size());
    for (std::uint32_t rank = 0; rank < order.size(); ++rank) ranks[order[rank]] = rank;
    waiting_.fill(ranks);
    lowest_.clear();
    add({0, blocks_.sections()}, 0);
    steps_ += 30 * order.size();
  }

  void add(const time_span& stretch, std::uint64_t height) {
    right_[stretch.lower] = stretch.upper;
    left_[stretch.upper] = stretch.lower;
    heights_[stretch.lower] = height;
    lowest_.insert({height, stretch.lower});
  }

  /// Adds a stretch, and joins it with neighbours of the same height.
  void add_joined(time_span stretch, std::uint64_t height) {
    if (stretch.upper < blocks_.sections() && heights_[stretch.upper] == height &&
        lowest_.erase({height, stretch.upper}) > 0) {
      stretch.upper = right_[stretch.upper];
    }
    if (stretch.lower > 0 && heights_[left_[stretch.lower]] == height &&
        lowest_.erase({height, left_[stretch.lower]}) > 0) {
      stretch.lower = left_[stretch.lower];
    }
    add(stretch, height);
  }

  /// Raises the lowest stretch to its lower neighbour. A waiting block is live outside of it, so it has one.
  void rise(std::uint64_t low, std::uint32_t lower) {
    const time_span stretch{lower, right_[lower]};
    std::uint64_t to = unlimited;
    if (stretch.lower > 0) to = heights_[left_[stretch.lower]];
    if (stretch.upper < blocks_.sections()) to = (std::min)(to, heights_[stretch.upper]);
    lowest_.erase({low, lower});
    add_joined(stretch, to);
    ++steps_;
  }

  /// Puts a block on the lowest stretch. Returns its top.
  std::uint64_t put(std::uint32_t block, std::uint64_t low, std::uint32_t lower) {
    const time_span stretch{lower, right_[lower]};
    const time_span hull = blocks_.hull(block);
    const std::uint64_t top = saturating_add(low, blocks_.units(block));
    lowest_.erase({low, lower});
    if (stretch.lower < hull.lower) add({stretch.lower, hull.lower}, low);
    if (hull.upper < stretch.upper) add({hull.upper, stretch.upper}, low);
    add_joined(hull, top);
    return top;
  }

  const instance& blocks_;
  contained_blocks waiting_;
  std::vector<std::uint32_t> left_;     // the first section of the stretch that ends before a section
  std::vector<std::uint32_t> right_;    // the end of the stretch that begins at a section
  std::vector<std::uint64_t> heights_;  // of the stretch that begins at a section
  std::set<std::pair<std::uint64_t, std::uint32_t>> lowest_;  // height and first section of each stretch
  std::uint64_t steps_ = 0;
};

}  // namespace tessera::inline v0_1::plan::detail
