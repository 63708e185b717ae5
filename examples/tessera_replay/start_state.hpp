// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/trace/recording.hpp>

#include "files.hpp"

namespace replay {

using namespace tessera;
using namespace tessera::trace;

/// The part of an allocator that owns memory. Parts share no memory and decide independently.
struct memory_owner {
  observe::snapshot::pool_id pool{};
  stream_id stream{};
  bool large = false;
  bool expandable = false;

  [[nodiscard]] static memory_owner of(const observe::snapshot::segment& s) noexcept {
    return {s.pool, s.stream, s.large, s.expandable};
  }
  auto operator<=>(const memory_owner&) const = default;  // a member, since nvcc defines no == for a friend
};

/// The state of one device's allocator when a history begins, and the owners of the memory in its entries.
struct start_state {
  std::vector<observe::snapshot::segment> segments;  ///< with their blocks; in a range, mapped runs
  std::vector<memory_owner> owners;                  ///< of the memory of each entry; none for an oom
};

/// The blocks of a segment, as an allocator restores them. A block in use whose requested size is unknown requests all of it.
[[nodiscard]] inline std::vector<block_view> views_of(const std::vector<observe::snapshot::block>& recorded) {
  std::vector<block_view> blocks;
  for (const observe::snapshot::block& b : recorded) {
    const std::size_t requested = b.requested == 0 || b.requested > b.size ? b.size : b.requested;
    blocks.push_back({.bytes = b.size, .requested = b.active() ? requested : 0});
  }
  return blocks;
}

/// Finds the start state by undoing the entries, from the state at the end. A history is bounded, so older
/// entries are lost.
class start_finder {
 public:
  start_finder(const observe::snapshot& source, std::size_t device) : source_(source), device_(device) {}

  /// Finds the start state. `settings` decided how plain segments were split.
  ///
  /// A block that is live at the start and freed later has only its requested size. It is larger if the rest
  /// of a free block was not split off. A later allocation after it shows its end. Otherwise the rest belongs
  /// to it if the policy would not split it off.
  ///   Returns:  an error with the index of the entry that contradicts later ones
  ///   Cost:     n log n in the length of the history
  template <typename Policies>
  [[nodiscard]] read_result<start_state> find(const Policies& settings) {
    for (const observe::snapshot::segment& s : source_.segments_of(device_)) {
      for (const observe::snapshot::block& b : s.blocks) {
        if (b.active()) live_[b.address] = {b.size, b.requested};
      }
      add_region(s.address, s.size, memory_owner::of(s));
    }
    const auto entries = source_.trace_of(device_);
    note_sizes(entries, settings.rounding);
    start_state found;
    found.owners.resize(entries.size());
    for (std::size_t i = entries.size(); i-- > 0;) {
      if (const char* rule = undo(entries[i], i, found.owners[i]))
        return error("entry " + std::to_string(i) + ": " + rule);
    }
    infer_sizes(entries, settings);
    for (const auto& [address, r] : regions_) {
      observe::snapshot::segment s{device_,      address,           r.size, r.owner.stream, r.owner.large,
                                   r.owner.pool, r.owner.expandable};
      if (!lay_out(s, settings))
        return error("the blocks of the segment at " + std::to_string(address) + " overlap at the start");
      found.segments.push_back(std::move(s));
    }
    return found;
  }

 private:
  struct live_block {
    std::size_t size;  // 0 if unknown
    std::size_t requested;
  };
  struct region {
    std::size_t size;
    memory_owner owner;
  };
  using region_at = std::map<std::uint64_t, region>::iterator;

  [[nodiscard]] input_error error(std::string rule) const {
    return {source_.name + ": device " + std::to_string(device_), std::move(rule)};
  }

  /// The region that contains all these bytes, or the end.
  [[nodiscard]] region_at holding(std::uint64_t address, std::size_t bytes = 1) {
    const auto after = regions_.upper_bound(address);
    if (after == regions_.begin()) return regions_.end();
    const auto before = std::prev(after);
    const std::uint64_t offset = address - before->first;
    const bool inside = offset < before->second.size && bytes <= before->second.size - offset;
    return inside ? before : regions_.end();
  }
  [[nodiscard]] bool overlaps_region(std::uint64_t address, std::size_t bytes) {
    const auto next = regions_.lower_bound(address);
    return holding(address) != regions_.end() || (next != regions_.end() && next->first < address + bytes);
  }
  /// Whether a part of a live block lies there. Some blocks have only a requested size.
  [[nodiscard]] bool overlaps_live(std::uint64_t address, std::size_t bytes) const {
    const auto next = live_.lower_bound(address);
    if (next != live_.end() && next->first < address + bytes) return true;
    if (next == live_.begin()) return false;
    const auto& [begin, b] = *std::prev(next);
    return address - begin < (b.size != 0 ? b.size : b.requested);
  }
  /// Adds a region, and joins it with touching ones of the same range.
  void add_region(std::uint64_t address, std::size_t size, const memory_owner& owner) {
    auto at = regions_.emplace(address, region{size, owner}).first;
    if (!owner.expandable) return;
    const auto joins = [&](region_at low, region_at high) {
      return low->first + low->second.size == high->first && low->second.owner == high->second.owner;
    };
    if (at != regions_.begin() && joins(std::prev(at), at)) {
      std::prev(at)->second.size += size;
      at = std::prev(regions_.erase(at));
    }
    if (const auto next = std::next(at); next != regions_.end() && joins(at, next)) {
      at->second.size += next->second.size;
      regions_.erase(next);
    }
  }

  /// Undoes one entry, and finds its owner.
  ///   Returns:  the error text, or null
  [[nodiscard]] const char* undo(const observe::snapshot::entry& e, std::size_t number, memory_owner& owner) {
    using action = observe::snapshot::action;
    const bool about_memory = e.what == action::segment_alloc || e.what == action::segment_free ||
                              e.what == action::segment_map || e.what == action::segment_unmap;
    if (about_memory && (e.size == 0 || e.address > ~std::uint64_t{0} - e.size))
      return "is about a segment of no possible size";
    if (e.what == action::segment_free || e.what == action::segment_unmap) {
      if (overlaps_region(e.address, e.size)) return "releases a segment that exists afterwards";
      owner = owner_before(e, number);
      return add_region(e.address, e.size, owner), nullptr;
    }
    const bool about_block = e.what == action::alloc || e.what == action::free_completed;
    if (!about_memory && !about_block) return nullptr;
    const auto r = holding(e.address, about_memory ? e.size : 1);
    if (r != regions_.end()) owner = r->second.owner;
    if (e.what == action::alloc)
      return r != regions_.end() && live_.erase(e.address) == 1
                 ? nullptr
                 : "allocates a block that is not live afterwards";
    if (e.what == action::free_completed) {
      if (r == regions_.end()) return "frees an address in no segment";
      return live_.emplace(e.address, live_block{e.block, e.size}).second
                 ? nullptr
                 : "frees a block that is live afterwards";
    }
    const bool maps = e.what == action::segment_map;
    const bool is_there = r != regions_.end() && owner.expandable == maps &&
                          (maps || (r->first == e.address && r->second.size == e.size));
    if (!is_there) return "acquires a segment that does not exist afterwards";
    if (overlaps_live(e.address, e.size)) return "makes a segment in which blocks are live already";
    const std::uint64_t begin = r->first;
    const std::uint64_t end = begin + r->second.size;
    regions_.erase(r);
    if (begin < e.address) regions_[begin] = {static_cast<std::size_t>(e.address - begin), owner};
    if (e.address + e.size < end)
      regions_[e.address + e.size] = {static_cast<std::size_t>(end - e.address - e.size), owner};
    return nullptr;
  }

  /// Finds for each entry that unmaps pages whether they held large blocks: from earlier entries in these
  /// pages, or nearby.
  template <typename Rounding>
  void note_sizes(std::span<const observe::snapshot::entry> entries, const Rounding& rounding) {
    using action = observe::snapshot::action;
    std::map<std::pair<stream_id, std::uint64_t>, bool> large;  // by stream and address, while mapped
    unmaps_large_.assign(entries.size(), false);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const observe::snapshot::entry& e = entries[i];
      if (e.what == action::segment_map) large[{e.stream, e.address}] = e.size > small_segment;
      if (e.what == action::alloc || e.what == action::free_completed)
        large[{e.stream, e.address}] = rounding.block_size(e.size != 0 ? e.size : 1) > small_block;
      if (e.what != action::segment_unmap) continue;
      const auto next = large.lower_bound({e.stream, e.address});
      const bool has_next = next != large.end() && next->first.first == e.stream;
      const bool has_last = next != large.begin() && std::prev(next)->first.first == e.stream;
      const std::uint64_t above = has_next ? next->first.second - e.address : ~std::uint64_t{0};
      const std::uint64_t below = has_last ? e.address - std::prev(next)->first.second : ~std::uint64_t{0};
      const bool by_next = has_next && (above < e.size || above <= below);
      unmaps_large_[i] = by_next ? next->second : has_last ? std::prev(next)->second : e.size > small_segment;
      large.erase(next, large.lower_bound({e.stream, tessera::detail::saturating_add(e.address, e.size)}));
    }
  }
  /// The owner of memory that an entry releases, which the entry does not record.
  [[nodiscard]] memory_owner owner_before(const observe::snapshot::entry& e, std::size_t number) const {
    memory_owner owner{e.pool, e.stream, e.size > small_segment, false};
    if (e.what == observe::snapshot::action::segment_free) return owner;
    owner.expandable = true;
    owner.large = unmaps_large_[number];
    if (owner.pool != observe::snapshot::pool_id{}) return owner;
    // Each range belongs to one pool, and ranges lie far apart: the nearest remaining segment has the pool.
    std::uint64_t nearest = ~std::uint64_t{0};
    for (const observe::snapshot::segment& s : source_.segments_of(device_)) {
      if (!s.expandable || s.stream != e.stream || s.large != owner.large) continue;
      const std::uint64_t apart = s.address < e.address ? e.address - s.address : s.address - e.address;
      if (apart < nearest) nearest = apart, owner.pool = s.pool;
    }
    return owner;
  }

  /// Infers unknown sizes from allocations after live blocks: a free block starts there.
  template <typename Policies>
  void infer_sizes(std::span<const observe::snapshot::entry> entries, const Policies& settings) {
    std::map<std::uint64_t, live_block*> now;  // null if the size is known, or cannot be inferred
    for (auto& [address, b] : live_) now.emplace_hint(now.end(), address, b.size == 0 ? &b : nullptr);
    for (const observe::snapshot::entry& e : entries) {
      if (e.what == observe::snapshot::action::free_completed) now.erase(e.address);
      if (e.what != observe::snapshot::action::alloc) continue;
      const auto at = now.insert_or_assign(e.address, nullptr).first;
      if (at == now.begin() || std::prev(at)->second == nullptr) continue;
      const auto [address, before] = *std::prev(at);
      const auto r = holding(address, static_cast<std::size_t>(e.address - address));
      if (r == regions_.end() || r->second.owner.expandable) continue;
      const std::size_t min_size =
          settings.rounding.block_size(before->requested != 0 ? before->requested : 1);
      const auto size = static_cast<std::size_t>(e.address - address);
      if (size >= min_size && !tessera::detail::should_split(settings, min_size, size)) before->size = size;
      if (size == min_size) before->size = size;
    }
  }

  template <typename Policies>
  [[nodiscard]] bool lay_out(observe::snapshot::segment& s, const Policies& settings) const {
    std::uint64_t at = s.address;
    const std::uint64_t end = s.address + s.size;
    for (auto it = live_.lower_bound(at); it != live_.end() && it->first < end; ++it) {
      const auto following = std::next(it);
      const bool is_last = following == live_.end() || following->first > end;
      const auto room = static_cast<std::size_t>((is_last ? end : following->first) - it->first);
      std::size_t size = it->second.size;
      if (size == 0) {
        size = settings.rounding.block_size(it->second.requested != 0 ? it->second.requested : 1);
        if (!s.expandable && room > size && !tessera::detail::should_split(settings, size, room)) size = room;
      }
      if (it->first < at || size > room) return false;
      if (it->first > at) s.blocks.push_back({at, static_cast<std::size_t>(it->first - at)});
      s.blocks.push_back({it->first, size, it->second.requested, observe::snapshot::block::state::live});
      at = it->first + size;
    }
    if (at < end) s.blocks.push_back({at, static_cast<std::size_t>(end - at)});
    return true;
  }

  // PyTorch: blocks up to 1 MiB are small; their segments and pages have 2 MiB.
  static constexpr std::size_t small_block = operator""_MiB(1);
  static constexpr std::size_t small_segment = operator""_MiB(2);

  const observe::snapshot& source_;
  std::size_t device_;
  std::map<std::uint64_t, region> regions_;
  std::map<std::uint64_t, live_block> live_;
  std::vector<bool> unmaps_large_;  // by entry
};

}  // namespace replay
