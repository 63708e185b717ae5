// SPDX-License-Identifier: Apache-2.0
#include <my_allocator.hpp>

std::size_t run_layers(my_allocator& allocator) {
  void* weights = allocator.allocate(300 << 20);
  void* batch = allocator.allocate(5 << 20, tessera::stream_id{1});
  if (!allocator.record_stream(weights, tessera::stream_id{1})) return 0;
  allocator.deallocate(batch);
  allocator.deallocate(weights);
  return allocator.current_usage().reserved;
}
std::size_t run_two() {
  my_allocator first;
  my_allocator second{my::device()};
  return run_layers(first) + run_layers(second);
}
