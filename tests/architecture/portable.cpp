// SPDX-License-Identifier: Apache-2.0
// Uses the parts that need no operating system, after their headers. portable.cmake compiles it.
#include <portable_headers.hpp>

using tessera::provider::simulated_device;
// Without the headers of their drivers, these are only names.
using tessera::provider::opencl_device, tessera::provider::opencl_error;
using tessera::provider::vulkan_device, tessera::provider::vulkan_memory, tessera::provider::vulkan_timelines;

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
  bool passes =
      serve<t::recipe::pytorch<>, t::recipe::pytorch<"expandable_segments:True">, t::recipe::pytorch_2_14<>,
            t::recipe::cuda_async, t::recipe::torch_npu<>, t::recipe::paddle<"">, t::recipe::pinned_packed,
            t::recipe::stitched, t::recipe::power_of_two, t::recipe::passthrough,
            t::recipe::with<t::recipe::pytorch<>, t::policy::evict_after<>>>();
  t::concurrent::locked<t::caching_allocator<t::recipe::pytorch<>, simulated_device>> locked;
  t::concurrent::per_stream<t::caching_allocator<t::recipe::pytorch<>, simulated_device>> per_stream;
  t::caching_allocator<t::recipe::pytorch<>, t::debug::checked_provider<simulated_device>,
                       t::extension::observer<t::observe::history<>>>
      watched;
  passes = serves(locked) && serves(per_stream) && serves(watched) && passes;
  simulated_device device;
  passes = static_cast<bool>(t::law::provider(device)) && passes;
  const bool says = !t::observe::memory_report(watched).table().empty() &&
                    !t::observe::to_pickle(t::observe::take_snapshot(watched)).empty();
  return passes && says ? 0 : 1;
}
