// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/policy/eviction.hpp>
#include <tessera/policy/growth.hpp>

/// Growth and eviction by the chunks of Paddle.

namespace tessera::inline v0_1::policy {

/// Sizes of the chunks that a pool is split from: a number of bytes. If that is 0, a fraction of the
/// available memory.
///   Source:  Paddle's initial_gpu_memory_in_mb, reallocate_gpu_memory_in_mb and
///            fraction_of_gpu_memory_to_use
struct chunk_schedule {
  std::size_t first = 0;         ///< bytes of the first chunk
  std::size_t further = 0;       ///< bytes of each later chunk
  fraction share = percent(92);  ///< of the available bytes: the size of a chunk if its number of bytes is 0
  /// Whether a twentieth of the free bytes is not available. Paddle's code leaves it to others; its document does not say so.
  bool leaves_twentieth = true;

  /// Returns how many of `free` bytes are available: all but a twentieth, or 0 if fewer than 256 remain.
  [[nodiscard]] static constexpr std::size_t available(std::size_t free) noexcept {
    const std::size_t rest = free - free / 20;
    return rest < 256 ? 0 : rest;
  }
  /// Returns how many of `free` bytes chunks may take: the available ones, or all without `leaves_twentieth`.
  [[nodiscard]] constexpr std::size_t usable(std::size_t free) const noexcept {
    return leaves_twentieth ? available(free) : free;
  }
  /// Bytes of the first chunk on a device with `free` bytes.
  [[nodiscard]] constexpr std::size_t first_chunk(std::size_t free) const noexcept {
    return first > 0 ? first : share.of(usable(free));
  }
  /// Bytes of each later chunk on a device with `free` bytes.
  [[nodiscard]] constexpr std::size_t further_chunk(std::size_t free) const noexcept {
    return further > 0 ? further : share.of(usable(free));
  }
  /// Returns the size of the largest block that is split from a chunk. The device has `free` bytes free at
  /// the start. A larger block has its own segment.
  [[nodiscard]] constexpr std::size_t largest_pooled(std::size_t free) const noexcept {
    const std::size_t one = first_chunk(free);
    const std::size_t other = further_chunk(free);
    return one > other ? one : other;
  }
  /// Returns the size of the next chunk for a block of at most largest_pooled() bytes. If that exceeds the
  /// available memory, the result exceeds `free`, so that the device refuses it.
  [[nodiscard]] constexpr std::size_t next(std::size_t free, bool is_first) const noexcept {
    const std::size_t chunk = is_first ? first_chunk(free) : further_chunk(free);
    if (usable(free) > 0 && chunk <= usable(free)) return chunk;
    return chunk > free ? chunk : free + 1;
  }
  bool operator==(const chunk_schedule&) const = default;
};

/// Takes a segment, which Paddle calls a chunk, of at least `small_chunk` bytes for a small block.
/// For a larger block, takes a segment of at least `large` bytes. 0 means the block's size. The pools policy tells which
/// blocks are small; if it does not, those of up to `boundary` bytes. If both do, they must agree, which law::recipe checks.
///   Source:  Paddle's auto_growth. With one pool, its auto_growth_chunk_size_in_mb is `large`.
template <auto Small = tunable<std::size_t>{0}, auto Large = tunable<std::size_t>{0},
          auto Boundary = limit_of_pools, auto Limit = tunable<memory_limit>{memory_limit::none}>
struct grow_by_chunks {
  static_assert(detail::is_block_size_or_0(detail::initial_bytes<Small>()) &&
                    detail::is_block_size_or_0(detail::initial_bytes<Large>()) &&
                    detail::is_block_size_or_0(detail::initial_bytes<Boundary>()),
                "grow_by_chunks<Small, Large, Boundary>: each is in bytes, at least min_alignment, or 0; 2 "
                "MiB are 2_MiB");
  using backend = segment_backend;
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Small> small_chunk{};
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Large> large{};
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Boundary> boundary{};
  /// Bytes, or a share of the device, that may be reserved.
  [[TESSERA_NO_UNIQUE_ADDRESS]] detail::growth_limit<Limit> limit{};

  [[nodiscard]] constexpr std::size_t segment_size(std::size_t block, const usage&,
                                                   pool_traits in = {}) const noexcept {
    const std::size_t limit_here = in.small_limit_or(boundary != limit_of_pools ? boundary.get() : 0);
    const std::size_t chunk = block <= limit_here ? small_chunk.get() : large.get();
    return detail::larger(block, chunk);
  }
  bool operator==(const grow_by_chunks&) const = default;
};

/// Takes segments, which Paddle calls chunks, by a schedule. The first chunk often takes nearly all free memory.
/// A block larger than every chunk gets a segment of its size. If the device lacks the next chunk, growth
/// fails, even for a small block.
///
/// The largest chunk follows from the most that the device had left at any growth so far, so that a chunk stays a chunk when
/// other programs take memory. Paddle computes it once.
///   Source:  Paddle's naive_best_fit; here segments of a block's size count as chunks
template <auto Schedule = tunable<chunk_schedule>{chunk_schedule{}},
          auto Limit = tunable<memory_limit>{memory_limit::none}>
struct grow_by_schedule {
  using backend = segment_backend;
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Schedule> schedule{};  ///< the sizes of the chunks
  /// Bytes, or a share of the device, that may be reserved.
  [[TESSERA_NO_UNIQUE_ADDRESS]] detail::growth_limit<Limit> limit{};
  std::size_t max_limit = 0;  ///< most bytes that could be reserved at a growth so far; the allocator sets it

  /// Notes how much can be reserved now, and tells the eviction policy if that has the member, too.
  constexpr void note_growth(auto& eviction, const usage& now, std::size_t left) noexcept {
    max_limit =
        detail::larger(max_limit, detail::smaller(now.limit, detail::saturating_add(now.reserved, left)));
    if constexpr (requires { eviction.max_limit; }) eviction.max_limit = max_limit;
  }
  /// Keeps what `old` noted.
  constexpr void keep_noted(auto& eviction, const grow_by_schedule& old) noexcept {
    max_limit = detail::larger(max_limit, old.max_limit);
    if constexpr (requires { eviction.max_limit; }) eviction.max_limit = max_limit;
  }
  [[nodiscard]] constexpr std::size_t segment_size(std::size_t block, const usage& now) const noexcept {
    const chunk_schedule& chunks = schedule.get();
    const std::size_t most = max_limit != 0 ? max_limit : now.limit;
    const std::size_t largest = chunks.largest_pooled(most);
    const bool is_sound = largest <= chunks.usable(most);
    if (is_sound && block > largest) return block;
    const std::size_t free = now.limit > now.reserved ? now.limit - now.reserved : 0;
    // For a schedule that is not sound, asks for more than is free: then the device refuses, as in Paddle.
    const std::size_t chunk = is_sound         ? chunks.next(free, now.reserved == 0)
                              : largest > free ? largest
                                               : free + 1;
    return detail::larger(block, chunk);
  }
  bool operator==(const grow_by_schedule&) const = default;
};

/// Releases every idle segment before growth, after a free, or both.
///   Source:  Paddle's free_when_no_cache_hit and free_idle_chunk
template <auto BeforeGrowth = tunable<bool>{false}, auto AtFree = tunable<bool>{false}>
struct evict_idle_segments {
  /// Whether a request that finds no block first releases all idle segments.
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<BeforeGrowth> before_growth{};
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<AtFree>
      at_free{};  ///< whether a segment is released as soon as it is idle

  [[nodiscard]] constexpr std::size_t bytes_to_evict(eviction_trigger trigger,
                                                     const usage& now) const noexcept {
    const bool evicts = (trigger == eviction_trigger::after_free && at_free.get()) ||
                        (trigger == eviction_trigger::before_growth && before_growth.get());
    return evicts ? now.cached : 0;
  }
  [[nodiscard]] static constexpr bool is_candidate(std::size_t, const usage&) noexcept { return true; }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment&) noexcept { return true; }
  bool operator==(const evict_idle_segments&) const = default;
};

/// Releases segments larger than every chunk of `schedule` as soon as they are idle, and keeps the chunks.
///
/// Choose it together with grow_by_schedule, with the same schedule, if large sizes rarely repeat. That policy also tells how
/// much the device had, so both agree on the largest chunk. `Step` is the
/// granularity in bytes to which a device rounds chunks. A segment that is larger by less than `Step` stays.
///   Source:  Paddle's naive_best_fit
template <auto Schedule = tunable<chunk_schedule>{chunk_schedule{}}, std::size_t Step = 1_MiB>
struct evict_at_free_above_schedule {
  static_assert(Step > 0, "evict_at_free_above_schedule<Schedule, Step>: Step is a number of bytes above 0");
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Schedule> schedule{};
  std::size_t max_limit = 0;  ///< that of grow_by_schedule, which sets it

  [[nodiscard]] constexpr std::size_t bytes_to_evict(eviction_trigger trigger,
                                                     const usage& now) const noexcept {
    return trigger == eviction_trigger::after_free && is_candidate(now.cached, now) ? now.cached : 0;
  }
  [[nodiscard]] constexpr bool is_candidate(std::size_t bytes, const usage& now) const noexcept {
    const std::size_t most = max_limit != 0 ? max_limit : now.limit;
    return bytes > align_up(schedule.get().largest_pooled(most), Step);
  }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment&) noexcept { return true; }
  bool operator==(const evict_at_free_above_schedule&) const = default;
};

}  // namespace tessera::inline v0_1::policy
