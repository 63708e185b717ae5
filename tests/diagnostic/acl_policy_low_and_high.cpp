// expect: low and high bandwidth exclude each other
// SPDX-License-Identifier: Apache-2.0
#include <tessera/tessera.hpp>

#include <tessera/interop/acl_malloc_policy.hpp>

tessera::policy::prefer_pages<tessera::interop::acl_malloc_policy::choice(0x1101u)> pages;
