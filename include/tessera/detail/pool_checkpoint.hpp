// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <tessera/core/pool_checkpoint.hpp>
#include <tessera/core/private_pool.hpp>
#include <tessera/detail/block.hpp>
#include <tessera/detail/free_list.hpp>
#include <tessera/detail/key_map.hpp>
#include <tessera/detail/private_pools.hpp>

namespace tessera::detail {

/// Why the state of a private pool can be neither recorded nor restored, or null.
[[nodiscard]] inline const char* why_unfit(const pool_group* in) noexcept {
  if (in == nullptr) return "no such pool exists";
  if (in->uses == 0) return "the pool has no use";
  if (in->is_asleep) return "the pool sleeps";
  if (in->has_share()) return "the pool has a share, so its memory may go back at any time";
  return in->is_awake() ? nullptr : "another call puts the pool to sleep or wakes it";
}

/// Calls f(block&) with the first block of each segment of a private pool.
template <typename Manager, typename F>
void for_each_segment_of(Manager& manager, const pool_group& in, F f) {
  manager.for_each_segment([&](block& first) {
    if (first.list->where().group == &in) f(first);
  });
}

/// Records the addresses of the free blocks of a private pool, the newest first. Returns false if host memory
/// ran out.
template <typename Manager>
[[nodiscard]] bool record_newest_free(const typename Manager::group& in, std::size_t max,
                                      host_array<void*>& to) noexcept {
  using order = typename Manager::order;
  if (!to.reserve(max)) return false;
  for (const free_list_map& of_pool : in.lists) {
    for (const free_list* list = of_pool.first(); list != nullptr; list = list->next) {
      for (const block* b = list->first(); b != nullptr; b = list->template after<order>(*b))
        to.add(reinterpret_cast<void*>(b->address));
      // A search prefers the blocks in the bins to this one.
      if (const block* const resized = list->last_resized(); resized != nullptr)
        to.add(reinterpret_cast<void*>(resized->address));
    }
  }
  return true;
}

/// Records the state of a private pool. First gives events to the blocks that were freed while a scope was
/// open, as PyTorch does.
///   Cost:  linear in the blocks
template <typename Manager>
[[nodiscard, gnu::cold]] pool_checkpoint record_pool(Manager& manager, pool_id pool) noexcept {
  const typename Manager::group* const in = manager.pools().find(pool);
  const char* why = why_unfit(in);
  if (why != nullptr) return pool_checkpoint(why);
  manager.defer_set_aside();
  std::size_t segments = 0;
  std::size_t blocks = 0;
  for_each_segment_of(manager, *in, [&](const block& first) {
    ++segments;
    for (const block *b = &first, *end = first.prev; b != end; b = b->next) {
      blocks += b->is_unmapped() ? 0 : 1;
      if (b->status.state == block::state::pending) why = "a block of the pool is pending";
      if (!b->is_unused() && b->is_by_handle()) why = "a block of the pool is live by handle";
    }
  });
  if (why != nullptr) return pool_checkpoint(why);
  recorded_pool state{.owner = &manager, .pool = pool};
  bool works = state.segments.reserve(segments) && state.blocks.reserve(blocks);
  if constexpr (!Manager::order::is_by_size)
    works = works && record_newest_free<Manager>(*in, blocks, state.newest_free);
  if (!works) return pool_checkpoint("host memory ran out");
  for_each_segment_of(manager, *in, [&](const block& first) {
    const std::size_t before = state.blocks.size();
    for (const block *b = &first, *end = first.prev; b != end; b = b->next) {
      if (!b->is_unmapped())
        state.blocks.add({b->address, b->size, b->list->key(), !b->is_free(), b->is_lent()});
    }
    const std::size_t count = state.blocks.size() - before;
    if (count > 0) state.segments.add({first.address, first.list->pool(), before, count});
  });
  return pool_checkpoint(std::move(state));
}

/// Brings a recorded state of a private pool back, all of it or nothing.
///
/// First checks that it can, and takes all host memory. Then frees each live block of the pool. Then
/// allocates each recorded block, and frees it again if it was free. PyTorch does the same, so that counters
/// and events are the same, too. No call here lets other threads into a locked allocator.
template <typename Manager>
class pool_restore {
 public:
  pool_restore(Manager& manager, const recorded_pool& state) noexcept : manager_(manager), state_(state) {}
  pool_restore(const pool_restore&) = delete;
  pool_restore& operator=(const pool_restore&) = delete;

  /// Blocks of at least `oversize_from` bytes are counted as oversize.
  [[nodiscard, gnu::cold]] restore_result run(std::size_t oversize_from) noexcept {
    restore_result result;
    result.why = find_segments();
    if (result.why != nullptr) return result;
    if (take_host_memory(result)) {
      free_live(result);
      for (const place& p : places_) allocate_recorded(p, oversize_from, result);
      if constexpr (!order::is_by_size) {
        for (std::size_t i = state_.newest_free.size(); i-- > 0;)
          (void)manager_.deallocate(state_.newest_free[i]);
      }
    } else {
      result = {.why = no_host_memory};
    }
    if constexpr (shares) keep_lists(-1);
    manager_.end_reserve();
    return result;
  }

 private:
  using order = typename Manager::order;
  static constexpr bool has_ranges = Manager::traits::has_ranges;
  static constexpr bool shares = Manager::traits::reuses_across_streams;
  static constexpr const char* no_host_memory = "host memory ran out";

  /// A recorded segment, and the segment where it is now.
  struct place {
    const recorded_segment* recorded;
    segment* found;
    [[nodiscard]] std::uint64_t map_key() const noexcept { return recorded->address; }
  };

  [[nodiscard]] const recorded_block* begin_of(const place& p) const noexcept {
    return &state_.blocks[p.recorded->first_block];
  }
  [[nodiscard]] const recorded_block* end_of(const place& p) const noexcept {
    return begin_of(p) + p.recorded->blocks;
  }
  [[nodiscard]] static bool is_live(const block& b) noexcept {
    return !b.is_unused() && b.status.state != block::state::pending;
  }

  /// Finds the segments and ranges of the recorded ones. Returns null, or why the state cannot come back.
  [[nodiscard]] const char* find_segments() noexcept {
    key_map<place> by_address;
    if (!places_.reserve(state_.segments.size()) || !by_address.hold_reserve(state_.segments.size()))
      return no_host_memory;
    for (const recorded_segment& recorded : state_.segments) places_.add({&recorded, nullptr});
    for (place& p : places_) by_address.insert(p.map_key(), p);
    const char* why = nullptr;
    for_each_segment_of(manager_, *manager_.pools().find(state_.pool), [&](block& first) {
      for (const block *b = &first, *end = first.prev; b != end; b = b->next) {
        if (!is_live(*b)) continue;
        ++live_;
        if (b->is_by_handle()) why = "a block of the pool is live by handle";
      }
      place* const p = by_address.find(first.address);
      if (p == nullptr) return;
      p->found = static_cast<segment*>(first.prev);
      if (why == nullptr) why = why_not(*p);
    });
    for (const place& p : places_) {
      if (p.found == nullptr && why == nullptr) why = "a recorded segment went back to the device";
    }
    return why;
  }
  /// Returns null, or why the recorded blocks of a segment cannot come back.
  [[nodiscard]] const char* why_not(const place& p) noexcept {
    const block* b = &p.found->first();
    std::uintptr_t at = 0;
    for (const recorded_block* r = begin_of(p); r != end_of(p); ++r) {
      for (at = r->address; at < r->address + r->bytes; at = b->end()) {
        while (b != p.found && b->end() <= at) b = b->next;
        if (b == p.found || b->is_unmapped()) return "memory of a recorded segment went back to the device";
        if (const char* const why = why_not(*b, *r, p.recorded->pool)) return why;
      }
    }
    const bool is_same =
        has_ranges || (b->next == p.found && at == end_of(p)[-1].address + end_of(p)[-1].bytes);
    return is_same ? nullptr : "a larger segment is where a recorded segment was";
  }
  /// Returns null, or why a block cannot become part of a recorded block.
  [[nodiscard]] const char* why_not(const block& b, const recorded_block& r, std::size_t pool) noexcept {
    if (b.status.state == block::state::pending) return "a block of a recorded segment is pending";
    if (is_live(b) && b.flags().has_recorded_streams)
      return "streams are recorded for a live block of a recorded segment";
    if (b.list->pool() != pool) return "a recorded segment now serves another pool";
    if (b.list->key() == r.stream) return nullptr;
    if constexpr (shares) {
      auto& device = manager_.provider();
      const stream_id key = b.list->key();
      const bool is_done =
          b.is_free() ? manager_.is_stream_work_done(b) : device.is_done(key, device.position(key));
      return is_done ? nullptr : "another stream has unfinished work on a recorded block";
    }
    return "a recorded segment now serves another stream";
  }

  /// Takes all host memory. Returns false if it ran out.
  [[nodiscard]] bool take_host_memory(restore_result& result) noexcept {
    const std::size_t blocks = state_.blocks.size();
    if constexpr (shares) {
      if (!keep_lists(1)) return false;
    }
    // In a range, a block may be split from the middle of a free block.
    return manager_.hold_reserve(has_ranges ? 2 * blocks : blocks, blocks) && result.freed.reserve(live_) &&
           result.allocated.reserve(blocks);
  }
  /// If streams share blocks: creates the free lists of the recorded blocks and keeps them, or ends that.
  /// Returns false if host memory ran out.
  bool keep_lists(int change) noexcept {
    for (const place& p : places_) {
      for (const recorded_block* r = begin_of(p); r != end_of(p); ++r) {
        if (change < 0 && kept_lists_ == 0) return true;
        free_list* const list = list_of(p, *r);
        if (list == nullptr) return false;
        list->segments += static_cast<std::size_t>(change);
        kept_lists_ += static_cast<std::size_t>(change);
      }
    }
    return true;
  }
  [[nodiscard]] static free_list* list_of(const place& p, const recorded_block& r) noexcept {
    return Manager::find_or_create_list(p.found->first().list->where(), r.stream);
  }

  /// Frees the live blocks of the pool.
  void free_live(restore_result& result) noexcept {
    for_each_segment_of(manager_, *manager_.pools().find(state_.pool), [&](block& first) {
      const block* const end = first.prev;
      for (block *b = &first, *following = nullptr; b != end; b = following) {
        following = b->next;
        while (following->is_free()) following = following->next;  // it may coalesce with b
        if (!is_live(*b)) continue;
        result.freed.add(reinterpret_cast<void*>(b->address));
        free_at(b->address);
      }
    });
  }
  /// Allocates the recorded blocks of a segment, then frees those that were free.
  void allocate_recorded(const place& p, std::size_t oversize_from, restore_result& result) noexcept {
    if constexpr (shares) manager_.coalesce_run(p.found->first(), p.found, *list_of(p, *begin_of(p)));
    block* from = &p.found->first();
    for (const recorded_block* r = begin_of(p); r != end_of(p); ++r) {
      while (from->end() <= r->address) from = from->next;
      block& served = manager_.allocate(*from, r->bytes, r->bytes, r->address - from->address,
                                        r->bytes >= oversize_from, r->stream);
      if (r->is_lent) served.mark_lent();
      if constexpr (shares) manager_.move_to(served, *list_of(p, *r));
      from = &served;
    }
    for (const recorded_block* r = begin_of(p); r != end_of(p); ++r) {
      if (r->is_live) {
        result.allocated.add(reinterpret_cast<void*>(r->address));
      } else if (order::is_by_size) {
        free_at(r->address);
      }
    }
  }
  void free_at(std::uintptr_t address) noexcept {
    (void)manager_.deallocate(reinterpret_cast<const void*>(address));
  }

  Manager& manager_;
  const recorded_pool& state_;
  host_array<place> places_;
  std::size_t live_ = 0;  ///< live blocks of the pool
  std::size_t kept_lists_ = 0;
};

/// Brings a recorded state of a private pool back, or says why nothing changed.
template <typename Manager>
[[nodiscard, gnu::cold]] restore_result restore_pool(Manager& manager, const pool_checkpoint& from,
                                                     std::size_t oversize_from) noexcept {
  if (!from) return {.why = from.why()};
  if (from.state().owner != &manager) return {.why = "the checkpoint is of another allocator"};
  if (const char* const why = why_unfit(manager.pools().find(from.pool()))) return {.why = why};
  return pool_restore<Manager>(manager, from.state()).run(oversize_from);
}

}  // namespace tessera::detail
