// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

#include <tessera/core/fatal.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/parameter.hpp>

namespace tessera {

/// Decides which kinds of pages back a segment.
///
///   P::uses_page_kinds    whether the device must be a paged_provider
///   p.backing(segment)    the kinds of pages to ask for, first choice first, for a segment of `segment`
///                         bytes; the segment is then rounded up to whole pages
///
/// Laws, checked by law::pages:
///   stable      a segment in whole pages stays as it is
///   monotonic   a <= b  implies  in_whole_pages(p, a) <= in_whole_pages(p, b)
template <typename P>
concept pages_policy = detail::regular<P> && requires(const P& p, std::size_t segment) {
  { P::uses_page_kinds } -> std::convertible_to<bool>;
  { p.backing(segment) } noexcept -> std::same_as<page_order>;
};

/// Asks for the pages of a page_choice.
///
/// Choose it for bandwidth classes, peer-to-peer or read-only memory; the aliases below are for the usual
/// page sizes. A device without page kinds can serve normal pages only. A constant choice that breaks a rule
/// does not compile. A choice set at run time aborts the program at its first use if it breaks a rule; check
/// its broken_rule() first.
///
///     constexpr tessera::page_choice for_peers{.pages = tessera::page_plan::huge_first, .peer_to_peer = true};
///     using recipe = tessera::with<tessera::torch_npu<>, tessera::back_with<for_peers>>;
///
///   Source:  ACL's malloc policies; interop/acl_malloc_policy.hpp translates their numbers and names
template <auto Choice = tunable<page_choice>{page_choice{}}>
struct back_with {
  static_assert(std::same_as<std::remove_cv_t<typename parameter<Choice>::value_type>, page_choice>,
                "pages: back_with takes a page_choice or a tunable one [tessera/core/page.hpp]");
  static constexpr page_choice initial = parameter<Choice>{}.get();
  static constexpr const char* hint =  ///< what explain() suggests
      initial.pages == page_plan::normal_only ? "back_with_normal_pages" : "back_with_huge_pages_first";
  static_assert(initial.speed == page_kind::bandwidth::any || !initial.is_huge_1g(),
                "pages: low or high bandwidth goes with normal and 2 MiB pages, not with 1 GiB pages");
  static_assert(initial.speed == page_kind::bandwidth::any || !initial.peer_to_peer,
                "pages: low or high bandwidth does not go with peer-to-peer memory");
  static_assert(initial.broken_rule() == nullptr, "pages: the choice breaks a rule of page_choice");

  [[no_unique_address]] parameter<Choice> choice{};

  static constexpr bool is_fixed = std::is_empty_v<parameter<Choice>>;
  static constexpr bool uses_page_kinds =
      !is_fixed || initial != page_choice{.pages = page_plan::normal_only};

  [[nodiscard]] constexpr page_order backing(std::size_t segment) const noexcept {
    const page_choice current = choice.get();
    if constexpr (!is_fixed) {
      if (const char* const rule = current.broken_rule()) detail::fatal(rule);
    }
    return current.order(segment);
  }
  bool operator==(const back_with&) const = default;
};

/// Asks for normal pages. Every device has them.
using back_with_normal_pages = back_with<page_choice{.pages = page_plan::normal_only}>;

/// Asks for 2 MiB pages, then for normal pages. Segments of at most 1 MiB get normal pages only.
using back_with_huge_pages_first = back_with<page_choice{.pages = page_plan::huge_first}>;

/// Asks for 2 MiB pages only, for small segments too.
using back_with_huge_pages_only = back_with<page_choice{.pages = page_plan::huge_only}>;

/// Asks for 1 GiB pages for segments above 2 MiB. Then it asks like back_with_huge_pages_first.
///   Source:  torch_npu's page_size:1g, whose small segments are 2 MiB
using back_with_huge_1g_pages_first = back_with<page_choice{.pages = page_plan::huge_1g_first}>;

/// Asks for 1 GiB pages only. This needs the fewest page table entries, but at least 1 GiB per segment.
using back_with_huge_1g_pages_only = back_with<page_choice{.pages = page_plan::huge_1g_only}>;

}  // namespace tessera
