// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/backends/expandable_backend.hpp>
#include <tessera/policy/growth.hpp>

/// Growth in ranges of addresses. It is apart from growth.hpp, so that a recipe with segments does not compile its backend.

namespace tessera::inline v0_1::policy {

using detail::expandable_backend;

/// Maps pages into ranges of addresses, at the lowest place with room for the block. Choose it if sizes vary:
/// blocks of all sizes share a range, and each unused unit goes back by itself.
///
/// Memory is mapped in units of `Small` bytes for small blocks, and of `large` bytes for larger blocks. The
/// pools policy tells the limit of small blocks; if it does not, that is half of `Small`.
/// A range has `range` bytes of addresses, by default 9/8 of the device. It is shorter if the allocator has so many ranges that
/// addresses could run out, from 16 TiB on, or if the device refuses it; a pool and stream then gets further ranges.
/// Blocks of 2 MiB and more begin at a multiple of `alignment` if there is room. `alignment` is 0, 1 or a
/// multiple of min_alignment.
///
/// A request may exceed a whole range. With `KeepsShortRanges`, a range as large as the device is then reserved
/// anyway. The request fails, and the range stays for later ones.
///
/// As in PyTorch, the limit is tested with the segment size of grow_by_segments<Small, large>. That may be
/// less than what is mapped, so reserved memory may exceed the limit by less than one unit.
///   Source:  PyTorch's expandable_segments, with 2 MiB and 20 MiB; 2.6 keeps short ranges, versions of 2026 do
///            not. torch_npu's segment_size_mb (20 to 512) and base_addr_aligned_kb (0 to 16)
template <std::size_t Small = 2_MiB, auto Large = tunable<std::size_t>{20_MiB},
          auto Limit = tunable<memory_limit>{memory_limit::none}, auto Alignment = tunable<std::size_t>{1},
          auto Range = tunable<memory_limit>{memory_limit{fraction{1'125'000'000}}},
          memory_limit::rounding Rule = memory_limit::rounding::truncate, bool KeepsShortRanges = true>
struct grow_by_mapping {
  /// Whether a range stays that is too short for the request.
  static constexpr bool keeps_short_ranges = KeepsShortRanges;
  static constexpr const char* hint = "grow_by_mapping";  ///< what explain() suggests
  static_assert(Small >= min_alignment && Small % min_alignment == 0,
                "grow_by_mapping<Small>: Small is in bytes, a multiple of min_alignment; 2 MiB are 2_MiB");
  static_assert(detail::initial_bytes<Large>() >= Small,
                "grow_by_mapping<Small, Large>: Large is in bytes, and at least Small; 20 MiB are 20_MiB");
  using backend = expandable_backend;
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Large> large{};
  /// Bytes, or a share of the device; exceeded by less than one unit.
  [[TESSERA_NO_UNIQUE_ADDRESS]] detail::growth_limit<Limit, Rule> limit{};
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Alignment> alignment{};
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Range> range{};

  [[nodiscard]] constexpr std::size_t segment_size(std::size_t block, const usage&,
                                                   pool_traits in = {}) const noexcept {
    constexpr std::size_t dedicated_from = Small / 2 < 10_MiB ? 10_MiB : 0;
    return grow_by_segments<Small, Large, dedicated_from>{.large = large}.segment_size(block, {}, in);
  }
  [[nodiscard]] constexpr std::size_t mapping_unit(std::size_t block, pool_traits in = {}) const noexcept {
    return block <= in.small_limit_or(Small / 2) ? Small : large.get();
  }
  [[nodiscard]] constexpr std::size_t range_size(std::size_t capacity) const noexcept {
    const std::size_t all = detail::saturating_add(capacity, capacity / 8);
    const memory_limit setting(range.get());
    const std::size_t wanted = setting.bytes != unlimited ? setting.bytes : setting.share.of(capacity);
    return wanted < all ? wanted : all;
  }
  [[nodiscard]] constexpr std::size_t base_alignment(std::size_t block) const noexcept {
    return block >= 2_MiB && alignment > 0 ? alignment.get() : 1;
  }
  bool operator==(const grow_by_mapping&) const = default;
};

}  // namespace tessera::inline v0_1::policy
