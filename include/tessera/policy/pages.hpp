// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

#include <tessera/core/fatal.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/parameter.hpp>

namespace tessera::policy {

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

}  // namespace tessera::policy

namespace tessera::detail {

/// Converts a page_plan to the page_choice without other demands. Returns other values as they are.
template <typename Choice>
[[nodiscard]] consteval auto to_page_choice(const Choice& choice) {
  if constexpr (std::same_as<Choice, page_plan>)
    return page_choice{.pages = choice};
  else
    return choice;
}

}  // namespace tessera::detail

namespace tessera::policy {

/// Asks for the pages of a page_plan or a page_choice.
///
/// Choose a page_choice for bandwidth classes, peer-to-peer or read-only memory. A device without page kinds
/// can serve normal pages only. A constant choice that breaks a rule does not compile. A choice set at run
/// time aborts the program at its first use if it breaks a rule; check its broken_rule() first.
///
///     using huge = tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::back_with<tessera::page_plan::huge_first>>;
///     constexpr tessera::page_choice for_peers{.pages = tessera::page_plan::huge_first, .peer_to_peer = true};
///     using shared = tessera::recipe::with<tessera::recipe::torch_npu<>, tessera::policy::back_with<for_peers>>;
///
///   Source:  ACL's malloc policies; interop/acl_malloc_policy.hpp translates their numbers and names
template <auto Choice = tunable<page_choice>{page_choice{}}>
struct back_with {
 private:
  using parameter_type = parameter<detail::to_page_choice(Choice)>;

 public:
  static_assert(std::same_as<std::remove_cv_t<typename parameter_type::value_type>, page_choice>,
                "pages: back_with takes a page_plan, a page_choice or a tunable page_choice "
                "[tessera/core/page.hpp]");
  static constexpr page_choice initial = parameter_type{}.get();
  static constexpr const char* hint =  ///< what explain() suggests
      initial.pages == page_plan::normal_only ? "back_with<page_plan::normal_only>"
                                              : "back_with<page_plan::huge_first>";
  static_assert(initial.speed == page_kind::bandwidth::any || !initial.is_huge_1g(),
                "pages: low or high bandwidth goes with normal and 2 MiB pages, not with 1 GiB pages");
  static_assert(initial.speed == page_kind::bandwidth::any || !initial.peer_to_peer,
                "pages: low or high bandwidth does not go with peer-to-peer memory");

  [[no_unique_address]] parameter_type choice{};

  static constexpr bool is_fixed = std::is_empty_v<parameter_type>;
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

}  // namespace tessera::policy
