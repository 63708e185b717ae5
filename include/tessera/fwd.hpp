// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/core/allocator_event.hpp>
#include <tessera/provider/provider.hpp>

/// Declares the public types, for headers that only name an allocator. Default template arguments are given
/// here. A type with a provider as argument needs a complete provider.
///
///     namespace renderer {
///     template <typename Device>
///     class texture_cache {
///      public:
///       explicit texture_cache(tessera::locked<tessera::stitched, Device>& allocator);
///     };
///     }
namespace tessera {

// core/
class out_of_memory;
struct block_view;
struct counter;
struct pool_statistics;
struct segment_view;
struct usage;
template <std::size_t Pools>
struct statistics;

// Recipes without a configuration string. The others are aliases of templates or members of a family.
struct cuda_async;
struct passthrough;
struct pinned;
struct pinned_packed;
struct power_of_two;
struct stitched;

// provider/
class host_pinned;
class simulated_device;
class simulated_npu;
template <device_provider Provider>
class provider_ref;

// Statistics that an allocator keeps: its template argument `Counting`.
struct count_totals;
namespace detail {
struct count_everything;
}  // namespace detail

// Allocators
class any_allocator;
class handle;
template <typename Recipe, device_provider Provider, allocator_observer Observer = ignore_events,
          typename Counting = detail::count_everything>
class caching_allocator;
template <typename Recipe, device_provider Provider, allocator_observer Observer = ignore_events,
          typename Counting = detail::count_everything>
class locked;
template <typename Recipe, device_provider Provider, allocator_observer Observer = ignore_events,
          typename Counting = detail::count_everything>
class per_stream;
template <typename Recipe, device_provider Provider,
          template <typename, typename, typename, typename> typename Front = locked,
          allocator_observer Observer = ignore_events, typename Counting = detail::count_everything>
class per_device;
template <typename Family, device_provider Provider,
          template <typename, typename, typename, typename> typename Front = caching_allocator,
          allocator_observer Observer = ignore_events, typename Counting = detail::count_everything>
class configured;
template <typename Recipe, device_provider Provider, allocator_observer Observer = ignore_events,
          typename Counting = detail::count_everything>
class background_reclaiming;
template <typename Recipe, device_provider Provider, allocator_observer Observer = ignore_events,
          typename Counting = detail::count_everything>
class guarded;
template <typename Recipe, ordering_provider Provider, allocator_observer Observer = ignore_events,
          typename Counting = detail::count_everything>
class driver_pool;

// interop/ and observe/
template <typename Allocator>
class shared_allocator;
template <typename Allocator>
class unique_block;
template <typename Allocator>
class pmr_resource;
template <typename T, typename Allocator>
class typed_allocator;
template <typename Allocator, typename... Properties>
class stream_resource;
struct memory_report;
namespace detail {
struct wall_time;
struct no_stacks;
}  // namespace detail
template <typename Time = detail::wall_time, typename Stacks = detail::no_stacks>
class history;

}  // namespace tessera
