// expect first: setting_refused<tessera::config::error_code::out_of_range, tessera::config::torch_npu_key::max_split_size_mb, 18
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::torch_npu<"max_split_size_mb:20">, tessera::simulated_device> pool;
