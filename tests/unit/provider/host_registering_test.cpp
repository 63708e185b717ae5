// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/host_registering.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

/// Memory that can refuse a release.
struct plain_memory : simulated_device {
  using simulated_device::simulated_device;
  bool release(void* p, std::size_t bytes) noexcept {
    return !refuses && simulated_device::release(p, bytes);
  }
  bool refuses = false;
};
/// A device that records the registered segments, up to a maximum number.
struct noting_device : simulated_device {
  bool register_memory(void* p, std::size_t bytes) noexcept {
    if (count == most) return false;
    ++count;
    latest = p;
    latest_bytes = bytes;
    return true;
  }
  bool unregister_memory(void*) noexcept { return !refuses && (--count, true); }
  int count = 0;
  int most = 1000;
  bool refuses = false;
  void* latest = nullptr;
  std::size_t latest_bytes = 0;
};
using provider = host_registering<plain_memory, noting_device>;

static_assert(event_provider<provider> && paged_provider<provider> && registering_provider<provider>);
static_assert(!virtual_memory_provider<provider>);
static_assert(detail::is_thread_safe<host_registering<host_pinned, host_pinned>> &&
              !detail::is_thread_safe<provider>);

TEST(host_registering, keeps_the_law_of_providers) {
  host_pinned device{host_pinned::options{.pin = host_pinned::pinning::where_allowed}};
  host_pinned unlocked{host_pinned::options{.capacity = 1_MiB, .pin = host_pinned::pinning::never}};
  host_registering<host_pinned, host_pinned> both(unlocked, device);
  const law::provider_check_result found = law::provider(both);
  EXPECT_STREQ(found.broken, nullptr) << found.report();
  EXPECT_EQ(device.held().registered, 0u);
  EXPECT_EQ(unlocked.used(), 0u);
}

TEST(host_registering, registers_each_segment_until_its_release) {
  plain_memory memory;
  noting_device device;
  {
    caching_allocator<pinned, provider> pool(provider(memory, device));
    void* const p = pool.allocate(100'000);
    EXPECT_EQ(device.latest, p);
    EXPECT_EQ(device.latest_bytes, 128_KiB);
    pool.deallocate(p);
    EXPECT_EQ(pool.allocate(100'000), p);
    EXPECT_EQ(device.count, 1);
    (void)pool.allocate(1_MiB);
    EXPECT_EQ(device.count, 2);
    pool.deallocate(p);
    pool.trim();
    EXPECT_EQ(device.count, 1);
  }
  EXPECT_EQ(device.count, 0);
  EXPECT_EQ(memory.used(), 0u);
  EXPECT_EQ(device.used(), 0u);
}

TEST(host_registering, reports_the_available_bytes_of_the_memory) {
  plain_memory memory(simulated_device::options{.capacity = 100_MiB});
  noting_device device;
  provider both(memory, device);
  EXPECT_EQ(both.available(), 100_MiB);
  void* const p = both.acquire(60_MiB);
  EXPECT_EQ(both.available(), 40_MiB);
  EXPECT_TRUE(both.release(p, 60_MiB));
}

TEST(host_registering, releases_memory_that_cannot_be_registered) {
  plain_memory memory;
  noting_device device;
  device.most = 1;
  caching_allocator<pinned, provider> pool(provider(memory, device));
  void* const p = pool.allocate(1_MiB);
  EXPECT_EQ(pool.try_allocate(1_MiB), nullptr);
  EXPECT_EQ(memory.used(), 1_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 1_MiB);
  pool.deallocate(p);
  EXPECT_NE(pool.allocate(2_MiB), nullptr);  // the cache was emptied for it
  EXPECT_EQ(device.count, 1);
}

TEST(host_registering, keeps_a_segment_registered_if_its_release_fails) {
  plain_memory memory;
  noting_device device;
  provider both(memory, device);
  void* const p = both.acquire(1_MiB);
  device.refuses = true;
  EXPECT_FALSE(both.release(p, 1_MiB));
  EXPECT_EQ(memory.used(), 1_MiB);
  device.refuses = false;
  memory.refuses = true;
  EXPECT_FALSE(both.release(p, 1_MiB));
  EXPECT_EQ(device.count, 1);
  memory.refuses = false;
  EXPECT_TRUE(both.release(p, 1_MiB));
  EXPECT_EQ(device.count, 0);
}

TEST(host_registering, returns_only_registered_memory) {
  plain_memory memory;
  noting_device device;
  caching_allocator<pinned, provider> pool(provider(memory, device));
  void* const p = pool.allocate(1_MiB);
  pool.deallocate(p);
  memory.refuses = true;
  device.most = 0;
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  device.most = 1;
  EXPECT_NE(pool.allocate(1_MiB), p);
  memory.refuses = false;
}

TEST(host_registering, keeps_blocks_pending_for_streams_of_the_device) {
  host_pinned memory{host_pinned::options{.capacity = 1_MiB, .pin = host_pinned::pinning::never}};
  host_pinned device{host_pinned::options{.pin = host_pinned::pinning::where_allowed}};
  const stream_id copies = device.create_stream();
  using registered_memory = host_registering<host_pinned, host_pinned>;
  locked<caching_allocator<pinned, registered_memory>> pool{registered_memory(memory, device)};
  auto* const p = static_cast<unsigned char*>(pool.allocate(64_KiB));
  EXPECT_EQ(device.held().registered, 64_KiB);
  std::memset(p, 1, 64_KiB);
  std::atomic<bool> may_read = false;
  unsigned char read = 0;
  ASSERT_TRUE(pool.record_stream(p, copies));
  device.submit(copies, [&] {
    while (!may_read) std::this_thread::yield();
    read = p[0];
  });
  pool.deallocate(p);
  void* const next = pool.allocate(64_KiB);
  EXPECT_NE(next, p);
  std::memset(next, 2, 64_KiB);
  may_read = true;
  device.synchronize(copies);
  EXPECT_EQ(read, 1);
  EXPECT_EQ(pool.allocate(64_KiB), p);
}

}  // namespace
