// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>
#include <tessera/core/free_order.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/block_order.hpp>
#include <tessera/detail/free_list.hpp>
#include <tessera/detail/homes.hpp>
#include <tessera/detail/idle_walk.hpp>
#include <tessera/detail/key_map.hpp>
#include <tessera/detail/segments.hpp>
#include <tessera/detail/slab.hpp>

namespace tessera::detail {

/// All blocks of one allocator: which segment each belongs to, which are free, and which address is which block.
///
/// Where segments are `Ranges` of addresses, whose pages come and go one by one, each free block has an age of its own,
/// and none counts as split off.
///
/// Where a block `Crosses` from stream to stream, blocks of one segment may wait in several homes of their pool.
template <std::size_t Pools, bool Ranges = false, bool Crosses = false,
          free_order Order = free_order::lowest_address>
class heap {
  static_assert(!(Ranges && Crosses), "a free block notes one of: its age, the work behind which it is free");

 public:
  static constexpr bool crosses = Crosses;
  static constexpr std::size_t pools = Pools;
  static constexpr bool has_ranges = Ranges;
  static constexpr free_order order = Order;
  using block_order = detail::block_order<Order, Ranges>;
  static_assert(!Crosses || Order == free_order::lowest_address, "blocks that cross come by address");

  heap() = default;
  heap(const heap&) = delete;
  heap& operator=(const heap&) = delete;

  /// Takes the host memory that serving one request can need, or what so many new blocks need; false where there is none,
  /// and nothing has changed.
  [[nodiscard]] bool make_room(std::size_t blocks = 2) noexcept {
    return blocks_.reserve(blocks) && live_.reserve_one();
  }

  /// The home of a pool and a key, where their free blocks wait; null where host memory ran out.
  template <typename Key>
  [[nodiscard]] free_list* home(std::size_t in, Key key) noexcept {
    return pools_[in].at(in, key);
  }

  /// The best-fitting free block; counts as a search of the pool.
  [[nodiscard, gnu::always_inline]] block* best_fit(free_list& home, std::size_t size) noexcept {
    ++searches_[home.pool()];
    return home.template best_fit<block_order>(size);
  }

  /// Files a segment that the device gave as one free block; null where host memory ran out.
  [[nodiscard]] block* add_segment(free_list& home, std::uintptr_t address, std::size_t bytes,
                                   bool oversize) noexcept {
    if (!segments_.reserve_one() || !blocks_.reserve(3)) return nullptr;
    segment& fresh = segments_.add(searches_[home.pool()], oversize);
    block& whole = *blocks_.take();
    fresh.number = ++last_number_;
    if constexpr (numbers_blocks) whole.segment_number = fresh.number;
    whole.link(fresh, fresh);
    whole.address = address;
    whole.size = bytes;
    whole.home = &home;
    if constexpr (Crosses) whole.free_behind = 0;  // behind no work
    ++home.segments;
    home.template insert<block_order>(whole);
    return &whole;
  }

  /// Hides an idle segment from searches and walks while the device is asked to take it back; its home stays.
  void take_out(block& whole) noexcept {
    whole.home->remove<block_order>(whole);
    segments_.set_aside(segment_of(whole), whole.size);
  }
  /// Undoes take_out.
  void put_back(block& whole) noexcept {
    segments_.bring_back(segment_of(whole), whole.size);
    whole.home->insert<block_order>(whole);
  }
  /// Forgets a segment that was taken out and that the device took back.
  void remove_segment(block& whole) noexcept {
    segments_.forget(segment_of(whole), whole.size);
    --whole.home->segments;
    blocks_.give_back(&whole);
  }
  [[nodiscard]] std::size_t leaving() const noexcept { return segments_.bytes_aside(); }

  /// Cuts `size` bytes, which begin at `address`, off one end of a free block, which stays free; returns the part.
  ///   Requires:  a make_room() that covers it; size < rest.size
  [[nodiscard, gnu::always_inline]] block& cut(block& rest, std::uintptr_t address, std::size_t size,
                                               bool low_end) noexcept {
    block& part = *blocks_.take();
    part.address = address;
    part.size = size;
    part.home = rest.home;
    if constexpr (numbers_blocks) part.segment_number = rest.segment_number;
    count_in(*rest.home, 1);
    if (low_end) {
      part.link(*rest.below, rest);
      rest.home->change<block_order>(rest, address + size, rest.size - size);
    } else {
      part.link(rest, *rest.above);
      rest.home->change<block_order>(rest, rest.address, rest.size - size);
    }
    return part;
  }

  /// Takes `size` bytes, which begin at `address`, out of a free block: all of it, or a part that is cut off.
  [[nodiscard, gnu::always_inline]] block& take(block& from, std::uintptr_t address, std::size_t size,
                                                bool low_end) noexcept {
    if constexpr (Ranges) {
      if (!low_end && address + size < from.address + from.size) {  // out of its middle
        block& above = cut(from, address, from.address + from.size - address, false);
        above.home->insert<block_order>(above);
        above.free_since = from.free_since;
        return cut(above, address, size, true);
      }
    }
    if (size < from.size) return cut(from, address, size, low_end);
    from.home->remove<block_order>(from);
    return from;
  }

  /// Gives a block that was taken to the user, to be found by its address.
  ///   Requires:  a make_room() that covers it; `address` is the block's
  [[gnu::always_inline]] void make_live(block& b, std::uintptr_t address, std::size_t requested) noexcept {
    b.mark.is = block::state::live;
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

  /// Files a block as free, merged with its free neighbours. `split` learns how the free blocks that share their segment
  /// with others changed, in number and in bytes together: grew(count, bytes) or shrank(count, bytes).
  ///   Requires:  `address` is the block's
  template <typename SplitCounter>
  [[gnu::always_inline]] void make_free(block& freed, std::uintptr_t address, SplitCounter split) noexcept {
    block& low = *freed.below;
    block& high = *freed.above;
    if (merges(low, freed)) return merge_down(low, freed, split);
    if (merges(high, freed)) return absorb(high, address, freed, high.size, 1, split);
    freed.home->insert<block_order>(freed);
    if (!became_idle(freed)) split.grew(1, freed.size);
  }
  /// Whether a free block can go back as a whole; its age begins now.
  [[nodiscard, gnu::always_inline]] bool became_idle(block& free) noexcept {
    if constexpr (Ranges) {
      free.free_since = static_cast<std::uint32_t>(searches_[free.home->pool()]);
      return true;
    }
    if (free.is_split()) return false;
    segment_of(free).idle_since = searches_[free.home->pool()];
    return true;
  }
  /// How many searches of its pool an idle segment has seen, or in a range, a free block.
  [[nodiscard]] std::uint64_t age(const block& idle) const noexcept {
    const std::size_t in = idle.home->pool();
    const std::uint64_t most = searches_[in] - ages_since_[in];
    std::uint64_t age = 0;
    if constexpr (Ranges) {
      age = static_cast<std::uint32_t>(searches_[in]) - idle.free_since;
    } else {
      age = searches_[in] - segment_of(idle).idle_since;
    }
    return age < most ? age : most;
  }
  /// Lets every age begin anew.
  void restart_ages() noexcept { ages_since_ = searches_; }

  /// Calls f(block&) for each free block of at least `least` bytes that is a whole segment, and in ranges for every one,
  /// last pool first, in the order of keys, then of their homes. f may try to release that one, during which blocks may come
  /// and go, and says then true; what comes in the meantime does not keep the walk going.
  template <typename F>
  void for_each_idle(F f, std::size_t least = min_alignment) {
    std::size_t tries = Ranges ? blocks_.in_use() : segments_.count();
    for (std::size_t in = Pools; in-- > 0;) {
      for (free_list* home = pools_[in].first(); home != nullptr; home = home->next) {
        if (!walk_idle<block_order, Ranges>(*home, least, tries, f)) return;
      }
    }
  }
  /// Releases free oversize blocks of `home` until they make up for `wanted` bytes; as release_largest().
  template <typename F>
  bool release_fitting(free_list& home, std::size_t wanted, std::size_t oversize, F release) const {
    return release_largest<block_order, Ranges>(home, wanted, oversize, release);
  }
  /// Calls f(first block, bytes) for each segment, in no particular order; with `leaving`, for those taken out too.
  template <typename F>
  void for_each_segment(F f, bool leaving = false) const {
    segments_.for_each(leaving, [&f](const segment& s) {
      std::size_t bytes = 0;
      for (const block* b = s.above; b != &s; b = b->above) bytes += b->size;
      f(s.first(), bytes);
    });
  }
  template <typename F>
  void for_each_home(F f) const {
    for (const homes& p : pools_) {
      for (free_list* home = p.first(); home != nullptr; home = home->next) f(*home);
    }
  }
  /// The block at the start of the segment at this address, or null; linear in the segments.
  [[nodiscard]] block* segment_at(const void* address) const noexcept {
    const segment* const s = segments_.find(reinterpret_cast<std::uintptr_t>(address));
    return s != nullptr ? &s->first() : nullptr;
  }

  /// Gives back the host memory that describes nothing any more, also that of streams which own no segment.
  void shrink() noexcept {
    for (homes& p : pools_) p.drop_empty();
    blocks_.sweep();
    segments_.sweep();
  }

  [[nodiscard]] std::size_t live_count() const noexcept { return live_.size(); }
  [[nodiscard]] std::size_t footprint() const noexcept {
    std::size_t bytes = blocks_.footprint() + segments_.footprint() + live_.footprint();
    for (const homes& p : pools_) bytes += p.footprint();
    return bytes;
  }

 protected:
  /// Where blocks cross, a home counts blocks.
  [[gnu::always_inline]] static void count_in(free_list& home, int more) noexcept {
    if constexpr (Crosses) home.segments += static_cast<std::size_t>(more);
  }

  slab<block> blocks_;
  key_map<block> live_;
  segments segments_;

 private:
  [[nodiscard, gnu::always_inline]] static bool merges(const block& neighbour, const block& freed) noexcept {
    return neighbour.is_free() && (!Crosses || neighbour.home == freed.home);
  }
  template <typename SplitCounter>
  [[gnu::noinline]] void merge_down(block& low, block& freed, SplitCounter split) noexcept {
    block& high = *freed.above;
    if (!merges(high, freed)) return absorb(low, low.address, freed, low.size, 1, split);
    const std::size_t before = low.size + high.size;
    high.home->remove<block_order>(high);
    count_in(*high.home, -1);
    high.unlink();
    blocks_.give_back(&high);
    absorb(low, low.address, freed, before, 2, split);
  }
  /// Lets a free block, which then begins at `address`, take a freed neighbour in. `joined` free blocks of `before` bytes
  /// become one.
  template <typename SplitCounter>
  [[gnu::always_inline]] void absorb(block& into, std::uintptr_t address, block& freed, std::size_t before,
                                     int joined, SplitCounter split) noexcept {
    const std::size_t added = freed.size;
    into.home->change<block_order>(into, address, before + added);
    count_in(*into.home, -1);
    if constexpr (Crosses) into.free_behind = freed.free_behind;  // the latest
    freed.unlink();
    blocks_.give_back(&freed);
    became_idle(into) ? split.shrank(joined, before) : split.grew(1 - joined, added);
  }

  std::array<std::uint64_t, Pools> searches_{};
  std::array<std::uint64_t, Pools> ages_since_{};  // searches when ages began to count
  std::array<homes, Pools> pools_;

 protected:
  static constexpr bool numbers_blocks = Order == free_order::oldest_segment && !Ranges;
  std::uint32_t last_number_ = 0;
};

}  // namespace tessera::detail
