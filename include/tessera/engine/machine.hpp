// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <tessera/core/allocator_event.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/core/usage.hpp>
#include <tessera/engine/audit.hpp>
#include <tessera/engine/block.hpp>
#include <tessera/engine/heap.hpp>
#include <tessera/engine/ledger.hpp>
#include <tessera/engine/pending_frees.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::engine {

/// A piece of a segment that is taken over; free where nothing was requested.
struct piece {
  std::size_t bytes;
  std::size_t requested;
};

/// What became of a block that was given back.
enum class taken : unsigned char {
  unknown,  ///< there is no live block at the address
  free,
  held  ///< until the streams noted for it have come past
};

/// Carries out what an allocator decides: moves blocks between the device, the free index and the user, keeps the
/// statistics and tells the sink. Decides nothing itself.
///
/// What every hit runs through, here and below, is marked always_inline: the calls between such short parts would cost
/// about as much as the parts.
template <device_provider Provider, std::size_t Pools, event_sink Sink, bool UsesEvents>
class machine {
 public:
  using action = allocator_event::action;

  machine(Provider device, Sink sink) : device_(std::move(device)), sink_(std::move(sink)) {}
  machine(const machine&) = delete;
  machine& operator=(const machine&) = delete;
  ~machine() {
    wait_for_pending();
    heap_.for_each_segment([this](const block& head, std::size_t bytes) {
      (void)device_.release(reinterpret_cast<void*>(head.address), bytes);
    });
  }

  /// Takes the host memory that serving one request can need; false where there is none.
  [[nodiscard]] bool make_room() noexcept { return heap_.make_room(); }
  [[nodiscard]] free_blocks* home(std::size_t pool, stream_id key) noexcept { return heap_.home(pool, key); }
  [[nodiscard, gnu::always_inline]] block* best_fit(free_blocks& home, std::size_t size) noexcept {
    return heap_.best_fit(home, size);
  }
  [[nodiscard]] block* find_live(const void* p) const noexcept { return heap_.find_live(p); }

  /// Asks the device for a segment, each kind of page in turn; null where it refuses, or host memory ran out.
  [[nodiscard]] block* acquire(free_blocks& home, std::size_t bytes, bool oversize,
                               const page_order& kinds) noexcept {
    void* given = nullptr;
    for (const page_kind* kind = kinds.begin(); kind != kinds.end() && given == nullptr; ++kind) {
      if constexpr (paged_provider<Provider>) {
        given = device_.acquire(bytes, *kind);
      } else {
        given = device_.acquire(bytes);
      }
    }
    const auto address = reinterpret_cast<std::uintptr_t>(given);
    block* const whole = given != nullptr ? add(home, address, bytes, oversize) : nullptr;
    if (whole != nullptr) {
      tell(action::segment_alloc, address, bytes, bytes, home.key());
      return whole;
    }
    if (given != nullptr) (void)device_.release(given, bytes);
    tell(action::refused, 0, bytes, bytes, home.key());
    return nullptr;
  }

  /// Gives an idle segment back; false where the device failed, and the segment stays.
  bool release(block& idle) noexcept {
    const std::uintptr_t address = idle.address;
    const std::size_t bytes = idle.size;
    if (!device_.release(reinterpret_cast<void*>(address), bytes)) return false;
    tell(action::segment_free, address, bytes, bytes, idle.home->key());
    ledger_.segment_released(idle.home->pool(), bytes);
    if (idle.origin().oversize) ledger_.oversize_segments.decrease(1);
    heap_.remove_segment(idle);
    return true;
  }

  /// Makes a free block live: whole, or `size` bytes from one of its ends, the rest staying free; returns the address.
  ///   Requires:  a make_room() that covers it; size <= found.size
  [[gnu::always_inline]] void* hand_out(block& found, std::size_t requested, std::size_t size, bool low_end,
                                        bool oversize, stream_id stream) noexcept {
    const std::size_t pool = found.home->pool();
    // Addresses go along by value, here and below: reading back from a block what was just written there takes long.
    const std::uintptr_t address = low_end ? found.address : found.address + (found.size - size);
    block* given = &found;
    if (size < found.size) {
      if (found.is_split()) {
        ledger_.inactive_split_changed(pool, 0, -as_signed(size));
      } else {
        ledger_.inactive_split_changed(pool, 1, as_signed(found.size - size));
      }
      given = &heap_.cut(found, address, size, low_end);
    } else {
      if (found.is_split()) ledger_.inactive_split_changed(pool, -1, -as_signed(size));
      found.home->remove(found);
    }
    heap_.make_live(*given, address, requested, oversize);
    if (oversize) ledger_.oversize_allocations.increase(1);
    ledger_.handed_out(pool, requested, size);
    tell(action::alloc, address, requested, size, stream);
    return reinterpret_cast<void*>(address);
  }

  /// Ends the life of the block at an address.
  [[gnu::always_inline]] taken take_back(const void* p) noexcept {
    block* const live = heap_.end_life(p);
    if (live == nullptr) return taken::unknown;
    if (live->mark.oversize) ledger_.oversize_allocations.decrease(1);
    tell(action::free_requested, live->address, live->facts.requested, live->size, live->home->key());
    if (!live->mark.has_uses) {
      ledger_.freed(live->home->pool(), live->facts.requested, live->size);
      complete_free(*live, reinterpret_cast<std::uintptr_t>(p));
      return taken::free;
    }
    hold(*live);
    return taken::held;
  }

  /// Notes that a stream uses a live block; false where host memory ran out.
  [[nodiscard]] bool note_use(block& live, stream_id stream) noexcept { return pending_.note(live, stream); }
  /// Frees the blocks whose events have completed; whether there were any.
  bool retire_pending() noexcept { return !pending_.empty() && retire_waiting(); }
  /// The same, after waiting for every event.
  void wait_for_pending() noexcept {
    ++ledger_.num_sync_all_streams;
    pending_.wait(device_, [this](block& b) { complete_held(b); });
  }

  /// Takes over a segment that the device gave before, cut into pieces from its start; false where host memory ran out.
  ///   Requires:  pieces whose bytes are multiples of min_alignment
  template <typename Pieces>
  [[nodiscard]] bool adopt(free_blocks& home, void* segment, const Pieces& pieces,
                           std::size_t oversize) noexcept {
    std::size_t bytes = 0;
    for (const piece& p : pieces) bytes += p.bytes;
    block* rest = add(home, reinterpret_cast<std::uintptr_t>(segment), bytes, bytes >= oversize);
    if (rest == nullptr) return false;
    const engine::segment& adopted = rest->origin();
    for (const piece& p : pieces) {
      if (!make_room()) return false;
      block* const following = p.bytes < rest->size ? rest : nullptr;
      hand_out(*rest, p.requested, p.bytes, true, false, home.key());
      rest = following;
    }
    for (block *b = adopted.first, *following = nullptr; b != nullptr; b = following) {
      following = b->above;
      if (b->mark.is == block::state::live && b->facts.requested == 0)
        (void)take_back(reinterpret_cast<void*>(b->address));
    }
    return true;
  }

  [[nodiscard]] usage usage_under(std::size_t limit) const noexcept {
    const std::size_t capacity = device_.capacity();
    usage now = ledger_.now();
    now.limit = limit < capacity ? limit : capacity;
    return now;
  }
  [[nodiscard]] std::size_t reserved() const noexcept { return ledger_.reserved(); }
  void tell_oom(std::size_t requested, std::size_t size, stream_id stream) noexcept {
    ++ledger_.num_ooms;
    tell(action::oom, 0, requested, size, stream);
  }
  [[nodiscard]] std::size_t footprint() const noexcept { return heap_.footprint() + pending_.footprint(); }

  [[nodiscard]] heap<Pools>& blocks() noexcept { return heap_; }
  [[nodiscard]] const heap<Pools>& blocks() const noexcept { return heap_; }
  [[nodiscard]] ledger<Pools>& books() noexcept { return ledger_; }
  [[nodiscard]] const ledger<Pools>& books() const noexcept { return ledger_; }
  [[nodiscard]] Provider& device() noexcept { return device_; }
  [[nodiscard]] const Provider& device() const noexcept { return device_; }
  [[nodiscard]] Sink& sink() noexcept { return sink_; }

 private:
  static constexpr std::int64_t as_signed(std::size_t bytes) noexcept {
    return static_cast<std::int64_t>(bytes);
  }

  void tell(action what, std::uintptr_t address, std::size_t bytes, std::size_t of_block,
            stream_id stream) noexcept {
    sink_.on(allocator_event{what, address, bytes, of_block, stream});
  }
  [[nodiscard]] block* add(free_blocks& home, std::uintptr_t address, std::size_t bytes,
                           bool oversize) noexcept {
    block* const whole = heap_.add_segment(home, address, bytes, oversize);
    if (whole == nullptr) return nullptr;
    ledger_.segment_acquired(home.pool(), bytes);
    if (oversize) ledger_.oversize_segments.increase(1);
    return whole;
  }
  [[gnu::noinline]] void hold(block& freed) noexcept {
    ledger_.held_back(freed.home->pool(), freed.size);
    pending_.hold(freed, device_);
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
    const std::size_t pool = freed.home->pool();
    tell(action::free_completed, address, freed.facts.requested, freed.size, freed.home->key());
    const auto change = heap_.make_free(freed, address);
    ledger_.inactive_split_changed(pool, change.count, change.bytes);
  }

  Provider device_;
  [[no_unique_address]] Sink sink_;
  heap<Pools> heap_;
  ledger<Pools> ledger_;
  [[no_unique_address]] pending_frees<Provider, UsesEvents> pending_;
};

}  // namespace tessera::engine
