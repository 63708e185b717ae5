// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace tessera {

/// A quantity over time.
struct counter {
  std::int64_t current = 0;
  std::int64_t peak = 0;
  std::int64_t allocated = 0;  ///< sum of all increases
  std::int64_t freed = 0;      ///< sum of all decreases

  constexpr void increase(std::int64_t by) noexcept {
    current += by;
    allocated += by;
    if (current > peak) peak = current;
  }
  constexpr void decrease(std::int64_t by) noexcept {
    current -= by;
    freed += by;
  }
  constexpr void change(std::int64_t by) noexcept { by >= 0 ? increase(by) : decrease(-by); }
};

/// What is counted for each pool and over all; `_bytes` in bytes, the others in pieces.
///   Source:  the names and the moments of counting are those of PyTorch's memory_stats()
struct pool_statistics {
  counter allocation;       ///< blocks handed out, until the user frees them
  counter allocated_bytes;  ///< of their whole blocks
  counter active;           ///< the same, until no stream uses them any more
  counter active_bytes;
  counter requested_bytes;  ///< as asked for, until no stream uses them any more
  counter segment;
  counter reserved_bytes;
  counter inactive_split;  ///< free blocks that share their segment
  counter inactive_split_bytes;
};

/// An allocator's statistics; `num_` values count since the start or the last reset_accumulated().
template <std::size_t Pools>
struct statistics {
  pool_statistics all;
  std::array<pool_statistics, Pools> pool;
  counter oversize_allocations;
  counter oversize_segments;
  std::uint64_t num_alloc_retries = 0;     ///< times the device was asked again with an empty cache
  std::uint64_t num_ooms = 0;              ///< requests that failed
  std::uint64_t num_oom_rejections = 0;    ///< of them, without any recovery tried
  std::uint64_t num_sync_all_streams = 0;  ///< waits for all pending frees
  std::uint64_t num_device_alloc = 0;      ///< segments the device gave
  std::uint64_t num_device_free = 0;       ///< segments it took back

  constexpr void handed_out(std::size_t in, std::size_t requested, std::size_t block) noexcept {
    both(in, [=](pool_statistics& s) {
      s.allocation.increase(1);
      s.allocated_bytes.increase(static_cast<std::int64_t>(block));
      s.active.increase(1);
      s.active_bytes.increase(static_cast<std::int64_t>(block));
      s.requested_bytes.increase(static_cast<std::int64_t>(requested));
    });
  }
  constexpr void free_requested(std::size_t in, std::size_t block) noexcept {
    both(in, [=](pool_statistics& s) {
      s.allocation.decrease(1);
      s.allocated_bytes.decrease(static_cast<std::int64_t>(block));
    });
  }
  constexpr void free_completed(std::size_t in, std::size_t requested, std::size_t block) noexcept {
    both(in, [=](pool_statistics& s) {
      s.active.decrease(1);
      s.active_bytes.decrease(static_cast<std::int64_t>(block));
      s.requested_bytes.decrease(static_cast<std::int64_t>(requested));
    });
  }
  /// Free blocks that share a segment became `count` more and `bytes` larger together.
  constexpr void inactive_split_changed(std::size_t in, std::int64_t count, std::int64_t bytes) noexcept {
    both(in, [=](pool_statistics& s) {
      s.inactive_split.change(count);
      s.inactive_split_bytes.change(bytes);
    });
  }
  constexpr void segment_acquired(std::size_t in, std::size_t bytes) noexcept {
    ++num_device_alloc;
    both(in, [=](pool_statistics& s) {
      s.segment.increase(1);
      s.reserved_bytes.increase(static_cast<std::int64_t>(bytes));
    });
  }
  constexpr void segment_released(std::size_t in, std::size_t bytes) noexcept {
    ++num_device_free;
    both(in, [=](pool_statistics& s) {
      s.segment.decrease(1);
      s.reserved_bytes.decrease(static_cast<std::int64_t>(bytes));
    });
  }

  constexpr void reset_peak() noexcept {
    each([](counter& c) { c.peak = c.current; });
  }
  constexpr void reset_accumulated() noexcept {
    each([](counter& c) { c.allocated = c.freed = 0; });
    num_alloc_retries = num_ooms = num_oom_rejections = 0;
    num_sync_all_streams = num_device_alloc = num_device_free = 0;
  }

 private:
  template <typename F>
  constexpr void both(std::size_t in, F f) noexcept {
    f(all);
    f(pool[in]);
  }
  template <typename F>
  constexpr void each(F f) noexcept {
    const auto of = [f](pool_statistics& s) {
      for (counter* c : {&s.allocation, &s.allocated_bytes, &s.active, &s.active_bytes, &s.requested_bytes,
                         &s.segment, &s.reserved_bytes, &s.inactive_split, &s.inactive_split_bytes}) {
        f(*c);
      }
    };
    of(all);
    for (pool_statistics& s : pool) of(s);
    f(oversize_allocations);
    f(oversize_segments);
  }
};

}  // namespace tessera
