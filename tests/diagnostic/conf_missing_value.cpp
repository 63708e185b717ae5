// expect first: setting_refused<tessera::config::setting_error::error_code::missing_value, 26,
// expect text: FLAGS_gpu_memory_limit_mb
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::recipe::paddle<"FLAGS_gpu_memory_limit_mb=">,
                           tessera::provider::simulated_device>
    pool;
