// expect first: setting_refused<tessera::config::error_code::missing_value, tessera::config::paddle_key::FLAGS_gpu_memory_limit_mb, 26
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::paddle<"FLAGS_gpu_memory_limit_mb=">, tessera::simulated_device> pool;
