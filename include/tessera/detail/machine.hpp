// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <tessera/core/allocator_event.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/audit.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/heap.hpp>
#include <tessera/detail/listener.hpp>
#include <tessera/detail/pending_frees.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::detail {

/// Carries out what an allocator decides: moves blocks between the device, the free index and the user, keeps the
/// statistics and tells the sink. Decides nothing itself.
///
/// Calls of the device that may take long (acquire, release, wait) may come back here before they return: all is in
/// order before each, and looked up again after it. It knows no locks; an adaptor may let other threads in there.
///
/// What every hit runs through, here and below, is marked always_inline: calls would cost about as much as such parts.
template <device_provider Provider, event_observer Observer, typename Counting, typename Heap,
          bool UsesEvents>
class machine {
 public:
  using block_order = typename Heap::block_order;
  static constexpr bool has_ranges = Heap::has_ranges;
  using action = allocator_event::action;
  using books_type = typename Counting::template books<Heap::pools>;

  machine(Provider device, Observer observer) : device_(std::move(device)), listener_(std::move(observer)) {}
  machine(const machine&) = delete;
  machine& operator=(const machine&) = delete;
  ~machine() {
    wait_for_pending();
    if constexpr (!Heap::has_ranges) {
      heap_.for_each_segment([this](const block& head, std::size_t bytes) {
        (void)wait_before_release(device_, head.home->key());
        (void)device_.release(reinterpret_cast<void*>(head.address), bytes);
      });
    }
  }

  /// Takes the host memory that serving one request can need; false where there is none.
  [[nodiscard]] bool make_room() noexcept { return heap_.make_room(); }
  template <typename Key>
  [[nodiscard]] free_list* home(std::size_t pool, Key key) noexcept {
    return heap_.home(pool, key);
  }
  [[nodiscard, gnu::always_inline]] block* best_fit(free_list& home, std::size_t size) noexcept {
    return heap_.best_fit(home, size);
  }
  [[nodiscard]] block* find_live(const void* p) const noexcept { return heap_.find_live(p); }

  /// Asks the device for a segment, each kind of page in turn; null where it refuses, or host memory ran out.
  [[nodiscard]] block* acquire(std::size_t pool, stream_id key, std::size_t bytes, bool oversize,
                               const page_order& kinds) noexcept {
    void* given = nullptr;
    asked_for_ += bytes;
    for (const page_kind* kind = kinds.begin(); kind != kinds.end() && given == nullptr; ++kind) {
      if constexpr (paged_provider<Provider>) {
        given = device_.acquire(bytes, *kind);
      } else {
        given = device_.acquire(bytes);
      }
    }
    const auto address = reinterpret_cast<std::uintptr_t>(given);
    free_list* const home = given != nullptr ? heap_.home(pool, key) : nullptr;
    block* const whole = home != nullptr && make_room() ? add(*home, address, bytes, oversize) : nullptr;
    if (given != nullptr && whole == nullptr) ledger_.came_in_vain(bytes, device_.release(given, bytes));
    asked_for_ -= bytes;
    const bool works = whole != nullptr;
    tell(works ? action::segment_alloc : action::refused, works ? address : 0, bytes, bytes, key);
    return whole;
  }

  /// Bytes that release() would give back.
  [[nodiscard]] static std::size_t releasable(const block& idle) noexcept { return idle.size; }
  /// Gives an idle segment back and returns its bytes; 0 where the device failed, and the segment stays.
  std::size_t release(block& idle) noexcept {
    const std::uintptr_t address = idle.address;
    const std::size_t bytes = idle.size;
    heap_.take_out(idle);
    const bool released = wait_before_release(device_, idle.home->key()) &&
                          device_.release(reinterpret_cast<void*>(address), bytes);
    if (!released) {
      heap_.put_back(idle);
      return 0;
    }
    tell(action::segment_free, address, bytes, bytes, idle.home->key());
    ledger_.segment_released(idle.home->pool(), bytes);
    if (segment_of(idle).oversize) ledger_.oversize_segments.decrease(1);
    heap_.remove_segment(idle);
    return bytes;
  }

  /// Gives the user `size` bytes that lie `offset` bytes into a free block; the rest stays free. A block `ByHandle` is not
  /// found by its address.
  ///   Requires:  a make_room() that covers it; offset + size <= found.size, and where it has no ranges, at one of its ends
  template <bool ByHandle = false>
  [[gnu::always_inline]] block& hand_out(block& found, std::size_t requested, std::size_t size,
                                         std::size_t offset, bool oversize, stream_id stream) noexcept {
    const std::size_t pool = found.home->pool();
    const std::size_t rest = found.size - size;
    const split_observer split{ledger_, pool};
    if (found.is_split()) {
      split.shrank(rest == 0, size);
    } else if (rest > 0) {
      split.grew(1, rest);
    }
    const std::uintptr_t address = found.address + offset;
    block& given = heap_.take(found, address, size, offset == 0);
    if constexpr (ByHandle) {
      given.mark.is = block::state::live_by_handle;
      given.facts.requested = requested;
    } else {
      heap_.make_live(given, address, requested);
    }
    ledger_.handed_out(pool, requested, size);
    if (oversize) {
      ledger_.oversize_allocations.increase(1);
      given.note({true, false, ByHandle});
    }
    tell(action::alloc, address, requested, size, stream);
    return given;
  }

  /// Ends the life of the block at an address.
  [[nodiscard]] taken take_back(const void* p) noexcept {
    block* const live = heap_.end_life(p);
    return live != nullptr ? end(*live, reinterpret_cast<std::uintptr_t>(p)) : taken::unknown;
  }
  /// The same by handle.
  [[nodiscard]] taken take_back(block& live) noexcept {
    if (!live.is_by_handle()) return taken::unknown;
    live.by_handle_no_more();
    return end(live, live.address);
  }

  /// Notes that a stream uses a live block; false where host memory ran out, or there is no such stream.
  [[nodiscard]] bool note_use(block& live, stream_id stream) noexcept {
    return has_stream(device_, stream) && pending_.note(live, stream);
  }
  /// Frees the blocks whose events have completed; whether there were any.
  bool retire_pending() noexcept { return !pending_.empty() && retire_waiting(); }
  /// The same, after waiting for every event.
  void wait_for_pending() noexcept {
    ++ledger_.num_sync_all_streams;
    pending_.wait(device_, [this](block& b) { complete_held(b); });
  }

  /// Ends the life of a live block and begins another at its address.
  void reuse_in_place(block& live, std::size_t requested, stream_id stream) noexcept {
    const std::size_t pool = live.home->pool();
    const std::size_t before = live.facts.requested;
    const bool oversize = live.what_is_noted().oversize;
    tell(action::free_requested, live.address, before, live.size, live.home->key());
    tell(action::free_completed, live.address, before, live.size, live.home->key());
    if (oversize) ledger_.oversize_allocations.decrease(1);
    ledger_.freed(pool, before, live.size);
    live.facts.requested = requested;
    ledger_.handed_out(pool, requested, live.size);
    if (oversize) ledger_.oversize_allocations.increase(1);
    tell(action::alloc, live.address, requested, live.size, stream);
  }

  /// Splits a free block as it was where it was recorded, from its start; false where host memory ran out.
  ///   Requires:  block_views whose bytes are multiples of min_alignment, and no more than the block's together
  template <typename Blocks>
  [[nodiscard]] bool cut_up(block& whole, const Blocks& recorded) noexcept {
    std::uintptr_t at = whole.address;
    block* rest = &whole;
    for (const auto& r : recorded) {
      if (!make_room()) return false;
      block* const following = r.bytes < rest->size ? rest : nullptr;
      (void)hand_out(*rest, r.requested, r.bytes, 0, false, rest->home->key());
      rest = following;
    }
    for (const auto& r : recorded) {
      if (r.requested == 0) (void)take_back(reinterpret_cast<void*>(at));
      at += r.bytes;
    }
    return true;
  }
  /// Releases the idle segment that begins at an address; returns its bytes.
  std::size_t release_idle_at(std::uintptr_t address, std::size_t) noexcept {
    block* const head = heap_.segment_at(reinterpret_cast<void*>(address));
    return head != nullptr && head->is_free() && !head->is_split() ? release(*head) : 0;
  }

  [[nodiscard]] usage usage_under(std::size_t limit) const noexcept {
    const std::size_t capacity = device_.capacity();
    usage now = books().now();
    now.limit = limit < capacity ? limit : capacity;
    now.has_limit = limit != unlimited;
    return now;
  }
  /// Makes idle segments out of those of which all is free, where that is not so already.
  static constexpr void gather_idle() noexcept {}
  /// What will be reserved once the device has taken back what it is being asked to.
  [[nodiscard]] std::size_t staying() const noexcept { return ledger_.reserved() - heap_.leaving(); }
  /// Whether another segment would pass a limit, the segments that the device is being asked for included, or a limit that
  /// the provider knows.
  [[nodiscard]] bool would_pass(std::size_t limit, std::size_t bytes) const noexcept {
    if (saturating_add(saturating_add(ledger_.reserved(), asked_for_), bytes) > limit) return true;
    if constexpr (limited_provider<Provider>) return device_.over_limit(bytes);
    return false;
  }
  /// Whether streams are noted for any block.
  [[nodiscard]] bool has_uses() const noexcept { return pending_.has_uses(); }
  [[nodiscard]] std::size_t uses_that_wait() const noexcept { return pending_.count(); }
  void tell_oom(std::size_t requested, std::size_t size, stream_id stream, bool rejected) noexcept {
    ++books().num_ooms;
    if (rejected) ++ledger_.num_oom_rejections;
    tell(action::oom, left_on(device_, ledger_.reserved()), requested, size, stream);
  }
  /// Gives back the host memory that describes nothing any more.
  void shrink() noexcept { blocks().shrink(); }
  [[nodiscard]] std::size_t footprint() const noexcept { return heap_.footprint() + pending_.footprint(); }
  [[nodiscard]] Heap& blocks() noexcept { return heap_; }
  [[nodiscard]] const Heap& blocks() const noexcept { return heap_; }
  [[nodiscard]] books_type& books() noexcept { return ledger_; }
  [[nodiscard]] const books_type& books() const noexcept { return ledger_; }
  [[nodiscard]] Provider& device() noexcept { return device_; }
  [[nodiscard]] const Provider& device() const noexcept { return device_; }
  [[nodiscard]] Observer& observer() noexcept { return listener_.observer(); }
  void tell(action what, std::uintptr_t address, std::size_t bytes, std::size_t of_block,
            stream_id stream) noexcept {
    listener_.tell(allocator_event{what, address, bytes, of_block, stream});
  }

 protected:
  Provider device_;
  Heap heap_;
  [[no_unique_address]] books_type ledger_;
  [[nodiscard]] block* add(free_list& home, std::uintptr_t address, std::size_t bytes,
                           bool oversize) noexcept {
    block* const whole = heap_.add_segment(home, address, bytes, oversize);
    if (whole == nullptr) return nullptr;
    ledger_.segment_acquired(home.pool(), bytes);
    if (oversize) ledger_.oversize_segments.increase(1);
    return whole;
  }
  [[gnu::always_inline]] taken end(block& live, std::uintptr_t address) noexcept {
    tell(action::free_requested, address, live.facts.requested, live.size, live.home->key());
    if (live.mark.is != block::state::live && is_held(live)) return taken::held;
    ledger_.freed(live.home->pool(), live.facts.requested, live.size);
    complete_free(live, address);
    return taken::free;
  }
  /// Does what the notes of a block that is given back ask for; whether it is held back.
  [[gnu::noinline]] bool is_held(block& freed) noexcept {
    if (freed.mark.noted.oversize) ledger_.oversize_allocations.decrease(1);
    if (!freed.mark.noted.has_uses || !pending_.hold(freed, device_)) return false;
    ledger_.held_back(freed.home->pool(), freed.size);
    return true;
  }
  [[gnu::noinline]] bool retire_waiting() noexcept {
    bool any = false;
    pending_.retire(device_, [this, &any](block& b) { any = true, complete_held(b); });
    return any;
  }
  [[gnu::noinline]] void complete_held(block& held) noexcept {
    ledger_.no_longer_held(held.home->pool(), held.facts.requested, held.size);
    complete_free(held, held.address);
  }
  [[gnu::always_inline]] void complete_free(block& freed, std::uintptr_t address) noexcept {
    tell(action::free_completed, address, freed.facts.requested, freed.size, freed.home->key());
    stamp(freed);
    heap_.make_free(freed, address, split_observer{ledger_, freed.home->pool()});
  }
  /// Notes of a block behind which work it is free now.
  [[gnu::always_inline]] void stamp(block& b) noexcept {
    if constexpr (Heap::crosses) b.free_behind = static_cast<std::uint32_t>(device_.position(b.home->key()));
  }
  struct split_observer {
    books_type& books;
    std::size_t pool;
    void grew(int count, std::size_t bytes) const noexcept {
      if constexpr (!Heap::has_ranges) books.split_grew(pool, count, bytes);
    }
    void shrank(int count, std::size_t bytes) const noexcept {
      if constexpr (!Heap::has_ranges) books.split_shrank(pool, count, bytes);
    }
  };

  [[no_unique_address]] listener<Observer> listener_;
  std::size_t asked_for_ = 0;
  [[no_unique_address]] pending_frees<Provider, UsesEvents> pending_;
};

}  // namespace tessera::detail
