// expect first: setting_refused<tessera::config::error_code::excluded_by, tessera::config::torch_npu_key::max_split_size_mb, tessera::config::torch_npu_key::expandable_segments, 25
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::torch_npu<"expandable_segments:True,max_split_size_mb:32">,
                           tessera::simulated_device>
    pool;
