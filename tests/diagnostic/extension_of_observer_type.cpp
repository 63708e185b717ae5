// expect first: an argument behind the provider is no extension
#include <tessera/extension/quotas.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

struct tally {
  void on(const tessera::allocator_event&) noexcept {}
};

int main() {
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, tally> pool;
}
