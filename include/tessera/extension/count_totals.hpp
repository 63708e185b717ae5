// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/extensions/extension_set.hpp>

namespace tessera::inline v0_1::detail {

/// Counts only the numbers that policies need.
class usage_counters {
 public:
  static constexpr bool keeps_statistics = false;
  /// Replaces a counter that is not kept.
  struct no_counter {
    constexpr void increase(std::int64_t) noexcept {}
    constexpr void decrease(std::int64_t) noexcept {}
    constexpr no_counter& operator++() noexcept { return *this; }
  };
  [[TESSERA_NO_UNIQUE_ADDRESS]] no_counter oversize_allocations, oversize_segments, device_bytes,
      num_alloc_retries, num_ooms, num_oom_rejections, num_sync_all_streams;

  void allocated(std::size_t, std::size_t requested, std::size_t block) noexcept {
    now_.requested += requested;
    now_.allocated += block;
    now_.active += block;
  }
  void freed(std::size_t, std::size_t requested, std::size_t block) noexcept {
    now_.requested -= requested;
    now_.allocated -= block;
    now_.active -= block;
  }
  void free_deferred(std::size_t, std::size_t block) noexcept { now_.allocated -= block; }
  void free_completed(std::size_t, std::size_t requested, std::size_t block) noexcept {
    now_.requested -= requested;
    now_.active -= block;
  }
  static constexpr void inactive_split_grew(std::size_t, int, std::size_t) noexcept {}
  static constexpr void inactive_split_shrank(std::size_t, int, std::size_t) noexcept {}
  void segment_acquired(std::size_t pool, std::size_t bytes) noexcept { mapped(pool, bytes); }
  void segment_released(std::size_t pool, std::size_t bytes) noexcept { unmapped(pool, bytes); }
  static constexpr void segment_rejected(std::size_t, bool) noexcept {}
  void mapped(std::size_t, std::size_t bytes) noexcept { now_.reserved += bytes; }
  void unmapped(std::size_t, std::size_t bytes) noexcept { now_.reserved -= bytes; }
  void backing_lost(std::int64_t bytes) noexcept { now_.unbacked += static_cast<std::size_t>(bytes); }

  [[nodiscard]] std::size_t reserved() const noexcept { return now_.reserved; }
  [[nodiscard]] usage current_usage() const noexcept {
    usage result = now_;
    result.cached = now_.reserved + now_.unbacked - now_.active;
    return result;
  }

 private:
  usage now_;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::extension {

/// Counts only the bytes that current_usage() returns. Choose it if statistics() is not read. statistics() and the
/// calls that reset it do not exist then.
///
///     using lean_pool = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device,
///                                                  tessera::extension::count_totals>;
///     lean_pool lean;
///     lean.deallocate(lean.allocate(1000));
///     std::printf("%zu bytes reserved\n", lean.current_usage().reserved);
///
///   Cost:  two additions for each call
struct count_totals : tessera::detail::extension_of_types {
  static constexpr bool spans_arenas = true;
  /// The counters that the allocator uses in place of its own.
  template <std::size_t Pools>
  using counters = tessera::detail::usage_counters;
};

}  // namespace tessera::inline v0_1::extension
