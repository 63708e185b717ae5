// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/provider/bank_policy.hpp>

namespace tessera::inline v0_1::law {

/// Checks a bank_policy on a number of banks from 1 to 8, with each set of banks that refused, several sizes and several
/// amounts of used memory. Use it for your own policies.
///
///     constexpr tessera::provider::prefer_bank second{1};
///     if (const char* const broken = tessera::law::bank_policy(second, 3)) std::puts(broken);
///
///   Returns:  the broken rule; null if there is none
///   Requires:  the policy's choice does not depend on time, threads or random numbers
template <provider::bank_policy Policy>
[[nodiscard]] const char* bank_policy(const Policy& policy, std::size_t count) noexcept {
  using provider::no_bank;
  constexpr std::size_t most = 8;
  if (count == 0 || count > most) return "the number of banks is from 1 to 8";
  std::array<std::size_t, most> capacities{};
  std::array<unsigned, most * most> distances{};
  bool uses_any = false;
  for (std::size_t i = 0; i < count; ++i) {
    uses_any = uses_any || policy.uses(i);
    capacities[i] = (i + 1) * 1_GiB;
    for (std::size_t to = 0; to < count; ++to)
      distances[i * count + to] = static_cast<unsigned>(10 + 10 * (i > to ? i - to : to - i));
  }
  if (!uses_any) return "a policy uses at least one bank";

  std::array<provider::bank_statistics, most> used{};
  for (std::size_t state = 0; state < 4 * count; ++state) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t quarters = (state * (i + 3) + i) % 5;  // up to a full bank
      used[i].held = used[i].peak_held = capacities[i] / 4 * quarters;
      used[i].served = used[i].held;
      used[i].hits = (state + i) % 3;
    }
    const auto left = [](const void* banks, std::size_t bank) noexcept {
      return (bank + 1) * 1_GiB - static_cast<const provider::bank_statistics*>(banks)[bank].held;
    };
    for (unsigned refused = 0; refused < 1u << count; ++refused) {
      provider::bank_list all(count, capacities.data(), used.data(), distances.data(), used.data(), left);
      for (std::size_t i = 0; i < count; ++i) {
        if ((refused >> i & 1u) != 0) all.note_refused(i);
      }
      for (const std::size_t bytes : {std::size_t{512}, 2_MiB, 900_MiB, 64_GiB}) {
        for (const bool is_physical : {false, true}) {
          const provider::bank_request request{bytes, page_kind::normal, is_physical};
          const std::size_t chosen = policy.choose(request, all);
          if (policy.choose(request, all) != chosen) return "a choice changes nothing";
          if (chosen == no_bank) continue;
          if (chosen >= count) return "a policy chooses one of the banks";
          if (all.has_refused(chosen)) return "a policy chooses no bank that refused the request";
          if (!policy.uses(chosen)) return "a policy chooses only banks that it uses";
        }
      }
    }
  }
  return nullptr;
}

}  // namespace tessera::inline v0_1::law
