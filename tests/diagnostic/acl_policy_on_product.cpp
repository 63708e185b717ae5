// expect: the product does not support it
// SPDX-License-Identifier: Apache-2.0
#include <tessera/tessera.hpp>

#include <tessera/interop/acl_malloc_policy.hpp>

tessera::back_with<tessera::acl_malloc_policy::choice("ACL_MEM_MALLOC_HUGE1G_ONLY",
                                                      tessera::acl_malloc_policy::product::atlas_training)>
    pages;
