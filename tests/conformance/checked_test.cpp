// SPDX-License-Identifier: Apache-2.0
// checked_provider changes no decision of an allocator, whatever its recipe, and reports nothing about
// correct providers.
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/debug/checked_provider.hpp>
#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/preallocating.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "first_broken_rule.hpp"

namespace {

using namespace tessera;
using conformance::first_broken_rule;
using conformance::plan;

template <typename Recipe>
class checked : public testing::Test {};
using recipes =
    testing::Types<pytorch_family::native, pytorch_family::expandable, cuda_async, torch_npu_family::native,
                   torch_npu_family::expandable, paddle_family::auto_growth, paddle_family::naive_best_fit,
                   pinned, torch_npu_family::pinned_expandable, pinned_packed, stitched, passthrough,
                   power_of_two>;
TYPED_TEST_SUITE(checked, recipes);

constexpr plan small{3, 6'000, 32_MiB, 100, 97};
const std::vector<stream_id> streams{stream_id{0}, stream_id{1}, stream_id{2}};

/// Whether a program makes the same calls with the same results over both devices.
template <typename Recipe, typename Device>
void makes_the_same_decisions() {
  const simulated_device::options how{.capacity = 700_MiB, .page_granularity = 64_KiB, .log_calls = 100'000};
  caching_allocator<Recipe, Device> plain{Device(how)};
  caching_allocator<Recipe, checked_provider<Device>> watched{checked_provider(Device(how))};
  for (auto* const device : {&plain.provider(), &watched.provider().inner()}) {
    for (const stream_id s : streams) device->submit(s, 20'000'000);
  }
  ASSERT_EQ(first_broken_rule(plain, small, streams), "");
  ASSERT_EQ(first_broken_rule(watched, small, streams), "");
  const Device &one = plain.provider(), &two = watched.provider().inner();
  EXPECT_EQ(one.now_ns(), two.now_ns());
  ASSERT_EQ(one.log().size(), two.log().size());
  EXPECT_GT(one.log().size(), 100u);
  for (std::size_t i = 0; i < one.log().size(); ++i) {
    ASSERT_EQ(one.log()[i].kind, two.log()[i].kind) << "call " << i;
    ASSERT_EQ(one.log()[i].address, two.log()[i].address) << "call " << i;
  }
}

template <typename Recipe>
class checked_kinds : public testing::Test {};
using kinds = testing::Types<pytorch_family::native, pytorch_family::expandable, stitched, cuda_async>;
TYPED_TEST_SUITE(checked_kinds, kinds);

TYPED_TEST(checked_kinds, make_the_same_decisions) {
  makes_the_same_decisions<TypeParam, simulated_device>();
}

TYPED_TEST(checked, reports_nothing) {
  const simulated_device::options how{.capacity = 700_MiB, .page_granularity = 64_KiB};
  caching_allocator<TypeParam, checked_provider<simulated_device>> pool{
      checked_provider(simulated_device(how))};
  for (const stream_id s : streams) pool.provider().inner().submit(s, 20'000'000);
  ASSERT_EQ(first_broken_rule(pool, small, streams), "");
}

TEST(checked_npu, makes_the_same_decisions) {
  makes_the_same_decisions<torch_npu_family::expandable, simulated_npu>();
}

TYPED_TEST(checked, refusals_are_not_reported) {
  using device = checked_provider<simulated_device>;
  for (const std::uint64_t every : {3u, 7u, 50u}) {
    caching_allocator<TypeParam, device> pool{
        device(simulated_device({.capacity = 200_MiB, .page_granularity = 64_KiB, .fail_every = every}))};
    auto& under = pool.provider().inner();
    for (int i = 0; i < 400; ++i) {
      void* const p =
          pool.try_allocate(std::size_t{1} << (i * 7 % 25), stream_id{static_cast<unsigned>(i % 3)});
      if (p == nullptr) continue;
      under.submit(stream_id{1}, 1'000'000);
      (void)pool.record_stream(p, stream_id{1});
      pool.deallocate(p);
      if (i % 40 == 0) pool.trim();
    }
    under.fail_every(0);
    pool.trim();
    pool.trim();
    EXPECT_STREQ(pool.audit(), nullptr);
    EXPECT_EQ(under.used(), 0u);
  }
}

/// A checked provider keeps the laws and the properties of the provider.
TEST(checked_devices, obey_the_laws) {
  checked_provider<simulated_device> simulated;
  EXPECT_STREQ(law::provider(simulated).broken, nullptr);
  checked_provider npu{simulated_npu{}};
  EXPECT_STREQ(law::provider(npu).broken, nullptr);
}

/// A provider adaptor can be checked, and can wrap a checked provider.
TEST(checked_devices, stack) {
  using under = checked_provider<simulated_device>;
  checked_provider device{limiting(under{}, 300_MiB)};
  EXPECT_STREQ(law::provider(device).broken, nullptr);
  preallocating<decltype(device)>::region region(device, 100_MiB);
  using cut = preallocating<decltype(device)>;
  caching_allocator<pytorch<>, checked_provider<cut>> pool{checked_provider(cut(region))};
  EXPECT_EQ(first_broken_rule(pool, small, streams), "");
}

}  // namespace
