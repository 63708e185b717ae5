// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <tessera/core/types.hpp>
#include <tessera/trace/recording.hpp>

namespace tessera::inline v0_1::detail {

inline constexpr std::uint32_t at_no_event = 0xFFFFFFFF;

/// A request of one stream. Positions count the stream's requests.
struct recorded_request {
  std::uint32_t kind;
  std::uint32_t end = at_no_event;  // the number of requests made before the free
  std::uint32_t late_end = 0;       // likewise, if the streams that use the block are slower than recorded
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
  /// Reads the events from `first_event` up to but without `end_event`.
  track_reader(const trace::recording& source, std::size_t first_event, std::size_t end_event)
      : source_(source), program_(source), first_event_(first_event), end_event_(end_event) {
    for (const std::uint64_t id : source.completed_late) completed_late_.insert(id);
  }

  [[nodiscard]] std::vector<recorded_track> run() {
    std::vector<place_of_request> by_slot(program_.slot_count());
    const auto& events = source_.events;
    const std::size_t end = (std::min)(events.size(), end_event_);
    for (std::size_t i = 0; i < end; ++i) {
      const trace::event& e = events[i];
      if (e.what == trace::event::kind::begin_pool) open_scopes_.push_back(e.id);
      if (e.what == trace::event::kind::end_pool) std::erase(open_scopes_, e.id);
      if (i < first_event_) continue;
      if (e.what == trace::event::kind::allocate && open_scopes_.empty()) {
        by_slot[program_.slot(i)] = add(e);
        by_slot[program_.slot(i)].is_late = completed_late_.contains(e.id);
      } else if (e.what == trace::event::kind::record_stream) {
        by_slot[program_.slot(i)].is_recorded = by_slot[program_.slot(i)].is_late = true;
      } else if (e.what == trace::event::kind::free) {
        free(by_slot[program_.slot(i)]);
      } else if (e.what == trace::event::kind::answer_events) {
        says_when_ = true;
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
    add_late_ends();
    for (recorded_track& t : tracks_) number_kinds(t);
    return std::move(tracks_);
  }
  [[nodiscard]] std::size_t peak_live() const noexcept { return peak_; }
  /// A hash of the requests and frees.
  [[nodiscard]] std::uint64_t fingerprint() const noexcept { return fingerprint_; }

 private:
  struct place_of_request {
    std::uint32_t track = at_no_event;
    std::uint32_t position = 0;
    bool is_recorded = false;  // whether another stream uses the block
    bool is_late = false;      // whether it stayed because of that, or is recorded
  };

  [[nodiscard]] place_of_request add(const trace::event& e) {
    std::uint32_t number = 0;
    while (number < tracks_.size() && tracks_[number].stream != e.stream) ++number;
    if (number == tracks_.size()) {
      tracks_.emplace_back().stream = e.stream;
      if (mark_) tracks_.back().marks.push_back(*mark_);
      bytes_.emplace_back();
      made_at_.emplace_back();
    }
    live_ += e.bytes;
    peak_ = (std::max)(peak_, live_);
    note(number + 1, e.bytes);
    tracks_[number].requests.push_back({});
    bytes_[number].push_back(e.bytes);
    made_at_[number].push_back(requests_++);
    return {number, static_cast<std::uint32_t>(bytes_[number].size() - 1)};
  }
  /// A block that another stream uses stays until that stream's events are complete.
  void free(place_of_request at) {
    if (at.track == at_no_event) return;
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
    if (at.is_late) late_.push_back({at, requests_});
  }
  /// In another run, the streams that use a block may be slower. So its place stays free of others for up to
  /// `max_late` further requests of all streams, as long as this costs little memory. A recording that says when events are
  /// complete is taken at its word.
  void add_late_ends() {
    if (late_.empty() || says_when_) return;
    const std::size_t least = sum_of_peaks();
    for (std::uint32_t more = max_late; more > 0; more /= 2) {
      for (const auto& [at, made] : late_) {
        const std::vector<std::uint32_t>& made_at = made_at_[at.track];
        const auto end = std::lower_bound(made_at.begin(), made_at.end(), made + more);
        tracks_[at.track].requests[at.position].late_end = static_cast<std::uint32_t>(end - made_at.begin());
      }
      if (sum_of_peaks() <= least + least / 64) return;
    }
    for (const late_end& l : late_) tracks_[l.at.track].requests[l.at.position].late_end = 0;
  }
  /// The peak bytes of each stream, together.
  [[nodiscard]] std::size_t sum_of_peaks() const {
    std::size_t sum = 0;
    for (std::size_t t = 0; t < tracks_.size(); ++t) {
      const std::vector<recorded_request>& requests = tracks_[t].requests;
      std::vector<std::size_t> dying(requests.size() + 1);
      std::size_t now = 0, peak = 0;
      for (std::size_t i = 0; i < requests.size(); ++i) {
        peak = (std::max)(peak, now += bytes_[t][i] - dying[i]);
        const std::uint32_t end = requests[i].end;
        if (end < requests.size()) dying[(std::max)(end, requests[i].late_end)] += bytes_[t][i];
      }
      sum += peak;
    }
    return sum;
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
  std::size_t first_event_;
  std::size_t end_event_;
  std::vector<recorded_track> tracks_;
  std::vector<std::vector<std::uint64_t>> bytes_;  // of the requests of each track
  /// The end of a block that other streams use, and the requests of all streams before it.
  struct late_end {
    place_of_request at;
    std::uint32_t made;
  };
  /// A driver queues about a thousand kernels, and a kernel rarely has more than two requests.
  static constexpr std::uint32_t max_late = 2048;

  std::vector<std::vector<std::uint32_t>>
      made_at_;                 // of the requests of each track: those of all streams before
  std::uint32_t requests_ = 0;  // of all streams
  std::vector<late_end> late_;
  std::set<std::uint64_t> completed_late_;
  std::vector<std::uint64_t> open_scopes_;
  std::optional<recorded_mark> mark_;      // the latest, for streams that begin later
  std::vector<place_of_request> pending_;  // freed, but another stream uses the block
  bool answers_ = true;                    // whether events are complete at once
  bool says_when_ = false;                 // whether the recording sets that
  std::size_t live_ = 0;
  std::size_t peak_ = 0;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace tessera::inline v0_1::detail
