// expect first: setting_refused<tessera::config::fault::not_a_number, tessera::config::torch_npu_key::base_addr_aligned_kb, 21
// SPDX-License-Identifier: Apache-2.0
#include <tessera/config/text.hpp>
#include <tessera/config/torch_npu.hpp>

using namespace tessera::config;
constexpr auto settings = settings_in<torch_npu, text("base_addr_aligned_kb:16K")>();
