// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/provider/provider.hpp>

/// The counters of statistics with their names, for reports and sums.

namespace tessera::inline v0_1 {

/// Adds the bytes of another allocator with the same limit.
inline usage& operator+=(usage& sum, const usage& part) noexcept {
  sum.requested += part.requested;
  sum.allocated += part.allocated;
  sum.active += part.active;
  sum.cached += part.cached;
  sum.reserved += part.reserved;
  sum.unbacked += part.unbacked;
  return sum;
}

template <typename Recipe, provider::device_provider Provider, typename... Extension>
class caching_allocator;

}  // namespace tessera::inline v0_1

namespace tessera::inline v0_1::detail {

/// A counter of pool_statistics and its name.
struct pool_counter {
  const char* name;
  counter pool_statistics::* of;
};
inline constexpr pool_counter pool_counters[] = {
    {"allocation", &pool_statistics::allocation},
    {"allocated_bytes", &pool_statistics::allocated_bytes},
    {"active", &pool_statistics::active},
    {"active_bytes", &pool_statistics::active_bytes},
    {"requested_bytes", &pool_statistics::requested_bytes},
    {"segment", &pool_statistics::segment},
    {"reserved_bytes", &pool_statistics::reserved_bytes},
    {"inactive_split", &pool_statistics::inactive_split},
    {"inactive_split_bytes", &pool_statistics::inactive_split_bytes},
};

/// A counter of allocator_counters and its name.
struct whole_counter {
  const char* name;
  counter allocator_counters::* of;
};
inline constexpr whole_counter whole_counters[] = {
    {"oversize_allocations", &allocator_counters::oversize_allocations},
    {"oversize_segments", &allocator_counters::oversize_segments},
    {"device_bytes", &allocator_counters::device_bytes},
    {"unbacked_bytes", &allocator_counters::unbacked_bytes},
};

/// A `num_` value of allocator_counters and its name.
struct event_count {
  const char* name;
  std::uint64_t allocator_counters::* of;
};
inline constexpr event_count event_counts[] = {
    {"num_alloc_retries", &allocator_counters::num_alloc_retries},
    {"num_ooms", &allocator_counters::num_ooms},
    {"num_oom_rejections", &allocator_counters::num_oom_rejections},
    {"num_sync_all_streams", &allocator_counters::num_sync_all_streams},
    {"num_device_alloc", &allocator_counters::num_device_alloc},
    {"num_device_free", &allocator_counters::num_device_free},
};

/// What extensions and tools use of an allocator.
struct core_access {
  template <typename A>
  [[nodiscard]] static auto& policies(A& in) noexcept {
    return in.policies_;
  }
  template <typename A>
  [[nodiscard]] static auto& extensions(A& in) noexcept {
    return in.extensions_;
  }
  template <typename A>
  [[nodiscard]] static auto& manager(A& in) noexcept {
    return in.manager_;
  }
  template <typename A>
  [[nodiscard]] static auto& backend(A& in) noexcept {
    return in.backend_;
  }
  template <typename A>
  [[nodiscard]] static auto& sharing(A& in) noexcept {
    return in.sharing_;
  }
  /// Calls the user's callbacks of on_pressure.
  template <typename A>
  static bool run_callbacks(A& in) noexcept {
    return in.pressure_.run();
  }
  template <typename A>
  static void empty_cache(A& in) noexcept {
    in.empty_cache(0);
    if constexpr (requires { in.provider().reclaim(); }) (void)in.provider().reclaim();
  }
  template <typename A>
  static void evict_after_free(A& in) noexcept {
    (void)in.evict_after_free(free_result::free);
  }
  template <typename A>
  static void shrink(A& in) noexcept {
    in.shrink();
  }

  /// Calls f(group, bytes) for the memory that emptying the cache gives back if it may release that group: segments, and in
  /// ranges chunks, of free and withheld blocks. Segments that are being released count, too.
  ///   Cost:  linear in the segments; in ranges, in the blocks
  template <typename A, typename F>
  static void for_each_idle(A& in, F f) {
    const auto& blocks = std::as_const(in.manager_);
    const auto count = [&](const block& low, std::size_t bytes) {
      if (bytes > 0) f(blocks.group_of(*low.list), bytes);
    };
    const auto count_in = [&](const block& first) {
      if constexpr (A::has_ranges) {
        for (const block *b = &first, *end = first.prev; b != end; b = b->next) {
          const block& low = *b;
          if (!low.is_idle()) continue;
          while (b->next->is_idle()) b = b->next;
          count(low, in.backend_.ranges().releasable(low, *b));
        }
      } else {
        const std::size_t bytes = idle_bytes(first);
        count(first, bytes > 0 && blocks.may_unmap(first.address, bytes) ? bytes : 0);
      }
    };
    blocks.for_each_segment(count_in, true);
  }

  // For attempts to serve a miss.

  template <typename A>
  [[nodiscard]] static auto make_request(A& in, std::size_t bytes, stream_id stream, auto& group) noexcept {
    return in.make_request(bytes, stream, group);
  }
  template <typename A>
  [[nodiscard]] static auto make_miss(A&, const auto& request) noexcept {
    return typename A::miss_state{.want = request};
  }
  template <typename A>
  [[nodiscard]] static block* obtain(A& in, const auto& request) noexcept {
    return in.obtain(request);
  }
  template <typename A>
  [[nodiscard]] static block* search_again(A& in, const auto& miss) noexcept {
    return in.search_again(miss.want);
  }
  template <typename A>
  [[nodiscard]] static block* reuse_or_grow(A& in, auto& miss) noexcept {
    return in.reuse_or_grow(miss, in.current_usage());
  }
  template <typename A, typename Step>
  static bool take_step(A& in, Step step, const auto& miss) noexcept {
    return in.take_step(step, miss.want);
  }
  template <typename A>
  [[nodiscard]] static block& allocate_from(A& in, block& found, const auto& request) noexcept {
    return in.template allocate_from<false>(found, request);
  }
};

/// A read-only view of an allocator's blocks. It is valid until the allocator next changes.
template <typename Manager, typename Backend>
class introspection {
 public:
  introspection(const Manager& manager, const Backend& backend) noexcept
      : manager_(&manager), backend_(&backend) {}

  /// Whether segments are ranges of addresses in which memory is mapped and unmapped.
  static constexpr bool has_ranges = Manager::traits::has_ranges;

  /// Calls f(const block&) with the first block of each segment, in no particular order. `first.prev` is the
  /// segment, which ends the list of its blocks. With `with_releasing`, includes the segments that the device
  /// is being asked to take back.
  template <typename F>
  void for_each_segment(F f, bool with_releasing = false) const {
    manager_->for_each_segment(f, with_releasing);
  }
  /// Calls f(const block&) for each block of these segments.
  template <typename F>
  void for_each_block(F f, bool with_releasing = false) const {
    manager_->for_each_block(f, with_releasing);
  }
  /// Calls f(block, age) for each free block that is a whole segment. In ranges, calls it for each free
  /// block. The age is that of an idle_segment.
  template <typename F>
  void for_each_idle(F f) const {
    for_each_block([this, &f](const block& b) {
      if (b.is_free() && (has_ranges || !b.is_split())) f(b, manager_->age(b));
    });
  }
  /// Finds the live block that begins at an address, or null.
  ///   Cost:  constant
  [[nodiscard]] const block* find_live(const void* p) const noexcept { return manager_->find_live(p); }
  /// Returns the requested bytes of the live block at an address; 0 if there is none.
  [[nodiscard]] std::size_t requested_at(const void* p) const noexcept {
    const block* const live = find_live(p);
    return live != nullptr ? live->request.bytes : 0;
  }

  /// Whether a block belongs to the pool that serves requests of a stream.
  [[nodiscard]] bool serves_requests(const block& b, std::size_t pool, stream_id stream) const noexcept {
    return b.list->where.pool == pool && b.list->where.group == &manager_->group_for(stream);
  }
  /// Whether emptying the cache gives back the idle memory of a block's pool.
  [[nodiscard]] bool may_release(const block& b) const noexcept {
    return manager_->may_release(Manager::group_of(*b.list));
  }
  /// Whether the memory of a block's group is mapped.
  [[nodiscard]] bool has_memory(const block& b) const noexcept {
    return manager_->extensions().has_memory(Manager::group_of(*b.list));
  }
  /// Whether the device may be waited for, so that recovery can empty the cache.
  [[nodiscard]] bool may_wait() const noexcept { return manager_->may_wait(); }
  /// What an extension keeps in the group of a block.
  template <typename Part>
  [[nodiscard]] const Part& part_of(const block& b) const noexcept {
    return Manager::group_of(*b.list);
  }

  /// Returns the bytes of a free block that can go back to the device.
  [[nodiscard]] std::size_t releasable(const block& free) const noexcept {
    return backend_->releasable(free);
  }
  /// In ranges: returns the end of the physical chunk that begins at an address. Returns the address if no
  /// chunk begins there.
  [[nodiscard]] std::uintptr_t end_of_chunk(std::uintptr_t begin) const noexcept {
    return backend_->end_of_chunk(begin);
  }

  [[nodiscard]] const auto& provider() const noexcept { return manager_->provider(); }
  [[nodiscard]] usage usage_under(std::size_t limit) const noexcept { return manager_->usage_under(limit); }
  /// Whether reserving `bytes` more would exceed `limit`, or a limit that the provider knows.
  [[nodiscard]] bool would_exceed_limit(std::size_t limit, std::size_t bytes) const noexcept {
    return manager_->would_exceed_limit(limit, bytes);
  }

 private:
  const Manager* manager_;
  const Backend* backend_;
};

/// A read-only view of the blocks of a caching_allocator, for tools that show them.
template <typename Recipe, typename Provider, typename... Extension>
[[nodiscard]] auto introspect(const caching_allocator<Recipe, Provider, Extension...>& of) noexcept {
  return introspection(core_access::manager(of), core_access::backend(of));
}

/// Calls f(view) with a view of the memory of a plan, if the allocator follows one (plan/plan_memory.hpp). Tools
/// show that memory beside the blocks of each caching_allocator.
template <typename Allocator, typename F>
void visit_plan_of(const Allocator& allocator, F f) {
  if constexpr (requires { allocator.visit_plan(f); }) allocator.visit_plan(f);
}

/// Adds the memory of a plan, which was taken from the same device. A limit of the user does not count it.
/// Lowers `available`, the bytes left on the device, if these are computed from `now`.
inline void add_plan_bytes(usage& now, const usage& plan, std::size_t capacity,
                           std::size_t& available) noexcept {
  now += plan;
  if (now.has_limit) now.limit = capacity - now.limit > plan.reserved ? now.limit + plan.reserved : capacity;
  const std::size_t left = capacity > now.reserved ? capacity - now.reserved : 0;
  if (left < available) available = left;
}

}  // namespace tessera::inline v0_1::detail
