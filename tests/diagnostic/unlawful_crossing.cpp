// expect: streams: with reuses_across_streams, each stream is its own key
// SPDX-License-Identifier: Apache-2.0
#include <tessera/policy/reuse_across_streams.hpp>
#include <tessera/tessera.hpp>

#include <tessera/law/policy_laws.hpp>

struct crosses_in_pairs : tessera::policy::reuse_across_streams<> {
  static constexpr tessera::stream_id reuse_key(tessera::stream_id s) noexcept {
    return tessera::stream_id(s.handle / 2 * 2);
  }
  static constexpr bool needs_event(tessera::stream_id, tessera::stream_id) noexcept { return false; }
  bool operator==(const crosses_in_pairs&) const = default;
};
static_assert(tessera::law::policy(crosses_in_pairs{}));
