// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/concurrent/configured_pinned.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/configured.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/provider/timed.hpp>
#include <tessera/tessera.hpp>

#include "by_day.hpp"
#include "extensions.hpp"
#include "stress.hpp"
#include "watchdog.hpp"

namespace {

using namespace tessera;
using namespace conformance;
using namespace conformance::thread_stress;
using memory = provider_ref<host_pinned>;

TEST(stress_threads, background_reclaiming) {
  const watchdog guard("background_reclaiming");
  host_pinned device = unlocked();
  {
    tessera::concurrent::background_reclaiming<
        tessera::caching_allocator<pinned_packed, memory, tessera::extension::observer<counting_observer>>>
        pool{memory(device), {}, {.pause = std::chrono::microseconds(1)}};
    stress_and_compare_counts(pool, device);
  }
  expect_all_back(device);
}

TEST(stress_threads, waiting_if_memory_is_short) {
  const watchdog guard("waiting");
  host_pinned device = unlocked(24_MiB);
  {
    tessera::concurrent::waiting<
        locked<caching_allocator<pytorch<>, memory, extension::observer<counting_observer>>>>
        behind_one{std::chrono::milliseconds(1), memory(device)};
    stress_and_compare_counts(behind_one, device, usual / 4);
    tessera::concurrent::waiting<
        per_stream<caching_allocator<pytorch<>, memory, extension::observer<counting_observer>>>>
        behind_many{std::chrono::milliseconds(1), memory(device)};
    stress_and_compare_counts(behind_many, device, usual / 4);
  }
  expect_all_back(device);
}

TEST(stress_threads, per_device) {
  const watchdog guard("per_device");
  host_pinned device = unlocked(256_MiB);
  const auto all = [&device] { return std::vector<memory>{memory(device), memory(device)}; };
  {
    tessera::concurrent::per_device<
        tessera::concurrent::locked<tessera::caching_allocator<pytorch<>, memory>>>
        behind_one(all());
    stress<false>(behind_one, device, usual / 2);
    tessera::concurrent::per_device<per_stream<tessera::caching_allocator<pytorch<>, memory>>> behind_many(
        all());
    stress<false>(behind_many, device, usual / 2);
  }
  expect_all_back(device);
}

TEST(stress_threads, configured_while_settings_change) {
  const watchdog guard("configured");
  host_pinned device = unlocked();
  {
    using family = pytorch_family;
    configured<family, per_stream<caching_allocator<pytorch<>, memory>>> pool({}, memory(device));
    stressed<decltype(pool), false> stressing(pool);
    std::thread changing([&pool] {
      for (int i = 0; i < 200; ++i) {
        EXPECT_FALSE(pool.change(i % 2 == 0 ? "max_split_size_mb:32" : "garbage_collection_threshold:0.5"));
        std::this_thread::yield();
      }
    });
    threads_under_test(stressing, device).run(operations(usual), 3);
    changing.join();
  }
  expect_all_back(device);
}

TEST(stress_threads, pinned_memory_that_is_registered_and_processed_in_background) {
  const watchdog guard("configured_pinned");
  host_pinned host = unlocked(), device = unlocked();
  {
    const config::pytorch::settings said{.pinned_use_background_threads = true,
                                         .pinned_use_host_register = true,
                                         .pinned_reserve_segment_size = 4_MiB};
    tessera::concurrent::configured_pinned<pytorch_family::pinned_family, memory, host_pinned> pool(
        said, memory(host), device);
    stress<false>(pool, device, usual / 2);
  }
  expect_all_back(host);
  expect_all_back(device);
}

TEST(stress_threads, copies_of_a_shared_allocator_with_a_history) {
  const watchdog guard("shared_allocator");
  using pool_type = locked<caching_allocator<pytorch<>, timed<host_pinned>, extension::observer<history<>>>>;
  host_pinned device = unlocked();
  call_times times;
  {
    auto pool = shared_allocator<pool_type>::make(timed<host_pinned>(device, times), policies<pytorch<>>{},
                                                  extension::observer{history<>(1000)});
    stressed<decltype(pool)> stressing(pool);
    std::thread beside([same = pool]() mutable {
      for (int i = 0; i < 500; ++i) {
        const auto copy = same;
        same = copy;
        with_observer(*same, [i](history<>& kept) { kept.label(i % 2 == 0 ? "even" : "odd"); });
      }
    });
    threads_under_test(stressing, device).run(operations(usual / 2), 3);
    beside.join();
    EXPECT_EQ(with_observer(*pool, [](const history<>& kept) { return kept.size(); }), 1000u);
    EXPECT_EQ(times.acquire().count, pool.statistics().num_device_alloc);
  }
  expect_all_back(device);
}

TEST(stress_threads, allocators_that_share_a_budget) {
  const watchdog guard("limited");
  using device_type = limiting<host_pinned>;
  using pool_type =
      locked<caching_allocator<pytorch<>, provider_ref<device_type>, extension::observer<counting_observer>>>;
  device_type device(unlocked(), 48_MiB);
  {
    pool_type one{provider_ref(device)}, other{provider_ref(device)};
    stressed<pool_type> first(one), second(other);
    std::thread beside([&] { threads_under_test(second, device.inner()).run(operations(usual / 2), 2); });
    threads_under_test(first, device.inner()).run(operations(usual / 2), 2);
    beside.join();
    EXPECT_EQ(device.taken(), 0u);
  }
}

/// An allocator has no thread-local state. A freed block belongs to its arena, which outlives the thread. If
/// all arenas are taken, streams share them.
template <typename Pool>
void begin_and_end_threads(const char* what, int threads) {
  const watchdog guard(what);
  Pool pool{simulated_device({.capacity = 1000_GiB})};
  std::atomic<void*> left = nullptr;
  std::size_t described = 0;
  for (int t = 0; t < threads; t += 2) {
    const auto live = [&pool, &left](int number) {
      const stream_id own{static_cast<std::uint64_t>(number % 300)};  // more than there are arenas
      void* const mine = pool.allocate(1000, own);
      void* const kept = pool.allocate(1000, own);
      pool.deallocate(left.exchange(kept));  // of another thread, which may have ended
      pool.deallocate(mine);
    };
    std::thread one(live, t), other(live, t + 1);
    one.join();
    other.join();
    if (t % 500 == 498) pool.trim();
    if (t == threads / 2 - 2) described = pool.metadata_bytes();
  }
  EXPECT_EQ(pool.current_usage().allocated, 1024u) << "that of the last thread";
  EXPECT_EQ(pool.statistics().all.allocation.allocated, 2 * threads);
  EXPECT_EQ(pool.statistics().all.allocation.freed, 2 * threads - 1);
  pool.deallocate(left);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_LE(pool.metadata_bytes(), described + 64_KiB);
  EXPECT_STREQ(pool.audit(), nullptr);
}
TEST(stress_threads, that_end_leak_nothing) {
  begin_and_end_threads<locked<caching_allocator<pytorch<>, simulated_device>>>("locked", 1000);
  begin_and_end_threads<per_stream<caching_allocator<pytorch<>, simulated_device>>>("per_stream",
                                                                                    by_day(2'000, 10'000));
}

TEST(stress_threads, that_end_free_blocks_of_others) {
  simulated_device device;
  counting_observer kept;
  struct teller {
    counting_observer* to;
    void on(const allocator_event& e) noexcept { to->on(e); }
  };
  {
    per_stream<caching_allocator<pytorch<>, provider_ref<simulated_device>, extension::observer<teller>>>
        pool{provider_ref(device), {}, extension::observer<teller>{{&kept}}};
    std::vector<void*> blocks;
    for (int i = 0; i < 100; ++i) blocks.push_back(pool.allocate(1000));
    std::thread([&] {
      for (void* p : blocks) pool.deallocate(p);
    }).join();
    EXPECT_EQ(kept.free, 0) << "they wait for whoever comes by";
  }
  EXPECT_EQ(kept.free, 100) << "at last, that is who ends the allocator";
  EXPECT_EQ(device.used(), 0u);
}

}  // namespace
