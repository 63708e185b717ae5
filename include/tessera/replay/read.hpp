// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/observe/output.hpp>
#include <tessera/replay/recording.hpp>

namespace tessera::trace {

namespace detail {

/// The largest file that read_file accepts, in bytes. It also limits endless pipes.
inline constexpr std::size_t max_file_bytes = operator""_GiB(2);

}  // namespace detail

/// Reads a file. `check(beginning)` receives the first bytes, at most 64 KiB. If it returns an error, reading
/// ends.
///   Cost:  host memory of the file's size, or three times that if the system does not report the size
template <typename Check>
[[nodiscard]] read_result<std::string> read_file(const std::string& path, Check check) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return input_error{path, std::string("cannot be opened: ") + std::strerror(errno)};
  const auto close = [](std::FILE* open) { std::fclose(open); };
  const std::unique_ptr<std::FILE, decltype(close)> closer(file, close);
  std::error_code unknown;  // pipes report no size
  const auto size = std::filesystem::file_size(path, unknown);
  std::string bytes;
  if (!unknown && size <= detail::max_file_bytes) bytes.reserve(static_cast<std::size_t>(size));
  char chunk[65536];
  for (std::size_t count = sizeof chunk; count == sizeof chunk;) {
    count = std::fread(chunk, 1, sizeof chunk, file);
    if (bytes.empty() && count > 0) {
      if (std::optional<input_error> error = check(std::string_view(chunk, count))) return std::move(*error);
    }
    if ((!unknown && size > detail::max_file_bytes) || count > detail::max_file_bytes - bytes.size())
      return input_error{path,
                         "is larger than the limit of " + std::to_string(detail::max_file_bytes) + " bytes"};
    bytes.append(chunk, count);
  }
  if (std::ferror(file) != 0)
    return input_error{path, std::string("cannot be read: ") + std::strerror(errno)};
  return bytes;
}
[[nodiscard]] inline read_result<std::string> read_file(const std::string& path) {
  return read_file(path, [](std::string_view) { return std::optional<input_error>(); });
}

namespace detail {

/// Splits comma-separated text into lines and fields, and creates errors with line numbers.
class field_reader {
 public:
  static constexpr std::size_t max_fields = 8;

  field_reader(std::string_view text, std::string name)
      : rest_(without_blank_end(text)), size_(text.size()), name_(std::move(name)) {}

  /// Moves to the next line and splits it. Ignores blank lines at the end of the text.
  ///   Returns:  false at the end of the text
  [[nodiscard]] bool next_line() {
    if (rest_.empty()) return false;
    ++line_;
    const std::size_t end = rest_.find('\n');
    text_ = rest_.substr(0, end);
    rest_ = end == std::string_view::npos ? std::string_view{} : rest_.substr(end + 1);
    if (text_.ends_with('\r')) text_.remove_suffix(1);
    count_ = 0;
    for (std::string_view left = text_;;) {
      const std::size_t comma = left.find(',');
      if (count_ < max_fields) fields_[count_] = left.substr(0, comma);
      ++count_;
      if (comma == std::string_view::npos) return true;
      left.remove_prefix(comma + 1);
    }
  }

  [[nodiscard]] std::string_view text() const noexcept { return text_; }
  /// The number of fields in the line; only the first `max_fields` are accessible.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  ///   Requires:  i < count() and i < max_fields
  [[nodiscard]] std::string_view operator[](std::size_t i) const noexcept { return fields_[i]; }

  /// Reads field `i` as an integer below 2^64.
  ///   Returns:  whether it is a valid integer
  [[nodiscard]] bool read_integer(std::size_t i, std::uint64_t& value) const noexcept {
    const std::string_view field = fields_[i];
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    return error == std::errc{} && end == field.data() + field.size();
  }

  /// An upper bound of the number of lines that have at least four fields.
  [[nodiscard]] std::size_t max_lines() const noexcept { return size_ / 8; }

  /// Creates an error in this line.
  [[nodiscard]] input_error error(std::string rule) const {
    return {name_ + ":" + std::to_string(line_ == 0 ? 1 : line_), std::move(rule)};
  }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  [[nodiscard]] static std::string_view without_blank_end(std::string_view text) noexcept {
    const std::size_t last = text.find_last_not_of("\r\n");
    return last == std::string_view::npos ? std::string_view{} : text.substr(0, text.find('\n', last));
  }

  std::string_view rest_;
  std::size_t size_;
  std::string name_;
  std::string_view text_;
  std::array<std::string_view, max_fields> fields_{};
  std::size_t count_ = 0;
  std::size_t line_ = 0;
};

/// Quotes a field for an error message: at most 40 characters, without control characters.
[[nodiscard]] inline std::string quoted_field(std::string_view field) {
  std::string text = "'";
  for (char c : field.substr(0, 40)) text += c >= ' ' && c <= '~' ? c : '?';
  return text + (field.size() > 40 ? "...'" : "'");
}

inline constexpr std::string_view csv_header = "op,id,bytes,stream,t_us";

/// Checks that each allocation is made once, used while live, and freed at most once.
///   Cost:  constant for ids below `dense`, else logarithmic; hostile ids make it neither slow nor large
class lifetime_checker {
 public:
  /// `dense` is the approximate number of allocations. Most programs number their allocations from 0.
  explicit lifetime_checker(std::size_t dense) : max_dense_(dense) {}

  /// Checks one event. Sets `keep` to false if it belongs to a request of 0 bytes.
  ///   Returns:  the error text, if the event breaks a rule
  [[nodiscard]] std::optional<std::string> check(const event& e, bool& keep) {
    const bool allocating = e.what == event::kind::allocate;
    const bool freeing = e.what == event::kind::free;
    if (!allocating && !freeing && e.what != event::kind::record_stream) return {};
    if (allocating && e.bytes > max_request) return "a request of " + request_limit_text(e.bytes);
    const std::string_view verb = allocating ? " is allocated" : freeing ? " is freed" : " is recorded";
    const auto error = [&](std::string_view rule) {
      return "id " + std::to_string(e.id).append(verb).append(rule);
    };

    allocation& entry = find_or_create(e.id);
    if (allocating) {
      if (entry.now != state::unknown) return error(" twice");
      if (e.bytes > max_live - live_) return error(" where more than 2^62 bytes would live at once");
      entry = {e.bytes, state::live};
      live_ += e.bytes;
    }
    if (entry.now == state::unknown) return error(" but was never allocated");
    if (entry.now == state::freed) return error(freeing ? " twice" : " after it was freed");
    if (e.bytes != 0 && e.bytes != entry.bytes)
      return error(" with " + std::to_string(e.bytes) + " bytes but was allocated with " +
                   std::to_string(entry.bytes));
    if (freeing) {
      entry.now = state::freed;
      live_ -= entry.bytes;
    }
    keep = entry.bytes != 0;
    return {};
  }

 private:
  enum class state : unsigned char { unknown, live, freed };
  struct allocation {
    std::size_t bytes = 0;
    state now = state::unknown;
  };

  [[nodiscard]] allocation& find_or_create(std::uint64_t id) {
    if (id >= max_dense_) return sparse_[id];
    if (id >= dense_.size()) dense_.resize(static_cast<std::size_t>(id) + 1);
    return dense_[static_cast<std::size_t>(id)];
  }

  std::size_t live_ = 0;
  std::size_t max_dense_;
  std::vector<allocation> dense_;
  std::map<std::uint64_t, allocation> sparse_;  // no hash map: hostile ids could collide
};

/// Reads a line of the CSV format into `e`.
///   Returns:  the error text, if the line is invalid
[[nodiscard]] inline std::optional<std::string> read_event(const field_reader& line, event& e) {
  if (line.count() != 5) return "a line has 5 fields, this one " + std::to_string(line.count());
  const std::string_view op = line[0];
  switch (op.size() == 1 ? op[0] : '\0') {
    case 'a': e.what = event::kind::allocate; break;
    case 'f': e.what = event::kind::free; break;
    case 'r': e.what = event::kind::record_stream; break;
    case 'e': e.what = event::kind::answer_events; break;
    case 'c': e.what = event::kind::empty_cache; break;
    default: return "no such op: " + quoted_field(op) + "; ops are a, f, r, e, c";
  }
  std::uint64_t number[4]{};
  for (std::size_t i = 0; i < 4; ++i) {
    if (!line.read_integer(i + 1, number[i]))
      return quoted_field(line[i + 1]) + " is not a whole number below 2^64";
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

}  // namespace detail

/// Reads a program recorded as CSV with the header `op,id,bytes,stream,t_us`, one event per line.
///
/// The operations: `a` allocates, `f` frees, `r` records a use on `stream`, `c` empties the cache. `e` sets
/// the result of all later event queries: ready if `bytes` is 1, not ready if 0. For `f` and `r`, `bytes` is
/// the size or 0. Unused columns are 0.
///
///     using namespace tessera::trace;
///     const auto read = read_csv("op,id,bytes,stream,t_us\na,0,1000,0,0\nf,0,1000,0,12\n", "a pair");
///     if (const auto* wrong = std::get_if<input_error>(&read)) std::puts(wrong->text().c_str());
///
///   Returns:  an error with its line for invalid lines, sizes of 2^60 bytes or more, and invalid lifetimes
///   Cost:     linear in the text if ids are small, else n log n; 12 bytes of host memory per byte of text
[[nodiscard]] inline read_result<recording> read_csv(std::string_view text, std::string name) {
  detail::field_reader line(text, std::move(name));
  if (!line.next_line() || line.text() != detail::csv_header)
    return line.error("the header must be '" + std::string(detail::csv_header) + "', not " +
                      detail::quoted_field(line.text()));
  recording read{line.name(), {}};
  read.events.reserve(text.size() / 24);
  detail::lifetime_checker lifetimes(line.max_lines());
  while (line.next_line()) {
    event e{};
    bool keep = true;
    auto error = detail::read_event(line, e);
    if (!error) error = lifetimes.check(e, keep);
    if (error) return line.error(std::move(*error));
    if (keep) read.events.push_back(e);
  }
  return read;
}

/// Writes a recording in the format of read_csv. The time of an event is its index, because a recording
/// stores no times.
template <detail::byte_output Out>
void write_csv(const recording& source, Out& out) {
  out.write(std::string(detail::csv_header) + '\n');
  std::uint64_t number = 0;
  for (const event& e : source.events) {
    out.write(std::string(1, "afrec"[static_cast<std::size_t>(e.what)]) + ',' + std::to_string(e.id) + ',' +
              std::to_string(e.bytes) + ',' + std::to_string(e.stream.handle) + ',' +
              std::to_string(number++) + '\n');
  }
}

namespace detail {

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
    if (bytes > max_live - live_) return "more than 2^62 bytes would live at once";
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
      return quoted_field(line_[3]) + " is freed with " + std::to_string(bytes) +
             " bytes but was allocated with " + std::to_string(found->second.bytes);
    live_ -= bytes;
    result_.events.push_back({event::kind::free, found->second.id, bytes, stream});
    live_blocks_.erase(found);
    return {};
  }
  [[nodiscard]] error_text fail(std::uint64_t bytes, stream_id stream) {
    if (bytes != 0) append_failed_request(result_, next_id_++, bytes, stream);
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

}  // namespace detail

/// Reads a log of RMM's logging_resource_adaptor.
///
/// Ignores threads, times and sizes of 0. A failed allocation becomes an allocation that is freed at once.
///   Returns:  an error with its line for invalid lines, sizes of 2^60 bytes or more, and frees of addresses
///             not live
///   Cost:     n log n; 12 bytes of host memory per byte of text
[[nodiscard]] inline read_result<recording> read_rmm(std::string_view text, std::string name) {
  return detail::rmm_reader(text, std::move(name)).read();
}

}  // namespace tessera::trace
