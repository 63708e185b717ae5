// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/core/statistics.hpp>
#include <tessera/detail/ledger.hpp>

namespace tessera {
namespace detail {

/// Keeps what the policies must see, and no statistics: two additions for each call.
class totals {
 public:
  /// What is not kept.
  struct nothing {
    constexpr void increase(std::int64_t) noexcept {}
    constexpr void decrease(std::int64_t) noexcept {}
    constexpr nothing& operator++() noexcept { return *this; }
  };
  [[no_unique_address]] nothing oversize_allocations, oversize_segments, device_bytes, num_alloc_retries,
      num_ooms, num_oom_rejections, num_sync_all_streams;

  void handed_out(std::size_t, std::size_t requested, std::size_t block) noexcept {
    now_.requested += requested;
    now_.live += block;
  }
  void freed(std::size_t, std::size_t requested, std::size_t block) noexcept {
    now_.requested -= requested;
    now_.live -= block;
  }
  void held_back(std::size_t, std::size_t block) noexcept {
    now_.live -= block;
    now_.pending += block;
  }
  void no_longer_held(std::size_t, std::size_t requested, std::size_t block) noexcept {
    now_.requested -= requested;
    now_.pending -= block;
  }
  static constexpr void split_grew(std::size_t, int, std::size_t) noexcept {}
  static constexpr void split_shrank(std::size_t, int, std::size_t) noexcept {}
  void segment_acquired(std::size_t in, std::size_t bytes) noexcept { mapped(in, bytes); }
  void segment_released(std::size_t in, std::size_t bytes) noexcept { unmapped(in, bytes); }
  static constexpr void came_in_vain(std::size_t, bool) noexcept {}
  void mapped(std::size_t, std::size_t bytes) noexcept { now_.reserved += bytes; }
  void unmapped(std::size_t, std::size_t bytes) noexcept { now_.reserved -= bytes; }

  [[nodiscard]] std::size_t reserved() const noexcept { return now_.reserved; }
  [[nodiscard]] usage now() const noexcept {
    usage told = now_;
    told.cached = now_.reserved - now_.live - now_.pending;
    return told;
  }

 private:
  usage now_;
};

}  // namespace detail

/// What an allocator counts: all of PyTorch's statistics, for each pool, with peaks. It is what allocators take by default.
struct count_everything {
  static constexpr bool keeps_statistics = true;
  template <std::size_t Pools>
  using books = detail::ledger<Pools>;
};
/// What an allocator counts: only the bytes that now() tells. Choose it, as the fourth argument of an allocator, where
/// statistics() is not read: it is missing then, and resetting peaks does nothing.
///
///     using lean_pool = tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device, tessera::ignore_events,
///                                                  tessera::count_totals>;
///     lean_pool lean;
///     lean.deallocate(lean.allocate(1000));
///     std::printf("%zu bytes reserved\n", lean.now().reserved);
///
///   Cost:  two additions for each call
struct count_totals {
  static constexpr bool keeps_statistics = false;
  template <std::size_t Pools>
  using books = detail::totals;
};

}  // namespace tessera
