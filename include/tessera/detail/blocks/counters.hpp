// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/core/types.hpp>

namespace tessera::inline v0_1::detail {

/// Counts all statistics of an allocator with few additions for each call. For each quantity of a pool, it stores the
/// room below a level, and what was freed since the last reset. A level is at most the pool's peak, and the levels of all
/// pools together are at most the peak of their sum. So a pool within its level raises neither peak, and the sum needs no
/// counting of its own. report() computes the rest.
template <std::size_t Pools>
class full_counters : public allocator_counters {
 public:
  static constexpr bool keeps_statistics = true;

  void allocated(std::size_t pool, std::size_t requested, std::size_t block) noexcept {
    increase(pool, blocks, 1);
    increase(pool, block_bytes, as_signed(block));
    increase(pool, requested_bytes, as_signed(requested));
    if (pending_[all].count != 0) raise_active(pool);
  }
  /// Counts a live block that becomes free.
  void freed(std::size_t pool, std::size_t requested, std::size_t block) noexcept {
    decrease(pool, blocks, 1);
    decrease(pool, block_bytes, as_signed(block));
    decrease(pool, requested_bytes, as_signed(requested));
  }
  /// Counts a live block that becomes pending.
  void free_deferred(std::size_t pool, std::size_t block) noexcept {
    decrease(pool, blocks, 1);
    decrease(pool, block_bytes, as_signed(block));
    for (const std::size_t account : {pool, all}) pending_[account].change(1, as_signed(block));
  }
  /// Counts a pending block that becomes free.
  void free_completed(std::size_t pool, std::size_t requested, std::size_t block) noexcept {
    for (const std::size_t account : {pool, all}) pending_[account].change(-1, -as_signed(block));
    decrease(pool, requested_bytes, as_signed(requested));
  }
  /// Counts an increase, by `count` blocks and `bytes` bytes, of the free blocks that share their segment. A
  /// negative count is a decrease.
  void inactive_split_grew(std::size_t pool, int count, std::size_t bytes) noexcept {
    if (count > 0) increase(pool, split, count);
    if (count < 0) decrease(pool, split, -count);
    increase(pool, split_bytes, as_signed(bytes));
  }
  /// Counts a decrease of these free blocks.
  void inactive_split_shrank(std::size_t pool, int count, std::size_t bytes) noexcept {
    if (count > 0) decrease(pool, split, count);
    decrease(pool, split_bytes, as_signed(bytes));
  }
  void segment_acquired(std::size_t pool, std::size_t bytes) noexcept {
    increase(pool, segments, 1);
    mapped(pool, bytes);
    device_bytes.increase(as_signed(bytes));
  }
  void segment_released(std::size_t pool, std::size_t bytes) noexcept {
    decrease(pool, segments, 1);
    unmapped(pool, bytes);
    device_bytes.decrease(as_signed(bytes));
  }
  /// Counts a segment that the device gave but that could not be used. The device took it back, or failed to.
  void segment_rejected(std::size_t bytes, bool was_released) noexcept {
    device_bytes.increase(as_signed(bytes));
    if (was_released) device_bytes.decrease(as_signed(bytes));
  }
  /// Counts memory mapped in a range. Ranges do not count as segments. The creator of the memory counts
  /// `device_bytes`.
  void mapped(std::size_t pool, std::size_t bytes) noexcept {
    ++num_device_alloc;
    increase(pool, reserved_bytes, as_signed(bytes));
  }
  void unmapped(std::size_t pool, std::size_t bytes) noexcept {
    ++num_device_free;
    decrease(pool, reserved_bytes, as_signed(bytes));
  }
  /// Counts bytes of blocks whose memory went back, or came back if negative.
  void backing_lost(std::int64_t bytes) noexcept { unbacked_bytes.change(bytes); }

  [[nodiscard]] std::size_t reserved() const noexcept { return as_bytes(current(all, reserved_bytes)); }
  /// Returns the current bytes, without the limit, which is not known here.
  [[nodiscard]] usage current_usage() const noexcept {
    const std::int64_t live = current(all, block_bytes);
    const std::int64_t pending = pending_[all].bytes;
    return {.requested = as_bytes(current(all, requested_bytes)),
            .allocated = as_bytes(live),
            .active = as_bytes(live + pending),
            .cached = as_bytes(current(all, reserved_bytes) + unbacked_bytes.current - live - pending),
            .reserved = reserved(),
            .unbacked = as_bytes(unbacked_bytes.current)};
  }

  [[nodiscard]] statistics<Pools> report(std::size_t max_split_size) const noexcept {
    statistics<Pools> result{*this, statistics_of(all), {}, max_split_size};
    for (std::size_t pool = 0; pool < Pools; ++pool) result.pool[pool] = statistics_of(pool);
    return result;
  }

  void reset_peak() noexcept {
    for (std::size_t account = 0; account <= all; ++account) {
      for (std::size_t k = 0; k < quantities; ++k) {
        peak_[k][account] = current(account, k);
      }
      pending_[account].active_peak = active(account);
      pending_[account].active_bytes_peak = active_bytes(account);
    }
    for (std::size_t k = 0; k < quantities; ++k) set_levels(k, 0);
    for (counter* c : {&oversize_allocations, &oversize_segments, &device_bytes, &unbacked_bytes})
      c->peak = c->current;
  }
  void reset_accumulated() noexcept {
    freed_ = {};
    for (std::size_t account = 0; account <= all; ++account) {
      for (std::size_t k = 0; k < quantities; ++k) base_[k][account] = current(account, k);
      pending_[account].active_base = active(account);
      pending_[account].active_bytes_base = active_bytes(account);
    }
    for (counter* c : {&oversize_allocations, &oversize_segments, &device_bytes, &unbacked_bytes})
      c->allocated = c->freed = 0;
    num_alloc_retries = num_ooms = num_oom_rejections = 0;
    num_sync_all_streams = num_device_alloc = num_device_free = 0;
  }

 private:
  enum quantity : std::size_t {
    blocks,
    block_bytes,
    requested_bytes,
    segments,
    reserved_bytes,
    split,
    split_bytes,
    quantities
  };
  static constexpr std::size_t all = Pools;  // index of the sum of all pools

  /// Counts pending blocks, and their part of the active blocks.
  struct pending_account {
    std::int64_t count;
    std::int64_t bytes;
    std::int64_t active_peak;
    std::int64_t active_bytes_peak;
    std::int64_t active_base;
    std::int64_t active_bytes_base;
    void change(std::int64_t by, std::int64_t by_bytes) noexcept {
      count += by;
      bytes += by_bytes;
    }
  };

  static constexpr std::int64_t as_signed(std::size_t n) noexcept { return static_cast<std::int64_t>(n); }
  static constexpr std::size_t as_bytes(std::int64_t n) noexcept { return static_cast<std::size_t>(n); }

  [[nodiscard]] std::int64_t current(std::size_t account, std::size_t k) const noexcept {
    if (account != all) return level_[k][account] - room_[k][account];
    std::int64_t sum = 0;
    for (std::size_t pool = 0; pool < Pools; ++pool) sum += level_[k][pool] - room_[k][pool];
    return sum;
  }
  [[nodiscard]] std::int64_t active(std::size_t account) const noexcept {
    return current(account, blocks) + pending_[account].count;
  }
  [[nodiscard]] std::int64_t active_bytes(std::size_t account) const noexcept {
    return current(account, block_bytes) + pending_[account].bytes;
  }

  void increase(std::size_t pool, quantity what, std::int64_t by) noexcept {
    std::int64_t& room = room_[what][pool];
    room -= by;
    if (room < 0) raise_peaks(pool, what);
  }
  void decrease(std::size_t pool, quantity what, std::int64_t by) noexcept {
    room_[what][pool] += by;
    freed_[what][pool] += by;
  }
  [[gnu::noinline, gnu::cold]] void raise_peaks(std::size_t pool, std::size_t k) noexcept {
    for (const std::size_t account : {pool, all})
      if (const std::int64_t now = current(account, k); now > peak_[k][account]) peak_[k][account] = now;
    set_levels(k, pool);
  }
  /// Divides the room below the peak of the sum among the pools. The pool that grows gets most, the others the rest.
  void set_levels(std::size_t k, std::size_t growing) noexcept {
    std::int64_t left = peak_[k][all] - current(all, k);
    for (std::size_t i = 0; i < Pools; ++i) {
      const std::size_t pool = (growing + i) % Pools;
      const std::int64_t now = current(pool, k);
      const std::int64_t most = i + 1 < Pools ? left - left / 4 : left;
      const std::int64_t room = peak_[k][pool] - now;
      room_[k][pool] = room < most ? room : most;
      level_[k][pool] = now + room_[k][pool];
      left -= room_[k][pool];
    }
  }

  // While no block is pending, the active blocks are the allocated blocks. Their peaks are then not stored.
  [[gnu::noinline]] void raise_active(std::size_t pool) noexcept {
    for (const std::size_t account : {pool, all}) {
      pending_account& p = pending_[account];
      if (active(account) > p.active_peak) p.active_peak = active(account);
      if (active_bytes(account) > p.active_bytes_peak) p.active_bytes_peak = active_bytes(account);
    }
  }

  [[nodiscard]] pool_statistics statistics_of(std::size_t account) const noexcept {
    const pending_account& p = pending_[account];
    const auto of = [&](quantity k) {
      std::int64_t freed = 0;
      for (std::size_t pool = 0; pool < Pools; ++pool)
        freed += account == all || account == pool ? freed_[k][pool] : 0;
      return counter{current(account, k), peak_[k][account], current(account, k) - base_[k][account] + freed,
                     freed};
    };
    const auto active_of = [&](quantity k, std::int64_t now, std::int64_t peak, std::int64_t base) {
      const std::int64_t added = of(k).allocated;
      return counter{now, peak > peak_[k][account] ? peak : peak_[k][account], added, base + added - now};
    };
    return {.allocation = of(blocks),
            .allocated_bytes = of(block_bytes),
            .active = active_of(blocks, active(account), p.active_peak, p.active_base),
            .active_bytes =
                active_of(block_bytes, active_bytes(account), p.active_bytes_peak, p.active_bytes_base),
            .requested_bytes = of(requested_bytes),
            .segment = of(segments),
            .reserved_bytes = of(reserved_bytes),
            .inactive_split = of(split),
            .inactive_split_bytes = of(split_bytes)};
  }

  // Each row holds one quantity of all pools. If numbers that change together were neighbours, compilers
  // would read and write them as pairs. A processor stalls if it reads a pair right after one half was
  // written.
  using row = std::array<std::int64_t, Pools + 1>;
  std::array<std::array<std::int64_t, Pools>, quantities>
      room_{};  // what the current value lacks of the level
  std::array<std::array<std::int64_t, Pools>, quantities> freed_{};  // since the last reset
  std::array<std::array<std::int64_t, Pools>, quantities> level_{};
  std::array<row, quantities> peak_{};
  std::array<row, quantities> base_{};  // current at the last reset
  std::array<pending_account, Pools + 1> pending_{};
};

/// Counts all of PyTorch's statistics for each pool, with peaks. An extension with a template `counters` replaces it.
struct count_everything {
  template <std::size_t Pools>
  using counters = full_counters<Pools>;
};

/// What chooses the counters: the first extension that has any, or count_everything.
template <typename... Extension>
struct counting_of_any {
  using type = count_everything;
};
template <typename First, typename... Rest>
struct counting_of_any<First, Rest...> : counting_of_any<Rest...> {};
template <typename First, typename... Rest>
  requires requires { typename First::template counters<1>; }
struct counting_of_any<First, Rest...> {
  using type = First;
};
template <typename... Extension>
using counting_of = typename counting_of_any<Extension...>::type;

}  // namespace tessera::inline v0_1::detail
