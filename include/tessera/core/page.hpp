// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

namespace tessera {

/// What backs a segment.
enum class page_kind : unsigned char {
  normal,
  huge,  ///< 2 MiB pages
};

/// The kinds of page to ask the device for, first choice first.
struct page_order {
  std::array<page_kind, 2> kinds{};
  std::size_t count = 0;

  [[nodiscard]] constexpr const page_kind* begin() const noexcept { return kinds.data(); }
  [[nodiscard]] constexpr const page_kind* end() const noexcept { return kinds.data() + count; }
};

}  // namespace tessera
