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

/// The largest file that is read, in bytes: what never ends is not read until memory does.
inline constexpr std::size_t max_file_bytes = operator""_GiB(2);

/// All bytes of a file, or why not. `refuse(beginning)` is asked once, about the first bytes, at most 64 KiB; what it
/// returns is an error.
///   Cost:  three times the file in host memory, the size where the system tells it
template <typename Refuse>
[[nodiscard]] read_result<std::string> read_file(const std::string& path, Refuse refuse) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return input_error{path, std::string("cannot be opened: ") + std::strerror(errno)};
  const auto close = [](std::FILE* open) { std::fclose(open); };
  const std::unique_ptr<std::FILE, decltype(close)> closes(file, close);
  std::error_code unknown;
  const auto told = std::filesystem::file_size(path, unknown);  // of what is no plain file it is not known
  std::string bytes;
  if (!unknown && told <= max_file_bytes) bytes.reserve(static_cast<std::size_t>(told));
  char piece[65536];
  for (std::size_t got = sizeof piece; got == sizeof piece;) {
    got = std::fread(piece, 1, sizeof piece, file);
    if (bytes.empty() && got > 0) {
      if (std::optional<input_error> error = refuse(std::string_view(piece, got))) return std::move(*error);
    }
    if ((!unknown && told > max_file_bytes) || got > max_file_bytes - bytes.size())
      return input_error{
          path, "is larger than " + std::to_string(max_file_bytes) + " bytes, the most that is read"};
    bytes.append(piece, got);
  }
  if (std::ferror(file) != 0)
    return input_error{path, std::string("cannot be read: ") + std::strerror(errno)};
  return bytes;
}
[[nodiscard]] inline read_result<std::string> read_file(const std::string& path) {
  return read_file(path, [](std::string_view) { return std::optional<input_error>(); });
}

/// Reads a comma-separated text line by line, and says in which line something is wrong.
class field_reader {
 public:
  static constexpr std::size_t most_fields = 8;

  field_reader(std::string_view text, std::string name)
      : rest_(without_blank_end(text)), size_(text.size()), name_(std::move(name)) {}

  /// Goes to the next line and cuts it into fields; false at the end. Blank lines at the end do not count.
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
      if (count_ < most_fields) fields_[count_] = left.substr(0, comma);
      ++count_;
      if (comma == std::string_view::npos) return true;
      left.remove_prefix(comma + 1);
    }
  }

  [[nodiscard]] std::string_view text() const noexcept { return text_; }
  /// How many fields the line has; the first `most_fields` of them are kept.
  [[nodiscard]] std::size_t count() const noexcept { return count_; }
  ///   Requires:  i < count() and i < most_fields
  [[nodiscard]] std::string_view operator[](std::size_t i) const noexcept { return fields_[i]; }

  /// Whether field `i` is a whole number below 2^64, which goes to `value`.
  [[nodiscard]] bool as_integer(std::size_t i, std::uint64_t& value) const noexcept {
    const std::string_view field = fields_[i];
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    return error == std::errc{} && end == field.data() + field.size();
  }

  /// A bound on the lines of the whole text, were each four fields or more.
  [[nodiscard]] std::size_t most_lines() const noexcept { return size_ / 8; }

  /// An error in this line.
  [[nodiscard]] input_error error(std::string rule) const {
    return {name_ + ":" + std::to_string(line_ == 0 ? 1 : line_), std::move(rule)};
  }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  /// All lines but blank ones at the end.
  [[nodiscard]] static std::string_view without_blank_end(std::string_view text) noexcept {
    const std::size_t last = text.find_last_not_of("\r\n");
    return last == std::string_view::npos ? std::string_view{} : text.substr(0, text.find('\n', last));
  }

  std::string_view rest_;
  std::size_t size_;
  std::string name_;
  std::string_view text_;
  std::array<std::string_view, most_fields> fields_{};
  std::size_t count_ = 0;
  std::size_t line_ = 0;
};

/// A field as an error shows it: cut to a readable length, without control characters.
[[nodiscard]] inline std::string shown(std::string_view field) {
  std::string text = "'";
  for (char c : field.substr(0, 40)) text += c >= ' ' && c <= '~' ? c : '?';
  return text + (field.size() > 40 ? "...'" : "'");
}

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

}  // namespace tessera::trace
