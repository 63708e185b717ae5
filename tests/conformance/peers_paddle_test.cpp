// SPDX-License-Identifier: Apache-2.0
// Requirements from the tests of Paddle's allocators, beyond the compatibility matrix.
#include <algorithm>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/policy/chunks.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using ahead = caching_allocator<paddle_family::naive_best_fit, simulated_device>;

/// The buddy allocator's chunks on a device whose memory others partly use.
struct of_a_device {
  std::size_t all, of_others;
  fraction share;
  std::size_t requests[4];
};

TEST(peers_paddle_buddy, allocates_from_the_rest_of_others) {
  constexpr of_a_device cases[] = {
      {16_GiB, 0, percent(1), {10, 10_KiB, 1_MiB, 500_MiB}},
      {16_GiB, 8_GiB, percent(70), {10, 10_KiB, 10_MiB, 1_GiB}},
      {16_GiB, 1_GiB, percent(100), {1_GiB, 1_GiB, 2_GiB, 10}},
      {8_GiB, 0, percent(10), {10, 10_KiB, 50_MiB, 1_GiB}},
  };
  for (const of_a_device& c : cases) {
    simulated_device device(simulated_device::options{.capacity = c.all});
    simulated_device others = device.another_process();
    ASSERT_TRUE(c.of_others == 0 || others.acquire(c.of_others) != nullptr);
    ahead pool(std::move(device), paddle_family::naive_best_fit::configured(
                                      {.naive_best_fit = true, .fraction_of_gpu_memory = c.share}));
    for (const std::size_t bytes : c.requests) {
      const std::size_t used = pool.current_usage().allocated;
      void* const p = pool.try_allocate(bytes);
      ASSERT_NE(p, nullptr) << bytes << " of " << c.all << " less " << c.of_others;
      EXPECT_GE(pool.current_usage().allocated, used + bytes);
      pool.deallocate(p);
      EXPECT_EQ(pool.current_usage().allocated, used);
    }
    pool.trim();
    EXPECT_EQ(pool.current_usage().reserved, 0u);
  }
}

TEST(peers_paddle_buddy, refills_by_the_same_share_of_the_rest) {
  ahead pool(simulated_device(simulated_device::options{.capacity = 16_GiB}),
             paddle_family::naive_best_fit::configured(
                 {.naive_best_fit = true, .fraction_of_gpu_memory = percent(60)}));
  const auto of_the_rest = [&pool] {
    return percent(60).of(chunk_schedule::available(pool.provider().available()));
  };
  const std::size_t chunk = of_the_rest();
  void* const first = pool.try_allocate(chunk - 1000);
  ASSERT_NE(first, nullptr);
  void* const second = pool.try_allocate(of_the_rest() - 1000);
  ASSERT_NE(second, nullptr);
  const std::size_t third = of_the_rest() - 1000;
  pool.deallocate(pool.try_allocate(third));
  EXPECT_EQ(pool.provider().calls().acquire, 3u);
  pool.deallocate(first), pool.deallocate(second);
}

TEST(peers_paddle_together, serves_small_and_huge_requests_together) {
  // 512 MiB at first, 4 MiB for each further chunk, and 2 GiB at once.
  ahead pool(simulated_device{},
             paddle_family::naive_best_fit::configured({.naive_best_fit = true,
                                                        .fraction_of_gpu_memory = percent(0),
                                                        .initial_gpu_memory = 512_MiB,
                                                        .reallocate_gpu_memory = 4_MiB}));
  void* const small = pool.allocate(1024);
  EXPECT_EQ(pool.current_usage().reserved, 512_MiB);
  void* const huge = pool.allocate(2_GiB);
  EXPECT_GE(pool.current_usage().allocated, 2_GiB + 1024);
  pool.deallocate(huge);
  EXPECT_EQ(pool.current_usage().reserved, 512_MiB);
  pool.deallocate(small);
}

TEST(peers_paddle_streams, a_block_has_a_stream_and_null_has_none) {
  per_stream<caching_allocator<paddle_family::auto_growth, simulated_device>> pool;
  EXPECT_EQ(pool.allocate(0, stream_id{3}), nullptr);
  EXPECT_FALSE(pool.record_stream(static_cast<void*>(nullptr), stream_id{4}));
  EXPECT_EQ(make_block(pool, 0, stream_id{3}).get(), nullptr);
  for (const stream_id stream : {stream_id{}, stream_id{3}}) {
    const unique_block block = make_block(pool, 256, stream);
    EXPECT_EQ(block.stream(), stream);
    EXPECT_GE(block.size(), 256u);
  }
  // A call without a stream uses the default stream.
  void* const p = pool.allocate(256);
  pool.deallocate(p);
  EXPECT_EQ(pool.allocate(256, stream_id{}), p);
}

TEST(peers_paddle_streams, a_block_freed_by_one_thread_serves_another_on_another_stream) {
  // Three quarters of the device are freed but cached for one stream. Another stream then requests them.
  locked<caching_allocator<paddle_family::auto_growth, simulated_device>> pool{
      simulated_device(simulated_device::options{.capacity = 1_GiB})};
  pool.deallocate(pool.allocate(768_MiB, stream_id{1}));
  void* p = nullptr;
  std::thread([&] { p = pool.try_allocate(768_MiB, stream_id{2}); }).join();
  EXPECT_NE(p, nullptr);
  pool.deallocate(p);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

/// Each stream adds its own workspace and its neighbour's to its result. Both may be freed meanwhile.
template <typename Pool>
void add_up_neighbours(bool in_threads) {
  constexpr std::size_t streams = 6, count = 4096;
  host_pinned host(host_pinned::options{.capacity = 64_MiB, .pin = host_pinned::pinning::never});
  std::vector<stream_id> stream;
  for (std::size_t i = 0; i < streams; ++i) stream.push_back(host.create_stream());
  Pool pool{provider_ref(host)};
  std::vector<int*> workspaces, results;
  const auto filled = [&](std::size_t on, int with) {
    auto* const p = static_cast<int*>(pool.allocate(count * sizeof(int), stream[on]));
    EXPECT_TRUE(host.submit(stream[on], [=] { std::fill_n(p, count, with); }));
    return p;
  };
  for (std::size_t i = 0; i < streams; ++i)
    workspaces.push_back(filled(i, 0)), results.push_back(filled(i, 0));
  for (std::size_t i = 0; i < streams; ++i) host.synchronize(stream[i]);

  const auto run = [&](std::size_t i) {
    const std::size_t neighbour = i > 0 ? i - 1 : i;
    for (const std::size_t from : {i, neighbour})
      EXPECT_TRUE(host.submit(stream[i], [x = workspaces[from], y = results[i]] {
        for (std::size_t j = 0; j < count; ++j) y[j] += x[j] + 1;
      }));
    EXPECT_TRUE(pool.record_stream(workspaces[neighbour], stream[i]));
  };
  if (in_threads) {
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < streams; ++i) threads.emplace_back(run, i);
    for (std::thread& t : threads) t.join();
    for (int* p : workspaces) pool.deallocate(p);
  } else {
    // Backwards, so that a neighbour's work is submitted before a workspace is freed. Later work would
    // overwrite it.
    for (std::size_t i = streams; i-- > 0;) {
      run(i);
      pool.deallocate(workspaces[i]);
      pool.deallocate(filled(i, 1000));
    }
  }
  for (std::size_t i = 0; i < streams; ++i) {
    host.synchronize(stream[i]);
    for (std::size_t j = 0; j < count; ++j) ASSERT_EQ(results[i][j], 2) << i << ", " << j;
    pool.deallocate(results[i]);
  }
  pool.trim();
  EXPECT_EQ(pool.current_usage().allocated + pool.current_usage().reserved, 0u);
}

TEST(peers_paddle_streams, keep_a_workspace_until_the_neighbours_work_is_done) {
  using view = provider_ref<host_pinned>;
  add_up_neighbours<caching_allocator<paddle_family::auto_growth, view>>(false);
  add_up_neighbours<locked<caching_allocator<paddle_family::auto_growth, view>>>(true);
  add_up_neighbours<per_stream<caching_allocator<paddle_family::auto_growth, view>>>(true);
}

TEST(peers_paddle_thread_local, blocks_outlive_threads_that_emptied_their_cache) {
  per_stream<caching_allocator<paddle_family::auto_growth, simulated_device>> pool;
  std::vector<void*> blocks(5);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < blocks.size(); ++i)
    threads.emplace_back([&pool, &blocks, i] {
      blocks[i] = pool.allocate(10, stream_id{i});
      pool.trim();
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(pool.current_usage().requested, 50u);
  for (void* p : blocks) pool.deallocate(p);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_EQ(pool.audit(), nullptr);
}

}  // namespace
