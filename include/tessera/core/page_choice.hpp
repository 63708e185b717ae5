// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>

namespace tessera {

/// Which sizes of page may back a segment.
enum class page_plan : unsigned char {
  normal_only,
  huge_first,   ///< 2 MiB, and normal where those run out
  huge_only,    ///< 2 MiB or nothing
  giant_first,  ///< 1 GiB, then 2 MiB, then normal
  giant_only    ///< 1 GiB or nothing
};

/// What a user wants memory to be backed by; unless it says otherwise, 2 MiB pages first.
///   Source:  ACL's aclrtMemMallocPolicy; giant_first is what torch_npu makes of page_size:1g
struct page_choice {
  page_plan pages = page_plan::huge_first;
  bandwidth speed = bandwidth::any;
  bool peer_to_peer = false;  ///< for copies between two devices
  bool read_only = false;     ///< goes with everything: ACL's document restricts it to nothing

  [[nodiscard]] constexpr bool is_giant() const noexcept {
    return pages == page_plan::giant_first || pages == page_plan::giant_only;
  }
  /// The rule that the choice breaks, in words, or null.
  [[nodiscard]] constexpr const char* broken_rule() const noexcept {
    if (speed == bandwidth::any) return nullptr;
    if (is_giant()) return "low or high bandwidth goes with normal and 2 MiB pages, not with 1 GiB pages";
    return peer_to_peer ? "low or high bandwidth does not go with peer-to-peer memory" : nullptr;
  }

  /// The kinds of page to ask for, in order, for a segment of `segment` bytes.
  ///
  /// Where smaller pages may serve, they back what is small: normal ones up to half a 2 MiB page, 2 MiB ones up to one.
  /// ACL's document has huge-first memory rounded up to 2 MiB and, in the next paragraph, memory of up to 1 MiB in normal
  /// pages; what is rounded here is what is larger. It tells the latter of plain huge-first alone, but ACL does the same
  /// for peers; and it says "only" of huge-only, which takes 2 MiB for 1 KiB.
  [[nodiscard]] constexpr page_order order(std::size_t segment) const noexcept {
    const page_kind normal{page_size::normal, speed, peer_to_peer, read_only};
    const page_kind huge{page_size::huge, speed, peer_to_peer, read_only};
    const page_kind giant{page_size::giant, speed, peer_to_peer, read_only};
    if (pages == page_plan::huge_only) return {{huge}, 1};
    if (pages == page_plan::giant_only) return {{giant}, 1};
    if (pages == page_plan::normal_only || segment <= huge.step() / 2) return {{normal}, 1};
    if (pages == page_plan::huge_first || segment <= huge.step()) return {{huge, normal}, 2};
    return {{giant, huge, normal}, 3};
  }

  /// The choice of this kind and no other.
  [[nodiscard]] static constexpr page_choice only(const page_kind& kind) noexcept {
    const page_plan plan = kind.size == page_size::giant  ? page_plan::giant_only
                           : kind.size == page_size::huge ? page_plan::huge_only
                                                          : page_plan::normal_only;
    return {plan, kind.speed, kind.peer_to_peer, kind.read_only};
  }
  bool operator==(const page_choice&) const = default;
};

}  // namespace tessera
