// SPDX-License-Identifier: Apache-2.0
// The search for a plan. It takes seconds to compile, so it is compiled once, into the library tessera_planner.

#include "make_plan.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <tessera/provider/bank_policy.hpp>

#include "find_steps.hpp"
#include "place.hpp"
#include "place_in_banks.hpp"
#include "recorded_track.hpp"
#include "step_tree.hpp"

namespace tessera::inline v0_1::detail {
namespace {

/// Makes a plan of a recording.
class plan_maker {
 public:
  /// With `is_whole`, no stream is divided into steps.
  plan_maker(const trace::recording& source, const plan::make_options& options, bool is_whole)
      : source_(source), options_(options), is_whole_(is_whole) {}

  [[nodiscard]] plan::made_plan run() {
    track_reader reader(source_, options_.first_event, options_.end_event);
    const std::vector<recorded_track> tracks = reader.run();
    plan::memory_plan& numbers = made_.numbers;
    numbers.alignment = options_.alignment;
    numbers.first_event = options_.first_event;
    numbers.end_event = (std::min)(source_.events.size(), options_.end_event);
    numbers.peak_live = reader.peak_live();
    numbers.fingerprint = reader.fingerprint();
    made_.is_optimal = true;
    for (const recorded_track& t : tracks) requests_ += t.requests.size();
    for (const recorded_track& t : tracks) choose(t);
    for (const std::size_t bytes : options_.banks) free_.push_back(plan::whole_bytes_of_bank(bytes));
    if (free_.empty()) free_.push_back(unlimited);
    made_.bank_bytes.resize(free_.size());
    std::vector<track_places> places;
    for (const chosen_track& t : chosen_) places.push_back(place(t));
    const std::vector<std::uint64_t> begins = lay_out_banks();
    for (std::size_t t = 0; t < chosen_.size(); ++t) write(chosen_[t], places[t], begins);
    if (options_.banks.empty()) made_.bank_bytes.clear();
    return std::move(made_);
  }

 private:
  /// A way to divide the requests of a stream.
  struct candidate {
    step_finder::division division;
    step_tree tree;
  };
  /// A stream of the plan.
  struct chosen_track {
    const recorded_track* track;
    std::vector<candidate> candidates;  // the best guess first
  };

  struct place_in_bank {
    std::uint32_t bank = 0;
    std::uint64_t offset = 0;  // in the bank
  };
  /// Adjacent kept places of one kind.
  struct kept_places {
    std::uint32_t kind, bank;
    std::uint64_t offset;
    std::uint32_t count;
  };
  /// The places of a stream.
  struct track_places {
    std::size_t candidate = 0;
    std::vector<kept_places> kept;     // in the order of the kinds
    std::vector<place_in_bank> nodes;  // kept nodes have none
  };

  /// Chooses ways to divide the requests of a stream, or leaves it out.
  void choose(const recorded_track& track) {
    std::vector<candidate> found = candidates(track);
    // Streams share no bytes of a plan. Without a plan, they may use the same memory one after the other.
    const std::size_t all = made_.numbers.lower_bound + found.front().tree.lower_bound();
    const std::size_t others = (std::max)(made_.numbers.peak_live, made_.numbers.lower_bound);
    const std::size_t allowed = (std::max)(others + others / 50, options_.reserved_without);
    const bool is_dear = !chosen_.empty() && all > allowed;
    if (is_dear || chosen_.size() == max_tracks) {
      ++made_.left_out_streams;
      made_.left_out_requests += track.requests.size();
      return;
    }
    made_.numbers.lower_bound += found.front().tree.lower_bound();
    made_.recorded_requests += track.requests.size();
    chosen_.push_back({&track, std::move(found)});
  }

  /// Lists divisions into steps that pay: fewer entries, for hardly any bytes. Marks need only cost few bytes.
  [[nodiscard]] std::vector<candidate> candidates(const recorded_track& track) const {
    std::vector<step_finder::division> proposed = step_finder(track, options_.alignment).propose();
    const auto tried = [&](step_finder::division& d) {
      step_tree tree(track, d.starts, d.kept_life, d.from == step_finder::source::marks, options_.alignment);
      return candidate{std::move(d), std::move(tree)};
    };
    std::vector<candidate> found;
    candidate whole = tried(proposed.back());
    proposed.pop_back();
    if (!is_whole_) {
      add_periods(found, proposed, whole.tree, tried);
      add_shortest(found, proposed, whole.tree, tried);
    }
    // Periods may cost a little, so they compete with no steps at all.
    const bool competes = found.empty() || found.front().division.from == step_finder::source::period;
    if (competes) found.push_back(std::move(whole));
    return found;
  }
  /// Adds the division of the marks alone, or some of those by periods.
  template <typename Tried>
  static void add_periods(std::vector<candidate>& found, std::vector<step_finder::division>& proposed,
                          const step_tree& whole, const Tried& tried) {
    const std::size_t least = whole.lower_bound();
    std::optional<candidate> costly;
    for (step_finder::division& d : proposed) {
      const bool is_marked = d.from == step_finder::source::marks;
      if (!is_marked && d.from != step_finder::source::period) break;
      candidate one = tried(d);
      const std::size_t nodes = one.tree.nodes().size(), bytes = one.tree.lower_bound();
      if (!is_compact(one.tree) || (!is_marked && nodes > whole.nodes().size() / 5 * 2)) continue;
      if (bytes <= least + least / 400) {
        found.push_back(std::move(one));
        if (is_marked || found.size() == max_candidates) return;
        continue;
      }
      // Steps that repeat serve later steps, too. So they may cost a little if they shorten the plan a lot. They may
      // cost more if frees come in another order: without steps, a plan would hardly serve such a program again.
      const bool is_short = nodes <= whole.nodes().size() / 4;
      const std::size_t extra = least / (is_short ? 32 : 64);
      const std::size_t varying = is_short ? least / 2 : 0;
      const bool is_better = !costly || bytes + bytes / 32 < costly->tree.lower_bound();
      if (one.tree.bytes_of_lives() <= least + extra && bytes <= least + extra + varying && is_better)
        costly.emplace(std::move(one));
    }
    if (found.empty() && costly) found.push_back(std::move(*costly));
  }
  /// Adds the division with the fewest entries of those by quiet moments.
  template <typename Tried>
  static void add_shortest(std::vector<candidate>& found, std::vector<step_finder::division>& proposed,
                           const step_tree& whole, const Tried& tried) {
    if (!found.empty() && found.front().division.from == step_finder::source::marks) return;
    const std::size_t least = whole.lower_bound();
    std::size_t fewest = whole.nodes().size() / 10 * 9;
    std::optional<candidate> best;
    for (std::size_t i = proposed.size(); i-- > 0;) {
      if (proposed[i].from < step_finder::source::quiet_moments) break;
      candidate one = tried(proposed[i]);
      const bool pays = one.division.starts.size() == 1 || one.tree.nodes().size() <= fewest;
      if (!is_compact(one.tree) || !pays || one.tree.lower_bound() > least + least / 400) continue;
      if (one.division.starts.size() > 1) fewest = one.tree.nodes().size() - 1;
      best.emplace(std::move(one));
    }
    if (best) found.push_back(std::move(*best));
  }
  [[nodiscard]] static bool is_compact(const step_tree& tree) {
    return tree.death_count() <= 2 * tree.nodes().size();
  }

  /// Chooses the division and the places of a stream, behind those of the streams before.
  [[nodiscard]] track_places place(const chosen_track& of) {
    track_places chosen;
    const plan::placement found = place(of, chosen.candidate);
    const step_tree& tree = of.candidates[chosen.candidate].tree;
    made_.numbers.lower_bound += tree.lower_bound();
    made_.numbers.lower_bound -= of.candidates.front().tree.lower_bound();
    placed_bound_ += tree.lower_bound();
    chosen.nodes.resize(tree.nodes().size());
    const std::size_t bytes = tree.kept_bytes() + found.bytes;
    if (bytes <= free_[0]) {
      std::uint64_t offset = made_.bank_bytes[0];
      for (std::uint32_t k = 0; k < of.track->kinds.size(); ++k) {
        chosen.kept.push_back({k, 0, offset, tree.kept()[k]});
        offset += tree.kept()[k] * place_bytes(of, k);
      }
      std::size_t i = 0;
      for (std::size_t n = 0; n < chosen.nodes.size(); ++n) {
        if (!tree.nodes()[n].is_kept) chosen.nodes[n] = {0, offset + found.offsets[i++]};
      }
      take(0, bytes);
      made_.is_optimal = made_.is_optimal && found.is_optimal;
    } else {
      place_in_banks(of, tree, chosen);
    }
    return chosen;
  }
  /// Places a stream that does not fit in the first bank.
  void place_in_banks(const chosen_track& of, const step_tree& tree, track_places& chosen) {
    std::vector<plan::lifetime> blocks;
    std::vector<place_in_bank*> results;
    plan::time_span always{0, 1};
    for (const step_tree::node& n : tree.nodes()) {
      if (!n.is_kept && !n.live.empty()) always.upper = (std::max)(always.upper, n.live.back().upper);
    }
    const auto kinds = static_cast<std::uint32_t>(of.track->kinds.size());
    std::vector<std::uint32_t> kind_of;  // of each kept place
    for (std::uint32_t k = 0; k < kinds; ++k) {
      kind_of.insert(kind_of.end(), tree.kept()[k], k);
      blocks.insert(blocks.end(), tree.kept()[k], {place_bytes(of, k), {&always, 1}});
    }
    for (std::size_t n = 0; n < chosen.nodes.size(); ++n) {
      if (tree.nodes()[n].is_kept) continue;
      blocks.push_back({of.track->kinds[tree.nodes()[n].kind], tree.nodes()[n].live});
      results.push_back(&chosen.nodes[n]);
    }
    const plan::banked_placement found = plan::place_in_banks(blocks, free_, place_options_for(of, 1));
    // No block lies partly above a kept one, because that is live all the time. So the kept ones may move to the bottom.
    const std::size_t banks = free_.size();
    std::vector<std::map<std::size_t, std::size_t>> bottom(banks);  // by offset: the kept bytes up to its end
    std::vector<std::uint32_t> counts(kinds * banks);
    for (std::size_t i = 0; i < kind_of.size(); ++i) {
      bottom[found.banks[i]].emplace(found.offsets[i], blocks[i].bytes);
      ++counts[kind_of[i] * banks + found.banks[i]];
    }
    for (std::map<std::size_t, std::size_t>& kept : bottom) {
      std::size_t sum = 0;
      for (auto& [offset, bytes] : kept) bytes = sum += bytes;
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
      const std::uint32_t bank = found.banks[kind_of.size() + i];
      const std::size_t offset = found.offsets[kind_of.size() + i];
      const std::map<std::size_t, std::size_t>& kept = bottom[bank];
      const auto above = kept.lower_bound(offset);
      const std::size_t below = above == kept.begin() ? 0 : std::prev(above)->second;
      const std::size_t all = kept.empty() ? 0 : kept.rbegin()->second;
      *results[i] = {bank, made_.bank_bytes[bank] + all + offset - below};
    }
    std::vector<std::uint64_t> next(made_.bank_bytes.begin(), made_.bank_bytes.end());
    for (std::uint32_t k = 0; k < kinds; ++k) {
      const std::size_t before = chosen.kept.size();
      for (std::uint32_t bank = 0; bank < banks; ++bank) {
        const std::uint32_t count = counts[k * banks + bank];
        if (count > 0) chosen.kept.push_back({k, bank, next[bank], count});
        next[bank] += count * place_bytes(of, k);
      }
      if (chosen.kept.size() == before) chosen.kept.push_back({k, 0, 0, 0});
    }
    for (std::uint32_t bank = 0; bank < banks; ++bank) take(bank, found.bytes[bank]);
    made_.outside_bound = found.lower_bound;
  }
  /// Gives bytes of a bank to a stream.
  void take(std::uint32_t bank, std::size_t bytes) noexcept {
    made_.bank_bytes[bank] += bytes;
    made_.numbers.bytes += bytes;
    if (free_[bank] != unlimited) free_[bank] -= (std::min)(free_[bank], bytes);
  }
  [[nodiscard]] std::size_t place_bytes(const chosen_track& of, std::uint32_t kind) const {
    return align_up(of.track->kinds[kind], options_.alignment);
  }
  /// Lays the banks one after the other. Returns where each begins.
  [[nodiscard]] std::vector<std::uint64_t> lay_out_banks() {
    std::vector<std::uint64_t> begins{0};
    std::size_t last = made_.bank_bytes.size() - 1;
    while (last > 1 && made_.bank_bytes[last] == 0) --last;  // so that the first bank has an end
    for (std::size_t bank = 0; bank < last; ++bank) {
      begins.push_back(align_up(begins.back() + made_.bank_bytes[bank], plan::bank_alignment));
      made_.bank_ends.push_back(begins.back());
    }
    made_.numbers.bytes = begins.back() + made_.bank_bytes[last];
    begins.resize(made_.bank_bytes.size());
    if (made_.bank_bytes.size() > 1) {
      const std::size_t all = made_.numbers.lower_bound, first = options_.capacity;
      const std::size_t excess = all > first ? all - first : 0;
      // The bytes that a stream leaves outside depend on the streams before it. So only the sum bounds several of them.
      made_.outside_bound = chosen_.size() > 1 ? excess : (std::max)(made_.outside_bound, excess);
      if (made_.outside() > 0) made_.is_optimal = made_.outside() == made_.outside_bound;
    }
    return begins;
  }

  void write(const chosen_track& of, const track_places& places, const std::vector<std::uint64_t>& begins) {
    const recorded_track& track = *of.track;
    const step_finder::division& division = of.candidates[places.candidate].division;
    const step_tree& tree = of.candidates[places.candidate].tree;
    const bool is_marked = division.from == step_finder::source::marks;
    if (track.requests.size() > most_requests_) {
      most_requests_ = track.requests.size();
      const auto [all, different] = tree.steps(division.first_step, division.end_of_steps);
      made_.recorded_steps = all;
      made_.different_steps = different;
    }
    const auto place_of = [&](const place_in_bank& at) { return in_alignments(begins[at.bank] + at.offset); };
    std::vector<std::uint32_t> nodes(tree.nodes().size(), plan::memory_plan::keeps);
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      if (!tree.nodes()[n].is_kept) nodes[n] = place_of(places.nodes[n]);
    }
    const auto first_entry = static_cast<std::uint32_t>(made_.entries.size());
    std::vector<std::uint32_t> kinds(track.kinds.size());  // in the plan
    for (const kept_places& k : places.kept) {
      kinds[k.kind] = static_cast<std::uint32_t>(made_.kinds.size());
      made_.kinds.push_back({track.kinds[k.kind], k.count > 0 ? place_of({k.bank, k.offset}) : 0, k.count});
    }
    const std::vector<std::uint32_t> order = preorder(tree);
    std::vector<std::uint32_t> number(order.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) number[order[i]] = first_entry + i;
    write_entries(tree, order, number, kinds, nodes);
    std::map<std::uint64_t, std::uint32_t> steps;  // a key leads to the first of its steps; 0 to any
    if (is_marked) steps.emplace(0, first_entry);
    for (const recorded_mark& m : track.marks) {
      if (is_marked && m.position < track.requests.size())
        steps.try_emplace(m.key, number[tree.node_of(m.position)]);
    }
    for (const auto& [key, entry] : steps) made_.steps.push_back({key, entry});
    made_.tracks.push_back({track.stream.handle, static_cast<std::uint32_t>(made_.kinds.size()),
                            static_cast<std::uint32_t>(made_.entries.size()),
                            static_cast<std::uint32_t>(made_.steps.size())});
  }

  void write_entries(const step_tree& tree, const std::vector<std::uint32_t>& order,
                     const std::vector<std::uint32_t>& number, const std::vector<std::uint32_t>& kinds,
                     const std::vector<std::uint32_t>& places) {
    std::vector<std::vector<std::uint32_t>> dying(order.size());
    for (const std::uint32_t n : order) {
      for (const std::uint32_t at : tree.nodes()[n].deaths) dying[at].push_back(number[n]);
      for (const std::uint32_t arrival : tree.nodes()[n].arrivals) dying[n].push_back(number[arrival]);
    }
    const std::size_t first = made_.entries.size();
    for (const std::uint32_t n : order) {
      const step_tree::node& from = tree.nodes()[n];
      made_.deaths.insert(made_.deaths.end(), dying[n].begin(), dying[n].end());
      made_.entries.push_back(
          {kinds[from.kind], places[n], 0, static_cast<std::uint32_t>(made_.deaths.size())});
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
      if (child != latest_child.end())
        made_.entries[first + child->second].other |= plan::memory_plan::may_end;
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

  /// Finds the places of the nodes that are not kept. A short search for each candidate shows which one needs fewest
  /// bytes. The best guess wins unless others need clearly fewer. A longer search then looks for better places.
  [[nodiscard]] plan::placement place(const chosen_track& of, std::size_t& best) const {
    const std::vector<candidate>& all = of.candidates;
    std::vector<plan::placement> found;
    const auto bytes = [&](std::size_t i) { return all[i].tree.kept_bytes() + found[i].bytes; };
    const auto is_done = [&](std::size_t i) {
      const std::size_t bound = all[i].tree.lower_bound();
      return bytes(i) <= bound + bound / 8192 || found[i].bytes <= enough_for(of, all[i].tree);
    };
    const double share = all.size() == 1 ? 1 : 0.25;
    best = 0;
    for (const candidate& c : all) {
      found.push_back(place(of, c.tree, share / static_cast<double>(all.size())));
      if (is_done(found.size() - 1)) break;
    }
    const auto is_worse = [&](std::size_t i) {
      for (std::size_t other = i + 1; other < found.size(); ++other) {
        const auto [least, margin] = limit(all[i], all[other], bytes(other));
        if (bytes(i) > least + least / margin) return true;
      }
      return false;
    };
    while (is_worse(best)) ++best;
    if (share < 1 && !is_done(best)) {
      plan::placement more = place(of, all[best].tree, 1 - share);
      if (more.bytes < found[best].bytes) return more;
    }
    return std::move(found[best]);
  }
  struct byte_limit {
    std::size_t bytes, margin;  // a fraction of the bytes
  };
  /// The bytes that a candidate may need if another one needs `bytes`. Steps are worth some, and short plans more.
  [[nodiscard]] static byte_limit limit(const candidate& one, const candidate& other, std::size_t bytes) {
    const std::size_t least = (std::max)(bytes, one.tree.lower_bound());
    if (other.tree.nodes().size() >= 4 * one.tree.nodes().size()) return {least, 4};
    if (other.division.from == step_finder::source::none) return {least, 32};
    return {bytes, 8192};
  }
  [[nodiscard]] plan::placement place(const chosen_track& of, const step_tree& tree, double share) const {
    std::vector<plan::lifetime> blocks;
    for (const step_tree::node& n : tree.nodes()) {
      if (!n.is_kept) blocks.push_back({of.track->kinds[n.kind], n.live});
    }
    plan::place_options options = place_options_for(of, share);
    options.enough = enough_for(of, tree);
    return plan::place(blocks, options);
  }

  /// Each stream gets its part of the work.
  [[nodiscard]] plan::place_options place_options_for(const chosen_track& of, double share) const {
    plan::place_options options;
    options.effort = share * options_.effort * static_cast<double>(of.track->requests.size()) /
                     static_cast<double>(requests_);
    options.seed = options_.seed;
    options.alignment = options_.alignment;
    options.progress = options_.progress;
    options.progress_state = options_.progress_state;
    return options;
  }

  /// The bytes of places with which the whole plan still fits: what kept places and other streams do not need.
  [[nodiscard]] std::size_t enough_for(const chosen_track& of, const step_tree& tree) const noexcept {
    const std::size_t others =
        made_.numbers.lower_bound - placed_bound_ - of.candidates.front().tree.lower_bound();
    const std::size_t taken = made_.numbers.bytes + tree.kept_bytes() + others;
    return options_.capacity > taken ? options_.capacity - taken : 0;
  }

  [[nodiscard]] std::uint32_t in_alignments(std::uint64_t offset) const noexcept {
    return static_cast<std::uint32_t>(offset / options_.alignment);
  }

  static constexpr std::size_t max_tracks = 255;
  static constexpr std::size_t max_candidates = 2;  // by periods

  const trace::recording& source_;
  const plan::make_options& options_;
  bool is_whole_;
  std::size_t requests_ = 0;       // of all streams
  std::size_t most_requests_ = 0;  // of a stream that is written
  std::vector<chosen_track> chosen_;
  std::size_t placed_bound_ = 0;   // the lower bound of the streams that have places
  std::vector<std::size_t> free_;  // bytes that each bank still has
  plan::made_plan made_;
};

}  // namespace
}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::plan {

made_plan make(const trace::recording& source, const make_options& options) {
  if (!std::has_single_bit(options.alignment) || options.alignment < min_alignment)
    tessera::detail::fatal("plan::make: the alignment must be a power of two, at least 64");
  make_options limits = options;
  for (const std::size_t bytes : options.banks) {
    if (bytes < bank_alignment) tessera::detail::fatal("plan::make: a bank must have at least 2 MiB");
  }
  if (options.banks.size() > tessera::provider::max_banks)
    tessera::detail::fatal("plan::make: more than 64 banks");
  if (!options.banks.empty()) limits.capacity = whole_bytes_of_bank(options.banks[0]);
  const auto fits = [&](const made_plan& made) {
    return options.banks.empty() ? limits.capacity == 0 || made.numbers.bytes <= limits.capacity
                                 : made.fits(options.banks);
  };
  made_plan made = tessera::detail::plan_maker(source, limits, false).run();
  if (fits(made)) return made;
  made_plan whole = tessera::detail::plan_maker(source, limits, true).run();
  return fits(whole) ? whole : made;
}

std::uint64_t fingerprint(const trace::recording& source, std::size_t first_event, std::size_t end_event) {
  tessera::detail::track_reader reader(source, first_event, end_event);
  (void)reader.run();
  return reader.fingerprint();
}

}  // namespace tessera::inline v0_1::plan
