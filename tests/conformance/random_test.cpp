// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_npu.hpp>
#include <tessera/recipe/torch_npu.hpp>

#include "model.hpp"

namespace {

using namespace tessera;
using conformance::misbehaviour;
using conformance::plan;

// Sanitizers and unoptimised builds are slower; the full number is what a Release build runs.
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr std::size_t operations = 1'000'000;
#else
constexpr std::size_t operations = 100'000;
#endif

// Where pages come and go one by one, the system clears each.
template <typename Recipe>
constexpr std::size_t of_real_pages =
    Recipe::growth::way == growth_way::segments ? operations : operations / 50;

constexpr chunk_plan small_chunks{.first = 40_MiB, .further = 5_MiB};
template <typename Recipe>
class recipes : public testing::Test {};
using all = testing::Types<
    pytorch<>, passthrough, power_of_two, with<pytorch<>, split_up_to<32_MiB>, evict_idle_above<percent(60)>>,
    with<pytorch<>, split_if_rest_at_least<512, block_end::high>, pool_together>,
    with<pytorch<>, reuse_ignoring_streams>, with<passthrough, back_with_huge_pages_first>,
    paddle_auto_growth, paddle_naive_best_fit,
    with<paddle_auto_growth, pool_small_and_large<1_MiB>, grow_by_chunks<2_MiB, 10_MiB, 1_MiB>,
         evict_idle_chunks<true, true>, recover_like_paddle<true>>,
    with<paddle_naive_best_fit, grow_by_plan<small_chunks>, evict_direct_at_free<small_chunks>>,
    with<torch_npu_native, look_at_events_late<reuse_on_same_stream_after_recorded, std::size_t{4}>>,
    pytorch_expandable,
    with<pytorch_expandable, split_up_to<32_MiB, 20_MiB, 1_MiB, 0>, evict_idle_above<percent(60)>>,
    with<pytorch_expandable, split_if_rest_at_least<512, block_end::high>, pool_together>,
    with<pytorch_expandable, reuse_ignoring_streams, evict_at_free>,
    with<pytorch_expandable, back_with_huge_pages_first,
         grow_in_place<2_MiB, 6_MiB, tunable(unlimited), 16_KiB>>,
    stitched, with<stitched, pool_together, evict_idle_above<percent(60)>>,
    with<stitched, split_up_to<32_MiB, 20_MiB, 1_MiB, 0>, reuse_ignoring_streams>, pinned, pinned_packed,
    pinned_expandable, cuda_async,
    with<cuda_async, pool_small_and_large<1_MiB>, evict_idle_above<percent(60)>>,
    with<cuda_async, reuse_in_order<true, false, false>, evict_at_free>,
    with<cuda_async, reuse_in_order<false, false, true>, split_up_to<32_MiB, 20_MiB>>>;
TYPED_TEST_SUITE(recipes, all);

TYPED_TEST(recipes, keep_every_promise_on_a_simulated_device) {
  for (std::uint64_t seed : {1u, 2u, 3u}) {
    caching_allocator<TypeParam, simulated_device> pool{
        simulated_device{simulated_device::options{.capacity = 900_MiB}}};
    const std::string broken =
        misbehaviour(pool, plan{seed, operations, 32_MiB, 200, 997},
                     {stream_id{0}, stream_id{1}, stream_id{2}, stream_id{~std::uint64_t{0}}});
    ASSERT_EQ(broken, "");
    EXPECT_EQ(pool.now().reserved, 0u);
    EXPECT_EQ(pool.device().used(), 0u);
  }
}

TYPED_TEST(recipes, keep_every_promise_in_host_memory) {
  for (std::uint64_t seed : {7u, 8u}) {
    host_pinned device{host_pinned::options{.capacity = 256_MiB, .pin = host_pinned::pinning::never}};
    const stream_id side = device.create_stream();
    caching_allocator<TypeParam, host_pinned> pool{std::move(device)};
    const std::string broken =
        misbehaviour(pool, plan{seed, of_real_pages<TypeParam>, 4_MiB, 60, 499}, {stream_id{0}, side});
    ASSERT_EQ(broken, "");
    EXPECT_EQ(pool.now().reserved, 0u);
  }
}

// Whatever call of the device fails, nothing is lost and nothing is torn.
TYPED_TEST(recipes, survive_any_failing_call) {
  for (std::uint64_t k = 1; k <= 300; ++k) {
    simulated_device shared{simulated_device::options{.capacity = 200_MiB}};
    {
      caching_allocator<TypeParam, provider_ref<simulated_device>> pool{provider_ref(shared)};
      shared.fail_call(k);
      const std::string broken =
          misbehaviour(pool, plan{k, 400, 32_MiB, 40, 1}, {stream_id{0}, stream_id{1}, stream_id{2}});
      ASSERT_EQ(broken, "") << "with call " << k << " failing";
    }
    ASSERT_EQ(shared.used(), 0u) << "with call " << k << " failing";
  }
}
template <typename Recipe>
void survives_where_release_does_not_wait() {
  for (std::uint64_t k = 1; k <= 300; ++k) {
    simulated_npu shared{simulated_device::options{.capacity = 200_MiB, .log_calls = 100'000}};
    {
      caching_allocator<Recipe, provider_ref<simulated_npu>> pool{provider_ref(shared)};
      shared.fail_call(k);
      const std::string broken =
          misbehaviour(pool, plan{k, 400, 32_MiB, 40, 1}, {stream_id{0}, stream_id{1}, stream_id{2}});
      ASSERT_EQ(broken, "") << "with call " << k << " failing";
    }
    ASSERT_EQ(shared.used(), 0u) << "with call " << k << " failing";
    const auto recorded = std::count_if(shared.log().begin(), shared.log().end(), [](const auto& made) {
      return made.kind == simulated_npu::call::record && made.ok;
    });
    ASSERT_EQ(static_cast<std::uint64_t>(recorded), shared.calls().discard) << "every event was discarded";
  }
}
TEST(recipes_on_an_npu, survive_any_failing_call) {
  survives_where_release_does_not_wait<torch_npu_native>();
  survives_where_release_does_not_wait<passthrough>();
}
TYPED_TEST(recipes, survive_calls_failing_again_and_again) {
  for (std::uint64_t k = 2; k <= 40; ++k) {
    simulated_device shared{simulated_device::options{.capacity = 200_MiB}};
    caching_allocator<TypeParam, provider_ref<simulated_device>> pool{provider_ref(shared)};
    shared.fail_every(k);
    std::string broken = misbehaviour(pool, plan{k, 2000, 32_MiB, 40, 1}, {stream_id{0}, stream_id{1}});
    // The last waits may have failed too, which leaves blocks pending, and nothing else.
    if (broken == "at the end: something is lost") {
      shared.fail_every(0);
      pool.trim();
      broken = pool.now().pending != 0 || pool.now().live != 0 ? "blocks stay pending" : "";
    }
    ASSERT_EQ(broken, "") << "with every call " << k << " failing";
    ASSERT_STREQ(pool.audit(), nullptr);
  }
}

}  // namespace
