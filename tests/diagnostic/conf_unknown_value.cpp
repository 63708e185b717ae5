// expect first: setting_refused<tessera::config::error_code::unknown_value, tessera::config::pytorch_key::expandable_segments, 20
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::pytorch<"expandable_segments:true">, tessera::simulated_device> pool;
