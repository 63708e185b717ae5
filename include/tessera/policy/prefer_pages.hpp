// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <tessera/policy/pages.hpp>

namespace tessera::inline v0_1 {

/// Page sizes that may back a segment.
enum class page_preference : unsigned char {
  normal_only,  ///< normal pages; every device has them
  huge_first,  ///< 2 MiB pages, or normal ones if there are too few; for segments up to `max_normal`, normal ones
  huge_only,      ///< 2 MiB pages, for small segments too
  huge_1g_first,  ///< 1 GiB pages for segments above 2 MiB; else as huge_first
  huge_1g_only    ///< 1 GiB pages; fewest page table entries, but at least 1 GiB for each segment
};

/// The pages a user wants; by default, 2 MiB pages first.
///   Source:  ACL's aclrtMemMallocPolicy; huge_1g_first is torch_npu's page_size:1g
struct page_choice {
  page_preference pages = page_preference::huge_first;  ///< which sizes of pages to ask for, in order
  /// Of the memory; only for normal pages and those of 2 MiB.
  page_kind::bandwidth speed = page_kind::bandwidth::any;
  bool peer_to_peer = false;  ///< for copies between two devices
  bool read_only = false;     ///< the host may read but not write it; allowed with every other member
  /// Bytes of the largest segment that has normal pages although huge pages come first. ACL's document has no such
  /// size for memory of peers: `.max_normal = 0`.
  std::size_t max_normal = 1_MiB;

  /// Whether pages of 1 GiB come first.
  [[nodiscard]] constexpr bool is_huge_1g() const noexcept {
    return pages == page_preference::huge_1g_first || pages == page_preference::huge_1g_only;
  }
  /// Returns the rule that the choice breaks, as text, or null.
  [[nodiscard]] constexpr const char* broken_rule() const noexcept {
    if (speed == page_kind::bandwidth::any) return nullptr;
    if (is_huge_1g()) return "low or high bandwidth goes with normal and 2 MiB pages, not with 1 GiB pages";
    return peer_to_peer ? "low or high bandwidth does not go with peer-to-peer memory" : nullptr;
  }

  /// Returns the kinds of pages to ask for, in order, for a segment of `segment` bytes.
  ///
  /// If smaller pages may serve, small segments get them: normal pages up to `max_normal`, 2 MiB pages up to 2 MiB.
  /// Only larger requests are rounded up. That agrees with both sentences of ACL's documentation: huge-first
  /// memory is rounded up to 2 MiB, and up to 1 MiB takes normal pages. The second is about plain huge-first
  /// only; ACL applies it to peers, too.
  [[nodiscard]] constexpr page_order order(std::size_t segment) const noexcept {
    const page_kind normal{page_kind::page_size::normal, speed, peer_to_peer, read_only};
    const page_kind huge{page_kind::page_size::huge, speed, peer_to_peer, read_only};
    const page_kind huge_1g{page_kind::page_size::huge_1g, speed, peer_to_peer, read_only};
    if (pages == page_preference::huge_only) return {{huge}, 1};
    if (pages == page_preference::huge_1g_only) return {{huge_1g}, 1};
    if (pages == page_preference::normal_only || segment <= max_normal) return {{normal}, 1};
    if (pages == page_preference::huge_first || segment <= huge.granularity()) return {{huge, normal}, 2};
    return {{huge_1g, huge, normal}, 3};
  }

  /// Returns the choice of only this kind.
  [[nodiscard]] static constexpr page_choice only(const page_kind& kind) noexcept {
    const page_preference plan = kind.size == page_kind::page_size::huge_1g ? page_preference::huge_1g_only
                                 : kind.size == page_kind::page_size::huge  ? page_preference::huge_only
                                                                            : page_preference::normal_only;
    return {plan, kind.speed, kind.peer_to_peer, kind.read_only};
  }
  bool operator==(const page_choice&) const = default;
};

}  // namespace tessera::inline v0_1

namespace tessera::inline v0_1::detail {

/// Converts a page_preference to the page_choice without other demands. Returns other values as they are.
template <typename Choice>
[[nodiscard]] consteval auto to_page_choice(const Choice& choice) {
  if constexpr (std::same_as<Choice, page_preference>)
    return page_choice{.pages = choice};
  else
    return choice;
}

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::policy {

/// Asks for the pages of a page_preference or a page_choice.
///
/// Choose a page_choice for bandwidth classes, peer-to-peer or read-only memory. A device without page kinds
/// can serve normal pages only. A constant choice that breaks a rule does not compile. A choice set at run
/// time aborts the program at its first use if it breaks a rule; check its broken_rule() first.
///
///     using huge = tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::prefer_pages<tessera::page_preference::huge_first>>;
///     constexpr tessera::page_choice for_peers{.pages = tessera::page_preference::huge_first, .peer_to_peer = true};
///     using shared = tessera::recipe::with<tessera::recipe::torch_npu<>, tessera::policy::prefer_pages<for_peers>>;
///
///   Source:  ACL's malloc policies; interop/acl_malloc_policy.hpp translates their numbers and names
template <auto Choice = tunable<page_choice>{page_choice{}}>
struct prefer_pages {
 private:
  using parameter_type = parameter<detail::to_page_choice(Choice)>;

 public:
  static_assert(std::same_as<std::remove_cv_t<typename parameter_type::value_type>, page_choice>,
                "pages: prefer_pages takes a page_preference, a page_choice or a tunable page_choice "
                "[tessera/policy/prefer_pages.hpp]");
  /// The choice before the program sets another.
  static constexpr page_choice initial = parameter_type{}.get();
  static constexpr const char* hint =  ///< what explain() suggests
      initial.pages == page_preference::normal_only ? "prefer_pages<page_preference::normal_only>"
                                                    : "prefer_pages<page_preference::huge_first>";
  static_assert(initial.speed == page_kind::bandwidth::any || !initial.is_huge_1g(),
                "pages: low or high bandwidth goes with normal and 2 MiB pages, not with 1 GiB pages");
  static_assert(initial.speed == page_kind::bandwidth::any || !initial.peer_to_peer,
                "pages: low or high bandwidth does not go with peer-to-peer memory");

  /// Read for each segment, so a change counts from the next one on.
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter_type choice{};

  /// Whether it is a constant, which the program cannot set.
  static constexpr bool is_fixed = std::is_empty_v<parameter_type>;
  static constexpr bool uses_page_kinds =
      !is_fixed || initial != page_choice{.pages = page_preference::normal_only};

  [[nodiscard]] constexpr page_order backing(std::size_t segment) const noexcept {
    const page_choice current = choice.get();
    if constexpr (!is_fixed) {
      if (const char* const rule = current.broken_rule())
        detail::fatal(detail::fixed_text().add("prefer_pages: ").add(rule).c_str());
    }
    return current.order(segment);
  }
  bool operator==(const prefer_pages&) const = default;
};

}  // namespace tessera::inline v0_1::policy
