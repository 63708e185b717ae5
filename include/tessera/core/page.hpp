// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>

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

namespace tessera {

/// Page sizes that may back a segment.
enum class page_plan : unsigned char {
  normal_only,    ///< normal pages; every device has them
  huge_first,     ///< 2 MiB pages, else normal ones; normal pages only for segments of at most 1 MiB
  huge_only,      ///< 2 MiB pages, for small segments too
  huge_1g_first,  ///< 1 GiB pages for segments above 2 MiB; else as huge_first
  huge_1g_only    ///< 1 GiB pages; fewest page table entries, but at least 1 GiB for each segment
};

/// The pages a user wants; by default, 2 MiB pages first.
///   Source:  ACL's aclrtMemMallocPolicy; huge_1g_first is torch_npu's page_size:1g
struct page_choice {
  page_plan pages = page_plan::huge_first;
  page_kind::bandwidth speed = page_kind::bandwidth::any;
  bool peer_to_peer = false;  ///< for copies between two devices
  bool read_only = false;     ///< the host may read but not write it; allowed with every other member

  [[nodiscard]] constexpr bool is_huge_1g() const noexcept {
    return pages == page_plan::huge_1g_first || pages == page_plan::huge_1g_only;
  }
  /// Returns the rule that the choice breaks, as text, or null.
  [[nodiscard]] constexpr const char* broken_rule() const noexcept {
    if (speed == page_kind::bandwidth::any) return nullptr;
    if (is_huge_1g()) return "low or high bandwidth goes with normal and 2 MiB pages, not with 1 GiB pages";
    return peer_to_peer ? "low or high bandwidth does not go with peer-to-peer memory" : nullptr;
  }

  /// Returns the kinds of pages to ask for, in order, for a segment of `segment` bytes.
  ///
  /// If smaller pages may serve, small segments get them: normal pages up to 1 MiB, 2 MiB pages up to 2 MiB.
  /// ACL's documentation says that huge-first memory is rounded up to 2 MiB. It also says that up to 1 MiB
  /// takes normal pages. Both hold if only larger requests are rounded. The second sentence covers plain
  /// huge-first only; ACL applies it to peers, too.
  [[nodiscard]] constexpr page_order order(std::size_t segment) const noexcept {
    const page_kind normal{page_kind::page_size::normal, speed, peer_to_peer, read_only};
    const page_kind huge{page_kind::page_size::huge, speed, peer_to_peer, read_only};
    const page_kind huge_1g{page_kind::page_size::huge_1g, speed, peer_to_peer, read_only};
    if (pages == page_plan::huge_only) return {{huge}, 1};
    if (pages == page_plan::huge_1g_only) return {{huge_1g}, 1};
    if (pages == page_plan::normal_only || segment <= huge.granularity() / 2) return {{normal}, 1};
    if (pages == page_plan::huge_first || segment <= huge.granularity()) return {{huge, normal}, 2};
    return {{huge_1g, huge, normal}, 3};
  }

  /// Returns the choice of only this kind.
  [[nodiscard]] static constexpr page_choice only(const page_kind& kind) noexcept {
    const page_plan plan = kind.size == page_kind::page_size::huge_1g ? page_plan::huge_1g_only
                           : kind.size == page_kind::page_size::huge  ? page_plan::huge_only
                                                                      : page_plan::normal_only;
    return {plan, kind.speed, kind.peer_to_peer, kind.read_only};
  }
  bool operator==(const page_choice&) const = default;
};

}  // namespace tessera
