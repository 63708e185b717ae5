// expect: rounding is aligned: block_size(n) is a multiple of min_alignment
// SPDX-License-Identifier: Apache-2.0
#include <tessera/tessera.hpp>

#include <tessera/law/policy_laws.hpp>

struct in_steps_of_eight {
  static constexpr std::size_t block_size(std::size_t n) noexcept { return tessera::align_up(n, 8); }
  bool operator==(const in_steps_of_eight&) const = default;
};
static_assert(tessera::law::policy(in_steps_of_eight{}));
