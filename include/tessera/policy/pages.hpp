// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>

#include <tessera/core/page.hpp>

namespace tessera {

/// Decides what backs a segment, and what to take instead where that runs out.
///
///   P::uses_page_kinds    whether the device must be a paged_provider
///   p.backing(segment)    the kinds of page to ask for, in order, for a segment of `segment` bytes
template <typename P>
concept pages_policy = std::regular<P> && requires(const P& p, std::size_t segment) {
  { P::uses_page_kinds } -> std::convertible_to<bool>;
  { p.backing(segment) } noexcept -> std::same_as<page_order>;
};

/// Asks for normal pages, or where the device knows no kinds, for what it has.
struct back_with_normal_pages {
  static constexpr bool uses_page_kinds = false;
  [[nodiscard]] static constexpr page_order backing(std::size_t) noexcept { return {{page_kind::normal}, 1}; }
  bool operator==(const back_with_normal_pages&) const = default;
};

/// Asks for 2 MiB pages, and for normal ones where those have run out.
struct back_with_huge_pages_first {
  static constexpr bool uses_page_kinds = true;
  [[nodiscard]] static constexpr page_order backing(std::size_t) noexcept {
    return {{page_kind::huge, page_kind::normal}, 2};
  }
  bool operator==(const back_with_huge_pages_first&) const = default;
};

}  // namespace tessera
