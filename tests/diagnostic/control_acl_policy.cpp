// expect: compiles
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

#include <tessera/interop/acl_malloc_policy.hpp>

using namespace tessera;

struct my_recipe final : complete {
  using pages = tessera::policy::prefer_pages<interop::acl_malloc_policy::choice(
      "ACL_MEM_MALLOC_HUGE_ONLY_P2P", interop::acl_malloc_policy::product::atlas_training)>;
};

int main() { tessera::caching_allocator<my_recipe, tessera::provider::simulated_device> pool; }
