// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <type_traits>
#include <utility>

#include <tessera/detail/backends/mapped_ranges.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list_map.hpp>
#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/detail/extensions/host_copies.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_store.hpp>

// The results of calls that an allocator lacks. They are incomplete types, as in private_pools.hpp.

namespace tessera::inline v0_1::extension::missing {

struct sleep_needs_a_recipe_that_maps_memory_into_ranges_such_as_stitched;

}  // namespace tessera::inline v0_1::extension::missing

namespace tessera::inline v0_1::extension {

/// The result of a call that puts memory to sleep or wakes it. After a failure, the pools sleep or are awake as before.
struct [[nodiscard]] sleep_result : outcome {
  std::size_t bytes = 0;    ///< bytes under live blocks that went back to the device, or came from it
  std::size_t missing = 0;  ///< bytes that the device lacked for a wake
  std::size_t kept = 0;     ///< bytes that stay mapped during a sleep, because they are registered or faulty
};

/// A sleep or wake that worked, for front ends that record requests. It is of `pool` if `is_one`, else of all pools.
struct sleep_change {
  using extension = struct sleep_mode;
  bool is_wake;  ///< otherwise it fell asleep
  bool is_one;
  pool_id pool;
  sleep_contents contents;  ///< what became of the contents, if it fell asleep
  stream_id copies;         ///< the stream of the copies
};

/// Puts memory to sleep: gives it back to the device under live blocks, which keep their addresses, and maps memory there
/// again later. The recipe maps memory into ranges, like stitched. If settings choose another recipe at run time, the calls
/// fail and say so.
///
/// Choose it to lend the device to another phase or program, for example between inference and training.
///
///     tessera::caching_allocator<tessera::recipe::stitched, tessera::provider::simulated_device, tessera::extension::sleep_mode> shared;
///     void* const weights = shared.allocate(1_GiB);
///     auto memory = shared.get<tessera::extension::sleep_mode>();
///     if (memory.sleep(tessera::extension::sleep_contents::save)) std::printf("the device is free\n");
///     (void)memory.wake();
///     shared.deallocate(weights);
///
///   Source:  vLLM's sleep mode, torch_memory_saver
struct sleep_mode {
  /// What a group of free lists has while it sleeps.
  struct in_group {
    bool is_asleep = false;  ///< whether its memory has gone back while its blocks keep their addresses
    /// Identifies the call that puts it to sleep or wakes it; null if none does.
    const void* changed_by = nullptr;
    [[nodiscard]] bool is_awake() const noexcept { return !is_asleep && changed_by == nullptr; }
  };
  using change = sleep_change;
  /// What a door calls: refers to the state of an allocator of any type.
  struct calls {
    template <typename Signature>
    using call = tessera::detail::function_ref<Signature>;
    template <typename State>
    explicit calls(State& s) noexcept
        : apply(s, [](State& to, const auto&... given) { return to.apply(given...); }),
          is_asleep(s, [](State& to, pool_id pool) { return to.is_asleep(pool); }) {}

    call<sleep_result(const sleep_change& what, const sleep_store& to) noexcept> apply;
    call<bool(pool_id pool) noexcept> is_asleep;
  };
  template <typename Core>
  class state;
  template <typename Allocator>
  class door;
};

/// The memory that sleeps in one allocator.
///
/// A part of memory that sleeps was a physical chunk. No chunk is registered at its address, so that eviction
/// and stitching leave it alone.
template <typename Core>
class sleep_mode::state : public tessera::detail::extension_defaults {
  using access = tessera::detail::core_access;
  using block = tessera::detail::block;
  using segment = tessera::detail::segment;
  using group = typename Core::group;
  using allocator = typename Core::allocator;
  using manager_type = typename Core::manager;
  using provider_type = typename Core::provider;
  using ranges_type = tessera::detail::mapped_ranges<manager_type>;
  using chunk = typename ranges_type::chunk;
  static constexpr bool can_copy = provider::copying_provider<provider_type>;

  /// Selects the groups that a call puts to sleep or wakes.
  struct changed_groups {
    const void* by;
    [[nodiscard]] bool operator()(const group& g) const noexcept { return g.changed_by == by; }
  };

 public:
  state(allocator& in, const sleep_mode&) noexcept : in_(in) {}
  state& operator=(state&&) = delete;
  ~state() { erase_all(parts_); }

  // Calls of the door.

  sleep_result apply(const sleep_change& what, const sleep_store& to) noexcept {
    const group* const only = what.is_one ? access::extensions(in_).find_group(what.pool) : nullptr;
    if (what.is_one) {
      if (only == nullptr) return failed("no such pool exists");
      if (only->is_asleep != what.is_wake)
        return failed(what.is_wake ? "the pool does not sleep" : "the pool sleeps");
    }
    return what.is_wake ? wake_up(only, what.copies) : fall_asleep(only, to, what.copies);
  }
  [[nodiscard]] bool is_asleep(pool_id pool) const noexcept {
    const group* const found = access::extensions(in_).find_group(pool);
    return found != nullptr && found->is_asleep;
  }

  // Questions of the core.

  [[nodiscard]] static const char* why_unserved(const group& g) noexcept {
    return g.is_awake() ? nullptr : "the pool sleeps; wake it first";
  }
  [[nodiscard]] static bool has_memory(const group& g) noexcept { return !g.is_asleep; }
  [[nodiscard]] static bool may_reuse(const block& live) noexcept { return group_of(live).is_awake(); }
  [[nodiscard]] static const char* why_unusable(const block& live) noexcept {
    return group_of(live).is_awake() ? nullptr : "the pool of the block sleeps; wake it first";
  }
  [[nodiscard]] static const char* why_not_checkpointable(const group& g) noexcept {
    if (g.is_asleep) return "the pool sleeps";
    return g.is_awake() ? nullptr : "another call puts the pool to sleep or wakes it";
  }
  void check_thread() const noexcept {
    calls_.check_thread("a store of contents must not use the allocator that sleeps");
  }
  /// Ends copies that a failed call left, while their memory exists.
  void on_end() noexcept { (void)settle(); }
  void explain(auto& numbers) const noexcept {
    if (!manager().group_for(numbers.stream).is_awake())
      numbers.refuse(refusal("the pool that serves them sleeps, so wake it first"));
  }
  /// Forgets the memory that lies in free blocks.
  void on_trim() noexcept {
    drop_free([this](const group& g) { return manager().may_release(g); });
  }
  [[nodiscard]] const char* audit() const noexcept {
    const auto sleeps = [](const group& g) { return g.is_asleep; };
    return manager().own().is_awake() && has_lent(sleeps)
               ? "what a pool lends sleeps only with the default pools"
               : nullptr;
  }

 private:
  static constexpr const char* lends =
      "a live block of the pool serves a request of the default pools: free it, or put all pools to sleep";
  static constexpr const char* lent_sleeps =
      "a pool that sleeps has a live block of the default pools: wake that pool first, or all pools";
  static constexpr const char* may_not_wait =
      "an extension forbids waiting for the device, for example while a graph is recorded";
  /// Calls f(selects) while the selected groups serve no requests: those that are asleep or not, as `asleep`
  /// says, and no other call changes. With `only`, no other group is selected.
  template <typename F>
  sleep_result change(const group* only, bool asleep, F f) noexcept {
    if (!manager().may_wait()) return failed(may_not_wait);
    bool is_changing = false;
    manager().for_each_group([&](const auto& g) {
      is_changing = is_changing || (g.changed_by != nullptr && (only == nullptr || only == &g));
    });
    if (is_changing) return failed("another call puts the pool to sleep or wakes it");
    const char mark = 0;
    const changed_groups selects{&mark};
    manager().for_each_group([&](auto& g) {
      if (g.changed_by == nullptr && g.is_asleep == asleep && (only == nullptr || only == &g))
        set_sleep(g, asleep, &mark);
    });
    const sleep_result result = f(selects);
    manager().for_each_group([&](auto& g) {
      if (selects(g)) set_sleep(g, asleep != static_cast<bool>(result), nullptr);
    });
    return result;
  }
  /// Waits for the work of the streams of these groups, and of the streams recorded for their live blocks.
  ///   Returns:  false if the device failed, or if it must not be waited for any more
  ///   Cost:     linear in the blocks
  [[nodiscard]] bool finish_work_of(changed_groups selects) noexcept {
    bool works = true;
    const auto finish = [&](stream_id s) {
      return manager().may_wait() && manager().provider().synchronize(s);
    };
    manager().for_each_list([&](const auto& list) {
      if (list.users > 0 && selects(Core::manager::group_of(list))) works = works && finish(list.key);
    });
    manager().for_each_block([&](const block& b) {
      if (selects(Core::manager::group_of(*b.list)))
        works = works && manager().pending().for_each_use(b, finish);
    });
    return works;
  }
  sleep_result fall_asleep(const group* only, sleep_store to, stream_id copies) noexcept {
    return change(only, false, [&](changed_groups selects) -> sleep_result {
      if (!selects(manager().own()) && has_lent(selects)) return failed(lends);
      manager().wait_for_pending_of(selects);
      const bool works = finish_work_of(selects);
      // Other threads may have run during these waits.
      if (!manager().may_wait()) return failed(may_not_wait);
      if (!works) return failed("the device failed to finish the work of a stream");
      manager().for_each_group([&](group& g) {
        if (!selects(g)) return;
        manager().for_each_idle_of(
            g, [this](block& idle) { return backend().releasable(idle) > 0 && backend().release(idle) > 0; });
      });
      return calls_.call([&] { return give_back(selects, to, copies); });
    });
  }
  sleep_result wake_up(const group* only, stream_id copies) noexcept {
    return change(only, true, [&](changed_groups selects) -> sleep_result {
      if (selects(manager().own()) &&
          has_lent([selects](const group& g) { return g.is_asleep && !selects(g); }))
        return failed(lent_sleeps);
      if (const sleep_result refused = ask_to_wake(selects); !refused) return refused;
      const auto attempt = [&] { return take_back(selects, copies); };
      sleep_result result = calls_.call(attempt);
      if (result.missing > 0) {
        (void)access::run_callbacks(in_);
        if (!manager().may_wait()) return failed(may_not_wait, result.missing);
        access::empty_cache(in_);
        if (!manager().may_wait()) return failed(may_not_wait, result.missing);
        result = calls_.call(attempt);
      }
      access::extensions(in_).on_rearrange();
      return result;
    });
  }
  /// Says why other extensions do not let the selected groups have their memory, if they do not.
  [[nodiscard]] sleep_result ask_to_wake(changed_groups selects) noexcept {
    sleep_result result;
    auto& others = access::extensions(in_);
    drop_free(selects);
    manager().for_each_group([&](group& g) {
      if (!selects(g)) return;
      others.on_in_flight(g, static_cast<std::int64_t>(bytes_of(g)));
      if (result) result.why = others.why_over_quota(g, result.missing);
    });
    manager().for_each_group([&](group& g) {
      if (selects(g)) others.on_in_flight(g, -static_cast<std::int64_t>(bytes_of(g)));
    });
    return result;
  }

  [[nodiscard]] static sleep_result failed(const char* why, std::size_t missing = 0) noexcept {
    return {{why}, 0, missing};
  }
  [[nodiscard]] manager_type& manager() const noexcept { return access::manager(in_); }
  [[nodiscard]] auto& backend() const noexcept { return access::backend(in_); }
  [[nodiscard]] ranges_type& ranges() const noexcept { return backend().ranges(); }
  [[gnu::cold]] void set_sleep(group& g, bool is_asleep, const void* changed_by) noexcept {
    const bool was_awake = g.is_awake();
    g.visitors += (changed_by != nullptr ? 1u : 0u) - (g.changed_by != nullptr ? 1u : 0u);
    g.is_asleep = is_asleep;
    g.changed_by = changed_by;
    if (!g.is_private())
      access::extensions(in_).note_special_case(static_cast<int>(was_awake) - static_cast<int>(g.is_awake()));
  }

  // Memory.

  /// Gives back the memory of the selected groups.
  ///   Requires:  no work uses the memory, and no request adds memory to these groups
  ///   Returns:   a failure if saving failed; then nothing has changed. Memory that the device fails to unmap
  ///              stays mapped
  [[nodiscard]] sleep_result give_back(changed_groups selects, sleep_store to, stream_id stream) noexcept {
    if (!can_copy && to.keeps())
      return failed("the provider is no copying_provider, so it cannot save contents");
    if (!settle()) return failed(device_fails);
    part* planned = nullptr;
    sleep_result result;
    const char* why = plan(selects, to, planned, result.kept);
    if constexpr (can_copy) {
      if (why == nullptr && to.keeps()) {
        copies_.begin(stream);
        bool works = true;
        for (const part* p = planned; p != nullptr && works; p = p->next)
          works = copies_.to_host(manager().provider(), p->store, p->piece, p->address, p->bytes);
        if (!copies_.finish(manager().provider()) || !works) why = why_copy_failed();
      }
    }
    if (why != nullptr) {
      copying_parts_ = planned;
      (void)settle();
      return failed(why);
    }
    part** end = &parts_;
    while (*end != nullptr) end = &(*end)->next;
    for (part* following = nullptr; planned != nullptr; planned = following) {
      following = std::exchange(planned->next, nullptr);
      if (!give_back(*planned)) {
        erase(planned);
        continue;
      }
      result.bytes += planned->bytes;
      *end = planned;
      end = &planned->next;
    }
    return result;
  }

  /// Maps memory again for the selected groups, all of it or none. May be repeated after a failure.
  [[nodiscard]] sleep_result take_back(changed_groups selects, stream_id stream) noexcept {
    if (!settle()) return failed(device_fails);
    provider_type& device = manager().provider();
    ranges().chunks().retry_orphaned(device);
    drop_free(selects);
    chunk* fresh = nullptr;
    sleep_result result = create(selects, fresh);
    if (!result) return result;
    // All memory exists, so no kind of page is asked for.
    if (!ranges().chunks().map_all(device, fresh, {})) return failed("the device failed to map memory");
    if constexpr (can_copy) {
      copies_.begin(stream);
      bool works = true;
      for_each_part(selects, [&](part& s) {
        if (works && s.store.keeps()) works = copies_.to_device(device, s.address, s.store, s.piece, s.bytes);
      });
      if (!copies_.finish(device) || !works) {
        copying_chunks_ = fresh;
        const char* const why = why_copy_failed();
        (void)settle();
        return failed(why);
      }
    }
    for (part** at = &parts_; *at != nullptr;) {
      part* const s = *at;
      if (!selects(group_of(*s))) {
        at = &s->next;
        continue;
      }
      manager().counters().backing_lost(-static_cast<std::int64_t>(s->bytes));
      manager().count_mapped(*s->range->list, static_cast<std::int64_t>(s->bytes));
      manager().report(action::wake, s->address, s->bytes, s->bytes, *s->range->list);
      *at = s->next;
      erase(s);
    }
    return result;
  }
  /// Bytes of a group that went back.
  [[nodiscard]] std::size_t bytes_of(const group& of) const noexcept {
    std::size_t bytes = 0;
    for (const part* s = parts_; s != nullptr; s = s->next) bytes += &group_of(*s) == &of ? s->bytes : 0;
    return bytes;
  }
  /// Whether a live block of a group for which which(group) is true serves a request of the default pools.
  ///   Cost:  linear in the blocks
  template <typename Which>
  [[nodiscard]] bool has_lent(Which which) const noexcept {
    bool any = false;
    if constexpr (allocator::template has<private_pools>) {
      manager().for_each_block([&](const block& b) {
        const group& in = group_of(b);
        any = any || (in.has_lent && which(in) && tessera::detail::is_lent(b));
      });
    }
    return any;
  }
  /// Erases the sleeping parts that lie wholly in free blocks of the groups for which selects(group) is true.
  /// Their addresses become unmapped.
  template <typename Selects>
  void drop_free(Selects selects) noexcept {
    const segment* range = nullptr;
    block* b = nullptr;
    for (part** at = &parts_; *at != nullptr;) {
      part& s = **at;
      if (selects(group_of(s))) {
        if (range != s.range) b = &s.range->first();
        range = s.range;
        while (b->end() <= s.address) b = b->next;
        if (b->is_free() && b->address <= s.address && s.address + s.bytes <= b->end() &&
            manager().may_unmap(s.address, s.bytes) && manager().reserve_blocks()) {
          b = &ranges().mark_unmapped(*b, s.address, s.bytes);
          manager().counters().backing_lost(-static_cast<std::int64_t>(s.bytes));
          manager().report(action::segment_unmap, s.address, s.bytes, s.bytes, *b->list);
          *at = s.next;
          erase(&s);
          if (!b->is_split()) {
            ranges().unreserve_range(*b);
            range = nullptr;
          }
          continue;
        }
      }
      at = &s.next;
    }
  }

  using action = typename manager_type::action;
  static constexpr const char* device_fails = "the device cannot say whether earlier copies are done";
  static constexpr const char* copy_fails = "a copy between device and host memory failed";
  static constexpr const char* no_host_memory = "host memory ran out";

  /// The addresses of a chunk that went back.
  struct part {
    std::uintptr_t address;
    std::size_t bytes;
    segment* range;       ///< the range that it lies in
    sleep_store store;    ///< has its contents
    std::uint64_t piece;  ///< the number of the contents there
    part* next;
  };

  [[nodiscard]] static const group& group_of(const part& s) noexcept {
    return manager_type::group_of(*s.range->list);
  }
  [[nodiscard]] static const group& group_of(const block& b) noexcept {
    return manager_type::group_of(*b.list);
  }
  static void erase(part* s) noexcept {
    if (s->store.keeps()) s->store.release(s->piece, s->bytes);
    delete s;
  }
  static void erase_all(part*& first) noexcept {
    while (first != nullptr) erase(std::exchange(first, first->next));
  }
  template <typename F>
  void for_each_part(changed_groups selects, F f) noexcept {
    for (part* s = parts_; s != nullptr; s = s->next) {
      if (selects(group_of(*s))) f(*s);
    }
  }

  /// Ends what a failed call left, once no copy is running any more.
  [[nodiscard]] bool settle() noexcept {
    if constexpr (can_copy) {
      if (!copies_.is_finished() && !copies_.finish(manager().provider())) return false;
    }
    erase_all(copying_parts_);
    ranges().chunks().destroy_all(manager().provider(), std::exchange(copying_chunks_, nullptr));
    return true;
  }
  [[nodiscard]] const char* why_copy_failed() const noexcept {
    return copies_.why() != nullptr ? copies_.why() : copy_fails;
  }
  /// Lists the chunks of the selected groups, in the order of lists, ranges and addresses. Reserves room
  /// for the contents that are to be saved. Adds the bytes that extensions keep mapped to `kept`. Returns null, or why it
  /// failed.
  [[nodiscard]] const char* plan(changed_groups selects, sleep_store to, part*& first,
                                 std::size_t& kept) noexcept {
    const char* why = nullptr;
    part** last = &first;
    ranges().for_each_range([&](segment& range) {
      if (!selects(manager_type::group_of(*range.list))) return;
      access::map(in_).for_each_unit_of(range.first(), [&](const tessera::detail::heap_unit& c) {
        if (why != nullptr) return;
        if (!access::extensions(in_).may_sleep(c.address, c.bytes)) {
          kept += c.bytes;
          return;
        }
        part* const fresh = new (std::nothrow) part{c.address, c.bytes, &range, to, 0, nullptr};
        why = fresh == nullptr ? no_host_memory
              : to.keeps()     ? to.reserve(c.bytes, fresh->piece).why
                               : nullptr;
        if (why != nullptr) return delete fresh;
        *last = fresh;
        last = &fresh->next;
      });
    });
    return why;
  }
  /// Unmaps and destroys the chunk of a part. Returns false if the device failed to unmap it.
  [[nodiscard]] bool give_back(const part& s) noexcept {
    auto& chunks = ranges().chunks();
    chunk& c = *chunks.find(s.address);
    manager().report(action::sleep, s.address, s.bytes, s.bytes, *s.range->list);
    if (!chunks.unmap(manager().provider(), c)) {
      manager().report(action::wake, s.address, s.bytes, s.bytes, *s.range->list);
      return false;
    }
    chunks.destroy(manager().provider(), c);
    manager().count_mapped(*s.range->list, -static_cast<std::int64_t>(s.bytes));
    manager().counters().backing_lost(static_cast<std::int64_t>(s.bytes));
    return true;
  }
  /// Creates the memory of the selected parts, in their order. On failure, destroys it and counts what is
  /// missing.
  [[nodiscard]] sleep_result create(changed_groups selects, chunk*& first) noexcept {
    const auto& p = access::policies(in_);
    provider_type& device = manager().provider();
    sleep_result result;
    std::size_t total = 0;
    for_each_part(selects, [&total](const part& s) { total += s.bytes; });
    const std::size_t limit = p.growth.limit.on(device.capacity());
    if (total > 0 && manager().would_exceed_limit(limit, total)) {
      const std::size_t reserved = manager().counters().reserved();
      const std::size_t room = limit > reserved ? limit - reserved : 0;
      return failed("the limit of the allocator leaves too little", room < total ? total - room : total);
    }
    chunk** last = &first;
    for_each_part(selects, [&](const part& s) {
      if (!result) return;
      *last = ranges().chunks().plan(s.address, s.bytes);
      if (*last == nullptr) {
        result.why = no_host_memory;
      } else if (!ranges().chunks().create(device, **last, kinds_for(s))) {
        result.why = "the device has too little free memory";
      } else {
        result.bytes += s.bytes;
      }
      if (*last != nullptr) last = &(*last)->next;
    });
    if (result) return result;
    ranges().chunks().destroy_all(device, std::exchange(first, nullptr));
    std::size_t room = result.bytes;
    if constexpr (tessera::detail::measured_provider<provider_type>) {
      if (device.available() < total) room = device.available();
    }
    return failed(result.why, total - room);
  }
  /// The kinds of pages to ask for, without those that are too large for a part.
  [[nodiscard]] page_order kinds_for(const part& s) const noexcept {
    const auto& pages = access::policies(in_).pages;
    page_order usable{};
    for (const page_kind& kind : pages.backing(s.bytes)) {
      if (s.bytes % manager().provider().page_size(kind) == 0) usable.kinds[usable.count++] = kind;
    }
    return usable.count > 0 ? usable : pages.backing(s.bytes);
  }

  /// Replaces host_copies for a provider without copies.
  struct no_copies {
    static constexpr bool is_finished() noexcept { return true; }
  };

  allocator& in_;
  part* parts_ = nullptr;
  tessera::detail::user_calls calls_;  // the functions of stores
  // While copies may be running, their memory stays.
  part* copying_parts_ = nullptr;
  chunk* copying_chunks_ = nullptr;
  [[TESSERA_NO_UNIQUE_ADDRESS]]
  std::conditional_t<can_copy, tessera::detail::host_copies<provider_type, sleep_store>, no_copies> copies_;
};

/// No memory sleeps if the recipe maps none into ranges. The calls say so, because the recipe may be chosen at run time.
template <typename Core>
  requires(!Core::traits::has_ranges)
class sleep_mode::state<Core> : public tessera::detail::extension_defaults {
 public:
  state(typename Core::allocator&, const sleep_mode&) noexcept {}
  static sleep_result apply(const sleep_change&, const sleep_store&) noexcept {
    return {{"sleep needs a recipe that maps memory into ranges, such as stitched"}};
  }
  [[nodiscard]] static bool is_asleep(pool_id) noexcept { return false; }
};

/// What `allocator.get<sleep_mode>()` returns. Its calls take a private pool, or default_pools.
template <typename Allocator>
class sleep_mode::door {
 public:
  /// The argument of sleep(), for code that only has the type of a door.
  using contents_type = sleep_contents;
  /// What sleep() and wake() return. Incomplete if no recipe of the allocator maps memory into ranges: they do not compile then.
  /// Generic code asks with `requires`, or with `has_ranges` of the allocator; decltype of a call also works without ranges.
  using result_type =
      std::conditional_t<Allocator::has_ranges, sleep_result,
                         missing::sleep_needs_a_recipe_that_maps_memory_into_ranges_such_as_stitched>;
  explicit door(Allocator& in) noexcept : in_(&in) {}

  /// Puts the default pools and all private pools to sleep: gives back their memory, even under live blocks.
  /// Addresses and blocks stay. Registered memory stays mapped (registrations), and so do faulty chunks (faulty_memory). Until
  /// wake, the pools serve no requests, and record_stream refuses their blocks. Blocks can still be freed.
  ///
  /// First waits for the streams of these blocks, recorded ones too, and empties the cache of these pools.
  /// Contents are copied on the stream `copies` to where `to` says: nowhere, to pageable host memory
  /// (sleep_contents::save), or to an object that keeps them. Memory that the device fails to unmap stays mapped.
  ///   Requires:  no other work uses the memory. If streams share free lists (reuse_immediately), the caller
  ///              has waited for the streams.
  ///   Returns:   the bytes that went back under live blocks, or why the pools stay awake: a graph is being recorded, the
  ///              rule of sleep(pool) for `serves_on_oom`, host memory ran out, the device or the store failed, or
  ///              the provider cannot copy
  [[nodiscard]] result_type sleep(sleep_store to, stream_id copies = {}) noexcept {
    return change({false, false, {}, contents_of(to), copies}, to);
  }
  /// Puts one pool to sleep like sleep().
  ///
  ///   A pool with the option `serves_on_oom` does not sleep under what it lent: under a live block that serves
  ///   a request of the default pools, unless they fall asleep in the same call. They then do not wake before it.
  ///   Returns:  as sleep(); also fails if the pool does not exist or sleeps, or lent a live block
  [[nodiscard]] result_type sleep(pool_id pool, sleep_store to, stream_id copies = {}) noexcept {
    return change({false, true, pool, contents_of(to), copies}, to);
  }
  /// Wakes all pools that sleep: maps memory at their addresses and copies saved contents back. Wakes all of
  /// them or none. If memory is missing, first empties the cache as trim() does.
  ///   Returns:  the bytes that came from the device, or why nothing changed, and how many bytes are missing
  [[nodiscard]] result_type wake(stream_id copies = {}) noexcept {
    return change({true, false, {}, {}, copies});
  }
  /// Wakes one pool like wake().
  ///   Returns:  as wake(); also fails if the pool does not exist or does not sleep
  [[nodiscard]] result_type wake(pool_id pool, stream_id copies = {}) noexcept {
    return change({true, true, pool, {}, copies});
  }
  /// Whether a pool sleeps.
  [[nodiscard]] bool is_asleep(pool_id pool = {}) const noexcept {
    return in_->template visit_extension<sleep_mode>([=](const auto& s) { return s.is_asleep(pool); });
  }

 private:
  [[nodiscard]] static sleep_contents contents_of(const sleep_store& to) noexcept {
    return to.keeps() ? sleep_contents::save : sleep_contents::discard;
  }
  sleep_result change(const sleep_change& what, const sleep_store& to = sleep_contents::discard) noexcept {
    const sleep_result result =
        in_->template change_extension<sleep_mode>([&](auto& s) { return s.apply(what, to); });
    if (result) in_->note_change(what);
    return result;
  }

  typename tessera::detail::door_target<Allocator>::type in_;
};

}  // namespace tessera::inline v0_1::extension
