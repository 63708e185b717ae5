// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <tessera/core/statistics.hpp>

namespace tessera::detail {

/// Keeps an allocator's statistics with few additions for each call: of each quantity its peak and the room below it,
/// and for pools what was freed since the last reset. The rest is worked out when somebody asks.
template <std::size_t Pools>
class ledger {
 public:
  counter oversize_allocations;
  counter oversize_segments;
  counter device_bytes;
  std::uint64_t num_alloc_retries = 0;
  std::uint64_t num_ooms = 0;
  std::uint64_t num_oom_rejections = 0;
  std::uint64_t num_sync_all_streams = 0;
  std::uint64_t num_device_alloc = 0;
  std::uint64_t num_device_free = 0;

  void handed_out(std::size_t in, std::size_t requested, std::size_t block) noexcept {
    increase(in, blocks, 1);
    increase(in, block_bytes, as_signed(block));
    increase(in, requested_bytes, as_signed(requested));
    if (held_[all].count != 0) raise_active(in);
  }
  /// The user gave a block back, and it is free at once.
  void freed(std::size_t in, std::size_t requested, std::size_t block) noexcept {
    decrease(in, blocks, 1);
    decrease(in, block_bytes, as_signed(block));
    decrease(in, requested_bytes, as_signed(requested));
  }
  /// The user gave a block back, and a stream still uses it.
  void held_back(std::size_t in, std::size_t block) noexcept {
    decrease(in, blocks, 1);
    decrease(in, block_bytes, as_signed(block));
    for (std::size_t who : {in, all}) held_[who].change(1, as_signed(block));
  }
  void no_longer_held(std::size_t in, std::size_t requested, std::size_t block) noexcept {
    for (std::size_t who : {in, all}) held_[who].change(-1, -as_signed(block));
    decrease(in, requested_bytes, as_signed(requested));
  }
  /// The free blocks that share their segment with others became `bytes` more and `count` more, or less.
  [[gnu::always_inline]] void split_grew(std::size_t in, int count, std::size_t bytes) noexcept {
    if (count > 0) increase(in, split, count);
    if (count < 0) decrease(in, split, -count);
    increase(in, split_bytes, as_signed(bytes));
  }
  /// They became `count` and `bytes` less.
  [[gnu::always_inline]] void split_shrank(std::size_t in, int count, std::size_t bytes) noexcept {
    if (count > 0) decrease(in, split, count);
    decrease(in, split_bytes, as_signed(bytes));
  }
  void segment_acquired(std::size_t in, std::size_t bytes) noexcept {
    increase(in, segments, 1);
    mapped(in, bytes);
    device_bytes.increase(as_signed(bytes));
  }
  void segment_released(std::size_t in, std::size_t bytes) noexcept {
    decrease(in, segments, 1);
    unmapped(in, bytes);
    device_bytes.decrease(as_signed(bytes));
  }
  /// The device gave a segment that was not to be had after all, and took it back or failed to.
  void came_in_vain(std::size_t bytes, bool went_back) noexcept {
    device_bytes.increase(as_signed(bytes));
    if (went_back) device_bytes.decrease(as_signed(bytes));
  }
  /// Memory came to a range; ranges do not count as segments, and who creates and destroys it counts `device_bytes`.
  void mapped(std::size_t in, std::size_t bytes) noexcept {
    ++num_device_alloc;
    increase(in, reserved_bytes, as_signed(bytes));
  }
  void unmapped(std::size_t in, std::size_t bytes) noexcept {
    ++num_device_free;
    decrease(in, reserved_bytes, as_signed(bytes));
  }

  [[nodiscard]] std::size_t reserved() const noexcept { return as_bytes(current(all, reserved_bytes)); }
  /// Where memory stands; the limit is not known here.
  [[nodiscard]] usage now() const noexcept {
    const std::int64_t live = current(all, block_bytes);
    const std::int64_t pending = held_[all].bytes;
    return {.requested = as_bytes(current(all, requested_bytes)),
            .live = as_bytes(live),
            .pending = as_bytes(pending),
            .cached = as_bytes(current(all, reserved_bytes) - live - pending),
            .reserved = reserved()};
  }

  [[nodiscard]] statistics<Pools> report(std::size_t max_split_size) const noexcept {
    statistics<Pools> told;
    told.max_split_size = max_split_size;
    for (std::size_t in = 0; in < Pools; ++in) told.pool[in] = account(in);
    told.all = account(all);
    told.oversize_allocations = oversize_allocations;
    told.oversize_segments = oversize_segments;
    told.device_bytes = device_bytes;
    told.num_alloc_retries = num_alloc_retries;
    told.num_ooms = num_ooms;
    told.num_oom_rejections = num_oom_rejections;
    told.num_sync_all_streams = num_sync_all_streams;
    told.num_device_alloc = num_device_alloc;
    told.num_device_free = num_device_free;
    return told;
  }

  void reset_peak() noexcept {
    for (std::size_t who = 0; who <= all; ++who) {
      for (std::size_t k = 0; k < kinds; ++k) {
        peak_[k][who] = current(who, k);
        room_[k][who] = 0;
      }
      held_[who].active_peak = active(who);
      held_[who].active_bytes_peak = active_bytes(who);
    }
    for (counter* c : {&oversize_allocations, &oversize_segments, &device_bytes}) c->peak = c->current;
  }
  void reset_accumulated() noexcept {
    freed_ = {};
    for (std::size_t who = 0; who <= all; ++who) {
      for (std::size_t k = 0; k < kinds; ++k) base_[k][who] = current(who, k);
      held_[who].active_base = active(who);
      held_[who].active_bytes_base = active_bytes(who);
    }
    for (counter* c : {&oversize_allocations, &oversize_segments, &device_bytes}) c->allocated = c->freed = 0;
    num_alloc_retries = num_ooms = num_oom_rejections = 0;
    num_sync_all_streams = num_device_alloc = num_device_free = 0;
  }

 private:
  enum kind : std::size_t {
    blocks,
    block_bytes,
    requested_bytes,
    segments,
    reserved_bytes,
    split,
    split_bytes,
    kinds
  };
  static constexpr std::size_t all = Pools;  // the last account of each row

  /// What was given back and is still used by streams, and what follows for the active blocks.
  struct holding {
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

  [[nodiscard]] std::int64_t current(std::size_t who, std::size_t k) const noexcept {
    return peak_[k][who] - room_[k][who];
  }
  [[nodiscard]] std::int64_t active(std::size_t who) const noexcept {
    return current(who, blocks) + held_[who].count;
  }
  [[nodiscard]] std::int64_t active_bytes(std::size_t who) const noexcept {
    return current(who, block_bytes) + held_[who].bytes;
  }

  void take(std::size_t who, std::size_t k, std::int64_t by) noexcept {
    room_[k][who] -= by;
    if (room_[k][who] < 0) raise(who, k);
  }
  [[gnu::noinline, gnu::cold]] void raise(std::size_t who, std::size_t k) noexcept {
    peak_[k][who] -= room_[k][who];
    room_[k][who] = 0;
  }
  [[gnu::always_inline]] void increase(std::size_t in, kind what, std::int64_t by) noexcept {
    take(in, what, by);
    take(all, what, by);
  }
  void decrease(std::size_t in, kind what, std::int64_t by) noexcept {
    room_[what][in] += by;
    freed_[what][in] += by;
    room_[what][all] += by;
  }
  // While nothing is held, what is active is what is allocated, and its peaks are not kept.
  [[gnu::noinline]] void raise_active(std::size_t in) noexcept {
    for (std::size_t who : {in, all}) {
      holding& h = held_[who];
      if (active(who) > h.active_peak) h.active_peak = active(who);
      if (active_bytes(who) > h.active_bytes_peak) h.active_bytes_peak = active_bytes(who);
    }
  }

  [[nodiscard]] pool_statistics account(std::size_t who) const noexcept {
    const holding& h = held_[who];
    const auto of = [&](kind k) {
      std::int64_t freed = 0;
      for (std::size_t in = 0; in < Pools; ++in) freed += who == all || who == in ? freed_[k][in] : 0;
      return counter{current(who, k), peak_[k][who], current(who, k) - base_[k][who] + freed, freed};
    };
    const auto active_of = [&](kind k, std::int64_t now, std::int64_t peak, std::int64_t base) {
      const std::int64_t added = of(k).allocated;
      return counter{now, peak > peak_[k][who] ? peak : peak_[k][who], added, base + added - now};
    };
    return {
        .allocation = of(blocks),
        .allocated_bytes = of(block_bytes),
        .active = active_of(blocks, active(who), h.active_peak, h.active_base),
        .active_bytes = active_of(block_bytes, active_bytes(who), h.active_bytes_peak, h.active_bytes_base),
        .requested_bytes = of(requested_bytes),
        .segment = of(segments),
        .reserved_bytes = of(reserved_bytes),
        .inactive_split = of(split),
        .inactive_split_bytes = of(split_bytes)};
  }

  // Each row holds one number of one quantity for all accounts: next to each other, numbers that change together would
  // be read and written as pairs, and a processor waits where half of a pair has just been written alone.
  using row = std::array<std::int64_t, Pools + 1>;
  std::array<row, kinds> room_{};
  std::array<std::array<std::int64_t, Pools>, kinds> freed_{};  // since the last reset
  std::array<row, kinds> peak_{};
  std::array<row, kinds> base_{};  // current at the last reset
  std::array<holding, Pools + 1> held_{};
};

}  // namespace tessera::detail
