// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
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
#include <tessera/core/types.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/provider/provider.hpp>
#include <tessera/recipe/with.hpp>
#include <tessera/trace/recording.hpp>

#include "restoring.hpp"
#include "start_state.hpp"
#include "verification.hpp"

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
  [[nodiscard]] const device_calls& calls() const noexcept { return counts_; }
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
  device_calls counts_;
};
static_assert(provider::event_provider<recorded_device>);
static_assert(provider::virtual_memory_provider<recorded_device>);

/// An allocator that decides by its recipe, while memory comes and goes as recorded. It never recovers from a
/// failure: the effects of recovery are in the history.
template <typename Recipe>
class recorded_pool {
 public:
  using recipe = tessera::recipe::with<Recipe, policy::recover_never>;
  using allocator = caching_allocator<recipe, recorded_device, restoring>;
  using segment = recorded_device::segment;
  using block = tessera::detail::block;

  explicit recorded_pool(const tessera::recipe::policies<Recipe>& like)
      : allocator_(recorded_device{}, without_recovery(like)) {}

  /// Restores a segment, or a mapped run of the range that begins at `range`.
  ///   Returns:  false if the recipe could not have such blocks or pages, or host memory ran out
  [[nodiscard]] bool adopt(const observe::snapshot::segment& s, std::uint64_t range) {
    const segment whole{s.address, s.size};
    if constexpr (maps) {
      provider().expect_range(range);
      provider().mapped_there(whole);
      provider().give_at_most(provider().missing());
    } else {
      provider().expect(whole);
    }
    return restoring_.restore(place_of(whole, s.large, s.stream), s.large ? s.size : 1, views_of(s.blocks)) !=
           0;
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
    return restoring_.release_idle_at(place_of(part, large, stream)) != 0 || maps;
  }
  /// Reserves a range where the recorded allocator reserved one, without memory.
  void begin_range(const segment& pages, bool large, stream_id stream) {
    if constexpr (maps) {
      provider().expect_range(pages.address);
      provider().give_at_most(0);
      (void)restoring_.restore(place_of(pages, large, stream), large ? pages.bytes : 1,
                               std::vector<block_view>());
    }
  }

  /// Allocates by the recipe. Null if that takes more memory than the recorded allocator acquired. With
  /// `by_growth`, searches no free block: the recorded search was before recovery.
  [[nodiscard]] void* allocate(std::size_t bytes, stream_id stream, bool by_growth) {
    if constexpr (maps) {
      if (bytes > operator""_GiB(512))
        return nullptr;  // the pages are planned before the device refuses them
      provider().give_at_most(provider().missing());
    }
    const std::size_t size = bytes != 0 ? bytes : 1;
    return by_growth ? restoring_.try_allocate_by_growth(size, stream)
                     : allocator_.try_allocate(size, stream);
  }
  /// Allocates after a possible recovery, which the history does not name. If the recorded allocator grew, it did
  /// so after it, without another search. If not, the address shows whether it searched afterwards.
  [[nodiscard]] void* allocate_after_recovery(std::size_t bytes, stream_id stream, bool grew,
                                              std::uint64_t there) {
    if (grew) return allocate(bytes, stream, true);
    void* const found = allocate(bytes, stream, false);
    if (!maps || found == nullptr || reinterpret_cast<std::uint64_t>(found) == there) return found;
    deallocate(found);
    void* const grown = allocate(bytes, stream, true);
    if (reinterpret_cast<std::uint64_t>(grown) == there) return grown;
    if (grown != nullptr) deallocate(grown);
    return allocate(bytes, stream, false);
  }
  /// Repeats a request that failed although some pages were mapped for it; they stay.
  void fail(std::size_t bytes, stream_id stream, bool by_growth) {
    if (void* const p = allocate(bytes, stream, by_growth)) allocator_.deallocate(p);
  }
  void deallocate(void* p) { allocator_.deallocate(p); }

  /// Finds the largest range size that explains the address of a block: it was served at `there`, and is at `here`.
  /// The size decides whether a range has room, and how much a free block at its end can grow.
  ///   Returns:  0 if no size explains it
  ///   Cost:     quadratic in the free blocks of the list
  [[nodiscard]] std::size_t range_limit(std::uint64_t there, const void* here) {
    const block* const served = tessera::detail::introspect(allocator_).find_live(here);
    if (served == nullptr) return 0;
    const std::vector<choice> choices = choices_without(*served);
    const std::size_t page = tessera::detail::mapping_unit(chosen(), unlimited);
    const auto in_pages = [page](std::uint64_t size) { return static_cast<std::size_t>(size) / page * page; };
    const bool was_free =
        std::any_of(choices.begin(), choices.end(), [there](const choice& c) { return c.address == there; });
    std::size_t largest = 0;
    const auto try_size = [&](std::uint64_t size) {
      const std::size_t whole = in_pages(size);
      if (whole > largest && best_of(choices, served->size, whole) == there) largest = whole;
    };
    for (const choice& last : choices) {
      if (!last.at_end) continue;
      const std::uint64_t before = last.address - last.range;
      // Memory was mapped elsewhere: the range had no room.
      if (!was_free && last.address == served->address) return in_pages(before + served->size - 1);
      for (const choice& other : choices) {
        try_size(before + (other.end - other.address));
        try_size(before + (other.end - other.address) - 1);
      }
    }
    return largest;
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

  [[nodiscard]] static tessera::recipe::policies<recipe> without_recovery(
      const tessera::recipe::policies<Recipe>& like) {
    tessera::recipe::policies<recipe> made;
    made.rounding = like.rounding;
    made.pools = like.pools;
    made.streams = like.streams;
    made.split = like.split;
    made.pages = like.pages;
    made.growth = like.growth;
    made.eviction = like.eviction;
    return made;
  }
  /// A free block, with the hole behind it.
  struct choice {
    std::size_t size;
    std::uint64_t address, end;
    std::uint64_t range;  ///< where its range begins
    bool at_end;          ///< whether `end` is the end of the range, which is unknown
  };
  /// The free blocks of a list in the order of sizes, as if a block had not been served.
  [[nodiscard]] std::vector<choice> choices_without(const block& served) {
    std::vector<choice> choices;
    tessera::detail::introspect(allocator_).for_each_segment([&](const block& first) {
      const block* const range = first.prev;
      for (const block* b = &first; b != range; b = b->next) {
        if (b->list != served.list || (!b->is_free() && b != &served)) continue;
        const block& begin = *b;
        if (b == &served && b->next->is_free()) b = b->next;
        const block& top = b->next->is_unmapped() ? *b->next : *b;
        choices.push_back({static_cast<std::size_t>(b->end() - begin.address), begin.address, top.end(),
                           range->address, top.next == range});
      }
    });
    std::sort(choices.begin(), choices.end(), [](const choice& a, const choice& b) {
      return a.size != b.size ? a.size < b.size : a.address < b.address;
    });
    return choices;
  }
  /// The address of the block that the recipe chooses with ranges of `size` bytes; 0 if there is none.
  [[nodiscard]] static std::uint64_t best_of(const std::vector<choice>& choices, std::size_t wanted,
                                             std::size_t size) {
    const auto in_place = [size](const choice& c) { return (c.at_end ? c.range + size : c.end) - c.address; };
    const choice* best = nullptr;
    for (const choice& c : choices) {
      if (c.size < wanted) continue;
      if (best != nullptr && in_place(c) >= in_place(*best)) break;
      best = &c;
    }
    return best != nullptr ? best->address : 0;
  }
  [[nodiscard]] static segment_view place_of(const segment& part, bool large, stream_id stream) noexcept {
    return {part.address, part.bytes, stream, large ? std::size_t{1} : 0, maps};
  }
  [[nodiscard]] tessera::recipe::policies<recipe>& chosen() noexcept { return allocator_.policies(); }

  allocator allocator_;
  restoring::door<allocator> restoring_{allocator_};
  std::size_t strays_ = 0;
};

}  // namespace replay
