// expect: growth and eviction follow one schedule of chunks
// SPDX-License-Identifier: Apache-2.0
#include <tessera/law/recipe_laws.hpp>
#include <tessera/policy/chunks.hpp>
#include <tessera/tessera.hpp>

constexpr auto uneven() {
  tessera::recipe::policies<tessera::recipe::paddle_family::naive_best_fit> policies;
  policies.growth.schedule = tessera::policy::chunk_schedule{.first = std::size_t{1} << 30};
  return policies;
}
static_assert(tessera::law::recipe<tessera::recipe::paddle_family::naive_best_fit>(uneven()));

int main() {}
