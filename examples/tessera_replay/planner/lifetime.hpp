// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tessera/core/bytes.hpp>

/// Plans: offsets for blocks whose lifetimes are known before the program runs.
namespace tessera::inline v0_1::plan {

/// A time span: it contains `lower`, but not `upper`. The unit of time is the caller's.
struct time_span {
  std::uint32_t lower = 0;
  std::uint32_t upper = 0;

  bool operator==(const time_span&) const = default;
};

/// A block to place: its size in bytes, and the time spans in which it is live.
///
/// The spans are sorted and disjoint. A block with several spans is live at the same offset in each of them.
/// Between them, other blocks may use its bytes. A block without spans, or of 0 bytes, has offset 0.
struct lifetime {
  std::size_t bytes = 0;
  std::span<const time_span> live;
};

namespace detail {
using tessera::detail::saturating_add;

/// Returns the number of steps of `alignment` bytes that `bytes` bytes need.
[[nodiscard]] constexpr std::uint64_t units_of(std::size_t bytes, std::size_t alignment) noexcept {
  return bytes / alignment + (bytes % alignment != 0 ? 1 : 0);
}

/// Returns units * alignment, or `unlimited` if that overflows.
[[nodiscard]] constexpr std::size_t bytes_of(std::uint64_t units, std::size_t alignment) noexcept {
  return units > unlimited / alignment ? unlimited : units * alignment;
}

/// Maxima of ranges of a fixed list of numbers.
///   Cost:  a maximum takes logarithmic time
template <typename Number>
class range_max {
 public:
  explicit range_max(const std::vector<Number>& numbers) : count_(numbers.size()), tree_(2 * numbers.size()) {
    std::copy(numbers.begin(), numbers.end(), tree_.begin() + static_cast<std::ptrdiff_t>(count_));
    for (std::size_t i = count_; i-- > 1;) tree_[i] = (std::max)(tree_[2 * i], tree_[2 * i + 1]);
  }

  /// Returns the largest of the numbers from index `lower` up to but without `upper`; 0 if there are none.
  [[nodiscard]] Number of(std::size_t lower, std::size_t upper) const {
    Number result{};
    lower += count_;
    upper += count_;
    while (lower < upper) {
      if (lower % 2 == 1) result = (std::max)(result, tree_[lower++]);
      if (upper % 2 == 1) result = (std::max)(result, tree_[--upper]);
      lower /= 2;
      upper /= 2;
    }
    return result;
  }

 private:
  std::size_t count_;
  std::vector<Number> tree_;
};

/// Blocks with their sizes in units of the alignment, and with their spans in sections.
///
/// A section is a longest run of times in which no block dies before another is born. Two blocks are live at
/// the same time if they share a section. Other times add nothing to a placement.
///   Cost:    n log n to make, for n spans
///   Source:  sections as in MiniMalloc, https://doi.org/10.1145/3623278.3624752
class instance {
 public:
  /// Takes the blocks of the given indices. Each has at least one byte and one span that is not empty.
  instance(std::span<const lifetime> blocks, const std::vector<std::uint32_t>& ids, std::size_t alignment) {
    units_.reserve(ids.size());
    widths_.reserve(ids.size());
    first_.reserve(ids.size() + 1);
    for (const std::uint32_t id : ids) {
      first_.push_back(static_cast<std::uint32_t>(spans_.size()));
      units_.push_back(units_of(blocks[id].bytes, alignment));
      double width = 0;
      for (const time_span& span : blocks[id].live) {
        if (span.lower >= span.upper) continue;
        spans_.push_back(span);
        width += span.upper - span.lower;
      }
      widths_.push_back(width);
    }
    first_.push_back(static_cast<std::uint32_t>(spans_.size()));
    number_sections();
    add_loads();
  }

  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(units_.size()); }
  [[nodiscard]] std::uint32_t sections() const noexcept { return sections_; }
  [[nodiscard]] std::uint64_t units(std::uint32_t block) const { return units_[block]; }
  /// Returns how long a block is live, in the caller's unit of time.
  [[nodiscard]] double width(std::uint32_t block) const { return widths_[block]; }
  /// Returns the spans of a block in sections.
  [[nodiscard]] std::span<const time_span> spans(std::uint32_t block) const {
    return {spans_.data() + first_[block], spans_.data() + first_[block + 1]};
  }
  /// Returns the shortest span in sections that contains all spans of a block.
  [[nodiscard]] time_span hull(std::uint32_t block) const {
    return {spans_[first_[block]].lower, spans_[first_[block + 1] - 1].upper};
  }
  /// Returns the units that are live in each section.
  [[nodiscard]] const std::vector<std::uint64_t>& loads() const noexcept { return loads_; }
  /// Returns the largest load of a section.
  [[nodiscard]] std::uint64_t lower_bound() const { return *std::max_element(loads_.begin(), loads_.end()); }
  /// Whether sums of sizes stay so small that no sum of them and of heights overflows.
  [[nodiscard]] bool is_small() const noexcept { return total_ < std::uint64_t{1} << 61; }
  /// Returns how many pairs of a section and a block live in it there are.
  [[nodiscard]] std::uint64_t incidences() const noexcept { return incidences_; }

 private:
  /// Replaces the times of all spans by sections.
  void number_sections() {
    std::vector<std::uint64_t> events;  // time, whether it is a birth, number of the span
    events.reserve(2 * spans_.size());
    for (std::uint64_t i = 0; i < spans_.size(); ++i) {
      events.push_back(std::uint64_t{spans_[i].lower} << 32 | birth | i);
      events.push_back(std::uint64_t{spans_[i].upper} << 32 | i);
    }
    std::sort(events.begin(), events.end());
    bool after_birth = false;
    for (const std::uint64_t event : events) {
      const bool is_birth = (event & birth) != 0;
      if (is_birth && !after_birth) ++sections_;
      after_birth = is_birth;
      time_span& span = spans_[event & (birth - 1)];
      if (is_birth) {
        span.lower = sections_ - 1;
      } else {
        span.upper = sections_;
      }
    }
  }

  void add_loads() {
    loads_.assign(sections_, 0);
    std::vector<std::uint64_t> born(sections_ + std::size_t{1});
    std::vector<std::uint64_t> dead(sections_ + std::size_t{1});
    for (std::uint32_t block = 0; block < size(); ++block) {
      total_ = saturating_add(total_, units_[block]);
      for (const time_span& span : spans(block)) {
        incidences_ += span.upper - span.lower;
        born[span.lower] += units_[block];  // modulo 2^64: right if the total is small
        dead[span.upper] += units_[block];
      }
    }
    if (!is_small()) return add_large_loads();
    std::uint64_t live = 0;
    for (std::uint32_t section = 0; section < sections_; ++section) {
      live += born[section];
      live -= dead[section];
      loads_[section] = live;
    }
  }

  /// Computes loads whose sums may overflow: as pairs of a sum of low and a sum of high halves.
  void add_large_loads() {
    struct halves {
      std::int64_t low = 0;
      std::int64_t high = 0;
    };
    std::vector<halves> change(sections_ + std::size_t{1});
    for (std::uint32_t block = 0; block < size(); ++block) {
      const auto low = static_cast<std::int64_t>(units_[block] & 0xffff'ffffu);
      const auto high = static_cast<std::int64_t>(units_[block] >> 32);
      for (const time_span& span : spans(block)) {
        change[span.lower].low += low;
        change[span.lower].high += high;
        change[span.upper].low -= low;
        change[span.upper].high -= high;
      }
    }
    halves live;
    for (std::uint32_t section = 0; section < sections_; ++section) {
      live.low += change[section].low;
      live.high += change[section].high;
      const auto high = static_cast<std::uint64_t>(live.high + (live.low >> 32));
      const auto low = static_cast<std::uint64_t>(live.low) & 0xffff'ffffu;
      loads_[section] = high > 0xffff'ffffu ? unlimited : high << 32 | low;
    }
  }

  static constexpr std::uint64_t birth = std::uint64_t{1} << 31;

  std::vector<std::uint64_t> units_;
  std::vector<double> widths_;
  std::vector<std::uint32_t> first_;  // of the spans of each block, and the end of the last
  std::vector<time_span> spans_;
  std::vector<std::uint64_t> loads_;
  std::uint32_t sections_ = 0;
  std::uint64_t total_ = 0;
  std::uint64_t incidences_ = 0;
};

}  // namespace detail
}  // namespace tessera::inline v0_1::plan
