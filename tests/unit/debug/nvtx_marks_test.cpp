// SPDX-License-Identifier: Apache-2.0
// What a tool behind NVTX knows about the blocks. stand_ins/nvtx3/ is in place of NVTX's header.
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <utility>

#include <gtest/gtest.h>

#include <tessera/debug/nvtx_marks.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using marks = extension::observer<debug::nvtx_marks>;

/// Bytes that serve requests, by address. Regions that touch are one, because a block may lie in several chunks.
std::map<std::uintptr_t, std::size_t> joined(const std::map<std::uintptr_t, std::size_t>& parts) {
  std::map<std::uintptr_t, std::size_t> all;
  for (const auto& [address, bytes] : parts) {
    if (!all.empty() && all.rbegin()->first + all.rbegin()->second == address) {
      all.rbegin()->second += bytes;
    } else {
      all[address] = bytes;
    }
  }
  return all;
}

template <typename Recipe>
class nvtx_marks : public testing::Test {};
using recipes = testing::Types<pytorch<>, stitched, pytorch_family::expandable>;
TYPED_TEST_SUITE(nvtx_marks, recipes);

TYPED_TEST(nvtx_marks, are_the_live_requests_after_each_of_many_operations) {
  nvtx_knows = {};
  {
    caching_allocator<TypeParam, simulated_device, marks> memory(simulated_device({.capacity = 300_MiB}));
    EXPECT_EQ(nvtx_knows.domains, 0) << "the device may not be initialized yet";
    std::mt19937 random(5);
    std::map<std::uintptr_t, std::size_t> live;
    for (int step = 0; step < 1500; ++step) {
      const std::size_t bytes = 1 + random() % (random() % 3 == 0 ? 40_MiB : 5000);
      if (live.size() < 20 && random() % 2 == 0) {
        if (void* const p = memory.try_allocate(bytes)) live[reinterpret_cast<std::uintptr_t>(p)] = bytes;
      } else if (!live.empty()) {
        auto chosen = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
        memory.deallocate(reinterpret_cast<void*>(chosen->first));
        live.erase(chosen);
      }
      if (step % 100 == 99) memory.trim();
      ASSERT_EQ(joined(nvtx_knows.regions), joined(live)) << step;
    }
    EXPECT_EQ(nvtx_knows.domains, 1);
    for (const auto& [address, bytes] : live) memory.deallocate(reinterpret_cast<void*>(address));
  }
  EXPECT_TRUE(nvtx_knows.heaps.empty() && nvtx_knows.regions.empty());
  EXPECT_EQ(nvtx_knows.domains, 0);
  EXPECT_EQ(nvtx_knows.mistakes, 0);
}

TEST(nvtx_marks_of_streams, stay_until_the_work_is_done) {
  nvtx_knows = {};
  caching_allocator<pytorch<>, simulated_device, marks> memory;
  void* const p = memory.allocate(1000);
  memory.provider().submit(stream_id{1}, 1'000'000);
  ASSERT_TRUE(memory.record_stream(p, stream_id{1}));
  memory.deallocate(p);
  EXPECT_EQ(nvtx_knows.regions.size(), 1u);
  memory.provider().advance(2'000'000);
  memory.deallocate(memory.allocate(3_MiB));
  EXPECT_TRUE(nvtx_knows.regions.empty());
}

}  // namespace
