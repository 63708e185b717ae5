// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <tessera/core/fatal.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/debug/provider_books.hpp>
#include <tessera/provider/forwarding.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// An event of a device, and what was so when it was recorded.
template <typename Device>
struct checked_event {};
template <typename Device>
  requires requires { typename Device::event; }
struct checked_event<Device> {
  typename Device::event mark{};
  stream_id stream{};
  std::uint64_t position = 0;          ///< of the stream, where that is known
  std::uint64_t begun = 0, ended = 0;  ///< the ticks between which it was recorded; 0 where it never was
  bool was_ready = false;
};

/// What checked_provider finds out about events and about the order of streams.
template <device_provider Device>
class checked_events : public forwarding<Device> {
 public:
  using event = checked_event<Device>;

  ///   Requires:  the provider and the books outlive it
  checked_events(Device& to, provider_books& books) noexcept : forwarding<Device>(to), books_(&books) {}

  bool record(stream_id stream, event& made) noexcept
    requires event_provider<Device>
  {
    event recorded{.stream = stream, .position = position_of(stream), .begun = books().tick()};
    if (!this->to().record(stream, recorded.mark)) return false;
    recorded.ended = books().tick();
    made = recorded;
    return true;
  }
  [[nodiscard]] bool query(event& made) noexcept
    requires event_provider<Device>
  {
    const std::uint64_t done = books().done_before(made.stream);
    const bool ready = this->to().query(made.mark);
    if (ready) {
      is_ready(made,
               "checked_provider: query says of an event that it is ready before the work before it is done");
    } else if (tessera::may_see_late<Device>) {
      return false;
    } else if (made.was_ready) {
      fatal("checked_provider: query says of an event that was ready that it is not");
    } else if (made.ended != 0 && made.ended < done) {
      fatal("checked_provider: query says of an event that it is not ready where a later one was");
    }
    return ready;
  }
  bool wait(event& made) noexcept
    requires event_provider<Device>
  {
    if (!this->to().wait(made.mark)) return false;
    is_ready(made, "checked_provider: wait returns before the work before an event is done");
    return true;
  }
  void discard(event& made) noexcept
    requires event_provider<Device>
  {
    this->to().discard(made.mark);
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t at) noexcept
    requires ordering_provider<Device>
  {
    const bool done = this->to().is_done(stream, at);
    if (!done && at == 0) fatal("checked_provider: is_done says that the position 0 is not done");
    return done;
  }
  [[nodiscard]] bool is_behind(stream_id stream, stream_id of, std::uint64_t at) noexcept
    requires ordering_provider<Device>
  {
    const bool behind = this->to().is_behind(stream, of, at);
    if (!behind && (at == 0 || stream == of))
      fatal("checked_provider: is_behind says that a stream is not behind its own work, or none");
    return behind;
  }
  bool let_wait(stream_id stream, stream_id of, std::uint64_t at) noexcept
    requires ordering_provider<Device>
  {
    const bool waits = this->to().let_wait(stream, of, at);
    if (waits && !this->to().is_behind(stream, of, at) && !this->to().is_done(of, at))
      fatal("checked_provider: let_wait says that a stream waits, which is not behind");
    return waits;
  }

  bool synchronize(stream_id stream) noexcept
    requires requires(Device& d) { d.synchronize(stream); }
  {
    const std::uint64_t position = position_of(stream), begun = books().tick();
    if (!this->to().synchronize(stream)) return false;
    is_past(stream, position, "checked_provider: synchronize returns before the work of a stream is done");
    books().is_done_before(stream, begun);
    return true;
  }

 protected:
  [[nodiscard]] provider_books& books() const noexcept { return *books_; }

 private:
  static constexpr bool order_tells = ordering_provider<Device> && !tessera::may_see_late<Device>;

  [[nodiscard]] std::uint64_t position_of(stream_id stream) noexcept {
    if constexpr (order_tells) return this->to().position(stream);
    return 0;
  }
  /// Where a stream goes by that name which has not come to the position, the one that had it is gone.
  void is_past(stream_id stream, std::uint64_t position, const char* else_broken) noexcept {
    if constexpr (order_tells) {
      if (!this->to().is_done(stream, position) && this->to().position(stream) >= position)
        fatal(else_broken);
    }
  }
  void is_ready(event& made, const char* else_broken) noexcept {
    is_past(made.stream, made.position, else_broken);
    books().is_done_before(made.stream, made.begun);
    made.was_ready = true;
  }

  provider_books* books_;
};

}  // namespace tessera
