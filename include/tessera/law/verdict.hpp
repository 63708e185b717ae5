// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera::law {

/// Which law is broken, in words, or null where all hold.
struct verdict {
  const char* broken = nullptr;

  [[nodiscard]] constexpr explicit operator bool() const noexcept { return broken == nullptr; }
  /// Keeps the first law that does not hold.
  constexpr void require(bool holds, const char* law) noexcept {
    if (!holds && broken == nullptr) broken = law;
  }
};

}  // namespace tessera::law
