// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>

#include "files.hpp"
#include "text.hpp"

namespace replay {

using namespace tessera;
using namespace tessera::trace;
using tessera::trace::detail::field_reader;
using tessera::trace::detail::max_live;
using tessera::trace::detail::quoted_field;
using tessera::trace::detail::request_limit_text;

inline constexpr std::string_view rmm_header = "Thread,Time,Action,Pointer,Size,Stream";

/// Converts the lines of an RMM log to a recording.
class rmm_reader {
 public:
  rmm_reader(std::string_view text, std::string name) : line_(text, std::move(name)) {}

  [[nodiscard]] read_result<recording> read() {
    if (!line_.next_line() || line_.text() != rmm_header)
      return line_.error("the header must be '" + std::string(rmm_header) + "', not " +
                         quoted_field(line_.text()));
    result_.name = line_.name();
    while (line_.next_line()) {
      if (auto rule = read_line()) return line_.error(std::move(*rule));
    }
    return std::move(result_);
  }

 private:
  struct allocation {
    std::uint64_t id;
    std::size_t bytes;
  };
  using error_text = std::optional<std::string>;

  /// Reads one line.
  ///   Returns:  the error text, if the line is invalid
  [[nodiscard]] error_text read_line() {
    if (line_.count() != 6) return "a line has 6 fields, this one " + std::to_string(line_.count());
    const std::string_view action = line_[2];
    std::uint64_t pointer = 0;
    std::uint64_t bytes = 0;
    stream_id stream{};
    if (!read_pointer(line_[3], pointer)) return quoted_field(line_[3]) + " is not an address";
    if (!line_.read_integer(4, bytes)) return quoted_field(line_[4]) + " is not a whole number below 2^64";
    if (!read_stream(line_[5], stream.handle)) return quoted_field(line_[5]) + " is not a stream";
    if (bytes > max_request) return "a request of " + request_limit_text(bytes);
    if (action == "allocate") return allocate(pointer, bytes, stream);
    if (action == "free") return free(pointer, bytes, stream);
    if (action == "allocate failure") return fail(bytes, stream);
    return "no such action: " + quoted_field(action) + "; there are allocate, free and allocate failure";
  }

  [[nodiscard]] error_text allocate(std::uint64_t pointer, std::uint64_t bytes, stream_id stream) {
    if (bytes == 0) return {};  // a live block may have the same address
    if (pointer == 0) return "an allocation without an address";
    if (bytes > max_live - live_) return "more than 2^62 bytes would be live";
    if (!live_blocks_.emplace(pointer, allocation{next_id_, bytes}).second)
      return quoted_field(line_[3]) + " is allocated twice";
    live_ += bytes;
    result_.events.push_back({event::kind::allocate, next_id_++, bytes, stream});
    return {};
  }
  [[nodiscard]] error_text free(std::uint64_t pointer, std::uint64_t bytes, stream_id stream) {
    if (bytes == 0) return {};
    const auto found = live_blocks_.find(pointer);
    if (found == live_blocks_.end()) return quoted_field(line_[3]) + " is freed but not allocated";
    if (found->second.bytes != bytes)
      return quoted_field(line_[3]) + " is freed with " + counted(bytes, "byte") +
             " but was allocated with " + std::to_string(found->second.bytes);
    live_ -= bytes;
    result_.events.push_back({event::kind::free, found->second.id, bytes, stream});
    live_blocks_.erase(found);
    return {};
  }
  [[nodiscard]] error_text fail(std::uint64_t bytes, stream_id stream) {
    if (bytes != 0) result_.events.push_back({event::kind::refused, next_id_++, bytes, stream});
    return {};
  }

  [[nodiscard]] static bool parse(std::string_view digits, int base, std::uint64_t& value) noexcept {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    return error == std::errc{} && end == digits.data() + digits.size();
  }
  [[nodiscard]] static bool is_prefixed(std::string_view field) noexcept {
    return field.starts_with("0x") || field.starts_with("0X");
  }
  /// Reads a hexadecimal address, with or without 0x. An empty field or "(nil)", which glibc prints, means
  /// null.
  [[nodiscard]] static bool read_pointer(std::string_view field, std::uint64_t& value) noexcept {
    value = 0;
    if (field.empty() || field == "(nil)") return true;
    return parse(is_prefixed(field) ? field.substr(2) : field, 16, value);
  }
  /// Reads a stream: hexadecimal with 0x, or decimal, which older versions of RMM write.
  [[nodiscard]] static bool read_stream(std::string_view field, std::uint64_t& value) noexcept {
    return is_prefixed(field) ? parse(field.substr(2), 16, value) : parse(field, 10, value);
  }

  field_reader line_;
  recording result_;
  std::map<std::uint64_t, allocation>
      live_blocks_;  // by address; no hash map: hostile addresses could collide
  std::uint64_t live_ = 0;
  std::uint64_t next_id_ = 0;
};

/// Reads a log of RMM's logging_resource_adaptor.
///
/// Ignores threads, times and sizes of 0. A failed allocation becomes a request that was refused.
///   Returns:  an error with its line for invalid lines, sizes of 2^60 bytes or more, and frees of addresses
///             not live
///   Cost:     n log n; 12 bytes of host memory per byte of text
[[nodiscard]] inline read_result<recording> read_rmm(std::string_view text, std::string name) {
  return rmm_reader(text, std::move(name)).read();
}

}  // namespace replay
