// expect: Recipe::growth must answer what its way needs
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct one_piece : tessera::grow_exactly<> {
  static constexpr tessera::growth_way way = tessera::growth_way::in_place;
  bool operator==(const one_piece&) const = default;
};
struct recipe : complete {
  using growth = one_piece;
};
template class tessera::caching_allocator<recipe, tessera::simulated_device>;
