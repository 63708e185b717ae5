// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <tessera/core/allocator_event.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/fatal.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/machine.hpp>
#include <tessera/detail/pieces.hpp>
#include <tessera/detail/range_heap.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::detail {

/// How a range is to grow.
struct growth_step {
  std::size_t page;   ///< bytes that are mapped in one piece
  std::size_t range;  ///< bytes of addresses to reserve where no range has room
  page_order kinds;   ///< what the pages are to be
};

/// The machine of an allocator whose segments are ranges of addresses. Each belongs to one pool and key and begins empty;
/// pages are mapped where its blocks need them, and go back one by one.
///
/// Calls that map or unmap do not let others in: all that these do is in one piece.
template <virtual_memory_provider Provider, event_observer Observer, typename Counting, std::size_t Pools,
          bool UsesEvents, free_order Order = free_order::lowest_address>
class range_machine : public machine<Provider, Observer, Counting, range_heap<Pools, Order>, UsesEvents> {
  using base = machine<Provider, Observer, Counting, range_heap<Pools, Order>, UsesEvents>;
  using block_order = detail::block_order<Order, true>;

 public:
  using pieces_type = pieces<Provider, decltype(base::books_type::device_bytes)>;
  using piece = typename pieces_type::piece;
  using base::base;
  using typename base::action;
  ~range_machine() {
    this->wait_for_pending();
    for_each_range([this](const segment& range) {
      (void)work_is_done(*range.first().home);
      for (const block* b = &range.first(); b != &range; b = b->above) {
        if (!b->is_unmapped()) destroy_from(b->address, b->end());
      }
    });
    pieces_.retry_stray(this->device_);
    for_each_range([this](const segment& range) {
      (void)this->device_.unreserve(reinterpret_cast<void*>(range.address), range.size);
    });
  }

  /// The best-fitting free block, by what each can grow to where it lies: a block that can grow is not cut up as long
  /// as another one serves that wastes less of it.
  ///   Source:  PyTorch's get_free_block
  [[nodiscard]] block* best_fit(free_list& home, std::size_t size) noexcept {
    block* found = this->heap_.best_fit(home, size);
    if (found == nullptr || !found->above->is_unmapped()) return found;
    home.put_down<block_order>();
    for (block* next = home.after<block_order>(*found); next != nullptr && reach(*next) < reach(*found);) {
      found = next;
      next = home.after<block_order>(*next);
    }
    return found;
  }

  /// Lets `size` bytes side by side become free at the lowest place of the home's ranges where they can, or in a new
  /// range; null where the device refuses, or host memory ran out. What was mapped until then stays, free.
  ///   Source:  PyTorch's try_allocate_expandable_block
  [[nodiscard]] block* extend(free_list& home, std::size_t size, growth_step how) noexcept {
    if (how.page == 0 || how.page % min_alignment != 0 || how.page > max_request)
      fatal("Recipe::growth: page_size is a multiple of min_alignment, up to max_request");
    pieces_.retry_stray(this->device_);
    how.page = align_up(how.page, page_size(how.kinds));
    note_granule(how.page);
    block* at = place_for(home, size, page_size(how.kinds));
    if (at == nullptr) at = add_range(home, size, how);
    while (at != nullptr && (at->is_unmapped() || at->size < size)) {
      block& hole = at->is_unmapped() ? *at : *at->above;
      const std::size_t missing = at->is_unmapped() ? size : size - at->size;
      at = map_new(hole, hole.address, missing < hole.size ? missing : hole.size, how);
    }
    return at;
  }

  /// Maps pages at an address, in the home's range that holds it, or in the next one that the device reserves; null where
  /// it is in neither, or cannot be had.
  [[nodiscard]] block* map_at(free_list& home, std::uintptr_t address, std::size_t bytes,
                              const growth_step& how) noexcept {
    note_granule(how.page);
    block* hole = nullptr;
    const auto holds = [=](const block& b) { return address >= b.address && address + bytes <= b.end(); };
    for_each_unmapped(home, [&](block& b) { return holds(b) && (hole = &b, true); });
    if (hole == nullptr) hole = add_range(home, bytes, how);
    return hole != nullptr && holds(*hole) ? map_new(*hole, address, bytes, how) : nullptr;
  }

  /// What the sizes and addresses of pieces of these kinds are multiples of.
  [[nodiscard]] std::size_t page_size(const page_order& kinds) const noexcept {
    std::size_t most = 1;
    for (const page_kind& kind : kinds)
      most = this->device_.page_size(kind) > most ? this->device_.page_size(kind) : most;
    return most;
  }

  /// Bytes to leave out at the start of a free block, so that `size` bytes begin at a multiple of `alignment`; 0 where the
  /// block has not room for that.
  [[nodiscard]] static std::size_t gap(const block& free, std::size_t size, std::size_t alignment) noexcept {
    if (alignment != 1 && (alignment == 0 || alignment % min_alignment != 0))
      fatal("Recipe::growth: base_alignment is 1 or a multiple of min_alignment");
    const std::size_t left_out = align_up(free.address, alignment) - free.address;
    return left_out + size <= free.size ? left_out : 0;
  }

  /// Where a piece ends that begins at an address; where none does, the address.
  [[nodiscard]] std::uintptr_t end_of_piece(std::uintptr_t begin) const noexcept {
    const piece* const here = pieces_.first_from(begin, begin + 1, granule_);
    return here != nullptr ? begin + here->bytes : begin;
  }

  /// Bytes that release() would give back.
  [[nodiscard]] std::size_t releasable(const block& idle) const noexcept {
    std::size_t bytes = 0;
    for_each_piece(idle, [&bytes](const piece& p) { return bytes += p.bytes, true; });
    return bytes;
  }
  /// Gives the pages back that lie in a free block as a whole, and the range once nothing is mapped there; returns the
  /// bytes of the pages.
  std::size_t release(block& idle) noexcept {
    const auto all = [](const piece&) { return true; };
    return take_pieces(idle, all, [this](piece& p, block& hole) {
      pieces_.destroy(this->device_, p);
      if (!hole.is_split()) remove_range(hole);
    });
  }
  /// Releases what is free in an interval of addresses; returns its bytes.
  std::size_t release_idle_at(std::uintptr_t address, std::size_t bytes) noexcept {
    const std::uintptr_t end = address + bytes;
    std::size_t released = 0;
    while (address < end) {
      block* const found = mapped_block_at(address);
      if (found == nullptr) break;
      address = found->end();
      if (found->is_free()) released += release(*found);
    }
    return released;
  }
  /// Also tries again to give back what the device failed to take.
  void shrink() noexcept {
    pieces_.retry_stray(this->device_);
    pieces_.sweep();
    base::shrink();
  }

  [[nodiscard]] std::size_t footprint() const noexcept { return base::footprint() + pieces_.footprint(); }

 protected:
  /// Takes the pieces away that lie in a free block as a whole and for which `which(piece)` says so, once the work that may
  /// use them is done, and calls then(piece, unmapped block) for each; returns their bytes.
  template <typename Which, typename Then>
  std::size_t take_pieces(block& idle, Which which, Then then) noexcept {
    free_list& home = *idle.home;
    std::size_t taken = 0;
    block* left = &idle;
    bool is_done = false;
    for_each_piece(idle, [&](piece& p) {
      if (!which(p)) return true;
      const std::uintptr_t address = p.address;
      const std::size_t bytes = p.bytes;
      is_done = is_done || work_is_done(home);
      if (!is_done || !this->heap_.make_room() || !pieces_.unmap(this->device_, p)) return false;
      block& hole = this->heap_.hollow(*left, address, bytes);
      left = hole.above;
      this->tell(action::segment_unmap, address, bytes, bytes, home.key());
      taken += bytes;
      then(p, hole);
      return true;
    });
    if (taken > 0) this->ledger_.unmapped(home.pool(), taken);
    return taken;
  }

  /// Destroys the pieces that begin in [begin, end).
  void destroy_from(std::uintptr_t begin, std::uintptr_t end) noexcept {
    while (piece* const p = pieces_.first_from(begin, end, granule_)) {
      begin = p->address + p->bytes;
      pieces_.destroy(this->device_, *p);
    }
  }

  /// Calls f(const segment&) for each range, which f may remove.
  template <typename F>
  void for_each_range(F f) {
    this->heap_.for_each_home([&f](const free_list& home) {
      for (const segment *range = home.ranges, *next = nullptr; range != nullptr; range = next) {
        next = range->next_range;
        f(*range);
      }
    });
  }

  /// Whether the work that may use a home's free blocks is done; waits for it.
  [[nodiscard]] bool work_is_done(const free_list& home) noexcept {
    if constexpr (UsesEvents) return this->device_.synchronize(home.key());
    return true;
  }

  [[nodiscard]] block* add_range(free_list& home, std::size_t size, const growth_step& how) noexcept {
    const std::size_t bytes = align_up(how.range < max_request ? how.range : max_request, how.page);
    if (bytes < size) return nullptr;
    void* const given = this->device_.reserve(bytes, granule_of(how.page));
    if (given == nullptr) return nullptr;
    block* const whole = this->heap_.add_range(home, reinterpret_cast<std::uintptr_t>(given), bytes);
    if (whole == nullptr) return (void)this->device_.unreserve(given, bytes), nullptr;
    this->tell(action::range_reserve, whole->address, bytes, bytes, home.key());
    note_granule(whole->address);
    return whole;
  }
  /// Calls f(piece) for each piece that lies in a block as a whole, in the order of addresses, as long as f says true.
  template <typename F>
  void for_each_piece(const block& in, F f) const {
    const std::uintptr_t end = in.end();
    for (std::uintptr_t at = in.address; piece* const p = pieces_.first_inside(at, end, granule_);) {
      at = p->address + p->bytes;
      if (!f(*p)) return;
    }
  }

  void remove_range(block& whole) noexcept {
    const std::uintptr_t address = whole.address;
    const std::size_t bytes = whole.size;
    const stream_id key = whole.home->key();
    if (!this->device_.unreserve(reinterpret_cast<void*>(address), bytes)) return;
    this->heap_.remove_range(whole);
    this->tell(action::range_release, address, bytes, bytes, key);
  }

  /// The largest power of two that an address, or pages of a size one after the other, begin at a multiple of.
  [[nodiscard]] static std::size_t granule_of(std::size_t page) noexcept { return page & (~page + 1); }
  /// What all pieces begin at a multiple of.
  [[nodiscard]] std::size_t granule() const noexcept { return granule_; }
  void note_granule(std::size_t page) noexcept {
    if (granule_of(page) < granule_) granule_ = granule_of(page);
  }

  pieces_type pieces_{this->ledger_.device_bytes};

 private:
  /// The block that holds an address of mapped memory, or null.
  [[nodiscard]] block* mapped_block_at(std::uintptr_t address) noexcept {
    block* found = nullptr;
    for_each_range([&found, address](const segment& range) {
      for (block* b = &range.first(); b != &range && b->address <= address; b = b->above) {
        if (address < b->end() && !b->is_unmapped()) found = b;
      }
    });
    return found;
  }
  /// Bytes that a free block has, and may get where it lies.
  [[nodiscard]] static std::size_t reach(const block& free) noexcept {
    return free.size + (free.above->is_unmapped() ? free.above->size : 0);
  }
  /// Bytes at the start of a block that are free, or that pages of `step` bytes can be mapped to.
  [[nodiscard]] static std::size_t usable(const block& b, std::size_t step) noexcept {
    if (b.is_free()) return b.size;
    return b.is_unmapped() && b.address % step == 0 ? b.size & ~(step - 1) : 0;
  }
  /// Where free and unmapped blocks side by side hold `size` bytes: the lowest of them, at the lowest place, or null. A
  /// free block may do by itself, as recovery made it large enough or the policy refused it.
  [[nodiscard]] static block* place_for(const free_list& home, std::size_t size, std::size_t step) noexcept {
    block* found = nullptr;
    for_each_unmapped(home, [&found, size, step](block& unmapped) {
      if (unmapped.address % step != 0) return false;  // kept for smaller pages
      block& first = unmapped.below->is_free() ? *unmapped.below : unmapped;
      std::size_t room = 0;
      for (const block* b = &first; room < size; b = b->above) {
        const std::size_t here = usable(*b, step);
        room += here;
        if (here < b->size) break;
      }
      found = room >= size ? &first : nullptr;
      return found != nullptr;
    });
    return found;
  }
  /// Maps new pages in an unmapped block, at least `bytes`, all or none; returns the free block that they join, or null.
  [[nodiscard]] block* map_new(block& unmapped, std::uintptr_t begin, std::size_t bytes,
                               const growth_step& how) noexcept {
    // The last page is cut short where pages of the kind end.
    const std::uintptr_t room = unmapped.address + usable(unmapped, page_size(how.kinds));
    const stream_id key = unmapped.home->key();
    const std::size_t pool = unmapped.home->pool();
    piece* made = nullptr;
    piece** last = &made;
    std::uintptr_t end = begin;
    bool works = this->heap_.make_room(4);  // two of them for what is handed out then
    while (works && end - begin < bytes) {
      *last = pieces_.plan(end, how.page < room - end ? how.page : room - end);
      works = *last != nullptr;
      if (works) end += (*last)->bytes, last = &(*last)->next;
    }
    if (!works) pieces_.destroy_all(this->device_, made);
    if (!works || !pieces_.provide_all(this->device_, made, how.kinds)) {
      this->tell(action::refused, 0, how.page, how.page, key);
      return nullptr;
    }
    for (const piece* p = made; p != nullptr; p = p->next)
      this->tell(action::segment_map, p->address, p->bytes, p->bytes, key);
    this->ledger_.mapped(pool, end - begin);
    return &this->heap_.fill(unmapped, begin, end - begin);
  }

  std::size_t granule_ = std::size_t{1} << 62;
};

}  // namespace tessera::detail
