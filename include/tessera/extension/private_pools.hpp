// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <type_traits>
#include <utility>

#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list_map.hpp>
#include <tessera/detail/containers/containers.hpp>
#include <tessera/detail/containers/function_ref.hpp>
#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/policy/recovery.hpp>

namespace tessera::inline v0_1::detail {

/// Whether a block is live, and its private pool serves a request of the default pools.
[[nodiscard]] inline bool is_lent(const block& b) noexcept {
  return b.status.state == block::state::live_flagged && b.status.flags.is_lent;
}
inline void mark_lent(block& live) noexcept {
  block::flag_set marked = live.flags();
  marked.is_lent = true;
  live.set_flags(marked);
}

}  // namespace tessera::inline v0_1::detail

// The results of calls that an allocator lacks. They are incomplete types. So a call does not compile, `requires`
// says so, and the first line of the error says what is missing.

namespace tessera::inline v0_1::extension::missing {

struct a_pool_upstream_needs_a_recipe_that_acquires_segments;

}  // namespace tessera::inline v0_1::extension::missing

namespace tessera::inline v0_1::extension {

/// Selects the streams whose requests a scope directs to its private pool.
///
///     const tessera::extension::stream_filter first = tessera::stream_id{1};
///     const tessera::extension::stream_filter even{
///         [](void*, tessera::stream_id s) noexcept { return s.handle % 2 == 0; }, nullptr};
class stream_filter {
 public:
  /// A condition on streams. It gets the pointer that the program gave with it.
  using function = bool (*)(void* context, stream_id stream) noexcept;

  /// Selects every stream.
  constexpr stream_filter() noexcept = default;
  /// Selects one stream.
  constexpr explicit(false) stream_filter(stream_id stream) noexcept : only_(stream), is_one_(true) {}
  /// Selects the streams for which `condition(context, stream)` is true. It is called for each request while
  /// the scope is open, and must not use the allocator.
  constexpr stream_filter(function condition, void* context) noexcept
      : condition_(condition), context_(context) {}

  /// Selects every request that the calling thread makes. Close the scope before the thread ends: a later thread may count
  /// as this one.
  [[nodiscard]] static stream_filter of_this_thread() noexcept {
    static thread_local char mark;
    return {[](void* thread, stream_id) noexcept { return thread == &mark; }, &mark};
  }

  /// Whether the requests of a stream are selected. It calls the condition, if there is one.
  [[nodiscard]] bool selects(stream_id stream) const noexcept {
    if (condition_ != nullptr) return condition_(context_, stream);
    return !is_one_ || stream == only_;
  }
  /// Whether it selects every stream. A function may, too, but does not count.
  [[nodiscard]] constexpr bool selects_all() const noexcept { return condition_ == nullptr && !is_one_; }
  /// The stream that it selects if it was made from one; null otherwise.
  [[nodiscard]] constexpr const stream_id* only() const noexcept { return is_one_ ? &only_ : nullptr; }

 private:
  function condition_ = nullptr;
  void* context_ = nullptr;
  stream_id only_;
  bool is_one_ = false;
};

/// Options of a private pool.
///   Source:  PyTorch's MemPool, since version 2.8
struct pool_options {
  bool never_splits = false;  ///< a free block serves a request as a whole
  /// It lends: if growth fails, its free blocks serve requests of the default pools, before recovery releases memory. The
  /// pool keeps its memory while such a block is live. private_pools::door::lend and take_back change it later.
  bool serves_on_oom = false;
};

/// A reference to an object of any type that gives the segments of a private pool. It has the functions
/// `acquire` and `release` of a device_provider [tessera/provider/provider.hpp].
///
/// Choose it for memory that needs more than the allocator's provider does, for example registration with a
/// network.
///
///     struct registered_memory {
///       void* acquire(std::size_t bytes) noexcept;              // null if it fails
///       bool release(void* memory, std::size_t bytes) noexcept; // false if it fails
///     };
///
///   Requires:  the object outlives the allocator, and does not use it. `locked` keeps its mutex during the
///              calls. An object that several allocators or threads use is thread-safe.
///   Requires:  its segments overlap none of the provider's. Two simulated devices give the same addresses.
class pool_upstream {
 public:
  constexpr pool_upstream() noexcept = default;
  /// Refers to an object. Converts from any object with these two functions.
  template <typename Object>
    requires requires(Object& from, void* memory, std::size_t bytes) {
      { from.acquire(bytes) } noexcept -> std::same_as<void*>;
      { from.release(memory, bytes) } noexcept -> std::same_as<bool>;
    }
  constexpr explicit(false) pool_upstream(Object& from) noexcept
      : acquire(from, [](Object& in, auto... given) { return in.acquire(given...); }),
        release(from, [](Object& in, auto... given) { return in.release(given...); }) {}

  /// Whether it refers to an object.
  [[nodiscard]] constexpr explicit operator bool() const noexcept { return static_cast<bool>(acquire); }
  /// Calls the object's acquire. It must refer to one.
  tessera::detail::function_ref<void*(std::size_t bytes) noexcept> acquire;
  /// Calls the object's release. It must refer to one.
  tessera::detail::function_ref<bool(void* memory, std::size_t bytes) noexcept> release;
};

/// Says what else a scope changes, besides the pool of requests.
enum class scope_kind : unsigned char {
  /// While it is open, the device may capture a graph. The allocator then records no events, queries none and waits for
  /// none, so that frees with recorded streams wait; and no memory goes back to the device, but what growth could not map. With
  /// policy::release_in_captures, which pytorch<> has because PyTorch 2.6 decides so, recovery and eviction may release
  /// memory. If another thread trims, recovers or puts memory to sleep when the scope opens, that thread makes at most one
  /// more device call, and then stops.
  ///
  /// A recipe that reuses blocks across streams, such as cuda_async, still asks the device for the order of streams.
  /// cuda_device answers by recording and querying events, which CUDA may refuse during a capture in its global mode. So
  /// choose another recipe for captures there.
  capture,
  plain  ///< it changes nothing else; tenants of a device may keep such scopes open
};

/// The memory of a pool, in bytes.
struct pool_usage {
  std::size_t reserved = 0;        ///< what it has from the device
  std::size_t non_releasable = 0;  ///< of these, what emptying the cache does not give back
  /// Adds the memory of another pool, or of the same pool in another arena.
  pool_usage& operator+=(const pool_usage& other) noexcept {
    reserved += other.reserved;
    non_releasable += other.non_releasable;
    return *this;
  }
};

/// A block of a private pool that is not back yet: it serves a request of the default pools, or a stream still uses it.
struct lent_block {
  void* address = nullptr;  ///< of the first byte
  std::size_t bytes = 0;    ///< of the block, at least those of the request
  stream_id stream{};       ///< on which it was allocated
  bool is_pending = false;  ///< it was freed, and events of streams that use it have not completed
};

/// What take_back() found, or why it failed.
struct taken_back : outcome {
  std::size_t blocks = 0;  ///< that are not back yet
  std::size_t bytes = 0;   ///< of these blocks
};

/// A change of the private pools that worked, for front ends that record or plan requests.
struct pool_change {
  using extension = struct private_pools;
  /// The calls of the door that front ends record.
  enum class kind : unsigned char { created, retained, released, opened, closed, trimmed };
  kind what;                               ///< the call
  pool_id pool;                            ///< the pool of the call
  const stream_filter* streams = nullptr;  ///< if opened
  scope_kind scope{};                      ///< if opened
};

/// Private pools, each with free lists of its own, and scopes that direct requests to them.
///
/// Choose it for the memory of captured graphs, and for tenants of one device. private_pool and pool_scope, below, call
/// the door.
///
///     tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, tessera::extension::private_pools>
///         shared;
///     tessera::extension::private_pool graph_memory(shared);
///
///   Cost:    without an open scope, one test for each request
///   Source:  the private pools of PyTorch 2.6
struct private_pools {
  static constexpr bool spans_arenas = true;
  /// What a group of free lists has if it is a private pool.
  struct in_group {
    std::size_t uses = 0;
    bool is_open = false;      ///< whether a scope directs requests to it
    scope_kind kind{};         ///< of the scope
    stream_filter filter{};    ///< the streams of the scope
    std::uint64_t opened = 0;  ///< the number of the scope: the oldest has the lowest
    pool_options options{};
    bool has_lent = false;          ///< whether it ever lent a block
    pool_upstream source{};         ///< gives and takes back its segments; if empty, the provider does
    in_group* next = nullptr;       ///< the next private pool, in the order of their creation
    in_group* links[2] = {};        ///< in the tree of open scopes that select one stream
    in_group* next_wide = nullptr;  ///< the next younger open scope that may select several streams
    in_group* previous_wide = nullptr;
  };
  using change = pool_change;
  /// What a door calls: refers to the state of an allocator of any type.
  struct calls {
    template <typename Signature>
    using call = tessera::detail::function_ref<Signature>;
    template <typename State>
    explicit calls(State& s) noexcept
        : create(s, [](State& to, const auto&... given) { return to.create(given...); }),
          retain(s, [](State& to, const auto&... given) { return to.retain(given...); }),
          release(s, [](State& to, const auto&... given) { return to.release(given...); }),
          use_count(s, [](State& to, const auto&... given) { return to.use_count(given...); }),
          has(s, [](State& to, const auto&... given) { return to.has(given...); }),
          open(s, [](State& to, const auto&... given) { return to.open(given...); }),
          close(s, [](State& to, const auto&... given) { return to.close(given...); }),
          is_capturing(s, [](State& to) { return to.is_capturing(); }),
          usage_of(s, [](State& to, const auto&... given) { return to.usage_of(given...); }),
          lend(s, [](State& to, const auto&... given) { return to.lend(given...); }),
          take_back(s, [](State& to, const auto&... given) { return to.take_back(given...); }),
          trim(s, [](State& to, const auto&... given) { return to.trim(given...); }) {}

    call<outcome(pool_id name, pool_options options, const pool_upstream& source) noexcept> create;
    call<outcome(pool_id pool) noexcept> retain;
    call<outcome(pool_id pool) noexcept> release;
    call<std::size_t(pool_id pool) noexcept> use_count;
    call<bool(pool_id pool) noexcept> has;
    call<outcome(pool_id pool, const stream_filter& streams, scope_kind kind) noexcept> open;
    call<outcome(pool_id pool) noexcept> close;
    call<bool() noexcept> is_capturing;
    call<pool_usage(pool_id pool) noexcept> usage_of;
    call<outcome(pool_id pool) noexcept> lend;
    call<outcome(pool_id pool, call<void(const lent_block&)> f) noexcept> take_back;
    call<void(pool_id pool) noexcept> trim;
  };
  template <typename Core>
  class state;
  template <typename Allocator>
  class door;
};

/// The private pools of one allocator, and the open scopes.
template <typename Core>
class private_pools::state : public tessera::detail::extension_defaults {
  using access = tessera::detail::core_access;
  using block = tessera::detail::block;
  using group = typename Core::group;
  using allocator = typename Core::allocator;

 public:
  state(allocator& in, const private_pools&) noexcept : in_(in) {}
  state& operator=(state&&) = delete;
  ~state() {
    while (first_ != nullptr) delete to_group(std::exchange(first_, first_->next));
  }

  // Calls of the door.

  /// Creates a private pool with one use.
  [[nodiscard, gnu::cold]] outcome create(pool_id name, pool_options options,
                                          const pool_upstream& source) noexcept {
    if (source && allocator::has_ranges) return {"memory sources need a recipe that acquires segments"};
    auto* const fresh = by_number_.reserve_one() ? new (std::nothrow) group : nullptr;
    if (fresh == nullptr) return {"host memory ran out"};
    fresh->number = name.number;
    fresh->uses = 1;
    fresh->options = options;
    fresh->source = source;
    by_number_.insert(fresh->number, *fresh);
    (last_ != nullptr ? last_->next : first_) = fresh;
    last_ = fresh;
    return {};
  }
  [[nodiscard]] outcome retain(pool_id pool) noexcept {
    group* const found = find_group(pool);
    if (const outcome unfit = has_use(pool, found); !unfit) return unfit;
    ++found->uses;
    return {};
  }
  [[nodiscard]] outcome release(pool_id pool) noexcept {
    group* const found = find_group(pool);
    if (const outcome unfit = has_use(pool, found); !unfit) return unfit;
    if (found->uses == 1 && found->is_open) return {"its scope is open"};
    if (--found->uses == 0) access::extensions(in_).on_unused(*found);
    return {};
  }
  [[nodiscard]] std::size_t use_count(pool_id pool) const noexcept {
    const group* const found = find_group(pool);
    return found != nullptr ? found->uses : 0;
  }
  [[nodiscard]] bool has(pool_id pool) const noexcept { return find_group(pool) != nullptr; }
  /// Finds a private pool, or returns null.
  ///   Cost:  constant
  [[nodiscard]] group* find_group(pool_id pool) const noexcept { return by_number_.find(pool.number); }
  [[nodiscard]] outcome open(pool_id pool, const stream_filter& filter, scope_kind kind) noexcept {
    group* const found = find_group(pool);
    if (const outcome unfit = has_use(pool, found); !unfit) return unfit;
    if (found->is_open) return {"a scope of the pool is open"};
    if (const char* const why = access::extensions(in_).why_unserved(*found)) return {why};
    open(*found, filter, kind, last_opened_ + 1);
    return {};
  }
  [[nodiscard, gnu::cold]] outcome close(pool_id pool) noexcept {
    group* const found = find_group(pool);
    if (found == nullptr || !found->is_open) return {"no scope of the pool is open"};
    in_group& g = *found;
    if (g.filter.only() != nullptr) {
      by_stream_.erase(g);
    } else {
      (g.previous_wide != nullptr ? g.previous_wide->next_wide : first_wide_) = g.next_wide;
      (g.next_wide != nullptr ? g.next_wide->previous_wide : last_wide_) = g.previous_wide;
    }
    g.is_open = false;
    --open_;
    captures_ -= g.kind == scope_kind::capture ? 1 : 0;
    access::extensions(in_).note_special_case(-1);
    return {};
  }
  [[nodiscard]] bool is_capturing() const noexcept { return captures_ > 0; }
  [[nodiscard]] pool_usage usage_of(pool_id pool) const noexcept {
    auto& manager = access::manager(in_);
    const group* const found = access::extensions(in_).find_group(pool);
    if (found == nullptr) return {};
    const std::size_t idle = manager.may_release(*found) ? access::map(in_).idle_bytes_of(*found) : 0;
    return {found->reserved, found->reserved - idle};
  }
  [[nodiscard]] outcome lend(pool_id pool) noexcept {
    group* const found = find_group(pool);
    if (const outcome unfit = has_use(pool, found); !unfit) return unfit;
    found->options.serves_on_oom = true;
    return {};
  }
  [[nodiscard, gnu::cold]] outcome take_back(
      pool_id pool, tessera::detail::function_ref<void(const lent_block&)> f) noexcept {
    group* const found = find_group(pool);
    if (found == nullptr) return {tessera::detail::why_no_private_pool(pool)};
    found->options.serves_on_oom = false;
    access::manager(in_).for_each_block([&](const block& b) {
      const bool is_pending = b.status.state == block::state::pending;
      if (b.list->where.group != found || (!is_pending && !tessera::detail::is_lent(b))) return;
      calls_.call(
          [&] { f(lent_block{reinterpret_cast<void*>(b.address), b.size, b.list->key, is_pending}); });
    });
    return {};
  }
  void trim(pool_id pool) noexcept {
    group* const found = find_group(pool);
    if (found == nullptr || found->uses > 0 || is_capturing()) return;
    {
      auto& manager = access::manager(in_);
      auto& backend = access::backend(in_);
      const tessera::detail::group_visit visited(*found);
      manager.wait_for_pending_of([found](const group& g) { return &g == found; });
      access::sharing(in_).wait_for_unfinished_work();
      access::sharing(in_).coalesce_idle();
      manager.for_each_idle_of(*found, [this, &backend](block& idle) {
        if (is_capturing() || backend.releasable(idle) == 0) return false;
        (void)backend.release(idle);
        return true;
      });
    }
    if (!is_capturing()) access::shrink(in_);
  }

  // Questions of the core.

  /// The group with the scope that selects a stream and decides, or null.
  ///   Cost:  logarithmic in the open scopes, plus linear in those asked before that have a function
  [[nodiscard]] group* group_for(stream_id stream) noexcept {
    return open_ == 0 ? nullptr : find_open(stream);
  }
  template <typename F>
  void for_each_group(F& f) noexcept {
    for (group* g = to_group(first_); g != nullptr;) {
      const tessera::detail::group_visit visited(*g);
      f(*g);
      g = to_group(g->next);
    }
  }
  [[nodiscard]] bool may_wait() const noexcept { return captures_ == 0; }
  [[nodiscard]] static bool may_release(const group& g) noexcept { return g.uses == 0; }
  [[nodiscard]] static bool may_reuse(const block& live) noexcept { return !tessera::detail::is_lent(live); }
  [[nodiscard]] static bool serves_whole(const group& g) noexcept { return g.options.never_splits; }
  [[nodiscard]] static bool supplies(const group& g) noexcept { return static_cast<bool>(g.source); }
  [[nodiscard]] bool acquire(group& g, std::size_t bytes, void*& memory) noexcept {
    if (g.source) memory = calls_.call([&] { return g.source.acquire(bytes); });
    return static_cast<bool>(g.source);
  }
  [[nodiscard]] bool release(group& g, void* memory, std::size_t bytes, bool& works) noexcept {
    if (g.source) works = calls_.call([&] { return g.source.release(memory, bytes); });
    return static_cast<bool>(g.source);
  }
  /// Finds a free block for a request of the allocator's own group in a private pool that lends to it.
  [[nodiscard]] block* attempt(tessera::detail::miss_stage stage, const auto& miss) noexcept {
    const bool is_last_resort = miss.steps.count > 0 || miss.why == policy::failure_reason::by_device ||
                                miss.why == policy::failure_reason::by_extension;
    if (stage != tessera::detail::miss_stage::before_steps || !is_last_resort ||
        miss.want.group->is_private())
      return nullptr;
    block* found = nullptr;
    const auto look_in = [&](group& other) {
      if (found == nullptr && other.options.serves_on_oom && other.uses > 0)
        found = access::obtain(in_, access::make_request(in_, miss.want.bytes, miss.want.stream, other));
    };
    if (access::extensions(in_).may_serve(*miss.want.group)) for_each_group(look_in);
    return found;
  }
  /// Marks a block that a private pool lends.
  static void on_served(block& served, const group& wanted) noexcept {
    if (served.list->where.group == &wanted) return;
    tessera::detail::mark_lent(served);
    static_cast<group*>(served.list->where.group)->has_lent = true;
  }
  /// Erases the private pools that have no use, no scope and no memory.
  [[gnu::cold]] void erase_unused() noexcept {
    last_ = nullptr;
    for (in_group** at = &first_; *at != nullptr;) {
      group* const g = to_group(*at);
      if (g->uses > 0 || g->is_open || g->visitors > 0 || g->owns_memory()) {
        last_ = g;
        at = &g->next;
        continue;
      }
      access::extensions(in_).on_erase(*g);
      *at = g->next;
      by_number_.remove(g->number);
      delete g;
    }
  }
  /// Creates the private pools that another allocator uses, with their names, uses and scopes, but without memory.
  ///   Requires:  there are no private pools here
  [[nodiscard, gnu::cold]] bool adopt(const state& other) noexcept {
    for (const group* g = to_group(other.first_); g != nullptr; g = to_group(g->next)) {
      if (g->uses == 0) continue;
      if (!create({g->number}, g->options, g->source)) return false;
      last_->uses = g->uses;
    }
    for (const group* g = to_group(other.first_); g != nullptr; g = to_group(g->next)) {
      if (g->is_open) open(*find_group({g->number}), g->filter, g->kind, g->opened);
    }
    return true;
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return by_number_.metadata_bytes(); }
  void check_thread() const noexcept {
    calls_.check_thread(
        "a stream_filter, pool_upstream or function of take_back must not use the allocator that calls it");
  }

 private:
  static constexpr bool newest_decides = requires { requires Core::recipe::pools::newest_scope_decides; };

  [[nodiscard]] static group* to_group(in_group* g) noexcept { return static_cast<group*>(g); }
  /// Whether the scope of `a` decides if both select a stream.
  [[nodiscard]] static bool decides_before(const in_group& a, const in_group& b) noexcept {
    return newest_decides ? a.opened > b.opened : a.opened < b.opened;
  }
  [[nodiscard]] static outcome has_use(pool_id pool, const group* g) noexcept {
    if (g == nullptr) return {tessera::detail::why_no_private_pool(pool)};
    return {g->uses > 0 ? nullptr : "the pool has no use"};
  }
  [[nodiscard, gnu::noinline]] group* find_open(stream_id stream) noexcept {
    in_group* one =
        by_stream_.find([stream](const in_group& g) { return g.filter.only()->handle < stream.handle; });
    if (one != nullptr && *one->filter.only() != stream) one = nullptr;
    // A scope that selects every stream ends the search. Only functions are asked one by one.
    for (in_group* g = newest_decides ? last_wide_ : first_wide_;
         g != nullptr && (one == nullptr || decides_before(*g, *one));
         g = newest_decides ? g->previous_wide : g->next_wide) {
      if (g->filter.selects_all() || calls_.call([&] { return g->filter.selects(stream); }))
        return to_group(g);
    }
    return to_group(one);
  }
  ///   Cost:  logarithmic in the open scopes
  [[gnu::cold]] void open(group& of, const stream_filter& filter, scope_kind kind,
                          std::uint64_t number) noexcept {
    in_group& g = of;
    g.is_open = true;
    g.filter = filter;
    g.kind = kind;
    g.opened = number;
    if (last_opened_ < number) last_opened_ = number;
    ++open_;
    captures_ += kind == scope_kind::capture ? 1 : 0;
    access::extensions(in_).note_special_case(1);
    if (filter.only() != nullptr) {
      (void)by_stream_.insert(g);
      return;
    }
    in_group* before = last_wide_;
    while (before != nullptr && before->opened > number) before = before->previous_wide;
    g.previous_wide = before;
    in_group*& following = before != nullptr ? before->next_wide : first_wide_;
    g.next_wide = following;
    following = &g;
    (g.next_wide != nullptr ? g.next_wide->previous_wide : last_wide_) = &g;
  }
  struct scope_order {
    [[nodiscard]] static bool precedes(const in_group& a, const in_group& b) noexcept {
      const stream_id one = *a.filter.only();
      const stream_id other = *b.filter.only();
      return one != other ? one.handle < other.handle : decides_before(a, b);
    }
  };

  allocator& in_;
  in_group* first_ = nullptr;  // the private pools
  in_group* last_ = nullptr;
  tessera::detail::treap<in_group, scope_order> by_stream_;  // the open scopes that select one stream
  in_group* first_wide_ = nullptr;                           // the other open scopes, the oldest first
  in_group* last_wide_ = nullptr;
  std::uint64_t last_opened_ = 0;
  std::size_t open_ = 0;
  std::size_t captures_ = 0;
  tessera::detail::key_map<group> by_number_;
  tessera::detail::user_calls calls_;
};

/// What `allocator.get<private_pools>()` returns. A front end calls all this under its lock; per_stream, in each arena.
template <typename Allocator>
class private_pools::door {
  // The arenas of per_stream refuse sources: they find the owner of a block by the memory of their provider.
  using refused = typename Allocator::template refused<pool_upstream>;
  static constexpr bool takes_sources = !Allocator::has_ranges && std::is_void_v<refused>;

 public:
  using scope_kind = extension::scope_kind;

  explicit door(Allocator& in) noexcept : in_(&in) {}

  /// Creates a private pool with one use. Its blocks serve only requests directed to it, unless its options say more.
  ///   Returns:  its name; default_pools if host memory ran out
  [[nodiscard]] pool_id create(pool_options options = {}) noexcept { return create_from({}, options); }
  /// Creates a private pool that takes its segments from a source, with the sizes that growth chooses. Their bytes count
  /// as reserved, and under the limit. Recipes that map memory into ranges have no segments.
  ///   Requires:  the object of the source outlives the allocator
  [[nodiscard]] pool_id create(const pool_upstream& from, pool_options options = {}) noexcept
    requires takes_sources
  {
    return create_from(from, options);
  }
  missing::a_pool_upstream_needs_a_recipe_that_acquires_segments create(const pool_upstream& from,
                                                                        pool_options options = {}) noexcept
    requires(Allocator::has_ranges && std::is_void_v<refused>);
  refused create(const pool_upstream& from, pool_options options = {}) noexcept
    requires(!std::is_void_v<refused>);
  /// Adds a use to a private pool.
  ///   Returns:  why not, if the pool does not exist or has no use
  [[nodiscard]] outcome retain(pool_id pool) noexcept {
    return change(
        {pool_change::kind::retained, pool}, [=](auto& s) { return s.retain(pool); },
        [=](auto& s) { (void)s.release(pool); });
  }
  /// Removes a use from a private pool. Without uses, the next trim or recovery releases its idle memory. The pool
  /// ceases to exist when it owns no memory.
  ///   Returns:  why nothing changed, if the pool does not exist or has no use, or if this is the last use while its
  ///             scope is open
  [[nodiscard]] outcome release(pool_id pool) noexcept {
    return change(
        {pool_change::kind::released, pool}, [=](auto& s) { return s.release(pool); },
        [=](auto& s) { (void)s.retain(pool); });
  }
  /// The uses of a private pool.
  ///   Returns:  0 if it has none or does not exist
  [[nodiscard]] std::size_t use_count(pool_id pool) const noexcept {
    return in_->template visit_extension<private_pools>([=](const auto& s) { return s.use_count(pool); });
  }
  /// Whether a private pool exists. A pool without uses exists until it owns no memory.
  [[nodiscard]] bool has(pool_id pool) const noexcept {
    return in_->template add_up_extension<private_pools>([=](const auto& s) { return s.has(pool); });
  }
  /// Opens a scope: directs the requests of the streams that `streams` selects to a private pool. If several scopes
  /// select a stream, the oldest decides, or the newest with policy::newest_scope_first.
  ///
  /// During a capture, that is, while any scope of the kind capture is open, requests ask the device for no events and
  /// wait for none, with the exceptions at scope_kind::capture. Recovery does not empty the cache. A block with recorded
  /// streams that is freed meanwhile stays pending until a later call after the last such scope was closed. Uses that were
  /// recorded in between count no more then.
  ///   Requires:  before the last such scope is closed, the caller has joined the streams that it recorded meanwhile
  ///   Returns:  why not, if the pool does not exist, has no use, or serves no requests, or if its scope is open
  ///   Cost:     a later request is logarithmic in the open scopes; it also calls the function of each scope that comes before
  ///             the one that decides
  [[nodiscard]] outcome open(pool_id pool, const stream_filter& streams, scope_kind kind) noexcept {
    return change(
        {pool_change::kind::opened, pool, &streams, kind},
        [&](auto& s) { return s.open(pool, streams, kind); }, [=](auto& s) { (void)s.close(pool); });
  }
  /// For the requests of all streams.
  [[nodiscard]] outcome open(pool_id pool, scope_kind kind) noexcept {
    return open(pool, stream_filter(), kind);
  }
  /// Closes the scope of a private pool.
  ///   Returns:  why not, if it has none
  [[nodiscard]] outcome close(pool_id pool) noexcept {
    return change({pool_change::kind::closed, pool}, [=](auto& s) { return s.close(pool); });
  }
  /// Whether any scope of the kind capture is open.
  [[nodiscard]] bool is_capturing() const noexcept {
    return in_->template visit_extension<private_pools>([](const auto& s) { return s.is_capturing(); });
  }
  /// The memory of a private pool, or of default_pools.
  ///   Returns:  zeros if the pool does not exist
  ///   Cost:     linear in the blocks
  [[nodiscard]] pool_usage usage_of(pool_id pool) const noexcept {
    return in_->template add_up_extension<private_pools>([=](const auto& s) { return s.usage_of(pool); });
  }
  /// Lets the free blocks of a private pool serve requests of the default pools, as the option serves_on_oom does.
  ///
  /// Choose it for the memory of a graph that is not replayed for a while. If the recipe maps memory into ranges,
  /// sleep_mode lends all memory of a pool to the whole device, even under live blocks, and needs no take_back().
  ///   Returns:  why not, if the pool does not exist or has no use
  [[nodiscard]] outcome lend(pool_id pool) noexcept {
    return in_->template change_extension<private_pools>([=](auto& s) { return s.lend(pool); });
  }
  /// Ends what lend() began: the pool lends no further block. Calls f(lent_block) for each block that is not back yet. Free
  /// these, or wait until their streams have finished; then call it again. Once it counts no block, a graph may use the
  /// whole pool, after the work of the streams that had its blocks.
  ///
  /// f may only read: it must not use the allocator.
  ///   Returns:  how many blocks and bytes are not back, or why nothing changed, if the pool does not exist
  ///   Cost:     linear in the blocks
  template <typename F = tessera::detail::ignore_arguments>
  [[nodiscard]] taken_back take_back(pool_id pool, F f = {}) noexcept {
    taken_back all;
    const auto count = [&](const lent_block& b) {
      ++all.blocks;
      all.bytes += b.bytes;
      f(b);
    };
    static_cast<outcome&>(all) =
        in_->template change_extension<private_pools>([&](auto& s) { return s.take_back(pool, count); });
    return all;
  }
  /// Releases the idle memory of a private pool without uses. First waits for its pending frees. Does nothing during a
  /// capture.
  void trim(pool_id pool) noexcept {
    (void)change({pool_change::kind::trimmed, pool}, [=](auto& s) {
      s.trim(pool);
      return outcome{};
    });
  }

 private:
  template <typename F, typename Undo = tessera::detail::ignore_arguments>
  [[nodiscard]] outcome change(const pool_change& note, F f, Undo undo = {}) noexcept {
    const outcome result = in_->template change_extension<private_pools>(f, undo);
    if (result) in_->note_change(note);
    return result;
  }
  [[nodiscard]] pool_id create_from(const pool_upstream& from, pool_options options) noexcept {
    // A shared object may have a counter of its own, so a pool of another one may have the name.
    for (bool is_taken = false;; is_taken = false) {
      const pool_id name = tessera::detail::new_pool_id();
      const auto create = [&](auto& s) {
        is_taken = s.has(name);
        return is_taken ? outcome{"another pool has the name"} : s.create(name, options, from);
      };
      const outcome made =
          change({pool_change::kind::created, name}, create, [=](auto& s) { (void)s.release(name); });
      if (!is_taken) return made ? name : default_pools;
    }
  }

  typename tessera::detail::door_target<Allocator>::type in_;
};

}  // namespace tessera::inline v0_1::extension

namespace tessera::inline v0_1::detail {

template <typename Allocator>
concept takes_pool_upstreams =
    requires(Allocator& in, const extension::pool_upstream& from, extension::pool_options options) {
      { in.template get<extension::private_pools>().create(from, options) } -> std::same_as<pool_id>;
    };

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::extension {

/// A private pool: memory of an allocator that serves only requests directed to it.
///
/// Choose it to keep memory apart, for example the memory of a captured graph. While a pool_scope is open, the
/// requests of its streams go to the pool. A block returns to its pool when it is freed, in any scope. The
/// pool's cached segments stay reserved while the object lives. After that, the next trim or recovery of the
/// allocator releases them.
///
///     tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device,
///                                tessera::extension::private_pools>
///         shared;
///     tessera::extension::private_pool graph_memory(shared);
///     void* p = nullptr;
///     {
///       using tessera::extension::scope_kind;
///       const tessera::extension::pool_scope capture(graph_memory, tessera::stream_id{1}, scope_kind::capture);
///       p = shared.allocate(5_MiB, tessera::stream_id{1});  // from the pool
///     }
///     shared.deallocate(p);  // to the pool
///
/// `Allocator` is a caching_allocator with the extension private_pools, a front end of one, such as locked or
/// per_stream, or an any_allocator.
/// A scope selects streams, not threads: it directs the requests of all threads.
///   Requires:  the allocator outlives it
///   Source:    PyTorch's torch.cuda.MemPool
template <typename Allocator>
class private_pool {
 public:
  ///   Throws:  std::bad_alloc if host memory ran out, or if the allocator of an any_allocator has no pools
  [[nodiscard]] explicit private_pool(Allocator& allocator, pool_options options = {})
      : private_pool(allocator, allocator.template get<private_pools>().create(options)) {}
  /// Takes the segments of the pool from a source. The recipe must not map memory into ranges.
  ///   Requires:  the object of the source outlives the allocator
  ///   Throws:    std::bad_alloc if host memory ran out
  [[nodiscard]] private_pool(Allocator& allocator, const pool_upstream& from, pool_options options = {})
    requires tessera::detail::takes_pool_upstreams<Allocator>
      : private_pool(allocator, allocator.template get<private_pools>().create(from, options)) {}
  template <typename Missing = missing::a_pool_upstream_needs_a_recipe_that_acquires_segments>
    requires(!tessera::detail::takes_pool_upstreams<Allocator>)
  private_pool(Allocator& allocator, const pool_upstream& from, pool_options options = {}) = delete;
  /// Leaves `other` without a pool: it may only be assigned to and destroyed.
  private_pool(private_pool&& other) noexcept
      : allocator_(other.allocator_), id_(std::exchange(other.id_, moved_from)) {}
  /// Removes the use of its own pool, and takes over that of `other`, which is left without a pool.
  private_pool& operator=(private_pool&& other) noexcept {
    private_pool moved(std::move(other));
    std::swap(allocator_, moved.allocator_);
    std::swap(id_, moved.id_);
    return *this;
  }
  /// Removes the object's use of the pool.
  ///   Requires:  no scope of the pool is open; otherwise the program aborts
  ~private_pool() {
    if (id_ != moved_from && !allocator_->template get<private_pools>().release(id_))
      tessera::detail::fatal("private_pool: destroyed while its scope is open");
  }

  /// Names the pool for functions of the allocator. After a move, it names no pool, not even the default ones.
  [[nodiscard]] pool_id id() const noexcept { return id_; }
  /// The allocator that the pool belongs to.
  [[nodiscard]] Allocator& allocator() const noexcept { return *allocator_; }

 private:
  static constexpr pool_id moved_from{~std::uint64_t{0}};
  private_pool(Allocator& allocator, pool_id id) : allocator_(&allocator), id_(id) {
    if (id_ == default_pools) tessera::detail::raise(std::bad_alloc());
  }

  Allocator* allocator_;
  pool_id id_;
};
// clang 14 finds two constructors for these arguments.
template <typename Allocator>
private_pool(Allocator&, const pool_upstream&) -> private_pool<Allocator>;
template <typename Allocator>
private_pool(Allocator&, const pool_upstream&, pool_options) -> private_pool<Allocator>;

/// Directs requests to a private pool while it lives.
///
/// Scopes of several pools may be open at a time, and may end in any order. If several select a stream, the
/// oldest decides, or the newest with policy::newest_scope_first. private_pools::door::open describes what else changes
/// while a scope of the kind capture is open.
///   Requires:  it ends before the private_pool does, and the pool does not sleep; otherwise the program aborts
template <typename Allocator>
class pool_scope {
 public:
  /// Directs the requests of the streams that `streams` selects. With scope_kind::capture, frees and releases wait for the end
  /// of the scope, so say plain unless the device captures a graph.
  ///   Requires:  no scope of the pool is open, no extension keeps it from serving, and it was not moved from; otherwise the
  ///              program aborts
  [[nodiscard]] pool_scope(const private_pool<Allocator>& pool, stream_filter streams,
                           scope_kind kind) noexcept
      : allocator_(&pool.allocator()), id_(pool.id()) {
    if (const outcome open = allocator_->template get<private_pools>().open(id_, streams, kind); !open)
      tessera::detail::fatal(tessera::detail::fixed_text().add("pool_scope: ").add(open.why).c_str());
  }
  /// Directs the requests of all streams.
  [[nodiscard]] pool_scope(const private_pool<Allocator>& pool, scope_kind kind) noexcept
      : pool_scope(pool, stream_filter(), kind) {}
  pool_scope& operator=(pool_scope&&) = delete;
  ~pool_scope() { (void)allocator_->template get<private_pools>().close(id_); }

 private:
  Allocator* allocator_;
  pool_id id_;
};

}  // namespace tessera::inline v0_1::extension
