// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/law/provider_laws.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../concurrent/devices.hpp"

namespace {

using namespace tessera;
using adaptor_tests::gated_device;
using adaptor_tests::gated_ref;

using limited_simulated = limiting<simulated_device>;
static_assert(detail::limited_provider<limited_simulated> && paged_provider<limited_simulated> &&
              event_provider<limited_simulated> && sharing_provider<limited_simulated>);
static_assert(!detail::is_thread_safe<limited_simulated> && detail::is_thread_safe<limiting<gated_ref>>);
static_assert(!registering_provider<limited_simulated>);

TEST(limiting, keeps_the_laws_of_a_provider) {
  limited_simulated device(simulated_device{}, 40_GiB);
  EXPECT_STREQ(law::provider(device).broken, nullptr);
  EXPECT_EQ(device.taken(), 0u);
  limiting<simulated_npu> npu(simulated_npu{}, 40_GiB);
  limiting<simulated_npu> other(npu.inner().another_process(), 40_GiB);
  EXPECT_STREQ(law::provider(npu).broken, nullptr);
  EXPECT_STREQ(law::sharing(npu, other).broken, nullptr);
  EXPECT_EQ(npu.taken(), 0u);
}

TEST(limiting, refuses_although_the_device_has_room) {
  limited_simulated device(simulated_device{}, 100_MiB);
  EXPECT_EQ(device.limit(), 100_MiB);
  EXPECT_EQ(device.capacity(), 100_MiB);
  void* const first = device.acquire(60_MiB);
  EXPECT_TRUE(device.would_exceed_limit(50_MiB));
  EXPECT_EQ(device.acquire(50_MiB), nullptr);
  EXPECT_EQ(device.inner().calls().acquire, 1u);
  EXPECT_FALSE(device.would_exceed_limit(40_MiB));
  void* const second = device.acquire(40_MiB, page_kind::huge);
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(device.acquire(512), nullptr);
  EXPECT_TRUE(device.release(first, 60_MiB));
  EXPECT_EQ(device.taken(), 40_MiB);
  EXPECT_TRUE(device.release(second, 40_MiB));
  EXPECT_EQ(device.taken(), 0u);
}

/// The smaller of the device's memory and the limit.
TEST(limiting, reports_the_bytes_available_under_the_limit) {
  simulated_device under({.capacity = 1_GiB});
  limiting<provider_ref<simulated_device>> device(provider_ref<simulated_device>(under), 100_MiB);
  EXPECT_EQ(device.available(), 100_MiB);
  void* const p = device.acquire(60_MiB);
  EXPECT_EQ(device.available(), 40_MiB);
  void* const other = under.acquire(1_GiB - 80_MiB);
  EXPECT_EQ(device.available(), 20_MiB);
  EXPECT_TRUE(under.release(other, 1_GiB - 80_MiB) && device.release(p, 60_MiB));
  EXPECT_EQ(device.available(), 100_MiB);

  caching_allocator<paddle_family::naive_best_fit, provider_ref<decltype(device)>> pool{provider_ref(device)};
  void* const small = pool.allocate(1_MiB);  // of a chunk that is a share of what is available
  EXPECT_GT(pool.current_usage().reserved, 80_MiB);
  pool.deallocate(small);
}

TEST(limiting, a_failed_call_leaves_the_count_unchanged) {
  limited_simulated device(simulated_device{}, 100_MiB);
  device.inner().fail_call(1);
  EXPECT_EQ(device.acquire(100_MiB), nullptr);
  EXPECT_EQ(device.taken(), 0u);
  void* const all = device.acquire(100_MiB);
  ASSERT_NE(all, nullptr);
  device.inner().fail_call(1);
  EXPECT_FALSE(device.release(all, 100_MiB));
  EXPECT_EQ(device.taken(), 100_MiB);
  EXPECT_TRUE(device.release(all, 100_MiB));

  simulated_device::physical plain;
  limited_simulated::physical made;
  device.inner().fail_call(1);
  EXPECT_FALSE(device.create(100_MiB, page_kind::normal, made));
  EXPECT_EQ(device.taken(), 0u);
  ASSERT_TRUE(device.create(100_MiB, page_kind::normal, made));
  EXPECT_FALSE(device.create(2_MiB, page_kind::normal, made));
  EXPECT_TRUE(device.inner().create(2_MiB, page_kind::normal, plain));  // past it, there is room
  device.inner().fail_call(1);
  EXPECT_FALSE(device.destroy(made));
  EXPECT_EQ(device.taken(), 100_MiB);
  EXPECT_TRUE(device.destroy(made));
  EXPECT_EQ(device.taken(), 0u);
}

TEST(limiting, imported_memory_counts_in_its_own_process) {
  limiting<simulated_device> device(simulated_device{}, 10_MiB);
  limiting<simulated_device> other(device.inner().another_process(), 2_MiB);
  limited_simulated::physical made, imported;
  limited_simulated::shareable name;
  ASSERT_TRUE(device.create(10_MiB, page_kind::normal, made));
  ASSERT_TRUE(device.export_memory(made, importers::any, name));
  ASSERT_TRUE(other.import_memory(name, imported));
  EXPECT_EQ(other.taken(), 0u);
  EXPECT_TRUE(other.destroy(imported));
  EXPECT_EQ(other.taken(), 0u);
  EXPECT_TRUE(device.destroy(made));
}

TEST(limiting, moves_with_its_memory) {
  limited_simulated device(simulated_device{}, 10_MiB);
  void* const p = device.acquire(8_MiB);
  limited_simulated moved = std::move(device);
  EXPECT_EQ(moved.taken(), 8_MiB);
  EXPECT_TRUE(moved.would_exceed_limit(3_MiB));
  EXPECT_TRUE(moved.release(p, 8_MiB));
}

TEST(limiting, the_lower_of_two_limits_counts) {
  limiting<limited_simulated> device(limited_simulated(simulated_device{}, 10_MiB), 20_MiB);
  EXPECT_EQ(device.capacity(), 10_MiB);
  EXPECT_TRUE(device.would_exceed_limit(11_MiB));
  EXPECT_EQ(device.acquire(11_MiB), nullptr);
  EXPECT_EQ(device.taken(), 0u);
  limiting<limited_simulated>::physical made;
  EXPECT_TRUE(device.create(10_MiB, page_kind::normal, made));
  EXPECT_TRUE(device.destroy(made));
}

TEST(limiting, limits_pages_too) {
  for (const std::size_t limit : {50_MiB, 64_MiB}) {
    caching_allocator<pytorch_family::expandable, limited_simulated> pool(
        limited_simulated(simulated_device{}, limit));
    std::vector<void*> blocks;
    while (void* const p = pool.try_allocate(3_MiB)) blocks.push_back(p);
    EXPECT_LE(pool.current_usage().reserved, limit);
    EXPECT_GT(pool.current_usage().reserved + 20_MiB, limit);
    EXPECT_EQ(pool.provider().taken(), pool.current_usage().reserved);
    for (void* p : blocks) pool.deallocate(p);
    pool.trim();
    EXPECT_EQ(pool.provider().taken(), 0u);
    EXPECT_STREQ(pool.audit(), nullptr);
  }
}

TEST(limiting, limits_stitched_pages) {
  caching_allocator<stitched, limited_simulated> pool(limited_simulated(simulated_device{}, 64_MiB));
  std::vector<void*> blocks;
  for (std::size_t bytes : {5_MiB, 9_MiB, 13_MiB, 3_MiB}) blocks.push_back(pool.allocate(bytes));
  for (void*& p : blocks) pool.deallocate(std::exchange(p, nullptr));
  blocks.assign(1, pool.allocate(60_MiB));
  EXPECT_LE(pool.provider().taken(), 64_MiB);
  EXPECT_EQ(pool.try_allocate(8_MiB), nullptr);
  EXPECT_EQ(pool.provider().taken(), pool.current_usage().reserved);
  pool.deallocate(blocks.front());
}

TEST(limiting, a_refusal_because_of_the_limit_differs_from_a_full_device) {
  using recipe = with<pytorch<>, fail_fast<recover_by_releasing_oversize, true>>;
  caching_allocator<recipe, limited_simulated> pool(limited_simulated(simulated_device{}, 40_MiB));
  pool.deallocate(pool.allocate(30_MiB));
  EXPECT_EQ(pool.try_allocate(35_MiB), nullptr);
  EXPECT_EQ(pool.statistics().num_oom_rejections, 1u);
  EXPECT_EQ(pool.current_usage().cached, 30_MiB);
}

TEST(limiting, several_allocators_on_a_device_share_it) {
  limited_simulated device(simulated_device{}, 10_MiB);
  using one = caching_allocator<passthrough, provider_ref<limited_simulated>>;
  one first{provider_ref(device)}, second{provider_ref(device)};
  void* const held = first.allocate(6_MiB);
  EXPECT_EQ(second.try_allocate(6_MiB), nullptr);
  first.deallocate(held);
  void* const now = second.try_allocate(6_MiB);
  EXPECT_NE(now, nullptr);
  second.deallocate(now);
}

TEST(limiting, racing_threads_never_exceed_it) {
  gated_device device(1_GiB);
  limiting<gated_ref> shared(gated_ref(device), 10_MiB);
  std::atomic<std::size_t> most{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 2'000; ++i) {
        const std::size_t bytes = (1 + (i + t) % 4) * 1_MiB;
        void* const p = shared.acquire(bytes);
        for (std::size_t used = device.used(), seen = most;
             used > seen && !most.compare_exchange_weak(seen, used);) {
        }
        if (p != nullptr) (void)shared.release(p, bytes);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_LE(most.load(), 10_MiB);
  EXPECT_GT(most.load(), 0u);
  EXPECT_EQ(shared.taken(), 0u);
  EXPECT_EQ(device.used(), 0u);
}

TEST(limiting, limits_all_arenas_together) {
  per_stream<caching_allocator<pytorch<>, limited_simulated>> pool(
      limited_simulated(simulated_device{}, 40_MiB));
  void* const a = pool.allocate(20_MiB, stream_id{1});
  void* const b = pool.allocate(20_MiB, stream_id{2});
  EXPECT_EQ(pool.try_allocate(512, stream_id{3}), nullptr);
  pool.deallocate(a);
  void* const c = pool.try_allocate(512, stream_id{3});
  EXPECT_NE(c, nullptr);
  pool.deallocate(b);
  pool.deallocate(c);
  pool.trim();
  EXPECT_EQ(pool.visit_provider([](auto& d) { return d.taken(); }), 0u);
}

TEST(limiting, is_named_when_memory_runs_out) {
  caching_allocator<pytorch<>, limited_simulated> pool{limited_simulated(simulated_device{}, 30_MiB)};
  (void)pool.allocate(5_MiB);
  const oom_report error = explain(pool, 12_MiB);
  EXPECT_TRUE(error.device_is_limited);
  EXPECT_EQ(error.room(), 10_MiB);
  EXPECT_EQ(error.hints[0].what, oom_report::hint::raise_device_limit);
  EXPECT_NE(std::string_view(error.text().c_str())
                .find("hint: may help: raise the provider's own limit, which refused 12.00 MiB: a higher "
                      "limit [provider/limiting.hpp]"),
            std::string_view::npos)
      << error.text().c_str();
}

}  // namespace
