// expect first: Recipe::streams must name a streams_policy
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct reuse_at_once {
  static constexpr bool uses_events = false;
  static constexpr tessera::stream_id::any reuse_key(tessera::stream_id) noexcept { return {}; }
  static constexpr bool needs_event(tessera::stream_id, tessera::stream_id) noexcept { return false; }
  static constexpr tessera::cross_stream_reuse reuse_rules() noexcept { return {}; }
  static constexpr bool should_poll_events(std::size_t) noexcept { return true; }
  bool operator==(const reuse_at_once&) const = default;
};
using wrong = tessera::recipe::with<tessera::recipe::pytorch<>, reuse_at_once>;

int main() { tessera::caching_allocator<wrong, tessera::provider::simulated_device> pool; }
