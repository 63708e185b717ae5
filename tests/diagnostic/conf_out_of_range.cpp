// expect first: setting_refused<tessera::config::setting_error::error_code::out_of_range, 18,
// expect text: max_split_size_mb
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::recipe::torch_npu<"max_split_size_mb:20">,
                           tessera::provider::simulated_device>
    pool;
