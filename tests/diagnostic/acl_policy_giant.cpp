// expect: low or high bandwidth goes with normal and 2 MiB pages, not with 1 GiB pages
// SPDX-License-Identifier: Apache-2.0
#include <tessera/tessera.hpp>

#include <tessera/interop/acl_malloc_policy.hpp>

tessera::policy::prefer_pages<tessera::interop::acl_malloc_policy::choice(0x106u)> pages;
