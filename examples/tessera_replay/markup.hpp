// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::trace {

/// `text` as it may stand in HTML and SVG, between tags and in quoted attributes; control characters become spaces.
[[nodiscard]] inline std::string markup_text(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&': safe += "&amp;"; break;
      case '<': safe += "&lt;"; break;
      case '>': safe += "&gt;"; break;
      case '"': safe += "&quot;"; break;
      case '\'': safe += "&#39;"; break;
      default: safe += static_cast<unsigned char>(c) < ' ' || c == '\x7f' ? ' ' : c;
    }
  }
  return safe;
}

/// A number in units of `unit` with `decimals` digits behind the point, rounded to the nearest; the same on every machine.
///   Requires:  unit > 0, decimals <= 4; units above 2^50 are taken roughly
[[nodiscard]] inline std::string fixed_text(std::size_t number, std::size_t unit, int decimals) {
  for (; unit >> 50 != 0; unit /= 2) number /= 2;
  std::size_t scale = 1;
  for (int i = 0; i < decimals; ++i) scale *= 10;
  std::size_t whole = number / unit;
  std::size_t part = (number % unit * scale + unit / 2) / unit;
  if (part == scale) {
    ++whole;
    part = 0;
  }
  std::string text = std::to_string(whole);
  if (decimals == 0) return text;
  const std::string digits = std::to_string(part);
  return text + '.' + std::string(static_cast<std::size_t>(decimals) - digits.size(), '0') + digits;
}

/// A whole number with a comma before every three digits.
[[nodiscard]] inline std::string count_text(std::size_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, 1, ',');
  return text;
}

}  // namespace tessera::trace
