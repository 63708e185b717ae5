// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <utility>

#include <tessera/detail/backends/backend.hpp>
#include <tessera/detail/backends/physical_chunks.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/detail/policies/ask_policies.hpp>

namespace tessera::inline v0_1::detail {

/// The members of a policy whose backend maps memory into ranges.
template <typename P>
concept answers_range_questions = requires(const P& p, std::size_t bytes) {
  { p.mapping_unit(bytes) } noexcept -> std::same_as<std::size_t>;
  { p.range_size(bytes) } noexcept -> std::same_as<std::size_t>;
  { p.base_alignment(bytes) } noexcept -> std::same_as<std::size_t>;
};

/// The bytes that a growth policy sees if idle memory moves.
struct growth_state {
  std::size_t reserved = 0;       ///< reserved now
  std::size_t limit = 0;          ///< bytes that may be reserved
  std::size_t peak_active = 0;    ///< peak of live, pending and wanted bytes, at times of growth
  std::size_t peak_reserved = 0;  ///< only shrink() with nothing reserved resets the peaks
};

/// The members of a policy whose backend also moves idle memory.
template <typename P>
concept answers_moving_questions =
    answers_range_questions<P> && requires(const P& p, const growth_state& state, std::size_t bytes) {
      { p.move_threshold(state) } noexcept -> std::same_as<std::size_t>;
      { p.max_chunk(state) } noexcept -> std::same_as<std::size_t>;
      { p.min_chunk(bytes) } noexcept -> std::same_as<std::size_t>;
      { p.should_save_pages(bytes, bytes) } noexcept -> std::same_as<bool>;
    };

/// The members that all backends with ranges share.
struct range_backend_defaults : backend_defaults {
  static constexpr bool has_ranges = true;
  static constexpr bool places_blocks = true;
};

/// Finds the first unmapped block in the ranges of a free list, in the order of addresses, for which which(block) is true, or
/// null.
template <typename Which>
[[nodiscard]] block* find_unmapped(const free_list& list, Which which) {
  for (const segment* range = list.ranges; range != nullptr; range = range->next_range) {
    for (block* b = range->links[1]; b != range; b = b->links[1]) {
      if (which(*b)) return b;
    }
  }
  return nullptr;
}
/// Calls f(block) for each unmapped block in the ranges of a free list, in the order of addresses.
template <typename F>
void for_each_unmapped(const free_list& list, F f) {
  (void)find_unmapped(list, [&f](block& b) {
    f(b);
    return false;
  });
}

/// How a range grows.
struct range_growth {
  std::size_t mapping;  ///< bytes to map at once, a multiple of the granularity
  std::size_t range;    ///< bytes of addresses to reserve if no range has room
  page_order kinds;     ///< kinds of pages to ask for
};

/// The ranges of one allocator. A range belongs to a free list and starts unmapped. Memory is mapped at the
/// addresses that blocks need, and goes back chunk by chunk. Unmapped addresses are also blocks, neither free
/// nor in use. Two unmapped blocks are never neighbours.
///
/// The allocator is not re-entered during calls that map or unmap. An instance of a backend with ranges derives from this
/// class.
template <typename Manager>
class mapped_ranges {
 public:
  using provider_type = typename Manager::provider_type;
  using chunks_type = physical_chunks<provider_type, decltype(Manager::counters_type::device_bytes)>;
  using chunk = typename chunks_type::chunk;
  using action = typename Manager::action;

  explicit mapped_ranges(Manager& manager) noexcept : manager_(manager) {}
  mapped_ranges& operator=(mapped_ranges&&) = delete;

  /// Releases all memory and all ranges.
  ~mapped_ranges() {
    manager_.wait_for_pending();
    for_each_range([this](segment& range) {
      (void)finish_work_of(*range.first().list);
      for (const block* b = &range.first(); b != &range; b = b->next) {
        if (!b->is_unmapped())
          for_each_chunk_with(b->address, b->address, b->end(),
                              [this](chunk& c) { chunks_.destroy(provider(), c); });
      }
    });
    chunks_.retry_orphaned(provider());
    for_each_range([this](const segment& range) {
      (void)provider().unreserve(reinterpret_cast<void*>(range.address), range.size);
    });
  }

  [[nodiscard]] mapped_ranges& ranges() noexcept { return *this; }
  [[nodiscard]] const mapped_ranges& ranges() const noexcept { return *this; }
  /// Granularity in bytes of the sizes and addresses of chunks of these kinds.
  [[nodiscard]] std::size_t granularity(const page_order& kinds) const noexcept {
    std::size_t max = 1;
    for (const page_kind& kind : kinds) {
      const std::size_t page = manager_.provider().page_size(kind);
      max = page > max ? page : max;
    }
    return max;
  }
  /// Alignment of every chunk address, in bytes.
  [[nodiscard]] std::size_t alignment() const noexcept { return alignment_; }
  void note_alignment(std::size_t address) noexcept {
    if (alignment_of(address) < alignment_) alignment_ = alignment_of(address);
  }
  [[nodiscard]] chunks_type& chunks() noexcept { return chunks_; }
  [[nodiscard]] const chunks_type& chunks() const noexcept { return chunks_; }

  /// Returns the bytes to skip at the start of a block to align `size` bytes to `alignment`. Returns 0 if the
  /// block lacks the room.
  [[nodiscard]] static std::size_t offset_to(const block& free, std::size_t size,
                                             std::size_t alignment) noexcept {
    if (alignment != 1 && (alignment == 0 || alignment % min_alignment != 0))
      refuse_answer("growth: base_alignment", size, alignment,
                    "base_alignment is 1 or a multiple of min_alignment");
    const std::size_t offset = align_up(free.address, alignment) - free.address;
    return offset + size <= free.size ? offset : 0;
  }

  /// Reserves a range for `size` bytes or more. If the allocator has many ranges, or if the device refuses, it is shorter
  /// than the policy wants. If the device has no addresses for `size` bytes, gives idle memory and its ranges back, unless
  /// `makes_room` is false.
  /// Returns its only block, which is unmapped. Returns null if the device refuses or host memory ran out.
  [[nodiscard]] block* reserve_range(free_list& list, std::size_t size, const range_growth& growth,
                                     bool makes_room = true) noexcept {
    const std::size_t max = align_up(smaller(growth.range, all_addresses), growth.mapping);
    if (max < size) return nullptr;
    const std::size_t min = align_up(size, growth.mapping);
    std::size_t bytes = larger(min, smaller(max, align_up(range_wanted(list), growth.mapping)));
    void* memory = nullptr;
    while ((memory = provider().reserve(bytes, alignment_of(growth.mapping))) == nullptr) {
      longest_refused_ = larger(longest_refused_, bytes);
      if (bytes > min) {
        bytes = larger(min, align_up(bytes / 2, growth.mapping));
      } else if (!std::exchange(makes_room, false) || !release_idle()) {
        return nullptr;
      }
    }
    block* const whole = insert_range(list, reinterpret_cast<std::uintptr_t>(memory), bytes);
    if (whole == nullptr) {
      (void)provider().unreserve(memory, bytes);
      return nullptr;
    }
    manager_.report(action::range_reserve, whole->address, bytes, bytes, list);
    note_alignment(whole->address);
    return whole;
  }
  /// Gives back a range without mapped memory.
  void unreserve_range(block& whole) noexcept {
    const std::uintptr_t address = whole.address;
    const std::size_t bytes = whole.size;
    const free_list& list = *whole.list;
    if (!provider().unreserve(reinterpret_cast<void*>(address), bytes)) return;
    erase_range(whole);
    manager_.report(action::range_release, address, bytes, bytes, list);
  }
  /// Gives back a range if it has no mapped memory.
  void unreserve_if_empty(segment& range) noexcept {
    if (range.first().is_unmapped() && !range.first().is_split()) unreserve_range(range.first());
  }
  /// Calls f(segment&) for each range. f may erase that range.
  template <typename F>
  void for_each_range(F f) {
    manager_.for_each_list([&f](const free_list& list) {
      for (segment *range = list.ranges, *next = nullptr; range != nullptr; range = next) {
        next = range->next_range;
        f(*range);
      }
    });
  }

  /// Maps new pages in an unmapped block: at least `bytes` from `begin`, all or none. Returns the free block
  /// that contains them, or null.
  [[nodiscard]] block* map_new(block& unmapped, std::uintptr_t begin, std::size_t bytes,
                               const range_growth& growth) noexcept {
    // The last page is shorter if the usable addresses end inside it.
    const std::uintptr_t room = unmapped.address + usable(unmapped, granularity(growth.kinds));
    const free_list& list = *unmapped.list;
    chunk* fresh = nullptr;
    chunk** last = &fresh;
    std::uintptr_t end = begin;
    bool works = manager_.reserve_blocks(4);  // two of the four for the request itself
    while (works && end - begin < bytes) {
      *last = chunks_.plan(end, growth.mapping < room - end ? growth.mapping : room - end);
      works = *last != nullptr;
      if (!works) break;
      end += (*last)->bytes;
      last = &(*last)->next;
    }
    works = works && manager_.may_acquire(Manager::group_of(list), end - begin);
    if (!works) chunks_.destroy_all(provider(), fresh);
    if (!works || !chunks_.map_all(provider(), fresh, growth.kinds)) {
      manager_.report(action::refused, 0, growth.mapping, growth.mapping, list);
      return nullptr;
    }
    return &add_mapped(unmapped, fresh);
  }
  /// Makes the memory of chunks free that were just mapped, and counts it. They are in the order of addresses, in the given
  /// block or above it. Returns the free block that contains the last one.
  ///   Requires:  a preceding reserve_blocks() of two for each unmapped block
  block& add_mapped(block& unmapped, const chunk* mapped) noexcept {
    const free_list& list = *unmapped.list;
    block* b = &unmapped;
    std::size_t bytes = 0;
    for (const chunk* c = mapped; c != nullptr;) {
      while (!b->is_unmapped() || b->end() <= c->address) b = b->next;
      const std::uintptr_t begin = c->address;
      const std::uintptr_t room = b->end();
      std::uintptr_t end = begin;
      for (; c != nullptr && c->address == end && end < room; c = c->next) {
        manager_.report(action::segment_map, c->address, c->bytes, c->bytes, list);
        end += c->bytes;
      }
      b = &mark_mapped(*b, begin, end - begin);
      bytes += end - begin;
    }
    manager_.count_mapped(list, static_cast<std::int64_t>(bytes));
    return *b;
  }
  /// Asks the policies how a range grows for a block of `size` bytes. Aborts if the answer is invalid.
  template <typename Policies>
  [[nodiscard]] range_growth growth_for(std::size_t size, const Policies& p) const noexcept {
    const std::size_t mapping = mapping_unit(p, size);
    if (mapping == 0 || mapping % min_alignment != 0 || mapping > max_request)
      refuse_answer("growth: mapping_unit", size, mapping,
                    "mapping_unit is a multiple of min_alignment, above 0 and up to max_request");
    const page_order kinds = p.pages.backing(mapping);
    return {align_up(mapping, granularity(kinds)), p.growth.range_size(manager_.provider().capacity()),
            kinds};
  }
  /// Returns the bytes of a free block. For an unmapped block, returns the bytes at its start that pages of
  /// `granularity` bytes can fill.
  [[nodiscard]] static std::size_t usable(const block& b, std::size_t granularity) noexcept {
    if (b.is_free()) return b.size;
    return b.is_unmapped() && b.address % granularity == 0 ? b.size & ~(granularity - 1) : 0;
  }

  /// Unmaps the chunks that lie wholly in a free block and for which `which(chunk)` is true. First waits for
  /// the work that may use them, so it unmaps none while the device must not be waited for. Calls
  /// then(chunk, unmapped block) for each chunk.
  ///   Returns:  the bytes of the unmapped chunks
  template <typename Which, typename Then>
  std::size_t unmap_chunks(block& idle, Which which, Then then) noexcept {
    free_list& list = *idle.list;
    std::size_t unmapped = 0;
    block* left = &idle;
    bool is_done = false;
    for_each_chunk(idle, [&](chunk& c) {
      if (!which(c)) return true;
      const std::uintptr_t address = c.address;
      const std::size_t bytes = c.bytes;
      is_done = is_done || (manager_.may_wait() && finish_work_of(list));
      if (!is_done || !manager_.may_wait() || !manager_.reserve_blocks()) return false;
      manager_.report(action::segment_unmap, address, bytes, bytes, list);
      if (!chunks_.unmap(provider(), c)) {
        manager_.report(action::segment_map, address, bytes, bytes, list);
        return false;
      }
      block& hole = mark_unmapped(*left, address, bytes);
      left = hole.next;
      unmapped += bytes;
      then(c, hole);
      return true;
    });
    manager_.count_mapped(list, -static_cast<std::int64_t>(unmapped));
    return unmapped;
  }
  /// Calls f(chunk) for each chunk that lies wholly in a free block and that extensions let go back or move, in the order
  /// of addresses. Stops if f returns false. There is none while an extension keeps the memory of the group.
  template <typename F>
  void for_each_chunk(const block& in, F f) const {
    for_each_chunk_of(in, in, f);
  }
  /// Does the same for the chunks in adjacent blocks, of which `low` is the first and `high` the last.
  template <typename F>
  void for_each_chunk_of(const block& low, const block& high, F f) const {
    if (!manager_.extensions().has_memory(Manager::group_of(*low.list))) return;
    const std::uintptr_t end = high.end();
    for (std::uintptr_t at = low.address; chunk* const c = chunks_.first_from(at, end, alignment_);) {
      at = c->address + c->bytes;
      if (at > end || (manager_.may_unmap(c->address, c->bytes) && !f(*c))) return;
    }
  }
  /// Calls f(chunk) for each chunk that begins at `low` or above and has bytes in [begin, end), in the order of addresses.
  ///   Cost:  linear in these bytes; if no chunk has `begin`, also in those down to `low`
  template <typename F>
  void for_each_chunk_with(std::uintptr_t low, std::uintptr_t begin, std::uintptr_t end, F f) const {
    std::uintptr_t at = begin / alignment_ * alignment_;
    while (at > low && chunks_.find(at) == nullptr) at -= alignment_;
    while (chunk* const c = chunks_.first_from(larger(at, low), end, alignment_)) {
      at = c->address + c->bytes;
      if (at > begin) f(*c);
    }
  }
  /// Bytes of the chunks of a free block, and of the idle blocks around it, that could no longer go back if `size` bytes at
  /// `offset` were used.
  ///   Cost:  linear in `size` plus the largest chunk, and in the withheld blocks beside it
  [[nodiscard]] std::size_t newly_held(const block& free, std::size_t offset,
                                       std::size_t size) const noexcept {
    const block *low = &free, *high = &free;
    while (low->prev->is_idle()) low = low->prev;
    while (high->next->is_idle()) high = high->next;
    const std::uintptr_t begin = free.address + offset;
    std::size_t bytes = 0;
    for_each_chunk_with(low->address, begin, begin + size, [&](const chunk& c) {
      if (c.address + c.bytes <= high->end() && manager_.may_unmap(c.address, c.bytes)) bytes += c.bytes;
    });
    return bytes;
  }
  [[nodiscard]] std::size_t releasable(const block& idle) const noexcept { return releasable(idle, idle); }
  [[nodiscard]] std::size_t releasable(const block& low, const block& high) const noexcept {
    std::size_t bytes = 0;
    for_each_chunk_of(low, high, [&bytes](const chunk& c) {
      bytes += c.bytes;
      return true;
    });
    return bytes;
  }
  /// Gives back the chunks that lie wholly in a free block. Also gives back the range if nothing is mapped
  /// there any more.
  ///   Returns:  the bytes of the chunks
  std::size_t release(block& idle) noexcept {
    return unmap_chunks(
        idle, [](const chunk&) { return true; },
        [this](chunk& c, block& hole) {
          chunks_.destroy(provider(), c);
          if (!hole.is_split()) unreserve_range(hole);
        });
  }
  /// Makes a part of an unmapped block free, and coalesces it with its free neighbours. Returns the block
  /// that contains the part.
  ///   Requires:  a preceding reserve_blocks()
  ///   Requires:  the part lies in the block
  block& mark_mapped(block& unmapped, std::uintptr_t address, std::size_t bytes) noexcept {
    const std::size_t low = address - unmapped.address;
    const std::size_t high = unmapped.size - low - bytes;
    block* part = &unmapped;
    if (low > 0) {
      part = &insert_unmapped(unmapped, address, unmapped.size - low);
      unmapped.size = low;
    }
    if (high > 0) {
      (void)insert_unmapped(*part, address + bytes, high);
      part->size = bytes;
    }
    unlink_unmapped(*part);
    block& kept = part->prev->is_free() ? *part->prev : part->next->is_free() ? *part->next : *part;
    manager_.make_free(*part);
    return kept;
  }
  /// Makes a part of a free block unmapped, and joins it with its unmapped neighbours. Returns the unmapped
  /// block.
  ///   Requires:  a preceding reserve_blocks()
  ///   Requires:  the part lies in the block
  block& mark_unmapped(block& free, std::uintptr_t address, std::size_t bytes) noexcept {
    block* hole = &manager_.extract(free, address - free.address, bytes);
    hole->status.state = block::state::unmapped;
    block* before = hole->prev;
    while (!before->is_unmapped() && before->status.state != block::state::segment) before = before->prev;
    link_unmapped(*before, *hole, *before->links[1]);
    if (hole->next->is_unmapped()) join(*hole, *hole->next);
    if (hole->prev->is_unmapped()) {
      hole = hole->prev;
      join(*hole, *hole->next);
    }
    return *hole;
  }

  /// Retries to give back memory that the device failed to take, if the device may be waited for.
  void retry_orphaned() noexcept {
    if (manager_.may_wait()) chunks_.retry_orphaned(provider());
  }
  /// Frees host memory of unused metadata, and gives back the ranges without mapped memory of groups that
  /// extensions added and whose idle memory may go back. Also retries to give back memory that the device failed to take.
  void shrink() noexcept {
    retry_orphaned();
    for_each_range([this](segment& range) {
      // A range that is short, because the device refused a longer one, would serve less than another one may now.
      const auto& owner = Manager::group_of(*range.list);
      const bool is_unused = owner.is_private() && manager_.may_release(owner);
      if (is_unused || range.first().size < longest_refused_) unreserve_if_empty(range);
    });
    chunks_.shrink();
    manager_.shrink();
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return chunks_.metadata_bytes(); }

  /// Inserts a range without mapped memory. Returns its only block, or null if host memory ran out.
  [[nodiscard]] block* insert_range(free_list& list, std::uintptr_t address, std::size_t bytes) noexcept {
    segment* const fresh = manager_.insert_range(address, bytes);
    if (fresh == nullptr) return nullptr;
    segment** before = &list.ranges;
    while (*before != nullptr && (*before)->address < address) before = &(*before)->next_range;
    fresh->next_range = *before;
    *before = fresh;
    ++list.users;
    ++ranges_;
    fresh->list = &list;
    fresh->link(*fresh, *fresh);
    fresh->links[0] = fresh->links[1] = fresh;
    return &insert_unmapped(*fresh, address, bytes);
  }
  /// Erases a range without mapped memory.
  void erase_range(block& whole) noexcept {
    segment& range = segment_of(whole);
    segment** before = &whole.list->ranges;
    while (*before != &range) before = &(*before)->next_range;
    *before = range.next_range;
    --whole.list->users;
    --ranges_;
    manager_.erase_range(range);
    manager_.erase_block(whole);
  }

 protected:
  Manager& manager_;

 private:
  /// The addresses that systems give a process. No range has more.
  static constexpr std::size_t all_addresses = std::size_t{1} << 47;

  [[nodiscard]] provider_type& provider() noexcept { return manager_.provider(); }

  /// The addresses that a new range may take, so that any number of ranges fits into 47 bits: those of n ranges are at most
  /// an eighth of all, times about the logarithm of n. A list with little room gets as much as it has, so its ranges are few.
  [[nodiscard]] std::size_t range_wanted(const free_list& list) const noexcept {
    constexpr std::size_t eighth = all_addresses / 8;
    std::size_t own = 0;
    for (const segment* range = list.ranges; range != nullptr; range = range->next_range) own += range->size;
    return larger(own, eighth / (ranges_ + 1));
  }
  /// Gives all idle memory back. Returns whether there was any.
  bool release_idle() noexcept {
    bool any = false;
    manager_.for_each_releasable([&](block& idle) {
      const bool works = release(idle) > 0;
      any = any || works;
      return works;
    });
    return any;
  }

  /// Alignment of every chunk address, in bytes, for pages of this size: its largest power-of-two divisor.
  [[nodiscard]] static std::size_t alignment_of(std::size_t page) noexcept { return page & (~page + 1); }

  /// Waits for the work that may use the free blocks of a list. Returns false if the device failed.
  [[nodiscard]] bool finish_work_of(const free_list& list) noexcept {
    if constexpr (Manager::traits::uses_events) return provider().synchronize(list.key);
    return true;
  }
  static void link_unmapped(block& low, block& b, block& high) noexcept {
    b.links[0] = &low;
    b.links[1] = &high;
    low.links[1] = &b;
    high.links[0] = &b;
  }
  static void unlink_unmapped(block& b) noexcept {
    b.links[0]->links[1] = b.links[1];
    b.links[1]->links[0] = b.links[0];
  }
  /// Inserts a new unmapped block directly above another block.
  block& insert_unmapped(block& below, std::uintptr_t address, std::size_t bytes) noexcept {
    block& fresh = manager_.new_block();
    fresh.address = address;
    fresh.size = bytes;
    fresh.list = below.list;
    fresh.status.state = block::state::unmapped;
    fresh.link(below, *below.next);
    link_unmapped(below, fresh, *below.links[1]);
    return fresh;
  }
  /// Joins two unmapped neighbours.
  void join(block& low, block& high) noexcept {
    low.size += high.size;
    unlink_unmapped(high);
    high.unlink();
    manager_.erase_block(high);
  }

  chunks_type chunks_{manager_.counters().device_bytes};
  std::size_t alignment_ = std::size_t{1} << 62;
  std::size_t longest_refused_ = 0;  // bytes of the longest range that the device refused
  std::size_t ranges_ = 0;           // their number
};

/// Ranges in which a backend may choose where in a free block the next block begins.
template <typename Manager>
class placing_ranges : public mapped_ranges<Manager> {
 public:
  using mapped_ranges<Manager>::mapped_ranges;

  /// Makes the next block begin at an address.
  void place_next_at(std::uintptr_t begin) noexcept { next_begin_ = begin; }
  /// Returns the bytes to leave free before the next block of `size` bytes, and forgets its address. Without a suitable
  /// address, returns the offset that aligns the block.
  template <typename Policies>
  [[nodiscard, gnu::always_inline]] std::size_t consume_placement(const block& free, std::size_t size,
                                                                  const Policies& p) noexcept {
    const std::size_t offset = peek_placement(free, size, p);
    next_begin_ = 0;
    return offset;
  }
  /// Like consume_placement(), but does not forget the address.
  template <typename Policies>
  [[nodiscard, gnu::always_inline]] std::size_t peek_placement(const block& free, std::size_t size,
                                                               const Policies& p) const noexcept {
    const std::size_t alignment = p.growth.base_alignment(size);
    const std::uintptr_t begin = next_begin_;
    const bool fits =
        begin >= free.address && begin <= free.end() && size <= free.end() - begin && begin % alignment == 0;
    return fits ? begin - free.address : this->offset_to(free, size, alignment);
  }

 private:
  std::uintptr_t next_begin_ = 0;  // start address of the next block, or 0
};

}  // namespace tessera::inline v0_1::detail
