// expect first: observer<T>: T has a member function on(const allocator_event&) noexcept
#include <tessera/extension/observer.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

int main() {
  using watch = tessera::extension::observer<int>;
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device, watch> pool;
}
