// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <mutex>

#include <tessera/provider/stream_order.hpp>

namespace tessera::inline v0_1::detail {

/// Positions in the streams of a device that does not number their work. Each position is an event, which marks it. Thread-safe.
///
/// | function of Device, noexcept | effect                                                                            |
/// |------------------------------|-----------------------------------------------------------------------------------|
/// | d.mark(stream, event)        | records an event after the work submitted to a stream; false if that fails        |
/// | d.is_complete(event)         | whether the work before an event is complete                                      |
/// | d.destroy(event)             | ends an event                                                                     |
/// | d.await(stream, event)       | makes further work of a stream wait for an event; false if that fails             |
/// | d.exists(stream)             | false if a stream has ended, and no work of it runs                               |
///
/// Positions of all streams come from one counter. They stay unique if a new stream gets the handle of an old one.
///   Cost:  an event for each position that is not complete, at most 64 for each stream; about 1 KiB for each handle that a
///          stream has had, until the end
///   Requires:  the device outlives it
template <typename Device, typename Event>
class marked_positions {
 public:
  explicit marked_positions(Device& of) noexcept : device_(of) {}
  marked_positions& operator=(marked_positions&&) = delete;
  ~marked_positions() {
    for (auto* s = streams_.from(0); s != nullptr; s = streams_.after(*s)) pass(s->value, unlimited);
  }

  /// Returns the position after the work submitted to a stream. If no event can be recorded, it is complete with a later one.
  [[nodiscard]] std::uint64_t position(stream_id stream) noexcept {
    const std::lock_guard lock(mutex_);
    return add(stream);
  }
  /// Returns the next position, and marks it with no event.
  [[nodiscard]] std::uint64_t take_next() noexcept {
    const std::lock_guard lock(mutex_);
    return ++latest_;
  }
  /// The latest position of all streams.
  [[nodiscard]] std::uint64_t latest() const noexcept {
    const std::lock_guard lock(mutex_);
    return latest_;
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t at) noexcept {
    const std::lock_guard lock(mutex_);
    return settle(stream, at);
  }
  /// Whether a position is known to be complete without asking the device.
  [[nodiscard]] bool was_done(stream_id stream, std::uint64_t at) const noexcept {
    const std::lock_guard lock(mutex_);
    const state* const known = streams_.find(stream.handle);
    return known != nullptr && known->completed >= at;
  }
  /// Notes that the work of a stream up to a position is complete.
  void note_done(stream_id stream, std::uint64_t at) noexcept {
    const std::lock_guard lock(mutex_);
    if (state* const known = find(stream)) pass(*known, at);
  }
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id of, std::uint64_t at) const noexcept {
    const std::lock_guard lock(mutex_);
    return order_.is_ordered_after(stream, of, at);
  }
  [[nodiscard]] bool make_wait(stream_id stream, stream_id of, std::uint64_t at) noexcept {
    if (stream == of) return true;
    const std::lock_guard lock(mutex_);
    if (!order_.reserve(stream, of)) return false;
    if (settle(of, at)) {
      if (!device_.exists(stream)) return false;
    } else {
      const marker* const until = marker_from(of, at);
      if (until == nullptr || !device_.await(stream, until->at)) return false;
    }
    return order_.add(stream, add(stream), of, at);
  }

 private:
  struct marker {
    std::uint64_t position = 0;
    Event at{};
  };
  struct state {
    std::uint64_t completed = 0;
    std::array<marker, 64> pending{};
    std::size_t count = 0;
  };

  /// What is known of a stream; null if host memory ran out.
  [[nodiscard]] state* find(stream_id stream) noexcept {
    state* const known = streams_.find(stream.handle);
    if (known != nullptr || !streams_.insert_default(stream.handle)) return known;
    return streams_.find(stream.handle);
  }
  /// The first event at or behind a position; null if there is none.
  [[nodiscard]] const marker* marker_from(stream_id stream, std::uint64_t at) const noexcept {
    const state* const known = streams_.find(stream.handle);
    for (std::size_t i = 0; known != nullptr && i < known->count; ++i)
      if (known->pending[i].position >= at) return &known->pending[i];
    return nullptr;
  }
  /// Destroys each event of which is_kept(index) is false.
  template <typename F>
  void keep(state& of, F is_kept) noexcept {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < of.count; ++i) {
      if (is_kept(i))
        of.pending[kept++] = of.pending[i];
      else
        device_.destroy(of.pending[i].at);
    }
    of.count = kept;
  }
  /// Destroys the events up to a position, which is complete.
  void pass(state& of, std::uint64_t done) noexcept {
    keep(of, [&](std::size_t i) { return of.pending[i].position > done; });
    of.completed = larger(of.completed, done);
  }
  void poll(state& of) noexcept {
    std::size_t done = 0;
    while (done < of.count && device_.is_complete(of.pending[done].at)) ++done;
    if (done != 0) pass(of, of.pending[done - 1].position);
  }
  std::uint64_t add(stream_id stream) noexcept {
    state* const of = find(stream);
    marker added{++latest_};
    if (of == nullptr) return added.position;
    poll(*of);
    // The next event, which is later, then stands for each one that goes.
    if (of->count == of->pending.size()) keep(*of, [](std::size_t i) { return i % 2 != 0; });
    if (device_.mark(stream, added.at)) of->pending[of->count++] = added;
    return added.position;
  }
  /// Whether a position is complete. If no event tells, a stream that exists gets a later one.
  [[nodiscard]] bool settle(stream_id stream, std::uint64_t at) noexcept {
    state* const of = find(stream);
    if (of == nullptr) return at == 0;
    poll(*of);
    if (of->completed >= at) return true;
    if (marker_from(stream, at) != nullptr) return false;
    if (device_.exists(stream)) {
      (void)add(stream);
      return false;
    }
    pass(*of, latest_);
    return true;
  }

  Device& device_;
  mutable std::mutex mutex_;
  ordered_map<state> streams_;  // by handle
  provider::stream_order order_;
  std::uint64_t latest_ = 0;
};

}  // namespace tessera::inline v0_1::detail
