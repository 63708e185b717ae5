// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/core/parameter.hpp>
#include <tessera/core/types.hpp>

namespace tessera::inline v0_1::policy {

/// Decides which kinds of pages back a segment.
///
///   P::uses_page_kinds    whether the device must be a paged_provider
///   p.backing(segment)    the kinds of pages to ask for, first choice first, for a segment of `segment`
///                         bytes; the segment is then rounded up to whole pages
///
/// Laws, checked by law::policy:
///   stable      a segment in whole pages stays as it is
///   monotonic   a <= b  implies  in_whole_pages(p, a) <= in_whole_pages(p, b)
template <typename P>
concept pages_policy = detail::regular<P> && requires(const P& p, std::size_t segment) {
  { P::uses_page_kinds } -> std::convertible_to<bool>;
  { p.backing(segment) } noexcept -> std::same_as<page_order>;
};

/// Asks for the device's normal pages. Every device has them.
struct normal_pages {
  static constexpr const char* hint = "normal_pages";  ///< what explain() suggests
  static constexpr bool uses_page_kinds = false;
  [[nodiscard]] static constexpr page_order backing(std::size_t) noexcept { return {{page_kind::normal}, 1}; }
  bool operator==(const normal_pages&) const = default;
};

}  // namespace tessera::inline v0_1::policy
