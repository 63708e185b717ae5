// expect: split: no block precedes itself: precedes(a, a) is false
// SPDX-License-Identifier: Apache-2.0
#include <tessera/tessera.hpp>

#include <tessera/law/policy_laws.hpp>

struct by_size_or_equal : tessera::policy::split_below<> {
  static constexpr bool precedes(const tessera::free_block& a, const tessera::free_block& b,
                                 const tessera::wanted_block&) noexcept {
    return a.size <= b.size;
  }
  bool operator==(const by_size_or_equal&) const = default;
};
static_assert(tessera::law::policy(by_size_or_equal{}));
