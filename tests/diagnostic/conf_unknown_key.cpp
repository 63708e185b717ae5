// expect first: setting_refused<tessera::config::setting_error::error_code::unknown_key, 0,
// expect text: max_split
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::recipe::pytorch<"max_split:128">, tessera::provider::simulated_device>
    pool;
