// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/pinned_host.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/configured.hpp>
#include <tessera/detail/reach.hpp>
#include <tessera/interop/driver_pool.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

/// Live bytes of each device, as a walk over all blocks finds them, an entry for each allocator.
template <typename Pool>
std::vector<std::size_t> live_of(Pool& pool) {
  std::vector<std::size_t> live;
  for_each_allocator(pool, [&](auto& one, std::size_t device) {
    live.resize(live.size() < device + 1 ? device + 1 : live.size());
    for_each_block(one, [&](const segment_view&, const block_view& b) {
      if (b.is == block_view::state::live) live[device] += b.requested;
    });
  });
  return live;
}
using one_device = std::vector<std::size_t>;

TEST(reach, goes_through_every_adaptor) {
  caching_allocator<pytorch_native, simulated_device> plain;
  (void)plain.allocate(100);
  EXPECT_EQ(live_of(plain), one_device{100});

  locked<pytorch_expandable, simulated_device> one;
  (void)one.allocate(200);
  EXPECT_EQ(live_of(one), one_device{200});

  per_stream<pytorch_native, simulated_device> lanes;
  (void)lanes.allocate(1, stream_id{1});
  (void)lanes.allocate(2, stream_id{2});
  EXPECT_EQ(live_of(lanes), one_device{3});

  configured<torch_npu_family, simulated_device, in_streams> npu(torch_npu_family::settings{});
  (void)npu.allocate(5, stream_id{1});
  (void)npu.allocate(6, stream_id{2});
  EXPECT_EQ(live_of(npu), one_device{11});

  per_device<pytorch_native, simulated_device, per_stream> two(std::vector<simulated_device>(2));
  (void)two.allocate(7, 0);
  (void)two.allocate(8, 1);
  EXPECT_EQ(live_of(two), (std::vector<std::size_t>{7, 8}));

  retrying<locked<pytorch_native, simulated_device>> patient;
  (void)patient.allocate(9);
  EXPECT_EQ(live_of(patient), one_device{9});

  driver_pool<cuda_async, simulated_device> driver;
  (void)driver.allocate_async(10, stream_id{1});
  EXPECT_EQ(live_of(driver), one_device{10});

  pinned_host<pytorch_pinned_family, simulated_device> host({}, simulated_device{});
  (void)host.allocate(11);
  EXPECT_EQ(live_of(host), one_device{11});
}

}  // namespace
