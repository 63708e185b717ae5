// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include <gtest/gtest.h>

#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

struct failures {
  int grants = 0, unmaps = 0;  // how many calls are still to fail
};

/// A device that fails to grant and to unmap when it is told to.
class stubborn : public provider_ref<simulated_device> {
 public:
  stubborn(simulated_device& to, failures& left) noexcept : provider_ref(to), left_(&left) {}
  bool grant(void* p, std::size_t bytes) noexcept {
    return left_->grants > 0 ? --left_->grants, false : to().grant(p, bytes);
  }
  bool unmap(void* p, std::size_t bytes) noexcept {
    return left_->unmaps > 0 ? --left_->unmaps, false : to().unmap(p, bytes);
  }

 private:
  failures* left_;
};
using expandable = caching_allocator<pytorch_expandable, stubborn>;

TEST(pieces, are_given_back_in_the_end_though_the_device_fails_first) {
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

TEST(pieces, may_stay_though_the_allocator_ends) {
  simulated_device device;
  failures left;
  {
    expandable pool{stubborn(device, left)};
    (void)pool.allocate(50_MiB);
    left.unmaps = 1'000'000;
  }
  EXPECT_EQ(device.held().mapped, 60_MiB);
}

TEST(pieces, are_tried_again_where_neither_mapping_nor_taking_them_away_worked) {
  simulated_device device;
  failures left{.grants = 1, .unmaps = 3};
  {
    expandable pool{stubborn(device, left)};
    EXPECT_EQ(pool.try_allocate(5_MiB), nullptr);  // the recovery fails to unmap it, too
    EXPECT_EQ(device.held().mapped, 20_MiB);
    EXPECT_EQ(pool.now().reserved, 0u);
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

}  // namespace
