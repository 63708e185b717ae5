// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>

#include "first_fit.hpp"
#include "lifetime.hpp"
#include "search.hpp"
#include "skyline.hpp"

namespace tessera::inline v0_1::plan {

/// How place() works: its limits, and the alignment of the blocks.
struct place_options {
  double effort =
      10;  ///< the work, in units of 50 million elementary steps; one takes at most about a second
  std::uint64_t seed = 1;  ///< decides which orders are tried; the same seed gives the same offsets
  std::size_t alignment =
      1;                   ///< in bytes, a power of two; offsets and sizes are rounded up to multiples of it
  std::size_t enough = 0;  ///< stops at a placement of at most so many bytes; 0: only at the lower bound
  /// Called for each better placement, with its bytes and the lower bound.
  void (*progress)(void* state, std::size_t best, std::size_t lower_bound) = nullptr;
  void* progress_state = nullptr;  ///< passed to `progress`
};

/// The result of place(): an offset for each block.
struct placement {
  std::vector<std::size_t> offsets;  ///< in bytes, in the order of the blocks
  std::size_t bytes = 0;             ///< of all blocks together; `unlimited` if they exceed 2^64
  std::size_t lower_bound = 0;       ///< no placement needs fewer bytes
  bool is_optimal = false;           ///< whether `bytes` is the least possible
};

namespace detail {

/// Random numbers that are the same on every machine.
///   Source:  SplitMix64, https://doi.org/10.1145/2714064.2660195
class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) noexcept : state_(seed) {}

  [[nodiscard]] std::uint64_t next() noexcept {
    state_ += 0x9e37'79b9'7f4a'7c15u;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58'476d'1ce4'e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d0'49bb'1331'11ebu;
    return mixed ^ (mixed >> 31);
  }
  /// Returns a number below `count`.
  [[nodiscard]] std::uint64_t below(std::uint64_t count) noexcept { return next() % count; }
  /// Returns a number from 0 up to but without 1.
  [[nodiscard]] double fraction() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

/// Returns element `index` of the sequence 1, 1, 2, 1, 1, 2, 4, 1, ...
///   Source:  M. Luby, A. Sinclair, D. Zuckerman, https://doi.org/10.1016/0020-0190(93)90029-9
[[nodiscard]] constexpr std::uint64_t luby(std::uint64_t index) noexcept {
  std::uint64_t place = index + 1;
  while (!std::has_single_bit(place + 1)) place -= std::bit_floor(place) - 1;
  return (place + 1) / 2;
}

/// The keys that blocks are sorted by, the first key first. Each is sorted from large to small.
enum class order_kind : unsigned char {
  width,       ///< time of life, then area
  peak_width,  ///< the load of the fullest section, then time of life
  peak_area,   ///< the load of the fullest section, then area
  peak_size,   ///< the load of the fullest section, then size
  size         ///< size, then time of life
};

/// How to sort blocks.
struct order_recipe {
  order_kind kind = order_kind::width;
  double blame_weight = 0;  ///< how much blocks in sections that made others fail move to the front
  double noise = 0;         ///< how much a random number changes time of life, area and size
};

/// Returns the recipe for the try of this number: first some kinds as they are, then at random.
[[nodiscard]] inline order_recipe recipe_for(std::uint64_t number, random_numbers& random,
                                             std::span<const order_kind> kinds) {
  constexpr order_kind plain[] = {order_kind::peak_width, order_kind::width, order_kind::peak_area,
                                  order_kind::peak_size};
  if (number < std::size(plain)) return {plain[number], 0, 0};
  constexpr double weights[] = {0, 1, 1, 4};
  constexpr double noises[] = {0.1, 0.3, 1};
  order_recipe result;
  result.kind = kinds[random.below(kinds.size())];
  result.blame_weight = weights[random.below(std::size(weights))];
  result.noise = noises[random.below(std::size(noises))];
  return result;
}

/// The kinds for random recipes, each as often as it helps. A search gains nothing from orders by size.
inline constexpr order_kind kinds_to_search[] = {order_kind::peak_width, order_kind::peak_width,
                                                 order_kind::width, order_kind::peak_area,
                                                 order_kind::peak_area};
inline constexpr order_kind kinds_to_place[] = {order_kind::peak_width, order_kind::width,
                                                order_kind::peak_area, order_kind::peak_size};

/// Returns the blocks in an order. `blame` has a number for each section.
inline std::vector<std::uint32_t> make_order(const instance& blocks, const order_recipe& recipe,
                                             const std::vector<double>& blame, random_numbers& random) {
  struct keys {
    double first;
    double second;
    double third;
    std::uint32_t block;
  };
  const range_max<std::uint64_t> peaks(blocks.loads());
  const range_max<double> blames(recipe.blame_weight > 0 ? blame : std::vector<double>{});
  const double most =
      recipe.blame_weight > 0 ? (std::max)(1.0, *std::max_element(blame.begin(), blame.end())) : 1;
  std::vector<keys> sorted;
  sorted.reserve(blocks.size());
  for (std::uint32_t block = 0; block < blocks.size(); ++block) {
    std::uint64_t load = 0;
    double weight = 0;
    for (const time_span& span : blocks.spans(block)) {
      load = (std::max)(load, peaks.of(span.lower, span.upper));
      if (recipe.blame_weight > 0) weight = (std::max)(weight, blames.of(span.lower, span.upper));
    }
    weight = 1 + recipe.blame_weight * weight / most;
    const double noisy = recipe.noise > 0 ? weight * (1 + recipe.noise * random.fraction()) : weight;
    const double width = blocks.width(block) * noisy;
    const double size = static_cast<double>(blocks.units(block)) * noisy;
    const double area = blocks.width(block) * size;
    const double peak = static_cast<double>(load) * weight;
    switch (recipe.kind) {
      case order_kind::width: sorted.push_back({width, area, peak, block}); break;
      case order_kind::peak_width: sorted.push_back({peak, width, area, block}); break;
      case order_kind::peak_area: sorted.push_back({peak, area, width, block}); break;
      case order_kind::peak_size: sorted.push_back({peak, size, width, block}); break;
      case order_kind::size: sorted.push_back({size, width, peak, block}); break;
    }
  }
  std::sort(sorted.begin(), sorted.end(), [](const keys& a, const keys& b) {
    if (a.first != b.first) return a.first > b.first;
    if (a.second != b.second) return a.second > b.second;
    if (a.third != b.third) return a.third > b.third;
    return a.block < b.block;
  });
  std::vector<std::uint32_t> order;
  order.reserve(sorted.size());
  for (const keys& each : sorted) order.push_back(each.block);
  return order;
}

/// Some of the blocks, with the search for them.
struct searched_blocks {
  std::vector<std::uint32_t> blocks;  // their numbers in the instance of all blocks
  instance own;
  exact_search search;
  std::uint64_t tries = 0;

  searched_blocks(std::span<const lifetime> all, const std::vector<std::uint32_t>& ids,
                  std::vector<std::uint32_t> chosen, std::size_t alignment)
      : blocks(std::move(chosen)), own(all, ids, alignment), search(own) {}
};

/// One call of place().
class planner {
 public:
  planner(std::span<const lifetime> blocks, const place_options& options)
      : given_(blocks),
        options_(options),
        ids_(ids_to_place(blocks)),
        all_(blocks, ids_, options.alignment),
        random_(options.seed),
        blame_(all_.sections()) {}

  placement run() {
    if (!ids_.empty()) {
      lower_bound_ = all_.lower_bound();
      budget_ = static_cast<std::uint64_t>(std::clamp(options_.effort, 0.0, 1e6) * steps_of_effort);
      offsets_.assign(all_.size(), 0);
      skyline rising(all_);
      try_order(rising, {order_kind::peak_width, 0, 0});
      if (all_.is_small()) improve(rising);
    }
    return result();
  }

 private:
  static constexpr double steps_of_effort = 50e6;
  static constexpr std::uint64_t search_steps = 12;  // of a search, take as long as one of another kind
  static constexpr std::uint64_t max_pairs = 20'000'000;
  static constexpr std::uint32_t max_blocks = 3000;  // of a search of all blocks

  static std::vector<std::uint32_t> ids_to_place(std::span<const lifetime> blocks) {
    std::vector<std::uint32_t> ids;
    for (std::uint32_t id = 0; id < blocks.size(); ++id) {
      const bool is_live = std::any_of(blocks[id].live.begin(), blocks[id].live.end(),
                                       [](const time_span& span) { return span.lower < span.upper; });
      if (blocks[id].bytes > 0 && is_live) ids.push_back(id);
    }
    return ids;
  }

  [[nodiscard]] std::uint64_t target() const {
    return std::max<std::uint64_t>(lower_bound_, options_.enough / options_.alignment);
  }
  [[nodiscard]] bool is_done() const { return height_ <= target() || used_ >= budget_; }

  /// Keeps the offsets if they are the best so far.
  void offer(const std::vector<std::uint64_t>& offsets, std::uint64_t height) {
    if (height >= height_) return;
    height_ = height;
    offsets_ = offsets;
    if (options_.progress != nullptr) {
      options_.progress(options_.progress_state, bytes_of(height_, options_.alignment),
                        bytes_of(lower_bound_, options_.alignment));
    }
  }

  void try_order(skyline& rising, const order_recipe& recipe) {
    const std::uint64_t before = rising.steps();
    std::vector<std::uint64_t> offsets(all_.size());
    const std::uint64_t height = rising.place(make_order(all_, recipe, blame_, random_), offsets);
    used_ += rising.steps() - before;
    offer(offsets, height);
    blame_above_target(offsets);
  }

  /// Blames the sections of the blocks that end above the target.
  void blame_above_target(const std::vector<std::uint64_t>& offsets) {
    std::vector<std::uint32_t> change(all_.sections() + std::size_t{1});
    for (std::uint32_t block = 0; block < all_.size(); ++block) {
      if (saturating_add(offsets[block], all_.units(block)) <= target()) continue;
      for (const time_span& span : all_.spans(block)) {
        ++change[span.lower];
        --change[span.upper];  // modulo 2^32
      }
    }
    std::uint32_t above = 0;
    for (std::uint32_t section = 0; section < all_.sections(); ++section) {
      above += change[section];
      blame_[section] = blame_[section] * 0.7 + (above > 0 ? 1 : 0);
    }
  }

  void improve(skyline& rising) {
    for (std::uint64_t number = 1; number < 4 && !is_done(); ++number) {
      try_order(rising, recipe_for(number, random_, kinds_to_place));
    }
    if (is_done()) return;
    fill_holes({}, {});
    if (is_done()) return;
    choose_searches();
    std::uint64_t searches = 0;
    std::uint64_t orders = 4;
    std::uint64_t lead = 0;  // by how many steps the searches are ahead of their share
    while (!is_done()) {
      const std::uint64_t before = used_;
      if (searches_.empty() || lead > 0) {
        try_order(rising, recipe_for(orders++, random_, kinds_to_place));
        lead -= (std::min)(lead, searches_share() * (used_ - before));
      } else {
        search(*searches_[searches++ % searches_.size()]);
        lead += used_ - before;
      }
    }
  }

  /// Returns how many steps the searches take for each step of an order: more if they search all blocks.
  [[nodiscard]] std::uint64_t searches_share() const {
    return searches_.size() == 1 && searches_[0]->own.size() == all_.size() ? 8 : 1;
  }

  /// Places the blocks that have no offset yet where they fit, the largest first.
  void fill_holes(const std::vector<std::uint32_t>& placed, const std::vector<std::uint64_t>& placed_at) {
    occupancy used(all_.sections());
    std::vector<std::uint64_t> offsets(all_.size());
    std::vector<std::uint8_t> is_placed(all_.size());
    std::uint64_t height = 0;
    const auto put = [&](std::uint32_t block, std::uint64_t offset) {
      offsets[block] = offset;
      is_placed[block] = 1;
      height = (std::max)(height, offset + all_.units(block));
      used.insert(all_.spans(block), offset, all_.units(block));
    };
    for (std::size_t i = 0; i < placed.size(); ++i) put(placed[i], placed_at[i]);
    // A block may take a part of the steps that are left, so that few hard blocks do not take them all.
    const std::uint64_t first_step = used.steps();
    const std::uint64_t allowed = (budget_ - (std::min)(used_, budget_)) / 8;
    for (const std::uint32_t block : make_order(all_, {order_kind::size, 0, 0}, blame_, random_)) {
      if (is_placed[block] != 0) continue;
      const std::uint64_t left = allowed - (std::min)(allowed, used.steps() - first_step);
      const std::uint64_t most = std::max<std::uint64_t>(64, left / 64);
      put(block, used.lowest_free(all_.spans(block), all_.units(block), most));
    }
    used_ += 4 * used.steps();
    offer(offsets, height);
  }

  /// Makes a search of all blocks if it is cheap enough, else searches of the largest blocks.
  void choose_searches() {
    if (all_.size() <= max_blocks && add_search(0)) return;
    for (std::uint64_t parts = 64; parts < 2000 && add_search(lower_bound_ / parts); parts += parts * 3 / 5) {
    }
  }

  bool add_search(std::uint64_t min_units) {
    std::vector<std::uint32_t> blocks;
    std::vector<std::uint32_t> ids;
    for (std::uint32_t block = 0; block < all_.size(); ++block) {
      if (all_.units(block) < min_units) continue;
      blocks.push_back(block);
      ids.push_back(ids_[block]);
    }
    if (ids.empty()) return true;
    const instance own(given_, ids, options_.alignment);
    const bool is_similar = !searches_.empty() && own.size() < searches_.back()->own.size() * 51 / 50;
    if (is_similar || own.lower_bound() < lower_bound_ - lower_bound_ / 10) return true;
    pairs_ += exact_search::max_pairs(own) + own.incidences();
    if (pairs_ > max_pairs) return false;
    searches_.push_back(
        std::make_unique<searched_blocks>(given_, ids, std::move(blocks), options_.alignment));
    return true;
  }

  void search(searched_blocks& some) {
    const bool is_all = some.own.size() == all_.size();
    const std::uint64_t height = height_to_try(some, is_all);
    const std::vector<std::uint32_t> order =
        make_order(some.own, recipe_for(is_all ? some.tries : some.tries + 1, random_, kinds_to_search),
                   some.search.blame(), random_);
    std::vector<std::uint32_t> ranks(order.size());
    for (std::uint32_t rank = 0; rank < order.size(); ++rank) ranks[order[rank]] = rank;
    const std::uint64_t nodes = 2 * some.own.size() * luby(some.tries / 3);
    const std::uint64_t before = some.search.steps();
    const exact_search::outcome outcome = some.search.run(
        ranks, height, nodes, search_steps * (std::min)(budget_ / 40, budget_ - (std::min)(used_, budget_)));
    used_ += (some.search.steps() - before) / search_steps;
    some.search.forget_some_blame();
    ++some.tries;
    if (outcome == exact_search::outcome::impossible) {
      lower_bound_ = (std::max)(lower_bound_, (std::min)(some.search.next_height(), height_));
    } else if (outcome == exact_search::outcome::solved) {
      fill_holes(some.blocks, some.search.offsets());
    }
  }

  /// Returns the height that a search looks for: the target, the least height, or a lesser gain.
  [[nodiscard]] std::uint64_t height_to_try(const searched_blocks& some, bool is_all) const {
    const std::uint64_t low = is_all ? target() : some.own.lower_bound();
    const std::uint64_t gap = height_ - 1 - low;
    if (is_all && options_.enough / options_.alignment >= lower_bound_) return low;  // less gains nothing
    if (is_all) return some.tries % 5 != 4 ? low : low + (gap >> some.tries / 5 % 3);
    if (some.tries % 6 == 4) return target();
    return some.tries % 2 == 0 ? low : low + (gap >> (1 + some.tries / 2 % 4));
  }

  [[nodiscard]] placement result() const {
    placement found;
    found.offsets.assign(given_.size(), 0);
    for (std::size_t i = 0; i < ids_.size(); ++i) {
      found.offsets[ids_[i]] = bytes_of(offsets_[i], options_.alignment);
    }
    found.bytes = ids_.empty() ? 0 : bytes_of(height_, options_.alignment);
    found.lower_bound = bytes_of(lower_bound_, options_.alignment);
    found.is_optimal = found.bytes == found.lower_bound;
    return found;
  }

  std::span<const lifetime> given_;
  place_options options_;
  std::vector<std::uint32_t> ids_;  // of the blocks that need a place
  instance all_;
  random_numbers random_;
  std::vector<double> blame_;
  std::vector<std::unique_ptr<searched_blocks>> searches_;
  std::uint64_t lower_bound_ = 0;
  std::uint64_t pairs_ = 0;   // of blocks, in all searches
  std::uint64_t budget_ = 0;  // elementary steps
  std::uint64_t used_ = 0;
  std::uint64_t height_ = unlimited;
  std::vector<std::uint64_t> offsets_;
};
}  // namespace detail

/// Places blocks whose lifetimes are known, so that the bytes of all together are few.
///
/// It first places them from the bottom up in several orders. Then it searches, and tries orders that put the
/// blocks of crowded sections first. It stops at the lower bound, at `enough`, or when its work is done.
///
/// The same blocks and options give the same offsets on each machine: the work is counted in elementary steps, and no
/// clock is read.
///
///     using namespace tessera::plan;
///     const time_span early[] = {{0, 2}};
///     const time_span late[] = {{2, 4}};
///     const lifetime blocks[] = {{1000, early}, {1000, late}};
///     const placement found = place(blocks, {.alignment = 512});  // found.bytes == 1024
///
///   Requires:  options.alignment is a power of two; there are fewer than 2^31 blocks and spans
///   Returns:   a placement even if the effort is 0; if its bytes are `unlimited`, no placement within 2^64
///              bytes was found, and the offsets mean nothing
///   Cost:      the first placement takes about n log n steps, for n spans; about 200 bytes of host memory
///              per block, and at most 100 MB for the searches
///   Source:    MiniMalloc, https://doi.org/10.1145/3623278.3624752, for the order of the search and its pruning
[[nodiscard]] inline placement place(std::span<const lifetime> blocks, const place_options& options = {}) {
  return detail::planner(blocks, options).run();
}

/// Whether the offsets are multiples of `alignment`, the bytes are right, and no two blocks that are live at the
/// same time share a byte. Sizes are rounded up to multiples of `alignment`, a power of two.
///   Cost:  n log n, for n spans
[[nodiscard]] inline bool is_valid(std::span<const lifetime> blocks, const placement& found,
                                   std::size_t alignment = 1) {
  if (found.offsets.size() != blocks.size()) return false;
  struct event {
    std::uint32_t time;
    bool is_birth;
    std::uint32_t block;
  };
  std::vector<event> events;
  std::size_t bytes = 0;
  for (std::uint32_t block = 0; block < blocks.size(); ++block) {
    const std::size_t size = detail::bytes_of(detail::units_of(blocks[block].bytes, alignment), alignment);
    if (found.offsets[block] % alignment != 0 || found.offsets[block] > unlimited - size) return false;
    for (const time_span& span : blocks[block].live) {
      if (span.lower >= span.upper || size == 0) continue;
      bytes = (std::max)(bytes, found.offsets[block] + size);
      events.push_back({span.lower, true, block});
      events.push_back({span.upper, false, block});
    }
  }
  std::sort(events.begin(), events.end(), [](const event& a, const event& b) {
    return a.time != b.time ? a.time < b.time : !a.is_birth && b.is_birth;
  });
  std::set<std::pair<std::size_t, std::size_t>> used;  // offset and end of the live blocks
  for (const event& e : events) {
    const std::size_t size = detail::bytes_of(detail::units_of(blocks[e.block].bytes, alignment), alignment);
    const std::size_t offset = found.offsets[e.block];
    if (!e.is_birth) {
      used.erase({offset, offset + size});
      continue;
    }
    const auto above = used.lower_bound({offset, 0});
    if (above != used.end() && above->first < offset + size) return false;
    if (above != used.begin() && std::prev(above)->second > offset) return false;
    used.insert({offset, offset + size});
  }
  return bytes == found.bytes;
}

}  // namespace tessera::inline v0_1::plan
