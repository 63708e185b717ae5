// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/policy/evict_after.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

#include "stress.hpp"
#include "watchdog.hpp"

namespace {

using namespace tessera;
using namespace conformance;
using namespace conformance::thread_stress;
using memory = provider_ref<host_pinned>;

TEST(stress_threads, locked_over_segments) {
  stress_with_observer<locked<caching_allocator<with<pytorch<>, evict_idle_above<percent(50)>>, memory,
                                                extension::observer<counting_observer>>>>("locked");
}
TEST(stress_threads, locked_over_segments_that_decay) {
  stress_with_observer<locked<caching_allocator<with<pytorch<>, evict_after<5, decay_curve::smooth>>, memory,
                                                extension::observer<counting_observer>>>>("locked, decay");
}
TEST(stress_threads, locked_over_ranges) {
  stress_with_observer<locked<caching_allocator<with<pytorch_family::expandable, evict_after<1>>, memory,
                                                extension::observer<counting_observer>>>>(
      "locked, expandable");
}
TEST(stress_threads, locked_over_stitched_ranges) {
  stress_with_observer<locked<caching_allocator<stitched, memory, extension::observer<counting_observer>>>>(
      "locked, stitched");
}
TEST(stress_threads, locked_over_blocks_that_cross_streams) {
  stress_with_observer<locked<caching_allocator<cuda_async, memory, extension::observer<counting_observer>>>>(
      "locked, cuda_async");
}
TEST(stress_threads, per_stream_over_segments) {
  stress_with_observer<per_stream<caching_allocator<with<pytorch<>, evict_idle_above<percent(50)>>, memory,
                                                    extension::observer<counting_observer>>>>("per_stream");
}
TEST(stress_threads, per_stream_over_ranges) {
  stress_with_observer<per_stream<
      caching_allocator<pytorch_family::expandable, memory, extension::observer<counting_observer>>>>(
      "per_stream, expandable", 256_MiB);
}

/// Host memory that is not declared thread-safe, so that calls are made one at a time.
class one_at_a_time : public memory {
 public:
  using memory::memory;
  static constexpr bool is_thread_safe = false;
};
TEST(stress_threads, a_provider_for_one_thread) {
  static_assert(!detail::is_thread_safe<one_at_a_time> && detail::is_thread_safe<memory>);
  const watchdog guard("a provider for one thread");
  host_pinned device = unlocked();
  {
    locked<caching_allocator<pytorch<>, one_at_a_time, extension::observer<counting_observer>>> behind_one{
        one_at_a_time(device)};
    stress_and_compare_counts(behind_one, device, usual / 2);
    per_stream<caching_allocator<pytorch<>, one_at_a_time, extension::observer<counting_observer>>>
        behind_many{one_at_a_time(device)};
    stress_and_compare_counts(behind_many, device, usual / 2);
  }
  expect_all_back(device);
}

}  // namespace
