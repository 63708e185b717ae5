// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>

#include <tessera/core/stream.hpp>
#include <tessera/engine/block.hpp>
#include <tessera/engine/free_blocks.hpp>
#include <tessera/engine/key_map.hpp>
#include <tessera/engine/slab.hpp>

namespace tessera::engine {

/// All blocks of one allocator: which segment each belongs to, which are free, and which address is which block.
template <std::size_t Pools>
class heap {
 public:
  heap() = default;
  heap(const heap&) = delete;
  heap& operator=(const heap&) = delete;
  ~heap() {
    for (pool& p : pools_) {
      while (p.first != nullptr) drop(p, *p.first);
    }
  }

  /// Takes the host memory that serving one request can need; false where there is none, and nothing has changed.
  [[nodiscard]] bool make_room() noexcept { return blocks_.reserve(2) && live_.reserve_one(); }

  /// The home of a pool and a key, where their free blocks wait; null where host memory ran out.
  [[nodiscard]] free_blocks* home(std::size_t in, stream_id key) noexcept {
    free_blocks* const recent = recent_[in];
    return recent != nullptr && recent->key() == key ? recent : find_home(in, key);
  }

  /// The best-fitting free block; counts as a search of the pool.
  [[nodiscard, gnu::always_inline]] block* best_fit(free_blocks& home, std::size_t size) noexcept {
    ++searches_[home.pool()];
    return home.best_fit(size);
  }

  /// Files a segment that the device gave as one free block; null where host memory ran out.
  [[nodiscard]] block* add_segment(free_blocks& home, std::uintptr_t address, std::size_t bytes,
                                   bool oversize) noexcept {
    if (!segment_slab_.reserve(1) || !blocks_.reserve(3)) return nullptr;
    segment& fresh = *segment_slab_.take();
    fresh.previous = nullptr;
    fresh.idle_since = searches_[home.pool()];
    fresh.oversize = oversize;
    fresh.next = segments_;
    if (segments_ != nullptr) segments_->previous = &fresh;
    segments_ = &fresh;
    block& whole = *blocks_.take();
    whole.begin(fresh);
    whole.above = nullptr;
    whole.address = address;
    whole.size = bytes;
    whole.home = &home;
    ++home.segments;
    home.insert(whole);
    return &whole;
  }

  /// Forgets an idle segment that the device took back.
  void remove_segment(block& whole) noexcept {
    segment& gone = whole.origin();
    (gone.previous != nullptr ? gone.previous->next : segments_) = gone.next;
    if (gone.next != nullptr) gone.next->previous = gone.previous;
    segment_slab_.give_back(&gone);
    whole.home->remove(whole);
    --whole.home->segments;
    blocks_.give_back(&whole);
  }

  /// Cuts `size` bytes, which begin at `address`, off one end of a free block, which stays free; returns the part.
  ///   Requires:  a make_room() that covers it; size < rest.size
  [[nodiscard, gnu::always_inline]] block& cut(block& rest, std::uintptr_t address, std::size_t size,
                                               bool low_end) noexcept {
    block& part = *blocks_.take();
    part.address = address;
    part.size = size;
    part.home = rest.home;
    if (low_end) {
      rest.insert_below(part);
      rest.home->change(rest, address + size, rest.size - size);
    } else {
      rest.insert_above(part);
      rest.home->change(rest, rest.address, rest.size - size);
    }
    return part;
  }

  /// Gives a block that is in no index, or a part that was cut, to the user.
  ///   Requires:  a make_room() that covers it; `address` is the block's
  void make_live(block& b, std::uintptr_t address, std::size_t requested, bool oversize) noexcept {
    b.mark = {0, block::state::live, false, oversize};
    b.facts.requested = requested;
    live_.insert(address, b);
  }
  /// The live block at this address, or null; constant time.
  [[nodiscard]] block* find_live(const void* p) const noexcept {
    return live_.find(reinterpret_cast<std::uintptr_t>(p));
  }
  /// The same, and it is not live any more.
  [[nodiscard]] block* end_life(const void* p) noexcept {
    return live_.remove(reinterpret_cast<std::uintptr_t>(p));
  }

  /// How the free blocks that share their segment with others changed, in number and in bytes together.
  struct split_change {
    std::int64_t count;
    std::int64_t bytes;
  };
  /// Files a block as free, merged with its free neighbours.
  ///   Requires:  `address` is the block's
  [[gnu::always_inline]] split_change make_free(block& freed, std::uintptr_t address) noexcept {
    block* const low = if_free(freed.below());
    block* const high = if_free(freed.above);
    if (low != nullptr) return merge_down(*low, freed, high);
    if (high != nullptr) return absorb(*high, address, freed, high->size, 1);
    freed.home->insert(freed);
    return became_idle(freed) ? split_change{0, 0} : split_change{1, static_cast<std::int64_t>(freed.size)};
  }
  /// How many searches of its pool an idle segment has seen.
  [[nodiscard]] std::uint64_t age(const block& idle) const noexcept {
    return searches_[idle.home->pool()] - idle.origin().idle_since;
  }

  /// Calls f(block&) for each free block that is a whole segment, last pool first, in the order of (key, size,
  /// address); f may take that one out.
  template <typename F>
  void for_each_idle(F f) {
    for (std::size_t in = Pools; in-- > 0;) {
      for (free_blocks* home = pools_[in].first; home != nullptr; home = home->next) {
        home->put_down();
        for (block* b = home->lowest(); b != nullptr;) {
          block* const following = home->after(*b);
          if (!b->is_split()) f(*b);
          b = following;
        }
      }
    }
  }
  /// Releases one free oversize segment of `home` that holds `wanted` bytes, or where there is none, the largest ones
  /// until they add up; whether that was enough.
  ///   Source:  PyTorch's release_available_cached_blocks
  template <typename F>
  bool release_fitting(free_blocks& home, std::size_t wanted, std::size_t oversize, F release) const {
    const std::size_t least = wanted > oversize ? wanted : oversize;
    if (block* fitting = home.best_fit(least); fitting != nullptr)
      return !fitting->is_split() && release(*fitting);
    home.put_down();
    std::size_t released = 0;
    for (block* b = home.last_before(least, 0); b != nullptr && b->size >= oversize && released < least;) {
      block* const following = home.last_before(b->size, b->address);
      const std::size_t bytes = b->size;
      if (!b->is_split() && release(*b)) released += bytes;
      b = following;
    }
    return released >= least;
  }
  /// Calls f(first block, bytes) for each segment, in no particular order.
  template <typename F>
  void for_each_segment(F f) const {
    for (const segment* s = segments_; s != nullptr; s = s->next) {
      std::size_t bytes = 0;
      for (const block* b = s->first; b != nullptr; b = b->above) bytes += b->size;
      f(*s->first, bytes);
    }
  }
  template <typename F>
  void for_each_home(F f) const {
    for (const pool& p : pools_) {
      for (const free_blocks* home = p.first; home != nullptr; home = home->next) f(*home);
    }
  }
  /// The block at the start of the segment at this address, or null; linear in the segments.
  [[nodiscard]] block* segment_at(const void* address) const noexcept {
    const segment* s = segments_;
    while (s != nullptr && s->first->address != reinterpret_cast<std::uintptr_t>(address)) s = s->next;
    return s != nullptr ? s->first : nullptr;
  }

  /// Gives back the host memory that describes nothing any more, also that of streams which own no segment.
  void shrink() noexcept {
    for (pool& p : pools_) drop_empty(p);
    blocks_.sweep();
    segment_slab_.sweep();
  }

  [[nodiscard]] std::size_t live_count() const noexcept { return live_.size(); }
  [[nodiscard]] std::size_t footprint() const noexcept {
    std::size_t bytes = blocks_.footprint() + segment_slab_.footprint() + live_.footprint();
    for (const pool& p : pools_) bytes += p.by_key.footprint() + p.by_key.size() * sizeof(free_blocks);
    return bytes;
  }

 private:
  struct pool {
    key_map<free_blocks> by_key;
    free_blocks* first = nullptr;  // in the order of keys
    std::size_t drop_at = 16;      // homes from which on empty ones are looked for
  };

  [[nodiscard, gnu::noinline]] free_blocks* find_home(std::size_t in, stream_id key) noexcept {
    pool& p = pools_[in];
    free_blocks* found = p.by_key.find(key.handle);
    if (found == nullptr) {
      if (p.by_key.size() >= p.drop_at) drop_empty(p);
      if (!p.by_key.reserve_one()) return nullptr;
      found = new (std::nothrow) free_blocks(in, key);
      if (found == nullptr) return nullptr;
      p.by_key.insert(key.handle, *found);
      free_blocks** at = &p.first;
      while (*at != nullptr && (*at)->key() < key) at = &(*at)->next;
      found->next = *at;
      *at = found;
    }
    recent_[in] = found;
    return found;
  }

  [[nodiscard]] static block* if_free(block* b) noexcept {
    return b != nullptr && b->is_free() ? b : nullptr;
  }
  [[gnu::noinline]] split_change merge_down(block& low, block& freed, block* high) noexcept {
    if (high == nullptr) return absorb(low, low.address, freed, low.size, 1);
    const std::size_t before = low.size + high->size;
    high->home->remove(*high);
    high->unlink();
    blocks_.give_back(high);
    return absorb(low, low.address, freed, before, 2);
  }
  /// Lets a free block, which then begins at `address`, take a freed neighbour in. `joined` free blocks of `before` bytes
  /// become one.
  [[gnu::always_inline]] split_change absorb(block& into, std::uintptr_t address, block& freed,
                                             std::size_t before, std::int64_t joined) noexcept {
    const std::size_t freed_size = freed.size;
    into.home->change(into, address, before + freed_size);
    freed.unlink();
    blocks_.give_back(&freed);
    if (became_idle(into)) return {-joined, -static_cast<std::int64_t>(before)};
    return {1 - joined, static_cast<std::int64_t>(freed_size)};
  }
  /// Whether a free block is a whole segment; its age begins now.
  [[nodiscard]] bool became_idle(const block& free) noexcept {
    if (free.is_split()) return false;
    free.origin().idle_since = searches_[free.home->pool()];
    return true;
  }
  /// Drops the homes that own no segment, so that short-lived streams leave little behind.
  void drop_empty(pool& p) noexcept {
    for (free_blocks* home = p.first; home != nullptr;) {
      free_blocks* const following = home->next;
      if (home->segments == 0) drop(p, *home);
      home = following;
    }
    p.drop_at = 2 * p.by_key.size() + 16;
  }
  void drop(pool& p, free_blocks& home) noexcept {
    free_blocks** at = &p.first;
    while (*at != &home) at = &(*at)->next;
    *at = home.next;
    p.by_key.remove(home.key().handle);
    if (recent_[home.pool()] == &home) recent_[home.pool()] = nullptr;
    delete &home;
  }

  slab<block> blocks_;
  key_map<block> live_;
  slab<segment> segment_slab_;
  segment* segments_ = nullptr;
  std::array<free_blocks*, Pools> recent_{};  // where the last request of the pool looked
  std::array<std::uint64_t, Pools> searches_{};
  std::array<pool, Pools> pools_;
};

}  // namespace tessera::engine
