// SPDX-License-Identifier: Apache-2.0
// Uses the parts that need no operating system, after their headers. portable.cmake compiles it.
#include <portable_headers.hpp>

using tessera::simulated_device;

template <typename Allocator>
bool serves(Allocator& allocator) {
  void* p = allocator.allocate(1000);
  allocator.deallocate(p);
  allocator.trim();
  return allocator.audit() == nullptr && allocator.current_usage().reserved == 0;
}
template <typename... Recipe>
bool serve() {
  const auto one = []<typename R>(R) {
    tessera::caching_allocator<R, simulated_device> allocator;
    return serves(allocator);
  };
  return (one(Recipe{}) && ...);
}

int main() {
  namespace t = tessera;
  bool passes = serve<t::pytorch<>, t::pytorch<"expandable_segments:True">, t::pytorch_2_14<>, t::cuda_async,
                      t::torch_npu<>, t::paddle<"">, t::pinned_packed, t::stitched, t::power_of_two,
                      t::passthrough, t::with<t::pytorch<>, t::evict_after<>>>();
  t::locked<t::pytorch<>, simulated_device> locked;
  t::per_stream<t::pytorch<>, simulated_device> per_stream;
  t::caching_allocator<t::pytorch<>, t::checked_provider<simulated_device>, t::history<>> watched;
  passes = serves(locked) && serves(per_stream) && serves(watched) && passes;
  simulated_device device;
  passes = static_cast<bool>(t::law::provider(device)) && passes;
  const bool says =
      !t::memory_report(watched).table().empty() && !t::to_pickle(t::take_snapshot(watched)).empty();
  return passes && says ? 0 : 1;
}
