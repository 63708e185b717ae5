// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/concurrent/locked.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

/// The pool that library_pool.cpp makes. Other libraries and the program use it.
using shared_pool = tessera::concurrent::locked<tessera::caching_allocator<
    tessera::recipe::pytorch<>, tessera::provider::simulated_device, tessera::extension::private_pools>>;
using allocate_function = void*(shared_pool* pool, std::size_t bytes);
