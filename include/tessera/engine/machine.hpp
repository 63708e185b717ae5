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
#include <tessera/engine/pending_frees.hpp>
#include <tessera/engine/statistics.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::engine {

/// A piece of a segment that is taken over; free where nothing was requested.
struct piece {
  std::size_t bytes;
  std::size_t requested;
};

/// Carries out what an allocator decides: moves blocks between the device, the free index and the user, keeps the
/// statistics and tells the sink. Decides nothing itself.
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
  [[nodiscard]] bool reserve() noexcept { return heap_.reserve(); }
  [[nodiscard]] free_blocks* home(std::size_t pool, stream_id key) noexcept { return heap_.home(pool, key); }
  [[nodiscard]] block* best_fit(const free_blocks& home, std::size_t size) noexcept {
    return heap_.best_fit(home, size);
  }
  [[nodiscard]] block* find_live(const void* p) const noexcept { return heap_.find_live(p); }

  /// Asks the device for a segment, each kind of page in turn; null where it refuses. The block is not free yet.
  ///   Requires:  a reserve() that covers it
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
    tell(given != nullptr ? action::segment_alloc : action::refused, address, bytes, bytes, home.key());
    return given != nullptr ? &add(home, given, bytes, oversize) : nullptr;
  }

  /// Gives an idle segment back; false where the device failed, and the segment stays.
  bool release(block& idle, std::size_t oversize) noexcept {
    const std::uintptr_t address = idle.address;
    const std::size_t bytes = idle.size;
    if (!device_.release(reinterpret_cast<void*>(address), bytes)) return false;
    tell(action::segment_free, address, bytes, bytes, idle.home->key());
    statistics_.segment_released(idle.home->pool(), bytes);
    if (bytes >= oversize) statistics_.oversize_segments.decrease(1);
    idle.home->remove(idle);
    heap_.remove_segment(idle);
    return true;
  }

  /// Makes a block, in no index, live: whole, or `size` bytes from one of its ends, the rest becoming free.
  ///   Requires:  a reserve() that covers it; size <= found.size
  block& hand_out(block& found, std::size_t requested, std::size_t size, bool low_end, bool oversize,
                  stream_id stream) noexcept {
    const std::size_t pool = found.home->pool();
    const bool was_split = found.is_split();
    block* given = &found;
    if (size < found.size) {
      block& upper = heap_.cut(found, low_end ? size : found.size - size);
      block& rest = low_end ? upper : found;
      if (!low_end) given = &upper;
      rest.home->insert(rest);
      statistics_.inactive_split_changed(pool, was_split ? 0 : 1,
                                         was_split ? -signed_bytes(size) : signed_bytes(rest.size));
    } else if (was_split) {
      statistics_.inactive_split_changed(pool, -1, -signed_bytes(size));
    }
    heap_.make_live(*given, requested);
    given->oversize = oversize;
    if (oversize) statistics_.oversize_allocations.increase(1);
    statistics_.handed_out(pool, requested, size);
    tell(action::alloc, given->address, requested, size, stream);
    return *given;
  }

  /// Ends a block's life; whether it is free now, rather than held until the streams noted for it have come past.
  bool take_back(block& live) noexcept {
    heap_.end_life(live);
    statistics_.free_requested(live.home->pool(), live.size);
    if (live.oversize) statistics_.oversize_allocations.decrease(1);
    tell(action::free_requested, live.address, live.facts.requested, live.size, live.home->key());
    const bool free_now = live.facts.uses == nullptr;
    if (free_now) {
      complete_free(live);
    } else {
      pending_.hold(live, device_);
    }
    return free_now;
  }

  /// Notes that a stream uses a live block; false where host memory ran out.
  [[nodiscard]] bool note_use(block& live, stream_id stream) noexcept { return pending_.note(live, stream); }
  /// Frees the blocks whose events have completed; whether there were any.
  bool retire_pending() noexcept {
    if (pending_.empty()) return false;
    bool any = false;
    pending_.retire(device_, [this, &any](block& b) { any = true, complete_free(b); });
    return any;
  }
  /// The same, after waiting for every event.
  void wait_for_pending() noexcept {
    ++statistics_.num_sync_all_streams;
    pending_.wait(device_, [this](block& b) { complete_free(b); });
  }

  /// Takes over a segment that the device gave before, cut into pieces from its start; false where host memory ran out.
  ///   Requires:  pieces whose bytes are multiples of min_alignment
  template <typename Pieces>
  [[nodiscard]] bool adopt(free_blocks& home, void* segment, const Pieces& pieces,
                           std::size_t oversize) noexcept {
    std::size_t bytes = 0;
    for (const piece& p : pieces) bytes += p.bytes;
    if (!reserve()) return false;
    block* rest = &add(home, segment, bytes, bytes >= oversize);
    for (const piece& p : pieces) {
      if (!reserve()) return false;
      if (rest->is == block::state::free) home.remove(*rest);
      block& made = hand_out(*rest, p.requested, p.bytes, true, false, home.key());
      rest = made.next;
    }
    for (block *b = heap_.segment_at(segment), *following = nullptr; b != nullptr; b = following) {
      following = b->next;
      if (b->facts.requested == 0) take_back(*b);
    }
    return true;
  }

  [[nodiscard]] usage usage_under(std::size_t limit) const noexcept {
    const pool_statistics& s = statistics_.all;
    const auto bytes = [](const counter& c) { return static_cast<std::size_t>(c.current); };
    const std::size_t capacity = device_.capacity();
    return {.requested = bytes(s.requested_bytes),
            .live = bytes(s.allocated_bytes),
            .pending = bytes(s.active_bytes) - bytes(s.allocated_bytes),
            .cached = bytes(s.reserved_bytes) - bytes(s.active_bytes),
            .reserved = bytes(s.reserved_bytes),
            .limit = limit < capacity ? limit : capacity};
  }
  [[nodiscard]] std::size_t reserved() const noexcept {
    return static_cast<std::size_t>(statistics_.all.reserved_bytes.current);
  }
  void tell_oom(std::size_t requested, std::size_t size, stream_id stream) noexcept {
    ++statistics_.num_ooms;
    tell(action::oom, 0, requested, size, stream);
  }
  [[nodiscard]] std::size_t footprint() const noexcept { return heap_.footprint() + pending_.footprint(); }

  [[nodiscard]] heap<Pools>& blocks() noexcept { return heap_; }
  [[nodiscard]] const heap<Pools>& blocks() const noexcept { return heap_; }
  [[nodiscard]] tessera::statistics<Pools>& statistics() noexcept { return statistics_; }
  [[nodiscard]] const tessera::statistics<Pools>& statistics() const noexcept { return statistics_; }
  [[nodiscard]] Provider& device() noexcept { return device_; }
  [[nodiscard]] const Provider& device() const noexcept { return device_; }
  [[nodiscard]] Sink& sink() noexcept { return sink_; }

 private:
  static constexpr std::int64_t signed_bytes(std::size_t bytes) noexcept {
    return static_cast<std::int64_t>(bytes);
  }

  void tell(action what, std::uintptr_t address, std::size_t bytes, std::size_t of_block,
            stream_id stream) noexcept {
    sink_.on(allocator_event{what, address, bytes, of_block, stream});
  }
  block& add(free_blocks& home, void* segment, std::size_t bytes, bool oversize) noexcept {
    statistics_.segment_acquired(home.pool(), bytes);
    if (oversize) statistics_.oversize_segments.increase(1);
    return heap_.add_segment(home, segment, bytes);
  }
  void complete_free(block& freed) noexcept {
    const std::size_t pool = freed.home->pool();
    statistics_.free_completed(pool, freed.facts.requested, freed.size);
    tell(action::free_completed, freed.address, freed.facts.requested, freed.size, freed.home->key());
    const auto merged = heap_.make_free(freed);
    const std::size_t split_bytes = merged.into->is_split() ? merged.into->size : 0;
    statistics_.inactive_split_changed(pool, (split_bytes != 0) - merged.count,
                                       signed_bytes(split_bytes) - signed_bytes(merged.bytes));
  }

  Provider device_;
  [[no_unique_address]] Sink sink_;
  heap<Pools> heap_;
  tessera::statistics<Pools> statistics_;
  [[no_unique_address]] pending_frees<Provider, UsesEvents> pending_;
};

}  // namespace tessera::engine
