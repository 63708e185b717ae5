// expect first: setting_refused<tessera::config::setting_error::error_code::malformed, 23,
// expect text: FLAGS_free_idle_chunk
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::recipe::paddle<"FLAGS_free_idle_chunk=1=0">,
                           tessera::provider::simulated_device>
    pool;
