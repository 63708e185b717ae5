// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/backends/appending_backend.hpp>
#include <tessera/policy/growth.hpp>

/// Growth at the end of a range of addresses.

namespace tessera::inline v0_1::policy {

using detail::appending_backend;

/// What grow_at_end asks the device for at once.
enum class append_in : unsigned char {
  units,     ///< chunks of one unit each
  one_chunk  ///< one chunk, however many units are needed
};

/// Maps memory at the end of a range of addresses, so that all blocks of a pool and stream are neighbours. A free block
/// at the end counts: only the rest is mapped. Choose it if memory rarely goes back, because a miss then searches
/// nothing.
///
/// Memory is mapped in units of `Small` bytes for small blocks, and of `large` bytes for larger blocks. The pools policy
/// tells the limit of small blocks; if it does not, all blocks are large. `Spare` bytes are added before rounding up to
/// units. Addresses whose memory went back are used first, if the whole block fits there.
///
/// With `moves_idle_large`, idle chunks of large blocks move to the end if the device refuses. Only those of the same pool
/// and stream move, and only as many as the device did not give. That needs append_in::units.
///
/// A range has `Multiple` times the bytes of the device. As with grow_by_mapping, it is shorter if there are many.
///
///     constexpr tessera::policy::grow_at_end<2_MiB, 2_MiB, 256> growth;
///     static_assert(growth.bytes_to_map(2_MiB, 2_MiB) == 4_MiB);
///
///   Source:  Paddle's use_virtual_memory_auto_growth, with 256 bytes to spare and one chunk; its
///            use_vmm_auto_growth_best_fit_allocator_v2, with units of 2 and 16 MiB
template <std::size_t Small = 2_MiB, auto Large = tunable<std::size_t>{16_MiB}, std::size_t Spare = 0,
          append_in Chunks = append_in::units, auto MovesIdleLarge = tunable<bool>{false},
          auto Limit = tunable<memory_limit>{memory_limit::none}, std::size_t Multiple = 1>
struct grow_at_end {
  static_assert(Small >= min_alignment && Small % min_alignment == 0,
                "grow_at_end<Small>: Small is in bytes, a multiple of min_alignment; 2 MiB are 2_MiB");
  static_assert(
      detail::initial_bytes<Large>() >= min_alignment && detail::initial_bytes<Large>() % min_alignment == 0,
      "grow_at_end<Small, Large>: Large is in bytes, a multiple of min_alignment; 16 MiB are 16_MiB");
  static_assert(Multiple > 0, "grow_at_end<..., Multiple>: a range has at least the bytes of the device");
  static_assert(
      Chunks == append_in::units || !parameter<MovesIdleLarge>{}.get(),
      "grow_at_end<..., MovesIdleLarge>: idle chunks move only with append_in::units, which have one "
      "size");
  using backend = appending_backend;
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Large> large{};
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<MovesIdleLarge> moves_idle_large{};
  /// Bytes, or a share of the device, that may be reserved.
  [[TESSERA_NO_UNIQUE_ADDRESS]] detail::growth_limit<Limit> limit{};

  [[nodiscard]] constexpr std::size_t segment_size(std::size_t block, const usage&,
                                                   pool_traits in = {}) const noexcept {
    return bytes_to_map(block, mapping_unit(block, in));
  }
  [[nodiscard]] constexpr std::size_t mapping_unit(std::size_t block, pool_traits in = {}) const noexcept {
    return block <= in.small_limit_or(0) ? Small : large.get();
  }
  [[nodiscard]] static constexpr std::size_t range_size(std::size_t capacity) noexcept {
    return capacity <= max_request / Multiple ? capacity * Multiple : detail::larger(capacity, max_request);
  }
  [[nodiscard]] static constexpr std::size_t base_alignment(std::size_t) noexcept { return 1; }
  /// Bytes to map if `missing` bytes are missing, in units of `unit` bytes.
  [[nodiscard]] static constexpr std::size_t bytes_to_map(std::size_t missing, std::size_t unit) noexcept {
    return align_up(missing + Spare, unit);
  }
  /// Bytes of each chunk if `bytes` bytes are mapped in units of `unit` bytes.
  [[nodiscard]] static constexpr std::size_t bytes_of_chunk(std::size_t bytes, std::size_t unit) noexcept {
    return Chunks == append_in::one_chunk ? bytes : unit;
  }
  /// Whether idle chunks may move for a block of `block` bytes.
  [[nodiscard]] constexpr bool moves_idle(std::size_t block, pool_traits in = {}) const noexcept {
    return moves_idle_large && block > in.small_limit_or(0);
  }
  bool operator==(const grow_at_end&) const = default;
};

}  // namespace tessera::inline v0_1::policy
