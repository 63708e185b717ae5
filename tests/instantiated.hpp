// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

/// The allocators that most tests use. instantiated.cpp compiles their code once; each test includes this header first, so that
/// it does not compile that code again. Recipes that differ in numbers alone share the managers of these.

#ifndef INSTANTIATED
#define INSTANTIATED extern
#endif
#define INSTANTIATED_ALLOCATOR(...)                                                            \
  INSTANTIATED template class detail::block_manager<detail::core_types<__VA_ARGS__>::provider, \
                                                    detail::core_types<__VA_ARGS__>::traits>;  \
  INSTANTIATED template class caching_allocator<__VA_ARGS__>

namespace tessera::inline v0_1 {

namespace detail {
using locked_device = unlocking_provider<serialized_provider<provider::simulated_device>>;
using arena_of_device = unlocking_provider<arena_device<serialized_provider<provider::simulated_device>>>;
}  // namespace detail

INSTANTIATED_ALLOCATOR(recipe::pytorch<>, provider::simulated_device);
INSTANTIATED_ALLOCATOR(recipe::pytorch<"expandable_segments:True">, provider::simulated_device);
INSTANTIATED_ALLOCATOR(recipe::stitched, provider::simulated_device);
INSTANTIATED_ALLOCATOR(recipe::cuda_async, provider::simulated_device);
INSTANTIATED_ALLOCATOR(recipe::pytorch<>, provider::simulated_device, extension::private_pools);
INSTANTIATED_ALLOCATOR(recipe::pinned_packed, provider::host_pinned);
#if !defined(__clang__) || \
    __clang_major__ >= 16  // older ones instantiate constructors whose constraints are not met
INSTANTIATED_ALLOCATOR(recipe::pytorch<>, detail::locked_device);
INSTANTIATED_ALLOCATOR(recipe::pytorch<"expandable_segments:True">, detail::locked_device);
INSTANTIATED_ALLOCATOR(recipe::stitched, detail::locked_device);
INSTANTIATED_ALLOCATOR(recipe::pytorch<>, detail::arena_of_device);
#endif
INSTANTIATED template class concurrent::locked<
    caching_allocator<recipe::pytorch<>, provider::simulated_device>>;
INSTANTIATED template class concurrent::per_stream<
    caching_allocator<recipe::pytorch<>, provider::simulated_device>>;

}  // namespace tessera::inline v0_1

#undef INSTANTIATED_ALLOCATOR
