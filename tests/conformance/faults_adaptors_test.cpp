// SPDX-License-Identifier: Apache-2.0
// Provider adaptors and cuda_mempool, over a device of which any call fails, or several do. The model's rules
// hold, and the device gets all memory back.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/debug/checked_provider.hpp>
#include <tessera/interop/cuda_mempool.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_registering.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/preallocating.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/provider/timed.hpp>
#include <tessera/tessera.hpp>

#include "by_day.hpp"
#include "first_broken_rule.hpp"
#include "watched_device.hpp"

namespace {

using namespace tessera;
using conformance::first_broken_rule;
using conformance::plan;
using conformance::watched_device;
using shared = provider_ref<watched_device>;

/// A limit below the device's capacity.
struct under_a_limit {
  explicit under_a_limit(watched_device& device) : pool(limiting<shared>(shared(device), 120_MiB)) {}
  caching_allocator<pytorch<>, limiting<shared>> pool;
};
struct ranges_under_a_limit {
  explicit ranges_under_a_limit(watched_device& device) : pool(limiting<shared>(shared(device), 120_MiB)) {}
  caching_allocator<pytorch_family::expandable, limiting<shared>> pool;
};
/// A region that holds most of the requests.
template <typename Recipe>
struct cut_off_a_region {
  explicit cut_off_a_region(watched_device& device) : region(device, 150_MiB), pool(preallocating(region)) {}
  preallocating<watched_device>::region region;
  caching_allocator<Recipe, preallocating<watched_device>> pool;
};
struct checked_and_timed {
  using device_type = timed<watched_device>;
  explicit checked_and_timed(watched_device& device) : pool(checked_provider(device_type(device, times))) {}
  call_times times;
  caching_allocator<pytorch_family::expandable, checked_provider<device_type>> pool;
};
struct without_patience {
  explicit without_patience(watched_device& device) : pool(std::chrono::milliseconds(0), shared(device)) {}
  waiting<locked<caching_allocator<paddle_family::auto_growth, shared>>> pool;
};
/// The calls of a cuda_mempool. Some frees are on another stream.
struct driver {
  explicit driver(watched_device& device) : pool(device) {}
  struct front {
    explicit front(watched_device& device) : in(shared(device)) {}
    cuda_mempool<caching_allocator<cuda_async, shared>> in;
    std::uint64_t frees = 0;
    void* try_allocate(std::size_t bytes, stream_id s) { return in.try_allocate_async(bytes, s); }
    void deallocate(void* p) { in.free_async(p, stream_id{++frees % 3}); }
    void deallocate(void* p, std::size_t) { deallocate(p); }
    bool record_stream(void* p, stream_id s) { return in.record_stream(p, s); }
    void trim(std::size_t keep = 0) {
      for (const std::uint64_t s : {0u, 1u, 2u}) (void)in.synchronize(stream_id{s});
      in.trim_to(keep);
    }
    const char* audit() { return in.audit(); }
    usage current_usage() { return in.current_usage(); }
  } pool;
};

template <typename Stack>
class faults_under : public testing::Test {
 public:
  static inline std::uint64_t made = 0;  // calls in the latest program that could have failed
  /// Runs a program over a device that fails. After the device is repaired, nothing is lost.
  template <typename Harm>
  static std::string consequences(std::uint64_t seed, Harm harm) {
    watched_device device{simulated_device::options{.capacity = 200_MiB}};
    device.ignore_streams();
    std::string wrong;
    {
      Stack over(device);
      for (const std::uint64_t s : {1u, 2u}) device.submit(stream_id{s}, 3'000'000);
      harm(device);
      wrong = first_broken_rule(over.pool, plan{seed, 300, 32_MiB, 40, 1}, streams);
      made = device.made();
      device.fail({});
      device.stick(false);
      device.advance(1'000'000'000);
      over.pool.trim();
      over.pool.trim();
      if (wrong == "at the end: something is lost" &&
          over.pool.current_usage().allocated + over.pool.current_usage().pending() == 0)
        wrong.clear();
      if (wrong.empty()) wrong = first_broken_rule(over.pool, plan{seed, 100, 32_MiB, 40, 1}, streams);
      if (wrong.empty() && over.pool.current_usage().reserved != 0)
        wrong = "memory is kept though nothing fails any more";
    }
    if (!wrong.empty()) return wrong;
    const auto left = device.held();
    return device.used() + left.reserved + left.mapped + left.handles != 0 ? "the device misses something"
                                                                           : "";
  }
  static inline const std::vector<stream_id> streams{stream_id{0}, stream_id{1}, stream_id{2}};
};
using stacks = testing::Types<under_a_limit, ranges_under_a_limit, cut_off_a_region<pytorch<>>,
                              cut_off_a_region<paddle_family::naive_best_fit>, checked_and_timed,
                              without_patience, driver>;
TYPED_TEST_SUITE(faults_under, stacks);

TYPED_TEST(faults_under, any_call_is_survived) {
  for (std::uint64_t k = 1; k <= this->made + 1; k += step_by_day(this->made, 15)) {
    ASSERT_EQ(this->consequences(1, [k](watched_device& device) { device.fail({{k, k}}); }), "")
        << "with call " << k << " failing";
  }
  EXPECT_GT(this->made, 10u);
}

TYPED_TEST(faults_under, bursts_are_survived) {
  for (std::uint64_t seed = 1; seed <= by_day(12u, 40u); ++seed) {
    std::mt19937_64 random(seed);
    std::vector<watched_device::interval> failing;
    for (std::uint64_t bursts = 1 + random() % 6; bursts > 0; --bursts) {
      const std::uint64_t first = 1 + random() % 150;
      failing.emplace_back(first, first + random() % (seed % 3 == 0 ? 60 : 5));
    }
    ASSERT_EQ(this->consequences(seed, [&](watched_device& device) { device.fail(failing); }), "")
        << "seed " << seed;
  }
}

TYPED_TEST(faults_under, all_calls_from_one_on_are_survived) {
  for (std::uint64_t first = 1; first <= 200; first += by_day(39, 13)) {
    const auto harm = [first](watched_device& device) { device.fail({{first, ~std::uint64_t{0}}}); };
    ASSERT_EQ(this->consequences(1, harm), "") << "from call " << first << " on";
  }
}

TYPED_TEST(faults_under, streams_that_never_complete_are_tolerated) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    ASSERT_EQ(this->consequences(seed, [](watched_device& device) { device.stick(true); }), "")
        << "seed " << seed;
}

/// Whichever call of the memory or of the registering device fails, nothing stays registered or acquired.
TEST(faults_of_registering, are_survived) {
  struct with_registers : watched_device {
    using watched_device::watched_device;
    std::map<void*, std::size_t> registered;
    std::uint64_t calls_made = 0, failing = 0;
    bool fails_now() { return ++calls_made == failing; }
    bool register_memory(void* p, std::size_t bytes) noexcept {
      return !fails_now() && registered.emplace(p, bytes).second;
    }
    bool unregister_memory(void* p) noexcept { return !fails_now() && registered.erase(p) == 1; }
  };
  for (std::uint64_t k = 0; k <= 60; k += by_day(3, 1)) {
    for (const bool memory_fails : {false, true}) {
      watched_device memory{simulated_device::options{.capacity = 200_MiB}};
      with_registers device{simulated_device::options{.capacity = 200_MiB}};
      memory.ignore_streams();
      if (memory_fails) {
        memory.fail({{k, k}});
      } else {
        device.failing = k;
      }
      std::size_t at_the_end = 0;
      {
        using over = host_registering<watched_device, with_registers>;
        caching_allocator<pinned_packed, over> pool{over(memory, device)};
        ASSERT_EQ(first_broken_rule(pool, plan{1, 200, 8_MiB, 30, 1}, {stream_id{0}, stream_id{1}}), "") << k;
        ASSERT_EQ(pool.current_usage().reserved, 0u) << k;
        std::size_t bytes = 0;
        for (const auto& [p, size] : device.registered) bytes += size;
        ASSERT_EQ(bytes, 0u) << k;
        at_the_end = memory.used();
      }
      EXPECT_EQ(at_the_end, 0u) << k;
    }
  }
}

}  // namespace
