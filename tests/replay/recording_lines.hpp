// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>

/// The events of a recording that a reader returned.
namespace recording_lines {

using result = std::variant<tessera::trace::recording, tessera::trace::input_error>;

/// An event as its letter, id, bytes and stream.
using line = std::tuple<char, std::uint64_t, std::uint64_t, std::uint64_t>;

inline std::vector<line> lines(const result& read) {
  if (const auto* error = std::get_if<tessera::trace::input_error>(&read)) {
    ADD_FAILURE() << error->text();
    return {};
  }
  std::vector<line> all;
  for (const tessera::trace::event& e : std::get<tessera::trace::recording>(read).events)
    all.emplace_back(tessera::trace::detail::csv_letter(e.what), e.id, e.bytes, e.stream.handle);
  return all;
}

inline std::string error_of(const result& read) {
  const auto* error = std::get_if<tessera::trace::input_error>(&read);
  return error != nullptr ? error->text() : "accepted";
}

}  // namespace recording_lines
