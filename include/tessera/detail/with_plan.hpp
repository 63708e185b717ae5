// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera::detail {

/// Calls f(view) with a view of the memory of a plan, if the allocator follows one (plan/plan_view.hpp). Tools
/// show that memory beside the blocks of each caching_allocator.
template <typename Allocator, typename F>
void with_plan_of(const Allocator& allocator, F f) {
  if constexpr (requires { allocator.with_plan(f); }) allocator.with_plan(f);
}

}  // namespace tessera::detail
