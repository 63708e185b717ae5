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
    accounts_[in].held += 1;
    accounts_[in].held_bytes += as_signed(block);
  }
  void no_longer_held(std::size_t in, std::size_t requested, std::size_t block) noexcept {
    accounts_[in].held -= 1;
    accounts_[in].held_bytes -= as_signed(block);
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

  [[nodiscard]] std::size_t reserved() const noexcept {
    return static_cast<std::size_t>(sum(reserved_bytes));
  }
  /// Where memory stands; the limit is not known here.
  [[nodiscard]] usage now() const noexcept {
    const auto bytes = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    const std::int64_t live = sum(block_bytes);
    std::int64_t pending = 0;
    for (const account& a : accounts_) pending += a.held_bytes;
    return {.requested = bytes(sum(requested_bytes)),
            .live = bytes(live),
            .pending = bytes(pending),
            .cached = bytes(sum(reserved_bytes) - live - pending),
            .reserved = reserved()};
  }

  [[nodiscard]] statistics<Pools> report() const noexcept {
    statistics<Pools> told{};
    account together{};
    for (std::size_t in = 0; in < Pools; ++in) {
      const account& a = accounts_[in];
      told.pool[in] = report(a, a.top);
      for (std::size_t k = 0; k < kinds; ++k) together.of[k].join(a.of[k]);
      together.held += a.held;
      together.held_bytes += a.held_bytes;
      together.active_base += a.active_base;
      together.active_bytes_base += a.active_bytes_base;
    }
    told.all = report(together, top_);
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
    for (account& a : accounts_) a.top = peaks{};
    top_ = peaks{};
    for (std::size_t in = 0; in < Pools; ++in) {
      for (std::size_t k = 0; k < kinds; ++k) raise(in, static_cast<kind>(k));
      raise_active(in);
    }
    oversize_allocations.peak = oversize_allocations.current;
    oversize_segments.peak = oversize_segments.current;
  }
  void reset_accumulated() noexcept {
    for (account& a : accounts_) {
      for (flow& f : a.of) f = {f.current, 0, f.current};
      a.active_base = a.of[blocks].current + a.held;
      a.active_bytes_base = a.of[block_bytes].current + a.held_bytes;
    }
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
  struct flow {
    std::int64_t current;
    std::int64_t added;  // since the last reset
    std::int64_t base;   // current at the last reset
    void join(const flow& other) noexcept {
      current += other.current;
      added += other.added;
      base += other.base;
    }
  };
  struct peaks {
    std::int64_t of[kinds];
    std::int64_t active;
    std::int64_t active_bytes;
  };
  struct account {
    flow of[kinds];
    peaks top;
    std::int64_t held;
    std::int64_t held_bytes;
    std::int64_t active_base;
    std::int64_t active_bytes_base;
  };

  static constexpr std::int64_t as_signed(std::size_t n) noexcept { return static_cast<std::int64_t>(n); }
  static void raise(std::int64_t& peak, std::int64_t to) noexcept {
    if (to > peak) peak = to;
  }
  void raise(std::size_t in, kind what) noexcept {
    raise(accounts_[in].top.of[what], accounts_[in].of[what].current);
    raise(top_.of[what], sum(what));
  }
  void increase(std::size_t in, kind what, std::int64_t by) noexcept {
    accounts_[in].of[what].current += by;
    accounts_[in].of[what].added += by;
    raise(in, what);
  }
  void decrease(std::size_t in, kind what, std::int64_t by) noexcept { accounts_[in].of[what].current -= by; }
  void change(std::size_t in, kind what, std::int64_t by) noexcept {
    if (by > 0) increase(in, what, by);
    if (by < 0) decrease(in, what, -by);
  }
  [[nodiscard]] std::int64_t sum(kind what) const noexcept {
    std::int64_t together = 0;
    for (const account& a : accounts_) together += a.of[what].current;
    return together;
  }

  // As long as no block was ever held, what is active is what is allocated, and its peaks are not kept.
  void begin_holding() noexcept {
    any_held_ = true;
    for (account& a : accounts_) a.top.active = a.top.of[blocks], a.top.active_bytes = a.top.of[block_bytes];
    top_.active = top_.of[blocks];
    top_.active_bytes = top_.of[block_bytes];
  }
  void raise_active(std::size_t in) noexcept {
    const account& a = accounts_[in];
    raise(accounts_[in].top.active, a.of[blocks].current + a.held);
    raise(accounts_[in].top.active_bytes, a.of[block_bytes].current + a.held_bytes);
    std::int64_t held = 0;
    std::int64_t held_bytes = 0;
    for (const account& one : accounts_) held += one.held, held_bytes += one.held_bytes;
    raise(top_.active, sum(blocks) + held);
    raise(top_.active_bytes, sum(block_bytes) + held_bytes);
  }

  [[nodiscard]] pool_statistics report(const account& a, const peaks& top) const noexcept {
    const auto of = [&](kind k) {
      const flow& f = a.of[k];
      return counter{f.current, top.of[k], f.added, f.base + f.added - f.current};
    };
    const auto active = [&](kind k, std::int64_t held, std::int64_t peak, std::int64_t base) {
      const std::int64_t current = a.of[k].current + held;
      return counter{current, any_held_ ? peak : top.of[k], a.of[k].added, base + a.of[k].added - current};
    };
    return {.allocation = of(blocks),
            .allocated_bytes = of(block_bytes),
            .active = active(blocks, a.held, top.active, a.active_base),
            .active_bytes = active(block_bytes, a.held_bytes, top.active_bytes, a.active_bytes_base),
            .requested_bytes = of(requested_bytes),
            .segment = of(segments),
            .reserved_bytes = of(reserved_bytes),
            .inactive_split = of(split),
            .inactive_split_bytes = of(split_bytes)};
  }

  std::array<account, Pools> accounts_{};
  peaks top_{};
  bool any_held_ = false;
};

}  // namespace tessera::engine
