// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

namespace tessera::config {

/// A string as a template argument.
template <std::size_t Size>
struct text {
  char chars[Size]{};

  consteval text(const char (&given)[Size]) noexcept {
    for (std::size_t i = 0; i < Size; ++i) chars[i] = given[i];
  }
  [[nodiscard]] constexpr std::string_view view() const noexcept { return {chars, Size - 1}; }
};

}  // namespace tessera::config
