// SPDX-License-Identifier: Apache-2.0
// Arenas on a device that is nearly full. They serve the requests that one allocator serves, with as few
// device calls.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "recorded.hpp"

namespace {

using namespace tessera;

struct outcome {
  std::size_t failures;
  std::uint64_t refused, retries;
  bool operator==(const outcome&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const outcome& o) {
    return out << o.failures << " failures, " << o.refused << " refused, " << o.retries << " retries";
  }
};
template <typename Pool>
outcome on(const trace::program& source, std::size_t capacity) {
  simulated_device device{simulated_device::options{.capacity = capacity}};
  Pool pool{provider_ref(device)};
  const std::size_t failures = conformance::replay_on(pool, device, source, [] {});
  return {failures, device.calls().refused, pool.statistics().num_alloc_retries};
}

template <typename Recipe>
class pressure : public testing::Test {};
using recipes = testing::Types<pytorch_family::native, pytorch_family::expandable, torch_npu_family::native,
                               paddle_family::auto_growth, power_of_two>;
TYPED_TEST_SUITE(pressure, recipes);

constexpr std::size_t percents[] = {130, 110, 105};

TYPED_TEST(pressure, is_handled_by_arenas_like_one_allocator) {
  const trace::recording recording = conformance::recorded("gnn_sage");
  const trace::program source(recording);
  std::uint64_t refused = 0;
  for (const std::size_t percent : percents) {
    const std::size_t capacity = source.peak_live() / 100 * percent;
    const outcome one = on<caching_allocator<TypeParam, provider_ref<simulated_device>>>(source, capacity);
    EXPECT_EQ(
        (on<per_stream<caching_allocator<TypeParam, provider_ref<simulated_device>>>>(source, capacity)), one)
        << percent << " % of peak live";
    refused += one.refused;
  }
  EXPECT_GT(refused, 0u);
}

// An arena polls events later, so its cache may differ until all caches are emptied.
TYPED_TEST(pressure, is_handled_by_arenas_whose_blocks_other_streams_use) {
  const trace::recording recording = conformance::recorded("gnn_sage_streams");
  const trace::program source(recording);
  for (const std::size_t percent : percents) {
    const std::size_t capacity = source.peak_live() / 100 * percent;
    const outcome one = on<caching_allocator<TypeParam, provider_ref<simulated_device>>>(source, capacity);
    const outcome arenas =
        on<per_stream<caching_allocator<TypeParam, provider_ref<simulated_device>>>>(source, capacity);
    EXPECT_LE(arenas.failures, one.failures) << percent << " % of peak live";
    EXPECT_LE(arenas.refused, one.refused + one.refused / 10) << percent << " % of peak live";
  }
}

// With stitching, an arena does not know the idle pages of others. It gets them when all caches are emptied.
TEST(pressure_on_pages, is_handled_by_arenas_that_stitch) {
  for (const char* const name : {"gnn_sage", "gnn_sage_streams"}) {
    const trace::recording recording = conformance::recorded(name);
    const trace::program source(recording);
    for (const std::size_t percent : percents) {
      const std::size_t capacity = source.peak_live() / 100 * percent;
      EXPECT_EQ(
          (on<per_stream<caching_allocator<stitched, provider_ref<simulated_device>>>>(source, capacity))
              .failures,
          0u)
          << name << ", " << percent << " % of peak live";
    }
  }
}

/// A device of which another allocator caches one segment of 60 MiB. The tests here use it in one thread.
class shared_with_another : public provider_ref<simulated_device> {
 public:
  static constexpr bool is_thread_safe = true;
  explicit shared_with_another(simulated_device& to) : provider_ref(to), cached_(to.acquire(60_MiB)) {}
  bool reclaim() noexcept {
    const bool any = cached_ != nullptr && inner().release(cached_, 60_MiB);
    cached_ = nullptr;
    return any;
  }

 private:
  void* cached_;
};
static_assert(detail::reclaiming_provider<shared_with_another>);
static_assert(!detail::reclaiming_provider<provider_ref<simulated_device>>);

template <typename Pool>
void have_others_give_back_what_they_cache() {
  simulated_device device{simulated_device::options{.capacity = 100_MiB}};
  Pool pool{shared_with_another(device)};
  void* const small = pool.allocate(30_MiB);
  EXPECT_EQ(device.used(), 90_MiB) << "there is enough";
  void* const large = pool.try_allocate(60_MiB);
  EXPECT_NE(large, nullptr);
  EXPECT_EQ(device.calls().refused, 1u);
  EXPECT_EQ(pool.try_allocate(60_MiB), nullptr) << "they have no more";
  EXPECT_EQ(device.calls().refused, 3u);
  pool.deallocate(small);
  pool.deallocate(large);
}
TEST(pressure_on_shared_devices, makes_others_release_their_caches) {
  have_others_give_back_what_they_cache<caching_allocator<pytorch<>, shared_with_another>>();
  have_others_give_back_what_they_cache<locked<caching_allocator<pytorch<>, shared_with_another>>>();
  have_others_give_back_what_they_cache<per_stream<caching_allocator<pytorch<>, shared_with_another>>>();
}
TEST(pressure_on_shared_devices, asks_no_other_if_the_recipe_keeps_its_cache) {
  simulated_device device{simulated_device::options{.capacity = 100_MiB}};
  caching_allocator<with<pytorch<>, recover_never>, shared_with_another> pool{shared_with_another(device)};
  EXPECT_EQ(pool.try_allocate(60_MiB), nullptr);
  EXPECT_EQ(device.used(), 60_MiB);
}

// Each thread has one block of at most 32 MiB, so there is room for all. Most of the time all blocks are in
// use.
TEST(pressure_threads, in_arenas_fails_few_requests_that_have_room) {
  constexpr unsigned threads = 4, requests = 2000;
  simulated_device::options options{.capacity = threads * 32_MiB};
  per_stream<caching_allocator<power_of_two, simulated_device>> pool{simulated_device(options)};
  std::atomic<unsigned> failures{0};
  std::vector<std::thread> running;
  for (unsigned t = 0; t < threads; ++t) {
    running.emplace_back([&pool, &failures, t] {
      std::mt19937_64 random(t);
      for (unsigned i = 0; i < requests; ++i) {
        void* const p = pool.try_allocate(1_MiB + random() % 31_MiB, stream_id{t});
        if (p == nullptr) ++failures;
        if (random() % 4 == 0) std::this_thread::yield();
        pool.deallocate(p);
      }
    });
  }
  for (std::thread& t : running) t.join();
  EXPECT_LT(failures, threads * requests / 100);
  EXPECT_GT(pool.statistics().num_alloc_retries, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

}  // namespace
