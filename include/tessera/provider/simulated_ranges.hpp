// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/provider/simulated_calls.hpp>
#include <tessera/provider/simulated_memory.hpp>

namespace tessera {

/// The addresses of one process on a simulated device: which are reserved, and what memory there is at which.
///
/// Addresses only grow and are never given twice. When it ends, all memory goes back.
///   Cost:  logarithmic in the ranges, segments and mappings; can_use() also linear in those that it looks at
class simulated_ranges {
 public:
  static constexpr std::size_t alignment = 2_MiB;
  /// What a host's page is a multiple of, as ranges are.
  static constexpr std::size_t least_page = 4_KiB;

  ///   Requires:  `first` and `room` are multiples of the alignment; their sum does not wrap
  simulated_ranges(std::shared_ptr<simulated_memory> memory, std::uintptr_t first, std::size_t room) noexcept
      : memory_(std::move(memory)), next_(first), room_(room) {}
  simulated_ranges(const simulated_ranges&) = delete;
  simulated_ranges& operator=(const simulated_ranges&) = delete;
  ~simulated_ranges() {
    for (const auto& [at, there] : placed_) {
      if (there.is_segment()) memory_->give_back(there.bytes, there.kind);
    }
  }

  [[nodiscard]] simulated_outcome acquire(std::size_t bytes, page_kind kind, std::size_t granularity) {
    const std::size_t step = (std::max)(granularity, kind.step());
    if (bytes == 0 || (bytes & (step - 1)) != 0)
      return {"a segment is a multiple of the granularity and of the page's size long, and not empty"};
    if (!has_room(bytes, step)) return {"there are no addresses left", true};
    simulated_outcome came = memory_->take(bytes, kind);
    if (came.broken != nullptr) return came;
    const placed made{bytes, ((bytes - 1) >> std::countr_zero(memory_->step(kind))) + 1, kind};
    came.given = take(bytes, step);
    came.units = bytes >> 20;
    placed_.emplace(came.given, made);
    entries_ += made.entries;
    return came;
  }
  [[nodiscard]] simulated_outcome release(std::uintptr_t at, std::size_t bytes) {
    const auto found = placed_.find(at);
    if (found == placed_.end() || !found->second.is_segment()) return {"no segment begins here"};
    if (found->second.bytes != bytes) return {"a segment is released whole"};
    memory_->give_back(bytes, found->second.kind);
    entries_ -= found->second.entries;
    placed_.erase(found);
    return {.units = bytes >> 20};
  }

  [[nodiscard]] simulated_outcome reserve(std::size_t bytes, std::size_t to) {
    if (bytes == 0 || bytes % least_page != 0) return {"a range is a multiple of 4 KiB long, and not empty"};
    if (!is_power_of_two(to)) return {"an alignment is a power of two"};
    if (!has_room(bytes, to)) return {"there are no addresses left", true};
    const std::uintptr_t given = take(bytes, to);
    ranges_.emplace(given, bytes);
    reserved_ += bytes;
    return {.given = given};
  }
  [[nodiscard]] simulated_outcome unreserve(std::uintptr_t at, std::size_t bytes) {
    const auto found = ranges_.find(at);
    if (found == ranges_.end()) return {"no range begins here"};
    if (found->second != bytes) return {"a range is given back whole"};
    if (is_taken(at, bytes)) return {"something is mapped in the range"};
    reserved_ -= bytes;
    ranges_.erase(found);
    return {};
  }

  ///   Requires:  `handle` is not 0
  [[nodiscard]] simulated_outcome map(std::uintptr_t at, std::size_t bytes, std::uint64_t handle,
                                      const std::shared_ptr<simulated_piece>& memory, bool granted) {
    if (bytes != memory->bytes()) return {"memory is mapped whole"};
    if (at % memory->step() != 0) return {"memory is mapped at a multiple of its page's size"};
    const auto range = around(ranges_, at);
    if (range == ranges_.end() || at - range->first >= range->second)
      return {"the addresses are not reserved"};
    if (bytes > range->second - (at - range->first)) return {"memory is mapped within one range"};
    if (is_taken(at, bytes)) return {"something is mapped here already"};
    const placed made{bytes, bytes / memory->step(), {}, handle, granted, memory};
    placed_.emplace(at, made);
    mapped_ += bytes;
    if (!granted) not_granted_ += bytes;
    entries_ += made.entries;
    return {.units = made.entries};
  }
  [[nodiscard]] simulated_outcome grant(std::uintptr_t at, std::size_t bytes) noexcept {
    const auto found = placed_.find(at);
    if (found == placed_.end() || found->second.is_segment()) return {"nothing that was mapped begins here"};
    placed& there = found->second;
    if (there.bytes != bytes) return {"access is granted to what one map put there, whole"};
    if (!there.granted) not_granted_ -= bytes;
    there.granted = true;
    return {.units = there.entries};
  }
  /// Sets `handle` to what named the memory when it was mapped.
  [[nodiscard]] simulated_outcome unmap(std::uintptr_t at, std::size_t bytes, bool any_size,
                                        std::uint64_t& handle) {
    const auto found = placed_.find(at);
    if (found == placed_.end() || found->second.is_segment()) return {"nothing that was mapped begins here"};
    const placed& there = found->second;
    if (there.bytes != bytes && !any_size) return {"what one map put there is unmapped whole, and alone"};
    const simulated_outcome came{.units = there.entries};
    handle = there.handle;
    mapped_ -= there.bytes;
    if (!there.granted) not_granted_ -= there.bytes;
    entries_ -= there.entries;
    placed_.erase(found);
    return came;
  }

  /// Whether the device may use all these addresses: of one segment, or mapped with access.
  [[nodiscard]] bool can_use(std::uintptr_t at, std::size_t bytes) const noexcept {
    auto m = around(placed_, at);
    while (m != placed_.end() && m->second.granted && at - m->first < m->second.bytes) {
      const std::size_t here = m->second.bytes - (at - m->first);
      if (bytes <= here) return true;
      if (m->second.is_segment()) return false;  // another one may begin here
      at += here;
      bytes -= here;
      ++m;
    }
    return false;
  }

  [[nodiscard]] std::size_t reserved() const noexcept { return reserved_; }
  [[nodiscard]] std::size_t mapped() const noexcept { return mapped_; }
  [[nodiscard]] std::size_t not_granted() const noexcept { return not_granted_; }
  [[nodiscard]] std::size_t page_table_entries() const noexcept { return entries_; }

 private:
  /// Memory at addresses: a segment, or what one map put there.
  struct placed {
    std::size_t bytes;
    std::size_t entries;
    page_kind kind;            // of a segment
    std::uint64_t handle = 0;  // of what was mapped
    bool granted = true;
    std::shared_ptr<simulated_piece> memory{};

    [[nodiscard]] bool is_segment() const noexcept { return handle == 0; }
  };

  [[nodiscard]] std::size_t gap(std::size_t to) const noexcept { return (0 - next_) & (to - 1); }
  [[nodiscard]] bool has_room(std::size_t bytes, std::size_t to) const noexcept {
    const std::size_t skipped = gap(to);
    return skipped <= room_ && bytes <= room_ - skipped;
  }
  /// Gives addresses that begin at a multiple of 2 MiB and of `to`, a power of two.
  ///   Requires:  has_room()
  [[nodiscard]] std::uintptr_t take(std::size_t bytes, std::size_t to) noexcept {
    const std::uintptr_t given = next_ + gap(to);
    const std::size_t taken = gap(to) + align_up(bytes, alignment);
    next_ += taken;
    room_ -= taken;
    return given;
  }
  /// The last entry that begins at `at` or below, or end().
  template <typename Map>
  [[nodiscard]] static auto around(Map& map, std::uintptr_t at) noexcept -> decltype(map.begin()) {
    const auto above = map.upper_bound(at);
    return above == map.begin() ? map.end() : std::prev(above);
  }
  [[nodiscard]] bool is_taken(std::uintptr_t at, std::size_t bytes) const noexcept {
    const auto last = around(placed_, at + bytes - 1);
    return last != placed_.end() && (last->first >= at || at - last->first < last->second.bytes);
  }

  std::shared_ptr<simulated_memory> memory_;
  std::uintptr_t next_;
  std::size_t room_;  // addresses left
  std::map<std::uintptr_t, std::size_t> ranges_;
  std::map<std::uintptr_t, placed> placed_;
  std::size_t reserved_ = 0;
  std::size_t mapped_ = 0;
  std::size_t not_granted_ = 0;
  std::size_t entries_ = 0;
};

}  // namespace tessera
