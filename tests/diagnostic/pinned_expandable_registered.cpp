// expect first: Provider must be a virtual_memory_provider for Recipe::growth
// SPDX-License-Identifier: Apache-2.0
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/host_registering.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::provider::host_pinned memory, device;
  using registered =
      tessera::provider::host_registering<tessera::provider::host_pinned, tessera::provider::host_pinned>;
  tessera::caching_allocator<tessera::recipe::torch_npu_family::pinned_expandable, registered> pool{
      registered(memory, device)};
}
