// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/replay/event.hpp>
#include <tessera/replay/fields.hpp>
#include <tessera/replay/output.hpp>

namespace tessera::trace {

inline constexpr std::string_view csv_header = "op,id,bytes,stream,t_us";

/// Checks that allocations are made, used and freed in a possible order.
///   Cost:  constant for ids below `dense` and logarithmic from there on, so no choice of ids makes it slow or large
class lifetime_checker {
 public:
  /// `dense` is about the number of allocations expected: programs mostly number theirs from 0.
  explicit lifetime_checker(std::size_t dense) : most_dense_(dense) {}

  /// The rule that this event breaks, or nothing. Sets `keep` to false for what concerns a request of 0 bytes.
  [[nodiscard]] std::optional<std::string> check(const event& e, bool& keep) {
    const bool allocating = e.what == event::kind::allocate;
    const bool freeing = e.what == event::kind::free;
    if (!allocating && !freeing && e.what != event::kind::record_stream) return {};
    if (allocating && e.bytes > max_request) return "a request of " + above_max_request(e.bytes);
    const std::string_view verb = allocating ? " is allocated" : freeing ? " is freed" : " is recorded";
    const auto broken = [&](std::string_view rule) {
      return "id " + std::to_string(e.id).append(verb).append(rule);
    };

    allocation& its = of(e.id);
    if (allocating) {
      if (its.now != state::unknown) return broken(" twice");
      if (e.bytes > most_live - live_) return broken(" where more than 2^62 bytes would live at once");
      its = {e.bytes, state::live};
      live_ += e.bytes;
    }
    if (its.now == state::unknown) return broken(" but was never allocated");
    if (its.now == state::freed) return broken(freeing ? " twice" : " after it was freed");
    if (e.bytes != 0 && e.bytes != its.bytes)
      return broken(" with " + std::to_string(e.bytes) + " bytes but was allocated with " +
                    std::to_string(its.bytes));
    if (freeing) {
      its.now = state::freed;
      live_ -= its.bytes;
    }
    keep = its.bytes != 0;
    return {};
  }

 private:
  enum class state : unsigned char { unknown, live, freed };
  struct allocation {
    std::size_t bytes = 0;
    state now = state::unknown;
  };

  [[nodiscard]] allocation& of(std::uint64_t id) {
    if (id >= most_dense_) return sparse_[id];
    if (id >= dense_.size()) dense_.resize(static_cast<std::size_t>(id) + 1);
    return dense_[static_cast<std::size_t>(id)];
  }

  std::size_t live_ = 0;
  std::size_t most_dense_;
  std::vector<allocation> dense_;
  std::map<std::uint64_t, allocation> sparse_;  // not hashed: ids could be chosen to collide
};

/// The event that a line of our CSV stands for, or the rule that the line breaks.
[[nodiscard]] inline std::optional<std::string> read_event(const field_reader& line, event& e) {
  if (line.count() != 5) return "a line has 5 fields, this one " + std::to_string(line.count());
  const std::string_view op = line[0];
  switch (op.size() == 1 ? op[0] : '\0') {
    case 'a': e.what = event::kind::allocate; break;
    case 'f': e.what = event::kind::free; break;
    case 'r': e.what = event::kind::record_stream; break;
    case 'e': e.what = event::kind::answer_events; break;
    case 'c': e.what = event::kind::empty_cache; break;
    default: return "no such op: " + shown(op) + "; ops are a, f, r, e, c";
  }
  std::uint64_t number[4]{};
  for (std::size_t i = 0; i < 4; ++i) {
    if (!line.as_integer(i + 1, number[i])) return shown(line[i + 1]) + " is not a whole number below 2^64";
  }
  e.id = number[0];
  e.bytes = number[1];
  e.stream = stream_id{number[2]};
  const bool answers = e.what == event::kind::answer_events;
  if (answers || e.what == event::kind::empty_cache) {
    const std::string verb = std::string(op) + " takes 0";
    if (e.bytes > (answers ? 1u : 0u))
      return verb + (answers ? " or 1" : "") + " as bytes, not " + std::to_string(e.bytes);
    if (e.id != 0) return verb + " as id, not " + std::to_string(e.id);
    if (e.stream.handle != 0) return verb + " as stream, not " + std::to_string(e.stream.handle);
  }
  return {};
}

/// Reads a program recorded as `op,id,bytes,stream,t_us`, one event a line, blank lines at the end aside.
///
/// a allocates; f frees; r lets `stream` use the allocation; e sets what event queries answer from here on, in the
/// bytes column (0 not ready, 1 ready), and c empties the cache, both with 0 elsewhere. f and r may repeat the size or say 0.
///
///     using namespace tessera::trace;
///     const auto read = read_csv("op,id,bytes,stream,t_us\na,0,1000,0,0\nf,0,1000,0,12\n", "a pair");
///     if (const auto* wrong = std::get_if<input_error>(&read)) std::puts(wrong->text().c_str());
///
///   Returns:  an error with the line for anything else, for sizes from 2^60 on, and for impossible orders
///   Cost:     linear in the text where ids are small; n log n otherwise; 12 bytes of host memory for each of the text
[[nodiscard]] inline read_result<recording> read_csv(std::string_view text, std::string name) {
  field_reader line(text, std::move(name));
  if (!line.next_line() || line.text() != csv_header)
    return line.error("the header must be '" + std::string(csv_header) + "', not " + shown(line.text()));
  recording read{line.name(), {}};
  read.events.reserve(text.size() / 24);
  lifetime_checker order(line.most_lines());
  while (line.next_line()) {
    event e{};
    bool keep = true;
    auto broken = read_event(line, e);
    if (!broken) broken = order.check(e, keep);
    if (broken) return line.error(std::move(*broken));
    if (keep) read.events.push_back(e);
  }
  return read;
}

/// Writes a recording as read_csv reads it; the time of an event is its number, since a recording keeps none.
template <byte_output Out>
void write_csv(const recording& source, Out& out) {
  out.write(std::string(csv_header) + '\n');
  std::uint64_t number = 0;
  for (const event& e : source.events) {
    out.write(std::string(1, "afrec"[static_cast<std::size_t>(e.what)]) + ',' + std::to_string(e.id) + ',' +
              std::to_string(e.bytes) + ',' + std::to_string(e.stream.handle) + ',' +
              std::to_string(number++) + '\n');
  }
}

}  // namespace tessera::trace
