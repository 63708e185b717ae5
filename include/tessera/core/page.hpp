// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>

namespace tessera {

/// How large the pages are that back memory.
enum class page_size : unsigned char {
  normal,  ///< what the device has by default
  huge,    ///< 2 MiB
  giant    ///< 1 GiB
};

/// Which of a device's physical memories backs memory.
enum class bandwidth : unsigned char { any, low, high };

/// What backs memory: a page size, and what the memory must be good for.
struct page_kind {
  page_size size = page_size::normal;
  bandwidth speed = bandwidth::any;
  bool peer_to_peer = false;  ///< for copies between two devices
  bool read_only = false;     ///< programs on the host's side may read it and not write it

  /// Bytes that memory of this kind is a multiple of; 1 where the device alone decides.
  [[nodiscard]] constexpr std::size_t step() const noexcept {
    return size == page_size::giant ? 1_GiB : size == page_size::huge ? 2_MiB : 1;
  }
  bool operator==(const page_kind&) const = default;
};

inline constexpr page_kind normal_pages{};
inline constexpr page_kind huge_pages{.size = page_size::huge};
inline constexpr page_kind giant_pages{.size = page_size::giant};

/// The kinds of page to ask the device for, first choice first.
struct page_order {
  std::array<page_kind, 3> kinds{};
  std::size_t count = 0;

  [[nodiscard]] constexpr const page_kind* begin() const noexcept { return kinds.data(); }
  [[nodiscard]] constexpr const page_kind* end() const noexcept {
    if (count == 0 || count > kinds.size())
      fatal("Recipe::pages: backing names from one to three kinds of page");
    return kinds.data() + count;
  }
  /// Bytes that what is asked for is a multiple of, whichever kind serves.
  [[nodiscard]] constexpr std::size_t step() const noexcept {
    std::size_t most = 1;
    for (const page_kind& kind : *this) most = kind.step() > most ? kind.step() : most;
    return most;
  }
};

/// `bytes`, rounded up to whole pages of whichever kind a pages_policy backs them with.
template <typename Pages>
[[nodiscard]] constexpr std::size_t in_whole_pages(const Pages& pages, std::size_t bytes) noexcept {
  return align_up(bytes, pages.backing(bytes).step());
}

}  // namespace tessera
