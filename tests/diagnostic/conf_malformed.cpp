// expect first: setting_refused<tessera::config::fault::malformed, tessera::config::paddle_key::FLAGS_free_idle_chunk, 23
// SPDX-License-Identifier: Apache-2.0
#include <tessera/config/paddle.hpp>
#include <tessera/config/text.hpp>

using namespace tessera::config;
constexpr auto settings = settings_in<paddle, text("FLAGS_free_idle_chunk=1=0")>();
