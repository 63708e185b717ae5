// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include <tessera/core/bytes.hpp>
#include <tessera/core/private_pool.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/free_list_map.hpp>
#include <tessera/detail/key_map.hpp>
#include <tessera/detail/treap.hpp>

namespace tessera::detail {

/// The default pools of an allocator, or the pools of one private pool. Its free blocks serve only requests
/// that are directed to it.
struct pool_group {
  std::uint64_t number = 0;  ///< 0 for the default pools
  std::size_t uses = 0;
  std::size_t growing = 0;   ///< requests in progress that may add memory
  bool is_open = false;      ///< whether a scope directs requests to it
  stream_filter filter{};    ///< the streams of the scope
  scope_kind kind{};         ///< of the scope
  std::uint64_t opened = 0;  ///< the number of the scope: the oldest has the lowest
  bool is_asleep = false;    ///< whether its memory has gone back while its blocks keep their addresses
  /// Identifies the call that puts it to sleep or wakes it; null if none does.
  const void* changed_by = nullptr;
  pool_options options{};
  memory_source source{};  ///< gives and takes back its segments; if empty, the provider does
  pool_share share{};
  std::size_t reserved = 0;  ///< bytes of its segments and mapped memory
  std::size_t planned = 0;   ///< bytes that it may get by calls in progress, if there are shares
  std::size_t held = 0;      ///< if there are shares: at least the bytes that emptying its cache would leave
  std::size_t summed_held = 0;   ///< what it adds to the sum of the bytes held
  std::size_t summed_claim = 0;  ///< what it adds to the sum of the bytes held or guaranteed

  [[nodiscard]] bool is_private() const noexcept { return number != 0; }
  /// Whether its idle memory may go back to the device.
  [[nodiscard]] bool may_release() const noexcept { return uses == 0 || has_share(); }
  [[nodiscard]] bool has_share() const noexcept { return share != pool_share{}; }
  /// Returns the bytes that it holds, with those that it may get. Without a share, a private pool in use keeps its idle memory.
  [[nodiscard]] std::size_t held_now() const noexcept { return (may_release() ? held : reserved) + planned; }
  /// Whether it serves requests.
  [[nodiscard]] bool is_awake() const noexcept { return !is_asleep && changed_by == nullptr; }
};

/// Selects the groups that a call puts to sleep or wakes.
struct changed_groups {
  const void* by;
  [[nodiscard]] bool operator()(const pool_group& g) const noexcept { return g.changed_by == by; }
};

/// Keeps a group from being erased while a request may add memory to it, or a walk visits it.
class growing_request {
 public:
  explicit growing_request(pool_group& in) noexcept : in_(in) { ++in_.growing; }
  growing_request(const growing_request&) = delete;
  growing_request& operator=(const growing_request&) = delete;
  ~growing_request() { --in_.growing; }

 private:
  pool_group& in_;
};

/// A group with its free lists. `Pools` is the number of pools that the recipe has.
template <std::size_t Pools>
struct pool_group_of : pool_group {
  pool_group_of() noexcept {
    for (std::size_t pool = 0; pool < Pools; ++pool) lists[pool].set_place({pool, this, &clocks[pool]});
  }
  [[nodiscard]] std::uint64_t map_key() const noexcept { return number; }
  [[nodiscard]] bool owns_memory() const noexcept {
    for (const free_list_map& of_pool : lists) {
      for (const free_list* list = of_pool.first(); list != nullptr; list = list->next) {
        if (list->segments > 0) return true;
      }
    }
    return false;
  }

  std::array<search_clock, Pools> clocks{};
  std::array<free_list_map, Pools> lists;
  pool_group_of* next = nullptr;       ///< the next private pool, in the order of numbers
  pool_group_of* links[2] = {};        ///< in the tree of open scopes that select one stream
  pool_group_of* next_wide = nullptr;  ///< the next younger open scope that may select several streams
  pool_group_of* previous_wide = nullptr;
};

/// The default pools and the private pools of an allocator.
template <std::size_t Pools>
class private_pools {
 public:
  using group = pool_group_of<Pools>;

  private_pools() = default;
  private_pools(const private_pools&) = delete;
  private_pools& operator=(const private_pools&) = delete;
  ~private_pools() {
    while (first_ != nullptr) {
      group* const following = first_->next;
      delete first_;
      first_ = following;
    }
  }

  [[nodiscard]] group& defaults() noexcept { return defaults_; }
  [[nodiscard]] const group& defaults() const noexcept { return defaults_; }
  /// The first private pool in the order of numbers, or null.
  [[nodiscard]] group* first_private() const noexcept { return first_; }
  /// Finds a private pool, or returns null.
  ///   Cost:  constant
  [[nodiscard]] group* find(pool_id id) const noexcept { return by_number_.find(id.number); }
  /// Like find(), but the default pool_id finds the default pools.
  [[nodiscard]] const group* find_any(pool_id id) const noexcept {
    return id == pool_id{} ? &defaults_ : find(id);
  }
  [[nodiscard]] group* find_any(pool_id id) noexcept {
    return const_cast<group*>(std::as_const(*this).find_any(id));
  }
  /// Calls f(group) for the default pools, then for each private pool.
  template <typename F>
  void for_each(F f) {
    f(defaults_);
    for (group* g = first_; g != nullptr; g = g->next) f(*g);
  }
  template <typename F>
  void for_each(F f) const {
    f(defaults_);
    for (const group* g = first_; g != nullptr; g = g->next) f(*g);
  }

  /// Creates a private pool with one use. Returns null if host memory ran out. A number other than 0 names
  /// the pool; no pool here has it yet.
  [[nodiscard, gnu::cold]] group* create(pool_options options, const memory_source& source,
                                         std::uint64_t number) noexcept {
    static constinit std::uint64_t last = 0;  // shared, so that a number names no pool of another allocator
    auto* const fresh = by_number_.reserve_one() ? new (std::nothrow) group : nullptr;
    if (fresh == nullptr) return nullptr;
    // <atomic> is slow to compile.
    fresh->number = number != 0 ? number : __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
    fresh->uses = 1;
    fresh->options = options;
    fresh->source = source;
    by_number_.insert(fresh->number, *fresh);
    (first_ == nullptr ? first_ : last_->next) = fresh;
    last_ = fresh;
    return fresh;
  }
  /// Creates the private pools that another allocator uses, with their numbers, uses and scopes, but without
  /// memory. Returns false if host memory ran out.
  ///   Requires:  there are no private pools here
  [[nodiscard, gnu::cold]] bool copy_used(const private_pools& other) noexcept {
    for (const group* g = other.first_; g != nullptr; g = g->next) {
      group* const copy = g->uses > 0 ? create(g->options, g->source, g->number) : nullptr;
      if (copy != nullptr) copy->uses = g->uses;
      if (copy == nullptr && g->uses > 0) return false;
    }
    for (const group* g = other.first_; g != nullptr; g = g->next) {
      if (g->is_open) open(*find(pool_id{g->number}), g->filter, g->kind, g->opened);
    }
    return true;
  }
  /// Erases the private pools that have no use, no scope and no memory.
  [[gnu::cold]] void erase_unused() noexcept {
    last_ = nullptr;
    for (group** at = &first_; *at != nullptr;) {
      group& g = **at;
      if (g.uses > 0 || g.is_open || g.growing > 0 || g.changed_by != nullptr || g.owns_memory()) {
        last_ = &g;
        at = &g.next;
        continue;
      }
      *at = g.next;
      held_.change(g.summed_held, 0);
      claimed_.change(g.summed_claim, 0);
      by_number_.remove(g.number);
      delete &g;
    }
  }

  /// Whether a scope_kind::capture is open.
  [[nodiscard]] bool any_capture() const noexcept { return captures_ > 0; }
  /// Whether any pool has a share.
  [[nodiscard]] bool any_share() const noexcept { return has_shares_; }
  [[gnu::cold]] void set_share(pool_group& g, const pool_share& share) noexcept {
    g.share = share;
    update_sums(g);
    has_shares_ = false;
    for_each([this](const group& each) { has_shares_ = has_shares_ || each.has_share(); });
    choose_path();
  }
  /// Updates the sums over the groups after this one has changed. A demand then looks at no other group.
  void update_sums(pool_group& g) noexcept {
    const std::size_t held = g.held_now();
    const std::size_t claim = held > g.share.guaranteed ? held : g.share.guaranteed;
    held_.change(std::exchange(g.summed_held, held), held);
    claimed_.change(std::exchange(g.summed_claim, claim), claim);
  }
  /// The bytes that the other groups hold.
  [[nodiscard]] std::size_t held_beside(const pool_group& g) const noexcept {
    return held_.without(g.summed_held);
  }
  /// The sum over the other groups of the larger of held and guaranteed bytes.
  [[nodiscard]] std::size_t claimed_beside(const pool_group& g) const noexcept {
    return claimed_.without(g.summed_claim);
  }
  /// Whether the default pools serve all requests: no scope is open, they do not sleep, and no pool has a
  /// share.
  [[nodiscard]] bool are_defaults_enough() const noexcept { return are_defaults_enough_; }
  /// Starts or ends a call that puts a group to sleep or wakes it.
  [[gnu::cold]] void set_sleep(pool_group& g, bool is_asleep, const void* changed_by) noexcept {
    g.is_asleep = is_asleep;
    g.changed_by = changed_by;
    choose_path();
  }
  /// Directs the requests of the selected streams to a private pool, until close().
  ///   Requires:  no scope of the pool is open
  ///   Cost:  logarithmic in the open scopes
  [[gnu::cold]] void open(group& g, const stream_filter& filter, scope_kind kind) noexcept {
    open(g, filter, kind, last_opened_ + 1);
  }
  ///   Requires:  the scope of the pool is open
  [[gnu::cold]] void close(group& g) noexcept {
    if (g.filter.only() != nullptr) {
      by_stream_.erase(g);
    } else {
      (g.previous_wide != nullptr ? g.previous_wide->next_wide : first_wide_) = g.next_wide;
      (g.next_wide != nullptr ? g.next_wide->previous_wide : last_wide_) = g.previous_wide;
    }
    g.is_open = false;
    --open_;
    captures_ -= g.kind == scope_kind::capture ? 1 : 0;
    choose_path();
  }
  [[nodiscard]] std::size_t footprint() const noexcept { return by_number_.footprint(); }
  /// The group that serves a request of a stream: the one with the oldest scope that selects the stream.
  ///   Cost:  logarithmic in the open scopes, plus linear in the older ones that have a function
  [[nodiscard]] const group& destination(stream_id stream) const noexcept {
    if (open_ == 0) [[likely]]
      return defaults_;
    return find_open(stream);
  }
  [[nodiscard]] group& destination(stream_id stream) noexcept {
    return const_cast<group&>(std::as_const(*this).destination(stream));
  }

 private:
  /// A sum of two words, because a guarantee may be any number of bytes.
  struct wide_sum {
    std::size_t low = 0;
    std::size_t high = 0;

    /// Replaces a part of the sum.
    void change(std::size_t from, std::size_t to) noexcept {
      high -= low < from ? 1 : 0;
      low -= from;
      low += to;
      high += low < to ? 1 : 0;
    }
    /// The sum without a part of it, or `unlimited` if that needs more than a word.
    [[nodiscard]] std::size_t without(std::size_t part) const noexcept {
      const bool fits = high == 0 || (high == 1 && low < part);
      return fits ? low - part : unlimited;
    }
  };

  void choose_path() noexcept { are_defaults_enough_ = open_ == 0 && defaults_.is_awake() && !has_shares_; }
  [[nodiscard, gnu::noinline]] const group& find_open(stream_id stream) const noexcept {
    const group* one =
        by_stream_.find([stream](const group& g) { return g.filter.only()->handle < stream.handle; });
    if (one != nullptr && *one->filter.only() != stream) one = nullptr;
    // A scope that selects every stream ends the search. Only functions are asked one by one.
    for (const group* g = first_wide_; g != nullptr && (one == nullptr || g->opened < one->opened);
         g = g->next_wide) {
      if (g->filter.selects(stream)) return *g;
    }
    return one != nullptr ? *one : defaults_;
  }
  void open(group& g, const stream_filter& filter, scope_kind kind, std::uint64_t number) noexcept {
    g.is_open = true;
    g.filter = filter;
    g.kind = kind;
    g.opened = number;
    if (last_opened_ < number) last_opened_ = number;
    ++open_;
    captures_ += kind == scope_kind::capture ? 1 : 0;
    choose_path();
    if (filter.only() != nullptr) {
      by_stream_.insert(g);
      return;
    }
    group* before = last_wide_;
    while (before != nullptr && before->opened > number) before = before->previous_wide;
    g.previous_wide = before;
    group*& following = before != nullptr ? before->next_wide : first_wide_;
    g.next_wide = following;
    following = &g;
    (g.next_wide != nullptr ? g.next_wide->previous_wide : last_wide_) = &g;
  }
  struct scope_order {
    [[nodiscard]] static bool precedes(const group& a, const group& b) noexcept {
      const stream_id one = *a.filter.only();
      const stream_id other = *b.filter.only();
      return one != other ? one.handle < other.handle : a.opened < b.opened;
    }
  };

  group defaults_;
  group* first_ = nullptr;
  group* last_ = nullptr;
  treap<group, scope_order> by_stream_;  // the open scopes that select one stream
  group* first_wide_ = nullptr;          // the other open scopes, the oldest first
  group* last_wide_ = nullptr;
  std::uint64_t last_opened_ = 0;
  std::size_t open_ = 0;
  std::size_t captures_ = 0;
  wide_sum held_;
  wide_sum claimed_;
  bool has_shares_ = false;
  bool are_defaults_enough_ = true;
  key_map<group> by_number_;
};

}  // namespace tessera::detail
