// expect first: low or high bandwidth does not go with peer-to-peer memory
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct my_recipe final : complete {
  using pages = tessera::policy::prefer_pages<tessera::tunable(
      tessera::page_choice{.speed = tessera::page_kind::bandwidth::low, .peer_to_peer = true})>;
};

int main() { tessera::caching_allocator<my_recipe, tessera::provider::simulated_device> pool; }
