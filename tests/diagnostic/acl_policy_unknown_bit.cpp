// expect: a bit that no enumerator has
// SPDX-License-Identifier: Apache-2.0
#include <tessera/tessera.hpp>

#include <tessera/interop/acl_malloc_policy.hpp>

tessera::back_with<tessera::config::acl_malloc_policy(8u)> pages;
