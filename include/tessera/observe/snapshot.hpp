// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/observe/call_stacks.hpp>

namespace tessera::trace {

/// A memory snapshot as PyTorch takes it: how an allocator stood, and what led there.
///   Source:  torch.cuda.memory._dump_snapshot
struct snapshot {
  /// The number of a pool of segments; (0, 0) is the default one.
  using pool_id = std::pair<std::uint64_t, std::uint64_t>;

  struct block {
    enum class state : unsigned char {
      free,
      live,    ///< allocated
      pending  ///< given back, and still used by a stream
    };
    std::uint64_t address = 0;
    std::size_t size = 0;
    std::size_t requested = 0;
    state is = state::free;
    std::uint32_t stack = 0;  ///< where it was allocated, in `stacks`; 0 if unknown

    [[nodiscard]] bool active() const noexcept { return is != state::free; }
    bool operator==(const block&) const = default;
  };

  /// What a segment's blocks amount to, in bytes.
  struct sums {
    std::size_t allocated = 0;  ///< of live blocks
    std::size_t active = 0;     ///< of live and pending blocks
    std::size_t requested = 0;  ///< what users asked for, of active blocks
  };

  /// What the device gave in one piece; of a range, what is mapped without a gap.
  struct segment {
    std::uint64_t device = 0;
    std::uint64_t address = 0;
    std::size_t size = 0;
    stream_id stream{};
    bool large = false;
    pool_id pool{};
    bool expandable = false;
    std::uint32_t stack = 0;  ///< where it was taken from the device, in `stacks`
    std::vector<block> blocks{};

    [[nodiscard]] sums add_up() const noexcept {
      sums s;
      for (const block& b : blocks) {
        if (b.is == block::state::live) s.allocated += b.size;
        if (b.active()) s.active += b.size, s.requested += b.requested;
      }
      return s;
    }
    bool operator==(const segment&) const = default;
  };

  /// PyTorch's trace actions, and what only this library tells.
  enum class action : unsigned char {
    alloc,
    free_requested,
    free_completed,
    segment_alloc,
    segment_free,
    segment_map,
    segment_unmap,
    oom,            ///< nothing helped; no address, but `device_free`
    snapshot,       ///< a snapshot was taken; `size` is what was active
    annotate,       ///< the user said more about a live block, which is the label
    range_reserve,  ///< of addresses without memory
    range_release,
    refused,  ///< the device did not give `size`
    other
  };
  struct entry {
    action what = action::other;
    std::uint32_t stack = 0;  ///< where it happened, in `stacks`; 0 if unknown
    std::uint64_t address = 0;
    std::size_t size = 0;   ///< as requested, of the segment, or of what was mapped
    std::size_t block = 0;  ///< of the block that serves a request; 0 if unknown
    stream_id stream{};
    std::uint64_t time_us = 0;    ///< microseconds since some moment; 0 in snapshots of old versions
    std::size_t device_free = 0;  ///< what the device said to be free when memory ran out
    pool_id pool{};
    std::string label{};  ///< what the user said about it, "user_metadata" in PyTorch's words
    bool operator==(const entry&) const = default;
  };

  /// What the user marked in time, such as a step of an optimizer.
  struct annotation {
    std::string name{};
    bool begins = false;  ///< or ends
    std::uint64_t device = 0;
    std::uint64_t time_us = 0;
    bool operator==(const annotation&) const = default;
  };

  /// What the allocator was told to do, as far as it bears on decisions.
  struct settings {
    std::string conf;    ///< PYTORCH_CUDA_ALLOC_CONF
    std::string recipe;  ///< the recipe's name; empty in PyTorch's own snapshots
    std::size_t max_split_size = unlimited;
    double garbage_collection_threshold = 0;
    bool expandable_segments = false;
    std::uint32_t roundup_power2_divisions[16] = {};
    bool operator==(const settings&) const = default;
  };

  std::string name;
  std::vector<segment> segments;           ///< in the order of device and address
  std::vector<std::vector<entry>> traces;  ///< of each device, oldest first
  std::vector<annotation> annotations;
  settings configured;
  call_stacks stacks;                             ///< where in the program things happened
  std::vector<segment> host_segments{};           ///< of pinned host memory, as PyTorch gives them
  std::vector<std::vector<entry>> host_traces{};  ///< its history

  /// The segments of one device.
  [[nodiscard]] std::span<const segment> segments_of(std::size_t device) const noexcept {
    const auto before = [](const segment& s, std::size_t of) { return s.device < of; };
    const auto begin = std::lower_bound(segments.begin(), segments.end(), device, before);
    return {begin, std::lower_bound(begin, segments.end(), device + 1, before)};
  }
  /// The history of one device, empty where there is none.
  [[nodiscard]] std::span<const entry> trace_of(std::size_t device) const noexcept {
    return device < traces.size() ? std::span<const entry>(traces[device]) : std::span<const entry>();
  }
  /// One more than the largest number of a device.
  [[nodiscard]] std::size_t devices() const noexcept {
    const std::size_t last = segments.empty() ? 0 : static_cast<std::size_t>(segments.back().device) + 1;
    return (std::max)(last, traces.size());
  }
  bool operator==(const snapshot&) const = default;
};

/// PyTorch's names of its actions, in the order of snapshot::action.
inline constexpr std::string_view snapshot_actions[] = {
    "alloc",        "free_requested", "free_completed", "segment_alloc",
    "segment_free", "segment_map",    "segment_unmap",  "oom",
    "snapshot",     "annotate"};

}  // namespace tessera::trace
