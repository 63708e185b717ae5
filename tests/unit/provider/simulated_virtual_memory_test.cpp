// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tessera/provider/simulated_device.hpp>

namespace {

using namespace tessera;
using options = simulated_device::options;
using call = simulated_device::call;
using physical = simulated_device::physical;

static_assert(!simulated_device::map_grants_access && simulated_device::unmap_wants_size);
static_assert(simulated_npu::map_grants_access && !simulated_npu::unmap_wants_size);
static_assert(event_provider<simulated_npu> && paged_provider<simulated_npu>);

constexpr page_kind every_kind[] = {page_kind::normal, page_kind::huge, page_kind::huge_1g};

std::uintptr_t number(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }
void* up(void* p, std::size_t bytes) { return reinterpret_cast<void*>(number(p) + bytes); }

template <typename D>
bool is_empty(const D& d) {
  const auto [handles, named, reserved, mapped, not_granted, entries] = d.held();
  return handles + named + reserved + mapped + not_granted + entries + d.used() == 0;
}
template <typename D>
physical created(D& d, std::size_t bytes, page_kind kind = page_kind::normal) {
  physical memory;
  EXPECT_TRUE(d.create(bytes, kind, memory)) << d.last_error();
  return memory;
}

/// Holds for devices of both kinds.
template <typename D>
class virtual_memory : public testing::Test {};
using both = testing::Types<simulated_device, simulated_npu>;
TYPED_TEST_SUITE(virtual_memory, both);

TYPED_TEST(virtual_memory, is_created_and_destroyed_in_the_common_order) {
  for (const page_kind kind : every_kind) {
    TypeParam device;
    const std::size_t step = device.page_size(kind);
    void* const range = device.reserve(8 * step, step);
    EXPECT_EQ(number(range) % step, 0u);
    EXPECT_EQ(device.used(), 0u);
    EXPECT_EQ(device.held().reserved, 8 * step);
    const physical memory = created(device, 2 * step, kind);
    EXPECT_EQ(device.used(), 2 * step);
    EXPECT_EQ(device.held().named, 2 * step);
    EXPECT_EQ(device.held().handles, 1u);
    void* const p = up(range, 3 * step);
    EXPECT_TRUE(device.map(p, 2 * step, memory));
    EXPECT_EQ(device.held().mapped, 2 * step);
    EXPECT_EQ(device.held().page_table_entries, 2u);
    EXPECT_EQ(device.held().not_granted, TypeParam::map_grants_access ? 0 : 2 * step);
    EXPECT_EQ(device.can_use(p, 2 * step), TypeParam::map_grants_access);
    EXPECT_TRUE(device.grant(p, 2 * step));
    EXPECT_EQ(device.held().not_granted, 0u);
    EXPECT_TRUE(device.can_use(p, 2 * step));
    EXPECT_TRUE(device.synchronize({}));
    EXPECT_TRUE(device.unmap(p, 2 * step));
    EXPECT_FALSE(device.can_use(p, step));
    EXPECT_EQ(device.held().mapped, 0u);
    EXPECT_TRUE(device.destroy(memory));
    EXPECT_EQ(device.used(), 0u);
    EXPECT_TRUE(device.unreserve(range, 8 * step));
    EXPECT_TRUE(is_empty(device));
    EXPECT_STREQ(device.last_error(), "");
  }
}

TYPED_TEST(virtual_memory, has_pages_of_three_sizes) {
  const TypeParam device;
  EXPECT_EQ(device.page_size(page_kind::normal), 2_MiB);
  EXPECT_EQ(device.page_size(page_kind::huge), 2_MiB);
  EXPECT_EQ(device.page_size(page_kind::huge_1g), 1_GiB);
  TypeParam small{options{.page_granularity = 64_KiB}};
  EXPECT_EQ(small.page_size(page_kind::normal), 64_KiB);
  EXPECT_EQ(small.page_size({.peer_to_peer = true}), 64_KiB);
  EXPECT_EQ(small.page_size(page_kind::huge), 2_MiB);
  void* const range = small.reserve(1_MiB, 64_KiB);
  const physical memory = created(small, 192_KiB);
  EXPECT_FALSE(small.map(up(range, 32_KiB), 192_KiB, memory));
  EXPECT_TRUE(small.map(up(range, 64_KiB), 192_KiB, memory));
  EXPECT_EQ(small.held().page_table_entries, 3u);
}

TYPED_TEST(virtual_memory, needs_512_entries_for_a_gibibyte_and_one_for_a_giant_page) {
  for (const page_kind kind : every_kind) {
    TypeParam each;
    const std::size_t expected = kind == page_kind::huge_1g ? 1 : 512;
    void* const range = each.reserve(1_GiB, 1_GiB);
    EXPECT_TRUE(each.map(range, 1_GiB, created(each, 1_GiB, kind)));
    EXPECT_EQ(each.held().page_table_entries, expected);
    void* const p = each.acquire(1_GiB, kind);
    EXPECT_EQ(each.held().page_table_entries, 2 * expected);
    EXPECT_TRUE(each.release(p, 1_GiB));
    EXPECT_TRUE(each.unmap(range, 1_GiB));
    EXPECT_EQ(each.held().page_table_entries, 0u);
  }
  TypeParam device;
  void* const p = device.acquire(2_MiB + 512);
  EXPECT_EQ(device.held().page_table_entries, 2u);  // the second is used in part
  EXPECT_TRUE(device.release(p, 2_MiB + 512));
  EXPECT_TRUE(is_empty(device));
}

TYPED_TEST(virtual_memory, has_addresses_apart_from_its_capacity) {
  TypeParam device{options{.capacity = 1_GiB}};
  std::uintptr_t end = 0;
  for (int i = 0; i < 500; ++i) {
    void* const range = device.reserve(1_GiB + 128_MiB, 2_MiB);
    ASSERT_NE(range, nullptr);
    EXPECT_GE(number(range), end);
    end = number(range) + 1_GiB + 128_MiB;
    EXPECT_TRUE(i % 2 == 0 || device.unreserve(range, 1_GiB + 128_MiB));
  }
  EXPECT_EQ(device.held().reserved, 250 * (1_GiB + 128_MiB));
  EXPECT_NE(device.acquire(1_GiB), nullptr);
}

TYPED_TEST(virtual_memory, reserves_at_the_requested_alignment) {
  TypeParam device;
  for (const std::size_t to : {std::size_t{1}, 4_KiB, 2_MiB, 1_GiB, std::size_t{1} << 55}) {
    void* const range = device.reserve(4_KiB, to);
    ASSERT_NE(range, nullptr) << to;
    EXPECT_EQ(number(range) % to, 0u);
    EXPECT_EQ(number(range) % 2_MiB, 0u);
  }
  EXPECT_EQ(number(device.acquire(512)) % 2_MiB, 0u);
}

TYPED_TEST(virtual_memory, refuses_ranges_that_no_device_has) {
  TypeParam device{options{.device = 254}};
  EXPECT_EQ(device.reserve(0, 2_MiB), nullptr);
  EXPECT_EQ(device.reserve(4_KiB - 1, 2_MiB), nullptr);
  EXPECT_STREQ(device.last_error(), "reserve, 4095 bytes: the size is 0 or no multiple of 4 KiB");
  EXPECT_EQ(device.reserve(2_MiB, 0), nullptr);
  EXPECT_EQ(device.reserve(2_MiB, 3_MiB), nullptr);
  EXPECT_STREQ(device.last_error(), "reserve, 2097152 bytes: the alignment is no power of two");
  EXPECT_EQ(device.calls().refused, 0u);
  EXPECT_EQ(device.reserve(unlimited / 4_KiB * 4_KiB, 2_MiB), nullptr);
  EXPECT_EQ(device.reserve(std::size_t{1} << 56, 2_MiB), nullptr);
  EXPECT_EQ(device.reserve(2_MiB, std::size_t{1} << 63), nullptr);
  EXPECT_STREQ(device.last_error(), "reserve, 2097152 bytes: no addresses are left");
  EXPECT_EQ(device.calls().refused, 3u);
  EXPECT_TRUE(is_empty(device));
}

TYPED_TEST(virtual_memory, unreserves_only_whole_empty_ranges) {
  TypeParam device;
  void* const range = device.reserve(8_MiB, 2_MiB);
  EXPECT_FALSE(device.unreserve(nullptr, 8_MiB));
  EXPECT_FALSE(device.unreserve(up(range, 2_MiB), 6_MiB));
  EXPECT_FALSE(device.unreserve(range, 6_MiB));
  EXPECT_STREQ(device.last_error(),
               "unreserve at 0x100000000000000, 6291456 bytes: the range has another size");
  const physical memory = created(device, 2_MiB);
  for (const std::size_t at : {0_MiB, 6_MiB}) {
    EXPECT_TRUE(device.map(up(range, at), 2_MiB, memory));
    EXPECT_FALSE(device.unreserve(range, 8_MiB));
    EXPECT_TRUE(device.unmap(up(range, at), 2_MiB));
  }
  void* const next = device.reserve(2_MiB, 2_MiB);
  EXPECT_TRUE(device.map(next, 2_MiB, memory));
  EXPECT_TRUE(device.unreserve(range, 8_MiB));
  EXPECT_FALSE(device.unreserve(range, 8_MiB));
  EXPECT_EQ(device.held().reserved, 2_MiB);
}

TYPED_TEST(virtual_memory, creates_only_valid_sizes) {
  TypeParam device{options{.capacity = 2_GiB}};
  physical memory{77};
  EXPECT_FALSE(device.create(0, page_kind::normal, memory));
  EXPECT_FALSE(device.create(1_MiB, page_kind::normal, memory));
  EXPECT_FALSE(device.create(1_GiB + 2_MiB, page_kind::huge_1g, memory));
  EXPECT_STREQ(device.last_error(),
               "create, 1075838976 bytes: the size is 0 or no multiple of the page size");
  EXPECT_FALSE(device.create(unlimited, page_kind::normal, memory));
  EXPECT_EQ(device.calls().refused, 0u);
  for (const page_kind kind : every_kind) {
    const std::size_t step = device.page_size(kind);
    EXPECT_FALSE(device.create(unlimited / step * step, kind, memory));
    EXPECT_FALSE(device.create(2_GiB + step, kind, memory));
  }
  EXPECT_STREQ(device.last_error(), "create, 3221225472 bytes: the capacity is reached");
  EXPECT_EQ(device.calls().refused, 6u);
  EXPECT_EQ(memory, physical{77});
  EXPECT_TRUE(is_empty(device));
}

TYPED_TEST(virtual_memory, shares_the_capacity_and_the_budgets_with_segments) {
  TypeParam device{options{.capacity = 10_MiB, .huge_budget = 4_MiB}};
  void* const p = device.acquire(2_MiB, page_kind::huge);
  const physical memory = created(device, 2_MiB, page_kind::huge);
  physical none;
  EXPECT_FALSE(device.create(2_MiB, page_kind::huge, none));
  EXPECT_EQ(device.acquire(2_MiB, page_kind::huge), nullptr);
  EXPECT_TRUE(device.release(p, 2_MiB));
  EXPECT_NE(device.acquire(8_MiB), nullptr);
  EXPECT_FALSE(device.create(2_MiB, page_kind::huge, none));
  EXPECT_TRUE(device.destroy(memory));
  EXPECT_TRUE(device.create(2_MiB, page_kind::huge, none));
  EXPECT_EQ(device.used(), 10_MiB);
  EXPECT_EQ(device.peak_used(), 10_MiB);
}

TYPED_TEST(virtual_memory, counts_each_kind_of_memory_against_its_budget) {
  const auto has_room_for_2_mib = [](options chosen, page_kind kind) {
    TypeParam device{chosen};
    physical first, second;
    return !device.create(4_MiB, kind, first) && device.create(2_MiB, kind, first) &&
           !device.create(2_MiB, kind, second) && device.calls().refused == 2 && device.destroy(first) &&
           device.create(2_MiB, kind, second);
  };
  EXPECT_TRUE(has_room_for_2_mib({.normal_budget = 2_MiB}, page_kind::normal));
  EXPECT_TRUE(has_room_for_2_mib({.huge_budget = 2_MiB}, page_kind::huge));
  EXPECT_TRUE(has_room_for_2_mib({.peer_to_peer_budget = 2_MiB}, {.peer_to_peer = true}));
  EXPECT_TRUE(has_room_for_2_mib({.low_bandwidth_budget = 2_MiB}, {.speed = page_kind::bandwidth::low}));
  EXPECT_TRUE(has_room_for_2_mib({.high_bandwidth_budget = 2_MiB}, {.speed = page_kind::bandwidth::high}));
  TypeParam device{options{.giant_budget = 1_GiB}};
  physical first, second;
  EXPECT_FALSE(device.create(2_GiB, page_kind::huge_1g, first));
  EXPECT_TRUE(device.create(1_GiB, page_kind::huge_1g, first));
  EXPECT_FALSE(device.create(1_GiB, page_kind::huge_1g, second));
}

TYPED_TEST(virtual_memory, maps_only_whole_memory_to_free_addresses_of_one_range) {
  TypeParam device;
  void* const range = device.reserve(8_MiB, 2_MiB);
  void* const next = device.reserve(8_MiB, 2_MiB);
  ASSERT_EQ(number(next), number(range) + 8_MiB);
  const physical four = created(device, 4_MiB), other = created(device, 4_MiB);
  const auto broken_by = [&](void* p, std::size_t bytes, physical memory) {
    EXPECT_FALSE(device.map(p, bytes, memory));
    return std::string(device.last_error()).substr(std::string(device.last_error()).rfind(": ") + 2);
  };
  EXPECT_EQ(broken_by(range, 4_MiB, physical{}), "the handle is unknown or destroyed");
  EXPECT_EQ(broken_by(range, 4_MiB, physical{99}), "the handle is unknown or destroyed");
  EXPECT_EQ(broken_by(range, 2_MiB, four), "the memory has another size");
  EXPECT_EQ(broken_by(range, 8_MiB, four), "the memory has another size");
  EXPECT_EQ(broken_by(range, 0, four), "the memory has another size");
  EXPECT_EQ(broken_by(up(range, 1_MiB), 4_MiB, four), "the address is no multiple of page_size(kind)");
  EXPECT_EQ(broken_by(nullptr, 4_MiB, four), "the addresses are not reserved");
  EXPECT_EQ(broken_by(up(next, 8_MiB), 4_MiB, four), "the addresses are not reserved");
  EXPECT_EQ(broken_by(device.acquire(4_MiB), 4_MiB, four), "the addresses are not reserved");
  EXPECT_EQ(broken_by(up(range, 6_MiB), 4_MiB, four), "the range ends before the memory does");
  EXPECT_EQ(broken_by(up(next, 6_MiB), 4_MiB, four), "the range ends before the memory does");
  EXPECT_TRUE(device.map(up(range, 2_MiB), 4_MiB, four));
  for (const std::size_t at : {0_MiB, 2_MiB, 4_MiB})
    EXPECT_EQ(broken_by(up(range, at), 4_MiB, other), "memory is mapped here already");
  EXPECT_EQ(broken_by(next, 4_MiB, four), "the memory is mapped already");
  EXPECT_EQ(device.held().mapped, 4_MiB);
  EXPECT_EQ(device.held().page_table_entries, 4u);
  EXPECT_TRUE(device.unmap(up(range, 2_MiB), 4_MiB));
  EXPECT_TRUE(device.map(range, 4_MiB, four));  // each range may be filled completely
  EXPECT_TRUE(device.map(up(range, 4_MiB), 4_MiB, other));
}

TYPED_TEST(virtual_memory, grants_access_to_whole_mappings) {
  TypeParam device;
  void* const range = device.reserve(8_MiB, 2_MiB);
  EXPECT_TRUE(device.map(range, 4_MiB, created(device, 4_MiB)));
  EXPECT_TRUE(device.map(up(range, 4_MiB), 2_MiB, created(device, 2_MiB)));
  const std::size_t before = device.held().not_granted;
  EXPECT_FALSE(device.grant(range, 2_MiB));
  EXPECT_STREQ(device.last_error(),
               "grant at 0x100000000000000, 2097152 bytes: the mapping has another size");
  EXPECT_FALSE(device.grant(range, 6_MiB));
  EXPECT_FALSE(device.grant(up(range, 2_MiB), 2_MiB));
  EXPECT_FALSE(device.grant(up(range, 6_MiB), 2_MiB));
  EXPECT_FALSE(device.grant(nullptr, 4_MiB));
  EXPECT_EQ(device.held().not_granted, before);
  EXPECT_TRUE(device.grant(range, 4_MiB));
  EXPECT_TRUE(device.grant(range, 4_MiB));  // a second call changes nothing
  EXPECT_EQ(device.held().not_granted, TypeParam::map_grants_access ? 0 : 2_MiB);
}

TYPED_TEST(virtual_memory, forgets_access_when_it_is_unmapped) {
  TypeParam device;
  void* const range = device.reserve(2_MiB, 2_MiB);
  const physical memory = created(device, 2_MiB);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(device.map(range, 2_MiB, memory));
    EXPECT_EQ(device.can_use(range, 2_MiB), TypeParam::map_grants_access);
    EXPECT_TRUE(device.grant(range, 2_MiB));
    EXPECT_TRUE(device.can_use(range, 2_MiB));
    EXPECT_TRUE(device.unmap(range, 2_MiB));
  }
}

TYPED_TEST(virtual_memory, unmaps_exactly_one_mapping) {
  TypeParam device;
  void* const range = device.reserve(8_MiB, 2_MiB);
  EXPECT_TRUE(device.map(range, 4_MiB, created(device, 4_MiB)));
  EXPECT_TRUE(device.map(up(range, 4_MiB), 2_MiB, created(device, 2_MiB)));
  EXPECT_FALSE(device.unmap(up(range, 2_MiB), 2_MiB));
  EXPECT_STREQ(device.last_error(), "unmap at 0x100000000200000, 2097152 bytes: no mapping begins here");
  EXPECT_FALSE(device.unmap(up(range, 6_MiB), 2_MiB));
  EXPECT_FALSE(device.unmap(nullptr, 4_MiB));
  EXPECT_EQ(device.held().mapped, 6_MiB);
  if constexpr (TypeParam::unmap_wants_size) {
    EXPECT_FALSE(device.unmap(range, 2_MiB));
    EXPECT_FALSE(device.unmap(range, 6_MiB));
    EXPECT_STREQ(device.last_error(),
                 "unmap at 0x100000000000000, 6291456 bytes: the mapping has another size");
    EXPECT_EQ(device.held().mapped, 6_MiB);
    EXPECT_TRUE(device.unmap(range, 4_MiB));
  } else {
    EXPECT_TRUE(device.unmap(range, 6_MiB));  // the size is ignored: one mapping is removed
  }
  EXPECT_EQ(device.held().mapped, 2_MiB);
  EXPECT_FALSE(device.unmap(range, 4_MiB));
  EXPECT_TRUE(device.unmap(up(range, 4_MiB), 2_MiB));
}

TYPED_TEST(virtual_memory, keeps_segments_and_mappings_apart) {
  TypeParam device;
  void* const p = device.acquire(2_MiB);
  void* const range = device.reserve(2_MiB, 2_MiB);
  EXPECT_TRUE(device.map(range, 2_MiB, created(device, 2_MiB)));
  EXPECT_FALSE(device.release(range, 2_MiB));
  EXPECT_FALSE(device.grant(p, 2_MiB));
  EXPECT_FALSE(device.unmap(p, 2_MiB));
  EXPECT_FALSE(device.unreserve(p, 2_MiB));
  EXPECT_EQ(device.used(), 4_MiB);
  EXPECT_EQ(device.held().mapped, 2_MiB);
  EXPECT_EQ(device.held().page_table_entries, 2u);
  EXPECT_TRUE(device.release(p, 2_MiB) && device.unmap(range, 2_MiB));
}

TYPED_TEST(virtual_memory, keeps_destroyed_memory_until_it_is_unmapped) {
  TypeParam device;
  void* const range = device.reserve(4_MiB, 2_MiB);
  const physical memory = created(device, 4_MiB);
  EXPECT_TRUE(device.map(range, 4_MiB, memory));
  EXPECT_TRUE(device.destroy(memory));
  EXPECT_FALSE(device.destroy(memory));
  EXPECT_STREQ(device.last_error(), "destroy: the handle is unknown or destroyed");
  EXPECT_EQ(device.held().handles, 0u);
  EXPECT_EQ(device.held().mapped, 4_MiB);
  EXPECT_EQ(device.used(), 4_MiB);
  EXPECT_TRUE(device.grant(range, 4_MiB));
  EXPECT_TRUE(device.can_use(range, 4_MiB));
  EXPECT_FALSE(device.map(range, 4_MiB, memory));
  EXPECT_TRUE(device.unmap(range, 4_MiB));
  EXPECT_EQ(device.used(), 0u);
  EXPECT_FALSE(device.map(range, 4_MiB, memory));
  EXPECT_FALSE(device.destroy(physical{}));
  EXPECT_NE(created(device, 4_MiB), memory);
}

TYPED_TEST(virtual_memory, reports_accessible_addresses) {
  TypeParam device;
  void* const p = device.acquire(4_MiB);
  void* const next = device.acquire(2_MiB);
  ASSERT_EQ(number(next), number(p) + 4_MiB);
  EXPECT_TRUE(device.can_use(p, 4_MiB));
  EXPECT_TRUE(device.can_use(up(p, 4_MiB - 1), 1));
  EXPECT_FALSE(device.can_use(p, 4_MiB + 1));  // another segment begins
  EXPECT_FALSE(device.can_use(nullptr, 1));
  EXPECT_FALSE(device.can_use(up(p, 6_MiB), 1));
  EXPECT_TRUE(device.release(p, 4_MiB));
  EXPECT_FALSE(device.can_use(p, 1));

  void* const range = device.reserve(8_MiB, 2_MiB);
  EXPECT_FALSE(device.can_use(range, 1));
  for (const std::size_t at : {0_MiB, 2_MiB, 6_MiB}) {
    EXPECT_TRUE(device.map(up(range, at), 2_MiB, created(device, 2_MiB)));
    EXPECT_TRUE(device.grant(up(range, at), 2_MiB));
  }
  EXPECT_TRUE(device.can_use(range, 4_MiB));  // two mappings, side by side
  EXPECT_TRUE(device.can_use(up(range, 1_MiB), 2_MiB));
  EXPECT_FALSE(device.can_use(range, 4_MiB + 1));
  EXPECT_FALSE(device.can_use(range, 8_MiB));
  EXPECT_TRUE(device.can_use(up(range, 6_MiB), 2_MiB));
  EXPECT_FALSE(device.can_use(up(range, 6_MiB), unlimited));
  EXPECT_FALSE(device.can_use(up(range, 4_MiB), 1));
}

TYPED_TEST(virtual_memory, changes_nothing_if_a_call_fails) {
  TypeParam device;
  const auto fails = [&](auto try_it) {
    const auto before = device.held();
    const std::size_t used = device.used();
    device.fail_call(1);
    const bool failed = !try_it();
    const auto after = device.held();
    return failed && used == device.used() && before.handles == after.handles &&
           before.reserved == after.reserved && before.mapped == after.mapped &&
           before.not_granted == after.not_granted;
  };
  EXPECT_TRUE(fails([&] { return device.reserve(4_MiB, 2_MiB) != nullptr; }));
  void* const range = device.reserve(4_MiB, 2_MiB);
  physical memory;
  EXPECT_TRUE(fails([&] { return device.create(4_MiB, page_kind::normal, memory); }));
  EXPECT_EQ(memory, physical{});
  memory = created(device, 4_MiB);
  EXPECT_TRUE(fails([&] { return device.map(range, 4_MiB, memory); }));
  EXPECT_TRUE(device.map(range, 4_MiB, memory));
  EXPECT_TRUE(fails([&] { return device.grant(range, 4_MiB); }));
  EXPECT_TRUE(fails([&] { return device.unmap(range, 4_MiB); }));
  EXPECT_TRUE(device.unmap(range, 4_MiB));
  EXPECT_TRUE(fails([&] { return device.destroy(memory); }));
  EXPECT_TRUE(device.destroy(memory));
  EXPECT_TRUE(fails([&] { return device.unreserve(range, 4_MiB); }));
  EXPECT_STREQ(device.last_error(),
               "unreserve at 0x100000000000000, 4194304 bytes: the call is made to fail");
  EXPECT_TRUE(device.unreserve(range, 4_MiB));
  EXPECT_EQ(device.calls().failed, 7u);
  EXPECT_EQ(device.calls().refused, 0u);
  EXPECT_TRUE(is_empty(device));
}

TYPED_TEST(virtual_memory, charges_for_calls_by_their_work) {
  TypeParam device{options{.costs = {.reserve = 1,
                                     .unreserve = 2,
                                     .create = 10,
                                     .create_per_mib = 100,
                                     .destroy = 20,
                                     .map = 1000,
                                     .map_per_entry = 3,
                                     .grant = 2000,
                                     .grant_per_entry = 4,
                                     .unmap = 3000,
                                     .unmap_per_entry = 5}}};
  std::uint64_t before = 0;
  const auto took = [&] { return device.now_ns() - std::exchange(before, device.now_ns()); };
  void* const range = device.reserve(1_GiB, 2_MiB);
  EXPECT_EQ(took(), 1u);
  const physical memory = created(device, 6_MiB);
  EXPECT_EQ(took(), 610u);
  physical none;
  EXPECT_FALSE(device.create(100_GiB, page_kind::normal, none));  // of which nothing came
  EXPECT_EQ(took(), 10u);
  EXPECT_TRUE(device.map(range, 6_MiB, memory));
  EXPECT_EQ(took(), 1009u);
  EXPECT_FALSE(device.map(range, 6_MiB, memory));
  EXPECT_EQ(took(), 1000u);
  EXPECT_TRUE(device.grant(range, 6_MiB));
  EXPECT_EQ(took(), 2012u);
  EXPECT_TRUE(device.unmap(range, 6_MiB));
  EXPECT_EQ(took(), 3015u);
  EXPECT_TRUE(device.destroy(memory));
  EXPECT_EQ(took(), 20u);
  EXPECT_TRUE(device.unreserve(range, 1_GiB));
  EXPECT_EQ(took(), 2u);
}

TYPED_TEST(virtual_memory, counts_and_logs_its_calls) {
  TypeParam device{options{.log_calls = 20}};
  void* const range = device.reserve(4_MiB, 2_MiB);
  const physical memory = created(device, 2_MiB);
  void* const p = up(range, 2_MiB);
  EXPECT_TRUE(device.map(p, 2_MiB, memory) && device.grant(p, 2_MiB) && device.synchronize(stream_id{3}) &&
              device.unmap(p, 2_MiB) && device.destroy(memory) && device.unreserve(range, 4_MiB));
  EXPECT_FALSE(device.unreserve(range, 4_MiB));
  constexpr std::array expected = {call::reserve, call::create,      call::map,
                                   call::grant,   call::synchronize, call::unmap,
                                   call::destroy, call::unreserve,   call::unreserve};
  ASSERT_EQ(device.log().size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto& entry = device.log()[i];
    EXPECT_EQ(entry.kind, expected[i]);
    EXPECT_EQ(entry.ok, i + 1 < expected.size());
    EXPECT_EQ(entry.stream, stream_id{entry.kind == call::synchronize ? 3u : 0u});
    if (entry.kind == call::map || entry.kind == call::grant || entry.kind == call::unmap) {
      EXPECT_EQ(entry.address, number(p));
      EXPECT_EQ(entry.bytes, 2_MiB);
    }
  }
  EXPECT_EQ(device.log()[0].address, number(range));
  EXPECT_EQ(device.log()[1].bytes, 2_MiB);
  EXPECT_EQ(device.log().back().time_ns, device.now_ns());
  const simulated_device::counts& c = device.calls();
  EXPECT_EQ(c.reserve + c.create + c.map + c.grant + c.synchronize + c.unmap + c.destroy, 7u);
  EXPECT_EQ(c.unreserve, 2u);
}

TYPED_TEST(virtual_memory, moves_with_all_its_memory) {
  TypeParam device;
  void* const range = device.reserve(2_MiB, 2_MiB);
  const physical memory = created(device, 2_MiB);
  EXPECT_TRUE(device.map(range, 2_MiB, memory));
  TypeParam moved = std::move(device);
  EXPECT_TRUE(moved.unmap(range, 2_MiB) && moved.destroy(memory) && moved.unreserve(range, 2_MiB));
  EXPECT_TRUE(is_empty(moved));
}

/// The same random calls, legal and illegal, against a naive model of pages.
TYPED_TEST(virtual_memory, agrees_with_a_model_over_random_calls) {
  constexpr std::size_t step = 2_MiB, pages = 16, ranges = 3;
  TypeParam device{options{.capacity = 24 * step}};
  struct piece {
    physical handle;
    std::size_t length;  // in pages
    bool destroyed = false;
    std::size_t at = pages * ranges + 1;  // page of its mapping
  };
  std::array<void*, ranges> base{};
  for (void*& b : base) b = device.reserve(pages * step, step);
  std::vector<piece> pieces;
  std::array<std::size_t, pages * ranges> shown{};  // number of the chunk, from 1
  std::uint64_t state = 7;
  const auto dice = [&](std::size_t sides) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(state >> 33) % sides;
  };
  std::size_t used = 0, worked = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::size_t page = dice(pages * ranges), latest = std::min<std::size_t>(pieces.size(), 12);
    const std::size_t which = latest == 0 ? 0 : pieces.size() - 1 - dice(latest);
    void* const p = up(base[page / pages], page % pages * step);
    const std::size_t action = dice(4);
    if (action == 0) {
      piece made{{}, 1 + dice(4)};
      const bool expected = (used + made.length) * step <= device.capacity();
      ASSERT_EQ(device.create(made.length * step, page_kind::huge, made.handle), expected);
      if (!expected) continue;
      used += made.length;
      pieces.push_back(made);
    } else if (pieces.empty()) {
      continue;
    } else if (piece& m = pieces[which]; action == 1) {
      ASSERT_EQ(device.destroy(m.handle), !m.destroyed);
      if (m.destroyed) continue;
      if (m.at > shown.size()) used -= m.length;
      m.destroyed = true;
    } else if (action == 2) {
      bool expected = !m.destroyed && m.at > shown.size() && page % pages + m.length <= pages;
      for (std::size_t k = page; expected && k < page + m.length; ++k) expected = shown[k] == 0;
      ASSERT_EQ(device.map(p, m.length * step, m.handle), expected);
      if (!expected) continue;
      m.at = page;
      for (std::size_t k = page; k < page + m.length; ++k) shown[k] = which + 1;
    } else {
      const std::size_t size = 1 + dice(4), there = shown[page];
      const bool begins = there != 0 && pieces[there - 1].at == page;
      const bool expected = begins && (!TypeParam::unmap_wants_size || pieces[there - 1].length == size);
      ASSERT_EQ(device.unmap(p, size * step), expected);
      if (!expected) continue;
      piece& gone = pieces[there - 1];
      for (std::size_t k = page; k < page + gone.length; ++k) shown[k] = 0;
      gone.at = shown.size() + 1;
      if (gone.destroyed) used -= gone.length;
    }
    ++worked;
    ASSERT_EQ(device.used(), used * step);
  }
  EXPECT_GT(worked, 2'000u);
  std::size_t mapped = 0;
  for (const std::size_t s : shown) mapped += s != 0 ? step : 0;
  EXPECT_EQ(device.held().mapped, mapped);
}

TEST(simulated_virtual_memory_death, names_options_that_no_device_has) {
  for (const std::size_t bytes : {std::size_t{0}, 2_KiB, 96_KiB, 2_GiB}) {
    EXPECT_DEATH((simulated_device{options{.page_granularity = bytes}}),
                 "simulated_device: options.page_granularity must be a power of two from 4 KiB to 1 GiB");
  }
}

}  // namespace
