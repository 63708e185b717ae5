// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using options = host_pinned::options;
using pinning = host_pinned::pinning;

TEST(host_pinned, gives_writable_and_locked_memory) {
  host_pinned device{options{.capacity = 1_MiB}};
  void* p = device.acquire(64_KiB);
  if (p == nullptr) GTEST_SKIP() << device.last_error();
  std::memset(p, 7, 64_KiB);
  EXPECT_EQ(static_cast<unsigned char*>(p)[64_KiB - 1], 7);
  EXPECT_TRUE(device.release(p, 64_KiB));
  EXPECT_FALSE(device.release(p, 64_KiB));
  EXPECT_EQ(device.last_error().rfind("release 65536 bytes at 0x", 0), 0u) << device.last_error();
  EXPECT_NE(device.last_error().find(": not a segment of this provider"), std::string::npos);
}

TEST(host_pinned, reports_why_it_failed) {
  host_pinned device{options{.capacity = 64_KiB, .pin = pinning::never}};
  EXPECT_EQ(device.acquire(128_KiB), nullptr);
  EXPECT_EQ(device.last_error(), "acquire 131072 bytes: the capacity of this provider is reached");
  EXPECT_EQ(device.acquire(0), nullptr);
  EXPECT_EQ(device.last_error(), "acquire: the size is 0 or too large");
  EXPECT_EQ(device.acquire(~std::size_t{0}), nullptr);
  void* all = device.acquire(64_KiB);
  EXPECT_NE(all, nullptr);
  EXPECT_FALSE(device.release(all, 4_KiB));
  EXPECT_TRUE(device.release(all, 64_KiB));
}

TEST(host_pinned, gives_huge_pages_or_names_the_setting) {
  host_pinned device{options{.capacity = 16_MiB, .pin = pinning::never}};
  void* p = device.acquire(4096, page_kind::huge);
  if (p == nullptr) {
#if defined(__linux__)
    EXPECT_NE(device.last_error().find("nr_hugepages"), std::string::npos);
#else
    EXPECT_EQ(device.last_error(), "acquire 4096 bytes: host_pinned has larger pages on Linux alone");
#endif
  } else {
    std::memset(p, 1, 4096);
    EXPECT_TRUE(device.release(p, 4096));
  }
}

TEST(host_pinned, runs_a_streams_tasks_in_order) {
  host_pinned device{options{.capacity = 1_MiB, .pin = pinning::never}};
  const stream_id side = device.create_stream();
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i)
    ASSERT_TRUE(device.submit(
        side, [i, &order, owned = std::make_unique<int>(i)] { order.push_back(*owned == i ? i : -1); }));
  ASSERT_TRUE(device.synchronize(side));
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(host_pinned, is_trimmed_only_when_its_work_is_done) {
  caching_allocator<pytorch<>, host_pinned> pool{
      host_pinned({.capacity = 64_MiB, .pin = host_pinned::pinning::never})};
  auto* const p = static_cast<char*>(pool.allocate(1_MiB));
  std::atomic<bool> is_done{false};
  ASSERT_TRUE(pool.provider().submit({}, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::memset(p, 1, 1000);  // of a segment that would be gone
    is_done = true;
  }));
  pool.deallocate(p);
  pool.trim();
  EXPECT_TRUE(is_done);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TEST(host_pinned, has_events_that_complete_in_order) {
  host_pinned device{options{.capacity = 1_MiB, .pin = pinning::never}};
  const stream_id side = device.create_stream();
  std::atomic<bool> go = false;
  host_pinned::event before, behind, elsewhere;
  ASSERT_TRUE(device.record(side, before));
  ASSERT_TRUE(device.submit(side, [&go] { go.wait(false); }));
  ASSERT_TRUE(device.record(side, behind) && device.record(stream_id{}, elsewhere));
  EXPECT_TRUE(device.query(before));
  EXPECT_FALSE(device.query(behind));
  EXPECT_TRUE(device.query(elsewhere));
  go = true;
  go.notify_all();
  EXPECT_TRUE(device.wait(behind));
  EXPECT_TRUE(device.query(behind));
}

TEST(host_pinned, finishes_streams_that_end) {
  int done = 0;
  {
    host_pinned device{options{.capacity = 1_MiB, .pin = pinning::never}};
    const stream_id side = device.create_stream();
    for (int i = 0; i < 100; ++i) device.submit(side, [&done] { ++done; });
    host_pinned::event behind;
    ASSERT_TRUE(device.record(side, behind));
    EXPECT_TRUE(device.destroy_stream(side));
    EXPECT_EQ(done, 100);
    EXPECT_TRUE(device.query(behind));
    EXPECT_FALSE(device.submit(side, [] {}));
    EXPECT_FALSE(device.record(side, behind));
    EXPECT_TRUE(device.synchronize(side));  // it has no work
    EXPECT_FALSE(device.destroy_stream(side));
    for (int i = 0; i < 100; ++i) device.submit(stream_id{}, [&done] { ++done; });
  }
  EXPECT_EQ(done, 200);
}

TEST(host_pinned, keeps_its_default_stream) {
  host_pinned device{options{.capacity = 64_KiB, .pin = pinning::never}};
  EXPECT_FALSE(device.destroy_stream(stream_id{}));
  EXPECT_TRUE(device.has_stream(stream_id{}));
  EXPECT_TRUE(device.submit(stream_id{}, [] {}));
}

}  // namespace
