// SPDX-License-Identifier: Apache-2.0
// Snapshots of front ends. They are apart from take_snapshot_test.cpp, because their allocators take half of its memory to compile.
#include <cstddef>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/configured_pinned.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/configured.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/interop/cuda_mempool.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "viewer.hpp"

namespace {

using namespace tessera;

using observed = extension::observer<history<>>;

TEST(take_snapshot, reaches_every_front_end) {
  const auto live = [](auto& pool) {
    const snapshot seen = take_snapshot(pool);
    for (std::size_t d = 0; d < seen.traces.size(); ++d) {
      const viewer::backward run(seen, d);
      EXPECT_EQ(run.rule(), "");
    }
    std::size_t requested = 0;
    for (const snapshot::segment& s : seen.segments) requested += s.count_bytes().requested;
    return std::pair(requested, seen.traces.size());
  };
  using found = std::pair<std::size_t, std::size_t>;
  using watched = caching_allocator<pytorch_family::native, simulated_device, observed>;
  locked<caching_allocator<pytorch_family::expandable, simulated_device, observed>> one;
  (void)one.allocate(200);
  EXPECT_EQ(live(one), found(200, 1));

  per_stream<watched> arenas;
  (void)arenas.allocate(1, stream_id{1});
  (void)arenas.allocate(2, stream_id{2});
  arenas.deallocate(arenas.allocate(5, stream_id{2}));
  EXPECT_EQ(live(arenas), found(3, 1));
  EXPECT_EQ(take_snapshot(arenas).traces[0].size(), 8u)
      << "two segments, three blocks, a free in two steps, a look";

  configured<torch_npu_family, per_stream<watched>> npu(torch_npu_family::settings{});
  (void)npu.allocate(5, stream_id{1});
  (void)npu.allocate(6, stream_id{2});
  EXPECT_EQ(live(npu), found(11, 1));

  const simulated_device first;
  std::vector<simulated_device> devices;
  devices.push_back(first.another_device({.device = 1}));
  devices.push_back(first.another_device({.device = 2}));
  per_device<locked<watched>> two(std::move(devices));
  (void)two.allocate(7, 0);
  (void)two.allocate(8, 1);
  EXPECT_EQ(live(two), found(15, 2));
  const snapshot both = take_snapshot(two);
  ASSERT_EQ(both.segments.size(), 2u);
  EXPECT_EQ(both.segments[0].device, 0u);
  EXPECT_EQ(both.segments[1].device, 1u);
  EXPECT_EQ(both.traces[1][1].size, 8u);

  waiting<locked<watched>> patient;
  (void)patient.allocate(9);
  EXPECT_EQ(live(patient), found(9, 1));

  cuda_mempool<caching_allocator<cuda_async, simulated_device, observed>> driver;
  (void)driver.allocate_async(10, stream_id{1});
  EXPECT_EQ(live(driver.pool()), found(10, 1));

  configured_pinned<pytorch_family::pinned_family, simulated_device> host({}, simulated_device{});
  (void)host.allocate(11);
  EXPECT_EQ(live(host), found(11, 1));
}

}  // namespace
