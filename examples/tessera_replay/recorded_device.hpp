// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::trace {

/// A device that gives the segments and ranges that a recorded one gave, at the same addresses.
class recorded_device {
 public:
  struct segment {
    std::uint64_t address;
    std::size_t bytes;
    bool operator==(const segment&) const = default;
  };
  struct event {};
  struct physical {
    std::size_t bytes = 0;
  };
  static constexpr bool map_grants_access = true;
  static constexpr bool unmap_wants_size = true;

  /// How often the device was asked, and gave.
  struct counts {
    std::size_t acquire = 0, release = 0, create = 0, destroy = 0, map = 0, unmap = 0;
  };

  /// Notes memory that was given before.
  void hold(segment given) { held_[given.address] = given.bytes; }
  /// Says what the recorded device gave next.
  void expect(segment next) { expected_.push_back(next); }
  /// What was expected and not asked for; forgets it.
  [[nodiscard]] std::deque<segment> take_unused() { return std::exchange(expected_, {}); }
  /// The latest segment asked for with another size than expected, or with none expected; its address says 0.
  [[nodiscard]] const segment& asked() const noexcept { return asked_; }

  /// Says where the range begins that the recorded device reserved next.
  void expect_range(std::uint64_t address) noexcept { next_range_ = address; }
  /// How many bytes of physical memory the device gives from here on.
  void give_at_most(std::size_t bytes) noexcept { left_ = bytes; }
  /// Notes what the recorded device mapped.
  void mapped_there(segment part) { flip(part), there_ += part.bytes; }
  void unmapped_there(segment part) { flip(part), there_ -= part.bytes; }
  /// Bytes that are mapped there and not yet here.
  [[nodiscard]] std::size_t missing() const noexcept { return there_ > here_ ? there_ - here_ : 0; }
  /// Where what is mapped there begins to differ from what is mapped here; 0 where it does not.
  [[nodiscard]] std::uint64_t differs_from() const noexcept {
    return borders_.empty() ? 0 : *borders_.begin();
  }

  [[nodiscard]] void* acquire(std::size_t bytes) noexcept {
    asked_ = {0, bytes};
    ++counts_.acquire;
    if (expected_.empty() || expected_.front().bytes != bytes || is_held(expected_.front())) {
      ++strays_;
      return stray(bytes);
    }
    const segment given = expected_.front();
    expected_.pop_front();
    hold(given);
    return reinterpret_cast<void*>(given.address);
  }
  bool release(void* p, std::size_t) noexcept {
    ++counts_.release;
    return held_.erase(reinterpret_cast<std::uint64_t>(p)), true;
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return unlimited; }
  [[nodiscard]] std::size_t granularity() const noexcept { return 512; }

  [[nodiscard]] static constexpr std::size_t step(page_kind) noexcept { return operator""_KiB(4); }
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t alignment) noexcept {
    const std::uint64_t address = std::exchange(next_range_, 0);
    if (address != 0) return reinterpret_cast<void*>(address);  // as it was aligned there
    return stray(align_up(bytes, alignment));
  }
  bool unreserve(void*, std::size_t) noexcept { return true; }
  bool create(std::size_t bytes, page_kind, physical& made) noexcept {
    if (bytes > left_) return false;
    if (left_ != unlimited) left_ -= bytes;
    made.bytes = bytes;
    return ++counts_.create, true;
  }
  bool destroy(const physical&) noexcept { return ++counts_.destroy, true; }
  bool map(void* p, std::size_t bytes, const physical&) noexcept {
    flip({reinterpret_cast<std::uint64_t>(p), bytes});
    here_ += bytes;
    return ++counts_.map, true;
  }
  bool grant(void*, std::size_t) noexcept { return true; }
  bool unmap(void* p, std::size_t bytes) noexcept {
    flip({reinterpret_cast<std::uint64_t>(p), bytes});
    here_ -= bytes;
    return ++counts_.unmap, true;
  }
  bool synchronize(stream_id) noexcept { return true; }

  bool record(stream_id, event&) noexcept { return true; }
  [[nodiscard]] bool query(event&) noexcept { return true; }
  bool wait(event&) noexcept { return true; }
  void discard(event&) noexcept {}

  /// How many segments were asked for that the recorded device did not give.
  [[nodiscard]] std::size_t strays() const noexcept { return strays_; }
  [[nodiscard]] const counts& calls() const noexcept { return counts_; }
  void forget_calls() noexcept { counts_ = {}; }

 private:
  /// Whether part of it was given and has not come back, which is so where what is done here differs from what was there.
  [[nodiscard]] bool is_held(const segment& one) const noexcept {
    const auto behind = held_.lower_bound(one.address + one.bytes);
    return behind != held_.begin() && std::prev(behind)->first + std::prev(behind)->second > one.address;
  }
  [[nodiscard]] void* stray(std::size_t bytes) noexcept {
    const std::uint64_t address = next_stray_;
    if (bytes > max_request || address > unlimited - 2 * max_request) return nullptr;
    next_stray_ += align_up(bytes, operator""_MiB(2));
    return reinterpret_cast<void*>(address);
  }
  /// Changes for a part whether it is mapped only there or only here: the borders of such parts come and go.
  void flip(const segment& part) {
    for (const std::uint64_t border : {part.address, part.address + part.bytes}) {
      if (borders_.erase(border) == 0) borders_.insert(border);
    }
  }

  std::deque<segment> expected_;
  segment asked_{};
  std::size_t strays_ = 0;
  // Above all addresses in snapshots, which fit into 63 bits.
  std::uint64_t next_stray_ = (std::uint64_t{1} << 63) + (std::uint64_t{1} << 61);
  std::map<std::uint64_t, std::size_t> held_;  // address to bytes
  std::uint64_t next_range_ = 0;
  std::size_t left_ = unlimited;
  std::size_t there_ = 0, here_ = 0;  // bytes that are mapped
  std::set<std::uint64_t> borders_;
  counts counts_;
};
static_assert(event_provider<recorded_device>);
static_assert(virtual_memory_provider<recorded_device>);

}  // namespace tessera::trace
