// expect first: prefer_pages takes a page_preference, a page_choice or a tunable page_choice
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct my_recipe final : complete {
  using pages = tessera::policy::prefer_pages<3>;
};

int main() { tessera::caching_allocator<my_recipe, tessera::provider::simulated_device> pool; }
