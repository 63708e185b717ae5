// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <utility>

#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/detail/blocks/free_list_map.hpp>
#include <tessera/detail/containers/containers.hpp>
#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/detail/policies/stream_sharing.hpp>
#include <tessera/extension/private_pools.hpp>

namespace tessera::inline v0_1::detail {

/// An array in host memory. Its capacity is fixed by reserve(). std::swap and std::exchange would make it slow
/// to compile.
template <typename T>
class host_array {
 public:
  host_array() noexcept = default;
  host_array(host_array&& other) noexcept : items_(other.items_), size_(other.size_) { other.forget(); }
  host_array& operator=(host_array&& other) noexcept {
    if (this == &other) return *this;
    delete[] items_;
    items_ = other.items_;
    size_ = other.size_;
    other.forget();
    return *this;
  }
  ~host_array() { delete[] items_; }

  /// Takes memory for `capacity` items. Returns false if host memory ran out.
  ///   Requires:  it was not called before
  [[nodiscard]] bool reserve(std::size_t capacity) noexcept {
    items_ = new (std::nothrow) T[capacity];
    return items_ != nullptr;
  }
  /// Appends an item.
  ///   Requires:  a preceding reserve() for it
  void add(const T& item) noexcept { items_[size_++] = item; }

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] const T& operator[](std::size_t i) const noexcept { return items_[i]; }
  [[nodiscard]] const T* begin() const noexcept { return items_; }
  [[nodiscard]] const T* end() const noexcept { return items_ + size_; }
  [[nodiscard]] T* begin() noexcept { return items_; }
  [[nodiscard]] T* end() noexcept { return items_ + size_; }

 private:
  void forget() noexcept {
    items_ = nullptr;
    size_ = 0;
  }

  T* items_ = nullptr;
  std::size_t size_ = 0;
};

/// A block with memory, as a checkpoint records it.
struct recorded_block {
  std::uintptr_t address;
  std::size_t bytes;
  stream_id stream;  ///< the key of its free list
  bool is_live;
  bool is_lent;  ///< it served a request of the default pools
};

/// A segment or a range, as a checkpoint records it.
struct recorded_segment {
  std::uintptr_t address;
  std::size_t pool;         ///< its pool, of those that the recipe has
  std::size_t first_block;  ///< the index of its first block
  std::size_t blocks;       ///< how many blocks it has, at least one
};

/// The state of a private pool.
struct recorded_pool {
  const void* owner = nullptr;  ///< identifies the allocator
  pool_id pool{};
  host_array<recorded_segment> segments{};
  host_array<recorded_block> blocks{};  ///< of all segments, in each in the order of addresses
  /// If free blocks are not ordered by size: the addresses of the free blocks, the newest first.
  host_array<void*> newest_free{};
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::extension {

/// The state of a private pool at one time: its segments, and in each the sizes of the blocks and which of
/// them are live. Converts to true if it holds a state.
///
/// The door of checkpoints makes it, and restore() brings the state back, any number of times.
/// It holds host memory only. It may outlive the pool and the allocator.
class pool_checkpoint {
 public:
  /// Holds no state.
  pool_checkpoint() noexcept = default;
  /// Holds no state, for a reason.
  explicit pool_checkpoint(const char* why) noexcept : why_(why) {}
  /// Holds the state that the door of checkpoints recorded.
  explicit pool_checkpoint(tessera::detail::recorded_pool&& state) noexcept
      : state_(std::move(state)), why_(nullptr) {}
  /// Leaves `other` without a state.
  pool_checkpoint(pool_checkpoint&& other) noexcept : state_(std::move(other.state_)), why_(other.why_) {
    other.why_ = is_empty;
  }
  /// Leaves `other` without a state.
  pool_checkpoint& operator=(pool_checkpoint&& other) noexcept {
    state_ = std::move(other.state_);
    const char* const why = other.why_;
    other.why_ = is_empty;
    why_ = why;
    return *this;
  }

  /// Whether it holds a state.
  [[nodiscard]] explicit operator bool() const noexcept { return why_ == nullptr; }
  /// Why it holds no state, as text; null if it holds one.
  [[nodiscard]] const char* why() const noexcept { return why_; }
  /// The private pool whose state it holds; default_pools if it holds none.
  [[nodiscard]] pool_id pool() const noexcept { return why_ == nullptr ? state_.pool : default_pools; }
  /// The state as the allocator recorded it.
  [[nodiscard]] const tessera::detail::recorded_pool& state() const noexcept { return state_; }

 private:
  static constexpr const char* is_empty = "the checkpoint is empty";

  tessera::detail::recorded_pool state_;
  const char* why_ = is_empty;
};

/// The result of a call that restores a checkpoint.
struct [[nodiscard]] restore_result : outcome {
  tessera::detail::host_array<void*> freed{};  ///< the blocks that were live before, and were freed
  tessera::detail::host_array<void*>
      allocated{};  ///< the blocks that the checkpoint recorded as live, live again
};

}  // namespace tessera::inline v0_1::extension

namespace tessera::inline v0_1::detail {

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
[[nodiscard, gnu::cold]] extension::pool_checkpoint record_pool(
    Manager& manager, const auto& memory, const typename Manager::group& pool) noexcept {
  const typename Manager::group* const in = &pool;
  const char* why = nullptr;
  manager.defer_set_aside();
  std::size_t segments = 0;
  std::size_t blocks = 0;
  memory.for_each_segment_of(*in, [&](const block& first) {
    ++segments;
    for (const block *b = &first, *end = first.prev; b != end; b = b->next) {
      blocks += b->is_unmapped() ? 0 : 1;
      if (b->status.state == block::state::pending) why = "a block of the pool is pending";
      if (!b->is_unused() && b->is_by_handle()) why = "a block of the pool is live by handle";
    }
  });
  if (why != nullptr) return extension::pool_checkpoint(why);
  recorded_pool state{.owner = &manager, .pool = {pool.number}};
  bool works = state.segments.reserve(segments) && state.blocks.reserve(blocks);
  if constexpr (!Manager::order::is_by_size)
    works = works && record_newest_free<Manager>(*in, blocks, state.newest_free);
  if (!works) return extension::pool_checkpoint("host memory ran out");
  memory.for_each_segment_of(*in, [&](const block& first) {
    const std::size_t before = state.blocks.size();
    for (const block *b = &first, *end = first.prev; b != end; b = b->next) {
      if (!b->is_unmapped())
        state.blocks.add({b->address, b->size, b->list->key, !b->is_free(), tessera::detail::is_lent(*b)});
    }
    const std::size_t count = state.blocks.size() - before;
    if (count > 0) state.segments.add({first.address, first.list->where.pool, before, count});
  });
  return extension::pool_checkpoint(std::move(state));
}

/// Brings a recorded state of a private pool back, all of it or nothing.
///
/// First checks that it can, and takes all host memory. Then frees each live block of the pool. Then
/// allocates each recorded block, and frees it again if it was free. PyTorch does the same, so that counters
/// and events are the same, too. No call here lets other threads into a locked allocator.
template <typename Manager, typename Memory>
class pool_restore {
 public:
  pool_restore(Manager& manager, const Memory& memory, const typename Manager::group& pool,
               const recorded_pool& state) noexcept
      : manager_(manager), memory_(memory), pool_(pool), state_(state) {}
  pool_restore& operator=(pool_restore&&) = delete;

  /// Blocks of at least `oversize_from` bytes are counted as oversize.
  [[nodiscard, gnu::cold]] extension::restore_result run(std::size_t oversize_from) noexcept {
    extension::restore_result result;
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
      result.why = no_host_memory;
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

  /// Finds the segments and ranges of the recorded ones. Returns null, or why the state cannot come back.
  [[nodiscard]] const char* find_segments() noexcept {
    key_map<place> by_address;
    if (!places_.reserve(state_.segments.size()) || !by_address.hold_reserve(state_.segments.size()))
      return no_host_memory;
    for (const recorded_segment& recorded : state_.segments) places_.add({&recorded, nullptr});
    for (place& p : places_) by_address.insert(p.map_key(), p);
    const char* why = nullptr;
    memory_.for_each_segment_of(pool_, [&](block& first) {
      for (const block *b = &first, *end = first.prev; b != end; b = b->next) {
        if (!b->is_live()) continue;
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
    if (b.is_live() && b.flags().has_recorded_streams)
      return "streams are recorded for a live block of a recorded segment";
    if (b.list->where.pool != pool) return "a recorded segment now serves another pool";
    if (b.list->key == r.stream) return nullptr;
    if constexpr (shares) {
      auto& device = manager_.provider();
      const stream_id key = b.list->key;
      const bool is_done =
          b.is_free() ? manager_.is_stream_work_done(b) : device.is_done(key, device.position(key));
      return is_done ? nullptr : "another stream has unfinished work on a recorded block";
    }
    return "a recorded segment now serves another stream";
  }

  /// Takes all host memory. Returns false if it ran out.
  [[nodiscard]] bool take_host_memory(extension::restore_result& result) noexcept {
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
        list->users += static_cast<std::size_t>(change);
        kept_lists_ += static_cast<std::size_t>(change);
      }
    }
    return true;
  }
  [[nodiscard]] static free_list* list_of(const place& p, const recorded_block& r) noexcept {
    return Manager::find_or_create_list(p.found->first().list->where, r.stream);
  }

  /// Frees the live blocks of the pool.
  void free_live(extension::restore_result& result) noexcept {
    memory_.for_each_segment_of(pool_, [&](block& first) {
      const block* const end = first.prev;
      for (block *b = &first, *following = nullptr; b != end; b = following) {
        following = b->next;
        while (following->is_free()) following = following->next;  // it may coalesce with b
        if (!b->is_live()) continue;
        result.freed.add(reinterpret_cast<void*>(b->address));
        free_at(b->address);
      }
    });
  }
  /// Allocates the recorded blocks of a segment, then frees those that were free.
  void allocate_recorded(const place& p, std::size_t oversize_from,
                         extension::restore_result& result) noexcept {
    if constexpr (shares)
      tessera::detail::coalesce_run(manager_, p.found->first(), p.found, *list_of(p, *begin_of(p)));
    block* from = &p.found->first();
    for (const recorded_block* r = begin_of(p); r != end_of(p); ++r) {
      while (from->end() <= r->address) from = from->next;
      (void)manager_.reserve_blocks();  // succeeds, because the memory is held
      block& served = manager_.allocate(*from, r->bytes, r->bytes, r->address - from->address,
                                        r->bytes >= oversize_from, r->stream);
      if (r->is_lent) tessera::detail::mark_lent(served);
      if constexpr (shares) tessera::detail::move_to(manager_, served, *list_of(p, *r));
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
  const Memory memory_;
  const typename Manager::group& pool_;
  const recorded_pool& state_;
  host_array<place> places_;
  std::size_t live_ = 0;  ///< live blocks of the pool
  std::size_t kept_lists_ = 0;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::extension {

/// A restore that worked, for front ends that record requests.
struct pool_restored {
  pool_id pool;  ///< the pool that was restored
};

/// Records the state of private pools, and brings it back.
///
/// Choose it if a program replays captured graphs, whose blocks must be live again at their addresses.
///
///     tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, tessera::extension::private_pools,
///                                tessera::extension::checkpoints>
///         shared;
///     tessera::extension::private_pool graph_memory(shared);
///     void* result = nullptr;
///     {
///       const tessera::extension::pool_scope capture(graph_memory, tessera::extension::scope_kind::capture);
///       result = shared.allocate(5_MiB);
///     }
///     auto checkpoints = shared.get<tessera::extension::checkpoints>();
///     const tessera::extension::pool_checkpoint captured = checkpoints.record(graph_memory.id());
///     shared.deallocate(result);
///     if (checkpoints.restore(captured)) shared.deallocate(result);  // it was live again
///
///   Source:  PyTorch's getCheckpointState and setCheckpointPoolState
struct checkpoints {
  using needs = tessera::detail::needs_extensions<private_pools>;
  template <typename Core>
  class state;
  template <typename Allocator>
  class door;
};

template <typename Core>
class checkpoints::state : public tessera::detail::extension_defaults {
  using access = tessera::detail::core_access;
  using group = typename Core::group;
  using allocator = typename Core::allocator;

 public:
  state(allocator& in, const checkpoints&) noexcept : in_(in) {}
  state& operator=(state&&) = delete;

  [[nodiscard, gnu::cold]] pool_checkpoint record(pool_id pool) noexcept {
    const group* const found = find(pool);
    if (const char* const why = why_refused(pool, found)) return pool_checkpoint(why);
    return tessera::detail::record_pool(access::manager(in_), access::map(in_), *found);
  }
  [[nodiscard, gnu::cold]] restore_result restore(const pool_checkpoint& from) noexcept {
    auto& manager = access::manager(in_);
    if (!from) return {{from.why()}};
    if (from.state().owner != &manager) return {{"the checkpoint is of another allocator"}};
    const group* const found = find(from.pool());
    if (const char* const why = why_refused(from.pool(), found)) return {{why}};
    tessera::detail::pool_restore restoring(manager, access::map(in_), *found, from.state());
    restore_result result = restoring.run(access::policies(in_).split.oversize_from());
    if (!result.freed.empty()) access::evict_after_free(in_);
    return result;
  }

 private:
  [[nodiscard]] const group* find(pool_id pool) const noexcept {
    return pool != default_pools ? access::extensions(in_).find_group(pool) : nullptr;
  }
  /// Why the state of a private pool can be neither recorded nor restored, or null.
  [[nodiscard]] const char* why_refused(pool_id pool, const group* in) const noexcept {
    if (in == nullptr) return tessera::detail::why_no_private_pool(pool);
    if (in->uses == 0) return "the pool has no use";
    return access::extensions(in_).why_not_checkpointable(*in);
  }

  allocator& in_;
};

/// What `allocator.get<checkpoints>()` returns.
template <typename Allocator>
class checkpoints::door {
 public:
  explicit door(Allocator& in) noexcept : in_(&in) {}

  /// Records the state of a private pool: its segments, and in each the sizes of the blocks and which of them
  /// are live. restore() brings it back.
  ///   Returns:  a checkpoint, or why there is none: the pool does not exist, has no use or no memory, has a quota,
  ///             or has a block that is pending or live by handle, or host memory ran out
  ///   Cost:     linear in the blocks; 32 bytes of host memory for each block of the pool
  [[nodiscard]] pool_checkpoint record(pool_id pool) noexcept {
    pool_checkpoint made;
    (void)in_->template change_extension<checkpoints>([&](auto& s) {
      made = s.record(pool);
      return outcome{made.why()};
    });
    return made;
  }
  /// Brings the recorded state of a private pool back. Frees each live block of the pool, also those that
  /// `serves_on_oom` gave to other requests. Then the recorded blocks are live or free again, at their addresses.
  /// Segments acquired since stay, with free blocks. Without such segments, the same requests then get the same
  /// addresses as after the checkpoint.
  ///
  /// A recorded live block is live again even if the program freed it meanwhile. It has no recorded streams,
  /// and its request is its whole size, as in PyTorch. No call waits for a stream: the caller has ordered the
  /// next uses of the pool after the earlier ones.
  ///   Returns:  the addresses that were freed and that are live now, or why nothing changed: as
  ///             record(), the checkpoint is of another allocator, recorded memory went back to the
  ///             device, or a recorded segment has a block that is pending or has recorded streams.
  ///             If streams share blocks, also fails while another stream has unfinished work on a block.
  ///   Cost:     linear in the blocks of the allocator
  restore_result restore(const pool_checkpoint& from) noexcept {
    restore_result result =
        in_->template change_extension<checkpoints>([&](auto& s) { return s.restore(from); });
    if (result) in_->note_change(pool_restored{from.pool()});
    return result;
  }

 private:
  Allocator* in_;
};

}  // namespace tessera::inline v0_1::extension
