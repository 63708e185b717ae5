// expect first: an extension needs another one, which its `needs` names
#include <tessera/extension/quotas.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device,
                             tessera::extension::quotas>
      pool;
}
