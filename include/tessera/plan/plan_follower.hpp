// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include <tessera/plan/memory_plan.hpp>

namespace tessera::inline v0_1::detail {

/// Judges by the last requests whether a program still follows its plan. If not, the plan serves nothing: it
/// steps aside. Requests that the plan serves at once are not seen here. Their counters say enough.
class plan_judge {
 public:
  /// A window is judged at the first unplanned request after so many requests. It must be short: until then,
  /// blocks of a plan that does not fit keep its pages from the device.
  static constexpr std::uint64_t window = 100;

  [[nodiscard]] bool is_aside() const noexcept { return is_aside_; }
  /// Notes a request for which the plan has a place, but does not give it.
  void note_match(std::uint64_t bytes) noexcept {
    ++matched_.requests;
    matched_.bytes += bytes;
  }
  /// Notes an unplanned request of a stream that follows no recorded stream. The plan is not judged by it.
  void note_other_stream(std::uint64_t bytes) noexcept {
    ++others_.requests;
    others_.bytes += bytes;
  }
  /// Lets the plan serve again.
  void come_back() noexcept { is_aside_ = false; }
  /// Judges the window, if it has enough requests. The next requests form another one.
  ///   Returns:  whether there was a verdict
  bool judge(const plan::plan_usage& all) noexcept {
    const plan::plan_usage used = judged(all);
    if (used.requests + used.unplanned_requests - recent_.served - recent_.others >=
        plan::plan_usage::recent_window)
      close_recent(used);
    const std::uint64_t served = used.requests - begin_.requests, bytes = used.bytes - begin_.bytes;
    const std::uint64_t others = used.unplanned_requests - begin_.unplanned_requests;
    if (served + others < window) return false;
    const std::uint64_t all_bytes = bytes + used.unplanned_bytes - begin_.unplanned_bytes;
    const bool fits =
        2 * (served + matched_.requests) >= served + others && (bytes + matched_.bytes) / 9 >= all_bytes / 10;
    is_aside_ = is_aside_ || !fits;
    begin_ = used;
    matched_ = {};
    return true;
  }
  /// Writes the requests of the last long window.
  void report(plan::plan_usage& all) const noexcept {
    const plan::plan_usage used = judged(all);
    const std::uint64_t served = used.requests - recent_.served,
                        others = used.unplanned_requests - recent_.others;
    const bool is_current = recent_.is_first || served + others >= plan::plan_usage::recent_window;
    all.recent_requests = is_current ? served : recent_.last_served;
    all.recent_unplanned_requests = is_current ? others : recent_.last_others;
    all.is_aside = is_aside_;
  }
  /// Forgets the windows, because the counters were set to 0.
  void restart() noexcept {
    begin_ = {};
    matched_ = {};
    others_ = {};
    recent_ = {};
  }

 private:
  struct sum {
    std::uint64_t requests = 0, bytes = 0;
  };
  /// The counters without the requests of streams that follow no recorded one.
  [[nodiscard]] plan::plan_usage judged(plan::plan_usage used) const noexcept {
    used.unplanned_requests -= others_.requests;
    used.unplanned_bytes -= others_.bytes;
    return used;
  }
  void close_recent(const plan::plan_usage& used) noexcept {
    recent_ = {used.requests, used.unplanned_requests, used.requests - recent_.served,
               used.unplanned_requests - recent_.others, false};
  }

  sum matched_, others_;
  /// The window by which is_stale() judges.
  struct long_window {
    std::uint64_t served = 0, others = 0;            // when it began
    std::uint64_t last_served = 0, last_others = 0;  // of the window before
    bool is_first = true;
  };
  long_window recent_;
  plan::plan_usage begin_{};  // the counters when the window began
  bool is_aside_ = false;
};

/// Follows a program through its plan, and knows which places are in use. It calls no device.
///
/// A place may be given out if no live block overlaps it. The entries of a step that the plan expects to be live
/// never overlap the next one, since the plan is checked. Blocks that live longer than planned are strays: each
/// place is compared with them. So the usual case compares nothing.
class plan_follower {
 public:
  static constexpr std::uint32_t none = 0xFFFFFFFF;

  /// A place: an entry's own, or a kept one.
  struct node {
    std::uint64_t bytes;  // of its requests
    std::uint32_t place;
    std::uint32_t next;    // entry: the following one, or the track's first; kept place: the next free one
    std::uint32_t other;   // the alternative, or 0
    std::uint32_t deaths;  // the end of its deaths
    std::uint32_t slot;    // of its place in `slots_`
    std::uint8_t state;
    std::uint8_t track;
    bool may_end = false;  // whether the step may have ended before this entry
  };
  // Bits of `state`. An entry whose state is just `is_backed` may serve at once.
  static constexpr std::uint8_t is_backed = 1;
  static constexpr std::uint8_t is_live = 2;
  static constexpr std::uint8_t is_stray = 4;
  static constexpr std::uint8_t is_first = 8;       // of a step
  static constexpr std::uint8_t is_kept = 16;       // an entry that any kept place of its kind serves
  static constexpr std::uint8_t has_uses = 32;      // other streams use the block
  static constexpr std::uint8_t is_freed = 64;      // by the user, but a stream still uses it
  static constexpr std::uint8_t is_expected = 128;  // during enter(): may be live when the step begins

  /// A stream's position in its track.
  struct track {
    stream_id stream{};
    bool is_assigned = false;
    bool is_default = false;  // serves only stream 0
    std::uint32_t first = 0;  // entry
    std::uint32_t end = 0;    // entry
    std::uint32_t next = 0;   // the entry that is expected
    std::uint32_t live = 0;   // entries that are live
    std::uint32_t kinds = 0;  // its first kind
    std::uint32_t kinds_end = 0;
    std::uint32_t steps = 0;
    std::uint32_t steps_end = 0;
    std::uint32_t missed = 0;             // requests in a row that the plan did not expect
    std::uint64_t recent[4]{};            // the bytes of the last four of them
    std::vector<std::uint32_t> strays{};  // entries in the order of their places
  };

  ///   Requires:  the plan has no fault (plan::find_fault), and its arrays outlive this object
  explicit plan_follower(const plan::memory_plan& plan)
      : plan_(plan), shift_(std::countr_zero(plan.alignment)) {
    make_nodes();
    make_tracks();
    make_slots();
    make_contexts();
    live_.resize(nodes_.size() / 64 + 1);
    nobody_.next = static_cast<std::uint32_t>(nodes_.size());
    nodes_.push_back({0, 0, 0, 0, 0, 0, is_live, 0});
  }
  plan_follower& operator=(plan_follower&&) = delete;

  [[nodiscard]] const plan::memory_plan& plan() const noexcept { return plan_; }
  [[nodiscard]] node& at(std::uint32_t i) noexcept { return nodes_[i]; }
  [[nodiscard]] const node& at(std::uint32_t i) const noexcept { return nodes_[i]; }
  [[nodiscard]] track& track_of(const node& n) noexcept { return tracks_[n.track]; }
  [[nodiscard]] const track& track_of(const node& n) const noexcept { return tracks_[n.track]; }
  [[nodiscard]] std::size_t offset_of(const node& n) const noexcept { return std::size_t{n.place} << shift_; }
  [[nodiscard]] std::size_t bytes_of(const node& n) const noexcept { return plan_.place_bytes(n.bytes); }
  /// The number of places.
  [[nodiscard]] std::size_t size() const noexcept { return nodes_.size(); }
  [[nodiscard]] bool is_entry(std::uint32_t i) const noexcept { return i < plan_.entries.size(); }

  /// Takes the expected entry if its place is known to be free. Does most requests, and changes nothing if not.
  ///   Returns:  the entry, or `none`
  [[nodiscard]] std::uint32_t take_expected(std::size_t bytes, stream_id stream) noexcept {
    track& t = *current_;
    if (t.stream != stream) return none;
    const std::uint32_t i = t.next;
    node& n = nodes_[i];
    if (n.bytes != bytes || n.state != is_backed || !t.strays.empty()) return none;
    for (std::uint32_t d = first_death(i); d < n.deaths; ++d) {
      if ((nodes_[plan_.deaths[d]].state & is_live) != 0) [[unlikely]]
        return none;
    }
    occupy(i, n);
    ++t.live;
    t.next = n.next;
    return i;
  }

  /// Selects the entry for a request that take_expected did not serve, and moves past it.
  ///   Returns:  an entry, or `none` if the plan has no place for it
  [[nodiscard]] std::uint32_t select(std::size_t bytes, stream_id stream) noexcept {
    track* const t = find_track(bytes, stream);
    if (t == nullptr) return none;
    current_ = t;
    std::uint32_t i = find_alternative(t->next, bytes);
    if (i == none && t->live == 0) i = find_alternative(t->first, bytes);
    if (i == none) {
      miss(*t, bytes);
      return none;
    }
    t->missed = 0;
    enter(*t, i);
    t->next = nodes_[i].next;
    return i;
  }
  /// Takes a free kept place for a request. Returns `none` if there is none.
  [[nodiscard]] std::uint32_t take_kept(std::size_t bytes, stream_id stream) noexcept {
    const track& t = *current_;
    if (&t == &nobody_ || t.stream != stream) return none;
    const auto from = kinds_.begin() + t.kinds, to = kinds_.begin() + t.kinds_end;
    const auto found =
        std::lower_bound(from, to, bytes, [](const kind& k, std::size_t b) { return k.bytes < b; });
    if (found == to || found->bytes != bytes || found->free == none) return none;
    const std::uint32_t i = found->free;
    found->free = nodes_[i].next;
    occupy(i, nodes_[i]);
    return i;
  }
  /// Returns a live block that overlaps the place of an entry, or `none`.
  ///   Requires:  select() returned the entry
  [[nodiscard]] std::uint32_t blocker_of(std::uint32_t i) const noexcept {
    const node& n = nodes_[i];
    if ((n.state & is_live) != 0) return i;
    const std::vector<std::uint32_t>& strays = tracks_[n.track].strays;
    const auto above = stray_position(tracks_[n.track], i);
    const std::size_t begin = offset_of(n), end = begin + bytes_of(n);
    if (above != strays.end() && offset_of(nodes_[*above]) < end) return *above;
    if (above == strays.begin()) return none;
    const node& below = nodes_[*(above - 1)];
    return offset_of(below) + bytes_of(below) > begin ? *(above - 1) : none;
  }
  /// Makes an entry that select() returned live.
  ///   Requires:  blocker_of(i) is `none`
  void take(std::uint32_t i) noexcept {
    occupy(i, nodes_[i]);
    ++track_of(nodes_[i]).live;
  }

  /// Compares every live block of an entry's stream with all later places.
  void distrust(std::uint32_t i) noexcept { make_strays(track_of(nodes_[i])); }

  /// Finds the live block at an offset, or `none`.
  [[nodiscard]] std::uint32_t find(std::size_t offset) const noexcept {
    const std::size_t place = offset >> shift_;
    return place << shift_ == offset ? slots_[slot_of(static_cast<std::uint32_t>(place))].holder : none;
  }
  /// Makes the place of a live block free.
  [[gnu::always_inline]] void release(std::uint32_t i) noexcept {
    node& n = nodes_[i];
    slots_[n.slot].holder = none;
    live_[i / 64] &= ~(std::uint64_t{1} << (i % 64));
    if (n.state != (is_backed | is_live) || !is_entry(i)) return release_otherwise(i);
    n.state = is_backed;
    --tracks_[n.track].live;
  }

  /// Starts a step of one stream, or of all: the step with this key, or any.
  void begin_step(std::uint64_t key, const stream_id* stream) noexcept {
    for (track& t : tracks_) {
      // Without marks in the recording, the plan knows the steps better than the program says.
      if ((!t.is_assigned && !t.is_default) || t.steps == t.steps_end) continue;
      if (stream != nullptr && t.stream != *stream) continue;
      t.next = t.first;
      t.missed = 0;
      for (std::uint32_t s = t.steps; s < t.steps_end; ++s) {
        if (plan_.steps[s].key != key) continue;
        t.next = plan_.steps[s].entry;
        break;
      }
      // The blocks that are live inside a step depend on the way there, which the program did not go.
      if ((nodes_[t.next].state & is_first) == 0) make_strays(t);
    }
  }
  /// Expects no entry until the next select().
  void pause() noexcept { current_ = &nobody_; }
  [[nodiscard]] const std::vector<track>& tracks() const noexcept { return tracks_; }
  /// Whether a stream follows a recorded one.
  [[nodiscard]] bool follows(stream_id stream) const noexcept {
    for (const track& t : tracks_) {
      if (t.is_assigned && t.stream == stream) return true;
    }
    return false;
  }

  /// The live blocks: a bit for each number.
  [[nodiscard]] const std::vector<std::uint64_t>& live() const noexcept { return live_; }
  /// Calls f(number, node) for each live block.
  ///   Cost:  linear in the places, 64 at a time
  template <typename F>
  void for_each_live(F f) const noexcept {
    for_each_in(live_, f);
  }
  /// Calls f(number, node) for each of some blocks, as live() has them.
  template <typename F>
  void for_each_in(const std::vector<std::uint64_t>& blocks, F f) const noexcept {
    for (std::size_t word = 0; word < blocks.size(); ++word) {
      for (std::uint64_t bits = blocks[word]; bits != 0; bits &= bits - 1) {
        const auto i =
            static_cast<std::uint32_t>(64 * word + static_cast<std::size_t>(std::countr_zero(bits)));
        f(i, nodes_[i]);
      }
    }
  }
  /// Finds the next live block in the order of places, and moves `position` past it. The first position is 0.
  ///   Returns:  its number, or `none` after the last
  [[nodiscard]] std::uint32_t next_live(std::size_t& position) const noexcept {
    while (position < places_.size()) {
      const std::uint32_t holder = slots_[slot_of(places_[position++])].holder;
      if (holder != none) return holder;
    }
    return none;
  }
  /// Forgets which places have memory.
  void forget_backing() noexcept {
    for (node& n : nodes_) n.state &= static_cast<std::uint8_t>(~is_backed);
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    std::size_t bytes = nodes_.capacity() * sizeof(node) + slots_.capacity() * sizeof(slot) +
                        contexts_.capacity() * sizeof(context) + kinds_.capacity() * sizeof(kind) +
                        places_.capacity() * sizeof(std::uint32_t) +
                        live_.capacity() * sizeof(std::uint64_t) + tracks_.capacity() * sizeof(track);
    for (const track& t : tracks_) bytes += t.strays.capacity() * sizeof(std::uint32_t);
    return bytes;
  }
  /// Returns the broken rule, as text, or null.
  [[nodiscard]] const char* audit() const noexcept {
    std::size_t live = 0;
    std::size_t expected = 0;
    bool is_found = true;
    for_each_live([&](std::uint32_t i, const node& n) {
      live += is_entry(i);
      is_found = is_found && (n.state & is_live) != 0 && find(offset_of(n)) == i;
    });
    for (const track& t : tracks_) {
      expected += t.live;
      for (const std::uint32_t s : t.strays) is_found = is_found && (nodes_[s].state & is_stray) != 0;
    }
    if (!is_found) return "a live block of a plan is found at its place";
    return live == expected ? nullptr : "a track counts its live blocks";
  }

 private:
  struct slot {
    std::uint32_t place = none;
    std::uint32_t holder = none;
  };
  struct kind {
    std::uint64_t bytes;
    std::uint32_t free;  // a kept place
  };
  /// Four requests in a row, and the entry of the last.
  struct context {
    std::uint64_t hash;
    std::uint32_t entry;
    bool operator<(const context& other) const noexcept {
      return hash != other.hash ? hash < other.hash : entry < other.entry;
    }
  };

  [[nodiscard]] std::uint32_t first_death(std::uint32_t i) const noexcept {
    return i == 0 ? 0 : nodes_[i - 1].deaths;
  }
  /// The slot of a place, or an empty slot if it has none.
  [[nodiscard]] std::size_t slot_of(std::uint32_t place) const noexcept {
    auto at = static_cast<std::size_t>((place * std::uint64_t{0x9E3779B97F4A7C15}) >> slot_shift_);
    while (slots_[at].place != place && slots_[at].place != none) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  /// Releases a kept place, a stray, or a block that other streams used.
  [[gnu::noinline]] void release_otherwise(std::uint32_t i) noexcept {
    node& n = nodes_[i];
    if (!is_entry(i)) {
      n.state &= is_backed;
      kind& k = kinds_[n.other];
      n.next = std::exchange(k.free, i);
      return;
    }
    track& t = tracks_[n.track];
    --t.live;
    if ((n.state & is_stray) != 0) t.strays.erase(stray_position(t, i));
    n.state &= is_backed | is_first | is_kept;
  }
  void occupy(std::uint32_t i, node& n) noexcept {
    n.state |= is_live;
    slots_[n.slot].holder = i;
    live_[i / 64] |= std::uint64_t{1} << (i % 64);
  }

  [[nodiscard]] track* find_track(std::size_t bytes, stream_id stream) noexcept {
    for (track& t : tracks_) {
      if (t.is_assigned && t.stream == stream) return &t;
    }
    for (track& t : tracks_) {
      if (t.is_assigned || t.is_default != (stream == stream_id{})) continue;
      if (!t.is_default && find_alternative(t.first, bytes) == none) continue;
      t.is_assigned = true;
      t.stream = stream;
      return &t;
    }
    return nullptr;
  }
  [[nodiscard]] std::uint32_t find_alternative(std::uint32_t i, std::size_t bytes) const noexcept {
    while (nodes_[i].bytes != bytes) {
      const node& n = nodes_[i];
      i = n.other != 0 ? n.other : n.may_end ? tracks_[n.track].first : none;
      if (i == none) return none;
    }
    return i;
  }

  /// Compares the live blocks with those that the plan expects, before an entry is used.
  void enter(track& t, std::uint32_t i) noexcept {
    if ((nodes_[i].state & is_first) != 0) {
      if (t.live == t.strays.size()) return;
      for (std::uint32_t d = first_death(i); d < nodes_[i].deaths; ++d)
        nodes_[plan_.deaths[d]].state |= is_expected;
      make_strays(t);
      for (std::uint32_t d = first_death(i); d < nodes_[i].deaths; ++d)
        nodes_[plan_.deaths[d]].state &= static_cast<std::uint8_t>(~is_expected);
      return;
    }
    for (std::uint32_t d = first_death(i); d < nodes_[i].deaths; ++d) make_stray(t, plan_.deaths[d]);
  }
  void make_strays(track& t) noexcept {
    for_each_live([&](std::uint32_t i, const node& n) {
      if (is_entry(i) && &tracks_[n.track] == &t) make_stray(t, i);
    });
  }
  void make_stray(track& t, std::uint32_t i) noexcept {
    node& n = nodes_[i];
    if ((n.state & (is_live | is_stray | is_expected)) != is_live) return;
    n.state |= is_stray;
    t.strays.insert(stray_position(t, i), i);
  }
  /// The first stray that is not below the place of an entry.
  [[nodiscard]] std::vector<std::uint32_t>::const_iterator stray_position(const track& t,
                                                                          std::uint32_t i) const noexcept {
    return std::lower_bound(t.strays.begin(), t.strays.end(), nodes_[i].place,
                            [this](std::uint32_t s, std::uint32_t place) { return nodes_[s].place < place; });
  }

  /// Notes a request without an entry. If it and the three before it name a place in the plan, goes there.
  void miss(track& t, std::size_t bytes) noexcept {
    t.recent[t.missed++ % 4] = bytes;
    if (t.missed < 4) return;
    std::uint64_t hash = 0;
    for (std::uint32_t k = 0; k < 4; ++k) hash = add_to_hash(hash, t.recent[(t.missed + k) % 4]);
    const auto from = [&](std::uint32_t entry) {
      return std::lower_bound(contexts_.begin(), contexts_.end(), context{hash, entry});
    };
    const auto is_of_track = [&](auto found) {
      return found != contexts_.end() && found->hash == hash && found->entry < t.end;
    };
    auto found = from(t.next);
    if (!is_of_track(found)) found = from(t.first);
    if (!is_of_track(found)) return;
    t.next = nodes_[found->entry].next;
    t.missed = 0;
    make_strays(t);
  }
  [[nodiscard]] static std::uint64_t add_to_hash(std::uint64_t hash, std::uint64_t bytes) noexcept {
    return (std::rotl(hash, 23) ^ bytes) * 0x9E3779B97F4A7C15u;
  }

  [[nodiscard]] static std::uint32_t other_of(const plan::memory_plan::entry& e) noexcept {
    return e.other & ~plan::memory_plan::may_end;
  }
  void make_nodes() {
    std::size_t kept = 0;
    for (const plan::memory_plan::kind& k : plan_.kinds) kept += k.kept;
    nodes_.reserve(plan_.entries.size() + kept + 1);
    std::vector<bool> is_alternative(plan_.entries.size() + 1);
    is_alternative[plan_.entries.size()] = true;
    for (const plan::memory_plan::track& t : plan_.tracks) is_alternative[t.entries_end] = true;
    for (const plan::memory_plan::entry& e : plan_.entries) {
      if (other_of(e) != 0) is_alternative[other_of(e)] = true;
    }
    std::uint32_t first = 0;
    std::uint8_t number = 0;
    for (const plan::memory_plan::track& t : plan_.tracks) {
      for (std::uint32_t i = first; i < t.entries_end; ++i) {
        const plan::memory_plan::entry& e = plan_.entries[i];
        const bool keeps = e.place == plan::memory_plan::keeps;
        nodes_.push_back({plan_.kinds[e.kind].bytes, keeps ? 0 : e.place,
                          is_alternative[i + 1] ? first : i + 1, other_of(e), e.deaths, 0,
                          keeps ? is_kept : std::uint8_t{0}, number, other_of(e) != e.other});
      }
      for (std::uint32_t i = first;; i = nodes_[i].other) {
        nodes_[i].state |= is_first;
        nodes_[i].may_end = false;  // no step ends before it began
        if (nodes_[i].other == 0) break;
      }
      first = t.entries_end;
      ++number;
    }
    std::uint32_t k = 0;
    number = 0;
    for (const plan::memory_plan::track& t : plan_.tracks) {
      std::uint32_t list = k;  // the first kind of a size has the free places of all
      const std::uint32_t first_kind = k;
      for (; k < t.kinds_end; ++k) {
        kinds_.push_back({plan_.kinds[k].bytes, none});
        const bool is_same = k > first_kind && kinds_[k - 1].bytes == kinds_[k].bytes;
        if (!is_same) list = k;
        const auto step = static_cast<std::uint32_t>(plan_.place_bytes(plan_.kinds[k].bytes) >> shift_);
        for (std::uint32_t i = plan_.kinds[k].kept; i-- > 0;) {
          const auto next = std::exchange(kinds_[list].free, static_cast<std::uint32_t>(nodes_.size()));
          nodes_.push_back(
              {plan_.kinds[k].bytes, plan_.kinds[k].kept_place + i * step, next, list, 0, 0, 0, number});
        }
      }
      ++number;
    }
  }
  void make_tracks() {
    track now;
    for (const plan::memory_plan::track& t : plan_.tracks) {
      now.is_default = t.stream == 0;
      now.first = now.next = now.end;
      now.end = t.entries_end;
      now.kinds = now.kinds_end;
      now.kinds_end = t.kinds_end;
      now.steps = now.steps_end;
      now.steps_end = t.steps_end;
      tracks_.push_back(now);
      tracks_.back().strays.reserve(now.end - now.first);
    }
  }
  void make_slots() {
    for (const node& n : nodes_) {
      if ((n.state & is_kept) == 0) places_.push_back(n.place);
    }
    std::sort(places_.begin(), places_.end());
    places_.erase(std::unique(places_.begin(), places_.end()), places_.end());
    places_.shrink_to_fit();
    slots_.resize(std::bit_ceil(2 * places_.size() + 2));
    slot_shift_ = 64 - std::countr_zero(slots_.size());
    for (const std::uint32_t place : places_) slots_[slot_of(place)].place = place;
    for (node& n : nodes_) {
      if ((n.state & is_kept) == 0) n.slot = static_cast<std::uint32_t>(slot_of(n.place));
    }
  }
  void make_contexts() {
    const auto entries = static_cast<std::uint32_t>(plan_.entries.size());
    contexts_.reserve(entries);
    std::vector<std::uint32_t> parent(entries, none);
    for (std::uint32_t i = 0; i < entries; ++i) {
      if (nodes_[i].other != 0) parent[nodes_[i].other] = parent[i];
      if (nodes_[i].next == i + 1) parent[i + 1] = i;
    }
    for (std::uint32_t i = 0; i < entries; ++i) {
      std::uint64_t bytes[4];
      std::uint32_t count = 0;
      for (std::uint32_t p = i; count < 4 && p != none; p = parent[p]) bytes[count++] = nodes_[p].bytes;
      if (count < 4) continue;
      std::uint64_t hash = 0;
      while (count-- > 0) hash = add_to_hash(hash, bytes[count]);
      contexts_.push_back({hash, i});
    }
    std::sort(contexts_.begin(), contexts_.end());
  }

  plan::memory_plan plan_;
  int shift_;
  int slot_shift_ = 0;
  track* current_ = &nobody_;
  std::vector<node> nodes_;            // the entries, the kept places, and that of `nobody_`
  std::vector<std::uint32_t> places_;  // each once, in ascending order
  std::vector<slot> slots_;
  std::vector<std::uint64_t> live_;  // a bit for each node
  std::vector<kind> kinds_;
  std::vector<context> contexts_;
  std::vector<track> tracks_;
  track nobody_{};
};

}  // namespace tessera::inline v0_1::detail
