// expect: streams of one key need no events for each other
// SPDX-License-Identifier: Apache-2.0
#include <tessera/tessera.hpp>

#include <tessera/law/policy_laws.hpp>

struct share_all_and_hold : tessera::policy::reuse_immediately {
  static constexpr bool uses_events = true;
  static constexpr bool needs_event(tessera::stream_id key, tessera::stream_id user) noexcept {
    return key != user;
  }
  bool operator==(const share_all_and_hold&) const = default;
};
static_assert(tessera::law::policy(share_all_and_hold{}));
