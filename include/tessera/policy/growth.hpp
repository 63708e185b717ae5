// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/backends/backend.hpp>

namespace tessera::inline v0_1::detail {

/// The limit of a growth policy: bytes, or a share of the device. A `tunable` limit may be assigned.
template <auto Limit, memory_limit::rounding Rule = memory_limit::rounding::truncate>
struct growth_limit : parameter<Limit> {
  using parameter<Limit>::parameter;
  constexpr growth_limit() noexcept = default;
  /// Returns the limit in bytes on a device of `capacity` bytes; `unlimited` if there is none.
  [[nodiscard, gnu::always_inline]] constexpr std::size_t on(std::size_t capacity) const noexcept {
    return memory_limit(this->get()).on(capacity, Rule);
  }
  bool operator==(const growth_limit&) const = default;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::policy {

using detail::segment_backend;

/// Decides how a pool grows if no cached block fits.
///
/// | question                     |                                                                 |
/// |------------------------------|-----------------------------------------------------------------|
/// | P::backend                   | the backend that grows [tessera/detail/backends/backend.hpp]             |
/// | p.segment_size(block, now)   | bytes to ask the device for, so that `block` bytes fit          |
/// | p.limit.on(capacity)         | bytes that may be reserved; `unlimited` for no limit            |
///
/// For the backends that map memory into ranges [tessera/policy/grow_by_mapping.hpp], it must also answer:
///
/// | question                     |                                                                 |
/// |------------------------------|-----------------------------------------------------------------|
/// | p.mapping_unit(block)        | bytes to map at once for a block of `block` bytes; for          |
/// |                              | stitching, the granularity of mapped memory                     |
/// | p.range_size(capacity)       | bytes of addresses to reserve at once                           |
/// | p.base_alignment(block)      | alignment of the block's address if there is room; 1 or a       |
/// |                              | multiple of min_alignment                                       |
///
/// For stitching_backend, it must also answer; `state` is a stitching_backend::growth_state:
///
/// | question                     |                                                                 |
/// |------------------------------|-----------------------------------------------------------------|
/// | p.move_threshold(state)      | reserved bytes up to which new memory is taken; above it, idle  |
/// |                              | memory moves first                                              |
/// | p.max_chunk(state)           | largest size of a chunk, below 2^63 bytes                       |
/// | p.min_chunk(block)           | smallest size of a new chunk, if addresses allow it             |
/// | p.should_save_pages(r, l)    | whether a request rather maps memory than splits a free page,   |
/// |                              | if `r` bytes are reserved under a limit of `l` bytes            |
///
/// For appending_backend, it must also answer:
///
/// | question                     |                                                                 |
/// |------------------------------|-----------------------------------------------------------------|
/// | p.bytes_to_map(n, unit)      | bytes to map if `n` bytes are missing; a multiple of `unit`     |
/// | p.bytes_of_chunk(n, unit)    | bytes of each chunk of `n` mapped bytes: `unit`, or `n`         |
/// | p.moves_idle(block, in)      | whether idle chunks of the list move if the device refuses      |
///
/// segment_size, mapping_unit and min_chunk may take one more argument, `pool_traits in = {}`, to learn which
/// blocks are small.
///
/// Optional: p.note_growth(e, now, left) hears of a growth before segment_size is asked. `e` is the eviction policy, and `left`
/// the bytes that the device has left. It sets what both must agree on.
/// p.keep_noted(e, old) takes over what `old` noted, after visit_policies has replaced `old` by p.
///
/// A memory_limit may be the `limit`. Law, checked by law::policy: segment_size(n, now) >= n.
template <typename P>
concept growth_policy = detail::regular<P> && requires(const P& p, std::size_t block, const usage& now) {
  typename P::backend;
  { p.segment_size(block, now) } noexcept -> std::same_as<std::size_t>;
  { p.limit.on(block) } noexcept -> std::same_as<std::size_t>;
};

/// Takes a segment of exactly the block's size.
template <auto Limit = tunable<memory_limit>{memory_limit::none}>
struct grow_exactly {
  using backend = segment_backend;
  /// Bytes, or a share of the device, that may be reserved.
  [[TESSERA_NO_UNIQUE_ADDRESS]] detail::growth_limit<Limit> limit{};

  [[nodiscard]] static constexpr std::size_t segment_size(std::size_t block, const usage&) noexcept {
    return block;
  }
  bool operator==(const grow_exactly&) const = default;
};

/// Takes a segment of one of two sizes, or of the block's size. All sizes are in bytes. The pools policy tells
/// the limit of small blocks; if it does not, that is half of `Small`.
///   * A small block gets a segment of `Small` bytes. With a limit above half of `Small`, the segment has room
///     for two blocks of the limit, but is not larger than `large` for that.
///   * Another block below `DedicatedFrom`, and of at most `large` bytes, gets a segment of `large` bytes.
///   * Any other block gets a segment of its own size, rounded up to a multiple of `Small`.
///
///     constexpr tessera::policy::grow_by_segments<> like_pytorch;
///     static_assert(like_pytorch.segment_size(5_MiB, {}) == 20_MiB);
///     static_assert(like_pytorch.segment_size(25_MiB, {}) == 26_MiB);
///
///   Source:  PyTorch, with 2, 20 and 10 MiB. Its large_segment_size_mb sets `large`. PyTorch 2.6 truncates a
///            share of the device; 2.14 rounds it to the nearest byte.
template <std::size_t Small = 2_MiB, auto Large = tunable<std::size_t>{20_MiB},
          std::size_t DedicatedFrom = 10_MiB, auto Limit = tunable<memory_limit>{memory_limit::none},
          memory_limit::rounding Rule = memory_limit::rounding::truncate>
struct grow_by_segments {
  static_assert(Small >= min_alignment && Small % min_alignment == 0,
                "grow_by_segments<Small>: Small is in bytes, a multiple of min_alignment; 2 MiB are 2_MiB");
  static_assert(detail::initial_bytes<Large>() >= Small,
                "grow_by_segments<Small, Large>: Large is in bytes, and at least Small; 20 MiB are 20_MiB");
  static_assert(
      DedicatedFrom == 0 || DedicatedFrom > Small / 2,
      "grow_by_segments<Small, Large, DedicatedFrom>: DedicatedFrom is in bytes, and 0 or more than half of "
      "Small; 10 MiB are 10_MiB");
  using backend = segment_backend;
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Large> large{};
  /// Bytes, or a share of the device, that may be reserved.
  [[TESSERA_NO_UNIQUE_ADDRESS]] detail::growth_limit<Limit, Rule> limit{};

  [[nodiscard]] constexpr std::size_t segment_size(std::size_t block, const usage&,
                                                   pool_traits in = {}) const noexcept {
    const std::size_t small_limit = in.small_limit_or(Small / 2);
    if (block <= small_limit) {
      const std::size_t two = small_limit < large / 2 ? 2 * small_limit : large.get();
      return align_up(detail::larger(block, two > Small ? two : Small), Small);
    }
    return DedicatedFrom > 0 && block < DedicatedFrom && block <= large ? large.get()
                                                                        : align_up(block, Small);
  }
  bool operator==(const grow_by_segments&) const = default;
};

}  // namespace tessera::inline v0_1::policy
