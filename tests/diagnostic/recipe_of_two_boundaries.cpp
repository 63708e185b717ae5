// expect: pools and split agree on small blocks: pools.boundary == split::max_small_block
// SPDX-License-Identifier: Apache-2.0
#include <tessera/law/recipe.hpp>
#include <tessera/tessera.hpp>

using namespace tessera::literals;
using uneven = tessera::with<tessera::pytorch<>, tessera::pool_small_and_large<512_KiB>>;
static_assert(tessera::law::recipe<uneven>());

int main() {}
