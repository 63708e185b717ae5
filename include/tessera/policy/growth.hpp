// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/core/parameter.hpp>
#include <tessera/core/private_pool.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/detail/backend.hpp>
#include <tessera/detail/expandable_backend.hpp>
#include <tessera/detail/stitching_backend.hpp>

namespace tessera {

using detail::expandable_backend;
using detail::segment_backend;
using detail::stitching_backend;

/// Decides how a pool grows if no cached block fits.
///
/// | question                     |                                                                 |
/// |------------------------------|-----------------------------------------------------------------|
/// | P::backend                   | the backend that grows [tessera/detail/backend.hpp]             |
/// | p.segment_size(block, now)   | bytes to ask the device for, so that `block` bytes fit          |
/// | p.limit.on(capacity)         | bytes that may be reserved; `unlimited` for no limit            |
///
/// For expandable_backend and stitching_backend, it must also answer:
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
/// It may answer two more questions, and then the pools of its allocator may have shares (guarantee_shares):
///
/// | question                     |                                                                 |
/// |------------------------------|-----------------------------------------------------------------|
/// | p.grants(demand)             | whether a pool that holds what a pool_demand says may get its   |
/// |                              | share                                                           |
/// | p.admits(demand)             | whether a pool may hold what a pool_demand says                 |
///
/// A memory_limit may be the `limit`. Law, checked by law::policy: segment_size(n, now) >= n.
template <typename P>
concept growth_policy = detail::regular<P> && requires(const P& p, std::size_t block, const usage& now) {
  typename P::backend;
  { p.segment_size(block, now) } noexcept -> std::same_as<std::size_t>;
  { p.limit.on(block) } noexcept -> std::same_as<std::size_t>;
};

namespace detail {
/// The growth policy decides what a pool may hold.
template <typename P>
concept admits_pools = requires(const P& p, const pool_demand& demand) {
  { p.grants(demand) } noexcept -> std::same_as<bool>;
  { p.admits(demand) } noexcept -> std::same_as<bool>;
};

/// The limit of a growth policy: bytes, or a share of the device. A `tunable` limit may be assigned.
template <auto Limit, memory_limit::rounding Rule = memory_limit::rounding::truncate>
struct growth_limit : parameter<Limit> {
  using parameter<Limit>::parameter;
  constexpr growth_limit() noexcept = default;
  /// Returns the limit in bytes on a device of `capacity` bytes; `unlimited` if there is none.
  [[nodiscard]] constexpr std::size_t on(std::size_t capacity) const noexcept {
    return memory_limit(this->get()).on(capacity, Rule);
  }
  bool operator==(const growth_limit&) const = default;
};
}  // namespace detail

/// Grows like `Growth`, and lets the pools of an allocator have shares. Choose it for several tenants of one
/// device, each with a private pool.
///
/// A pool never holds more than its limit. A request that keeps its pool within what is guaranteed to it is
/// always admitted. Any other request is admitted if what the others are guaranteed remains. Other pools may
/// cache guaranteed memory, but not hold it: their caches are emptied when it is wanted.
///
///     using growth = tessera::guarantee_shares<tessera::pytorch<>::growth>;
///     using allocator_type =
///         tessera::caching_allocator<tessera::with<tessera::pytorch<>, growth>, tessera::simulated_device>;
template <typename Growth>
struct guarantee_shares : Growth {
  /// Whether all shares can be met.
  [[nodiscard]] static constexpr bool grants(const pool_demand& demand) noexcept {
    const std::size_t room = demand.limit > demand.others ? demand.limit - demand.others : 0;
    return demand.held <= demand.share.limit && demand.held <= room && demand.share.guaranteed <= room;
  }
  [[nodiscard]] static constexpr bool admits(const pool_demand& demand) noexcept {
    return demand.held <= demand.share.guaranteed || grants(demand);
  }
  bool operator==(const guarantee_shares&) const = default;
};

/// Takes a segment of exactly the block's size.
template <auto Limit = tunable<memory_limit>{memory_limit::none}>
struct grow_exactly {
  using backend = segment_backend;
  [[no_unique_address]] detail::growth_limit<Limit> limit{};

  [[nodiscard]] static constexpr std::size_t segment_size(std::size_t block, const usage&) noexcept {
    return block;
  }
  bool operator==(const grow_exactly&) const = default;
};

/// Takes a segment of one of two sizes, or of the block's size. All sizes are in bytes.
///   * A block of at most half of `Small` gets a segment of `Small` bytes.
///   * Another block below `DedicatedFrom`, and of at most `large` bytes, gets a segment of `large` bytes.
///   * Any other block gets a segment of its own size, rounded up to a multiple of `Small`.
///
///     constexpr tessera::grow_by_segments<> like_pytorch;
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
  static constexpr std::size_t max_small_block = Small / 2;
  [[no_unique_address]] parameter<Large> large{};
  [[no_unique_address]] detail::growth_limit<Limit, Rule> limit{};

  [[nodiscard]] constexpr std::size_t segment_size(std::size_t block, const usage&) const noexcept {
    if (block <= Small / 2) return Small;
    return DedicatedFrom > 0 && block < DedicatedFrom && block <= large ? large.get()
                                                                        : align_up(block, Small);
  }
  bool operator==(const grow_by_segments&) const = default;
};

/// Takes a segment, which Paddle calls a chunk, of at least `small` bytes for a block of up to `boundary`
/// bytes. For a larger block, takes a segment of at least `large` bytes. 0 means the block's size.
///   Source:  Paddle's auto_growth. With one pool, its auto_growth_chunk_size_in_mb is `large`.
template <auto Small = tunable<std::size_t>{0}, auto Large = tunable<std::size_t>{0},
          auto Boundary = tunable<std::size_t>{0}, auto Limit = tunable<memory_limit>{memory_limit::none}>
struct grow_by_chunks {
  static_assert(detail::is_block_size_or_0(detail::initial_bytes<Small>()) &&
                    detail::is_block_size_or_0(detail::initial_bytes<Large>()) &&
                    detail::is_block_size_or_0(detail::initial_bytes<Boundary>()),
                "grow_by_chunks<Small, Large, Boundary>: each is in bytes, at least min_alignment, or 0; 2 "
                "MiB are 2_MiB");
  using backend = segment_backend;
  [[no_unique_address]] parameter<Small> small{};
  [[no_unique_address]] parameter<Large> large{};
  [[no_unique_address]] parameter<Boundary> boundary{};
  [[no_unique_address]] detail::growth_limit<Limit> limit{};

  [[nodiscard]] constexpr std::size_t segment_size(std::size_t block, const usage&) const noexcept {
    const std::size_t chunk = block <= boundary ? small.get() : large.get();
    return detail::larger(block, chunk);
  }
  bool operator==(const grow_by_chunks&) const = default;
};

/// Takes segments, which Paddle calls chunks, by a plan. The first chunk often takes nearly all free memory.
/// A block larger than every chunk gets a segment of its size. If the device lacks the next chunk, growth
/// fails, even for a small block.
///   Source:  Paddle's naive_best_fit; here segments of a block's size count as chunks
template <auto Plan = tunable<chunk_plan>{chunk_plan{}},
          auto Limit = tunable<memory_limit>{memory_limit::none}>
struct grow_by_plan {
  using backend = segment_backend;
  [[no_unique_address]] parameter<Plan> plan{};
  [[no_unique_address]] detail::growth_limit<Limit> limit{};

  [[nodiscard]] constexpr std::size_t segment_size(std::size_t block, const usage& now) const noexcept {
    const chunk_plan& chunks = plan.get();
    const std::size_t largest = chunks.largest_pooled(now.limit);
    const bool is_sound = largest <= chunk_plan::available(now.limit);
    if (is_sound && block > largest) return block;
    const std::size_t free = now.limit > now.reserved ? now.limit - now.reserved : 0;
    // For a plan that is not sound, asks for more than is free: then the device refuses, as in Paddle.
    const std::size_t chunk = is_sound         ? chunks.next(free, now.reserved == 0)
                              : largest > free ? largest
                                               : free + 1;
    return detail::larger(block, chunk);
  }
  bool operator==(const grow_by_plan&) const = default;
};

/// Maps pages into ranges of addresses, at the lowest place with room for the block. Choose it if sizes vary:
/// blocks of all sizes share a range, and each unused unit goes back by itself.
///
/// Memory is mapped in units of `Small` bytes for blocks of at most half of `Small`, and of `large` bytes for
/// larger blocks.
/// A range has `range` bytes of addresses, by default 9/8 of the device.
/// Blocks of 2 MiB and more begin at a multiple of `alignment` if there is room. `alignment` is 0, 1 or a
/// multiple of min_alignment.
///
/// As in PyTorch, the limit is tested with the segment size of grow_by_segments<Small, large>. That may be
/// less than what is mapped, so reserved memory may exceed the limit by less than one unit.
///   Source:  PyTorch's expandable_segments, with 2 MiB and 20 MiB; torch_npu's segment_size_mb (20 to 512)
///            and base_addr_aligned_kb (0 to 16)
template <std::size_t Small = 2_MiB, auto Large = tunable<std::size_t>{20_MiB},
          auto Limit = tunable<memory_limit>{memory_limit::none}, auto Alignment = tunable<std::size_t>{1},
          auto Range = tunable<memory_limit>{memory_limit{fraction{1'125'000'000}}},
          memory_limit::rounding Rule = memory_limit::rounding::truncate>
struct grow_by_mapping {
  static constexpr const char* hint = "grow_by_mapping";  ///< what explain() suggests
  static_assert(Small >= min_alignment && Small % min_alignment == 0,
                "grow_by_mapping<Small>: Small is in bytes, a multiple of min_alignment; 2 MiB are 2_MiB");
  static_assert(detail::initial_bytes<Large>() >= Small,
                "grow_by_mapping<Small, Large>: Large is in bytes, and at least Small; 20 MiB are 20_MiB");
  using backend = expandable_backend;
  static constexpr std::size_t max_small_block = Small / 2;
  [[no_unique_address]] parameter<Large> large{};
  [[no_unique_address]] detail::growth_limit<Limit, Rule> limit{};
  [[no_unique_address]] parameter<Alignment> alignment{};
  [[no_unique_address]] parameter<Range> range{};

  [[nodiscard]] constexpr std::size_t segment_size(std::size_t block, const usage&) const noexcept {
    constexpr std::size_t dedicated_from = Small / 2 < 10_MiB ? 10_MiB : 0;
    return grow_by_segments<Small, Large, dedicated_from>{.large = large}.segment_size(block, {});
  }
  [[nodiscard]] constexpr std::size_t mapping_unit(std::size_t block) const noexcept {
    return block <= Small / 2 ? Small : large.get();
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
/// Chunks are multiples of 2 MiB. Therefore, back_with<page_plan::huge_1g_first> uses no page of 1 GiB, and
/// back_with<page_plan::huge_1g_only> uses only pages of 1 GiB.
///   Source:  GMLake (arXiv 2401.08156) for the idea; replays of recorded programs for the numbers
template <auto PeakParts = tunable<std::size_t>{48}, auto Slack = tunable<fraction>{percent(12)},
          auto Limit = tunable<memory_limit>{memory_limit::none}, auto RestParts = tunable<std::size_t>{1024},
          auto Alignment = tunable<std::size_t>{1}>
struct grow_by_stitching {
  static constexpr const char* hint = "grow_by_stitching";  ///< what explain() suggests
  using backend = stitching_backend;
  using growth_state = backend::growth_state;
  [[no_unique_address]] parameter<PeakParts> peak_parts{};
  [[no_unique_address]] parameter<Slack> slack{};  ///< fraction of peak active that may be reserved on top
  [[no_unique_address]] detail::growth_limit<Limit> limit{};
  [[no_unique_address]] parameter<RestParts> rest_parts{};
  [[no_unique_address]] parameter<Alignment> alignment{};

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
  [[nodiscard]] static constexpr std::size_t min_chunk(std::size_t block) noexcept {
    return block > small ? 16_MiB : 0;
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
  static constexpr std::size_t small = 512_KiB;
};

}  // namespace tessera
