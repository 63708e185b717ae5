// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/plan/memory_plan.hpp>
#include <tessera/plan/place.hpp>
#include <tessera/trace/recording.hpp>

namespace tessera {

namespace plan {

/// How to make a plan of a recording.
struct make_options {
  std::size_t first_event = 0;        ///< of the recording
  std::size_t end_event = unlimited;  ///< one behind the last
  double seconds = 10;                ///< the time limit of the search for places
  std::uint64_t seed = 1;             ///< of that search
  std::uint32_t alignment = 512;      ///< of all places, in bytes; a power of two, at least min_alignment
  /// Called now and then with the bytes of the best places so far.
  void (*progress)(void* state, std::size_t best, std::size_t lower_bound, double seconds) = nullptr;
  void* progress_state = nullptr;
};

/// A plan and its arrays.
struct made_plan {
  memory_plan numbers;  ///< without the arrays
  std::vector<memory_plan::kind> kinds;
  std::vector<memory_plan::track> tracks;
  std::vector<memory_plan::step> steps;
  std::vector<memory_plan::entry> entries;
  std::vector<std::uint32_t> deaths;
  std::size_t recorded_requests = 0;  ///< requests of the recording that the entries stand for
  std::size_t recorded_steps = 0;     ///< steps found in the recording
  std::size_t different_steps = 0;    ///< of these, those that differ from all before
  std::size_t left_out_streams = 0;  ///< streams without a track: it would cost memory that streams now share
  std::size_t left_out_requests = 0;  ///< their requests
  bool is_optimal = false;            ///< whether no placement needs fewer bytes
  double seconds = 0;                 ///< spent to find the places

  /// The plan, which is valid while this object is neither changed nor destroyed.
  [[nodiscard]] memory_plan view() const noexcept {
    memory_plan plan = numbers;
    plan.kinds = kinds;
    plan.tracks = tracks;
    plan.steps = steps;
    plan.entries = entries;
    plan.deaths = deaths;
    return plan;
  }
};

}  // namespace plan

namespace detail {

inline constexpr std::uint32_t never = 0xFFFFFFFF;

/// A request of one stream. Positions count the stream's requests.
struct recorded_request {
  std::uint32_t kind;
  std::uint32_t end = never;  // the number of requests made before the free
};
/// A program's own mark of a step.
struct recorded_mark {
  std::uint64_t key;
  std::uint32_t position;
};
/// The requests of one stream.
struct recorded_track {
  stream_id stream{};
  std::vector<std::uint64_t> kinds;  // bytes, ascending
  std::vector<recorded_request> requests;
  std::vector<recorded_mark> marks;
};

/// Reads the requests of each stream out of a recording.
class track_reader {
 public:
  track_reader(const trace::recording& source, const plan::make_options& options)
      : source_(source), program_(source), options_(options) {}

  [[nodiscard]] std::vector<recorded_track> run() {
    std::vector<place_of_request> by_slot(program_.slots());
    const auto& events = source_.events;
    const std::size_t end = (std::min)(events.size(), options_.end_event);
    for (std::size_t i = 0; i < end; ++i) {
      const trace::event& e = events[i];
      if (e.what == trace::event::kind::begin_pool) open_scopes_.push_back(e.id);
      if (e.what == trace::event::kind::end_pool) std::erase(open_scopes_, e.id);
      if (i < options_.first_event) continue;
      if (e.what == trace::event::kind::allocate && open_scopes_.empty()) {
        by_slot[program_.slot(i)] = add(e);
      } else if (e.what == trace::event::kind::record_stream) {
        by_slot[program_.slot(i)].is_recorded = true;
      } else if (e.what == trace::event::kind::free) {
        free(by_slot[program_.slot(i)]);
      } else if (e.what == trace::event::kind::answer_events) {
        answers_ = e.bytes != 0;
        while (answers_ && !pending_.empty()) {
          end_request(pending_.back());
          pending_.pop_back();
        }
      } else if (e.what == trace::event::kind::begin_step) {
        mark_ = {e.id, 0};
        for (recorded_track& t : tracks_)
          t.marks.push_back({e.id, static_cast<std::uint32_t>(t.requests.size())});
      }
    }
    for (recorded_track& t : tracks_) number_kinds(t);
    return std::move(tracks_);
  }
  [[nodiscard]] std::size_t peak_live() const noexcept { return peak_; }
  /// A hash of the requests and frees.
  [[nodiscard]] std::uint64_t fingerprint() const noexcept { return fingerprint_; }

 private:
  struct place_of_request {
    std::uint32_t track = never;
    std::uint32_t position = 0;
    bool is_recorded = false;  // whether another stream uses the block
  };

  [[nodiscard]] place_of_request add(const trace::event& e) {
    std::uint32_t number = 0;
    while (number < tracks_.size() && tracks_[number].stream != e.stream) ++number;
    if (number == tracks_.size()) {
      tracks_.emplace_back().stream = e.stream;
      if (mark_) tracks_.back().marks.push_back(*mark_);
      bytes_.emplace_back();
    }
    live_ += e.bytes;
    peak_ = (std::max)(peak_, live_);
    note(number + 1, e.bytes);
    tracks_[number].requests.push_back({});
    bytes_[number].push_back(e.bytes);
    return {number, static_cast<std::uint32_t>(bytes_[number].size() - 1)};
  }
  /// A block that another stream uses stays until that stream's events are complete.
  void free(place_of_request at) {
    if (at.track == never) return;
    live_ -= bytes_[at.track][at.position];
    note(0, at.position);
    if (at.is_recorded && !answers_) {
      pending_.push_back(at);
    } else {
      end_request(at);
    }
  }
  void end_request(place_of_request at) {
    recorded_track& t = tracks_[at.track];
    t.requests[at.position].end = static_cast<std::uint32_t>(t.requests.size());
  }
  void note(std::uint64_t what, std::uint64_t number) noexcept {
    for (const std::uint64_t value : {what, number})
      fingerprint_ = (std::rotl(fingerprint_, 29) ^ value) * 0x9E3779B97F4A7C15u;
  }
  void number_kinds(recorded_track& t) {
    const std::vector<std::uint64_t>& bytes = bytes_[static_cast<std::size_t>(&t - tracks_.data())];
    t.kinds = bytes;
    std::sort(t.kinds.begin(), t.kinds.end());
    t.kinds.erase(std::unique(t.kinds.begin(), t.kinds.end()), t.kinds.end());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const auto found = std::lower_bound(t.kinds.begin(), t.kinds.end(), bytes[i]);
      t.requests[i].kind = static_cast<std::uint32_t>(found - t.kinds.begin());
    }
  }

  const trace::recording& source_;
  trace::program program_;
  const plan::make_options& options_;
  std::vector<recorded_track> tracks_;
  std::vector<std::vector<std::uint64_t>> bytes_;  // of the requests of each track
  std::vector<std::uint64_t> open_scopes_;
  std::optional<recorded_mark> mark_;      // the latest, for streams that begin later
  std::vector<place_of_request> pending_;  // freed, but another stream uses the block
  bool answers_ = true;                    // whether events are complete at once
  std::size_t live_ = 0;
  std::size_t peak_ = 0;
  std::uint64_t fingerprint_ = 0;
};

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
  static constexpr std::uint32_t root = never;

  ///   Requires:  `starts` begins with 0 and ascends
  step_tree(const recorded_track& track, std::vector<std::uint32_t> starts, std::uint32_t kept_life,
            bool is_marked, std::size_t alignment)
      : track_(track), alignment_(alignment) {
    add_steps(starts);
    while (!is_marked && join_prefixes(starts)) add_steps(starts);
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
  /// The bytes that no placement goes below.
  [[nodiscard]] std::size_t lower_bound() const noexcept { return kept_bytes_ + bound_; }
  [[nodiscard]] std::size_t steps() const noexcept { return steps_.size(); }
  [[nodiscard]] std::size_t different_steps() const noexcept { return paths_.size(); }
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
    return align_up(track_.kinds[kind], alignment_);
  }

  void add_steps(const std::vector<std::uint32_t>& starts) {
    nodes_.clear();
    node_of_.clear();
    children_.clear();
    path_to_.clear();
    paths_.clear();
    steps_.clear();
    const auto all = static_cast<std::uint32_t>(track_.requests.size());
    for (std::size_t s = 0; s < starts.size(); ++s)
      add_step(starts[s], s + 1 < starts.size() ? starts[s + 1] : all);
  }
  /// The next request tells whether a step ends or goes on. Joins steps where it cannot tell: there, the other
  /// goes on with the request that begins the next step.
  [[nodiscard]] bool join_prefixes(std::vector<std::uint32_t>& starts) const {
    std::vector<std::uint32_t> joined;
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      const std::uint32_t begin = steps_[s].begin;
      const bool is_unclear = s > 0 && children_.contains({node_of_[begin - 1], track_.requests[begin].kind});
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
      const std::uint32_t kind = track_.requests[i].kind;
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

  /// Keeps the blocks that outlive several steps or `kept_life` requests, and those of which no end is known.
  void choose_kept(std::uint32_t kept_life) {
    std::vector<bool> has_end(nodes_.size());
    std::vector<bool> has_none(nodes_.size());
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      const bool is_last = s + 1 == steps_.size();
      const std::size_t late_step = s + max_outlived + 1;
      for (std::uint32_t i = steps_[s].begin; i < steps_[s].end; ++i) {
        const std::uint32_t end = track_.requests[i].end;
        node& n = nodes_[node_of_[i]];
        if (end - i >= kept_life || (late_step < steps_.size() && end > steps_[late_step].begin))
          n.is_kept = true;
        if (end != never) has_end[node_of_[i]] = true;
        if (end == never && !is_last) has_none[node_of_[i]] = true;
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
        ends[i - s.begin] =
            (std::max)(ends[i - s.begin], (std::min)(track_.requests[i].end, s.end) - s.begin);
    }
  }
  /// Does the same for the paths of later steps.
  void find_arrivals() {
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      for (std::uint32_t i = steps_[s].begin; i < steps_[s].end; ++i) {
        const std::uint32_t end = track_.requests[i].end;
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

  /// Counts the most blocks of each kind that are kept at one time.
  void count_kept() {
    const std::size_t count = track_.requests.size();
    kept_.resize(track_.kinds.size());
    std::vector<std::uint32_t> live(track_.kinds.size());
    std::vector<std::vector<std::uint32_t>> ending(count + 1);
    for (std::size_t i = 0; i < count; ++i) {
      for (const std::uint32_t kind : ending[i]) --live[kind];
      if (!nodes_[node_of_[i]].is_kept) continue;
      const recorded_request& r = track_.requests[i];
      kept_[r.kind] = (std::max)(kept_[r.kind], ++live[r.kind]);
      if (r.end < count) ending[r.end].push_back(r.kind);
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

  const recorded_track& track_;
  std::size_t alignment_;
  std::vector<node> nodes_;
  std::vector<std::uint32_t> node_of_;  // of each request
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> children_;
  std::map<std::uint32_t, std::uint32_t> path_to_;  // by its last node
  std::vector<path> paths_;
  std::vector<step> steps_;
  std::vector<std::uint32_t> kept_;
  std::size_t kept_bytes_ = 0;
  std::size_t bound_ = 0;
  std::uint32_t time_ = 0;
};

/// Divides the requests of a stream into steps.
///
/// The program's own marks count first. Else, a step begins where nearly all live blocks also live at a later,
/// quiet moment. The blocks of that moment are kept, and few others outlive a step.
class step_finder {
 public:
  struct division {
    std::vector<std::uint32_t> starts;
    std::uint32_t kept_life = never;  // blocks that live for so many requests are kept
    bool is_marked = false;           // by the program
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

  /// Proposes divisions: first those with most steps.
  [[nodiscard]] std::vector<division> propose() const {
    std::vector<division> found;
    const std::int64_t peak = *std::max_element(live_.begin(), live_.end());
    if (!track_.marks.empty()) found.push_back({from_marks(), never, true});
    for (const std::size_t quiet : quiet_moments()) {
      for (const std::int64_t most :
           {std::int64_t{0}, peak / 16384, peak / 1024, peak / 256, peak / 64, peak / 16, peak / 8}) {
        division one{divide(quiet, most)};
        const bool is_known = std::any_of(found.begin(), found.end(),
                                          [&](const division& d) { return d.starts == one.starts; });
        if (!is_known && one.starts.size() > 1) found.push_back(std::move(one));
      }
    }
    if (track_.kinds.size() <= max_ring_kinds) {
      division ring{std::vector<std::uint32_t>(count_), 0};
      std::iota(ring.starts.begin(), ring.starts.end(), 0u);
      found.push_back(std::move(ring));
    }
    found.push_back({{0}, static_cast<std::uint32_t>(count_ / 2)});
    found.push_back({{0}});
    return found;
  }

 private:
  [[nodiscard]] std::vector<std::uint32_t> from_marks() const {
    std::vector<std::uint32_t> starts{0};
    for (const recorded_mark& m : track_.marks) {
      if (m.position > starts.back() && m.position < count_) starts.push_back(m.position);
    }
    return starts;
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

  // With each request as a step of its own, the kinds are searched in turn.
  static constexpr std::size_t max_ring_kinds = 16;

  const recorded_track& track_;
  std::size_t count_;
  std::vector<std::int64_t> bytes_;  // of the place of each request
  std::vector<std::int64_t> live_;   // before each request
};

/// Makes a plan of a recording.
class plan_maker {
 public:
  plan_maker(const trace::recording& source, const plan::make_options& options)
      : source_(source), options_(options) {}

  [[nodiscard]] plan::made_plan run() {
    track_reader reader(source_, options_);
    const std::vector<recorded_track> tracks = reader.run();
    memory_plan& numbers = made_.numbers;
    numbers.alignment = options_.alignment;
    numbers.first_event = options_.first_event;
    numbers.end_event = (std::min)(source_.events.size(), options_.end_event);
    numbers.peak_live = reader.peak_live();
    numbers.fingerprint = reader.fingerprint();
    made_.is_optimal = true;
    for (const recorded_track& t : tracks) requests_ += t.requests.size();
    for (const recorded_track& t : tracks) add(t);
    return std::move(made_);
  }

 private:
  void add(const recorded_track& track) {
    const step_finder finder(track, options_.alignment);
    const std::vector<step_finder::division> proposed = finder.propose();
    const auto tree_of = [&](const step_finder::division& d) {
      return step_tree(track, d.starts, d.kept_life, d.is_marked, options_.alignment);
    };
    // A division into steps must pay: fewer entries, for hardly any bytes. One step with kept blocks needs only that.
    bool is_marked = false;
    std::optional<step_tree> best(tree_of(proposed.back()));
    const std::size_t most_bytes = best->lower_bound() + best->lower_bound() / 400;
    std::size_t fewest = best->nodes().size() / 10 * 9;
    for (auto d = proposed.rbegin(); ++d != proposed.rend();) {
      step_tree tree = tree_of(*d);
      const bool is_compact = tree.death_count() <= 2 * tree.nodes().size();
      const bool pays = d->starts.size() == 1 || d->is_marked || tree.nodes().size() <= fewest;
      if (!is_compact || !pays || tree.lower_bound() > most_bytes) continue;
      if (d->starts.size() > 1) fewest = tree.nodes().size() - 1;
      is_marked = d->is_marked;
      best.emplace(std::move(tree));
    }
    // Streams share no bytes of a plan. Without a plan, they may use the same memory one after the other.
    const std::size_t all = made_.numbers.lower_bound + best->lower_bound();
    const bool is_dear =
        !made_.tracks.empty() && all > made_.numbers.peak_live + made_.numbers.peak_live / 50;
    if (is_dear || made_.tracks.size() == max_tracks) {
      ++made_.left_out_streams;
      made_.left_out_requests += track.requests.size();
      return;
    }
    write(track, *best, is_marked);
    made_.recorded_requests += track.requests.size();
  }

  void write(const recorded_track& track, const step_tree& tree, bool is_marked) {
    made_.recorded_steps += tree.steps();
    made_.different_steps += tree.different_steps();
    const std::vector<std::size_t> offsets = place(track, tree);
    const auto first_kind = static_cast<std::uint32_t>(made_.kinds.size());
    const auto first_entry = static_cast<std::uint32_t>(made_.entries.size());
    std::uint64_t kept = made_.numbers.bytes;
    for (std::uint32_t k = 0; k < track.kinds.size(); ++k) {
      made_.kinds.push_back({track.kinds[k], tree.kept()[k] > 0 ? in_alignments(kept) : 0, tree.kept()[k]});
      kept += tree.kept()[k] * align_up(track.kinds[k], options_.alignment);
    }
    const std::vector<std::uint32_t> order = preorder(tree);
    std::vector<std::uint32_t> number(order.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) number[order[i]] = first_entry + i;
    write_entries(tree, order, number, first_kind, offsets, kept);
    std::map<std::uint64_t, std::uint32_t> steps;  // a key leads to the first of its steps; 0 to any
    if (is_marked) steps.emplace(0, first_entry);
    for (const recorded_mark& m : track.marks) {
      if (is_marked && m.position < track.requests.size())
        steps.try_emplace(m.key, number[tree.node_of(m.position)]);
    }
    for (const auto& [key, entry] : steps) made_.steps.push_back({key, entry});
    made_.numbers.bytes = kept + height_;
    made_.numbers.lower_bound += tree.lower_bound();
    made_.tracks.push_back({track.stream.handle, static_cast<std::uint32_t>(made_.kinds.size()),
                            static_cast<std::uint32_t>(made_.entries.size()),
                            static_cast<std::uint32_t>(made_.steps.size())});
  }

  void write_entries(const step_tree& tree, const std::vector<std::uint32_t>& order,
                     const std::vector<std::uint32_t>& number, std::uint32_t first_kind,
                     const std::vector<std::size_t>& offsets, std::uint64_t base) {
    std::vector<std::vector<std::uint32_t>> dying(order.size());
    for (const std::uint32_t n : order) {
      for (const std::uint32_t at : tree.nodes()[n].deaths) dying[at].push_back(number[n]);
      for (const std::uint32_t arrival : tree.nodes()[n].arrivals) dying[n].push_back(number[arrival]);
    }
    const std::size_t first = made_.entries.size();
    for (const std::uint32_t n : order) {
      const step_tree::node& from = tree.nodes()[n];
      made_.deaths.insert(made_.deaths.end(), dying[n].begin(), dying[n].end());
      made_.entries.push_back({first_kind + from.kind,
                               from.is_kept ? memory_plan::keeps : in_alignments(base + offsets[n]), 0,
                               static_cast<std::uint32_t>(made_.deaths.size())});
    }
    std::map<std::uint32_t, std::uint32_t> latest_child;  // by parent
    for (std::uint32_t i = 0; i < order.size(); ++i) {
      const auto [sibling, is_first] = latest_child.try_emplace(tree.nodes()[order[i]].parent, i);
      if (is_first) continue;
      made_.entries[first + sibling->second].other = static_cast<std::uint32_t>(first + i);
      sibling->second = i;
    }
    for (const std::uint32_t end : tree.ends()) {
      const auto child = latest_child.find(end);
      if (child != latest_child.end()) made_.entries[first + child->second].other |= memory_plan::may_end;
    }
  }

  /// Lists the nodes so that each is followed by its most visited child.
  [[nodiscard]] static std::vector<std::uint32_t> preorder(const step_tree& tree) {
    const std::vector<step_tree::node>& nodes = tree.nodes();
    std::vector<std::vector<std::uint32_t>> children(nodes.size() + 1);  // the last: of the root
    for (std::uint32_t n = 0; n < nodes.size(); ++n)
      children[nodes[n].parent == step_tree::root ? nodes.size() : nodes[n].parent].push_back(n);
    for (std::vector<std::uint32_t>& of : children) {
      std::sort(of.begin(), of.end(), [&](std::uint32_t a, std::uint32_t b) {
        return nodes[a].visits != nodes[b].visits ? nodes[a].visits < nodes[b].visits : a < b;
      });
    }
    std::vector<std::uint32_t> order, open = children.back();
    order.reserve(nodes.size());
    while (!open.empty()) {
      const std::uint32_t n = open.back();
      open.pop_back();
      order.push_back(n);
      open.insert(open.end(), children[n].begin(), children[n].end());
    }
    return order;
  }

  /// Finds the places of the nodes that are not kept. Sets `height_` to their bytes.
  [[nodiscard]] std::vector<std::size_t> place(const recorded_track& track, const step_tree& tree) {
    std::vector<plan::lifetime> blocks;
    std::vector<std::uint32_t> nodes;
    for (std::uint32_t n = 0; n < tree.nodes().size(); ++n) {
      if (tree.nodes()[n].is_kept) continue;
      blocks.push_back({track.kinds[tree.nodes()[n].kind], tree.nodes()[n].live});
      nodes.push_back(n);
    }
    plan::place_options options;
    // Each stream gets its part of the time.
    options.seconds =
        options_.seconds * static_cast<double>(track.requests.size()) / static_cast<double>(requests_);
    options.seed = options_.seed;
    options.alignment = options_.alignment;
    options.progress = options_.progress;
    options.progress_state = options_.progress_state;
    const plan::placement found = plan::place(blocks, options);
    made_.seconds += found.seconds;
    made_.is_optimal = made_.is_optimal && found.is_optimal;
    height_ = found.bytes;
    std::vector<std::size_t> offsets(tree.nodes().size());
    for (std::size_t i = 0; i < nodes.size(); ++i) offsets[nodes[i]] = found.offsets[i];
    return offsets;
  }

  [[nodiscard]] std::uint32_t in_alignments(std::uint64_t offset) const noexcept {
    return static_cast<std::uint32_t>(offset / options_.alignment);
  }

  static constexpr std::size_t max_tracks = 255;

  const trace::recording& source_;
  const plan::make_options& options_;
  std::size_t requests_ = 0;  // of all streams
  plan::made_plan made_;
  std::size_t height_ = 0;
};

}  // namespace detail

namespace plan {

/// Makes a plan of a recorded program, for `planned`.
///
/// Steps that repeat share their entries. Requests in scopes of private pools are left out. A program may mark its
/// steps (event::kind::begin_step); otherwise, they are found.
/// A stream is left out if its places would cost more than the memory that streams now use in turn.
///   Requires:  an alignment that is a power of two, at least min_alignment; otherwise the program aborts
///   Throws:    std::bad_alloc
///   Cost:      n log n for each way to divide the program into steps, and the search for places. On a slow machine,
///              that search may take twice `seconds`.
[[nodiscard]] inline made_plan make(const trace::recording& source, const make_options& options = {}) {
  if (!std::has_single_bit(options.alignment) || options.alignment < min_alignment)
    tessera::detail::fatal("plan::make: the alignment must be a power of two, at least 64");
  return tessera::detail::plan_maker(source, options).run();
}

/// Returns the fingerprint of a plan of these events, without making it.
///   Throws:  std::bad_alloc
[[nodiscard]] inline std::uint64_t fingerprint(const trace::recording& source, std::size_t first_event,
                                               std::size_t end_event) {
  const make_options options{.first_event = first_event, .end_event = end_event};
  tessera::detail::track_reader reader(source, options);
  (void)reader.run();
  return reader.fingerprint();
}

}  // namespace plan

}  // namespace tessera
