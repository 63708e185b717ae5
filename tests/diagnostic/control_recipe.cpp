// expect: compiles
// SPDX-License-Identifier: Apache-2.0
#include "complete.hpp"

struct my_recipe final : complete {};

int main() { tessera::caching_allocator<my_recipe, tessera::provider::simulated_device> pool; }
