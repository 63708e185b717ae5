// expect first: setting_refused<tessera::config::error_code::unknown_key, 'm', 'a', 'x', '_', 's', 'p', 'l', 'i', 't', 0
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::pytorch<"max_split:128">, tessera::simulated_device> pool;
