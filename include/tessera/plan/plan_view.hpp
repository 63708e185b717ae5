// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/plan/plan_follower.hpp>
#include <tessera/plan/plan_memory.hpp>

namespace tessera::detail {

/// A read-only view of the memory of a plan, for tools: its blocks, and the device's memory behind the places.
/// It is valid until the allocator next changes.
template <typename Provider>
class plan_view {
  using follower = plan_follower;
  using memory = plan_memory<Provider>;
  static constexpr std::uint32_t none = follower::none;

 public:
  plan_view(const follower& places, const memory& behind) noexcept : places_(places), memory_(behind) {}

  /// Calls f(const segment_view&, const block_view&) for each block, in the order of addresses. Adjacent mapped
  /// pages form one segment, which ends where the stream of the blocks changes.
  ///   Cost:  linear in the places of the plan. The same holds for the members below without a cost.
  template <typename F>
  void for_each_block(F f) const {
    cursor next(places_);
    for_each_run([&](std::size_t offset, std::size_t end) {
      while (offset < end) {
        const segment_view segment = segment_at(offset, end, next);
        const std::size_t stop = segment.address + segment.bytes - memory_.base();
        for (; next.begin() < stop; next.advance()) {
          if (next.begin() > offset) f(segment, free_block(segment, offset, next.begin()));
          f(segment, view_of(next.number()));
          offset = next.end();
        }
        if (offset < stop) f(segment, free_block(segment, offset, stop));
        offset = stop;
      }
    });
  }
  /// Calls f(offset, bytes, used) for each part that goes back to the device as a whole: a segment, or a
  /// physical chunk. `used` has the live and pending blocks in it.
  struct blocks_in_unit {
    std::size_t bytes = 0;  ///< of the blocks, in the unit
    std::size_t blocks = 0;
    std::size_t live = 0;      ///< of these, not pending
    std::uintptr_t first = 0;  ///< address of the lowest
  };
  template <typename F>
  void for_each_unit(F f) const {
    cursor next(places_);
    memory_.for_each_unit([&](std::size_t offset, std::size_t bytes) {
      blocks_in_unit used;
      while (next.end() <= offset) next.advance();
      for (cursor c = next; c.begin() < offset + bytes; c.advance()) {
        const std::size_t low = c.begin() > offset ? c.begin() : offset;
        const std::size_t high = c.end() < offset + bytes ? c.end() : offset + bytes;
        used.bytes += high - low;
        if (used.blocks++ == 0) used.first = memory_.base() + c.begin();
        used.live += view_of(c.number()).is == block_view::state::live;
      }
      f(memory_.base() + offset, bytes, used);
    });
  }

  /// Whether an address lies in the addresses of the plan.
  ///   Cost:  constant
  [[nodiscard]] bool contains(const void* p) const noexcept { return memory_.contains(p); }
  /// Returns the live block that begins at an address; a block of 0 bytes if there is none.
  ///   Cost:  constant
  [[nodiscard]] block_view live_block_at(const void* p) const noexcept {
    if (!contains(p)) return {};
    const std::uint32_t i = places_.find(reinterpret_cast<std::uintptr_t>(p) - memory_.base());
    const block_view found = i != none ? view_of(i) : block_view{};
    return found.is == block_view::state::live ? found : block_view{};
  }
  /// Returns the block, free or not, that an address lies in; a block of 0 bytes if there is none.
  [[nodiscard]] block_view block_around(const void* p) const noexcept {
    block_view found;
    for_each_block([&found, p](const segment_view&, const block_view& b) {
      if (reinterpret_cast<std::uintptr_t>(p) - b.address < b.bytes) found = b;
    });
    return found;
  }
  /// Returns the segment that an address lies in; a segment of 0 bytes if there is none.
  [[nodiscard]] segment_view segment_around(const void* p) const noexcept {
    segment_view found;
    for_each_block([&found, p](const segment_view& s, const block_view&) {
      if (reinterpret_cast<std::uintptr_t>(p) - s.address < s.bytes) found = s;
    });
    return found;
  }

  /// The use of the memory, without a limit.
  [[nodiscard]] usage bytes() const noexcept {
    usage now;
    places_.for_each_live([&](std::uint32_t i, const follower::node& n) {
      const block_view b = view_of(i);
      now.requested += n.bytes;
      now.active += b.bytes;
      if (b.is == block_view::state::live) now.allocated += b.bytes;
    });
    const std::size_t in_use = now.active;
    now.reserved = static_cast<std::size_t>(memory_.device_bytes().current);
    now.cached = now.reserved > in_use ? now.reserved - in_use : 0;
    return now;
  }
  /// The free bytes that cannot go back, because live or pending blocks share their units.
  [[nodiscard]] std::size_t non_releasable() const noexcept {
    std::size_t result = 0;
    for_each_unit([&result](std::uintptr_t, std::size_t bytes, const blocks_in_unit& used) {
      if (used.blocks > 0) result += bytes - used.bytes;
    });
    return result;
  }

  /// Aborts, because no live block begins at an address of the plan.
  [[noreturn, gnu::noinline, gnu::cold]] void refuse(const char* call, const void* p) const noexcept {
    fixed_text text;
    text.add(call).add(": not the address of a live block; it lies ");
    text.add(reinterpret_cast<std::uintptr_t>(p) - memory_.base()).add(" bytes into the memory of the plan");
    const char* where = ", in no live block, perhaps freed before";
    places_.for_each_live([&](std::uint32_t i, const follower::node&) {
      const block_view b = view_of(i);
      if (reinterpret_cast<std::uintptr_t>(p) - b.address >= b.bytes) return;
      where = b.is == block_view::state::pending ? ", in a freed, still used block" : ", inside a live block";
    });
    fatal(text.add(where).c_str(), p);
  }

 private:
  /// A position among the live blocks, in the order of places.
  class cursor {
   public:
    explicit cursor(const follower& places) noexcept : places_(&places) { advance(); }
    [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
    /// The offsets of the block; after the last block, no memory lies so high.
    [[nodiscard]] std::size_t begin() const noexcept {
      return number_ != none ? places_->offset_of(places_->at(number_)) : ~std::size_t{0};
    }
    [[nodiscard]] std::size_t end() const noexcept {
      return number_ != none ? begin() + places_->bytes_of(places_->at(number_)) : ~std::size_t{0};
    }
    [[nodiscard]] stream_id stream() const noexcept { return places_->track_of(places_->at(number_)).stream; }
    void advance() noexcept { number_ = places_->next_live(position_); }

   private:
    const follower* places_;
    std::size_t position_ = 0;
    std::uint32_t number_ = none;
  };

  /// Calls f(offset, end) for each run of adjacent memory.
  template <typename F>
  void for_each_run(F f) const {
    std::size_t begin = 0, end = 0;
    memory_.for_each_unit([&](std::size_t offset, std::size_t bytes) {
      if (offset != end && begin != end) f(begin, end);
      if (offset != end) begin = offset;
      end = offset + bytes;
    });
    if (begin != end) f(begin, end);
  }
  /// The segment that begins at an offset, in memory that goes on until `end`. `next` is the first block there.
  [[nodiscard]] segment_view segment_at(std::size_t offset, std::size_t end, cursor next) const noexcept {
    segment_view segment{memory_.base() + offset, end - offset};
    segment.in_range = memory::in_range;
    if (next.begin() >= end) return segment;
    segment.stream = next.stream();
    while (memory::in_range && next.begin() < end && next.stream() == segment.stream) next.advance();
    if (next.begin() < end && next.stream() != segment.stream) segment.bytes = next.begin() - offset;
    return segment;
  }
  [[nodiscard]] block_view view_of(std::uint32_t i) const noexcept {
    using state = block_view::state;
    const follower::node& n = places_.at(i);
    return {memory_.base() + places_.offset_of(n), places_.bytes_of(n), n.bytes,
            (n.state & follower::is_freed) != 0 ? state::pending : state::live, places_.track_of(n).stream};
  }
  [[nodiscard]] block_view free_block(const segment_view& in, std::size_t begin,
                                      std::size_t end) const noexcept {
    return {memory_.base() + begin, end - begin, 0, block_view::state::free, in.stream};
  }

  const follower& places_;
  const memory& memory_;
};

}  // namespace tessera::detail
