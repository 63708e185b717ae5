// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <tessera/replay/event.hpp>

namespace tessera::trace {

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

}  // namespace tessera::trace
