// SPDX-License-Identifier: Apache-2.0
// Threads in different contexts share two devices of CUDA's driver.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/provider/cuda_driver.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/tessera.hpp>

#include "fake_cuda.hpp"

namespace {

using namespace tessera;

template <typename Pool>
void serve_threads(Pool& pool, const fake_cuda& cuda) {
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      // Two threads have a context of their own, as in a real program.
      void* const own = t % 2 == 0 ? cuda.other_context(0) : nullptr;
      EXPECT_EQ(cuda.set_current(own), 0);
      const std::size_t number = t % 2;
      const stream_id stream{t + 1};
      std::vector<std::pair<void*, std::size_t>> mine;
      for (std::size_t i = 0; i < 400; ++i) {
        const std::size_t bytes = 1 + i * 7919 % 3_MiB;
        if (void* const p = pool.try_allocate(bytes, number, stream)) {
          EXPECT_TRUE(cuda.is_usable(static_cast<int>(number), p, bytes));
          if (i % 3 == 0) (void)pool.record_stream(p, stream_id{9 + t});
          mine.emplace_back(p, bytes);
        }
        if (i % 3 == 0) cuda.submit(static_cast<int>(number), handle_of(stream_id{9 + t}));
        if (mine.size() > 10) {
          pool.deallocate(mine[i % 10].first, mine[i % 10].second);
          mine[i % 10] = mine.back();
          mine.pop_back();
        }
        if (i % 100 == 99) pool.trim();
      }
      for (const auto& [p, bytes] : mine) pool.deallocate(p, bytes);
      EXPECT_EQ(cuda.current(), own);
      EXPECT_EQ(cuda.set_current(nullptr), 0);
    });
  }
  for (std::thread& t : threads) t.join();
  pool.trim();
  EXPECT_STREQ(pool.audit(), nullptr);
  for (const std::size_t number : {0u, 1u}) {
    EXPECT_EQ(pool.front(number).current_usage().allocated, 0u);
    EXPECT_EQ(pool.front(number).current_usage().reserved, 0u);
  }
}
template <typename Pool>
void serve_threads_on_two_devices(const cuda_driver& through, const fake_cuda& cuda) {
  std::vector<cuda_device> devices;
  for (const int number : {0, 1}) devices.emplace_back(through, number);
  Pool pool{std::move(devices)};
  serve_threads(pool, cuda);
}
using cuda_threads = with_fake_cuda;
TEST_F(cuda_threads, share_two_devices) {
  serve_threads_on_two_devices<per_device<locked<caching_allocator<pytorch<>, cuda_device>>>>(load(), cuda);
  serve_threads_on_two_devices<per_device<per_stream<caching_allocator<pytorch<>, cuda_device>>>>(load(),
                                                                                                  cuda);
}
TEST_F(cuda_threads, share_two_devices_in_ranges) {
  serve_threads_on_two_devices<
      per_device<locked<caching_allocator<pytorch_family::expandable, cuda_device>>>>(load(), cuda);
  serve_threads_on_two_devices<per_device<per_stream<caching_allocator<stitched, cuda_device>>>>(load(),
                                                                                                 cuda);
}
TEST_F(cuda_threads, share_two_devices_whose_streams_are_ordered) {
  serve_threads_on_two_devices<per_device<locked<caching_allocator<cuda_async, cuda_device>>>>(load(), cuda);
}

}  // namespace
