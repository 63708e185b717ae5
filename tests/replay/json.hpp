// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// A value of a JSON text.
struct json {
  enum class kind { null, boolean, number, text, list, object } is = kind::null;
  double number = 0;
  std::string text;
  std::vector<json> items;
  std::map<std::string, json> fields;

  [[nodiscard]] const json& operator[](const std::string& key) const {
    static const json nothing;
    const auto found = fields.find(key);
    return found == fields.end() ? nothing : found->second;
  }
};

/// Parses strict JSON. Returns nothing if the text is invalid.
class json_reader {
 public:
  [[nodiscard]] static std::optional<json> read(std::string_view text) {
    json_reader reader(text);
    json found;
    reader.value(found);
    reader.space();
    if (!reader.good_ || reader.at_ != text.size()) return {};
    return found;
  }

 private:
  explicit json_reader(std::string_view text) : text_(text) {}

  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void space() {
    while (peek() == ' ' || peek() == '\n' || peek() == '\r' || peek() == '\t') ++at_;
  }
  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  void expect(std::string_view word) { good_ = good_ && take(word); }

  void value(json& to) {
    space();
    if (!good_) return;
    switch (peek()) {
      case '{': object(to); break;
      case '[': list(to); break;
      case '"': to.is = json::kind::text, string(to.text); break;
      case 't': to.is = json::kind::boolean, to.number = 1, expect("true"); break;
      case 'f': to.is = json::kind::boolean, expect("false"); break;
      case 'n': expect("null"); break;
      default: number(to);
    }
  }
  void object(json& to) {
    to.is = json::kind::object;
    expect("{");
    space();
    if (take("}")) return;
    do {
      std::string key;
      space();
      string(key);
      space();
      expect(":");
      good_ = good_ && to.fields.find(key) == to.fields.end();
      value(to.fields[key]);
      space();
    } while (good_ && take(","));
    expect("}");
  }
  void list(json& to) {
    to.is = json::kind::list;
    expect("[");
    space();
    if (take("]")) return;
    do {
      value(to.items.emplace_back());
      space();
    } while (good_ && take(","));
    expect("]");
  }
  void string(std::string& to) {
    expect("\"");
    while (good_ && peek() != '"') {
      if (at_ >= text_.size() || static_cast<unsigned char>(peek()) < 0x20) return void(good_ = false);
      if (peek() != '\\') {
        to += text_[at_++];
      } else if (text_.substr(at_, 4) == "\\u00" && at_ + 6 <= text_.size()) {
        unsigned code = 0;
        const auto [end, error] = std::from_chars(text_.data() + at_ + 4, text_.data() + at_ + 6, code, 16);
        good_ = error == std::errc{} && end == text_.data() + at_ + 6;
        to += static_cast<char>(code);
        at_ += 6;
      } else {
        good_ = at_ + 1 < text_.size() && (text_[at_ + 1] == '"' || text_[at_ + 1] == '\\');
        if (good_) to += text_[at_ + 1];
        at_ += 2;
      }
    }
    expect("\"");
  }
  void number(json& to) {
    to.is = json::kind::number;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), to.number);
    good_ = good_ && error == std::errc{} && (*begin == '-' || (*begin >= '0' && *begin <= '9'));
    at_ = static_cast<std::size_t>(end - text_.data());
  }

  std::string_view text_;
  std::size_t at_ = 0;
  bool good_ = true;
};
