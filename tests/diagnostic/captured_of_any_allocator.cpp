// expect first: a front end needs the type of the allocator inside
// SPDX-License-Identifier: Apache-2.0
#include <tessera/any_allocator.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/captured.hpp>

using plain = tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>;

int main() {
  plain pool;
  tessera::trace::captured<tessera::any_allocator> outer(pool);
}
