// SPDX-License-Identifier: Apache-2.0
// Each front end passes evict_idle() to its allocators.
#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/configured.hpp>
#include <tessera/debug/thread_checked.hpp>
#include <tessera/policy/evict_after.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

using recipe = with<pytorch<>, evict_after<0>>;

void release_all_idle(auto& front) {
  front.deallocate(front.allocate(20_MiB));
  front.deallocate(front.allocate(40_MiB, stream_id{1}));
  EXPECT_EQ(front.current_usage().cached, 60_MiB);
  front.evict_idle();
  EXPECT_EQ(front.current_usage().reserved, 0u);
  EXPECT_EQ(front.audit(), nullptr);
}

TEST(evict_idle, reaches_the_allocators_of_the_front_ends) {
  locked<caching_allocator<recipe, simulated_device>> one_mutex;
  release_all_idle(one_mutex);
  per_stream<caching_allocator<recipe, simulated_device>> arenas;
  release_all_idle(arenas);
  background_reclaiming<caching_allocator<recipe, simulated_device>> background;
  release_all_idle(background);
  waiting<locked<caching_allocator<recipe, simulated_device>>> patient(std::chrono::milliseconds(0));
  release_all_idle(patient);
  thread_checked<caching_allocator<recipe, simulated_device>> checked;
  release_all_idle(checked);
}

/// Evicts on request, or before growth, the segments of one size each. should_evict tells the events apart.
struct evict_by_trigger {
  [[nodiscard]] static std::size_t bytes_to_evict(eviction_trigger trigger, const usage& now) noexcept {
    return trigger == eviction_trigger::on_request || trigger == eviction_trigger::before_growth ? now.cached
                                                                                                 : 0;
  }
  [[nodiscard]] static bool is_candidate(std::size_t, const usage&) noexcept { return true; }
  [[nodiscard]] static bool should_evict(const idle_segment& segment) noexcept {
    return segment.bytes == (segment.trigger == eviction_trigger::on_request ? 20_MiB : 40_MiB);
  }
  bool operator==(const evict_by_trigger&) const = default;
};

TEST(evict_idle, tells_the_policy_which_event_it_is) {
  caching_allocator<with<pytorch<>, evict_by_trigger>, simulated_device> allocator;
  void* const one = allocator.allocate(20_MiB);
  void* const other = allocator.allocate(40_MiB);
  allocator.deallocate(one);
  allocator.deallocate(other);
  allocator.evict_idle();
  EXPECT_EQ(allocator.current_usage().reserved, 40_MiB);
  void* const next = allocator.allocate(60_MiB);
  EXPECT_EQ(allocator.current_usage().reserved, 60_MiB);
  allocator.deallocate(next);
}

TEST(evict_idle, reaches_each_device) {
  std::vector<simulated_device> devices;
  for (unsigned d = 0; d < 2; ++d) devices.emplace_back(simulated_device::options{.device = d});
  per_device<locked<caching_allocator<recipe, simulated_device>>> all(std::move(devices));
  for (std::size_t d = 0; d < 2; ++d) all.deallocate(all.allocate(20_MiB, d));
  all.evict_idle();
  for (std::size_t d = 0; d < 2; ++d) EXPECT_EQ(all.front(d).current_usage().reserved, 0u);
}

TEST(evict_idle, releases_nothing_with_a_policy_that_does_not_answer_it) {
  configured<pytorch_family, caching_allocator<pytorch<>, simulated_device>> chosen(
      config::pytorch::settings{.garbage_collection_threshold = percent(60)});
  chosen.deallocate(chosen.allocate(40_MiB));
  chosen.evict_idle();
  EXPECT_EQ(chosen.current_usage().reserved, 40_MiB);
}

}  // namespace
