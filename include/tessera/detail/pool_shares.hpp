// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/private_pool.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/private_pools.hpp>

namespace tessera::detail {

/// Counts what each pool holds, and asks the growth policy whether a pool may hold more.
///
/// A request and a free change the counts of their pool and the sums over all pools. Other calls may leave
/// counts that are too high. Before a request is refused, they are made exact.
template <typename Manager, typename Backend>
class pool_shares {
 public:
  pool_shares(Manager& manager, Backend& backend) noexcept : manager_(manager), backend_(backend) {}
  pool_shares(const pool_shares&) = delete;
  pool_shares& operator=(const pool_shares&) = delete;

  [[nodiscard]] bool is_active() const noexcept { return manager_.pools().any_share(); }

  /// Describes a pool that would hold `more` bytes more than now.
  template <typename Policies>
  [[nodiscard]] pool_demand demand(const pool_group& of, std::size_t more, const Policies& p) const noexcept {
    return {.pool = {of.number},
            .share = of.share,
            .held = of.held_now() + more,
            .others = manager_.pools().claimed_beside(of),
            .others_held = manager_.pools().held_beside(of),
            .limit = manager_.usage_under(p.growth.limit.on(manager_.provider().capacity())).limit};
  }
  /// Whether a pool may hold `more` bytes.
  ///   Cost:  constant; if it may not, the cost of count()
  template <typename Policies>
  [[nodiscard]] bool may_hold(const pool_group& of, std::size_t more, const Policies& p) noexcept {
    if (p.growth.admits(demand(of, more, p))) return true;
    count();
    return p.growth.admits(demand(of, more, p));
  }
  /// Whether a pool may get `bytes` more from the device. A pool that gives its cache back may get more than it
  /// may hold: admit() decides what is used. A segment is used at once. A refusal is kept for
  /// take_refused_growth().
  template <typename Policies>
  [[nodiscard]] bool may_grow(const pool_group& of, std::size_t bytes, const Policies& p) noexcept {
    const bool works = (Manager::traits::has_ranges && of.may_release()) || may_hold(of, bytes, p);
    refused_growth_ = refused_growth_ || !works;
    return works;
  }
  /// Whether may_grow() returned false since the last call.
  [[nodiscard]] bool take_refused_growth() noexcept { return std::exchange(refused_growth_, false); }
  /// Lets a free block be used in part, if its pool may hold the bytes that can then no longer go back.
  template <typename Policies>
  [[nodiscard]] bool admit(const block& free, std::size_t offset, std::size_t size,
                           const Policies& p) noexcept {
    pool_group& of = *free.list->where().group;
    const std::size_t more = of.may_release() ? backend_.newly_held(free, offset, size) : 0;
    if (more == 0) return true;
    if (!may_hold(of, more, p)) return false;
    of.held += more;
    manager_.pools().update_sums(of);
    return true;
  }
  /// Counts a free. The freed bytes are now at `offset` in a free block.
  void note_free(const block& free, std::size_t offset, std::size_t size) noexcept {
    pool_group& of = *free.list->where().group;
    if (!is_active() || !of.may_release() || of.is_asleep) return;
    const std::size_t less = backend_.newly_held(free, offset, size);
    of.held -= less < of.held ? less : of.held;
    manager_.pools().update_sums(of);
  }
  /// Makes the counts exact. It is const, because exact counts change no answer.
  ///   Cost:  linear in the segments; in ranges, in the free blocks
  void count() const noexcept {
    manager_.pools().for_each([](auto& of) { of.held = of.reserved; });
    for_each_idle([](pool_group& of, std::size_t bytes) { of.held -= bytes; });
    manager_.pools().for_each([this](auto& of) { manager_.pools().update_sums(of); });
  }
  /// Bytes that pools have and do not hold.
  [[nodiscard]] std::size_t cached() const noexcept {
    std::size_t sum = 0;
    for_each_idle([&sum](const pool_group& of, std::size_t bytes) { sum += of.may_release() ? bytes : 0; });
    return sum;
  }
  /// Returns null, or the rule that the counts break.
  [[nodiscard]] const char* audit() const noexcept {
    const char* broken = nullptr;
    if (!is_active()) return broken;
    manager_.pools().for_each([&](const pool_group& of) {
      std::size_t held = of.reserved;
      for_each_idle([&](const pool_group& idle, std::size_t bytes) { held -= &idle == &of ? bytes : 0; });
      if (of.may_release() && held > of.held) broken = "a pool holds at most what is counted";
      if (of.summed_held != of.held_now()) broken = "the sums over the pools have what each holds";
    });
    return broken;
  }

 private:
  /// Calls f(group, bytes) for memory that emptying the cache gives back.
  template <typename F>
  void for_each_idle(F f) const noexcept {
    if constexpr (Manager::traits::has_ranges) {
      manager_.pools().for_each([&](auto& of) {
        manager_.for_each_idle_of(of, [&](const block& idle) {
          f(of, backend_.releasable(idle));
          return false;
        });
      });
    } else {
      std::as_const(manager_).for_each_segment(
          [&f](const block& first) { f(*first.list->where().group, idle_bytes(first)); }, true);
    }
  }

  Manager& manager_;
  Backend& backend_;
  bool refused_growth_ = false;
};

}  // namespace tessera::detail
