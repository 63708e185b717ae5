// expect: only one page size may be named
// SPDX-License-Identifier: Apache-2.0
#include <tessera/tessera.hpp>

#include <tessera/interop/acl_malloc_policy.hpp>

tessera::policy::prefer_pages<tessera::interop::acl_malloc_policy::choice(
    "ACL_MEM_MALLOC_HUGE_ONLY|ACL_MEM_MALLOC_HUGE1G_ONLY")>
    pages;
