// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/trace/event.hpp>
#include <tessera/trace/fields.hpp>

namespace tessera::trace {

inline constexpr std::string_view csv_header = "op,id,bytes,stream,t_us";

/// Checks that allocations are made, used and freed in a possible order.
class lifetime_checker {
 public:
  /// The rule that this event breaks, or nothing. Events of requests of 0 bytes get `keep` false.
  [[nodiscard]] std::optional<std::string> check(const event& e, bool& keep) {
    const std::string id = "id " + std::to_string(e.id);
    if (e.what == event::kind::allocate) {
      if (e.bytes > max_request)
        return "a request of " + std::to_string(e.bytes) + " bytes; less than 2^60 are allowed";
      keep = e.bytes != 0;
      if (!known_.emplace(e.id, allocation{e.bytes, true}).second) return id + " is allocated twice";
      return {};
    }
    if (e.what != event::kind::free && e.what != event::kind::record_stream) return {};
    const bool freeing = e.what == event::kind::free;
    const auto found = known_.find(e.id);
    if (found == known_.end())
      return id + (freeing ? " is freed" : " is recorded") + " but was never allocated";
    keep = found->second.bytes != 0;
    if (!found->second.live) return id + (freeing ? " is freed twice" : " is recorded after it was freed");
    if (!freeing) return {};
    found->second.live = false;
    if (e.bytes == 0 || e.bytes == found->second.bytes) return {};
    return id + " is freed with " + std::to_string(e.bytes) + " bytes but was allocated with " +
           std::to_string(found->second.bytes);
  }

 private:
  struct allocation {
    std::size_t bytes;
    bool live;
  };
  std::unordered_map<std::uint64_t, allocation> known_;
};

/// Reads a program recorded as `op,id,bytes,stream,t_us`: a allocation, f free, r use by a stream, e what event queries
/// answer from here on (in the bytes column: 0 not ready, 1 ready), c empty cache.
///   Returns:  an error with the line for anything else, for sizes from 2^60 on, and for impossible orders
///   Cost:     linear in the text
[[nodiscard]] inline read_result<recording> read_csv(std::string_view text, std::string name) {
  field_reader line(text, std::move(name));
  if (!line.next_line() || line.text() != csv_header) {
    return line.error("the header must be " + std::string(csv_header) + ", not " + shown(line.text()));
  }
  recording read{line.name(), {}};
  read.events.reserve(text.size() / 24);
  lifetime_checker order;
  while (line.next_line()) {
    if (line.count() != 5) return line.error("a line has 5 fields, this one " + std::to_string(line.count()));
    std::uint64_t numbers[4]{};
    for (std::size_t i = 0; i < 4; ++i) {
      if (!line.as_integer(i + 1, numbers[i]))
        return line.error(shown(line[i + 1]) + " is not a whole number below 2^64");
    }
    event e{event::kind::allocate, numbers[0], numbers[1], stream_id{numbers[2]}};
    const std::string_view op = line[0];
    if (op == "f") {
      e.what = event::kind::free;
    } else if (op == "r") {
      e.what = event::kind::record_stream;
    } else if (op == "e") {
      e.what = event::kind::answer_events;
      if (e.bytes > 1) return line.error("e takes 0 or 1 as bytes, not " + std::to_string(e.bytes));
    } else if (op == "c") {
      e.what = event::kind::empty_cache;
    } else if (op != "a") {
      return line.error("no such op: " + shown(op) + "; there are a f r e c");
    }
    bool keep = true;
    if (auto broken = order.check(e, keep)) return line.error(std::move(*broken));
    if (keep) read.events.push_back(e);
  }
  return read;
}

}  // namespace tessera::trace
