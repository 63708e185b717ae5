// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/preallocating.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using region = preallocating<simulated_device>::region;
using provider = preallocating<simulated_device>;
static_assert(event_provider<provider> && paged_provider<provider>);

TEST(preallocating, keeps_the_law_of_providers) {
  simulated_device device;
  region reserved(device, 1_MiB);
  provider from(reserved);
  const law::provider_check_result found = law::provider(from, {.tries_wrong_releases = true});
  EXPECT_TRUE(found) << found.report();
}

TEST(preallocating, takes_back_only_segments_that_it_gave) {
  simulated_device device;
  region reserved(device, 1_MiB);
  provider from(reserved);
  EXPECT_EQ(from.acquire(0), nullptr);
  auto* const first = static_cast<std::byte*>(from.acquire(256_KiB));
  EXPECT_FALSE(from.release(first + 4_KiB, 4_KiB));
  EXPECT_FALSE(from.release(first, 1_MiB)) << "the region itself";
  EXPECT_TRUE(from.release(first, 256_KiB));
  EXPECT_FALSE(from.release(first, 256_KiB));
}

TEST(preallocating, serves_many_segments_with_one_call_and_then_asks_the_device) {
  simulated_device device;
  {
    region reserved(device, 1_MiB);
    {
      caching_allocator<pinned, provider> pool{provider(reserved)};
      EXPECT_EQ(device.calls().acquire, 0u);
      void* const first = pool.allocate(256_KiB);
      auto* const second = static_cast<std::byte*>(pool.allocate(256_KiB));
      EXPECT_EQ(second, static_cast<std::byte*>(first) + 256_KiB);
      EXPECT_NE(pool.allocate(512_KiB), nullptr);
      EXPECT_EQ(device.calls().acquire, 1u);
      EXPECT_NE(pool.allocate(4_KiB), nullptr);
      EXPECT_EQ(device.calls().acquire, 2u);
      EXPECT_EQ(device.used(), 1_MiB + 4_KiB);
      EXPECT_STREQ(pool.audit(), nullptr);
    }
    EXPECT_EQ(device.used(), 1_MiB);
  }
  EXPECT_EQ(device.used(), 0u);
}

TEST(preallocating, says_that_the_region_cannot_be_had) {
  simulated_device device({.capacity = 1_MiB});
  region reserved(device, 2_MiB);
  provider from(reserved);
  EXPECT_FALSE(reserved.why_missing());
  void* const served = from.acquire(256_KiB);
  EXPECT_NE(served, nullptr) << "by the device";
  EXPECT_STREQ(reserved.why_missing().text(), "the region of 2.00 MiB could not be acquired");
  EXPECT_TRUE(from.release(served, 256_KiB));
}

TEST(preallocating, reuses_memory_released_after_the_last_segment) {
  simulated_device device;
  region reserved(device, 1_MiB);
  provider from(reserved);
  void* const first = from.acquire(256_KiB);
  void* const second = from.acquire(256_KiB);
  void* const third = from.acquire(512_KiB);
  EXPECT_TRUE(from.release(third, 512_KiB));
  EXPECT_EQ(from.acquire(512_KiB), third);
  EXPECT_TRUE(from.release(first, 256_KiB));
  void* const outside = from.acquire(256_KiB);
  EXPECT_EQ(device.calls().acquire, 2u);
  EXPECT_TRUE(from.release(second, 256_KiB));
  EXPECT_TRUE(from.release(third, 512_KiB));
  EXPECT_EQ(from.acquire(1_MiB), first);
  EXPECT_TRUE(from.release(first, 1_MiB));
  EXPECT_TRUE(from.release(outside, 256_KiB));
  EXPECT_EQ(device.used(), 1_MiB);
}

// A device waits for work before it releases memory. A region does not, and would give it to another stream.
TEST(preallocating, gives_no_stream_memory_that_another_one_uses) {
  constexpr stream_id first{1}, second{2};
  simulated_device device;
  region reserved(device, 4_MiB);
  caching_allocator<passthrough, provider> pool{provider(reserved)};
  void* const p = pool.allocate(1_MiB, first);
  device.submit(first, 1'000'000'000);
  const std::uint64_t end = device.now_ns() + 1'000'000'000;
  pool.deallocate(p);
  EXPECT_EQ(pool.allocate(1_MiB, second), p);
  EXPECT_GE(device.now_ns(), end);
}

TEST(preallocating, does_not_wait_if_all_uses_are_recorded) {
  constexpr stream_id first{1}, second{2};
  simulated_device device;
  region reserved(device, 4_MiB);
  using recorded = preallocating<simulated_device, true>;
  caching_allocator<passthrough, recorded> pool{recorded(reserved)};
  void* const p = pool.allocate(1_MiB, first);
  device.submit(first, 1'000'000'000);
  pool.deallocate(p);
  EXPECT_EQ(pool.allocate(1_MiB, second), p);
  EXPECT_LT(device.now_ns(), 1'000'000'000u);
}

TEST(preallocating, uses_the_device_without_a_region) {
  simulated_device device(simulated_device::options{.capacity = 1_MiB});
  region none(device, 0), too_large(device, 2_MiB);
  for (region* reserved : {&none, &too_large}) {
    provider from(*reserved);
    void* const p = from.acquire(512_KiB);
    EXPECT_NE(p, nullptr);
    EXPECT_EQ(from.acquire(1_MiB), nullptr);
    EXPECT_TRUE(from.release(p, 512_KiB));
  }
  EXPECT_EQ(device.calls().refused, 3u);
}

TEST(preallocating, leaves_pages_of_other_kinds_to_the_device) {
  simulated_device device;
  region reserved(device, 4_MiB);
  provider from(reserved);
  void* const huge = from.acquire(2_MiB, page_kind{.size = page_kind::page_size::huge});
  EXPECT_EQ(device.used(), 2_MiB);
  EXPECT_TRUE(from.release(huge, 2_MiB));
  EXPECT_EQ(device.used(), 0u);
}

}  // namespace
