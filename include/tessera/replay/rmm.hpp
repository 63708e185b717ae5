// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/replay/active_at_start.hpp>
#include <tessera/replay/event.hpp>
#include <tessera/replay/fields.hpp>
#include <tessera/replay/output.hpp>

namespace tessera::trace {

inline constexpr std::string_view rmm_header = "Thread,Time,Action,Pointer,Size,Stream";

/// Makes a recording of the lines of an RMM log.
class rmm_reader {
 public:
  rmm_reader(std::string_view text, std::string name) : line_(text, std::move(name)) {}

  [[nodiscard]] read_result<recording> read() {
    if (!line_.next_line() || line_.text() != rmm_header)
      return line_.error("the header must be '" + std::string(rmm_header) + "', not " + shown(line_.text()));
    made_.name = line_.name();
    while (line_.next_line()) {
      if (auto rule = step()) return line_.error(std::move(*rule));
    }
    return std::move(made_);
  }

 private:
  struct allocation {
    std::uint64_t id;
    std::size_t bytes;
  };
  using broken = std::optional<std::string>;

  /// The rule that this line breaks, or nothing.
  [[nodiscard]] broken step() {
    if (line_.count() != 6) return "a line has 6 fields, this one " + std::to_string(line_.count());
    const std::string_view action = line_[2];
    std::uint64_t pointer = 0;
    std::uint64_t bytes = 0;
    stream_id stream{};
    if (!as_pointer(line_[3], pointer)) return shown(line_[3]) + " is not an address";
    if (!line_.as_integer(4, bytes)) return shown(line_[4]) + " is not a whole number below 2^64";
    if (!as_stream(line_[5], stream.handle)) return shown(line_[5]) + " is not a stream";
    if (bytes > max_request) return "a request of " + above_max_request(bytes);
    if (action == "allocate") return allocate(pointer, bytes, stream);
    if (action == "free") return free(pointer, bytes, stream);
    if (action == "allocate failure") return fail(bytes, stream);
    return "no such action: " + shown(action) + "; there are allocate, free and allocate failure";
  }

  [[nodiscard]] broken allocate(std::uint64_t pointer, std::uint64_t bytes, stream_id stream) {
    if (bytes == 0) return {};  // as in all recordings; its address may be that of a block
    if (pointer == 0) return "an allocation without an address";
    if (bytes > most_live - live_) return "more than 2^62 bytes would live at once";
    if (!at_.emplace(pointer, allocation{next_id_, bytes}).second)
      return shown(line_[3]) + " is allocated twice";
    live_ += bytes;
    made_.events.push_back({event::kind::allocate, next_id_++, bytes, stream});
    return {};
  }
  [[nodiscard]] broken free(std::uint64_t pointer, std::uint64_t bytes, stream_id stream) {
    if (bytes == 0) return {};
    const auto found = at_.find(pointer);
    if (found == at_.end()) return shown(line_[3]) + " is freed but not allocated";
    if (found->second.bytes != bytes)
      return shown(line_[3]) + " is freed with " + std::to_string(bytes) + " bytes but was allocated with " +
             std::to_string(found->second.bytes);
    live_ -= bytes;
    made_.events.push_back({event::kind::free, found->second.id, bytes, stream});
    at_.erase(found);
    return {};
  }
  [[nodiscard]] broken fail(std::uint64_t bytes, stream_id stream) {
    if (bytes != 0) add_refused(made_, next_id_++, bytes, stream);
    return {};
  }

  [[nodiscard]] static bool parse(std::string_view digits, int base, std::uint64_t& value) noexcept {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    return error == std::errc{} && end == digits.data() + digits.size();
  }
  [[nodiscard]] static bool is_prefixed(std::string_view field) noexcept {
    return field.starts_with("0x") || field.starts_with("0X");
  }
  /// Addresses are hexadecimal, with or without 0x; null is "(nil)" in glibc's words, or left out.
  [[nodiscard]] static bool as_pointer(std::string_view field, std::uint64_t& value) noexcept {
    value = 0;
    if (field.empty() || field == "(nil)") return true;
    return parse(is_prefixed(field) ? field.substr(2) : field, 16, value);
  }
  /// Streams are hexadecimal with 0x, and decimal without, as older versions wrote them.
  [[nodiscard]] static bool as_stream(std::string_view field, std::uint64_t& value) noexcept {
    return is_prefixed(field) ? parse(field.substr(2), 16, value) : parse(field, 10, value);
  }

  field_reader line_;
  recording made_;
  std::map<std::uint64_t, allocation>
      at_;  // what lives, by address; not hashed: addresses could be chosen to collide
  std::uint64_t live_ = 0;
  std::uint64_t next_id_ = 0;
};

/// Reads a log that RMM's logging_resource_adaptor wrote. Threads and times are not looked at; what was refused there is
/// a request that is given back at once; sizes of 0 are left out.
///   Returns:  an error with the line for anything else, for sizes from 2^60 on, and for what is freed but does not live
///   Cost:     n log n; 12 bytes of host memory for each of the text
[[nodiscard]] inline read_result<recording> read_rmm(std::string_view text, std::string name) {
  return rmm_reader(text, std::move(name)).read();
}

/// Writes the history of one device as RMM logs it, what was live at its start first. A block is freed where its user
/// gave it back; what found no memory is an "allocate failure"; which other streams used a block is not told.
///
///     #include <tessera/observe/capture.hpp>
///     #include <tessera/replay/output.hpp>
///     const tessera::trace::snapshot seen = tessera::trace::capture(pool);
///     const auto error = tessera::trace::save("memory.csv", [&](auto& out) { return write_rmm(seen, 0, out); });
///     if (error) std::puts(error->text().c_str());
///
///   Returns:  why the history cannot be right, or nothing
template <byte_output Out>
[[nodiscard]] std::optional<input_error> write_rmm(const snapshot& source, std::size_t device, Out& out) {
  const auto start = active_at_start(source, device);
  if (const auto* error = std::get_if<input_error>(&start)) return *error;
  const auto line = [&out](std::uint64_t time_us, const char* action, std::uint64_t address,
                           std::size_t bytes, stream_id stream) {
    char text[160];
    const std::uint64_t seconds = time_us / 1'000'000 % 86'400;
    int length =
        std::snprintf(text, sizeof text, "0,%02u:%02u:%02u.%06u,%s,", static_cast<unsigned>(seconds / 3600),
                      static_cast<unsigned>(seconds / 60 % 60), static_cast<unsigned>(seconds % 60),
                      static_cast<unsigned>(time_us % 1'000'000), action);
    out.write({text, static_cast<std::size_t>(length)});
    length = address != 0 ? std::snprintf(text, sizeof text, "0x%" PRIx64 ",", address)
                          : std::snprintf(text, sizeof text, "(nil),");
    out.write({text, static_cast<std::size_t>(length)});
    length = std::snprintf(text, sizeof text, "%zu,0x%" PRIx64 "\n", bytes, stream.handle);
    out.write({text, static_cast<std::size_t>(length)});
  };
  const auto trace = source.trace_of(device);
  out.write(rmm_header);
  out.write("\n");
  for (const auto& [address, block] : std::get<std::map<std::uint64_t, early_block>>(start)) {
    if (block.live)
      line(trace.empty() ? 0 : trace.front().time_us, "allocate", address, block.requested, block.stream);
  }
  for (const snapshot::entry& e : trace) {
    if (e.what == snapshot::action::alloc) line(e.time_us, "allocate", e.address, e.size, e.stream);
    if (e.what == snapshot::action::free_requested) line(e.time_us, "free", e.address, e.size, e.stream);
    if (e.what == snapshot::action::oom) line(e.time_us, "allocate failure", 0, e.size, e.stream);
  }
  return {};
}

}  // namespace tessera::trace
