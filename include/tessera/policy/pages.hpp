// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

#include <tessera/core/fatal.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/page_choice.hpp>
#include <tessera/core/parameter.hpp>
#include <tessera/core/regular.hpp>

namespace tessera {

/// Decides what backs a segment, and what to take instead where that runs out.
///
///   P::uses_page_kinds    whether the device must be a paged_provider
///   p.backing(segment)    the kinds of page to ask for, in order, for a segment of `segment` bytes; the segment is then
///                         rounded up to whole pages
///
/// Laws, checked by law::pages:
///   settles     rounding a segment up to whole pages twice is rounding it once
///   monotonic   a <= b  implies  in_whole_pages(p, a) <= in_whole_pages(p, b)
template <typename P>
concept pages_policy = regular<P> && requires(const P& p, std::size_t segment) {
  { P::uses_page_kinds } -> std::convertible_to<bool>;
  { p.backing(segment) } noexcept -> std::same_as<page_order>;
};

/// Asks for the pages of a page_choice; plain normal ones are also to be had from a device that knows no kinds.
///
/// A choice that breaks a rule does not compile; one set at run time ends the program where it is first used, so ask its
/// broken_rule() before.
///
///     constexpr tessera::page_choice for_peers{.pages = tessera::page_plan::huge_first, .peer_to_peer = true};
///     using recipe = tessera::with<tessera::torch_npu<>, tessera::back_with<for_peers>>;
///
///   Source:  ACL's malloc policies, of which it is every legal one; as numbers and names in config/acl_malloc_policy.hpp
template <auto Choice = tunable<page_choice>{page_choice{}}>
struct back_with {
  static_assert(std::same_as<std::remove_cv_t<typename parameter<Choice>::value_type>, page_choice>,
                "pages: back_with takes a page_choice or a tunable one [tessera/core/page_choice.hpp]");
  static constexpr page_choice initial = parameter<Choice>{}.get();
  static_assert(initial.speed == bandwidth::any || !initial.is_giant(),
                "pages: low or high bandwidth goes with normal and 2 MiB pages, not with 1 GiB pages");
  static_assert(initial.speed == bandwidth::any || !initial.peer_to_peer,
                "pages: low or high bandwidth does not go with peer-to-peer memory");
  static_assert(initial.broken_rule() == nullptr, "pages: the choice breaks a rule of page_choice");

  [[no_unique_address]] parameter<Choice> choice{};

  static constexpr bool is_fixed = std::is_empty_v<parameter<Choice>>;
  static constexpr bool uses_page_kinds =
      !is_fixed || initial != page_choice{.pages = page_plan::normal_only};

  [[nodiscard]] constexpr page_order backing(std::size_t segment) const noexcept {
    const page_choice chosen = choice.get();
    if constexpr (!is_fixed) {
      if (const char* const rule = chosen.broken_rule()) fatal(rule);
    }
    return chosen.order(segment);
  }
  bool operator==(const back_with&) const = default;
};

/// Asks for normal pages, or where the device knows no kinds, for what it has.
using back_with_normal_pages = back_with<page_choice{.pages = page_plan::normal_only}>;

/// Asks for 2 MiB pages, and for normal ones where those have run out or the segment is of at most 1 MiB.
using back_with_huge_pages_first = back_with<page_choice{.pages = page_plan::huge_first}>;

/// Asks for 2 MiB pages alone, for the smallest segment too.
using back_with_huge_pages_only = back_with<page_choice{.pages = page_plan::huge_only}>;

/// Asks for 1 GiB pages for segments above 2 MiB, then as back_with_huge_pages_first does.
///   Source:  torch_npu's page_size:1g, whose small segments are of 2 MiB
using back_with_giant_pages_first = back_with<page_choice{.pages = page_plan::giant_first}>;

/// Asks for 1 GiB pages alone: fewest entries in the device's page tables, and 1 GiB for the smallest segment.
using back_with_giant_pages_only = back_with<page_choice{.pages = page_plan::giant_only}>;

}  // namespace tessera
