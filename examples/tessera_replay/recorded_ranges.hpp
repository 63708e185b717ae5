// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/observe/snapshot.hpp>

#include "start_state.hpp"

namespace replay {

/// The address ranges of one recorded device. A history has no entries about ranges, only about their pages.
struct recorded_ranges {
  std::vector<std::uint64_t> of_segment;  ///< where the range of each segment at the start begins
  std::vector<bool> begins;               ///< of each entry: whether its pages are the first of a new range
  /// No range was larger, before its size was rounded up to pages: ranges do not overlap.
  std::size_t max_size = unlimited;
  /// Sizes that the ranges may have had. The history does not say whether the first pages of a range were mapped
  /// at the start. Nor does it say whether others used the device when a request failed.
  std::vector<std::size_t> guesses;
};

/// Finds the ranges of a history. Pages are always mapped at the start of a hole: at the start of the range, or
/// after mapped pages. Pages elsewhere are the first of a new range. PyTorch also reserves ranges for requests
/// that then fail; such a range is found when pages are mapped there.
class range_finder {
 public:
  /// `large_page` is the size of the pages for large blocks. The ranges of large blocks are multiples of it. No
  /// range is larger than `max_size`, before it is rounded up to pages.
  range_finder(std::size_t large_page, std::size_t max_size) noexcept : large_page_(large_page) {
    found_.max_size = max_size;
  }

  ///   Requires:  the segments at the start, and the owners of the entries, of start_finder
  ///   Cost:      n log n in the length of the history
  [[nodiscard]] recorded_ranges find(const start_state& start,
                                     std::span<const observe::snapshot::entry> entries) {
    std::vector<std::size_t> number;
    const observe::snapshot::segment* below = nullptr;
    std::size_t reserved = 0;
    for (const observe::snapshot::segment& s : start.segments) {
      const memory_owner owner = memory_owner::of(s);
      // Memory of another owner between two segments separates their ranges.
      const bool same = below != nullptr && below->expandable && memory_owner::of(*below) == owner &&
                        s.address - ranges_[number.back()].begin < found_.max_size;
      number.push_back(!s.expandable ? none : same ? number.back() : begin_range(s.address, owner, true));
      if (s.expandable) map(number.back(), s.address, s.size);
      below = &s;
      reserved += s.size;
    }
    found_.begins.assign(entries.size(), false);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const observe::snapshot::entry& e = entries[i];
      if (e.what == observe::snapshot::action::segment_map) {
        std::size_t in = range_with_hole(e.address, start.owners[i]);
        if (in == none) in = range_above(e.address, start.owners[i]);
        found_.begins[i] = in == none;
        if (in == none) in = begin_range(e.address, start.owners[i], false);
        map(in, e.address, e.size);
      }
      if (e.what == observe::snapshot::action::segment_unmap) unmap(e.address, e.size);
      if (e.what == observe::snapshot::action::segment_map ||
          e.what == observe::snapshot::action::segment_alloc)
        reserved += e.size;
      if (e.what == observe::snapshot::action::segment_unmap ||
          e.what == observe::snapshot::action::segment_free)
        reserved -= e.size;
      // PyTorch reserves an eighth more than the device has.
      if (e.what == observe::snapshot::action::oom)
        guess(reserved + e.device_free + (reserved + e.device_free) / 8);
    }
    guess(max_likely_);
    for (const std::size_t n : number) found_.of_segment.push_back(n == none ? 0 : ranges_[n].begin);
    return std::move(found_);
  }

 private:
  static constexpr std::size_t none = ~std::size_t{0};
  static constexpr std::size_t max_guesses = 4;

  struct range {
    std::uint64_t begin;
    memory_owner owner;
    bool from_start;     ///< then its first pages may have been unmapped before
    std::size_t mapped;  ///< bytes; a range without mapped pages is released
  };
  struct run {
    std::uint64_t end;
    std::size_t in;  ///< the range
  };

  std::size_t begin_range(std::uint64_t address, const memory_owner& owner, bool from_start) {
    ranges_.push_back({address, owner, from_start, 0});
    place(ranges_.size() - 1);
    return ranges_.size() - 1;
  }
  /// Inserts a range among those that exist. The ranges beside it limit the size of all.
  void place(std::size_t number) {
    const auto at = by_begin_.insert_or_assign(ranges_[number].begin, number).first;
    if (at != by_begin_.begin()) limit_size(*std::prev(at), at->first);
    if (const auto above = std::next(at); above != by_begin_.end()) limit_size(*at, above->first);
  }
  void limit_size(const std::pair<const std::uint64_t, std::size_t>& low, std::uint64_t high) {
    const auto room = static_cast<std::size_t>(high - low.first);
    const std::size_t most = ranges_[low.second].owner.large ? room / large_page_ * large_page_ : room;
    std::size_t& limited = ranges_[low.second].from_start ? max_likely_ : found_.max_size;
    if (most > 0) limited = (std::min)(limited, most);
  }
  void guess(std::size_t size) {
    const bool is_new = std::find(found_.guesses.begin(), found_.guesses.end(), size) == found_.guesses.end();
    if (is_new && size < found_.max_size && found_.guesses.size() < max_guesses)
      found_.guesses.push_back(size);
  }
  /// The range of this owner in which a hole begins at an address, or none.
  [[nodiscard]] std::size_t range_with_hole(std::uint64_t address, const memory_owner& owner) const {
    const auto at = by_begin_.find(address);
    if (at != by_begin_.end() && ranges_[at->second].owner == owner) return at->second;
    const auto above = runs_.lower_bound(address);
    if (above == runs_.begin() || std::prev(above)->second.end != address) return none;
    const std::size_t in = std::prev(above)->second.in;
    return ranges_[in].owner == owner ? in : none;
  }
  /// The range from the start whose lowest mapped pages lie next above an address, if nothing lies between;
  /// or none. The range then begins there.
  [[nodiscard]] std::size_t range_above(std::uint64_t address, const memory_owner& owner) {
    const auto at = by_begin_.upper_bound(address);
    if (at == by_begin_.end()) return none;
    const std::size_t in = at->second;
    if (!ranges_[in].from_start || ranges_[in].owner != owner || at->first - address >= found_.max_size)
      return none;
    by_begin_.erase(at);
    ranges_[in].begin = address;
    place(in);
    return in;
  }
  void map(std::size_t in, std::uint64_t address, std::size_t bytes) {
    runs_.insert_or_assign(address, run{address + bytes, in});
    ranges_[in].mapped += bytes;
  }
  void unmap(std::uint64_t address, std::size_t bytes) {
    const std::uint64_t end = address + bytes;
    auto at = runs_.upper_bound(address);
    if (at != runs_.begin() && std::prev(at)->second.end > address) --at;
    while (at != runs_.end() && at->first < end) {
      const auto [begin, old] = *at;
      at = runs_.erase(at);
      if (begin < address) runs_.emplace(begin, run{address, old.in});
      if (old.end > end) at = runs_.emplace(end, run{old.end, old.in}).first;
      range& of = ranges_[old.in];
      of.mapped -= static_cast<std::size_t>((std::min)(end, old.end) - (std::max)(begin, address));
      if (of.mapped == 0) by_begin_.erase(of.begin);
    }
  }

  std::size_t large_page_;
  std::size_t max_likely_ = unlimited;  // if the ranges at the start begin with their first mapped page
  std::vector<range> ranges_;
  std::map<std::uint64_t, std::size_t> by_begin_;  // the ranges with mapped pages
  std::map<std::uint64_t, run> runs_;              // mapped pages, by their start
  recorded_ranges found_;
};

}  // namespace replay
