// expect: low or high bandwidth does not go with peer-to-peer memory
// SPDX-License-Identifier: Apache-2.0
#include <tessera/tessera.hpp>

#include <tessera/interop/acl_malloc_policy.hpp>

tessera::policy::prefer_pages<tessera::interop::acl_malloc_policy::choice(
    "ACL_MEM_MALLOC_HUGE_ONLY_P2P|ACL_MEM_TYPE_LOW_BAND_WIDTH")>
    pages;
