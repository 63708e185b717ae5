// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include <tessera/core/stream.hpp>
#include <tessera/observe/call_stacks.hpp>

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

/// What is wrong with an input, and where.
struct input_error {
  std::string where;  ///< "FILE:LINE" or "FILE: byte N"
  std::string rule;   ///< the broken rule, naming the offending value

  [[nodiscard]] std::string text() const { return where + ": " + rule; }
};

/// What was read, or why it could not be.
template <typename T>
using read_result = std::variant<T, input_error>;

}  // namespace tessera::trace
