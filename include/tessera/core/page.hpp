// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/core/text.hpp>

namespace tessera {

/// A kind of page: its size and the permitted uses of its memory.
struct page_kind {
  enum class page_size : unsigned char {
    normal,  ///< the device's default
    huge,    ///< 2 MiB
    huge_1g  ///< 1 GiB
  };
  /// Selects one of a device's physical memories.
  enum class bandwidth : unsigned char { any, low, high };
  static const page_kind normal;
  static const page_kind huge;
  static const page_kind huge_1g;

  page_size size = page_kind::page_size::normal;
  bandwidth speed = page_kind::bandwidth::any;
  bool peer_to_peer = false;  ///< for copies between two devices
  bool read_only = false;     ///< the host may read but not write it

  /// Returns the granularity of memory of this kind, in bytes; 1 if the device alone decides.
  [[nodiscard]] constexpr std::size_t granularity() const noexcept {
    return size == page_kind::page_size::huge_1g ? 1_GiB : size == page_kind::page_size::huge ? 2_MiB : 1;
  }
  bool operator==(const page_kind&) const = default;
};

inline constexpr page_kind page_kind::normal{};
inline constexpr page_kind page_kind::huge{.size = page_kind::page_size::huge};
inline constexpr page_kind page_kind::huge_1g{.size = page_kind::page_size::huge_1g};

/// The kinds of pages to ask the device for, first choice first.
struct page_order {
  std::array<page_kind, 3> kinds{};
  std::size_t count = 0;

  [[nodiscard]] constexpr const page_kind* begin() const noexcept { return kinds.data(); }
  [[nodiscard]] constexpr const page_kind* end() const noexcept {
    if (count == 0 || count > kinds.size())
      detail::fatal("Recipe::pages: backing() returns one to three kinds of pages");
    return kinds.data() + count;
  }
  /// Returns the granularity of a request in bytes, whichever kind serves it.
  [[nodiscard]] constexpr std::size_t granularity() const noexcept {
    std::size_t max = 1;
    for (const page_kind& kind : *this) max = kind.granularity() > max ? kind.granularity() : max;
    return max;
  }
};

}  // namespace tessera

namespace tessera::detail {

/// Rounds `bytes` up to whole pages of every kind that a pages_policy asks for.
template <typename Pages>
[[nodiscard]] constexpr std::size_t in_whole_pages(const Pages& pages, std::size_t bytes) noexcept {
  return align_up(bytes, pages.backing(bytes).granularity());
}

}  // namespace tessera::detail
