// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/backends/stitching_backend.hpp>
#include <tessera/policy/growth.hpp>

/// Growth in ranges of addresses, between which idle memory moves.

namespace tessera::inline v0_1::policy {

using detail::stitching_backend;

/// Maps memory into ranges of addresses. Idle memory of any pool and stream moves to the address that needs
/// it. Choose it if memory is scarce: reserved memory stays within `slack` of peak active memory.
///
/// Memory moves in chunks that are mapped whole. A chunk with a block in use does not move. New memory is
/// taken only up to `slack` above peak active memory. A trim() that leaves nothing reserved resets the peaks;
/// resetting statistics does not.
///
/// A chunk is at most peak_reserved / `peak_parts` bytes, but may always be 16 MiB. More parts waste less and
/// cost more device calls. A higher `slack` reserves more and moves less. On ten recorded programs, the
/// defaults reserved 5.5 % above peak live, with 1.2 times the device calls of grow_by_mapping. With 64 parts
/// and a slack of 4 %, they reserved 4.0 %, with 1.7 times the calls.
///
/// A chunk is also at most (limit - reserved) / `rest_parts` bytes. This leaves little memory unused below
/// the limit. For both parameters, 0 means 1.
///
/// Chunks are multiples of 2 MiB. Therefore, prefer_pages<page_preference::huge_1g_first> uses no page of 1 GiB, and
/// prefer_pages<page_preference::huge_1g_only> uses only pages of 1 GiB.
///   Cost:    a miss is linear in the free blocks of all streams, because it may move any of them
///   Source:  GMLake (arXiv 2401.08156) for the idea; replays of recorded programs for the numbers
template <auto PeakParts = tunable<std::size_t>{48}, auto Slack = tunable<fraction>{percent(12)},
          auto Limit = tunable<memory_limit>{memory_limit::none}, auto RestParts = tunable<std::size_t>{1024},
          auto Alignment = tunable<std::size_t>{1}>
struct grow_by_stitching {
  static constexpr const char* hint = "grow_by_stitching";  ///< what explain() suggests
  using backend = stitching_backend;
  /// The bytes from which the policy computes its numbers.
  using growth_state = backend::growth_state;
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<PeakParts> peak_parts{};
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Slack>
      slack{};  ///< fraction of peak active that may be reserved on top
  /// Bytes, or a share of the device, that may be reserved.
  [[TESSERA_NO_UNIQUE_ADDRESS]] detail::growth_limit<Limit> limit{};
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<RestParts> rest_parts{};
  /// Of blocks of 2 MiB and more, in bytes, if there is room; 0 or 1 for none.
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Alignment> alignment{};

  [[nodiscard]] static constexpr std::size_t segment_size(std::size_t block, const usage&) noexcept {
    return align_up(block, page);
  }
  [[nodiscard]] static constexpr std::size_t mapping_unit(std::size_t) noexcept { return page; }
  [[nodiscard]] static constexpr std::size_t range_size(std::size_t capacity) noexcept {
    return detail::saturating_add(capacity, capacity / 8);
  }
  [[nodiscard]] constexpr std::size_t base_alignment(std::size_t block) const noexcept {
    return block >= page && alignment > 0 ? alignment.get() : 1;
  }
  [[nodiscard]] constexpr std::size_t move_threshold(const growth_state& state) const noexcept {
    const std::size_t above = state.peak_active + slack.get().of(state.peak_active);
    const std::size_t peak = above > state.peak_reserved ? above / page * page : state.peak_reserved;
    return peak < state.limit ? peak : state.limit;
  }
  [[nodiscard]] constexpr std::size_t max_chunk(const growth_state& state) const noexcept {
    const std::size_t peak = detail::larger(state.peak_reserved, state.peak_active);
    const std::size_t left = state.limit > state.reserved ? state.limit - state.reserved : 0;
    const std::size_t usual = share(peak, peak_parts) / page * page;
    const std::size_t max_left = share(left, rest_parts) / page * page;
    const std::size_t largest = detail::larger(usual, min_usual);
    return max_left > page ? (largest < max_left ? largest : max_left) : page;
  }
  [[nodiscard]] static constexpr std::size_t min_chunk(std::size_t block, pool_traits in = {}) noexcept {
    return block > in.small_limit_or(512_KiB) ? 16_MiB : 0;
  }
  [[nodiscard]] static constexpr bool should_save_pages(std::size_t reserved, std::size_t limit) noexcept {
    return reserved > limit / 2;
  }
  bool operator==(const grow_by_stitching&) const = default;

 private:
  static constexpr std::size_t page = 2_MiB;
  static constexpr std::size_t min_usual = 16_MiB;
  [[nodiscard]] static constexpr std::size_t share(std::size_t whole, std::size_t parts) noexcept {
    return parts > 1 ? whole / parts : whole;
  }
};

}  // namespace tessera::inline v0_1::policy
