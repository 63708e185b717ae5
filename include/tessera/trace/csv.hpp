// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/trace/recording.hpp>

namespace tessera::inline v0_1::trace {

/// An error in an input: its position and the broken rule.
struct input_error {
  std::string where;  ///< "FILE:LINE" or "FILE: byte N"
  std::string rule;   ///< the broken rule, naming the offending value

  /// Both, as a line for people.
  [[nodiscard]] std::string text() const { return where + ": " + rule; }
};

}  // namespace tessera::inline v0_1::trace

namespace tessera::inline v0_1::trace::detail {

/// The maximum live bytes of a recording. Sums of a few such numbers do not overflow.
inline constexpr std::size_t max_live = std::size_t{1} << 62;

/// The error text for a request above max_request.
[[nodiscard]] inline std::string request_limit_text(std::uint64_t bytes) {
  return std::to_string(bytes) + " bytes; less than 2^60 are allowed";
}

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

/// Checks that each allocation is made once, used while live, and freed at most once. Limits the open scopes of
/// private pools.
///   Cost:  constant for ids below `dense`, else logarithmic; hostile ids make it neither slow nor large
class lifetime_checker {
 public:
  /// `dense` is the approximate number of allocations. Most programs number their allocations from 0.
  explicit lifetime_checker(std::size_t dense) : max_dense_(dense) {}

  /// Checks one event. Sets `keep` to false if it belongs to a request of 0 bytes.
  ///   Returns:  the error text, if the event breaks a rule
  [[nodiscard]] std::optional<std::string> check_event(const event& e, bool& keep) {
    const bool allocating = e.what == event::kind::allocate;
    const bool freeing = e.what == event::kind::free;
    if (e.what == event::kind::end_pool) open_scopes_.erase(e.id);
    if (e.what == event::kind::begin_pool && open_scopes_.insert(e.id).second &&
        open_scopes_.size() > max_open_scopes)
      return "the scopes of more than " + std::to_string(max_open_scopes) + " private pools are open";
    const bool is_refused = e.what == event::kind::refused;
    if (!allocating && !freeing && !is_refused && e.what != event::kind::record_stream) return {};
    if ((allocating || is_refused) && e.bytes > max_request)
      return "a request of " + request_limit_text(e.bytes);
    const std::string_view verb = is_refused   ? " is refused"
                                  : allocating ? " is allocated"
                                  : freeing    ? " is freed"
                                               : " is recorded";
    const auto error = [&](std::string_view rule) {
      return "id " + std::to_string(e.id).append(verb).append(rule);
    };

    allocation& entry = find_or_create(e.id);
    if (is_refused) {
      if (entry.now != state::unknown) return error(" and was allocated");
      entry = {e.bytes, state::freed};
      keep = e.bytes != 0;
      return {};
    }
    if (allocating) {
      if (entry.now != state::unknown) return error(" twice");
      if (e.bytes > max_live - live_) return error(", so more than 2^62 bytes would be live");
      entry = {e.bytes, state::live};
      live_ += e.bytes;
    }
    if (entry.now == state::unknown) return error(" but was never allocated");
    if (entry.now == state::freed) return error(freeing ? " twice" : " after it was freed");
    if (e.bytes != 0 && e.bytes != entry.bytes)
      return error(" with " + std::to_string(e.bytes) + (e.bytes == 1 ? " byte" : " bytes") +
                   " but was allocated with " + std::to_string(entry.bytes));
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

  // Each request searches the open scopes.
  static constexpr std::size_t max_open_scopes = 256;

  std::size_t live_ = 0;
  std::set<std::uint64_t> open_scopes_;  // by their pools
  std::size_t max_dense_;
  std::vector<allocation> dense_;
  std::map<std::uint64_t, allocation> sparse_;  // no hash map: hostile ids could collide
};

/// Returns the letter of an operation in the CSV format.
[[nodiscard]] constexpr char csv_letter(event::kind what) noexcept {
  switch (what) {
    case event::kind::allocate: return 'a';
    case event::kind::free: return 'f';
    case event::kind::record_stream: return 'r';
    case event::kind::answer_events: return 'e';
    case event::kind::empty_cache: return 'c';
    case event::kind::begin_pool: return 'b';
    case event::kind::join_pool: return 'j';
    case event::kind::end_pool: return 'n';
    case event::kind::retain_pool: return 'p';
    case event::kind::release_pool: return 'x';
    case event::kind::sleep: return 's';
    case event::kind::wake: return 'w';
    case event::kind::begin_step: return 'm';
    case event::kind::refused: return 'o';
  }
  return '?';
}

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
    case 'b': e.what = event::kind::begin_pool; break;
    case 'j': e.what = event::kind::join_pool; break;
    case 'n': e.what = event::kind::end_pool; break;
    case 'p': e.what = event::kind::retain_pool; break;
    case 'x': e.what = event::kind::release_pool; break;
    case 's': e.what = event::kind::sleep; break;
    case 'w': e.what = event::kind::wake; break;
    case 'm': e.what = event::kind::begin_step; break;
    case 'o': e.what = event::kind::refused; break;
    default: return "no such op: " + quoted_field(op) + "; ops are a, f, r, e, c, b, j, n, p, x, s, w, m, o";
  }
  std::uint64_t number[4]{};
  for (std::size_t i = 0; i < 4; ++i) {
    if (!line.read_integer(i + 1, number[i]))
      return quoted_field(line[i + 1]) + " is not a whole number below 2^64";
  }
  e.id = number[0];
  e.bytes = number[1];
  e.stream = stream_id{number[2]};
  if (e.what == event::kind::allocate || e.what == event::kind::free ||
      e.what == event::kind::record_stream || e.what == event::kind::refused)
    return {};
  const bool answers = e.what == event::kind::answer_events;
  const bool begins = e.what == event::kind::begin_pool;
  const bool sleeps = e.what == event::kind::sleep;
  const bool wakes = e.what == event::kind::wake;
  const bool chooses = answers || begins || sleeps;
  const bool has_stream =
      e.what == event::kind::join_pool || wakes || (begins && e.bytes == 0) || (sleeps && e.bytes == 1);
  const std::string verb = std::string(op) + " takes 0";
  if (e.bytes > (chooses ? 1u : 0u))
    return verb + (chooses ? " or 1" : "") + " as bytes, not " + std::to_string(e.bytes);
  if (answers && e.id != 0) return verb + " as id, not " + std::to_string(e.id);
  const bool takes_id_0 =
      sleeps || wakes || e.what == event::kind::empty_cache || e.what == event::kind::begin_step;
  if (e.id == 0 && !answers && !takes_id_0)
    return std::string(op) + " takes the number of a private pool as id, from 1";
  if (e.stream.handle != 0 && !has_stream) return verb + " as stream, not " + std::to_string(e.stream.handle);
  return {};
}

}  // namespace tessera::inline v0_1::trace::detail

namespace tessera::inline v0_1::trace {

/// Reads a program recorded as CSV with the header `op,id,bytes,stream,t_us`, one event per line.
///
/// The operations: `a` allocates, `f` frees, `r` records a use on `stream`, `c` empties the cache. `e` sets
/// the result of all later event queries: ready if `bytes` is 1, not ready if 0. For `f` and `r`, `bytes` is
/// the size or 0. Unused columns are 0.
///
/// Operations on the private pool `id`: `b` opens its scope for `stream`, or for all streams if `bytes` is 1,
/// and adds a use; `j` adds `stream` to the open scope; `n` closes it. `p` adds a use, and `x` removes one. `b`
/// and `p` make the pool if it does not exist. `c` with an id empties only that pool.
///
/// `s` puts the pool to sleep, or all pools if the id is 0. It saves the contents by copies on `stream` if
/// `bytes` is 1, and discards them if 0. `w` wakes the pool, or all pools that sleep, and copies on `stream`.
///
/// `m` marks the beginning of a step, with the key `id`. `o` is a request that ran out of memory when the program was
/// recorded; `id` was never allocated.
///
///     using namespace tessera::trace;
///     const auto read = read_csv("op,id,bytes,stream,t_us\na,0,1000,0,0\nf,0,1000,0,12\n", "a pair");
///     if (const auto* wrong = std::get_if<input_error>(&read)) std::puts(wrong->text().c_str());
///
///   Returns:  an error with its line for invalid lines, sizes of 2^60 bytes or more, and invalid lifetimes
///   Cost:     linear in the text if ids are small, else n log n; 12 bytes of host memory per byte of text
[[nodiscard]] inline std::variant<recording, input_error> read_csv(std::string_view text, std::string name) {
  detail::field_reader line(text, std::move(name));
  if (!line.next_line() || line.text() != detail::csv_header)
    return line.error("the header must be '" + std::string(detail::csv_header) + "', not " +
                      detail::quoted_field(line.text()));
  recording read{line.name(), {}};
  read.events.reserve(text.size() / 24);
  read.times_us.reserve(text.size() / 24);
  detail::lifetime_checker lifetimes(line.max_lines());
  while (line.next_line()) {
    event e{};
    bool keep = true;
    auto error = detail::read_event(line, e);
    if (!error) error = lifetimes.check_event(e, keep);
    if (error) return line.error(std::move(*error));
    if (!keep) continue;
    read.events.push_back(e);
    std::uint64_t time = 0;
    (void)line.read_integer(4, time);  // read_event has checked it
    read.times_us.push_back(time);
  }
  return read;
}

/// Writes a recording in the format of read_csv. If it has no times, the time of an event is its index.
[[nodiscard]] inline std::string to_csv(const recording& source) {
  std::string text(detail::csv_header);
  text += '\n';
  const bool has_times = source.times_us.size() == source.events.size();
  for (std::size_t i = 0; i < source.events.size(); ++i) {
    const event& e = source.events[i];
    const std::uint64_t time = has_times ? source.times_us[i] : i;
    text += detail::csv_letter(e.what);
    for (const std::uint64_t field : {e.id, std::uint64_t{e.bytes}, e.stream.handle, time})
      text.append(",").append(std::to_string(field));
    text += '\n';
  }
  return text;
}

}  // namespace tessera::inline v0_1::trace
