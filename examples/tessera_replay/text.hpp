// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <tessera/observe/to_pickle.hpp>

namespace replay {

using tessera::detail::utf8_text;

/// Escapes any bytes for use inside a JSON string.
[[nodiscard]] inline std::string json_text(std::string_view text) {
  std::string safe;
  for (const char c : utf8_text(text)) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') safe += '\\';
    if (code >= 0x20) {
      safe += c;
    } else {
      safe += "\\u00";
      safe += "0123456789abcdef"[code >> 4];
      safe += "0123456789abcdef"[code & 15];
    }
  }
  return safe;
}

/// A number and its noun, as "1 block" and "2 blocks". `many` is the plural, if it is not `one` with an s.
[[nodiscard]] inline std::string counted(std::uintmax_t n, std::string_view one, std::string_view many = {}) {
  std::string text = std::to_string(n);
  text += ' ';
  text += n == 1 || many.empty() ? one : many;
  if (n != 1 && many.empty()) text += 's';
  return text;
}

/// Makes any bytes safe to print on a terminal: control characters become '?', and the result is valid UTF-8.
[[nodiscard]] inline std::string printable_text(std::string_view text) {
  std::string safe(text);
  for (char& c : safe) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  return utf8_text(safe);
}

}  // namespace replay
