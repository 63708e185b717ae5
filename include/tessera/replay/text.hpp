// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::trace {

/// How many bytes at the beginning of `text` are one character in UTF-8, or 0 where they are none.
///   Requires:  text is not empty
[[nodiscard]] inline std::size_t utf8_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  // Of the second byte, what would be written too long, a surrogate, or above U+10FFFF is none.
  const unsigned least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < least || byte(1) > most) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

/// `text` in UTF-8, whatever it holds: a byte that belongs to no character becomes U+FFFD.
[[nodiscard]] inline std::string utf8_text(std::string_view text) {
  std::string safe;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    length != 0 ? safe += text.substr(0, length) : safe += "\xef\xbf\xbd";
    text.remove_prefix(length != 0 ? length : 1);
  }
  return safe;
}

/// `text`, whatever it holds, as it may stand between the quotes of a JSON string.
[[nodiscard]] inline std::string json_text(std::string_view text) {
  std::string safe;
  for (const char c : utf8_text(text)) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') safe += '\\';
    if (code >= 0x20) {
      safe += c;
    } else {
      (safe += "\\u00") += "0123456789abcdef"[code >> 4];
      safe += "0123456789abcdef"[code & 15];
    }
  }
  return safe;
}

}  // namespace tessera::trace
