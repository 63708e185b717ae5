// expect: streams: needs_event is false without uses_events
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct unlawful : tessera::policy::reuse_immediately {
  static constexpr bool needs_event(tessera::stream_id, tessera::stream_id) noexcept { return true; }
  bool operator==(const unlawful&) const = default;
};
using recipe = tessera::recipe::with<tessera::recipe::pytorch<>, unlawful>;

int main() { tessera::caching_allocator<recipe, tessera::provider::simulated_device> pool; }
