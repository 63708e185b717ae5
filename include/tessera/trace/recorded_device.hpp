// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
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

  /// Says what the recorded device gave next.
  void expect(segment next) { expected_.push_back(next); }
  /// What was expected and not asked for; forgets it.
  [[nodiscard]] std::deque<segment> take_unused() { return std::exchange(expected_, {}); }
  /// The latest segment asked for with another size than expected, or with none expected; its address says 0.
  [[nodiscard]] const segment& asked() const noexcept { return asked_; }

  [[nodiscard]] void* acquire(std::size_t bytes) noexcept {
    asked_ = {0, bytes};
    if (expected_.empty() || expected_.front().bytes != bytes) {
      ++strays_;
      // Somewhere no recorded device has memory.
      const std::uint64_t address = (std::uint64_t{1} << 62) + stray_bytes_;
      stray_bytes_ += align_up(bytes, operator""_MiB(2));
      return reinterpret_cast<void*>(address);
    }
    const segment given = expected_.front();
    expected_.pop_front();
    return reinterpret_cast<void*>(given.address);
  }
  bool release(void*, std::size_t) noexcept { return true; }
  [[nodiscard]] std::size_t capacity() const noexcept { return unlimited; }
  [[nodiscard]] std::size_t granularity() const noexcept { return 512; }

  bool record(stream_id, event&) noexcept { return true; }
  [[nodiscard]] bool query(event&) noexcept { return true; }
  bool wait(event&) noexcept { return true; }
  void discard(event&) noexcept {}

  /// How many segments were asked for that the recorded device did not give.
  [[nodiscard]] std::size_t strays() const noexcept { return strays_; }

 private:
  std::deque<segment> expected_;
  segment asked_{};
  std::size_t strays_ = 0;
  std::uint64_t stray_bytes_ = 0;
};
static_assert(event_provider<recorded_device>);

}  // namespace tessera::trace
