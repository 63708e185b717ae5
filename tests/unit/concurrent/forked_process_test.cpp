// SPDX-License-Identifier: Apache-2.0
// What a process that is forked from one with threads does with the allocators and providers of its parent.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../provider/host_process.hpp"

namespace {

using namespace tessera;
using namespace std::chrono_literals;

host_pinned unlocked() { return host_pinned({.pin = host_pinned::pinning::never}); }

void await(const std::atomic<bool>& flag) {
  while (!flag) std::this_thread::yield();
}

/// Runs a part of a test in a forked process, which a signal ends if it hangs.
template <typename F>
int exit_code_after_fork(F part) {
  return host_process::end_of(host_process::start([&] {
    ::alarm(20);
    return part();
  }));
}

TEST(forked_process, destroys_an_allocator_over_host_streams) {
  using pool = caching_allocator<pinned_packed, host_pinned>;
  auto memory = std::make_unique<pool>(unlocked());
  host_pinned& device = memory->provider();
  const stream_id busy = device.create_stream();
  std::atomic<bool> go_on = false;
  void* const p = memory->allocate(1_MiB);
  void* const q = memory->allocate(1_MiB);
  EXPECT_TRUE(device.submit(busy, [&] { await(go_on); }) && memory->record_stream(p, busy));
  EXPECT_TRUE(device.synchronize({}));  // its thread has run, and waits
  memory->deallocate(p);
  EXPECT_GT(memory->current_usage().pending(), 0u);
  EXPECT_EQ(exit_code_after_fork([&] {
              memory->deallocate(q);
              memory.reset();
              return 7;
            }),
            7);
  go_on = true;
  EXPECT_TRUE(device.synchronize(busy));  // the parent has all it had
  memory->deallocate(q);
  memory->trim();
  EXPECT_EQ(memory->current_usage().reserved, 0u);
}

TEST(forked_process, gets_memory_but_no_stream_of_its_parents_provider) {
  host_pinned device = unlocked();
  const stream_id stream = device.create_stream();
  void* const p = device.acquire(1_MiB);
  host_pinned::event mark{};
  ASSERT_TRUE(p != nullptr && device.record(stream, mark));
  const auto use = [&] {
    host_pinned::event other{};
    void* const q = device.acquire(1_MiB);
    if (q == nullptr || device.used() != 2_MiB || !device.release(q, 1_MiB)) return 1;
    if (!device.release(p, 1_MiB) || device.held().acquired != 0) return 2;  // its own copy
    if (device.copy_to_host(&other, &other, 1, stream)) return 3;
    if (device.has_stream({}) || device.submit(stream, [] {}) || device.record(stream, other)) return 4;
    if (!device.query(mark) || !device.wait(mark) || !device.synchronize(stream)) return 5;
    if (device.destroy_stream(stream) || device.make_wait(stream, mark)) return 6;
    host_pinned own = unlocked();
    device = std::move(own);
    return device.acquire(1_MiB) != nullptr && device.synchronize({}) ? 7 : 8;
  };
  EXPECT_EQ(exit_code_after_fork(use), 7);
  EXPECT_TRUE(device.release(p, 1_MiB));
}

TEST(forked_process, destroys_an_allocator_whose_thread_reclaims) {
  std::atomic<bool> go_on = false;
  using allocator = background_reclaiming<caching_allocator<pinned_packed, host_pinned>>;
  auto pool = std::make_unique<allocator>(unlocked(), recipe::policies<pinned_packed>{},
                                          allocator::options{.pause = 1h});
  void* const p = pool->allocate(64_KiB);
  const stream_id busy = pool->visit_provider([&](auto& device) {
    const stream_id stream = device.create_stream();
    device.submit(stream, [&go_on] { await(go_on); });
    return stream;
  });
  ASSERT_TRUE(pool->record_stream(p, busy));
  pool->deallocate(p);
  EXPECT_TRUE(pool->has_worker());
  std::this_thread::sleep_for(20ms);  // until the thread waits
  EXPECT_EQ(exit_code_after_fork([&] { return pool.reset(), 7; }), 7);
  go_on = true;
}

TEST(forked_process, destroys_an_allocator_for_which_a_thread_waits) {
  using allocator = waiting<locked<caching_allocator<pytorch<>, simulated_device>>>;
  auto pool = std::make_unique<allocator>(1h, simulated_device({.capacity = 20_MiB}));
  void* const held = pool->allocate(20_MiB);
  std::thread second([&] { EXPECT_EQ(pool->allocate(20_MiB), held); });
  while (pool->statistics().num_ooms <= 1) std::this_thread::yield();
  std::this_thread::sleep_for(20ms);  // until it waits
  EXPECT_EQ(exit_code_after_fork([&] { return pool.reset(), 7; }), 7);
  pool->deallocate(held);
  second.join();
}

}  // namespace
