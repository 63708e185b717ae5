// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <tessera/core/usage.hpp>
#include <tessera/engine/statistics.hpp>

namespace tessera::engine {

/// Keeps an allocator's statistics with few additions for each call; what follows from other numbers is worked out
/// when somebody asks.
template <std::size_t Pools>
class ledger {
 public:
  counter oversize_allocations;
  counter oversize_segments;
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
    if (any_held_) raise_active(in);
  }
  /// The user gave a block back, and it is free at once.
  void freed(std::size_t in, std::size_t requested, std::size_t block) noexcept {
    decrease(in, blocks, 1);
    decrease(in, block_bytes, as_signed(block));
    decrease(in, requested_bytes, as_signed(requested));
  }
  /// The user gave a block back, and a stream still uses it.
  void held_back(std::size_t in, std::size_t block) noexcept {
    if (!any_held_) begin_holding();
    decrease(in, blocks, 1);
    decrease(in, block_bytes, as_signed(block));
    pools_[in].hold(1, as_signed(block));
    all_.hold(1, as_signed(block));
  }
  void no_longer_held(std::size_t in, std::size_t requested, std::size_t block) noexcept {
    pools_[in].hold(-1, -as_signed(block));
    all_.hold(-1, -as_signed(block));
    decrease(in, requested_bytes, as_signed(requested));
  }
  /// Free blocks that share a segment became `count` more and `bytes` larger together.
  void inactive_split_changed(std::size_t in, std::int64_t count, std::int64_t bytes) noexcept {
    change(in, split, count);
    change(in, split_bytes, bytes);
  }
  void segment_acquired(std::size_t in, std::size_t bytes) noexcept {
    ++num_device_alloc;
    increase(in, segments, 1);
    increase(in, reserved_bytes, as_signed(bytes));
  }
  void segment_released(std::size_t in, std::size_t bytes) noexcept {
    ++num_device_free;
    decrease(in, segments, 1);
    decrease(in, reserved_bytes, as_signed(bytes));
  }

  [[nodiscard]] std::size_t reserved() const noexcept { return as_bytes(all_.of[reserved_bytes].current()); }
  /// Where memory stands; the limit is not known here.
  [[nodiscard]] usage now() const noexcept {
    const std::int64_t live = all_.of[block_bytes].current();
    return {.requested = as_bytes(all_.of[requested_bytes].current()),
            .live = as_bytes(live),
            .pending = as_bytes(all_.held_bytes),
            .cached = as_bytes(all_.of[reserved_bytes].current() - live - all_.held_bytes),
            .reserved = reserved()};
  }

  [[nodiscard]] statistics<Pools> report() const noexcept {
    statistics<Pools> told;
    account together = all_;
    for (std::size_t in = 0; in < Pools; ++in) {
      const account& a = pools_[in];
      told.pool[in] = report(a);
      for (std::size_t k = 0; k < kinds; ++k) together.of[k].added += a.of[k].added;
    }
    told.all = report(together);
    told.oversize_allocations = oversize_allocations;
    told.oversize_segments = oversize_segments;
    told.num_alloc_retries = num_alloc_retries;
    told.num_ooms = num_ooms;
    told.num_oom_rejections = num_oom_rejections;
    told.num_sync_all_streams = num_sync_all_streams;
    told.num_device_alloc = num_device_alloc;
    told.num_device_free = num_device_free;
    return told;
  }

  void reset_peak() noexcept {
    each_account([](account& a) {
      for (flow& f : a.of) f.peak = f.current(), f.room = 0;
      a.active_peak = a.active();
      a.active_bytes_peak = a.active_bytes();
    });
    oversize_allocations.peak = oversize_allocations.current;
    oversize_segments.peak = oversize_segments.current;
  }
  void reset_accumulated() noexcept {
    each_account([](account& a) {
      for (flow& f : a.of) f.added = 0, f.base = f.current();
      a.active_base = a.active();
      a.active_bytes_base = a.active_bytes();
    });
    for (counter* c : {&oversize_allocations, &oversize_segments}) c->allocated = c->freed = 0;
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

  /// A quantity, kept as its peak and the room below it, so that most changes are one addition.
  struct flow {
    std::int64_t room;
    std::int64_t added;  // since the last reset; only of pools
    std::int64_t peak;
    std::int64_t base;  // current at the last reset
    [[nodiscard]] std::int64_t current() const noexcept { return peak - room; }
    void increase(std::int64_t by) noexcept {
      room -= by;
      if (room < 0) {
        peak -= room;
        room = 0;
      }
    }
  };
  struct account {
    flow of[kinds];
    std::int64_t held;
    std::int64_t held_bytes;
    std::int64_t active_peak;
    std::int64_t active_bytes_peak;
    std::int64_t active_base;
    std::int64_t active_bytes_base;
    [[nodiscard]] std::int64_t active() const noexcept { return of[blocks].current() + held; }
    [[nodiscard]] std::int64_t active_bytes() const noexcept {
      return of[block_bytes].current() + held_bytes;
    }
    void hold(std::int64_t count, std::int64_t bytes) noexcept {
      held += count;
      held_bytes += bytes;
    }
    void raise_active() noexcept {
      if (active() > active_peak) active_peak = active();
      if (active_bytes() > active_bytes_peak) active_bytes_peak = active_bytes();
    }
  };

  static constexpr std::int64_t as_signed(std::size_t n) noexcept { return static_cast<std::int64_t>(n); }
  static constexpr std::size_t as_bytes(std::int64_t n) noexcept { return static_cast<std::size_t>(n); }

  void increase(std::size_t in, kind what, std::int64_t by) noexcept {
    pools_[in].of[what].added += by;
    pools_[in].of[what].increase(by);
    all_.of[what].increase(by);
  }
  void decrease(std::size_t in, kind what, std::int64_t by) noexcept {
    pools_[in].of[what].room += by;
    all_.of[what].room += by;
  }
  void change(std::size_t in, kind what, std::int64_t by) noexcept {
    if (by > 0) increase(in, what, by);
    if (by < 0) decrease(in, what, -by);
  }
  template <typename F>
  void each_account(F f) noexcept {
    f(all_);
    for (account& a : pools_) f(a);
  }

  // As long as no block was ever held, what is active is what is allocated, and its peaks are not kept.
  [[gnu::noinline]] void begin_holding() noexcept {
    any_held_ = true;
    each_account([](account& a) {
      a.active_peak = a.of[blocks].peak;
      a.active_bytes_peak = a.of[block_bytes].peak;
    });
  }
  [[gnu::noinline]] void raise_active(std::size_t in) noexcept {
    pools_[in].raise_active();
    all_.raise_active();
  }

  [[nodiscard]] pool_statistics report(const account& a) const noexcept {
    const auto of = [&](kind k) {
      const flow& f = a.of[k];
      return counter{f.current(), f.peak, f.added, f.base + f.added - f.current()};
    };
    const auto active = [&](kind k, std::int64_t current, std::int64_t peak, std::int64_t base) {
      const flow& f = a.of[k];
      return counter{current, any_held_ ? peak : f.peak, f.added, base + f.added - current};
    };
    return {.allocation = of(blocks),
            .allocated_bytes = of(block_bytes),
            .active = active(blocks, a.active(), a.active_peak, a.active_base),
            .active_bytes = active(block_bytes, a.active_bytes(), a.active_bytes_peak, a.active_bytes_base),
            .requested_bytes = of(requested_bytes),
            .segment = of(segments),
            .reserved_bytes = of(reserved_bytes),
            .inactive_split = of(split),
            .inactive_split_bytes = of(split_bytes)};
  }

  account all_{};
  std::array<account, Pools> pools_{};
  bool any_held_ = false;
};

}  // namespace tessera::engine
