// expect first: setting_refused<tessera::config::fault::out_of_range, tessera::config::torch_npu_key::max_split_size_mb, 18
// SPDX-License-Identifier: Apache-2.0
#include <tessera/config/text.hpp>
#include <tessera/config/torch_npu.hpp>

using namespace tessera::config;
constexpr auto settings = settings_in<torch_npu, text("max_split_size_mb:20")>();
