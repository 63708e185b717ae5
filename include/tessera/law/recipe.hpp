// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/law/law.hpp>
#include <tessera/law/policies.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::law {

namespace detail {
/// Requires that numbers which occur in several policies are equal.
template <typename R>
constexpr void require_agreement(const policies<R>& p) {
  if constexpr (requires { p.pools.boundary; }) {
    const std::size_t boundary = p.pools.boundary;
    if constexpr (requires { R::split::max_small_block; })
      detail::require(boundary == R::split::max_small_block,
                      "pools and split agree on small blocks: pools.boundary == split::max_small_block");
    if constexpr (requires { R::growth::max_small_block; })
      detail::require(boundary == R::growth::max_small_block,
                      "pools and growth agree on small blocks: pools.boundary == growth::max_small_block");
    if constexpr (requires { p.growth.boundary; })
      detail::require(boundary == p.growth.boundary.get(),
                      "pools and growth agree on small blocks: pools.boundary == growth.boundary");
  }
  if constexpr (requires { p.growth.plan.get() == p.eviction.plan.get(); })
    detail::require(p.growth.plan.get() == p.eviction.plan.get(),
                    "growth and eviction follow one plan of chunks");
}
}  // namespace detail

/// Checks that a recipe's policies obey their own laws and fit together. Returns true, or stops the compiler
/// and names the broken law.
///
///     using padded = tessera::with<tessera::pytorch<>, tessera::round_padded<64, tessera::round_to_multiple<256>>>;
///     static_assert(tessera::law::recipe<padded>());
template <tessera::recipe R>
constexpr bool recipe(const policies<R>& p = {}) {
  bool holds = rounding(p.rounding) && pools(p.pools) && streams(p.streams) && split(p.split) &&
               pages(p.pages) && growth(p.growth) && eviction(p.eviction) && recovery(p.recovery);
  for (std::size_t n : detail::edge_sizes()) {
    const std::size_t size = p.rounding.block_size(n);
    const std::size_t segment =
        tessera::detail::in_whole_pages(p.pages, p.growth.segment_size(size, usage{}));
    detail::require(segment >= size,
                    "growth covers every block: segment_size(block_size(n)) >= block_size(n)");
    detail::require(segment % min_alignment == 0, "segments are a multiple of min_alignment long");
  }
  detail::require_agreement<R>(p);
  return holds;
}

}  // namespace tessera::law
