// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include <gtest/gtest.h>

#include <tessera/concurrent/indexed.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
constexpr auto no_owner = detail::pagemap::no_owner;

TEST(indexed, records_ranges_and_mappings_in_the_pagemap) {
  simulated_device device;
  detail::pagemap where;
  detail::indexed<simulated_device> as_seven(device, where, 7);
  static_assert(virtual_memory_provider<detail::indexed<simulated_device>>);
  auto* const range = static_cast<char*>(as_seven.reserve(10_MiB, 2_MiB));
  simulated_device::physical low, high;
  ASSERT_TRUE(as_seven.create(2_MiB, page_kind::normal, low) &&
              as_seven.create(4_MiB, page_kind::normal, high));
  EXPECT_EQ(where.owner_of(range), 7u);

  device.fail_call(1);
  EXPECT_FALSE(as_seven.map(range, 2_MiB, low));
  EXPECT_EQ(where.owner_of(range), 7u);
  EXPECT_TRUE(as_seven.map(range, 2_MiB, low));
  EXPECT_TRUE(as_seven.map(range + 4_MiB, 4_MiB, high));
  EXPECT_EQ(where.owner_of(range), 7u);
  EXPECT_EQ(where.owner_of(range + 2_MiB), 7u);
  EXPECT_EQ(where.owner_of(range + 8_MiB - 1), 7u);
  EXPECT_EQ(where.owner_of(range + 8_MiB), 7u);

  device.fail_call(1);
  EXPECT_FALSE(as_seven.unmap(range + 4_MiB, 4_MiB));
  EXPECT_EQ(where.owner_of(range + 4_MiB), 7u);
  EXPECT_TRUE(as_seven.unmap(range + 4_MiB, 4_MiB));
  EXPECT_EQ(where.owner_of(range + 4_MiB), 7u);
  EXPECT_EQ(where.owner_of(range), 7u);
}

// An allocator may try this if its device could not unmap earlier memory.
TEST(indexed, refuses_to_map_over_a_mapping) {
  simulated_device device;
  detail::pagemap where;
  detail::indexed<simulated_device> as_seven(device, where, 7);
  auto* const range = static_cast<char*>(as_seven.reserve(4_MiB, 2_MiB));
  simulated_device::physical all, half;
  ASSERT_TRUE(as_seven.create(4_MiB, page_kind::normal, all) &&
              as_seven.create(2_MiB, page_kind::normal, half));
  ASSERT_TRUE(as_seven.map(range, 4_MiB, all));
  EXPECT_FALSE(as_seven.map(range, 2_MiB, half));
  EXPECT_EQ(where.owner_of(range), 7u);
  EXPECT_FALSE(as_seven.map(range + 2_MiB, 2_MiB, half));
  EXPECT_EQ(where.owner_of(range), 7u);
  EXPECT_TRUE(as_seven.unmap(range, 4_MiB));
  EXPECT_EQ(where.owner_of(range), 7u);
  EXPECT_EQ(where.owner_of(range + 2_MiB), 7u);
  EXPECT_TRUE(as_seven.unreserve(range, 4_MiB));
  EXPECT_EQ(where.owner_of(range), no_owner);
}

}  // namespace
