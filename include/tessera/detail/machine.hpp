// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <tessera/core/allocator_event.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/core/usage.hpp>
#include <tessera/detail/audit.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/heap.hpp>
#include <tessera/detail/listener.hpp>
#include <tessera/detail/pending_frees.hpp>
#include <tessera/detail/promise.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::detail {

/// A piece of a block that is cut up; free where nothing was requested.
struct piece {
  std::size_t bytes;
  std::size_t requested;
};

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
  [[nodiscard]] bool make_room() noexcept {
    keep_promise();
    return heap_.make_room();
  }
  template <typename Key>
  [[nodiscard]] free_list* home(std::size_t pool, Key key) noexcept {
    return heap_.home(pool, key);
  }
  [[nodiscard, gnu::always_inline]] block* best_fit(free_list& home, std::size_t size) noexcept {
    return heap_.best_fit(home, size);
  }
  [[nodiscard]] block* find_live(const void* p) noexcept { return keep_promise(), heap_.find_live(p); }
  /// The bytes that were requested of a live block, or `otherwise` where there is none at the address.
  [[nodiscard]] std::size_t requested_at(const void* p, std::size_t otherwise) const noexcept {
    if (p != nullptr && reinterpret_cast<std::uintptr_t>(p) == promised_.address) return promised_.requested;
    const block* const live = heap_.find_live(p);
    return live != nullptr ? live->facts.requested : otherwise;
  }

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
    keep_promise();
    if (!released) return heap_.put_back(idle), 0;
    tell(action::segment_free, address, bytes, bytes, idle.home->key());
    ledger_.segment_released(idle.home->pool(), bytes);
    if (segment_of(idle).oversize) ledger_.oversize_segments.decrease(1);
    heap_.remove_segment(idle);
    return bytes;
  }

  /// Promises `size` bytes that lie `at` bytes into a free block, the rest staying free; returns the address.
  ///   Requires:  a make_room() that covers it; at + size <= found.size, and where it has no ranges, at one of its ends
  [[gnu::always_inline]] void* hand_out(block& found, std::size_t requested, std::size_t size, std::size_t at,
                                        bool oversize, stream_id stream) noexcept {
    const std::uintptr_t address = found.address + at;
    promised_ = {&found, address, size, requested, at == 0, oversize};
    tell(action::alloc, address, requested, size, stream);
    return reinterpret_cast<void*>(address);
  }

  /// Keeps the promise that hand_out() has just made, for a block that is not to be found by its address.
  [[nodiscard]] block* by_handle() noexcept { return &promised_.keep(heap_, ledger_, true); }

  /// Ends the life of the block at an address.
  [[gnu::always_inline]] taken take_back(const void* p) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    return p != nullptr && address == promised_.address ? withdraw() : take_back_kept(p);
  }
  /// The same by handle.
  [[nodiscard]] taken take_back(block& live) noexcept {
    keep_promise();
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

  /// Cuts a free block into pieces from its start, as they were where it was recorded; false where host memory ran out.
  ///   Requires:  pieces whose bytes are multiples of min_alignment, and no more than the block's together
  template <typename Pieces>
  [[nodiscard]] bool cut_up(block& whole, const Pieces& pieces) noexcept {
    std::uintptr_t at = whole.address;
    block* rest = &whole;
    for (const piece& p : pieces) {
      if (!make_room()) return false;
      block* const following = p.bytes < rest->size ? rest : nullptr;
      hand_out(*rest, p.requested, p.bytes, 0, false, rest->home->key());
      rest = following;
    }
    for (const piece& p : pieces) {
      if (p.requested == 0) (void)take_back(reinterpret_cast<void*>(at));
      at += p.bytes;
    }
    return true;
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
  [[nodiscard]] Heap& blocks() noexcept { return keep_promise(), heap_; }
  [[nodiscard]] const Heap& blocks() const noexcept { return keep_promise(), heap_; }
  [[nodiscard]] books_type& books() noexcept { return keep_promise(), ledger_; }
  [[nodiscard]] const books_type& books() const noexcept { return keep_promise(), ledger_; }
  [[nodiscard]] Provider& device() noexcept { return device_; }
  [[nodiscard]] const Provider& device() const noexcept { return device_; }
  [[nodiscard]] Observer& observer() noexcept { return listener_.observer(); }
  void tell(action what, std::uintptr_t address, std::size_t bytes, std::size_t of_block,
            stream_id stream) noexcept {
    listener_.tell(allocator_event{what, address, bytes, of_block, stream});
  }

 protected:
  [[gnu::always_inline]] void keep_promise() const noexcept {
    if (promised_.address != 0) keep_it();
  }

  Provider device_;
  mutable promise promised_{};
  mutable Heap heap_;  // a promise is kept also for those who only look
  [[no_unique_address]] mutable books_type ledger_;
  [[nodiscard]] block* add(free_list& home, std::uintptr_t address, std::size_t bytes,
                           bool oversize) noexcept {
    block* const whole = heap_.add_segment(home, address, bytes, oversize);
    if (whole == nullptr) return nullptr;
    ledger_.segment_acquired(home.pool(), bytes);
    if (oversize) ledger_.oversize_segments.increase(1);
    return whole;
  }
  [[gnu::noinline]] void keep_it() const noexcept { (void)promised_.keep(heap_, ledger_, false); }
  [[gnu::always_inline]] taken withdraw() noexcept {
    const stream_id key = promised_.from->home->key();
    tell(action::free_requested, promised_.address, promised_.requested, promised_.size, key);
    tell(action::free_completed, promised_.address, promised_.requested, promised_.size, key);
    stamp(*promised_.from);
    promised_.withdraw(heap_, ledger_);
    return taken::free;
  }
  /// Takes a block back that is not just promised. Out of line, as it needs many registers.
  [[gnu::noinline]] taken take_back_kept(const void* p) noexcept {
    if (promised_.address != 0) (void)promised_.keep(heap_, ledger_, false);
    block* const live = heap_.end_life(p);
    if (live == nullptr) return taken::unknown;
    return end(*live, reinterpret_cast<std::uintptr_t>(p));
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
    return ledger_.held_back(freed.home->pool(), freed.size), true;
  }
  [[gnu::noinline]] bool retire_waiting() noexcept {
    bool any = false;
    pending_.retire(device_, [this, &any](block& b) { any = true, complete_held(b); });
    return any;
  }
  [[gnu::noinline]] void complete_held(block& held) noexcept {
    keep_promise();
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
