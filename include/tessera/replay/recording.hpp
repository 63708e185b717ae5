// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <tessera/core/stream.hpp>
#include <tessera/observe/snapshot.hpp>

namespace tessera::trace {

/// One line of a recorded program.
struct event {
  enum class kind : unsigned char {
    allocate,       ///< `id` asks for `bytes` on `stream`
    free,           ///< `id` is given back
    record_stream,  ///< `stream` uses `id`
    answer_events,  ///< from here on event queries answer ready where `bytes` is 1, not ready where it is 0
    empty_cache
  };
  kind what;
  std::uint64_t id = 0;
  std::size_t bytes = 0;
  stream_id stream{};
};

/// Where a program asked for memory, and what it said about it; 0 if unknown.
struct origin {
  std::uint32_t stack = 0;  ///< of calls, in a recording's `stacks`
  std::uint32_t label = 0;  ///< a text there
};

/// A recorded program, checked: every free and record names an allocation that is live.
struct recording {
  std::string name;
  std::vector<event> events;  ///< requests of 0 bytes, and what refers to them, are left out
  std::size_t capacity = 0;   ///< bytes of the device that it was recorded on; 0 where it does not say
  call_stacks stacks{};
  std::vector<origin> origins{};  ///< of allocations, by id; empty where none has one

  [[nodiscard]] origin origin_of(std::uint64_t id) const noexcept {
    return id < origins.size() ? origins[static_cast<std::size_t>(id)] : origin{};
  }
};

/// Adds a request that was refused where a program was recorded: it is asked for here too, and given back at once, since
/// nobody there had it.
inline void add_refused(recording& to, std::uint64_t id, std::size_t bytes, stream_id stream) {
  to.events.push_back({event::kind::allocate, id, bytes, stream});
  to.events.push_back({event::kind::free, id, bytes, stream});
}

/// Bytes that a recording may have live at once, so that no sum of a few such numbers overflows.
inline constexpr std::size_t most_live = std::size_t{1} << 62;

/// The rule that a request above max_request breaks, with its size first.
[[nodiscard]] inline std::string above_max_request(std::uint64_t bytes) {
  return std::to_string(bytes) + " bytes; less than 2^60 are allowed";
}

/// A recording made ready for replay: allocations are numbered densely, so that a replay looks nothing up.
class program {
 public:
  explicit program(const recording& source) : source_(&source) {
    std::map<std::uint64_t, std::uint32_t> slots;  // not hashed: ids could be chosen to collide
    slot_.reserve(source.events.size());
    std::size_t live = 0;
    std::vector<std::size_t> bytes;
    for (const event& e : source.events) {
      std::uint32_t slot = 0;
      if (e.what == event::kind::allocate) {
        slot = static_cast<std::uint32_t>(bytes.size());
        slots.emplace_hint(slots.end(), e.id, slot);
        bytes.push_back(e.bytes);
        live += e.bytes;
        if (live > peak_live_) peak_live_ = live;
      } else if (e.what == event::kind::free || e.what == event::kind::record_stream) {
        slot = slots.at(e.id);
        if (e.what == event::kind::free) live -= bytes[slot];
      }
      slot_.push_back(slot);
    }
    slots_ = bytes.size();
  }

  [[nodiscard]] const std::string& name() const noexcept { return source_->name; }
  [[nodiscard]] const recording& source() const noexcept { return *source_; }
  [[nodiscard]] const std::vector<event>& events() const noexcept { return source_->events; }
  /// The number of the allocation that event `i` makes, frees or records.
  [[nodiscard]] std::size_t slot(std::size_t i) const noexcept { return slot_[i]; }
  [[nodiscard]] std::size_t slots() const noexcept { return slots_; }
  /// The most bytes, as requested, that live at once: no allocator can reserve less.
  [[nodiscard]] std::size_t peak_live() const noexcept { return peak_live_; }

 private:
  const recording* source_;
  std::vector<std::uint32_t> slot_;
  std::size_t slots_ = 0;
  std::size_t peak_live_ = 0;
};

/// Runs a program through an allocator over a simulated device. `before(i)` is called ahead of each event, `after(i, p)`
/// behind it with the address concerned, null where there is none; frees of failed allocations are passed over.
///
///     using namespace tessera::trace;
///     const recording made{"one block", {{event::kind::allocate, 0, 5_MiB}, {event::kind::free, 0}}};
///     const program source(made);
///     const std::size_t failures = replay(source, pool);
///     std::printf("%zu failed, %zu bytes reserved for %zu\n", failures, pool.now().reserved, source.peak_live());
///
///   Returns:  how many allocations failed
template <typename Allocator, typename Before, typename After>
std::size_t replay(const program& source, Allocator& pool, Before before, After after) {
  // One more than there are, so that events without an allocation have a slot.
  std::vector<void*> addresses(source.slots() + 1);
  const std::vector<event>& events = source.events();
  std::size_t failures = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const event& e = events[i];
    void*& p = addresses[source.slot(i)];
    before(i);
    if (e.what == event::kind::allocate) {  // no switch: nearly all are these two, and a jump table is slower
      p = pool.try_allocate(e.bytes, e.stream);
      failures += p == nullptr;
      after(i, p);
    } else if (e.what == event::kind::free) {
      pool.deallocate(p);
      after(i, std::exchange(p, nullptr));
    } else if (e.what == event::kind::record_stream) {
      if (p != nullptr) (void)pool.record_stream(p, e.stream);
      after(i, p);
    } else {
      if (e.what == event::kind::answer_events) pool.device().hold_events(e.bytes == 0);
      if (e.what == event::kind::empty_cache) pool.trim();
      after(i, nullptr);
    }
  }
  return failures;
}
template <typename Allocator>
std::size_t replay(const program& source, Allocator& pool) {
  return replay(source, pool, [](std::size_t) {}, [](std::size_t, void*) {});
}

}  // namespace tessera::trace
