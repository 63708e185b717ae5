// expect first: setting_refused<tessera::config::setting_error::error_code::not_a_number, 21,
// expect text: base_addr_aligned_kb
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::recipe::torch_npu<"base_addr_aligned_kb:16K">,
                           tessera::provider::simulated_device>
    pool;
