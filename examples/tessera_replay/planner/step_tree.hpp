// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>

#include "lifetime.hpp"
#include "recorded_track.hpp"

namespace tessera::inline v0_1::detail {

/// Arranges the steps of one stream as a tree, and finds out when its blocks must not overlap.
///
/// A division names the first request of each step. A block may outlive its step by a few steps: then the steps
/// that ran meanwhile leave its place alone. Blocks that live longer are kept, at places of their own. So steps may
/// follow each other in any order that was recorded, and use the same bytes.
class step_tree {
 public:
  struct node {
    std::uint32_t kind;
    std::uint32_t parent;
    std::uint32_t depth;
    std::uint32_t visits = 0;
    bool is_kept = false;
    std::vector<std::uint32_t> deaths{};    // nodes; at each of them, this block is dead
    std::vector<std::uint32_t> arrivals{};  // of a first node: blocks of earlier steps that are still live
    std::vector<plan::time_span> live{};    // when the block is live, if the steps run one after the other
  };
  static constexpr std::uint32_t root = at_no_event;

  ///   Requires:  `starts` begins with 0 and ascends
  step_tree(const recorded_track& track, std::vector<std::uint32_t> starts, std::uint32_t kept_life,
            bool is_marked, std::size_t alignment)
      : track_(&track), alignment_(alignment) {
    add_steps(starts);
    while (!is_marked && join_prefixes(starts)) add_steps(starts);
    find_ends();
    choose_kept(kept_life);
    find_lives();
    find_arrivals();
    find_deaths();
    count_kept();
    lay_out();
  }

  [[nodiscard]] const std::vector<node>& nodes() const noexcept { return nodes_; }
  /// The number of kept places of each kind.
  [[nodiscard]] const std::vector<std::uint32_t>& kept() const noexcept { return kept_; }
  /// The bytes of all places if each block died when it did in its own step, and not in the step where it lived
  /// longest.
  [[nodiscard]] std::size_t bytes_of_lives() const noexcept { return kept_bytes_ + lives_bytes_; }
  /// The bytes of all kept places.
  [[nodiscard]] std::size_t kept_bytes() const noexcept { return kept_bytes_; }
  /// The bytes that no placement goes below.
  [[nodiscard]] std::size_t lower_bound() const noexcept { return kept_bytes_ + bound_; }
  struct step_count {
    std::size_t all = 0;
    std::size_t different = 0;
  };
  /// Counts the steps that begin with the requests from `first` up to but without `end`.
  [[nodiscard]] step_count steps(std::uint32_t first, std::uint32_t end) const {
    step_count found;
    std::vector<bool> is_known(paths_.size());
    for (const step& s : steps_) {
      if (s.begin < first || s.begin >= end) continue;
      ++found.all;
      if (!is_known[s.path]) ++found.different;
      is_known[s.path] = true;
    }
    return found;
  }
  /// The numbers that the deaths and arrivals take.
  [[nodiscard]] std::size_t death_count() const noexcept {
    std::size_t count = 0;
    for (const node& n : nodes_) count += n.deaths.size() + n.arrivals.size();
    return count;
  }
  /// The last nodes of the steps.
  [[nodiscard]] std::vector<std::uint32_t> ends() const {
    std::vector<std::uint32_t> ends;
    for (const path& p : paths_) ends.push_back(p.nodes.back());
    return ends;
  }
  /// The node of a request.
  [[nodiscard]] std::uint32_t node_of(std::uint32_t position) const noexcept { return node_of_[position]; }

 private:
  /// The life of a block on a path: until it reaches a depth.
  struct life {
    std::uint32_t path, end;
  };
  struct path {
    std::vector<std::uint32_t> nodes;
    std::vector<std::uint32_t> ends{};                  // of the block of each node: a depth, or the length
    std::map<std::uint32_t, std::uint32_t> arrivals{};  // by node: the depth until which its block is live
    [[nodiscard]] std::uint32_t length() const noexcept { return static_cast<std::uint32_t>(nodes.size()); }
  };
  struct step {
    std::uint32_t begin, end, path;
    std::vector<std::uint32_t> arrivals{};  // nodes
  };

  [[nodiscard]] std::size_t place_bytes(std::uint32_t kind) const noexcept {
    return align_up(track_->kinds[kind], alignment_);
  }

  void add_steps(const std::vector<std::uint32_t>& starts) {
    nodes_.clear();
    node_of_.clear();
    children_.clear();
    path_to_.clear();
    paths_.clear();
    steps_.clear();
    const auto all = static_cast<std::uint32_t>(track_->requests.size());
    for (std::size_t s = 0; s < starts.size(); ++s)
      add_step(starts[s], s + 1 < starts.size() ? starts[s + 1] : all);
  }
  /// The next request tells whether a step ends or goes on. Joins steps where it cannot tell: there, the other
  /// goes on with the request that begins the next step.
  [[nodiscard]] bool join_prefixes(std::vector<std::uint32_t>& starts) const {
    std::vector<std::uint32_t> joined;
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      const std::uint32_t begin = steps_[s].begin;
      const bool is_unclear =
          s > 0 && children_.contains({node_of_[begin - 1], track_->requests[begin].kind});
      if (!is_unclear) joined.push_back(begin);
    }
    if (joined.size() == starts.size()) return false;
    starts = std::move(joined);
    return true;
  }
  void add_step(std::uint32_t begin, std::uint32_t end) {
    if (begin == end) return;
    std::uint32_t at = root;
    std::vector<std::uint32_t> nodes;
    nodes.reserve(end - begin);
    for (std::uint32_t i = begin; i < end; ++i) {
      const std::uint32_t kind = track_->requests[i].kind;
      const auto fresh = static_cast<std::uint32_t>(nodes_.size());
      const auto [found, is_new] = children_.try_emplace({at, kind}, fresh);
      if (is_new) nodes_.push_back({kind, at, i - begin});
      at = found->second;
      ++nodes_[at].visits;
      nodes.push_back(at);
    }
    node_of_.insert(node_of_.end(), nodes.begin(), nodes.end());
    const auto [known, is_new] = path_to_.try_emplace(at, static_cast<std::uint32_t>(paths_.size()));
    if (is_new) paths_.push_back({std::move(nodes)});
    steps_.push_back({begin, end, known->second});
  }

  /// Finds until when each block keeps its place. A stream that is slower than recorded moves no block into a later step: there, the
  /// block would need room in all steps of this kind.
  void find_ends() {
    ends_.reserve(track_->requests.size());
    for (const step& s : steps_) {
      for (std::uint32_t i = s.begin; i < s.end; ++i) {
        const recorded_request& r = track_->requests[i];
        ends_.push_back((std::max)(r.end, (std::min)(r.late_end, s.end)));
      }
    }
  }

  /// Keeps the blocks that outlive several steps or `kept_life` requests, and those of which no end is known.
  void choose_kept(std::uint32_t kept_life) {
    std::vector<bool> has_end(nodes_.size());
    std::vector<bool> has_none(nodes_.size());
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      const bool is_last = s + 1 == steps_.size();
      const std::size_t late_step = s + max_outlived + 1;
      for (std::uint32_t i = steps_[s].begin; i < steps_[s].end; ++i) {
        const std::uint32_t end = ends_[i];
        node& n = nodes_[node_of_[i]];
        if (end - i >= kept_life || (late_step < steps_.size() && end > steps_[late_step].begin))
          n.is_kept = true;
        if (end != at_no_event) has_end[node_of_[i]] = true;
        if (end == at_no_event && !is_last) has_none[node_of_[i]] = true;
      }
    }
    for (std::size_t n = 0; n < nodes_.size(); ++n)
      nodes_[n].is_kept = nodes_[n].is_kept || (has_none[n] && !has_end[n]);
  }

  /// Notes until when blocks live on the paths of their steps, as the maximum of all steps on a path.
  void find_lives() {
    for (path& p : paths_) p.ends.resize(p.nodes.size());
    for (const step& s : steps_) {
      std::vector<std::uint32_t>& ends = paths_[s.path].ends;
      for (std::uint32_t i = s.begin; i < s.end; ++i)
        ends[i - s.begin] = (std::max)(ends[i - s.begin], (std::min)(ends_[i], s.end) - s.begin);
    }
  }
  /// Does the same for the paths of later steps.
  void find_arrivals() {
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      for (std::uint32_t i = steps_[s].begin; i < steps_[s].end; ++i) {
        const std::uint32_t end = ends_[i];
        const std::uint32_t number = node_of_[i];
        for (std::size_t later = s + 1; later < steps_.size() && steps_[later].begin < end; ++later) {
          if (nodes_[number].is_kept) break;
          arrive(number, steps_[later], (std::min)(end, steps_[later].end) - steps_[later].begin);
        }
      }
    }
    for (path& p : paths_)
      std::erase_if(p.arrivals, [this](const auto& a) { return nodes_[a.first].is_kept; });
  }
  void arrive(std::uint32_t number, step& at, std::uint32_t end) {
    path& on = paths_[at.path];
    node& n = nodes_[number];
    // A block that still lives when its own request comes again needs a second place.
    if (n.depth < end && n.depth < on.length() && on.nodes[n.depth] == number) n.is_kept = true;
    std::uint32_t& known = on.arrivals[number];
    known = (std::max)(known, end);
    at.arrivals.push_back(number);
  }

  void find_deaths() {
    std::vector<std::vector<life>> own(nodes_.size());
    std::vector<std::vector<life>> arriving(nodes_.size());
    for (std::uint32_t p = 0; p < paths_.size(); ++p) {
      for (std::uint32_t depth = 0; depth < paths_[p].length(); ++depth)
        own[paths_[p].nodes[depth]].push_back({p, paths_[p].ends[depth]});
    }
    find_arriving(arriving);
    for (std::uint32_t number = 0; number < nodes_.size(); ++number) {
      node& n = nodes_[number];
      n.is_kept = n.is_kept || arriving[number].size() > max_compared;
      if (n.is_kept) continue;
      agree(own[number]);
      for (const life& l : own[number]) paths_[l.path].ends[n.depth] = l.end;
      agree(arriving[number]);
      for (const life& l : arriving[number]) {
        paths_[l.path].arrivals[number] = l.end;
        nodes_[paths_[l.path].nodes.front()].arrivals.push_back(number);
      }
      for (const std::vector<life>* const lives : {&own[number], &arriving[number]}) {
        for (const life& l : *lives) {
          if (l.end < paths_[l.path].length()) n.deaths.push_back(paths_[l.path].nodes[l.end]);
        }
      }
      make_unique(n.deaths);
    }
    for (node& n : nodes_) make_unique(n.arrivals);
  }
  /// Lists the paths on which a block of an earlier step may be live: those that begin alike. If these are too
  /// many to compare, keeps the block.
  void find_arriving(std::vector<std::vector<life>>& arriving) {
    std::map<std::uint32_t, std::vector<std::uint32_t>> alike;  // paths by their first nodes
    for (std::uint32_t p = 0; p < paths_.size(); ++p) alike[paths_[p].nodes.front()].push_back(p);
    for (const auto& [first, paths] : alike) {
      std::vector<std::uint32_t> numbers;
      for (const std::uint32_t p : paths) {
        for (const auto& [number, end] : paths_[p].arrivals) numbers.push_back(number);
      }
      make_unique(numbers);
      for (const std::uint32_t number : numbers) {
        if (paths.size() > max_compared) nodes_[number].is_kept = true;
        if (nodes_[number].is_kept) continue;
        for (const std::uint32_t p : paths) {
          const auto found = paths_[p].arrivals.find(number);
          arriving[number].push_back({p, found != paths_[p].arrivals.end() ? found->second : 0});
        }
      }
    }
  }
  /// A block that is live at a node of one path is live there on all paths.
  void agree(std::vector<life>& lives) const {
    if (lives.size() > max_compared) {
      for (life& l : lives) l.end = paths_[l.path].length();
      return;
    }
    std::sort(lives.begin(), lives.end(), [](const life& a, const life& b) { return a.end > b.end; });
    for (std::size_t i = 1; i < lives.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j)
        lives[i].end =
            (std::max)(lives[i].end, (std::min)(lives[j].end, common(lives[i].path, lives[j].path)));
    }
  }
  /// The depth at which two paths differ.
  [[nodiscard]] std::uint32_t common(std::uint32_t a, std::uint32_t b) const noexcept {
    const std::vector<std::uint32_t>& one = paths_[a].nodes;
    const std::vector<std::uint32_t>& two = paths_[b].nodes;
    std::size_t same = 0, differs = (std::min)(one.size(), two.size());
    while (same < differs) {
      const std::size_t middle = same + (differs - same) / 2;
      one[middle] == two[middle] ? same = middle + 1 : differs = middle;
    }
    return static_cast<std::uint32_t>(same);
  }
  static void make_unique(std::vector<std::uint32_t>& numbers) {
    std::sort(numbers.begin(), numbers.end());
    numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  }

  /// Counts the most blocks of each kind that are kept at one time, and the most bytes of others that are live.
  void count_kept() {
    const std::size_t count = track_->requests.size();
    kept_.resize(track_->kinds.size());
    std::vector<std::uint32_t> live(track_->kinds.size());
    std::vector<std::vector<std::uint32_t>> ending(count + 1);
    std::vector<std::size_t> dying(count + 1);
    std::size_t now = 0;
    for (std::size_t i = 0; i < count; ++i) {
      for (const std::uint32_t kind : ending[i]) --live[kind];
      now -= dying[i];
      const recorded_request& r = track_->requests[i];
      if (!nodes_[node_of_[i]].is_kept) {
        lives_bytes_ = (std::max)(lives_bytes_, now += place_bytes(r.kind));
        if (ends_[i] < count) dying[ends_[i]] += place_bytes(r.kind);
        continue;
      }
      kept_[r.kind] = (std::max)(kept_[r.kind], ++live[r.kind]);
      if (ends_[i] < count) ending[ends_[i]].push_back(r.kind);
    }
    for (std::uint32_t k = 0; k < kept_.size(); ++k) kept_bytes_ += kept_[k] * place_bytes(k);
  }

  /// Lays the paths one after the other in time. The beginning of a path comes again for each set of blocks of
  /// earlier steps that was live there.
  void lay_out() {
    std::vector<bool> has_children(nodes_.size());
    for (const node& n : nodes_) {
      if (n.parent != root) has_children[n.parent] = true;
    }
    for (const path& p : paths_) {
      if (!has_children[p.nodes.back()]) lay_out(p, {}, p.length());
    }
    std::vector<std::pair<std::uint32_t, std::vector<std::uint32_t>>> known;
    for (step& s : steps_) {
      std::erase_if(s.arrivals, [this](std::uint32_t n) { return nodes_[n].is_kept; });
      if (s.arrivals.empty()) continue;
      make_unique(s.arrivals);
      known.emplace_back(s.path, std::move(s.arrivals));
    }
    std::sort(known.begin(), known.end());
    known.erase(std::unique(known.begin(), known.end()), known.end());
    for (const auto& [number, arrivals] : known) {
      std::uint32_t end = 0;
      for (const std::uint32_t n : arrivals) end = (std::max)(end, paths_[number].arrivals.at(n));
      lay_out(paths_[number], arrivals, end);
    }
  }
  void lay_out(const path& p, const std::vector<std::uint32_t>& arrivals, std::uint32_t length) {
    std::vector<std::int64_t> change(length + 1);
    const auto live = [&](node& n, std::uint32_t from, std::uint32_t to) {
      if (n.is_kept) return;
      n.live.push_back({time_ + from, time_ + (std::min)(to, length)});
      change[from] += static_cast<std::int64_t>(place_bytes(n.kind));
      change[(std::min)(to, length)] -= static_cast<std::int64_t>(place_bytes(n.kind));
    };
    for (const std::uint32_t n : arrivals) live(nodes_[n], 0, p.arrivals.at(n));
    for (std::uint32_t depth = 0; depth < length; ++depth) live(nodes_[p.nodes[depth]], depth, p.ends[depth]);
    std::int64_t now = 0;
    for (const std::int64_t by : change) {
      now += by;
      bound_ = (std::max)(bound_, static_cast<std::size_t>(now));
    }
    time_ += length;
  }

  static constexpr std::size_t max_outlived = 12;  // steps; a block that outlives more is kept
  static constexpr std::size_t max_compared = 64;  // paths; the comparison is quadratic

  const recorded_track* track_;
  std::size_t alignment_;
  std::vector<node> nodes_;
  std::vector<std::uint32_t> node_of_;  // of each request
  std::vector<std::uint32_t> ends_;     // likewise: the number of requests before its place is free
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> children_;
  std::map<std::uint32_t, std::uint32_t> path_to_;  // by its last node
  std::vector<path> paths_;
  std::vector<step> steps_;
  std::vector<std::uint32_t> kept_;
  std::size_t kept_bytes_ = 0;
  std::size_t lives_bytes_ = 0;
  std::size_t bound_ = 0;
  std::uint32_t time_ = 0;
};

}  // namespace tessera::inline v0_1::detail
