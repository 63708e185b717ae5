// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/trace/event.hpp>
#include <tessera/trace/snapshot.hpp>

namespace tessera::trace {

/// Finds how one device's allocator stood when a snapshot's history begins: the history keeps only the latest entries,
/// so they are run backward from the state at the end.
class start_finder {
 public:
  start_finder(const snapshot& source, std::size_t device) : source_(source), device_(device) {}

  /// The segments at the start, with their blocks. `round(requested)` is the size of a block for a request.
  ///
  /// A block that was live at the start and is freed later left only its requested size; what is between its end and
  /// the next live block is part of it where PyTorch would not have kept it as a free block.
  ///   Returns:  an error with the number of the entry that contradicts what came after it
  template <typename Round>
  [[nodiscard]] read_result<std::vector<snapshot::segment>> find(Round round) {
    for (const snapshot::segment& s : source_.segments_of(device_)) {
      if (s.expandable) return error("a segment is expandable, which is not supported");
      region& r = regions_[s.address];
      r.about = s;
      for (const snapshot::block& b : s.blocks) {
        if (b.active()) r.live[b.address] = {b.size, b.requested};
      }
    }
    const auto entries = source_.trace_of(device_);
    for (std::size_t i = entries.size(); i-- > 0;) {
      if (const char* rule = undo(entries[i])) return error("entry " + std::to_string(i) + ": " + rule);
    }
    std::vector<snapshot::segment> found;
    for (auto& [address, r] : regions_) {
      if (!lay_out(r, round))
        return error("the blocks of the segment at " + std::to_string(address) + " overlap at the start");
      found.push_back(std::move(r.about));
    }
    return found;
  }

 private:
  struct live_block {
    std::size_t size;  // 0 where it is not known
    std::size_t requested;
  };
  struct region {
    snapshot::segment about;
    std::map<std::uint64_t, live_block> live;
  };

  [[nodiscard]] input_error error(std::string rule) const {
    return {source_.name + ": device " + std::to_string(device_), std::move(rule)};
  }

  [[nodiscard]] region* holding(std::uint64_t address) {
    auto after = regions_.upper_bound(address);
    if (after == regions_.begin()) return nullptr;
    region& before = std::prev(after)->second;
    return address - before.about.address < before.about.size ? &before : nullptr;
  }

  /// Takes one entry back; the rule that it breaks, or null.
  [[nodiscard]] const char* undo(const snapshot::entry& e) {
    region* const r = holding(e.address);
    switch (e.what) {
      case snapshot::action::alloc:
        return r != nullptr && r->live.erase(e.address) == 1
                   ? nullptr
                   : "allocates a block that is not live afterwards";
      case snapshot::action::free_completed:
        if (r == nullptr) return "frees an address in no segment";
        return r->live.emplace(e.address, live_block{0, e.size}).second
                   ? nullptr
                   : "frees a block that is live afterwards";
      case snapshot::action::segment_alloc:
        if (r == nullptr || r->about.address != e.address || r->about.size != e.size)
          return "makes a segment that is not there afterwards";
        if (!r->live.empty()) return "makes a segment in which blocks are live already";
        regions_.erase(e.address);
        return nullptr;
      case snapshot::action::segment_free: {
        const auto next = regions_.lower_bound(e.address);
        if (e.size == 0 || e.address > ~std::uint64_t{0} - e.size)
          return "ends a segment of no possible size";
        if (r != nullptr || (next != regions_.end() && next->first < e.address + e.size))
          return "ends a segment that is there afterwards";
        region& back = regions_[e.address];
        back.about.device = device_;
        back.about.address = e.address;
        back.about.size = e.size;
        back.about.stream = e.stream;
        back.about.large = e.size > small_segment;
        return nullptr;
      }
      case snapshot::action::segment_map:
      case snapshot::action::segment_unmap: return "belongs to an expandable segment, which is not supported";
      default: return nullptr;
    }
  }

  template <typename Round>
  [[nodiscard]] static bool lay_out(region& r, Round round) {
    snapshot::segment& s = r.about;
    s.blocks.clear();
    std::uint64_t at = s.address;
    const std::uint64_t end = s.address + s.size;
    for (auto it = r.live.begin(); it != r.live.end(); ++it) {
      const auto following = std::next(it);
      const std::size_t room =
          static_cast<std::size_t>((following == r.live.end() ? end : following->first) - it->first);
      std::size_t size = it->second.size;
      if (size == 0) {
        size = round(it->second.requested);
        if (room > size && room - size <= (s.large ? least_large_rest : 0)) size = room;
      }
      if (it->first < at || size > room) return false;
      if (it->first > at) s.blocks.push_back({at, static_cast<std::size_t>(it->first - at)});
      s.blocks.push_back({it->first, size, it->second.requested, snapshot::block::state::live});
      at = it->first + size;
    }
    if (at < end) s.blocks.push_back({at, static_cast<std::size_t>(end - at)});
    return true;
  }

  // PyTorch's numbers: what is cut off a large block is larger than 1 MiB, and small blocks live in segments of 2 MiB.
  static constexpr std::size_t least_large_rest = operator""_MiB(1);
  static constexpr std::size_t small_segment = operator""_MiB(2);

  const snapshot& source_;
  std::size_t device_;
  std::map<std::uint64_t, region> regions_;
};

}  // namespace tessera::trace
