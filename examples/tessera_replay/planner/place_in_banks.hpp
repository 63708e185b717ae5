// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "place.hpp"

namespace tessera::inline v0_1::plan {

/// The result of place_in_banks(): a bank, and an offset in it, for each block.
struct banked_placement {
  std::vector<std::uint32_t> banks;  ///< in the order of the blocks
  std::vector<std::size_t> offsets;  ///< in bytes, from the start of the bank; in the order of the blocks
  std::vector<std::size_t> bytes;    ///< that each bank needs
  std::size_t outside = 0;           ///< the bytes of all banks but the first
  std::size_t lower_bound = 0;       ///< no choice of banks needs fewer bytes outside the first
  bool fits = false;                 ///< whether no bank needs more than its capacity
};

namespace detail {

/// Loads of sections. It adds to ranges of them, and finds the maximum of a range.
///   Cost:  logarithmic
class load_tree {
 public:
  explicit load_tree(std::uint32_t sections)
      : leaves_(std::bit_ceil(std::size_t{sections} + 1)), most_(2 * leaves_), added_(2 * leaves_) {}
  explicit load_tree(const std::vector<std::uint64_t>& loads)
      : load_tree(static_cast<std::uint32_t>(loads.size())) {
    for (std::size_t i = 0; i < loads.size(); ++i) most_[leaves_ + i] = static_cast<std::int64_t>(loads[i]);
    for (std::size_t n = leaves_; n-- > 1;) most_[n] = (std::max)(most_[2 * n], most_[2 * n + 1]);
  }

  void add(std::span<const time_span> spans, std::int64_t units) {
    for (const time_span& s : spans) add(1, {0, leaves_}, s, units);
  }
  [[nodiscard]] std::int64_t most(std::span<const time_span> spans) const {
    std::int64_t found = 0;
    for (const time_span& s : spans) found = (std::max)(found, most(1, {0, leaves_}, s));
    return found;
  }
  /// The maximum of all sections.
  [[nodiscard]] std::int64_t most() const noexcept { return most_[1]; }

 private:
  struct range {
    std::size_t lower, upper;
    [[nodiscard]] bool is_outside(const time_span& s) const noexcept {
      return s.upper <= lower || upper <= s.lower;
    }
    [[nodiscard]] bool is_inside(const time_span& s) const noexcept {
      return s.lower <= lower && upper <= s.upper;
    }
    [[nodiscard]] std::size_t middle() const noexcept { return lower + (upper - lower) / 2; }
  };
  void add(std::size_t node, range here, const time_span& s, std::int64_t units) {
    if (here.is_outside(s)) return;
    if (here.is_inside(s)) {
      most_[node] += units;
      added_[node] += units;
      return;
    }
    add(2 * node, {here.lower, here.middle()}, s, units);
    add(2 * node + 1, {here.middle(), here.upper}, s, units);
    most_[node] = (std::max)(most_[2 * node], most_[2 * node + 1]) + added_[node];
  }
  [[nodiscard]] std::int64_t most(std::size_t node, range here, const time_span& s) const {
    if (here.is_outside(s)) return 0;
    if (here.is_inside(s)) return most_[node];
    const std::int64_t inside = (std::max)(most(2 * node, {here.lower, here.middle()}, s),
                                           most(2 * node + 1, {here.middle(), here.upper}, s));
    return inside + added_[node];
  }

  std::size_t leaves_;
  std::vector<std::int64_t> most_;   // of the sections below a node, with what was added to it
  std::vector<std::int64_t> added_;  // to all sections below a node
};

/// Chooses the blocks that leave a bank, so that the loads of the others fit and those of the leaving ones are low.
class leaving_blocks {
 public:
  explicit leaving_blocks(const instance& blocks) : blocks_(blocks) {}

  /// Finds out which blocks leave, so that no more than `capacity` units stay at any time. Blocks leave in this order.
  ///   Returns:  the largest load of the leaving blocks
  std::int64_t choose(const std::vector<std::uint32_t>& order, std::int64_t capacity,
                      std::vector<bool>& leaves) const {
    const auto most = static_cast<std::int64_t>(blocks_.lower_bound());
    std::int64_t low = (std::max)(std::int64_t{0}, most - capacity), high = most;
    std::int64_t best = most;
    leaves.assign(blocks_.size(), true);
    for (int round = 0; round < 10 && low <= high; ++round) {
      const std::int64_t limit = round == 0 ? low : low + (high - low) / 2;
      std::vector<bool> tried(blocks_.size());
      const std::int64_t found = try_limit(order, capacity, limit, tried);
      if (found < 0) {
        low = limit + 1;
        continue;
      }
      if (found < best) {
        best = found;
        leaves = std::move(tried);
      }
      high = (std::min)(limit, found) - 1;
    }
    return best;
  }

 private:
  /// Lets blocks leave while that is needed and their load stays within the limit; then takes back what fits.
  ///   Returns:  their largest load; -1 if too many stay
  std::int64_t try_limit(const std::vector<std::uint32_t>& order, std::int64_t capacity, std::int64_t limit,
                         std::vector<bool>& leaves) const {
    load_tree staying(blocks_.loads()), leaving(blocks_.sections());
    const auto move = [&](std::uint32_t block, std::int64_t units, bool out) {
      staying.add(blocks_.spans(block), out ? -units : units);
      leaving.add(blocks_.spans(block), out ? units : -units);
      leaves[block] = out;
    };
    for (const bool is_forced : {true, false}) {
      for (const std::uint32_t block : order) {
        const auto units = static_cast<std::int64_t>(blocks_.units(block));
        if (leaves[block] || is_forced != (units > capacity)) continue;
        const bool helps = staying.most(blocks_.spans(block)) > capacity;
        if (is_forced || (helps && leaving.most(blocks_.spans(block)) + units <= limit))
          move(block, units, true);
      }
    }
    if (staying.most() > capacity || leaving.most() > limit) return -1;
    for (std::size_t i = order.size(); i-- > 0;) {
      const auto units = static_cast<std::int64_t>(blocks_.units(order[i]));
      if (leaves[order[i]] && staying.most(blocks_.spans(order[i])) + units <= capacity)
        move(order[i], units, false);
    }
    return leaving.most();
  }

  const instance& blocks_;
};

/// One call of place_in_banks().
class bank_planner {
 public:
  bank_planner(std::span<const lifetime> blocks, std::span<const std::size_t> capacities,
               const place_options& options)
      : given_(blocks), capacities_(capacities), options_(options), random_(options.seed) {
    options_.enough = 0;
    options_.effort /= 4;  // a bank is filled several times
  }

  banked_placement run() {
    found_.banks.assign(given_.size(), 0);
    found_.offsets.assign(given_.size(), 0);
    std::vector<std::uint32_t> waiting;
    for (std::uint32_t id = 0; id < given_.size(); ++id) {
      if (given_[id].bytes > 0 && !given_[id].live.empty()) waiting.push_back(id);
    }
    found_.fits = true;
    for (std::uint32_t bank = 0; bank < capacities_.size(); ++bank) {
      const bool is_last = bank + 1 == capacities_.size();
      placed some = fill(waiting, is_last ? unlimited : capacities_[bank]);
      for (std::size_t i = 0; i < some.ids.size(); ++i) {
        found_.banks[some.ids[i]] = bank;
        found_.offsets[some.ids[i]] = some.offsets[i];
      }
      found_.bytes.push_back(some.bytes);
      found_.fits = found_.fits && some.bytes <= capacities_[bank];
      if (bank > 0) found_.outside = saturating_add(found_.outside, some.bytes);
      waiting = std::move(some.others);
    }
    return std::move(found_);
  }

 private:
  /// Blocks in a bank, and those that are not.
  struct placed {
    std::vector<std::uint32_t> ids;
    std::vector<std::size_t> offsets;
    std::size_t bytes = 0;
    std::vector<std::uint32_t> others;
    std::int64_t excess = 0;  // units by which the blocks that were to stay exceeded the bank
  };

  [[nodiscard]] placement place_some(const std::vector<std::uint32_t>& ids, std::size_t enough) const {
    std::vector<lifetime> some;
    some.reserve(ids.size());
    for (const std::uint32_t id : ids) some.push_back(given_[id]);
    place_options options = options_;
    options.enough = enough;
    return place(some, options);
  }

  /// Places blocks in a bank, and leaves out few bytes of those that do not fit.
  [[nodiscard]] placed fill(const std::vector<std::uint32_t>& ids, std::size_t capacity) {
    if (ids.empty()) return {};
    placement all = place_some(ids, capacity == unlimited ? 0 : capacity);
    const instance blocks(given_, ids, options_.alignment);
    if (found_.bytes.empty()) note_bound(blocks, ids, capacity);
    placed best = cut(ids, all, capacity);
    if (best.others.empty() || !blocks.is_small()) return best;
    std::size_t least = load_of(best.others);
    const auto units = static_cast<std::int64_t>(capacity / options_.alignment);
    // Some blocks may not fit although their loads do. Then fewer may stay.
    std::int64_t allowed = units;
    for (int round = 0; round < 8 && allowed >= 0; ++round) {
      placed some = choose(blocks, ids, allowed, capacity);
      const std::size_t load = load_of(some.others);
      const std::int64_t excess = some.excess;
      if (load < least || (load == least && some.others.size() < best.others.size())) {
        least = load;
        best = std::move(some);
      }
      if (excess == 0) break;
      allowed -= excess;
    }
    take_back(best, capacity);
    return best;
  }
  /// Notes how many bytes leave the first bank at least: what exceeds its capacity when most bytes are live, and then at
  /// least the block with which the smallest ones together are so many.
  void note_bound(const instance& blocks, const std::vector<std::uint32_t>& ids, std::size_t capacity) {
    const std::vector<std::uint64_t>& loads = blocks.loads();
    const auto peak =
        static_cast<std::uint32_t>(std::max_element(loads.begin(), loads.end()) - loads.begin());
    const std::uint64_t units = capacity / options_.alignment;
    if (loads[peak] <= units) return;
    std::vector<std::uint64_t> live;
    for (std::uint32_t i = 0; i < ids.size(); ++i) {
      const auto spans = blocks.spans(i);
      if (std::any_of(spans.begin(), spans.end(),
                      [=](const time_span& s) { return s.lower <= peak && peak < s.upper; }))
        live.push_back(blocks.units(i));
    }
    std::sort(live.begin(), live.end());
    std::uint64_t excess = loads[peak] - units, sum = 0;
    for (const std::uint64_t one : live) {
      sum = saturating_add(sum, one);
      if (sum < excess) continue;
      excess = (std::max)(excess, one);
      break;
    }
    found_.lower_bound = bytes_of(excess, options_.alignment);
  }
  /// Chooses the blocks that leave by their loads, and places the others.
  [[nodiscard]] placed choose(const instance& blocks, const std::vector<std::uint32_t>& ids,
                              std::int64_t allowed, std::size_t capacity) {
    const leaving_blocks chooser(blocks);
    std::vector<double> blame(blocks.sections());
    std::vector<bool> leaves, tried;
    std::int64_t least = -1;
    for (int number = 0; number < 4; ++number) {
      const order_recipe recipe = recipe_for(static_cast<std::uint64_t>(number), random_, kinds_to_place);
      const std::int64_t load = chooser.choose(make_order(blocks, recipe, blame, random_), allowed, tried);
      if (least >= 0 && load >= least) continue;
      least = load;
      leaves.swap(tried);
    }
    std::vector<std::uint32_t> staying, leaving;
    for (std::size_t i = 0; i < ids.size(); ++i) (leaves[i] ? leaving : staying).push_back(ids[i]);
    const placement found = place_some(staying, capacity);
    placed some = cut(staying, found, capacity);
    if (found.bytes > capacity)
      some.excess = static_cast<std::int64_t>((found.bytes - capacity) / options_.alignment);
    some.others.insert(some.others.end(), leaving.begin(), leaving.end());
    return some;
  }
  /// Keeps the blocks that end within the capacity.
  [[nodiscard]] placed cut(const std::vector<std::uint32_t>& ids, const placement& all,
                           std::size_t capacity) const {
    placed kept;
    if (all.bytes == unlimited) {  // the offsets mean nothing
      (capacity == unlimited ? kept.ids : kept.others) = ids;
      kept.offsets.resize(kept.ids.size());
      kept.bytes = kept.ids.empty() ? 0 : unlimited;
      return kept;
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::size_t size = size_of(ids[i]);
      if (size > capacity || all.offsets[i] > capacity - size) {
        kept.others.push_back(ids[i]);
        continue;
      }
      kept.ids.push_back(ids[i]);
      kept.offsets.push_back(all.offsets[i]);
      kept.bytes = (std::max)(kept.bytes, all.offsets[i] + size);
    }
    return kept;
  }
  /// Takes blocks back that fit between the placed ones, the largest first.
  void take_back(placed& best, std::size_t capacity) const {
    std::vector<std::uint32_t> all = best.ids;
    all.insert(all.end(), best.others.begin(), best.others.end());
    const instance blocks(given_, all, options_.alignment);
    occupancy used(blocks.sections());
    const auto placed_count = static_cast<std::uint32_t>(best.ids.size());
    for (std::uint32_t i = 0; i < placed_count; ++i)
      used.insert(blocks.spans(i), best.offsets[i] / options_.alignment, blocks.units(i));
    std::vector<std::uint32_t> order;
    for (std::uint32_t i = placed_count; i < blocks.size(); ++i) order.push_back(i);
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return blocks.units(a) != blocks.units(b) ? blocks.units(a) > blocks.units(b) : a < b;
    });
    best.others.clear();
    const std::uint64_t units = capacity / options_.alignment;
    for (const std::uint32_t i : order) {
      const std::uint64_t offset = used.lowest_free(blocks.spans(i), blocks.units(i), 1000);
      if (blocks.units(i) > units || offset > units - blocks.units(i)) {
        best.others.push_back(all[i]);
        continue;
      }
      used.insert(blocks.spans(i), offset, blocks.units(i));
      best.ids.push_back(all[i]);
      best.offsets.push_back(offset * options_.alignment);
      best.bytes = (std::max)(best.bytes, best.offsets.back() + size_of(all[i]));
    }
    std::sort(best.others.begin(), best.others.end());
  }
  [[nodiscard]] std::size_t size_of(std::uint32_t id) const {
    return bytes_of(units_of(given_[id].bytes, options_.alignment), options_.alignment);
  }
  [[nodiscard]] std::size_t load_of(const std::vector<std::uint32_t>& ids) const {
    return ids.empty()
               ? 0
               : bytes_of(instance(given_, ids, options_.alignment).lower_bound(), options_.alignment);
  }

  std::span<const lifetime> given_;
  std::span<const std::size_t> capacities_;
  place_options options_;
  random_numbers random_;
  banked_placement found_;
};

}  // namespace detail

/// Places blocks whose lifetimes are known in several memories, such as HBM and DDR, so that few bytes lie outside the first.
///
/// Each bank takes what fits of the blocks that the banks before it left; the last bank takes all of them, even if they
/// exceed its capacity. Which blocks leave a bank is chosen by their loads: long-lived blocks first, so that few
/// requests are served from a slower bank, and so that the leaving ones need few bytes at any time.
///
///     using namespace tessera::plan;
///     const time_span both[] = {{0, 4}};
///     const lifetime blocks[] = {{3000, both}, {1000, both}};
///     const std::size_t banks[] = {3072, 8192};
///     const banked_placement found = place_in_banks(blocks, banks, {.alignment = 512});  // found.outside == 1024
///
///   Requires:  the requirements of place(); at least one capacity. `options.enough` is not used
///   Cost:      up to three times that of place() with the same effort for each bank but the last
[[nodiscard]] inline banked_placement place_in_banks(std::span<const lifetime> blocks,
                                                     std::span<const std::size_t> capacities,
                                                     const place_options& options = {}) {
  return detail::bank_planner(blocks, capacities, options).run();
}

/// Whether the banks and offsets of all blocks are right, no bank needs more than it says, and no two blocks that are
/// live at the same time share a byte of a bank.
///   Cost:  n log n, for n spans
[[nodiscard]] inline bool is_valid(std::span<const lifetime> blocks, const banked_placement& found,
                                   std::size_t alignment = 1) {
  if (found.banks.size() != blocks.size() || found.offsets.size() != blocks.size()) return false;
  std::vector<std::vector<lifetime>> of_bank(found.bytes.size());
  std::vector<placement> in_bank(found.bytes.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (found.banks[i] >= of_bank.size()) return false;
    of_bank[found.banks[i]].push_back(blocks[i]);
    in_bank[found.banks[i]].offsets.push_back(found.offsets[i]);
  }
  std::size_t outside = 0;
  for (std::size_t bank = 0; bank < of_bank.size(); ++bank) {
    in_bank[bank].bytes = found.bytes[bank];
    if (!is_valid(of_bank[bank], in_bank[bank], alignment)) return false;
    if (bank > 0) outside += found.bytes[bank];
  }
  return outside == found.outside;
}

}  // namespace tessera::inline v0_1::plan
