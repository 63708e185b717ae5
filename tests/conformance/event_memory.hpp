// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include <tessera/core/types.hpp>

namespace conformance {

/// The memory of the device according to an allocator's events.
struct event_memory {
  using extents = std::map<std::uintptr_t, std::size_t>;  // bytes by address
  extents memory;                                         // segments, or mapped memory
  extents ranges;
  std::size_t acquired = 0;  // how often memory was acquired
  std::size_t released = 0;  // how often memory was released
  std::string broken;        // the first event that contradicts those before

  void record(const tessera::allocator_event& e) {
    using action = tessera::allocator_event::action;
    switch (e.what) {
      case action::segment_alloc:
      case action::segment_map: ++acquired; return add(memory, e);
      case action::segment_free:
      case action::segment_unmap: ++released; return remove(memory, e);
      case action::range_reserve: return add(ranges, e);
      case action::range_release: return remove(ranges, e);
      default: return;
    }
  }
  [[nodiscard]] static std::size_t bytes(const extents& of) {
    std::size_t sum = 0;
    for (const auto& [at, bytes] : of) sum += bytes;
    return sum;
  }
  /// Whether one of the extents contains all these addresses.
  [[nodiscard]] static bool holds(const extents& in, std::uintptr_t at, std::size_t bytes) {
    auto found = in.upper_bound(at);
    if (found == in.begin()) return false;
    --found;
    return at - found->first <= found->second && bytes <= found->second - (at - found->first);
  }

 private:
  void add(extents& to, const tessera::allocator_event& e) {
    if (!to.emplace(e.address, e.bytes).second && broken.empty()) broken = "the same memory came twice";
  }
  void remove(extents& from, const tessera::allocator_event& e) {
    const auto found = from.find(e.address);
    if (found != from.end() && found->second == e.bytes) {
      from.erase(found);
    } else if (broken.empty()) {
      broken = "memory went that had not come like this";
    }
  }
};

/// An observer that records them.
struct event_memory_observer {
  event_memory* recorded;
  void on(const tessera::allocator_event& e) const noexcept { recorded->record(e); }
};

}  // namespace conformance
