// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>
#include <tessera/observe/snapshot.hpp>

namespace tessera::trace {

/// The memory of a device for its allocator, in bytes, as a snapshot tells: what was reserved and what was free when memory
/// first ran out. 0 where it did not run out, or where the history is not one of these segments.
[[nodiscard]] inline std::size_t told_capacity(const snapshot& source, std::size_t device) {
  using action = snapshot::action;
  const auto change = [](const snapshot::entry& e) -> std::uint64_t {
    const bool more = e.what == action::segment_alloc || e.what == action::segment_map;
    const bool less = e.what == action::segment_free || e.what == action::segment_unmap;
    return more ? e.size : less ? 0 - std::uint64_t{e.size} : 0;
  };
  // Numbers wrap around where a file says nonsense.
  std::uint64_t reserved = 0;
  for (const snapshot::segment& s : source.segments_of(device)) reserved += s.size;
  const auto trace = source.trace_of(device);
  for (const snapshot::entry& e : trace) reserved -= change(e);
  for (const snapshot::entry& e : trace) {
    reserved += change(e);
    if (e.what != action::oom) continue;
    const bool is_sane = reserved <= max_request && e.device_free <= max_request;
    return is_sane ? static_cast<std::size_t>(reserved) + e.device_free : 0;
  }
  return 0;
}

}  // namespace tessera::trace
