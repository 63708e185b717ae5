// SPDX-License-Identifier: Apache-2.0
#include <shared_allocator.hpp>
#include <streams.hpp>

template <typename Allocator>
std::size_t run_once() {
  Allocator first;
  Allocator second{my::device()};
  void* p = first.allocate(5 << 20);
  void* q = second.try_allocate(5 << 20, tessera::stream_id{1});
  if (!first.record_stream(p, tessera::stream_id{1}) || first.audit() != nullptr) return 0;
  first.deallocate(p);
  second.deallocate(q);
  first.trim();
  return first.current_usage().reserved + second.current_usage().reserved;
}
std::size_t run_shared() { return run_once<my::memory::shared_allocator>(); }
std::size_t run_streams() { return run_once<streams>(); }
