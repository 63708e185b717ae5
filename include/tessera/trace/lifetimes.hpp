// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/event.hpp>
#include <tessera/trace/fields.hpp>

namespace tessera::trace {

inline constexpr std::string_view lifetimes_header = "id,lower,upper,size";

/// Reads the lifetimes of a static program, `id,lower,upper,size` with `,offset` behind if a plan is included (it is not
/// used): each live on [lower, upper). At one time frees come first, then allocations in the order of the file.
///   Source:  the format of google/minimalloc
///   Cost:    linear, and a sort
[[nodiscard]] inline read_result<recording> read_lifetimes(std::string_view text, std::string name) {
  field_reader line(text, std::move(name));
  const std::string with_offset = std::string(lifetimes_header) + ",offset";
  if (!line.next_line() || (line.text() != lifetimes_header && line.text() != with_offset)) {
    return line.error("the header must be " + with_offset + " or without the offset, not " +
                      shown(line.text()));
  }
  const std::size_t fields = line.count();
  struct step {
    std::uint64_t time;
    bool allocates;
    std::size_t row;
    event what;
  };
  std::vector<step> steps;
  std::unordered_set<std::uint64_t> ids;
  for (std::size_t row = 0; line.next_line(); ++row) {
    if (line.count() != fields) {
      return line.error("a line has " + std::to_string(fields) + " fields, this one " +
                        std::to_string(line.count()));
    }
    std::uint64_t number[field_reader::most_fields]{};
    for (std::size_t i = 0; i < fields; ++i) {
      if (!line.as_integer(i, number[i]))
        return line.error(shown(line[i]) + " is not a whole number below 2^64");
    }
    const auto [id, lower, upper, size] = std::tuple(number[0], number[1], number[2], number[3]);
    if (!ids.insert(id).second) return line.error("id " + std::to_string(id) + " is allocated twice");
    if (lower >= upper) return line.error("upper must be greater than lower");
    if (size > max_request)
      return line.error("a size of " + std::to_string(size) + " bytes; less than 2^60 are allowed");
    if (size == 0) continue;
    steps.push_back({lower, true, row, {event::kind::allocate, id, size}});
    steps.push_back({upper, false, row, {event::kind::free, id, size}});
  }
  std::sort(steps.begin(), steps.end(), [](const step& a, const step& b) {
    return std::tuple(a.time, a.allocates, a.row) < std::tuple(b.time, b.allocates, b.row);
  });
  recording read{line.name(), {}};
  read.events.reserve(steps.size());
  for (const step& s : steps) read.events.push_back(s.what);
  return read;
}

/// Reads either text format, told by the header.
[[nodiscard]] inline read_result<recording> read_text_trace(std::string_view text, std::string name) {
  const std::string_view header = text.substr(0, text.find_first_of("\r\n"));
  if (header == csv_header) return read_csv(text, std::move(name));
  if (header.starts_with(lifetimes_header)) return read_lifetimes(text, std::move(name));
  return input_error{std::move(name) + ":1", "the header must be " + std::string(csv_header) + " or " +
                                                 std::string(lifetimes_header) + ", not " + shown(header)};
}

}  // namespace tessera::trace
