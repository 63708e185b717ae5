// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/debug/guarded.hpp>
#include <tessera/debug/leak_checked.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../../by_day.hpp"
#include "../observe/stacks.hpp"

namespace {

using namespace tessera;
using device_ref = provider_ref<simulated_device>;
using watch = extension::observer<history<>>;
using watched = caching_allocator<pytorch<>, simulated_device, watch>;
using pinned_pool = caching_allocator<pytorch_pinned<>, provider_ref<host_pinned>>;

template <typename Pool>
void label(Pool& pool, std::string_view text) {
  pool.template get<watch>().with([text](history<>& seen) { seen.label(text); });
}

/// Stores the reported text.
struct keep {
  live_blocks* at = nullptr;
  std::vector<std::string>* labels = nullptr;
  void operator()(const live_blocks& left) const {
    if (at != nullptr) *at = left;
    for (std::size_t i = 0; labels != nullptr && i < left.shown(); ++i)
      labels->emplace_back(left.first[i].label);
  }
};

/// Is destroyed with live blocks, one of them by handle, and with pending and cached blocks.
template <typename Pool>
live_blocks leave(simulated_device& device) {
  live_blocks reported;
  {
    leak_checked<Pool, keep> pool{device_ref(device)};
    pool.report().at = &reported;
    pool.deallocate(pool.allocate(3_MiB));
    void* const pending = pool.allocate(4_MiB, stream_id{1});
    device.submit(stream_id{2}, 1000000);
    (void)pool.record_stream(pending, stream_id{2});
    pool.deallocate(pending);
    for (std::size_t i = 1; i <= 10; ++i) (void)pool.allocate(i * 1_MiB, stream_id{1});
    if constexpr (requires { pool.allocate_by_handle(1); }) (void)pool.allocate_by_handle(1000);
    EXPECT_GT(device.used(), 0u);
  }
  return reported;
}

template <typename Pool>
class leak_checked_test : public testing::Test {};
using pools =
    types_by_day<3, caching_allocator<pytorch<>, device_ref>, caching_allocator<stitched, device_ref>,
                 per_stream<caching_allocator<pytorch<>, device_ref>>,
                 caching_allocator<pytorch_family::expandable, device_ref>,
                 caching_allocator<cuda_async, device_ref>, locked<caching_allocator<pytorch<>, device_ref>>>;
TYPED_TEST_SUITE(leak_checked_test, pools);

TYPED_TEST(leak_checked_test, reports_live_blocks_while_all_memory_is_released) {
  simulated_device device({.capacity = 1_GiB});
  const live_blocks reported = leave<TypeParam>(device);
  const bool by_handle = requires(TypeParam& p) { p.allocate_by_handle(1); };
  EXPECT_EQ(reported.count, by_handle ? 11u : 10u);
  EXPECT_EQ(reported.bytes, 55_MiB + (by_handle ? 1000 : 0));
  EXPECT_EQ(reported.shown(), 8u);
  for (std::size_t i = 1; i < reported.shown(); ++i)
    EXPECT_LT(reported.first[i - 1].address, reported.first[i].address);
  EXPECT_EQ(reported.first[0].bytes % (reported.first[0].bytes == 1000 ? 1000 : 1_MiB), 0u);
  EXPECT_EQ(device.used(), 0u);
  EXPECT_EQ(device.calls().acquire + device.calls().create, device.calls().release + device.calls().destroy);
  EXPECT_EQ(device.calls().reserve, device.calls().unreserve);
}

TEST(leak_checked, reports_nothing_without_live_blocks) {
  live_blocks reported;
  {
    leak_checked<caching_allocator<pytorch<>, simulated_device>, keep> pool;
    pool.report().at = &reported;
    pool.deallocate(pool.allocate(5_MiB));
  }
  EXPECT_EQ(reported.count, 0u);
  testing::internal::CaptureStderr();
  {
    leak_checked<caching_allocator<pytorch<>, simulated_device>> quiet;
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(leak_checked, reports_to_standard_error_by_default) {
  testing::internal::CaptureStderr();
  {
    leak_checked<watched> pool;
    label(pool, "weights");
    void* const other = pool.allocate(1000, stream_id{3});
    label(pool, "");
    pool.deallocate(pool.allocate(1000, stream_id{3}));
    pool.deallocate(other);
    label(pool, "batch");
    (void)pool.allocate(2000, stream_id{3});  // at the address of a block that had another label
    label(pool, "");
    for (int i = 0; i < 9; ++i) (void)pool.allocate(1000, stream_id{3});
  }
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_EQ(
      printed.find("tessera: 10 live blocks of 11000 bytes when their allocator ended:\n  2000 bytes at 0x"),
      0u)
      << printed;
  EXPECT_NE(printed.find(", stream 3, label 'batch'\n  1000 bytes at 0x"), std::string::npos) << printed;
  EXPECT_EQ(printed.find("weights"), std::string::npos) << printed;
  EXPECT_TRUE(
      printed.ends_with("  and 2 more\n"
                        "  9000 bytes in 9 blocks without a label\n"
                        "  2000 bytes in 1 block with label 'batch'\n"))
      << printed;
}

TEST(leak_checked, reports_one_block_in_the_singular) {
  testing::internal::CaptureStderr();
  {
    leak_checked<caching_allocator<pytorch<>, simulated_device>> pool;
    (void)pool.allocate(1000);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr().find("tessera: 1 live block of 1000 bytes when"), 0u);
}

TEST(leak_checked, finds_labels_in_locked_and_in_guarded) {
  std::vector<std::string> labels;
  {
    leak_checked<locked<watched>, keep> pool;
    pool.report().labels = &labels;
    label(pool, "weights");
    (void)pool.allocate(1000);
  }
  host_pinned device({.capacity = 1_MiB, .pin = host_pinned::pinning::never});
  {
    leak_checked<guarded<pinned_pool>, keep> pool{provider_ref(device)};
    pool.report().labels = &labels;
    pool.label("batch");
    (void)pool.allocate(1000);
  }
  EXPECT_EQ(labels, (std::vector<std::string>{"weights", "batch"}));
  EXPECT_EQ(device.held(), host_pinned::holdings{});
}

TEST(leak_checked, counts_the_blocks_of_several_devices) {
  std::vector<simulated_device> devices;
  for (unsigned d = 0; d < 2; ++d) devices.emplace_back(simulated_device::options{.device = d});
  live_blocks reported;
  {
    leak_checked<per_device<locked<caching_allocator<pytorch<>, simulated_device>>>, keep> all(
        std::move(devices));
    all.report().at = &reported;
    (void)all.allocate(1000, 0);
    (void)all.allocate(2000, 1);
  }
  EXPECT_EQ(reported.count, 2u);
  EXPECT_EQ(reported.bytes, 3000u);
}

TEST(leak_checked, reports_the_largest_blocks_and_the_sums_of_labels) {
  live_blocks left;
  {
    leak_checked<watched, keep> pool{simulated_device(), policies<pytorch<>>{}, watch{history<>(16)}};
    pool.report().at = &left;
    label(pool, "weights");
    for (int i = 0; i < 20; ++i) (void)pool.allocate(1_MiB);
    label(pool, "cache");
    (void)pool.allocate(100_MiB);
    label(pool, "");
    for (int i = 0; i < 50; ++i) (void)pool.allocate(1000);
  }
  EXPECT_EQ(left.count, 71u);
  EXPECT_EQ(left.largest[0].bytes, 100_MiB);
  EXPECT_EQ(left.largest[1].bytes, 1_MiB);
  EXPECT_LT(left.largest[1].address, left.largest[2].address);
  ASSERT_EQ(left.labels.size(), 3u) << "labels outlive the events in the history";
  const auto is = [&left](std::size_t i, std::size_t count, std::size_t bytes) {
    return left.labels[i].count == count && left.labels[i].bytes == bytes;
  };
  EXPECT_TRUE(is(0, 1, 100_MiB));
  EXPECT_TRUE(is(1, 20, 20_MiB));
  EXPECT_TRUE(is(2, 50, 50'000));
}

TEST(leak_checked, shows_the_call_stacks_of_the_largest_blocks) {
  int depth = 1;
  testing::internal::CaptureStderr();
  {
    using stacks = extension::observer<stacks_tests::with_stacks>;
    leak_checked<locked<caching_allocator<pytorch<>, simulated_device, stacks>>> pool(
        simulated_device(), policies<pytorch<>>{}, stacks{stacks_tests::with_stacks(4, {}, {&depth})});
    (void)pool.allocate(1000);
    depth = 0;
    (void)pool.allocate(2000);
    for (int i = 0; i < 20; ++i) pool.deallocate(pool.allocate(3000));
  }
  const std::string printed = testing::internal::GetCapturedStderr();
  const std::size_t second = printed.find("  2000 bytes at 0x");
  const std::size_t first = printed.find("  1000 bytes at 0x");
  ASSERT_LT(second, first) << printed;
  EXPECT_NE(printed.substr(second, first - second).find("stream 0\n    function_0, program.cpp:10\n"),
            std::string::npos)
      << printed;
  EXPECT_TRUE(printed.ends_with("stream 0\n    function_1, program.cpp:11\n    function_0, program.cpp:10\n"))
      << printed;
}

TEST(leak_checked, labels_of_guarded_hold_for_a_thread) {
  host_pinned device({.capacity = 1_MiB, .pin = host_pinned::pinning::never});
  guarded<pinned_pool> pool{provider_ref(device)};
  pool.label("mine");
  std::thread([&pool] {
    void* const p = pool.allocate(100);
    EXPECT_STREQ(pool.label_of(p), "");
    pool.deallocate(p);
    pool.set_default_label("default");
    void* const q = pool.allocate(100);
    EXPECT_STREQ(pool.label_of(q), "default");
    pool.deallocate(q);
  }).join();
  void* const p = pool.allocate(100);
  EXPECT_STREQ(pool.label_of(p), "mine");
  pool.deallocate(p);
}

}  // namespace
