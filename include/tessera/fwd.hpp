// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/provider/provider.hpp>

/// Declares the public types, for headers that only name an allocator. Do not declare them yourself: their namespace has the
/// version. Default template arguments are given here. A type with a provider as argument needs a complete provider.
///
///     namespace renderer {
///     template <typename Device>
///     class texture_cache {
///      public:
///       explicit texture_cache(tessera::concurrent::locked<
///                            tessera::caching_allocator<tessera::recipe::stitched, Device>>& allocator);
///     };
///     }

namespace tessera::inline v0_1 {

class any_allocator;
struct block_view;
struct counter;
class block_handle;
class out_of_memory;
struct pool_statistics;
struct segment_view;
template <std::size_t Pools>
struct statistics;
struct usage;
template <typename Recipe, provider::device_provider Provider, typename... Extension>
class caching_allocator;
template <typename Family, typename Allocator>
class configured;

// Recipes without a configuration string. The others are aliases of templates or members of a family.
namespace recipe {
struct cuda_async;
struct passthrough;
struct pinned;
struct pinned_packed;
struct power_of_two;
struct stitched;
}  // namespace recipe

namespace provider {
class host_pinned;
template <device_provider Provider>
class provider_ref;
class simulated_device;
class simulated_npu;
}  // namespace provider

namespace extension {
struct checkpoints;
struct count_totals;
struct pool_change;
struct pool_restored;
struct private_pools;
struct quotas;
struct sleep_change;
struct sleep_mode;
class stream_filter;
template <typename Observer>
struct observer;
}  // namespace extension

namespace concurrent {
template <typename Allocator>
class background_reclaiming;
template <typename Allocator>
class locked;
template <typename Front>
class per_device;
template <typename Allocator>
class per_stream;
}  // namespace concurrent

namespace debug {
template <typename Allocator>
class guarded;
}  // namespace debug

namespace interop {
template <typename Allocator>
class pmr_resource;
template <typename Allocator>
class shared_allocator;
template <typename Allocator, typename... Properties>
class cccl_resource;
template <typename T, typename Allocator>
class typed_allocator;
template <typename Allocator>
class unique_block;
}  // namespace interop

namespace detail {
struct no_stacks;
struct wall_time;
}  // namespace detail
namespace observe {
struct memory_report;
template <typename Time = detail::wall_time, typename Stacks = detail::no_stacks>
class history;
}  // namespace observe

}  // namespace tessera::inline v0_1
