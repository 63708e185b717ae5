// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
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
      : source_(source), program_(source), first_event_(first_event), end_event_(end_event) {}

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
    std::uint32_t track = at_no_event;
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
  std::vector<std::uint64_t> open_scopes_;
  std::optional<recorded_mark> mark_;      // the latest, for streams that begin later
  std::vector<place_of_request> pending_;  // freed, but another stream uses the block
  bool answers_ = true;                    // whether events are complete at once
  std::size_t live_ = 0;
  std::size_t peak_ = 0;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace tessera::inline v0_1::detail
