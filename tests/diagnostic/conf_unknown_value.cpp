// expect first: setting_refused<tessera::config::setting_error::error_code::unknown_value, 20,
// expect text: expandable_segments
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::recipe::pytorch<"expandable_segments:true">,
                           tessera::provider::simulated_device>
    pool;
