// expect: no such enumerator of aclrtMemMallocPolicy
// SPDX-License-Identifier: Apache-2.0
#include <tessera/tessera.hpp>

#include <tessera/interop/acl_malloc_policy.hpp>

tessera::policy::prefer_pages<tessera::interop::acl_malloc_policy::choice("ACL_MEM_MALLOC_HUGE")> pages;
