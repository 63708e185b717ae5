// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tessera/caching_allocator.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/recipe/with.hpp>

namespace replay {

using namespace tessera;
using namespace tessera::trace;

/// A provider that returns the segments and ranges of a recorded device, at the same addresses.
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

  /// The number of successful device calls.
  struct counts {
    std::size_t acquire = 0, release = 0, create = 0, destroy = 0, map = 0, unmap = 0;
  };

  /// Adds a segment that was acquired before.
  void hold(segment given) { held_[given.address] = given.bytes; }
  /// Queues the segment that the recorded device returned next.
  void expect(segment next) { expected_.push_back(next); }
  /// Removes and returns the queued segments that were not acquired.
  [[nodiscard]] std::deque<segment> take_unused() { return std::exchange(expected_, {}); }
  /// The latest request that did not match the queue; its address is 0.
  [[nodiscard]] const segment& asked() const noexcept { return asked_; }

  /// Sets the address of the next range.
  void expect_range(std::uint64_t address) noexcept { next_range_ = address; }
  /// Limits the physical memory that can be created from here on.
  void give_at_most(std::size_t bytes) noexcept { left_ = bytes; }
  /// Records that the recorded device mapped or unmapped these pages.
  void mapped_there(segment part) { flip(part), there_ += part.bytes; }
  void unmapped_there(segment part) { flip(part), there_ -= part.bytes; }
  /// The bytes mapped on the recorded device but not here.
  [[nodiscard]] std::size_t missing() const noexcept { return there_ > here_ ? there_ - here_ : 0; }
  /// The first address where the mappings differ; 0 if they are equal.
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

  [[nodiscard]] static constexpr std::size_t page_size(page_kind) noexcept { return operator""_KiB(4); }
  [[nodiscard]] void* reserve(std::size_t bytes, std::size_t alignment) noexcept {
    const std::uint64_t address = std::exchange(next_range_, 0);
    if (address != 0) return reinterpret_cast<void*>(address);  // has the recorded alignment
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

  /// The number of acquired segments that the recorded device did not return.
  [[nodiscard]] std::size_t strays() const noexcept { return strays_; }
  [[nodiscard]] const counts& calls() const noexcept { return counts_; }
  void forget_calls() noexcept { counts_ = {}; }

 private:
  /// Whether a part of the segment is acquired, which happens only after decisions differ.
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
  /// Toggles a part in the set of differences between the two mappings, which is stored by its borders.
  void flip(const segment& part) {
    for (const std::uint64_t border : {part.address, part.address + part.bytes}) {
      if (borders_.erase(border) == 0) borders_.insert(border);
    }
  }

  std::deque<segment> expected_;
  segment asked_{};
  std::size_t strays_ = 0;
  // Above all addresses in snapshots, which have at most 63 bits.
  std::uint64_t next_stray_ = (std::uint64_t{1} << 63) + (std::uint64_t{1} << 61);
  std::map<std::uint64_t, std::size_t> held_;  // bytes by address
  std::uint64_t next_range_ = 0;
  std::size_t left_ = unlimited;
  std::size_t there_ = 0, here_ = 0;  // bytes mapped on the recorded device and here
  std::set<std::uint64_t> borders_;
  counts counts_;
};
static_assert(event_provider<recorded_device>);
static_assert(virtual_memory_provider<recorded_device>);

/// An allocator that decides by its recipe, while memory comes and goes as recorded. It never recovers from a
/// failure: the effects of recovery are in the history.
template <typename Recipe>
class recorded_pool {
 public:
  using recipe = with<Recipe, recover_never>;
  using allocator = caching_allocator<recipe, recorded_device>;
  using segment = recorded_device::segment;

  explicit recorded_pool(const policies<Recipe>& like)
      : allocator_(recorded_device{}, without_recovery(like)) {}

  /// Restores a segment, or a mapped run of the range that begins at `range`.
  ///   Returns:  false if the recipe could not have such blocks or pages, or host memory ran out
  [[nodiscard]] bool adopt(const snapshot::segment& s, std::uint64_t range) {
    std::vector<block_view> blocks;
    for (const snapshot::block& b : s.blocks) {
      const std::size_t requested = b.requested == 0 || b.requested > b.size ? b.size : b.requested;
      blocks.push_back({.bytes = b.size, .requested = b.active() ? requested : 0});
    }
    const segment whole{s.address, s.size};
    if constexpr (maps) {
      provider().expect_range(range);
      provider().mapped_there(whole);
      provider().give_at_most(provider().missing());
    } else {
      provider().expect(whole);
    }
    return allocator_.restore(place_of(whole, s.large, s.stream), s.large ? s.size : 1, blocks);
  }

  /// Adds memory that the recorded allocator acquired for the next request.
  void give(const segment& part) {
    if constexpr (maps) {
      if (provider().missing() == 0) provider().expect_range(part.address);
      provider().mapped_there(part);
    } else {
      provider().expect(part);
    }
  }
  /// Releases memory that the recorded allocator released.
  ///   Returns:  false if it is in use here
  [[nodiscard]] bool take_away(const segment& part, bool large, stream_id stream) {
    if constexpr (maps) {
      provider().unmapped_there(part);
    }
    return allocator_.release_idle_at(place_of(part, large, stream)) != 0 || maps;
  }
  /// Whether some recorded memory was not acquired here.
  [[nodiscard]] bool has_unused() noexcept { return maps && provider().missing() != 0; }

  /// Allocates by the recipe. Null if that takes more memory than the recorded allocator acquired.
  [[nodiscard]] void* allocate(std::size_t bytes, stream_id stream) {
    if constexpr (maps) {
      if (bytes > operator""_GiB(512))
        return nullptr;  // the pages are planned before the device refuses them
      provider().give_at_most(provider().missing());
    }
    return allocator_.try_allocate(bytes != 0 ? bytes : 1, stream);
  }
  /// Repeats a request that failed although some pages were mapped for it; they stay.
  void fail(std::size_t bytes, stream_id stream) {
    if (void* const p = allocate(bytes, stream)) allocator_.deallocate(p);
  }
  void deallocate(void* p) { allocator_.deallocate(p); }

  /// Finds out whether a limited range size explains the address of a block. The block was served at `there`,
  /// at the start of the free memory at the end of the range. Here it would be at `here`, in front of a
  /// smaller hole.
  ///   Returns:  that size, or 0
  [[nodiscard]] std::size_t range_limit(std::uint64_t there, const void* here, bool large, stream_id stream) {
    const tessera::detail::block* const chosen_here = allocator_.introspect().find_live(here);
    const tessera::detail::segment* range = nullptr;
    allocator_.introspect().for_each_segment([&](const tessera::detail::block& first) {
      const tessera::detail::segment& whole = tessera::detail::segment_of(first);
      const bool is_asked = first.list->pool() == (large ? 1 : 0) && first.list->key() == stream;
      if (is_asked && there >= whole.address && there - whole.address < whole.size) range = &whole;
    });
    if (range == nullptr || chosen_here == nullptr || chosen_here->list != range->first().list) return 0;
    const tessera::detail::block* const last = range->prev;
    const tessera::detail::block* const end = last->is_unmapped() ? last->prev : nullptr;
    if (end == nullptr || end->address != there || !end->is_free()) return 0;
    const tessera::detail::block* hole = chosen_here->next;
    while (!hole->is_unmapped() && hole != range) hole = hole->next;
    if (hole == range || hole == last) return 0;
    const std::size_t page = chosen().growth.mapping_unit(unlimited);
    return (there - range->address + hole->end() - chosen_here->address) / page * page;
  }

  /// Describes how the acquired memory differs from the recorded since the last call; empty if it does not.
  [[nodiscard]] std::string difference() {
    if constexpr (maps) {
      const std::uint64_t at = provider().differs_from();
      return at == 0 ? "" : "the mapped pages differ from " + std::to_string(at) + " on";
    } else {
      const auto unused = provider().take_unused();
      const bool strayed = provider().strays() != strays_;
      strays_ = provider().strays();
      if (unused.empty() && !strayed) return {};
      return "recorded: " + (unused.empty() ? "none" : std::to_string(unused.front().bytes)) +
             ", replayed: " + (strayed ? std::to_string(provider().asked().bytes) : "none");
    }
  }

  [[nodiscard]] recorded_device& provider() noexcept { return allocator_.provider(); }
  [[nodiscard]] usage current_usage() const noexcept { return allocator_.current_usage(); }

 private:
  static constexpr bool maps = Recipe::growth::backend::has_ranges;

  [[nodiscard]] static policies<recipe> without_recovery(const policies<Recipe>& like) {
    policies<recipe> made;
    made.rounding = like.rounding;
    made.pools = like.pools;
    made.streams = like.streams;
    made.split = like.split;
    made.pages = like.pages;
    made.growth = like.growth;
    made.eviction = like.eviction;
    return made;
  }
  [[nodiscard]] static segment_view place_of(const segment& part, bool large, stream_id stream) noexcept {
    return {part.address, part.bytes, stream, large ? std::size_t{1} : 0, maps};
  }
  [[nodiscard]] policies<recipe>& chosen() noexcept { return allocator_.policies(); }

  allocator allocator_;
  std::size_t strays_ = 0;
};

}  // namespace replay
