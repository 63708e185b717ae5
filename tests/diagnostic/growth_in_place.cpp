// expect: Recipe::growth must answer what its backend needs
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct one_piece : tessera::policy::grow_exactly<> {
  using backend = tessera::policy::expandable_backend;
  bool operator==(const one_piece&) const = default;
};
struct recipe : complete {
  using growth = one_piece;
};
template class tessera::caching_allocator<recipe, tessera::provider::simulated_device>;
