// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/counters.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/detail/blocks/free_list_map.hpp>
#include <tessera/detail/blocks/pending_frees.hpp>
#include <tessera/detail/containers/containers.hpp>
#include <tessera/detail/extensions/extension.hpp>

namespace tessera::inline v0_1::detail {

/// The numbers among the settings of a block manager.
struct manager_settings {
  std::size_t pools;
  bool uses_events;            // streams are recorded; frees wait for their events
  bool waits_for_events;       // frees wait where they would poll
  bool reuses_across_streams;  // free blocks may serve other streams
  bool has_stream_order;       // earlier work of its own stream may still use a free block
  free_order order;
  bool counts_reuses;
};

/// Compile-time settings of a block manager. They name no recipe: allocators that differ in the numbers of their policies
/// share the code of the manager and the backend.
template <manager_settings Settings, typename Backend, typename Clock, typename CallClock,
          typename Extensions, typename Group, typename Counters>
struct manager_traits {
  static constexpr std::size_t pools = Settings.pools;
  static constexpr bool uses_events = Settings.uses_events;
  static constexpr bool waits_for_events = Settings.waits_for_events;
  static constexpr bool reuses_across_streams = Settings.reuses_across_streams;
  static constexpr bool has_stream_order = Settings.has_stream_order;
  /// Segments are ranges in which memory is mapped page by page.
  static constexpr bool has_ranges = Backend::has_ranges;
  /// A block may be split from the middle of a free block.
  static constexpr bool places_blocks = Backend::places_blocks;
  static constexpr free_order order = Settings.order;
  /// The clock of ages, or pool_searches.
  using clock = Clock;
  /// The clock that measures calls of the device, or void.
  using call_clock = CallClock;
  static constexpr bool counts_reuses = Settings.counts_reuses;
  using extensions = Extensions;
  using group = Group;
  using counters = Counters;
};

/// Keeps the blocks of one allocator: their neighbours, free lists, addresses, statistics and pending frees.
/// It carries out the decisions of allocators and backends, and reports each change to the extensions. It
/// decides nothing.
///
///   allocate / deallocate   give a part of a free block to the user, and take it back
///   split / coalesce        cut blocks and join neighbours; part of the two above
///   insert / erase          add and remove segments and descriptors
///   acquire / release       exchange whole segments with the device
///
/// Device calls that may take long are acquire, release and wait. The allocator may be re-entered during
/// them. The state is consistent before such a call, and is read again after it. The manager knows no locks;
/// a front end may let other threads in.
///
/// With ranges, each free block has its own age, and no free block is counted as inactive_split. If streams
/// share free blocks, the blocks of a segment may belong to several free lists of their pool.
///
/// Functions that call the device are cold, here and in caching_allocator. The call takes far longer than they
/// do, and cold functions compile faster.
///
/// Functions of the hit path are always_inline if that saves instructions. Without any of them, recorded
/// programs take 17 % more instructions at -O2, and 11 % more at -O3 (bench/replay under callgrind, g++ 12).
/// What few calls need is gnu::cold, here and in containers and providers: the compiler takes less time for it.
template <provider::device_provider Provider, typename Traits>
class block_manager {
  static_assert(!Traits::has_ranges || !Traits::reuses_across_streams,
                "ranges do not support reuse across streams: a free block has no room for both its age and "
                "the position of its stream");
  static_assert(!Traits::reuses_across_streams || Traits::order == free_order::lowest_address,
                "reuse across streams requires free_order::lowest_address");

 public:
  using provider_type = Provider;
  using traits = Traits;
  using action = allocator_event::action;
  using free_outcome = free_result;
  using extensions_type = typename Traits::extensions;
  using counters_type = typename Traits::counters;
  using order = block_order<Traits::order, Traits::has_ranges>;
  using group = typename Traits::group;
  static constexpr bool is_extended = !extensions_type::is_empty;
  static constexpr bool has_clock = !std::is_same_v<typename Traits::clock, pool_searches>;
  using time = std::conditional_t<has_clock, std::uint64_t, pool_searches>;
  static constexpr bool measures_calls = !std::is_void_v<typename Traits::call_clock>;

  [[gnu::cold]] block_manager(Provider provider, extensions_type& extensions, bool in_captures = false)
      : provider_(std::move(provider)), extensions_(extensions), releases_in_captures_(in_captures) {}
  block_manager& operator=(block_manager&&) = delete;

  [[nodiscard]] Provider& provider() noexcept { return provider_; }
  [[nodiscard]] const Provider& provider() const noexcept { return provider_; }
  [[nodiscard]] decltype(auto) extensions() const noexcept { return extensions_.get(); }
  [[nodiscard]] counters_type& counters() noexcept { return counters_; }
  [[nodiscard]] const counters_type& counters() const noexcept { return counters_; }
  /// Reports an event of the blocks of a group. Without an extension that hears events, reads nothing.
  void report(action what, std::uintptr_t address, std::size_t bytes, std::size_t block, stream_id stream,
              const pool_group& in) noexcept {
    if constexpr (extensions_type::hears_events)
      extensions().on_event(allocator_event{what, address, bytes, block, stream, {in.number}});
  }
  /// Reports an event of the blocks of a free list.
  void report(action what, std::uintptr_t address, std::size_t bytes, std::size_t block,
              const free_list& of) noexcept {
    report(what, address, bytes, block, of.key, *of.where.group);
  }
  void report_oom(std::size_t requested, std::size_t size, stream_id stream, const pool_group& in,
                  bool rejected) noexcept {
    ++counters_.num_ooms;
    if (rejected) ++counters_.num_oom_rejections;
    report(action::oom, left_on(provider_, counters_.reserved()), requested, size, stream, in);
  }

  /// Reserves host memory for `blocks` new descriptors and one live block. The default suffices for any
  /// request. Returns false, and changes nothing, if host memory ran out.
  [[nodiscard, gnu::always_inline]] bool reserve_blocks(std::size_t blocks = 2) noexcept {
    return blocks_.reserve(blocks) && live_.reserve_one();
  }
  /// Reserves host memory for `blocks` new descriptors and `live` live blocks. Frees do not give it back until
  /// end_reserve(). Returns false if host memory ran out; end_reserve() is necessary in any case.
  [[nodiscard]] bool hold_reserve(std::size_t blocks, std::size_t live) noexcept {
    return blocks_.hold_reserve(blocks) && live_.hold_reserve(live);
  }
  void end_reserve() noexcept {
    blocks_.purge();
    live_.shrink_to_fit();
  }

  // Free lists and searches.

  /// Finds the free list of a pool and a stream, or creates it. Returns null if host memory ran out.
  template <typename Key>
  [[nodiscard]] static free_list* find_or_create_list(group& in, std::size_t pool, Key key) noexcept {
    return in.lists[pool].find_or_create(key);
  }
  /// Finds or creates the free list of a stream beside another list.
  [[nodiscard]] static free_list* find_or_create_list(const free_list::place& where, stream_id key) noexcept {
    return find_or_create_list(static_cast<group&>(*where.group), where.pool, key);
  }
  /// Finds or creates a free list, and reserves host memory for a request. Returns null if host memory ran
  /// out.
  template <typename Key>
  [[nodiscard, gnu::always_inline]] free_list* prepare_list(group& in, std::size_t pool, Key key) noexcept {
    free_list* const list = find_or_create_list(in, pool, key);
    return list != nullptr && reserve_blocks() ? list : nullptr;
  }
  template <typename F>
  void for_each_list(F f) const {
    for_each_group([&f](const group& in) {
      for (const free_list_map& of_pool : in.lists) {
        for (free_list* list = of_pool.first(); list != nullptr; list = list->next) f(*list);
      }
    });
  }
  /// The group of the allocator itself.
  [[nodiscard]] group& own() noexcept { return own_; }
  [[nodiscard]] const group& own() const noexcept { return own_; }
  /// Calls f(group) for the allocator's own group, then for those that extensions added.
  template <typename F>
  void for_each_group(F f) {
    f(own_);
    extensions().for_each_group(f);
  }
  template <typename F>
  void for_each_group(F f) const {
    f(own_);
    extensions().for_each_group([&f](const group& added) { f(added); });
  }
  /// The group that serves a request of a stream.
  [[nodiscard]] group& group_for(stream_id stream) noexcept { return extensions().group_for(stream, own_); }
  [[nodiscard]] const group& group_for(stream_id stream) const noexcept {
    return extensions().group_for(stream, own_);
  }
  /// Whether the device may be asked for events, and waited for.
  [[nodiscard]] bool may_wait() const noexcept { return extensions().may_wait(); }
  /// Whether emptying the cache gives back the idle memory of a group.
  [[nodiscard]] bool may_release(const group& in) const noexcept {
    return !in.is_private() || extensions().may_release(in);
  }
  /// Finds the first free block in order that holds `size` bytes, or null. Counts as a search of the pool.
  [[nodiscard, gnu::always_inline]] block* best_fit(free_list& list, std::size_t size) noexcept {
    ++list.where.clock->searches;
    return list.template best_fit<order>(size);
  }
  /// Does the same, in the order of the split policy if that has one. The list keeps its own order, so no answer of
  /// the policy can lose a block.
  ///   Cost:  linear in the blocks of at least `size` bytes if the policy has an order
  template <typename Policies>
  [[nodiscard, gnu::always_inline]] block* best_fit(free_list& list, std::size_t size,
                                                    const Policies& p) noexcept {
    if constexpr (Traits::order == free_order::by_policy) return first_by_policy(list, size, p.split);
    if constexpr (Traits::order != free_order::by_policy) return best_fit(list, size);
  }
  /// What a split policy may know about a free block.
  [[nodiscard]] static free_block view_of(const block& b) noexcept {
    free_block view{.address = b.address, .size = b.size, .is_segment = !Traits::has_ranges && !b.is_split()};
    if constexpr (Traits::order == free_order::by_policy)
      view.segment = Traits::has_ranges ? number_of_range(b) : b.segment_number;
    return view;
  }
  /// Finds the live block that begins at an address, or null.
  ///   Cost:  constant
  [[nodiscard]] block* find_live(const void* p) const noexcept {
    return live_.find(reinterpret_cast<std::uintptr_t>(p));
  }
  [[nodiscard]] std::size_t live_count() const noexcept { return live_.size(); }

  // Allocations and frees.

  /// Gives the user `size` bytes at `offset` in a free block; the rest stays free. With `ByHandle`, the block
  /// is not found by its address.
  ///   Requires:  a preceding reserve_blocks()
  ///   Requires:  offset + size <= from.size
  ///   Requires:  the bytes lie at an end of the block, unless Traits::places_blocks
  template <bool ByHandle = false>
  [[gnu::always_inline]] block& allocate(block& from, std::size_t requested, std::size_t size,
                                         std::size_t offset, bool oversize, stream_id stream) noexcept {
    const std::size_t pool = from.list->where.pool;
    if constexpr (Traits::counts_reuses) {
      if (!from.is_split()) ++segment_of(from).history.uses;
    }
    count_split_off(from, size, offset);
    block& served = extract(from, offset, size);
    if constexpr (ByHandle) {
      served.status.state = block::state::live_by_handle;
    } else {
      served.status.state = block::state::live;
      live_.insert(served.address, served);
    }
    served.request.bytes = requested;
    counters_.allocated(pool, requested, size);
    if (oversize) {
      counters_.oversize_allocations.increase(1);
      served.set_flags({true, false, ByHandle, false});
    }
    report(action::alloc, served.address, requested, size, stream, *served.list->where.group);
    return served;
  }

  /// Frees the live block at an address, or makes it pending.
  [[nodiscard]] free_result deallocate(const void* p) noexcept {
    block* const live = remove_live(p);
    return live != nullptr ? finish_deallocate(*live) : free_result::unknown;
  }
  /// Frees the live block of a handle, or makes it pending.
  [[nodiscard]] free_result deallocate(block& live) noexcept {
    if (!live.is_by_handle()) return free_result::unknown;
    live.clear_handle();
    return finish_deallocate(live);
  }
  /// The first half of deallocate. Afterwards, the address does not find the block any more.
  [[nodiscard]] block* remove_live(const void* p) noexcept {
    return live_.remove(reinterpret_cast<std::uintptr_t>(p));
  }
  /// The second half of deallocate: frees the block, or makes it pending.
  [[gnu::always_inline]] free_result finish_deallocate(block& live) noexcept {
    report(action::free_requested, live.address, live.request.bytes, live.size, *live.list);
    if (live.status.state != block::state::live && defer_free(live)) return free_result::pending;
    counters_.freed(live.list->where.pool, live.request.bytes, live.size);
    complete_free(live);
    return free_result::free;
  }

  /// Frees a live block and allocates it again at once, as a whole.
  void reuse_in_place(block& live, std::size_t requested, stream_id stream) noexcept {
    const std::size_t pool = live.list->where.pool;
    const std::size_t before = live.request.bytes;
    const bool oversize = live.flags().oversize;
    report(action::free_requested, live.address, before, live.size, *live.list);
    report(action::free_completed, live.address, before, live.size, *live.list);
    if (oversize) counters_.oversize_allocations.decrease(1);
    counters_.freed(pool, before, live.size);
    live.request.bytes = requested;
    counters_.allocated(pool, requested, live.size);
    if (oversize) counters_.oversize_allocations.increase(1);
    report(action::alloc, live.address, requested, live.size, stream, *live.list->where.group);
  }

  // Streams.

  /// Records that a stream uses a live block. Returns false if host memory ran out, or if the device may be asked and the
  /// stream does not exist.
  [[nodiscard]] bool record_stream(block& live, stream_id stream) noexcept {
    const bool asks = may_wait();
    return (!asks || has_stream(provider_, stream)) && pending_.record(live, stream, !asks);
  }
  /// Frees the pending blocks whose events have completed, or waits for all. Does nothing while the device must not be asked.
  ///   Returns:  whether it freed any block
  bool process_events() noexcept { return !pending_.empty() && may_wait() && process_waiting(); }
  /// Gives events to the blocks that were freed while the device must not be asked, if it may be asked now.
  [[gnu::cold]] void defer_set_aside() noexcept {
    if (may_wait()) pending_.defer_set_aside(provider_, [this](block& b) { complete_pending(b); });
  }
  /// Waits for every event, then frees the pending blocks. Does so during a capture, too, because the allocator ends.
  [[gnu::cold]] void wait_for_pending() noexcept {
    auto any = [](const block&) { return true; };
    wait_for_pending_if(block_function(any));
  }
  /// Waits for the events of the blocks of the groups for which selects(group) is true, then frees them. Ends early if
  /// another thread forbids waiting meanwhile.
  template <typename Selects>
  [[gnu::cold]] void wait_for_pending_of(Selects selects) noexcept {
    auto selected = [&](const block& b) { return may_wait() && selects(group_of(*b.list)); };
    wait_for_pending_if(block_function(selected));
  }
  [[nodiscard]] pending_frees<Provider, Traits::uses_events>& pending() noexcept { return pending_; }
  [[nodiscard]] bool has_recorded_streams() const noexcept { return pending_.has_recorded_streams(); }
  [[nodiscard]] std::size_t pending_events() const noexcept { return pending_.count(); }

  /// Whether the work before the free of a block is done; true if streams do not share blocks.
  [[nodiscard]] bool is_stream_work_done(const block& free) noexcept {
    if constexpr (Traits::reuses_across_streams) return provider_.is_done(free.list->key, position_of(free));
    return true;
  }
  /// Whether the work of its own stream no longer uses a free block. Never waits.
  [[nodiscard, gnu::cold]] bool is_unused(const block& free) noexcept {
    if constexpr (Traits::reuses_across_streams) return is_stream_work_done(free);
    constexpr bool waits = Traits::has_stream_order || Traits::has_ranges;  // before a release
    return !waits || is_work_done(provider_, free.list->key);
  }
  /// Waits for the work that may use a free block, if release() of the device does not. Returns false if the
  /// device failed, or if it must not be waited for, also since this wait began.
  [[nodiscard, gnu::cold]] bool wait_before_release_of(const block& free) noexcept {
    if constexpr (!must_wait_before_release<Provider> || !Traits::has_stream_order) return true;
    if (Traits::reuses_across_streams && is_stream_work_done(free)) return true;
    return may_wait() && wait_before_release(provider_, free.list->key) && may_wait();
  }
  /// If streams share blocks: the position after which a block is free. The position may be conservative.
  [[nodiscard]] std::uint64_t position_of(const block& free) noexcept {
    const std::uint64_t now = provider_.position(free.list->key);
    const std::uint32_t since = static_cast<std::uint32_t>(now) - free.free_after;
    return since <= now ? now - since : now;
  }
  /// If streams share blocks: marks a block as free after all work submitted to its list's stream.
  void mark_free_after_submitted(block& b) noexcept {
    if constexpr (Traits::reuses_across_streams)
      b.free_after = static_cast<std::uint32_t>(provider_.position(b.list->key));
  }

  // Segments.

  /// Acquires a segment from the device, trying each kind of page in turn. Returns null if the device refuses
  /// or host memory ran out.
  [[nodiscard, gnu::cold]] block* acquire(free_list& list, std::size_t bytes, bool oversize,
                                          const page_order& kinds) noexcept {
    group& in = group_of(list);
    if (!may_acquire(in, bytes)) return nullptr;
    const stream_id key = list.key;
    note_in_flight(in, static_cast<std::int64_t>(bytes));
    ++list.users;  // other threads may erase lists without users during the call
    const std::uint64_t start = call_ticks();
    void* const memory = take_memory(in, bytes, kinds);
    const std::uint64_t ticks = call_ticks() - start;
    --list.users;
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    const bool has_room = memory != nullptr && live_.reserve_one();
    block* const whole = has_room ? insert_segment(list, address, bytes, oversize) : nullptr;
    if (whole != nullptr) {
      counters_.segment_acquired(list.where.pool, bytes);
      change_reserved(in, bytes);
      if (oversize) counters_.oversize_segments.increase(1);
      if constexpr (keeps_history) segment_of(*whole).history.acquire_ticks = ticks;
    } else if (memory != nullptr) {
      counters_.segment_rejected(bytes, give_back(in, address, bytes));
    }
    note_in_flight(in, -static_cast<std::int64_t>(bytes));
    const bool works = whole != nullptr;
    report(works ? action::segment_alloc : action::refused, works ? address : 0, bytes, bytes, key, in);
    return whole;
  }
  /// Releases an idle segment to the device. Returns its bytes, or 0 if an extension keeps it or the device failed; the
  /// segment then stays. It also stays while the device must not be waited for, unless the recovery policy releases in
  /// captures.
  [[gnu::cold]] std::size_t release(block& idle) noexcept {
    const std::uintptr_t address = idle.address;
    const std::size_t bytes = idle.size;
    if (!(releases_in_captures_ || may_wait()) || !may_unmap(address, bytes)) return 0;
    segment& owner = segment_of(idle);
    idle.list->template erase<order>(idle);
    segments_.begin_release(owner, bytes);
    const std::uint64_t start = call_ticks();
    bool released = wait_before_release_of(idle);
    if (released) {
      // Before the call, after which another thread may get the address again.
      report(action::segment_free, address, bytes, bytes, *idle.list);
      released = give_back(group_of(*idle.list), address, bytes);
      if (!released) report(action::segment_alloc, address, bytes, bytes, *idle.list);
    }
    if (!released) {
      segments_.cancel_release(owner, bytes);
      idle.list->template insert<order>(idle);
      return 0;
    }
    if constexpr (measures_calls) {
      releases_[0] += call_ticks() - start;
      ++releases_[1];
    }
    counters_.segment_released(idle.list->where.pool, bytes);
    change_reserved(group_of(*idle.list), 0 - bytes);
    if (owner.oversize) counters_.oversize_segments.decrease(1);
    segments_.erase(owner, bytes);
    --idle.list->users;
    blocks_.give_back(&idle);
    return bytes;
  }
  /// Releases every segment when the allocator is destroyed, even if blocks are live.
  [[gnu::cold]] void release_all() noexcept {
    for_each_segment([this](block& first) {
      (void)wait_before_release(provider_, first.list->key);
      (void)give_back(group_of(*first.list), first.address, segment_bytes(first));
    });
  }
  /// Inserts a segment that the device gave, as one free block. Returns null if host memory ran out.
  [[nodiscard]] block* insert_segment(free_list& list, std::uintptr_t address, std::size_t bytes,
                                      bool oversize) noexcept {
    if (!segments_.reserve_one() || !blocks_.reserve(3)) return nullptr;
    segment& fresh = segments_.insert(ticks_of(*list.where.clock), oversize);
    block& whole = *blocks_.take();
    fresh.number = ++last_number_;
    if constexpr (keeps_history) fresh.history = {};
    if constexpr (numbers_blocks) whole.segment_number = fresh.number;
    whole.link(fresh, fresh);
    whole.address = address;
    whole.size = bytes;
    whole.list = &list;
    if constexpr (Traits::reuses_across_streams) whole.free_after = 0;  // after no work
    ++list.users;
    list.template insert<order>(whole);
    return &whole;
  }
  /// Inserts an empty range, without blocks. Returns null if host memory ran out.
  [[nodiscard]] segment* insert_range(std::uintptr_t address, std::size_t bytes) noexcept {
    if (!segments_.reserve_one() || !blocks_.reserve(3)) return nullptr;
    segment& fresh = segments_.insert(0, false);
    fresh.address = address;
    fresh.size = bytes;
    fresh.number = ++last_number_;
    return &fresh;
  }
  /// Erases a range. The caller erases its only block.
  void erase_range(segment& range) noexcept {
    segments_.begin_release(range, 0);
    segments_.erase(range, 0);
  }
  /// Calls f(block&) with the first block of each segment, in no particular order. `first.prev` is the
  /// segment, which ends the list of its blocks. With `with_releasing`, includes the segments that the device is
  /// being asked to take back.
  template <typename F>
  void for_each_segment(F f, bool with_releasing = false) const {
    segments_.for_each(with_releasing, [&f](segment& s) { f(s.first()); });
  }
  /// Calls f(const block&) for each block of these segments.
  template <typename F>
  void for_each_block(F f, bool with_releasing = false) const {
    for_each_segment(
        [&f](const block& first) {
          for (const block *b = &first, *end = first.prev; b != end; b = b->next) f(*b);
        },
        with_releasing);
  }
  /// Whether a group may get `bytes` more from the device.
  [[nodiscard]] bool may_acquire(group& in, std::size_t bytes) noexcept {
    return !is_extended || extensions().may_acquire(in, bytes);
  }
  /// Whether a segment, or a chunk of a range, may go back to the device or move while no block uses it.
  [[nodiscard]] bool may_unmap(std::uintptr_t address, std::size_t bytes) const noexcept {
    return !is_extended || extensions().may_unmap(address, bytes);
  }
  [[nodiscard]] static group& group_of(const free_list& list) noexcept {
    return static_cast<group&>(*list.where.group);
  }
  /// Counts memory that was mapped in the ranges of a list, or unmapped if negative.
  void count_mapped(const free_list& list, std::int64_t bytes) noexcept {
    if (bytes > 0) counters_.mapped(list.where.pool, static_cast<std::size_t>(bytes));
    if (bytes < 0) counters_.unmapped(list.where.pool, static_cast<std::size_t>(-bytes));
    change_reserved(group_of(list), static_cast<std::size_t>(bytes));
  }
  /// Bytes that the device is being asked for.
  [[nodiscard]] std::size_t requested_bytes() const noexcept { return requested_from_device_; }
  /// Bytes of the segments that are being released.
  [[nodiscard]] std::size_t releasing_bytes() const noexcept { return segments_.releasing_bytes(); }

  // Blocks, for backends.

  /// Makes a new descriptor.
  ///   Requires:  a preceding reserve_blocks()
  [[nodiscard]] block& new_block() noexcept { return *blocks_.take(); }
  void erase_block(block& b) noexcept { blocks_.give_back(&b); }

  /// Removes `size` bytes at `offset` in a free block from the free blocks: takes the whole block, or splits the bytes
  /// off it.
  [[nodiscard, gnu::always_inline]] block& extract(block& from, std::size_t offset,
                                                   std::size_t size) noexcept {
    if constexpr (Traits::has_ranges || Traits::places_blocks) {
      if (offset > 0 && offset + size < from.size) {  // from the middle
        block& above = split(from, from.size - offset, false);
        above.list->template insert<order>(above);
        if constexpr (Traits::has_ranges) above.free_since = from.free_since;
        return split(above, size, true);
      }
    }
    if (size < from.size) return split(from, size, offset == 0);
    from.list->template erase<order>(from);
    return from;
  }
  /// Splits `size` bytes off the low or the high end of a free block. The rest stays free.
  ///   Requires:  a preceding reserve_blocks()
  ///   Requires:  size < rest.size
  [[nodiscard, gnu::always_inline]] block& split(block& rest, std::size_t size, bool low_end) noexcept {
    block& part = *blocks_.take();
    free_list& list = *rest.list;
    count_in(list, 1);
    list.template begin_resize<order>(rest);
    rest.size -= size;
    part.address = rest.address;
    if (low_end) {
      rest.address += size;
      part.link(*rest.prev, rest);
    } else {
      part.address += rest.size;
      part.link(rest, *rest.next);
    }
    part.size = size;
    part.list = &list;
    if constexpr (numbers_blocks) part.segment_number = rest.segment_number;
    return part;
  }
  /// Inserts a block into the free blocks, and coalesces it with its free neighbours.
  [[gnu::always_inline]] void make_free(block& freed) noexcept {
    if (may_coalesce(*freed.prev, freed)) return coalesce_down(freed);
    if (may_coalesce(*freed.next, freed))
      return coalesce(*freed.next, freed.address, freed, freed.next->size, 1);
    freed.list->template insert<order>(freed);
    if (!mark_idle(freed)) count_split(freed.list->where.pool, 1, freed.size);
  }
  /// Starts the age of a free block that can go back to the device as a whole.
  ///   Returns:  whether it can go back
  [[nodiscard, gnu::always_inline]] bool mark_idle(block& free) noexcept {
    if constexpr (Traits::has_ranges) {
      free.free_since = static_cast<std::uint32_t>(ticks_of(*free.list->where.clock));
      return true;
    }
    if (free.is_split()) return false;
    segment_of(free).idle_since = ticks_of(*free.list->where.clock);
    return true;
  }

  /// If streams share blocks, a free list counts its blocks.
  static void count_in(free_list& list, int more) noexcept {
    if constexpr (Traits::reuses_across_streams) list.users += static_cast<std::size_t>(more);
  }

  // Idle memory.

  /// The present time of the clock of ages. Searches have no common time: each pool counts its own.
  [[nodiscard]] static time now() noexcept {
    if constexpr (has_clock) {
      return Traits::clock::now();
    } else {
      return {};
    }
  }
  /// The ticks since a segment became idle. In a range: since the block became free. With a clock, a block that
  /// was coalesced has the mean age of its bytes.
  [[nodiscard]] static std::uint64_t age(const block& idle, time at = now()) noexcept {
    const std::uint64_t ticks = ticks_of(*idle.list->where.clock, at);
    const std::uint64_t max = ticks - idle.list->where.clock->restarted;
    std::uint64_t age = 0;
    if constexpr (Traits::has_ranges) {
      age = static_cast<std::uint32_t>(ticks) - idle.free_since;
    } else {
      age = ticks - segment_of(idle).idle_since;
    }
    return age < max ? age : max;
  }
  /// Sets what an eviction policy may know about a whole free segment or, in a range, about a free block.
  void describe(const block& idle, auto& to) const noexcept {
    to.stream = idle.list->key;
    to.pool = idle.list->where.pool;
    if constexpr (keeps_history) {
      const block::segment_history& history = segment_of(idle).history;
      to.reuses = history.uses > 0 ? history.uses - 1 : 0;
      to.acquire_ticks = history.acquire_ticks;
    }
    if constexpr (measures_calls) to.release_ticks = releases_[1] > 0 ? releases_[0] / releases_[1] : 0;
  }
  /// Restarts every age.
  void reset_decay() noexcept {
    for_each_group([](group& in) {
      for (search_clock& clock : in.clocks) clock.restarted = ticks_of(clock);
    });
  }
  /// Notes that ages do not grow from now on. Until resume_decay(), they are not to be asked.
  void stop_decay() noexcept {
    for_each_group([](group& in) {
      for (search_clock& clock : in.clocks) clock.stopped = ticks_of(clock);
    });
  }
  /// Lets the ages of the allocator's own group grow again from what they were when they stopped. The age of memory that
  /// became idle since then begins.
  ///   Cost:  linear in the free blocks
  void resume_decay() noexcept {
    const time at = now();
    for_each_idle([at](block& idle) {
      const search_clock& clock = *idle.list->where.clock;
      const std::uint64_t ticks = ticks_of(clock, at);
      const std::uint64_t since = ticks - age(idle, at);
      const std::uint64_t resumed = since < clock.stopped ? since + (ticks - clock.stopped) : ticks;
      if constexpr (Traits::has_ranges) {
        idle.free_since = static_cast<std::uint32_t>(resumed);
      } else {
        segment_of(idle).idle_since = resumed;
      }
      return false;
    });
    for (search_clock& clock : own_.clocks) {
      if (clock.restarted < clock.stopped) clock.restarted += ticks_of(clock, at) - clock.stopped;
    }
  }
  /// Calls f(block&) for each free block of the allocator's own group that has at least `min_size` bytes and is a
  /// whole segment. In ranges, calls it for every free block. Visits the pools from last to first, the lists of
  /// a pool by stream, and the blocks in list order.
  ///
  /// f returns true if it tried to release the block. During that call, blocks may come and go; new blocks do
  /// not prolong the walk.
  template <typename F>
  void for_each_idle(F f, std::size_t min_size = min_alignment) {
    std::size_t tries = max_releases();
    for (std::size_t pool = Traits::pools; pool-- > 0 && tries > 0;)
      walk_idle_of(own_.lists[pool], min_size, tries, f);
  }
  /// Does the same for any group, but visits its pools from first to last. It must not be erased during the calls.
  template <typename F>
  void for_each_idle_of(group& in, F f, std::size_t min_size = min_alignment) {
    std::size_t tries = max_releases();
    for (std::size_t pool = 0; pool < Traits::pools && tries > 0; ++pool)
      walk_idle_of(in.lists[pool], min_size, tries, f);
  }
  /// Does the same for the allocator's own group, then for each other group whose idle memory may go back.
  template <typename F>
  void for_each_releasable(F f, std::size_t min_size = min_alignment) {
    for_each_idle(f, min_size);
    extensions().for_each_group([&](group& in) {
      if (may_release(in)) for_each_idle_of(in, f, min_size);
    });
  }

  // Numbers of bytes.

  [[nodiscard]] usage usage_under(std::size_t limit) const noexcept {
    const std::size_t capacity = provider_.capacity();
    usage now = counters_.current_usage();
    now.limit = limit < capacity ? limit : capacity;
    now.has_limit = limit != unlimited;
    return now;
  }
  /// Reserved bytes without the segments that the device is being asked to take back.
  [[nodiscard]] std::size_t reserved_after_releases() const noexcept {
    return counters_.reserved() - releasing_bytes();
  }
  /// Whether `bytes` more would exceed `limit`, or a limit that the provider knows. Segments that the device
  /// is being asked for count as reserved.
  [[nodiscard]] bool would_exceed_limit(std::size_t limit, std::size_t bytes) const noexcept {
    if (saturating_add(saturating_add(counters_.reserved(), requested_from_device_), bytes) > limit)
      return true;
    if constexpr (detail::limited_provider<Provider>) return provider_.would_exceed_limit(bytes);
    return false;
  }
  /// Frees the host memory of unused metadata, including streams without segments.
  [[gnu::cold]] void shrink() noexcept {
    for_each_group([](group& in) {
      for (free_list_map& of_pool : in.lists) of_pool.erase_unused();
    });
    extensions().erase_unused();
    blocks_.purge();
    live_.shrink_to_fit();
    segments_.shrink();
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    std::size_t bytes = blocks_.metadata_bytes() + segments_.metadata_bytes() + live_.metadata_bytes();
    for_each_group([&bytes](const group& in) {
      if (in.is_private()) bytes += sizeof(group);
      for (const free_list_map& of_pool : in.lists) bytes += of_pool.metadata_bytes();
    });
    return bytes + extensions().metadata_bytes() + pending_.metadata_bytes();
  }

 private:
  template <typename Split>
  [[nodiscard, gnu::noinline]] static block* first_by_policy(free_list& list, std::size_t size,
                                                             const Split& split) noexcept {
    ++list.where.clock->searches;
    list.template flush<order>();
    block* first = nullptr;
    for (block* b = list.template best_fit<order>(size); b != nullptr; b = list.template after<order>(*b)) {
      if (!split.may_serve(size, b->size)) continue;
      const wanted_block wanted{size, list.where.pool, list.key};
      if (first == nullptr || split.precedes(view_of(*b), view_of(*first), wanted)) first = b;
    }
    return first;
  }
  /// Takes memory for a group from an extension or the provider. Returns null if both refuse.
  [[nodiscard]] void* take_memory(group& in, std::size_t bytes, const page_order& kinds) noexcept {
    void* memory = nullptr;
    if (is_extended && extensions().acquire(in, bytes, memory)) return memory;
    for (const page_kind *kind = kinds.begin(), *end = kinds.end(); kind != end && memory == nullptr;
         ++kind) {
      if constexpr (provider::paged_provider<Provider>) {
        memory = provider_.acquire(bytes, *kind);
      } else {
        memory = provider_.acquire(bytes);
      }
    }
    return memory;
  }
  /// Releases a segment of a group to an extension or the provider.
  [[nodiscard]] bool give_back(group& of, std::uintptr_t address, std::size_t bytes) noexcept {
    void* const memory = reinterpret_cast<void*>(address);
    bool works = false;
    if (is_extended && extensions().release(of, memory, bytes, works)) return works;
    return provider_.release(memory, bytes);
  }

  static constexpr bool numbers_blocks =
      !Traits::has_ranges &&
      (Traits::order == free_order::oldest_segment || Traits::order == free_order::by_policy);
  static constexpr bool keeps_history = Traits::counts_reuses || measures_calls;
  static_assert(!keeps_history || !Traits::has_ranges, "a range has no history of its own");

  /// The clock that measures calls of the device, or 0.
  [[nodiscard]] std::uint64_t call_ticks() const noexcept {
    if constexpr (measures_calls) return Traits::call_clock::now(provider_);
    return 0;
  }

  // If coalescing restarted the time of a range's large free block, a small block freed beside it now and then
  // would keep it for ever. Searches are restarted, as in PyTorch.
  static constexpr bool mixes_ages = Traits::has_ranges && has_clock;

  /// The ticks of the clock of ages, in a pool.
  [[nodiscard]] static std::uint64_t ticks_of(const search_clock& pool, time at = now()) noexcept {
    if constexpr (has_clock) {
      return at;
    } else {
      return pool.searches;
    }
  }

  /// A walk ends after this number of releases.
  [[nodiscard]] std::size_t max_releases() const noexcept {
    return Traits::has_ranges ? blocks_.in_use() : segments_.count();
  }
  template <typename F>
  static void walk_idle_of(free_list_map& lists, std::size_t min_size, std::size_t& tries, F& f) {
    for (free_list* list = lists.first(); list != nullptr; list = list->next) {
      if (!walk_idle<order, Traits::has_ranges>(*list, min_size, tries, block_function(f))) return;
    }
  }

  void count_split(std::size_t pool, int count, std::size_t bytes) noexcept {
    if constexpr (!Traits::has_ranges) counters_.inactive_split_grew(pool, count, bytes);
  }
  /// Counts the free blocks that allocate() splits off.
  void count_split_off(const block& from, std::size_t size, std::size_t offset) noexcept {
    if constexpr (Traits::has_ranges) return;
    const std::size_t pool = from.list->where.pool;
    const std::size_t rest = from.size - size;
    const bool in_middle = Traits::places_blocks && offset > 0 && offset < rest;
    if (!from.is_split()) {
      if (rest > 0) counters_.inactive_split_grew(pool, in_middle ? 2 : 1, rest);
      return;
    }
    if (in_middle) counters_.inactive_split_grew(pool, 1, 0);
    counters_.inactive_split_shrank(pool, rest == 0, size);
  }

  /// In a range, with a clock: gives a free block of `bytes` bytes the mean age of its bytes and of others.
  static void mix_ages(block& free, std::size_t bytes, std::size_t other_bytes, std::uint64_t other_age,
                       time at) noexcept {
    const auto own = static_cast<double>(age(free, at)) * static_cast<double>(bytes);
    const auto other = static_cast<double>(other_age) * static_cast<double>(other_bytes);
    const double mean = (own + other) / static_cast<double>(bytes + other_bytes);
    // Rounded up as often as the fraction says. Else each small block would take a tick from a large one.
    const std::uint64_t mixed = free.list->where.clock->searches * 0x9E3779B97F4A7C15u;
    const double carry = static_cast<double>(mixed >> 32) / 4294967296.0;
    const auto rounded = static_cast<std::uint64_t>(mean + carry);
    free.free_since = static_cast<std::uint32_t>(ticks_of(*free.list->where.clock, at) - rounded);
  }

  [[nodiscard, gnu::always_inline]] static bool may_coalesce(const block& neighbour,
                                                             const block& freed) noexcept {
    return neighbour.is_free() && (!Traits::reuses_across_streams || neighbour.list == freed.list);
  }
  [[gnu::noinline]] void coalesce_down(block& freed) noexcept {
    block& low = *freed.prev;
    block& high = *freed.next;
    std::size_t before = low.size;
    int joined = 1;
    if (may_coalesce(high, freed)) {
      if constexpr (mixes_ages) {
        const time at = now();
        mix_ages(low, low.size, high.size, age(high, at), at);
      }
      before += high.size;
      joined = 2;
      high.list->template erase<order>(high);
      count_in(*high.list, -1);
      high.unlink();
      blocks_.give_back(&high);
    }
    coalesce(low, low.address, freed, before, joined);
  }
  /// Extends a free block by a freed neighbour; the block then begins at `address`. `joined` free blocks of
  /// `before` bytes become one block.
  [[gnu::always_inline]] void coalesce(block& into, std::uintptr_t address, block& freed, std::size_t before,
                                       int joined) noexcept {
    const std::size_t pool = into.list->where.pool;
    const std::size_t added = freed.size;
    if constexpr (mixes_ages) mix_ages(into, before, added, 0, now());
    into.list->template begin_resize<order>(into);
    into.address = address;
    into.size = before + added;
    count_in(*into.list, -1);
    if constexpr (Traits::reuses_across_streams) into.free_after = freed.free_after;  // the latest
    freed.unlink();
    blocks_.give_back(&freed);
    const bool is_idle = mixes_ages || mark_idle(into);
    if constexpr (!Traits::has_ranges) {
      if (is_idle) {
        counters_.inactive_split_shrank(pool, joined, before);
      } else {
        counters_.inactive_split_grew(pool, 1 - joined, added);
      }
    }
  }

  /// Makes a flagged block pending when it is freed, if streams are recorded for it. In any case, an oversize
  /// block is counted as freed.
  ///   Returns:  whether it is pending
  [[gnu::noinline]] bool defer_free(block& freed) noexcept {
    if (freed.status.flags.oversize) counters_.oversize_allocations.decrease(1);
    if (!freed.status.flags.has_recorded_streams) return false;
    if (!may_wait()) {
      pending_.set_aside(freed);
    } else if (!pending_.defer(freed, provider_)) {
      return false;
    }
    counters_.free_deferred(freed.list->where.pool, freed.size);
    return true;
  }
  [[gnu::noinline]] bool process_waiting() noexcept {
    bool any = false;
    const auto complete = [this, &any](block& b) {
      any = true;
      complete_pending(b);
    };
    pending_.defer_set_aside(provider_, complete);
    if constexpr (Traits::waits_for_events) {
      pending_.wait(provider_, [this](const block&) { return may_wait(); }, complete);
    } else {
      pending_.process(provider_, complete);
    }
    return any;
  }
  [[gnu::noinline]] void wait_for_pending_if(block_function which) noexcept {
    ++counters_.num_sync_all_streams;
    const auto complete = [this](block& b) { complete_pending(b); };
    pending_.defer_set_aside(provider_, complete);
    pending_.wait(provider_, which, complete);
  }
  [[gnu::noinline]] void complete_pending(block& pending) noexcept {
    counters_.free_completed(pending.list->where.pool, pending.request.bytes, pending.size);
    complete_free(pending);
  }
  [[gnu::always_inline]] void complete_free(block& freed) noexcept {
    report(action::free_completed, freed.address, freed.request.bytes, freed.size, *freed.list);
    mark_free_after_submitted(freed);
    if constexpr (extensions_type::watches_frees) {
      make_free_and_report(freed, extensions());
    } else {
      make_free(freed);
    }
  }
  // A template, because an explicit instantiation compiles every member, and `to` lacks on_free if no extension watches frees.
  [[gnu::noinline]] void make_free_and_report(block& freed, auto& to) noexcept {
    const std::uintptr_t address = freed.address;
    const std::size_t size = freed.size;
    block& into = may_coalesce(*freed.prev, freed)   ? *freed.prev
                  : may_coalesce(*freed.next, freed) ? *freed.next
                                                     : freed;
    make_free(freed);
    to.on_free(into, address - into.address, size);
    to.on_freed(into);
  }
  /// Adds to the bytes that the device is being asked for.
  void note_in_flight([[maybe_unused]] group& in, std::int64_t more) noexcept {
    requested_from_device_ += static_cast<std::size_t>(more);
    if constexpr (is_extended) extensions().on_in_flight(in, more);
  }
  /// Adds to the reserved bytes of a group, modulo 2^64.
  void change_reserved(group& of, std::size_t more) noexcept {
    of.reserved += more;
    if constexpr (is_extended) extensions().on_change(of);
  }

  Provider provider_;
  slab<block> blocks_;
  key_map<block> live_;
  segment_list segments_;
  group own_;
  std::uint32_t last_number_ = 0;
  [[TESSERA_NO_UNIQUE_ADDRESS]] counters_type counters_;
  [[TESSERA_NO_UNIQUE_ADDRESS]] extension_link<extensions_type> extensions_;
  std::size_t requested_from_device_ = 0;
  const bool releases_in_captures_;
  [[TESSERA_NO_UNIQUE_ADDRESS]] std::array<std::uint64_t, measures_calls ? 2 : 0>
      releases_{};  // their ticks, their number
  [[TESSERA_NO_UNIQUE_ADDRESS]] pending_frees<Provider, Traits::uses_events> pending_;
};

}  // namespace tessera::inline v0_1::detail
