// expect first: setting_refused<tessera::config::fault::missing_value, tessera::config::paddle_key::FLAGS_gpu_memory_limit_mb, 26
// SPDX-License-Identifier: Apache-2.0
#include <tessera/config/paddle.hpp>
#include <tessera/config/text.hpp>

using namespace tessera::config;
constexpr auto settings = settings_in<paddle, text("FLAGS_gpu_memory_limit_mb=")>();
