// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::trace {

/// A device that gives the segments that a recorded one gave, at the same addresses.
class recorded_device {
 public:
  struct segment {
    std::uint64_t address;
    std::size_t bytes;
    bool operator==(const segment&) const = default;
  };
  struct event {};

  /// Notes memory that was given before.
  void hold(segment given) { held_[given.address] = given.bytes; }
  /// Says what the recorded device gave next.
  void expect(segment next) { expected_.push_back(next); }
  /// What was expected and not asked for; forgets it.
  [[nodiscard]] std::deque<segment> take_unused() { return std::exchange(expected_, {}); }
  /// The latest segment asked for with another size than expected, or with none expected; its address says 0.
  [[nodiscard]] const segment& asked() const noexcept { return asked_; }

  [[nodiscard]] void* acquire(std::size_t bytes) noexcept {
    asked_ = {0, bytes};
    if (expected_.empty() || expected_.front().bytes != bytes || is_held(expected_.front())) {
      ++strays_;
      const std::uint64_t address = next_stray_;
      if (bytes > max_request || address > unlimited - 2 * max_request) return nullptr;
      next_stray_ += align_up(bytes, operator""_MiB(2));
      return reinterpret_cast<void*>(address);
    }
    const segment given = expected_.front();
    expected_.pop_front();
    hold(given);
    return reinterpret_cast<void*>(given.address);
  }
  bool release(void* p, std::size_t) noexcept {
    return held_.erase(reinterpret_cast<std::uint64_t>(p)), true;
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return unlimited; }
  [[nodiscard]] std::size_t granularity() const noexcept { return 512; }

  bool record(stream_id, event&) noexcept { return true; }
  [[nodiscard]] bool query(event&) noexcept { return true; }
  bool wait(event&) noexcept { return true; }
  void discard(event&) noexcept {}

  /// How many segments were asked for that the recorded device did not give.
  [[nodiscard]] std::size_t strays() const noexcept { return strays_; }

 private:
  /// Whether part of it was given and has not come back, which is so where what is done here differs from what was there.
  [[nodiscard]] bool is_held(const segment& one) const noexcept {
    const auto behind = held_.lower_bound(one.address + one.bytes);
    return behind != held_.begin() && std::prev(behind)->first + std::prev(behind)->second > one.address;
  }

  std::deque<segment> expected_;
  segment asked_{};
  std::size_t strays_ = 0;
  // Above all addresses in snapshots, which fit into 63 bits.
  std::uint64_t next_stray_ = (std::uint64_t{1} << 63) + (std::uint64_t{1} << 61);
  std::map<std::uint64_t, std::size_t> held_;  // address to bytes
};
static_assert(event_provider<recorded_device>);

}  // namespace tessera::trace
