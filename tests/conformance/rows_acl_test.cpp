// SPDX-License-Identifier: Apache-2.0
// The rows of the compatibility matrix about ACL, as far as a provider or the pages axis has such functions.
#include <cstddef>
#include <cstdint>
#include <variant>

#include <gtest/gtest.h>

#include <tessera/caching_allocator.hpp>
#include <tessera/interop/acl_malloc_policy.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/passthrough.hpp>
#include <tessera/recipe/torch_npu.hpp>
#include <tessera/recipe/with.hpp>

namespace {

using namespace tessera;

TEST(paddle_row, n45_nothing_null_and_too_much_are_errors_that_change_nothing) {
  simulated_npu device;
  EXPECT_EQ(device.acquire(0), nullptr);
  EXPECT_STRNE(device.last_error(), "");
  EXPECT_FALSE(device.release(nullptr, 0));
  EXPECT_FALSE(device.release(nullptr, 2_MiB));
  for (const std::size_t bytes : {unlimited, unlimited - 31, unlimited / 2_MiB * 2_MiB}) {
    EXPECT_EQ(device.acquire(bytes), nullptr) << bytes;
    EXPECT_EQ(device.acquire(bytes, page_kind::huge), nullptr) << bytes;
  }
  EXPECT_EQ(device.used(), 0u);
}

TEST(paddle_row, n46_huge_first_takes_normal_pages_up_to_1M_and_huge_only_2M_for_1K) {
  const auto used = []<typename Pages>(Pages, std::size_t bytes) {
    // The device has pages of one size only.
    caching_allocator<with<passthrough, Pages>, simulated_npu> pool{
        simulated_npu{simulated_device::options{.huge_budget = bytes <= 1_MiB ? 0 : unlimited}}};
    return pool.try_allocate(bytes) != nullptr ? pool.provider().used() : 0;
  };
  EXPECT_EQ(used(prefer_pages<page_preference::huge_first>{}, 1_MiB), 1_MiB)
      << "as aclrtMallocAlign32, which adds nothing";
  EXPECT_EQ(used(prefer_pages<page_preference::huge_first>{}, 1_MiB + 512), 2_MiB);
  EXPECT_EQ(used(prefer_pages<page_preference::huge_only>{}, 1_KiB), 0u) << "no normal page serves";
  caching_allocator<with<passthrough, prefer_pages<page_preference::huge_only>>, simulated_npu> pool;
  ASSERT_NE(pool.try_allocate(1_KiB), nullptr);
  EXPECT_EQ(pool.provider().used(), 2_MiB);
  EXPECT_EQ(pool.provider().held().page_table_entries, 1u);
}

TEST(paddle_row, n47_policy_0x1001_is_strict_huge_with_high_bandwidth_and_never_the_default) {
  const auto read = acl_malloc_policy::parse(0x1001);
  ASSERT_TRUE(std::holds_alternative<page_choice>(read));
  EXPECT_EQ(std::get<page_choice>(read),
            (page_choice{.pages = page_preference::huge_only, .speed = page_kind::bandwidth::high}));
  caching_allocator<with<passthrough, prefer_pages<>>, simulated_npu> pool{
      simulated_npu{simulated_device::options{.huge_budget = 0}},
      {.pages = {.choice = std::get<page_choice>(read)}}};
  EXPECT_EQ(pool.try_allocate(4_MiB), nullptr) << "strict: there are normal pages";
}

TEST(paddle_row, n49_virtual_memory_and_sharing_refuse_calls_in_a_wrong_order) {
  simulated_npu device, other = device.another_process();
  simulated_npu::physical memory;
  ASSERT_TRUE(device.create(4_MiB, page_kind::huge, memory));
  void* const range = device.reserve(8_MiB, 2_MiB);
  ASSERT_NE(range, nullptr);
  EXPECT_FALSE(device.map(range, 2_MiB, memory)) << "its size is 4 MiB";
  EXPECT_FALSE(device.map(range, 8_MiB, memory));
  ASSERT_TRUE(device.map(range, 4_MiB, memory));
  EXPECT_FALSE(device.unreserve(range, 8_MiB)) << "something is mapped there";

  simulated_npu::shareable name, again;
  ASSERT_TRUE(device.export_memory(memory, importers::any, name));
  EXPECT_FALSE(device.export_memory(memory, importers::any, again));
  simulated_npu::physical own;
  EXPECT_FALSE(device.import_memory(name, own));
  EXPECT_FALSE(device.allow(name, other.process())) << "whoever wants may import it";
  EXPECT_TRUE(other.import_memory(name, own));
}

TEST(paddle_row, n51_torch_npu_rounds_with_its_padding) {
  constexpr torch_npu_family::native::rounding rounding;
  EXPECT_EQ(rounding.block_size(480), 512u);
  EXPECT_EQ(rounding.block_size(481), 1024u);
  EXPECT_EQ(rounding.block_size(512), 1024u);
}

}  // namespace
