// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstddef>
#include <exception>
#include <string_view>

#include <tessera/config/words.hpp>

namespace tessera::config {

/// A configuration string that is refused, in words: where in the text, which key and value, what is wrong with them,
/// and which rule they break.
class bad_setting final : public std::exception {
 public:
  bad_setting(std::string_view dialect, const setting_error& why) noexcept {
    char place[24];
    append(dialect);
    if (!why.key.empty()) {
      append(", character ");
      append(
          {place, static_cast<std::size_t>(std::to_chars(place, place + sizeof place, why.at).ptr - place)});
      append(": ");
      append(why.key);
    }
    if (!why.value.empty()) append(" ");
    append(why.value);
    append(": ");
    append(words_of(why.what));
    append(why.other);
    append(": ");
    append(why.rule);
  }
  [[nodiscard]] const char* what() const noexcept override { return text_; }

 private:
  void append(std::string_view part) noexcept {
    constexpr std::size_t most = 100;
    // A control character would end the sentence, or do something to the terminal that shows it.
    for (char c : part.substr(0, most)) text_[used_++] = (c >= 0 && c < ' ') || c == '\x7f' ? '?' : c;
  }
  char text_[768]{};
  std::size_t used_ = 0;
};

}  // namespace tessera::config
