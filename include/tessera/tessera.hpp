// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The allocator, the policies and the recipes; no provider, no extension and no front end.

#include <tessera/caching_allocator.hpp>
#include <tessera/recipe/cuda_async.hpp>
#include <tessera/recipe/paddle.hpp>
#include <tessera/recipe/passthrough.hpp>
#include <tessera/recipe/pinned.hpp>
#include <tessera/recipe/power_of_two.hpp>
#include <tessera/recipe/pytorch.hpp>
#include <tessera/recipe/pytorch_2_14.hpp>
#include <tessera/recipe/pytorch_family.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/recipe/symmetric.hpp>
#include <tessera/recipe/torch_npu.hpp>
#include <tessera/recipe/with.hpp>
#include <tessera/version.hpp>
