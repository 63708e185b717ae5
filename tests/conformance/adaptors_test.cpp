// SPDX-License-Identifier: Apache-2.0
// What one thread may expect of an allocator, it may expect of those for threads.
#include <cstddef>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include <tessera/adaptor/locked.hpp>
#include <tessera/adaptor/per_stream.hpp>

#include "model.hpp"

namespace {

using namespace tessera;
using conformance::misbehaviour;
using conformance::plan;
using shared = provider_ref<simulated_device>;
using eager = with<pytorch, split_up_to<32_MiB>, evict_idle_above<percent(60)>>;

template <typename Front>
class threads : public testing::Test {};
using fronts =
    testing::Types<locked<pytorch, shared>, locked<passthrough, shared>, locked<eager, shared>,
                   per_stream<pytorch, shared>, per_stream<passthrough, shared>, per_stream<eager, shared>,
                   per_stream<with<pytorch, reuse_ignoring_streams>, shared>>;
TYPED_TEST_SUITE(threads, fronts);

TYPED_TEST(threads, keep_every_promise_to_one) {
  for (std::uint64_t seed : {1u, 2u, 3u}) {
    simulated_device device{simulated_device::options{.capacity = 900_MiB}};
    {
      TypeParam pool{shared(device)};
      ASSERT_EQ(misbehaviour(pool, plan{seed, 30'000, 32_MiB, 200, 97},
                             {stream_id{0}, stream_id{1}, stream_id{2}, stream_id{~std::uint64_t{0}}}),
                "");
      EXPECT_EQ(pool.now().reserved, 0u);
    }
    EXPECT_EQ(device.used(), 0u);
  }
}

TYPED_TEST(threads, survive_any_failing_call) {
  for (std::uint64_t k = 1; k <= 150; ++k) {
    simulated_device device{simulated_device::options{.capacity = 200_MiB}};
    {
      TypeParam pool{shared(device)};
      device.fail_call(k);
      ASSERT_EQ(misbehaviour(pool, plan{k, 400, 32_MiB, 40, 1}, {stream_id{0}, stream_id{1}, stream_id{2}}),
                "")
          << "with call " << k << " failing";
    }
    ASSERT_EQ(device.used(), 0u) << "with call " << k << " failing";
  }
}

}  // namespace
