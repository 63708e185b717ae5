// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>

#include "files.hpp"
#include "read_rmm.hpp"

namespace replay {

using namespace tessera;
using namespace tessera::trace;
using tessera::trace::detail::csv_header;
using tessera::trace::detail::field_reader;
using tessera::trace::detail::lifetime_checker;
using tessera::trace::detail::quoted_field;

inline constexpr std::string_view lifetimes_header = "id,lower,upper,size";
inline constexpr std::string_view lifetimes_header_with_offset = "id,lower,upper,size,offset";

/// Reads a static program in the CSV format of google/minimalloc: `id,lower,upper,size`, optionally with
/// `,offset`.
///
/// Each allocation lives on [lower, upper). At equal times, frees come before allocations, in the order of
/// the file. Ignores offsets and sizes of 0.
///   Returns:  an error with its line for invalid lines, sizes of 2^60 bytes or more, and repeated ids
///   Source:   the format of google/minimalloc
///   Cost:     n log n; 24 bytes of host memory per byte of text
[[nodiscard]] inline read_result<recording> read_lifetimes(std::string_view text, std::string name) {
  field_reader line(text, std::move(name));
  if (!line.next_line() || (line.text() != lifetimes_header && line.text() != lifetimes_header_with_offset)) {
    return line.error("the header must be '" + std::string(lifetimes_header) + "' or '" +
                      std::string(lifetimes_header_with_offset) + "', not " + quoted_field(line.text()));
  }
  const std::size_t fields = line.count();
  struct step {
    std::uint64_t time;
    bool allocates;
    std::size_t row;
    event what;
  };
  std::vector<step> steps;
  const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  steps.reserve(2 * (std::min)(lines, line.max_lines()));
  lifetime_checker ids(line.max_lines());
  for (std::size_t row = 0; line.next_line(); ++row) {
    if (line.count() != fields) {
      return line.error("a line has " + std::to_string(fields) + " fields, this one " +
                        std::to_string(line.count()));
    }
    std::uint64_t number[field_reader::max_fields]{};
    for (std::size_t i = 0; i < fields; ++i) {
      if (!line.read_integer(i, number[i]))
        return line.error(quoted_field(line[i]) + " is not a whole number below 2^64");
    }
    const auto [id, lower, upper, size] = std::tuple(number[0], number[1], number[2], number[3]);
    if (lower >= upper)
      return line.error("upper must be greater than lower, not " + std::to_string(upper) + " after " +
                        std::to_string(lower));
    bool keep = true;
    if (auto broken = ids.check_event({event::kind::allocate, id, size}, keep))
      return line.error(std::move(*broken));
    if (!keep) continue;
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

/// Checks the first line of a text trace.
///   Returns:  an error if it is the header of no known format
[[nodiscard]] inline std::optional<input_error> check_text_trace(std::string_view text, std::string name) {
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // a byte order mark
  const std::string_view header = text.substr(0, text.find_first_of("\r\n"));
  for (const std::string_view known :
       {csv_header, lifetimes_header, lifetimes_header_with_offset, rmm_header}) {
    if (header == known) return {};
  }
  return input_error{std::move(name) + ":1", "the header must be '" + std::string(csv_header) + "', '" +
                                                 std::string(lifetimes_header) + "' or '" +
                                                 std::string(rmm_header) + "', not " + quoted_field(header)};
}

/// Reads a text trace in the format that its header names.
///
///     using namespace tessera::trace;
///     const auto text = read_file("examples/traces/gnn_sage.csv");
///     if (const auto* bytes = std::get_if<std::string>(&text)) {
///       const auto read = read_text_trace(*bytes, "gnn_sage");
///       if (const auto* made = std::get_if<recording>(&read)) std::printf("%zu events\n", made->events.size());
///     }
[[nodiscard]] inline read_result<recording> read_text_trace(std::string_view text, std::string name) {
  if (auto error = check_text_trace(text, name)) return std::move(*error);
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  if (text.starts_with(csv_header)) return trace::read_csv(text, std::move(name));
  if (text.starts_with(rmm_header)) return read_rmm(text, std::move(name));
  return read_lifetimes(text, std::move(name));
}

}  // namespace replay
