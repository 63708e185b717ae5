// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/free_list.hpp>
#include <tessera/detail/blocks/heap_map.hpp>
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

/// A counter in a struct, and its name.
template <typename Struct, typename Counter>
struct named_counter {
  const char* name;
  Counter Struct::* of;
};

using pool_counter = named_counter<pool_statistics, counter>;
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

using whole_counter = named_counter<allocator_counters, counter>;
inline constexpr whole_counter whole_counters[] = {
    {"oversize_allocations", &allocator_counters::oversize_allocations},
    {"oversize_segments", &allocator_counters::oversize_segments},
    {"device_bytes", &allocator_counters::device_bytes},
    {"unbacked_bytes", &allocator_counters::unbacked_bytes},
};

/// The `num_` values.
using event_count = named_counter<allocator_counters, std::uint64_t>;
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
  [[nodiscard]] static auto& policies(auto& in) noexcept { return in.policies_; }
  [[nodiscard]] static auto& extensions(auto& in) noexcept { return in.extensions_; }
  [[nodiscard]] static auto& manager(auto& in) noexcept { return in.manager_; }
  [[nodiscard]] static auto& backend(auto& in) noexcept { return in.backend_; }
  [[nodiscard]] static auto& sharing(auto& in) noexcept { return in.sharing_; }
  /// Calls the user's callbacks of on_pressure.
  static bool run_callbacks(auto& in) noexcept { return in.pressure_.run(); }
  template <typename A>
  static void empty_cache(A& in) noexcept {
    in.empty_cache(0);
    if constexpr (requires { in.provider().reclaim(); }) (void)in.provider().reclaim();
  }
  static void evict_after_free(auto& in) noexcept { (void)in.evict_after_free(free_result::free); }
  static void shrink(auto& in) noexcept { in.shrink(); }

  /// A map of the allocator's blocks that may change them.
  template <typename A>
  [[nodiscard]] static auto map(A& in) noexcept {
    return heap_map<typename A::manager, typename A::backend, block>(in.manager_, in.backend_);
  }

  // For attempts to serve a miss.

  [[nodiscard]] static auto make_request(auto& in, std::size_t bytes, stream_id stream,
                                         auto& group) noexcept {
    return in.make_request(bytes, stream, group);
  }
  template <typename A>
  [[nodiscard]] static auto make_miss(A&, const auto& request) noexcept {
    return typename A::miss_state{.want = request};
  }
  [[nodiscard]] static block* obtain(auto& in, const auto& request) noexcept { return in.obtain(request); }
  [[nodiscard]] static block* search_again(auto& in, const auto& miss) noexcept {
    return in.search_again(miss.want);
  }
  [[nodiscard]] static block* reuse_or_grow(auto& in, auto& miss) noexcept {
    return in.reuse_or_grow(miss, in.current_usage());
  }
  static bool take_step(auto& in, auto step, const auto& miss) noexcept {
    return in.take_step(step, miss.want);
  }
  [[nodiscard]] static block& allocate_from(auto& in, block& found, const auto& request) noexcept {
    return in.template allocate_from<false>(found, request);
  }
};

/// A map of the blocks of a caching_allocator that only reads, for tools that show them.
template <typename Recipe, typename Provider, typename... Extension>
[[nodiscard]] auto introspect(const caching_allocator<Recipe, Provider, Extension...>& of) noexcept {
  return heap_map(core_access::manager(of), core_access::backend(of));
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
