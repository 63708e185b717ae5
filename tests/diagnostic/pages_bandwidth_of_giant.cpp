// expect first: low or high bandwidth goes with normal and 2 MiB pages, not with 1 GiB pages
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct my_recipe final : complete {
  using pages = tessera::policy::prefer_pages<tessera::page_choice{
      .pages = tessera::page_preference::huge_1g_only, .speed = tessera::page_kind::bandwidth::high}>;
};

int main() { tessera::caching_allocator<my_recipe, tessera::provider::simulated_device> pool; }
