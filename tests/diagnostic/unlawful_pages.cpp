// expect: pages are monotonic
// SPDX-License-Identifier: Apache-2.0
#include <tessera/tessera.hpp>

#include <tessera/law/policy_laws.hpp>

struct huge_for_small_ones {
  static constexpr bool uses_page_kinds = true;
  static constexpr tessera::page_order backing(std::size_t segment) noexcept {
    return {{segment < 1024 ? tessera::page_kind::huge : tessera::page_kind::normal}, 1};
  }
  bool operator==(const huge_for_small_ones&) const = default;
};
static_assert(tessera::law::policy(huge_for_small_ones{}));
