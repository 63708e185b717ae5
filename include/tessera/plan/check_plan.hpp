// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <tessera/plan/memory_plan.hpp>
#include <tessera/provider/bank_policy.hpp>

namespace tessera::inline v0_1::detail {

/// Checks a plan: each number lies in its range, and no two blocks that may be live together overlap.
class plan_checker {
 public:
  explicit plan_checker(const plan::memory_plan& plan) noexcept : plan_(plan) {}

  /// Returns the broken rule, as text, or null.
  [[nodiscard]] const char* run() {
    if (!std::has_single_bit(plan_.alignment) || plan_.alignment < min_alignment)
      return "the alignment is a power of two, at least 64";
    if (plan_.bytes > max_request) return "a plan has less than 2^60 bytes";
    if (plan_.bytes / plan_.alignment >= plan::memory_plan::keeps)
      return "a plan has less than 2^32 - 1 places";
    if (plan_.entries.size() >= plan::memory_plan::may_end) return "a plan has less than 2^31 entries";
    if (plan_.tracks.size() > 255) return "a plan has at most 255 tracks";
    if (plan_.bank_ends.size() >= provider::max_banks) return "a plan has at most 64 banks";
    for (std::size_t i = 0, begin = 0; i < plan_.bank_ends.size(); begin = plan_.bank_ends[i++]) {
      if (plan_.bank_ends[i] < begin || plan_.bank_ends[i] > plan_.bytes)
        return "the ends of banks ascend, and lie in the plan's bytes";
    }
    was_arrival_.resize(plan_.deaths.size());
    plan::memory_plan::track begin{};
    for (const plan::memory_plan::track& end : plan_.tracks) {
      if (const char* const broken = check_track(begin, end)) return broken;
      begin = end;
    }
    const bool is_whole = begin.kinds_end == plan_.kinds.size() &&
                          begin.entries_end == plan_.entries.size() && begin.steps_end == plan_.steps.size();
    if (!is_whole) return "the last track ends with the arrays";
    return areas_overlap() ? "kept places and tracks do not overlap" : nullptr;
  }

 private:
  struct area {
    std::uint64_t begin, end;
  };
  /// An entry on the path to the current one.
  struct step_back {
    std::uint32_t entry;
    std::uint32_t first_death;
  };

  [[nodiscard]] const char* check_track(const plan::memory_plan::track& begin,
                                        const plan::memory_plan::track& end) {
    const bool is_ordered = begin.kinds_end <= end.kinds_end && end.kinds_end <= plan_.kinds.size() &&
                            begin.entries_end < end.entries_end && end.entries_end <= plan_.entries.size() &&
                            begin.steps_end <= end.steps_end && end.steps_end <= plan_.steps.size();
    if (!is_ordered) return "tracks follow each other, and each has entries";
    for (std::uint32_t k = begin.kinds_end; k < end.kinds_end; ++k) {
      const plan::memory_plan::kind& kind = plan_.kinds[k];
      if (kind.bytes == 0 || kind.bytes > max_request) return "a request has 1 to 2^60 - 1 bytes";
      if (k > begin.kinds_end && plan_.kinds[k - 1].bytes > kind.bytes)
        return "kinds are in the order of their sizes";
      if (kind.kept > plan_.bytes / plan_.place_bytes(kind.bytes)) return "places lie in the plan's bytes";
      kept_ += kind.kept;
      if (kept_ > max_kept) return "a plan has at most 2^22 kept places";
      largest_ = (std::max)(largest_, plan_.place_bytes(kind.bytes));
      const std::uint64_t from = std::uint64_t{kind.kept_place} * plan_.alignment;
      for (const std::uint64_t bank_end : plan_.bank_ends) {
        const std::uint64_t below = bank_end > from ? bank_end - from : 0,
                            one = plan_.place_bytes(kind.bytes);
        if (below / one < kind.kept && below % one != 0) return one_bank;
      }
      if (!add_area(from, kind.kept * plan_.place_bytes(kind.bytes))) return "places lie in the plan's bytes";
    }
    for (std::uint32_t s = begin.steps_end; s < end.steps_end; ++s) {
      if (plan_.steps[s].entry < begin.entries_end || plan_.steps[s].entry >= end.entries_end)
        return "a step begins with an entry of its track";
    }
    for (std::uint32_t i = begin.entries_end; i < end.entries_end; ++i) {
      const plan::memory_plan::entry& e = plan_.entries[i];
      if (e.kind < begin.kinds_end || e.kind >= end.kinds_end) return "an entry has a kind of its track";
    }
    return check_entries(begin, end);
  }

  [[nodiscard]] const char* check_entries(const plan::memory_plan::track& begin,
                                          const plan::memory_plan::track& end) {
    std::vector<std::uint32_t> parent(end.entries_end - begin.entries_end + 1, no_parent);
    std::vector<bool> has_parent(parent.size());
    has_parent[0] = true;
    const auto at = [&](std::uint32_t i) { return i - begin.entries_end; };
    live_.clear();
    arrivals_.clear();
    path_.clear();
    first_ = begin.entries_end;
    end_ = end.entries_end;
    hulls_.assign(plan_.bank_ends.size() + 1, {plan_.bytes, 0});
    for (std::uint32_t i = begin.entries_end; i < end.entries_end; ++i) {
      const plan::memory_plan::entry& e = plan_.entries[i];
      if (e.deaths < deaths_ || e.deaths > plan_.deaths.size())
        return "the deaths of entries follow each other";
      if (!has_parent[at(i)]) {
        parent[at(i)] = i - 1;
        has_parent[at(i)] = true;
      }
      if (const std::uint32_t other = e.other & ~plan::memory_plan::may_end; other != 0) {
        if (other <= i || other >= end.entries_end || has_parent[at(other)])
          return "another entry comes later, and is named once";
        has_parent[at(other)] = true;
        parent[at(other)] = parent[at(i)];
      }
      leave_until(parent[at(i)]);
      if (!path_.empty() != (parent[at(i)] != no_parent)) return "entries are in preorder";
      if (const char* const broken = enter(i)) return broken;
    }
    for (const area& hull : hulls_) {
      if (hull.begin < hull.end) (void)add_area(hull.begin, hull.end - hull.begin);
    }
    return nullptr;
  }
  /// Removes what died before an entry, and adds its block.
  [[nodiscard]] const char* enter(std::uint32_t i) {
    const plan::memory_plan::entry& e = plan_.entries[i];
    path_.push_back({i, deaths_});
    if (path_.size() == 1) {
      arrivals_.clear();
      is_arrival_.clear();
    }
    for (; deaths_ < e.deaths; ++deaths_) {
      const std::uint32_t named = plan_.deaths[deaths_];
      if (named < first_ || named >= end_) return "an entry names entries of its track";
      if (path_.size() == 1) {
        if (!is_arrival_.insert(named).second) return "an entry is named once at the beginning of a step";
        arrivals_.emplace(area_of(named).begin, named);
      } else if (!erase(named)) {
        return "an entry that dies is live";
      }
    }
    if (e.place == plan::memory_plan::keeps) return nullptr;
    const area a = area_of(i);
    if (a.end > plan_.bytes) return "places lie in the plan's bytes";
    const std::size_t bank = plan_.bank_of(a.begin);
    if (bank != plan_.bank_of(a.end - 1)) return one_bank;
    if (const char* const broken = check_arrivals(a)) return broken;
    const auto above = live_.lower_bound(a.begin);
    if (above != live_.end() && above->first < a.end) return "blocks that are live together do not overlap";
    if (above != live_.begin() && area_of(std::prev(above)->second).end > a.begin)
      return "blocks that are live together do not overlap";
    live_.emplace_hint(above, a.begin, i);
    area& hull = hulls_[bank];
    hull = {(std::min)(hull.begin, a.begin), (std::max)(hull.end, a.end)};
    return nullptr;
  }
  /// Compares a place with the blocks of earlier steps, which may overlap each other.
  [[nodiscard]] const char* check_arrivals(const area& a) {
    const std::uint64_t from = a.begin > largest_ ? a.begin - largest_ : 0;
    for (auto at = arrivals_.lower_bound(from); at != arrivals_.end() && at->first < a.end; ++at) {
      if (++compared_ > max_compared) return "a plan has few blocks that outlive their steps";
      if (area_of(at->second).end > a.begin) return "blocks that are live together do not overlap";
    }
    return nullptr;
  }
  /// Goes back on the path to an entry, and undoes what the entries after it did.
  void leave_until(std::uint32_t entry) {
    while (!path_.empty() && path_.back().entry != entry) {
      const auto [left, first_death] = path_.back();
      path_.pop_back();
      if (plan_.entries[left].place != plan::memory_plan::keeps) (void)erase(left);
      if (path_.empty()) return arrivals_.clear();
      for (std::uint32_t d = first_death; d < plan_.entries[left].deaths; ++d) {
        const std::uint32_t dead = plan_.deaths[d];
        was_arrival_[d] ? void(arrivals_.emplace(area_of(dead).begin, dead))
                        : void(live_.emplace(area_of(dead).begin, dead));
      }
    }
  }
  /// Removes a live block. Returns false if there is none.
  bool erase(std::uint32_t i) {
    const auto found = live_.find(area_of(i).begin);
    if (found != live_.end() && found->second == i) {
      live_.erase(found);
      return true;
    }
    const auto [from, to] = arrivals_.equal_range(area_of(i).begin);
    for (auto at = from; at != to; ++at) {
      if (++compared_ > max_compared) return false;
      if (at->second != i) continue;
      arrivals_.erase(at);
      return was_arrival_[deaths_] = true;
    }
    return false;
  }
  [[nodiscard]] area area_of(std::uint32_t i) const noexcept {
    const plan::memory_plan::entry& e = plan_.entries[i];
    const std::uint64_t begin = std::uint64_t{e.place} * plan_.alignment;
    return {begin, begin + plan_.place_bytes(plan_.kinds[e.kind].bytes)};
  }

  [[nodiscard]] bool add_area(std::uint64_t begin, std::uint64_t bytes) {
    if (bytes > plan_.bytes || begin > plan_.bytes - bytes) return false;
    if (bytes > 0) areas_.push_back({begin, begin + bytes});
    return true;
  }
  [[nodiscard]] bool areas_overlap() {
    std::sort(areas_.begin(), areas_.end(), [](const area& a, const area& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < areas_.size(); ++i) {
      if (areas_[i - 1].end > areas_[i].begin) return true;
    }
    return false;
  }

  static constexpr const char* one_bank = "a place lies in one bank";
  static constexpr std::uint64_t max_kept = std::uint64_t{1} << 22;
  static constexpr std::uint32_t no_parent = 0xFFFFFFFF;
  static constexpr std::uint64_t max_compared = std::uint64_t{1} << 26;  // so that no plan takes long
  const plan::memory_plan& plan_;
  std::vector<area> areas_;                      // kept places, and the hulls of each track's entries
  std::vector<area> hulls_;                      // of the entries of the track, by bank
  std::map<std::uint64_t, std::uint32_t> live_;  // entries by their offsets
  std::vector<step_back> path_;
  std::multimap<std::uint64_t, std::uint32_t> arrivals_;  // live blocks of earlier steps by their offsets
  std::set<std::uint32_t> is_arrival_;                    // the entries of arrivals_
  std::vector<bool> was_arrival_;                         // for each death
  std::uint64_t largest_ = 0;                             // bytes of a place
  std::uint64_t kept_ = 0;                                // kept places so far
  std::uint64_t compared_ = 0;
  std::uint32_t first_ = 0, end_ = 0;  // entries of the track
  std::uint32_t deaths_ = 0;           // deaths before the current entry
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::plan {

/// Checks a plan. A plan without a fault never gives bytes to two blocks that are live at the same time.
///   Returns:  the broken rule, as text, or null
///   Throws:   std::bad_alloc
///   Cost:     n log n
[[nodiscard]] inline const char* find_fault(const memory_plan& plan) {
  return tessera::detail::plan_checker(plan).run();
}

}  // namespace tessera::inline v0_1::plan
