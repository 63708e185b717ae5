// expect first: setting_refused<tessera::config::error_code::not_a_number, tessera::config::torch_npu_key::base_addr_aligned_kb, 21
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

tessera::caching_allocator<tessera::torch_npu<"base_addr_aligned_kb:16K">, tessera::simulated_device> pool;
