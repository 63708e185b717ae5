// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tessera/trace/csv.hpp>

#include "files.hpp"

namespace replay {

/// A value of a JSON text, and where it begins. Numbers are whole, from 0 to 2^64 - 1, because the results of
/// this tool have no others.
struct json_value {
  enum class kind : unsigned char { null, boolean, number, text, list, object } is = kind::null;
  std::uint64_t number = 0;  ///< of a boolean: 0 or 1
  std::string text;
  std::vector<json_value> items;  ///< of a list, or the values of an object
  std::vector<std::string> keys;  ///< of an object, one for each item
  std::size_t at = 0;             ///< position in the text, in bytes
};

/// Reads one JSON value strictly: no further text, no key twice, no number with a sign, fraction or exponent.
///   Returns:  an error with its line and column, where `first_line` is the line of the first byte
///   Cost:     linear in the text; at most 120 bytes of host memory per byte of text, so callers bound the text
class strict_json {
 public:
  [[nodiscard]] static read_result<json_value> read(std::string_view text, const std::string& name,
                                                    std::size_t first_line = 1) {
    strict_json reader(text);
    json_value found;
    reader.value(found, 0);
    reader.space();
    if (reader.wrong_.empty() && reader.at_ != text.size())
      reader.fail("something follows the end of the value");
    if (reader.wrong_.empty()) return found;
    return input_error{place(text, name, reader.wrong_at_, first_line), std::move(reader.wrong_)};
  }
  /// Formats a position as NAME:LINE:COLUMN.
  [[nodiscard]] static std::string place(std::string_view text, const std::string& name, std::size_t at,
                                         std::size_t first_line) {
    const std::string_view before = text.substr(0, at);
    const auto lines = static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
    const std::size_t begin = before.rfind('\n') == before.npos ? 0 : before.rfind('\n') + 1;
    return name + ":" + std::to_string(first_line + lines) + ":" + std::to_string(at - begin + 1);
  }

 private:
  static constexpr int max_depth = 16;  // recursion stays shallow for any text

  explicit strict_json(std::string_view text) : text_(text) {}

  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void fail(std::string rule) {
    if (!wrong_.empty()) return;
    wrong_ = std::move(rule);
    wrong_at_ = at_;
  }
  void space() {
    while (peek() == ' ' || peek() == '\n' || peek() == '\r' || peek() == '\t') ++at_;
  }
  bool take(std::string_view word) {
    if (!wrong_.empty() || text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  void expect(std::string_view word) {
    if (!take(word)) fail("expected '" + std::string(word) + "'");
  }

  void value(json_value& to, int depth) {
    space();
    to.at = at_;
    if (depth > max_depth) return fail("lists and objects are nested more than 16 times");
    switch (peek()) {
      case '{': return object(to, depth);
      case '[': return list(to, depth);
      case '"': to.is = json_value::kind::text; return string(to.text);
      case 't': to.is = json_value::kind::boolean, to.number = 1; return expect("true");
      case 'f': to.is = json_value::kind::boolean; return expect("false");
      case 'n': return expect("null");
      default: return number(to);
    }
  }
  void object(json_value& to, int depth) {
    to.is = json_value::kind::object;
    expect("{");
    space();
    if (take("}")) return;
    do {
      std::string key;
      space();
      const std::size_t begin = at_;
      string(key);
      if (std::find(to.keys.begin(), to.keys.end(), key) != to.keys.end()) {
        at_ = begin;
        return fail("the key is there twice");
      }
      if (to.keys.size() == max_keys) return fail("an object has more than 64 keys");
      space();
      expect(":");
      if (!wrong_.empty()) return;
      to.keys.push_back(std::move(key));
      value(to.items.emplace_back(), depth + 1);
      space();
    } while (take(","));
    expect("}");
  }
  void list(json_value& to, int depth) {
    to.is = json_value::kind::list;
    expect("[");
    space();
    if (take("]")) return;
    do {
      value(to.items.emplace_back(), depth + 1);
      space();
    } while (take(","));
    expect("]");
  }
  void number(json_value& to) {
    to.is = json_value::kind::number;
    const std::size_t begin = at_;
    const auto is_digit = [this] { return peek() >= '0' && peek() <= '9'; };
    if (!is_digit()) return fail("expected a value");
    for (; is_digit(); ++at_) {
      const auto digit = static_cast<std::uint64_t>(peek() - '0');
      if (to.number > (std::numeric_limits<std::uint64_t>::max() - digit) / 10) {
        at_ = begin;
        return fail("the number is more than 2^64 - 1");
      }
      to.number = 10 * to.number + digit;
    }
    if (text_[begin] == '0' && at_ - begin > 1) fail("the number begins with 0");
    if (peek() == '.' || peek() == 'e' || peek() == 'E') fail("the number is not whole");
  }
  void string(std::string& to) {
    expect("\"");
    while (wrong_.empty() && peek() != '"') {
      if (at_ >= text_.size()) return fail("the text does not end");
      if (static_cast<unsigned char>(peek()) < 0x20) return fail("a text has a control character");
      if (peek() == '\\') {
        escape(to);
      } else {
        to += text_[at_++];
      }
    }
    expect("\"");
  }
  void escape(std::string& to) {
    constexpr std::string_view names = "\"\\/bfnrt", values = "\"\\/\b\f\n\r\t";
    const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    if (const std::size_t known = c == '\0' ? names.npos : names.find(c); known != names.npos) {
      to += values[known];
      at_ += 2;
    } else if (c == 'u') {
      unicode(to);
    } else {
      fail("no such escape");
    }
  }
  /// Reads \uXXXX, or a pair of them for one character, as UTF-8.
  void unicode(std::string& to) {
    std::uint32_t code = 0;
    if (!hexadecimal(code)) return fail("\\u needs four hexadecimal digits");
    if (code >= 0xd800 && code < 0xe000) {
      std::uint32_t low = 0;
      if (code >= 0xdc00 || !hexadecimal(low) || low < 0xdc00 || low >= 0xe000)
        return fail("half of a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    const auto put = [&to](std::uint32_t byte) { to += static_cast<char>(byte); };
    if (code < 0x80) return put(code);
    if (code < 0x800) {
      put(0xc0 | code >> 6);
    } else {
      if (code < 0x10000) put(0xe0 | code >> 12);
      if (code >= 0x10000) put(0xf0 | code >> 18), put(0x80 | (code >> 12 & 0x3f));
      put(0x80 | (code >> 6 & 0x3f));
    }
    put(0x80 | (code & 0x3f));
  }
  [[nodiscard]] bool hexadecimal(std::uint32_t& code) {
    if (text_.substr(at_, 2) != "\\u" || at_ + 6 > text_.size()) return false;
    constexpr std::string_view digits = "0123456789abcdef";
    for (std::size_t i = at_ + 2; i < at_ + 6; ++i) {
      const char c = text_[i] >= 'A' && text_[i] <= 'F' ? static_cast<char>(text_[i] | 0x20) : text_[i];
      const std::size_t digit = digits.find(c);
      if (digit == digits.npos) return false;
      code = code << 4 | static_cast<std::uint32_t>(digit);
    }
    at_ += 6;
    return true;
  }

  static constexpr std::size_t max_keys = 64;  // the search for repeated keys stays linear

  std::string_view text_;
  std::size_t at_ = 0;
  std::string wrong_;
  std::size_t wrong_at_ = 0;
};

/// Reads the fields of objects, and keeps the first error.
class json_fields {
 public:
  json_fields(std::string_view text, std::string name, std::size_t first_line)
      : text_(text), name_(std::move(name)), first_line_(first_line) {}

  [[nodiscard]] bool good() const { return !error_; }
  [[nodiscard]] const std::optional<input_error>& error() const { return error_; }
  void fail(const json_value& at, std::string rule) {
    if (error_) return;
    error_ = input_error{strict_json::place(text_, name_, at.at, first_line_), std::move(rule)};
  }

  /// Checks that the value is an object with no other keys than these.
  template <typename Keys>
  void check_keys(const json_value& of, const Keys& known) {
    if (of.is != json_value::kind::object) return fail(of, "expected an object");
    for (std::size_t i = 0; i < of.keys.size(); ++i) {
      if (std::find(std::begin(known), std::end(known), of.keys[i]) == std::end(known))
        return fail(of.items[i], "no such key: " + tessera::trace::detail::quoted_field(of.keys[i]));
    }
  }
  /// The value of a key, or null if there is none; that is no error.
  [[nodiscard]] const json_value* find(const json_value& of, std::string_view key) const {
    const auto found = std::find(of.keys.begin(), of.keys.end(), key);
    return found == of.keys.end() ? nullptr : &of.items[static_cast<std::size_t>(found - of.keys.begin())];
  }
  [[nodiscard]] bool has(const json_value& of, std::string_view key) const {
    return find(of, key) != nullptr;
  }

  [[nodiscard]] std::uint64_t number(const json_value& of, std::string_view key, std::uint64_t max) {
    const json_value* const found = required(of, key, json_value::kind::number, "a whole number");
    if (found == nullptr) return 0;
    if (found->number > max) fail(*found, "'" + std::string(key) + "' is more than " + std::to_string(max));
    return found->number;
  }
  [[nodiscard]] std::optional<std::size_t> optional_number(const json_value& of, std::string_view key,
                                                           std::uint64_t max) {
    if (!has(of, key)) return {};
    return static_cast<std::size_t>(number(of, key, max));
  }
  [[nodiscard]] bool boolean(const json_value& of, std::string_view key) {
    const json_value* const found = required(of, key, json_value::kind::boolean, "true or false");
    return found != nullptr && found->number != 0;
  }
  [[nodiscard]] std::string text(const json_value& of, std::string_view key, std::size_t max_bytes) {
    const json_value* const found = required(of, key, json_value::kind::text, "a text");
    if (found == nullptr) return {};
    if (found->text.size() > max_bytes)
      fail(*found, "'" + std::string(key) + "' is longer than " + std::to_string(max_bytes) + " bytes");
    return found->text;
  }
  [[nodiscard]] const std::vector<json_value>& list(const json_value& of, std::string_view key,
                                                    std::size_t max) {
    static const std::vector<json_value> none;
    const json_value* const found = required(of, key, json_value::kind::list, "a list");
    if (found == nullptr) return none;
    if (found->items.size() > max)
      fail(*found, "'" + std::string(key) + "' has more than " + std::to_string(max) + " elements");
    return found->items;
  }

 private:
  [[nodiscard]] const json_value* required(const json_value& of, std::string_view key, json_value::kind is,
                                           const char* what) {
    const json_value* const found = find(of, key);
    if (found == nullptr) fail(of, "'" + std::string(key) + "' is missing");
    if (found == nullptr || found->is == is) return found;
    fail(*found, "'" + std::string(key) + "' must be " + what);
    return nullptr;
  }

  std::string_view text_;
  std::string name_;
  std::size_t first_line_;
  std::optional<input_error> error_;
};

}  // namespace replay
