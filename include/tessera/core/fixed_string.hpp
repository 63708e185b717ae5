// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace tessera::detail {

/// Holds a text as a template argument, as in `pytorch<"max_split_size_mb:128">`.
template <std::size_t Size>
struct fixed_string {
  char chars[Size]{};

  consteval fixed_string(const char (&literal)[Size]) noexcept : fixed_string({literal, Size - 1}) {}
  explicit consteval fixed_string(std::string_view text) noexcept {
    for (std::size_t i = 0; i + 1 < Size; ++i) chars[i] = text[i];
  }
  [[nodiscard]] constexpr std::string_view view() const noexcept { return {chars, Size - 1}; }
};

}  // namespace tessera::detail
