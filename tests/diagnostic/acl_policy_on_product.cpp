// expect: the product does not support it
// SPDX-License-Identifier: Apache-2.0
#include <tessera/tessera.hpp>

#include <tessera/interop/acl_malloc_policy.hpp>

tessera::back_with<tessera::config::acl_malloc_policy("ACL_MEM_MALLOC_HUGE1G_ONLY",
                                                      tessera::config::acl_product::atlas_training)>
    pages;
