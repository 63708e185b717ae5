// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/detail/policies/ask_policies.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/policy/recovery.hpp>

namespace tessera::inline v0_1::extension {

/// The limit of a pool, and what is guaranteed to it. A pool holds a segment, or in ranges
/// a physical chunk, while any block in it is in use. The default value is no quota.
struct quota {
  std::size_t guaranteed = 0;     ///< bytes that the pool can always hold
  std::size_t limit = unlimited;  ///< most bytes that it may hold
  bool operator==(const quota&) const = default;
};

/// Describes what a pool would hold, in bytes.
struct quota_demand {
  quota of{};              ///< of that pool
  std::size_t held = 0;    ///< what the pool would hold
  std::size_t others = 0;  ///< the sum over the other pools of the larger of held and guaranteed
  std::size_t limit = 0;   ///< what all pools together may hold

  /// Whether all quotas can be met.
  [[nodiscard]] constexpr bool is_grantable() const noexcept {
    const std::size_t room = limit > others ? limit - others : 0;
    return held <= of.limit && held <= room && of.guaranteed <= room;
  }
  /// Whether the pool may hold that. A pool may always hold what is guaranteed to it.
  [[nodiscard]] constexpr bool is_admitted() const noexcept {
    return held <= of.guaranteed || is_grantable();
  }
};

/// Limits what each pool may hold, and guarantees memory to it. Choose it for several tenants of one device, each with
/// a private pool.
///
/// A pool never holds more than its limit. A request that keeps its pool within what is guaranteed to it is
/// always admitted. Any other request is admitted if what the others are guaranteed remains. Other pools may
/// cache guaranteed memory, but not hold it: their caches are emptied when it is wanted.
///
///     tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, tessera::extension::private_pools,
///                                tessera::extension::quotas>
///         shared;
///     tessera::extension::private_pool tenant(shared);
///     (void)shared.get<tessera::extension::quotas>().set(tenant.id(), {.guaranteed = 1_GiB, .limit = 4_GiB});
///
///   Cost:  a request and a free count what their pool holds; a hit is constant in the pools
struct quotas {
  using needs = tessera::detail::needs_extensions<private_pools>;
  /// What a group of free lists has for its quota.
  struct in_group {
    quota share{};
    std::size_t planned = 0;       ///< bytes that it may get by calls in progress
    std::size_t held = 0;          ///< at least the bytes that emptying its cache would leave
    std::size_t summed_held = 0;   ///< what it adds to the sum of the bytes held
    std::size_t summed_claim = 0;  ///< what it adds to the sum of the bytes held or guaranteed
    [[nodiscard]] bool has_quota() const noexcept { return share != quota{}; }
  };
  template <typename Core>
  class state;
  template <typename Allocator>
  class door;
};

/// Counts what each pool holds.
///
/// A request and a free change the counts of their pool and the sums over all pools. Other calls may leave
/// counts that are too high. Before a request is refused, they are made exact.
template <typename Core>
class quotas::state : public tessera::detail::extension_defaults {
  using access = tessera::detail::core_access;
  using block = tessera::detail::block;
  using group = typename Core::group;
  using allocator = typename Core::allocator;
  static constexpr bool has_ranges = allocator::has_ranges;

 public:
  state(allocator& in, const quotas&) noexcept : in_(in) {}
  state& operator=(state&&) = delete;

  // Calls of the door.

  [[nodiscard]] outcome set(pool_id pool, const quota& wanted) noexcept {
    group* const found = access::extensions(in_).find_group(pool);
    if (found == nullptr) return {"no such pool exists"};
    if (found->is_private() && access::manager(in_).may_release(*found) && !found->has_quota())
      return {"the pool has no use"};
    if (wanted.guaranteed > wanted.limit) return {"the quota guarantees more than its limit"};
    const quota before = found->share;
    set(*found, wanted);
    access::sharing(in_).coalesce_idle();
    count();
    const quota_demand now = demand(*found, 0);
    if (now.is_grantable()) return {};
    set(*found, before);
    return {now.held > wanted.limit ? "the pool holds more than the limit of the quota" : kept_by_others};
  }
  [[nodiscard]] quota get(pool_id pool) const noexcept {
    const group* const found = access::extensions(in_).find_group(pool);
    return found != nullptr ? found->share : quota{};
  }

  // Questions of the core.

  [[nodiscard]] static bool may_release(const group& g) noexcept { return g.has_quota(); }
  /// Lets a free block be used in part, if its pool may hold the bytes that can then no longer go back.
  [[nodiscard]] bool may_use(const block& free, std::size_t offset, std::size_t size) noexcept {
    group& of = group_of(free);
    more_ = is_active_ && releases(of) ? access::backend(in_).newly_held(free, offset, size) : 0;
    const bool works = more_ == 0 || may_hold(of, more_);
    refused_ = refused_ || !works;
    return works;
  }
  /// Counts what the preceding may_use() asked for.
  void on_use(const block& free, std::size_t /*offset*/, std::size_t /*size*/) noexcept {
    if (more_ == 0) return;
    group& of = group_of(free);
    of.held += more_;
    update_sums(of);
  }
  /// A range grows by parts, so that only may_acquire() and may_use() know.
  [[nodiscard]] bool may_start_growth(group& of, std::size_t bytes) noexcept {
    refused_ = is_active_ && !has_ranges && !may_hold(of, bytes);
    return !refused_;
  }
  /// A pool that gives its cache back may get more than it may hold: may_use() decides what is used. A segment is used
  /// at once.
  [[nodiscard]] bool may_acquire(group& of, std::size_t bytes) noexcept {
    const bool works = !is_active_ || (has_ranges && releases(of)) || may_hold(of, bytes);
    refused_ = refused_ || !works;
    return works;
  }
  /// A request that was refused waits for pending frees and tries again, then with a segment of exactly the block's
  /// size. At last, it tries what the quotas admit: after the caches were emptied, growth may have wanted a larger
  /// segment, or other threads may have filled their caches again. For a request within what is guaranteed to its
  /// pool, the caches are emptied in any case, because memory that only trim gives back may have been in the way.
  [[nodiscard]] block* attempt(tessera::detail::miss_stage stage, auto& miss) noexcept {
    using tessera::detail::miss_stage;
    if (stage == miss_stage::growth_failed && is_refused(miss)) {
      if (access::manager(in_).may_wait()) {
        if (block* const found = access::search_again(in_, miss)) return found;
        if (block* const found = access::reuse_or_grow(in_, miss)) return found;
      }
      miss.exactly = is_refused(miss);
      return miss.exactly ? access::reuse_or_grow(in_, miss) : nullptr;
    }
    if (stage != miss_stage::last) return nullptr;
    for (int tries = 0; tries < 8 && is_active_; ++tries) {
      miss.exactly = true;
      if (block* const found = access::reuse_or_grow(in_, miss)) return found;
      if (!(is_full(miss) || is_within_guarantee(miss)) || cached() == 0) return nullptr;
      if (!access::take_step(in_, policy::recovery_steps::step::release_cached, miss)) return nullptr;
    }
    return nullptr;
  }
  /// If a quota refused, attempt() tries what may help, and no step does. If the device or the limit is full, the cache
  /// is emptied in any case: it may have memory that is guaranteed to another pool.
  void adjust(auto& miss) const noexcept {
    if (is_refused(miss)) miss.steps = {};
    if (!is_active_ || !is_full(miss)) return;
    bool empties = false, searches = false;
    for (const policy::recovery_steps::step step : miss.steps) {
      empties = empties || step == policy::recovery_steps::step::release_cached;
      searches = searches || step == policy::recovery_steps::step::search_again;
    }
    if (!empties)
      miss.steps = {
          {policy::recovery_steps::step::release_cached, policy::recovery_steps::step::search_again},
          searches ? 2u : 1u};
  }
  void explain(auto& numbers) const noexcept {
    if (!is_active_ || numbers.requested > max_request) return;
    count();
    const quota_demand d = demand(access::manager(in_).group_for(numbers.stream), numbers.segment);
    if (d.is_admitted()) return;
    numbers.refuse(refusal::format(
        "quotas refuse it: with a segment of %s its pool would hold %s of at most %s, %s guaranteed\n"
        "  other pools hold or are guaranteed %s of %s",
        format_bytes(numbers.segment).text(), format_bytes(d.held).text(),
        d.of.limit == unlimited ? "any number" : format_bytes(d.of.limit).text(),
        format_bytes(d.of.guaranteed).text(), format_bytes(d.others).text(), format_bytes(d.limit).text()));
  }
  /// Why a group must not hold the bytes that calls in progress may add, or null. Sets how many are too many.
  [[nodiscard]] const char* why_over_quota(group& of, std::size_t& missing) noexcept {
    if (!is_active_) return nullptr;
    count();
    const quota_demand d = demand(of, 0);
    if (d.is_admitted()) return nullptr;
    const std::size_t room = d.limit > d.others ? d.limit - d.others : 0;
    const std::size_t most = room < d.of.limit ? room : d.of.limit;
    missing = d.held > most ? d.held - most : d.held;
    return d.held > d.of.limit ? "the limit of the pool is less than what it would hold" : kept_by_others;
  }
  /// Why the state of a group cannot be recorded, or null.
  [[nodiscard]] static const char* why_not_checkpointable(const group& g) noexcept {
    return g.has_quota() ? "the pool has a quota, so its memory may go back at any time" : nullptr;
  }
  /// Counts a free. The freed bytes are now at `offset` in a free block.
  void on_free(const block& free, std::size_t offset, std::size_t size) noexcept {
    if (!is_active_) return;
    group& of = group_of(free);
    if (!releases(of) || !access::extensions(in_).has_memory(of)) return;
    const std::size_t less = access::backend(in_).newly_held(free, offset, size);
    of.held -= less < of.held ? less : of.held;
    update_sums(of);
  }
  void on_change(group& of) noexcept { update_sums(of); }
  void on_in_flight(group& of, std::int64_t bytes) noexcept {
    of.planned += static_cast<std::size_t>(bytes);
    update_sums(of);
  }
  /// Without uses, a pool does not hold its idle memory.
  void on_unused(group& of) noexcept {
    set(of, {});
    count();
  }
  void on_erase(group& of) noexcept {
    held_.change(of.summed_held, 0);
    claimed_.change(of.summed_claim, 0);
  }
  void on_rearrange() noexcept { count(); }
  /// Returns null, or the rule that the counts break.
  [[nodiscard]] const char* audit() const noexcept {
    const char* broken = nullptr;
    if (!is_active_) return broken;
    access::manager(in_).for_each_group([&](group& of) {
      if (releases(of) && of.reserved - access::map(in_).idle_bytes_of(of) > of.held)
        broken = "a pool holds at most what is counted";
      if (of.summed_held != held_now(of)) broken = "the sums over the pools have what each holds";
    });
    return broken;
  }

 private:
  static constexpr const char* kept_by_others = "other pools hold the memory, or it is guaranteed to them";

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

  [[nodiscard]] static group& group_of(const block& b) noexcept {
    return static_cast<group&>(*b.list->where.group);
  }
  /// Whether a quota refused the latest growth.
  [[nodiscard]] bool is_refused(const auto& miss) const noexcept {
    return refused_ && miss.why == policy::failure_reason::by_extension;
  }
  [[nodiscard]] static bool is_full(const auto& miss) noexcept {
    using enum policy::failure_reason;
    return miss.why == by_limit || miss.why == by_device || miss.why == by_capacity;
  }
  /// Whether the block of a request, as the pool counts it now, is guaranteed to the pool.
  [[nodiscard]] bool is_within_guarantee(const auto& miss) const noexcept {
    const group& of = *miss.want.group;
    return held_now(of) + miss.want.size <= of.share.guaranteed;
  }
  [[nodiscard]] bool releases(const group& of) const noexcept { return access::manager(in_).may_release(of); }
  /// Returns the bytes that a group holds, with those that it may get. If its idle memory does not go back, it holds
  /// that, too.
  [[nodiscard]] std::size_t held_now(const group& of) const noexcept {
    return (releases(of) ? of.held : of.reserved) + of.planned;
  }
  [[gnu::cold]] void set(group& of, const quota& wanted) noexcept {
    of.share = wanted;
    update_sums(of);
    const bool was_active = is_active_;
    is_active_ = false;
    access::manager(in_).for_each_group([this](const group& g) { is_active_ = is_active_ || g.has_quota(); });
    access::extensions(in_).note_special_case(static_cast<int>(is_active_) - static_cast<int>(was_active));
  }
  /// Updates the sums over the groups after this one has changed. A demand then looks at no other group.
  void update_sums(group& of) const noexcept {
    const std::size_t held = held_now(of);
    const std::size_t claim = held > of.share.guaranteed ? held : of.share.guaranteed;
    held_.change(std::exchange(of.summed_held, held), held);
    claimed_.change(std::exchange(of.summed_claim, claim), claim);
  }
  /// Describes a group that would hold `more` bytes more than now.
  [[nodiscard]] quota_demand demand(const group& of, std::size_t more) const noexcept {
    return {of.share, held_now(of) + more, claimed_.without(of.summed_claim),
            tessera::detail::usage_of(access::manager(in_), access::policies(in_).growth).limit};
  }
  /// Whether a group may hold `more` bytes.
  ///   Cost:  constant; if it may not, the cost of count()
  [[nodiscard]] bool may_hold(const group& of, std::size_t more) noexcept {
    if (demand(of, more).is_admitted()) return true;
    count();
    return demand(of, more).is_admitted();
  }
  /// Makes the counts exact. It is const, because that changes no answer.
  ///   Cost:  linear in the segments; in ranges, in the blocks
  void count() const noexcept {
    auto& manager = access::manager(in_);
    manager.for_each_group([](group& of) { of.held = of.reserved; });
    access::map(in_).for_each_idle([](group& of, std::size_t bytes) { of.held -= bytes; });
    manager.for_each_group([this](group& of) { update_sums(of); });
  }
  /// Bytes that pools have and do not hold.
  [[nodiscard]] std::size_t cached() const noexcept {
    std::size_t sum = 0;
    access::map(in_).for_each_idle(
        [&](const group& of, std::size_t bytes) { sum += releases(of) ? bytes : 0; });
    return sum;
  }

  allocator& in_;
  mutable wide_sum held_;
  mutable wide_sum claimed_;
  bool is_active_ = false;  // whether any group has a quota
  bool refused_ = false;    // whether a quota refused what the latest growth needed
  std::size_t more_ = 0;    // what the pool would hold more, as may_use() found
};

/// What `allocator.get<quotas>()` returns. Its calls take a private pool, or default_pools.
template <typename Allocator>
class quotas::door {
 public:
  explicit door(Allocator& in) noexcept : in_(&in) {}

  /// Sets what a pool may hold, and what is kept for it. The idle memory of a private pool with a quota may go back, so
  /// no recorded graph may use such a pool.
  ///
  /// A pool holds whole segments, or in ranges whole chunks: the pool of a small block may hold 20 MiB. A request
  /// that would make its pool hold too much first waits for the pending frees of all pools, then fails. To give
  /// a pool what is guaranteed to it, recovery empties the caches, unless an extension forbids waiting. Other programs on
  /// the device, or a lower limit set later, may still take that memory.
  ///   Returns:  why nothing changed, if the pool does not exist or has no use, or the quotas cannot all be met
  ///   Cost:     linear in the blocks; a refused request, too
  [[nodiscard]] outcome set(pool_id pool, const quota& wanted) noexcept {
    return in_->template change_extension<quotas>([&](auto& s) { return s.set(pool, wanted); });
  }
  /// The quota of a pool.
  [[nodiscard]] quota get(pool_id pool) const noexcept {
    return in_->template visit_extension<quotas>([=](const auto& s) { return s.get(pool); });
  }

 private:
  Allocator* in_;
};

}  // namespace tessera::inline v0_1::extension
