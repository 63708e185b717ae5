// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <tessera/core/parameter.hpp>
#include <tessera/policy/eviction.hpp>

namespace tessera::inline v0_1::policy {

/// Keeps at most `cap` of cached memory: whenever more is cached after a free, releases idle segments until it is not. The
/// cap is a number of bytes, or a fraction of the limit on reserved bytes.
///
/// Choose it if a program with rare peaks shares its device. Each pass spares the segments that are younger than the average
/// of the candidates. Free parts of segments in use count as cached but cannot be released, so with many of them more stays.
///
///     using tessera::recipe::pytorch;
///     using bounded = tessera::recipe::with<pytorch<>, tessera::policy::evict_above<2_GiB>>;
///     using by_share = tessera::recipe::with<pytorch<>, tessera::policy::evict_above<tessera::percent(10)>>;
///
///   Cost:  a free that leaves more than the cap cached visits all idle segments, once or a few times
template <auto Cap>
struct evict_above {
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Cap> cap{};

  [[nodiscard]] constexpr std::size_t bytes_to_evict(eviction_trigger trigger,
                                                     const usage& now) const noexcept {
    if (trigger == eviction_trigger::before_growth) return 0;
    const std::size_t most = max_cached(now);
    return now.cached > most ? now.cached - most : 0;
  }
  [[nodiscard]] static constexpr bool is_candidate(std::size_t, const usage&) noexcept { return true; }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment& segment) noexcept {
    return segment.remaining > 0 && segment.is_old();
  }
  bool operator==(const evict_above&) const = default;

 private:
  [[nodiscard]] constexpr std::size_t max_cached(const usage& now) const noexcept {
    if constexpr (std::is_same_v<typename parameter<Cap>::value_type, fraction>) {
      return cap.get().of(now.limit);
    } else {
      (void)detail::initial_bytes<Cap>();  // refuses what is no number of bytes
      return static_cast<std::size_t>(cap.get());
    }
  }
};

}  // namespace tessera::inline v0_1::policy
