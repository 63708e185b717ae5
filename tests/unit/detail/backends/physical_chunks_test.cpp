// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

#include <tessera/detail/backends/physical_chunks.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

struct failures {
  int grants = 0, unmaps = 0;  // how many calls are still to fail
};

/// A device on which map and unmap fail when the test says so.
class stubborn : public provider_ref<simulated_device> {
 public:
  stubborn(simulated_device& to, failures& left) noexcept : provider_ref(to), left_(&left) {}
  bool grant(void* p, std::size_t bytes) noexcept {
    return left_->grants > 0 ? --left_->grants, false : inner().grant(p, bytes);
  }
  bool unmap(void* p, std::size_t bytes) noexcept {
    return left_->unmaps > 0 ? --left_->unmaps, false : inner().unmap(p, bytes);
  }

 private:
  failures* left_;
};
using expandable = caching_allocator<pytorch_family::expandable, stubborn>;

TEST(physical_chunks, are_released_at_the_end_after_device_failures) {
  simulated_device device;
  failures left;
  {
    expandable pool{stubborn(device, left)};
    (void)pool.allocate(50_MiB);
    (void)pool.allocate(1);
    left.unmaps = 1;
  }
  EXPECT_EQ(left.unmaps, 0);
  EXPECT_EQ(device.used(), 0u);
  EXPECT_EQ(device.held().reserved, 0u);
  EXPECT_EQ(device.calls().unmap, 4u);
}

TEST(physical_chunks, may_stay_though_the_allocator_ends) {
  simulated_device device;
  failures left;
  {
    expandable pool{stubborn(device, left)};
    (void)pool.allocate(50_MiB);
    left.unmaps = 1'000'000;
  }
  EXPECT_EQ(device.held().mapped, 60_MiB);
}

TEST(physical_chunks, are_retried_if_map_and_unmap_failed) {
  simulated_device device;
  failures left{.grants = 1, .unmaps = 3};
  {
    expandable pool{stubborn(device, left)};
    EXPECT_EQ(pool.try_allocate(5_MiB), nullptr);  // the recovery cannot unmap it either
    EXPECT_EQ(device.held().mapped, 20_MiB);
    EXPECT_EQ(pool.current_usage().reserved, 0u);
    void* const p = pool.try_allocate(5_MiB);
    EXPECT_NE(p, nullptr);
    EXPECT_EQ(device.held().mapped, 20_MiB);
    EXPECT_STREQ(pool.audit(), nullptr);
    pool.deallocate(p);
    pool.trim();
    EXPECT_EQ(device.used(), 0u);
  }
  EXPECT_EQ(device.held().reserved, 0u);
}

TEST(physical_chunks, that_stay_are_not_counted_as_released) {
  simulated_device device;
  failures left;
  expandable pool{stubborn(device, left)};
  pool.deallocate(pool.allocate(20_MiB));
  left.unmaps = 1;
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 20_MiB);
  EXPECT_EQ(pool.statistics().num_device_free, 0u);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_EQ(pool.statistics().num_device_free, 1u);
}

TEST(physical_chunks, are_found_no_more_once_they_are_to_go) {
  simulated_device device;
  failures left{.unmaps = 1};
  stubborn asked(device, left);
  const auto begin = reinterpret_cast<std::uintptr_t>(device.reserve(40_MiB, 2_MiB));
  const auto in_range = [&](const auto& all) { return all.first_from(begin, begin + 40_MiB, 2_MiB); };
  counter given;
  detail::physical_chunks<stubborn> all(given);
  auto* const made = all.plan(begin, 20_MiB);
  ASSERT_NE(made, nullptr);
  ASSERT_TRUE(all.create(asked, *made, {{page_kind::normal}, 1}));
  ASSERT_TRUE(all.map(asked, *made));
  EXPECT_EQ(in_range(all), made);
  all.destroy(asked, *made);
  EXPECT_EQ(device.held().mapped, 20_MiB);
  EXPECT_EQ(in_range(all), nullptr);
  all.retry_orphaned(asked);
  EXPECT_EQ(device.used(), 0u);
}

}  // namespace
