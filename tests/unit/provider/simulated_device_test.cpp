// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>

namespace {

using namespace tessera;
using options = simulated_device::options;
using call = simulated_device::call;

static_assert(!std::is_copy_constructible_v<simulated_device>);
static_assert(event_provider<provider_ref<simulated_device>> &&
              paged_provider<provider_ref<simulated_device>>);

struct plain_device {
  void* acquire(std::size_t) noexcept { return nullptr; }
  bool release(void*, std::size_t) noexcept { return false; }
  std::size_t capacity() const noexcept { return 0; }
  std::size_t granularity() const noexcept { return 64; }
};
static_assert(device_provider<provider_ref<plain_device>> && !event_provider<provider_ref<plain_device>> &&
              !paged_provider<provider_ref<plain_device>>);

std::uintptr_t number(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

TEST(simulated_device, has_80_gib_in_granules_of_512_by_default) {
  simulated_device device;
  EXPECT_EQ(device.capacity(), 80_GiB);
  EXPECT_EQ(device.granularity(), 512u);
  EXPECT_EQ(device.used(), 0u);
  EXPECT_EQ(device.now_ns(), 0u);
}

TEST(simulated_device, gives_growing_aligned_addresses_and_none_twice) {
  simulated_device device;
  std::uintptr_t end = 0;
  for (const std::size_t bytes : {std::size_t{512}, 2_MiB, 2_MiB + 512, 3_GiB, 512_KiB}) {
    void* const p = device.acquire(bytes);
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(number(p) % 2_MiB, 0u);
    EXPECT_GE(number(p), end);
    end = number(p) + bytes;
    EXPECT_TRUE(device.release(p, bytes));
  }
  EXPECT_EQ(device.used(), 0u);
}

TEST(simulated_device, is_deterministic) {
  simulated_device first, second;
  for (const std::size_t bytes : {512_KiB, 20_MiB, 2_MiB}) {
    EXPECT_EQ(first.acquire(bytes), second.acquire(bytes));
    EXPECT_EQ(first.now_ns(), second.now_ns());
  }
}

TEST(simulated_device, aligns_to_granules_above_2_mib) {
  simulated_device device{options{.granularity = 1_GiB}};
  EXPECT_EQ(number(device.acquire(1_GiB)) % 1_GiB, 0u);
  EXPECT_EQ(number(device.acquire(1_GiB)) % 1_GiB, 0u);
  EXPECT_EQ(device.acquire(2_MiB), nullptr);
}

TEST(simulated_device, keeps_devices_apart) {
  simulated_device first, second{options{.device = 1}}, last{options{.capacity = unlimited, .device = 254}};
  const auto span = std::uintptr_t{1} << 56;
  EXPECT_EQ(number(first.acquire(2_MiB)), span);
  EXPECT_EQ(number(second.acquire(2_MiB)), 2 * span);
  EXPECT_EQ(number(last.acquire(2_MiB)), 255 * span);
}

TEST(simulated_device, ends_with_its_addresses_and_does_not_wrap) {
  constexpr std::size_t all = (std::size_t{1} << 56) - 2_MiB;
  simulated_device device{options{.capacity = unlimited, .device = 254}};
  EXPECT_EQ(device.acquire(all + 512), nullptr);
  void* const p = device.acquire(all - 2_MiB);
  ASSERT_NE(p, nullptr);
  EXPECT_TRUE(device.release(p, all - 2_MiB));
  EXPECT_EQ(device.acquire(2_MiB + 512), nullptr);
  void* const last = device.acquire(512);
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(number(last), std::numeric_limits<std::uintptr_t>::max() - 4_MiB + 1);
  EXPECT_EQ(device.acquire(512), nullptr);
  EXPECT_EQ(device.calls().refused, 3u);
}

TEST(simulated_device, refuses_invalid_sizes) {
  simulated_device device;
  EXPECT_EQ(device.acquire(0), nullptr);
  EXPECT_EQ(device.acquire(513), nullptr);
  EXPECT_EQ(device.acquire(std::numeric_limits<std::size_t>::max()), nullptr);
  EXPECT_EQ(device.calls().acquire, 3u);
  EXPECT_EQ(device.calls().refused, 0u);
  EXPECT_EQ(device.used(), 0u);
}

TEST(simulated_device, refuses_beyond_its_capacity) {
  simulated_device device{options{.capacity = 10_MiB}};
  void* const p = device.acquire(6_MiB);
  EXPECT_EQ(device.acquire(4_MiB + 512), nullptr);
  EXPECT_EQ(device.acquire(unlimited / 512 * 512), nullptr);
  EXPECT_NE(device.acquire(4_MiB), nullptr);
  EXPECT_EQ(device.acquire(512), nullptr);
  EXPECT_EQ(device.used(), 10_MiB);
  EXPECT_TRUE(device.release(p, 6_MiB));
  EXPECT_EQ(device.used(), 4_MiB);
  EXPECT_NE(device.acquire(2_MiB), nullptr);
  EXPECT_EQ(device.used(), 6_MiB);
  EXPECT_EQ(device.peak_used(), 10_MiB);
  EXPECT_EQ(device.calls().acquire, 6u);
  EXPECT_EQ(device.calls().refused, 3u);
  EXPECT_EQ(device.calls().failed, 0u);
}

TEST(simulated_device, releases_only_its_own_segments) {
  simulated_device device;
  void* const p = device.acquire(4_MiB);
  EXPECT_FALSE(device.release(nullptr, 4_MiB));
  EXPECT_FALSE(device.release(static_cast<char*>(p) + 512, 4_MiB));
  EXPECT_FALSE(device.release(p, 2_MiB));
  EXPECT_EQ(device.used(), 4_MiB);
  EXPECT_TRUE(device.release(p, 4_MiB));
  EXPECT_FALSE(device.release(p, 4_MiB));
  EXPECT_EQ(device.used(), 0u);
  EXPECT_EQ(device.calls().release, 5u);
}

TEST(simulated_device, draws_huge_pages_from_their_budget) {
  simulated_device device{options{.capacity = 10_MiB, .huge_budget = 4_MiB}};
  void* const p = device.acquire(4_MiB, page_kind::huge);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(device.acquire(2_MiB, page_kind::huge), nullptr);
  EXPECT_NE(device.acquire(2_MiB, page_kind::normal), nullptr);
  EXPECT_TRUE(device.release(p, 4_MiB));
  EXPECT_NE(device.acquire(2_MiB, page_kind::huge), nullptr);
  EXPECT_EQ(device.acquire(4_MiB, page_kind::huge), nullptr);
  EXPECT_EQ(device.calls().refused, 2u);
}

TEST(simulated_device, counts_each_kind_of_memory_against_its_budget) {
  const auto room_for_2_mib = [](options chosen, page_kind kind) {
    simulated_device device{chosen};
    if (device.acquire(4_MiB, kind) != nullptr || device.calls().refused != 1) return false;
    void* const p = device.acquire(2_MiB, kind);
    if (p == nullptr || device.acquire(2_MiB, kind) != nullptr) return false;
    return device.release(p, 2_MiB) && device.acquire(2_MiB, kind) != nullptr;
  };
  EXPECT_TRUE(room_for_2_mib({.normal_budget = 2_MiB}, page_kind::normal));
  EXPECT_TRUE(room_for_2_mib({.huge_budget = 2_MiB}, page_kind::huge));
  EXPECT_TRUE(room_for_2_mib({.peer_to_peer_budget = 2_MiB}, {.peer_to_peer = true}));
  EXPECT_TRUE(room_for_2_mib({.low_bandwidth_budget = 2_MiB}, {.speed = page_kind::bandwidth::low}));
  EXPECT_TRUE(room_for_2_mib({.high_bandwidth_budget = 2_MiB}, {.speed = page_kind::bandwidth::high}));
  EXPECT_TRUE(room_for_2_mib({.high_bandwidth_budget = 2_MiB},
                             {page_kind::page_size::huge, page_kind::bandwidth::high, true, true}));

  simulated_device device{options{.capacity = 8_GiB, .giant_budget = 1_GiB}};
  void* const p = device.acquire(1_GiB, page_kind::huge_1g);
  EXPECT_EQ(number(p) % 1_GiB, 0u);
  EXPECT_EQ(device.acquire(1_GiB, page_kind::huge_1g), nullptr);
  EXPECT_NE(device.acquire(1_GiB, page_kind::huge), nullptr);
  EXPECT_TRUE(device.release(p, 1_GiB));
  EXPECT_NE(device.acquire(1_GiB, page_kind::huge_1g), nullptr);
}

TEST(simulated_device, uses_whole_pages_of_the_larger_kinds) {
  simulated_device device;
  EXPECT_EQ(device.acquire(512, page_kind::huge), nullptr);
  EXPECT_EQ(device.acquire(3_MiB, page_kind::huge), nullptr);
  EXPECT_EQ(device.acquire(512_MiB, page_kind::huge_1g), nullptr);
  EXPECT_EQ(device.calls().refused, 0u);
  EXPECT_NE(device.acquire(2_MiB, page_kind::huge), nullptr);
  EXPECT_EQ(number(device.acquire(1_GiB, page_kind::huge_1g)) % 1_GiB, 0u);
  EXPECT_EQ(device.used(), 1_GiB + 2_MiB);
}

TEST(simulated_device, takes_any_bandwidth_from_the_high_one_first) {
  const page_kind low{.speed = page_kind::bandwidth::low}, high{.speed = page_kind::bandwidth::high};
  simulated_device device{options{.low_bandwidth_budget = 4_MiB, .high_bandwidth_budget = 4_MiB}};
  void* const first = device.acquire(2_MiB);  // high
  EXPECT_EQ(device.acquire(4_MiB, high), nullptr);
  void* const second = device.acquire(4_MiB);  // low, as the high one has no room for all of it
  EXPECT_EQ(device.acquire(512, low), nullptr);
  void* const third = device.acquire(2_MiB);
  EXPECT_EQ(device.acquire(512), nullptr);
  EXPECT_TRUE(device.release(second, 4_MiB));
  EXPECT_EQ(device.acquire(512, high), nullptr);
  EXPECT_TRUE(device.release(first, 2_MiB) && device.release(third, 2_MiB));
  EXPECT_NE(device.acquire(4_MiB, low), nullptr);
  EXPECT_NE(device.acquire(4_MiB, high), nullptr);
}

TEST(simulated_device, reports_why_it_failed) {
  simulated_device device{options{.capacity = 4_MiB, .huge_budget = 0}};
  EXPECT_STREQ(device.last_error(), "");
  void* const p = device.acquire(2_MiB);
  EXPECT_STREQ(device.last_error(), "");
  EXPECT_EQ(device.acquire(4_MiB), nullptr);
  EXPECT_STREQ(device.last_error(), "acquire, 4194304 bytes: the capacity is reached");
  EXPECT_EQ(device.acquire(2_MiB, page_kind::huge), nullptr);
  EXPECT_STREQ(device.last_error(), "acquire, 2097152 bytes: no pages of this size are left");
  EXPECT_FALSE(device.release(p, 512));
  EXPECT_STREQ(device.last_error(), "release at 0x100000000000000, 512 bytes: the segment has another size");
  EXPECT_EQ(device.acquire(0), nullptr);
  EXPECT_STREQ(device.last_error(),
               "acquire: the size is 0, or no multiple of the granularity and of the page size");
  device.fail_call(1);
  simulated_device::event mark;
  EXPECT_FALSE(device.record({}, mark));
  EXPECT_STREQ(device.last_error(), "record: the call is made to fail");
}

TEST(simulated_device, synchronizes_with_one_stream) {
  simulated_device device{options{.log_calls = 1, .costs = {.synchronize = 3}}};
  device.submit(stream_id{1}, 100);
  device.submit(stream_id{2}, 1000);
  EXPECT_TRUE(device.synchronize(stream_id{1}));
  EXPECT_EQ(device.now_ns(), 103u);
  EXPECT_EQ(device.log()[0].kind, call::synchronize);
  EXPECT_EQ(device.log()[0].stream, stream_id{1});
  EXPECT_TRUE(device.synchronize(stream_id{1}));
  EXPECT_TRUE(device.synchronize(stream_id{7}));  // there is no work on it
  EXPECT_EQ(device.now_ns(), 109u);
  device.fail_call(1);
  EXPECT_FALSE(device.synchronize(stream_id{2}));
  EXPECT_EQ(device.now_ns(), 112u);
  EXPECT_TRUE(device.synchronize(stream_id{2}));
  EXPECT_EQ(device.now_ns(), 1003u);
  EXPECT_EQ(device.calls().synchronize, 5u);
}

TEST(simulated_device, lets_every_kth_call_fail) {
  simulated_device device{options{.fail_every = 3}};
  simulated_device::event mark;
  void* const p = device.acquire(2_MiB);
  EXPECT_TRUE(device.record({}, mark));
  EXPECT_TRUE(device.query(mark));  // cannot fail and does not count
  EXPECT_FALSE(device.release(p, 2_MiB));
  EXPECT_EQ(device.used(), 2_MiB);
  EXPECT_TRUE(device.wait(mark));
  EXPECT_TRUE(device.release(p, 2_MiB));
  EXPECT_EQ(device.acquire(2_MiB), nullptr);
  EXPECT_EQ(device.calls().failed, 2u);
  EXPECT_EQ(device.calls().refused, 0u);
  device.fail_every(1);
  mark.ready_ns = 7;
  EXPECT_FALSE(device.record({}, mark));
  EXPECT_EQ(mark.ready_ns, 7u);
  EXPECT_FALSE(device.wait(mark));
  device.fail_every(2);
  EXPECT_TRUE(device.wait(mark));
  device.fail_every(2);  // starts counting at 0
  EXPECT_TRUE(device.wait(mark));
  device.fail_every(0);
  EXPECT_TRUE(device.wait(mark));
  EXPECT_EQ(device.calls().failed, 4u);
}

TEST(simulated_device, lets_one_call_fail) {
  simulated_device device;
  device.fail_call(2);
  EXPECT_NE(device.acquire(2_MiB), nullptr);
  EXPECT_EQ(device.acquire(2_MiB), nullptr);
  EXPECT_NE(device.acquire(2_MiB), nullptr);
  device.fail_call(1);
  device.fail_call(0);
  EXPECT_NE(device.acquire(2_MiB), nullptr);
  EXPECT_EQ(device.calls().failed, 1u);
}

TEST(simulated_device, charges_for_calls) {
  simulated_device device{options{.costs = {.acquire = 100,
                                            .acquire_per_mib = 10,
                                            .release = 50,
                                            .release_per_mib = 5,
                                            .record = 4,
                                            .query = 3,
                                            .wait = 2}}};
  void* const p = device.acquire(3_MiB);
  EXPECT_EQ(device.now_ns(), 130u);
  (void)device.acquire(100_GiB);  // nothing was acquired
  EXPECT_EQ(device.now_ns(), 230u);
  EXPECT_FALSE(device.release(p, 4_MiB));
  EXPECT_EQ(device.now_ns(), 280u);
  EXPECT_TRUE(device.release(p, 3_MiB));
  EXPECT_EQ(device.now_ns(), 345u);
  simulated_device::event mark;
  EXPECT_TRUE(device.record({}, mark));
  EXPECT_EQ(device.now_ns(), 349u);
  EXPECT_TRUE(device.query(mark));
  EXPECT_EQ(device.now_ns(), 352u);
  EXPECT_TRUE(device.wait(mark));
  EXPECT_EQ(device.now_ns(), 354u);
  device.discard(mark);
  EXPECT_EQ(device.now_ns(), 354u);
  device.advance(6);
  EXPECT_EQ(device.now_ns(), 360u);
}

constexpr simulated_device::call_costs nothing{0, 0, 0, 0, 0, 0, 0};

TEST(simulated_device, orders_work_within_a_stream) {
  simulated_device device{options{.costs = nothing}};
  const stream_id busy{1}, idle{2};
  simulated_device::event before, after, elsewhere;
  device.submit(busy, 100);
  EXPECT_TRUE(device.record(busy, before));
  device.submit(busy, 50);
  EXPECT_TRUE(device.record(busy, after));
  EXPECT_TRUE(device.record(idle, elsewhere));
  EXPECT_EQ(before.ready_ns, 100u);
  EXPECT_EQ(after.ready_ns, 150u);
  EXPECT_TRUE(device.query(elsewhere));
  device.advance(99);
  EXPECT_FALSE(device.query(before));
  device.advance(1);
  EXPECT_TRUE(device.query(before));
  EXPECT_FALSE(device.query(after));
  EXPECT_TRUE(device.wait(after));
  EXPECT_EQ(device.now_ns(), 150u);
  EXPECT_TRUE(device.query(after));
  EXPECT_TRUE(device.wait(before));  // time does not go backward
  EXPECT_EQ(device.now_ns(), 150u);
}

TEST(simulated_device, starts_work_no_earlier_than_it_was_submitted) {
  simulated_device device{options{.costs = nothing}};
  device.submit(stream_id{1}, 10);
  device.advance(1000);
  device.submit(stream_id{1}, 10);
  simulated_device::event mark;
  EXPECT_TRUE(device.record(stream_id{1}, mark));
  EXPECT_EQ(mark.ready_ns, 1010u);
}

TEST(simulated_device, does_not_let_the_clock_wrap) {
  simulated_device device{options{.costs = nothing}};
  constexpr auto end = std::numeric_limits<std::uint64_t>::max();
  device.advance(10);
  device.submit(stream_id{1}, end);
  simulated_device::event mark;
  EXPECT_TRUE(device.record(stream_id{1}, mark));
  EXPECT_FALSE(device.query(mark));
  device.advance(end);
  EXPECT_EQ(device.now_ns(), end);
  EXPECT_TRUE(device.query(mark));
}

TEST(simulated_device, holds_events_but_not_waits) {
  simulated_device device;
  simulated_device::event mark;
  device.hold_events(true);
  device.submit({}, 0);
  EXPECT_TRUE(device.record({}, mark));
  EXPECT_FALSE(device.query(mark));
  simulated_device::event later;
  EXPECT_TRUE(device.record({}, later));
  EXPECT_FALSE(device.is_done({}, 1));
  EXPECT_TRUE(device.is_done({}, 0)) << "position 0 is before all work";
  EXPECT_TRUE(device.wait(mark));
  EXPECT_TRUE(device.query(mark)) << "what was waited for is ready";
  EXPECT_TRUE(device.is_done({}, 1));
  EXPECT_FALSE(device.query(later));
  EXPECT_TRUE(device.record(stream_id{1}, mark));
  EXPECT_FALSE(device.query(mark)) << "another stream";
  EXPECT_TRUE(device.synchronize(stream_id{1}));
  EXPECT_TRUE(device.query(mark));
  device.hold_events(false);
  EXPECT_TRUE(device.query(later));
}

TEST(simulated_device, logs_the_latest_calls) {
  simulated_device device{options{.capacity = 4_MiB, .log_calls = 3, .costs = nothing}};
  simulated_device::event mark;
  (void)device.acquire(2_MiB);
  void* const p = device.acquire(2_MiB);
  EXPECT_EQ(device.acquire(512), nullptr);
  device.advance(9);
  EXPECT_TRUE(device.record(stream_id{5}, mark));
  EXPECT_TRUE(device.release(p, 2_MiB));
  ASSERT_EQ(device.log().size(), 3u);
  const auto& refused = device.log()[0];
  EXPECT_EQ(refused.kind, call::acquire);
  EXPECT_EQ(refused.address, 0u);
  EXPECT_EQ(refused.bytes, 512u);
  EXPECT_FALSE(refused.ok);
  EXPECT_EQ(refused.time_ns, 0u);
  const auto& recorded = device.log()[1];
  EXPECT_EQ(recorded.kind, call::record);
  EXPECT_EQ(recorded.stream, stream_id{5});
  EXPECT_TRUE(recorded.ok);
  EXPECT_EQ(recorded.time_ns, 9u);
  const auto& released = device.log()[2];
  EXPECT_EQ(released.kind, call::release);
  EXPECT_EQ(released.address, number(p));
  EXPECT_EQ(released.bytes, 2_MiB);
  EXPECT_TRUE(released.ok);

  device.hold_events(true);
  EXPECT_FALSE(device.query(mark));
  EXPECT_TRUE(device.wait(mark));
  device.discard(mark);
  ASSERT_EQ(device.log().size(), 3u);
  EXPECT_EQ(device.log()[0].kind, call::query);
  EXPECT_FALSE(device.log()[0].ok);
  EXPECT_EQ(device.log()[1].kind, call::wait);
  EXPECT_EQ(device.log()[2].kind, call::discard);
  EXPECT_EQ(device.calls().acquire, 3u);
  EXPECT_EQ(device.calls().release, 1u);
  EXPECT_EQ(device.calls().record, 1u);
  EXPECT_EQ(device.calls().query, 1u);
  EXPECT_EQ(device.calls().wait, 1u);
  EXPECT_EQ(device.calls().discard, 1u);
}

TEST(simulated_device, logs_the_kind_of_pages) {
  simulated_device device{options{.log_calls = 3}};
  const page_kind wanted{.size = page_kind::page_size::huge_1g, .peer_to_peer = true};
  simulated_device::physical memory;
  EXPECT_NE(device.acquire(1_GiB, wanted), nullptr);
  EXPECT_TRUE(device.create(2_MiB, page_kind::huge, memory));
  EXPECT_EQ(device.acquire(512, wanted), nullptr);
  EXPECT_EQ(device.log()[0].pages, wanted);
  EXPECT_EQ(device.log()[1].pages, page_kind::huge);
  EXPECT_EQ(device.log()[2].pages, wanted);
}

TEST(simulated_device, drops_the_oldest_calls_of_its_log) {
  for (const std::size_t limit : {1u, 2u, 15u, 16u, 17u, 100u}) {
    simulated_device device{options{.log_calls = limit}};
    for (std::size_t n = 1; n <= 500; ++n) {
      (void)device.acquire(n * 512);
      ASSERT_EQ(device.log().size(), std::min(n, limit));
      ASSERT_EQ(device.log().back().bytes, n * 512);
      ASSERT_EQ(device.log()[0].bytes, (n - device.log().size() + 1) * 512);
    }
    std::size_t bytes = device.log()[0].bytes;
    for (const auto& each : device.log()) {
      EXPECT_EQ(each.bytes, bytes);
      bytes += 512;
    }
  }
}

TEST(simulated_device, a_full_log_does_not_slow_calls) {
  constexpr std::size_t limit = 50'000;
  simulated_device device{options{.log_calls = limit}};
  const auto time_of_calls = [&] {
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t n = 0; n < limit; ++n) (void)device.release(nullptr, 512);
    return std::chrono::steady_clock::now() - begin;
  };
  const auto filling = time_of_calls();
  EXPECT_LT(time_of_calls(), 50 * filling);
}

TEST(simulated_device, logs_nothing_by_default) {
  simulated_device device;
  (void)device.acquire(2_MiB);
  EXPECT_TRUE(device.log().empty());
}

TEST(simulated_device, moves_with_everything_it_gave) {
  simulated_device first{options{.log_calls = 4}};
  void* const p = first.acquire(2_MiB);
  first.submit(stream_id{1}, 1'000'000);
  simulated_device second = std::move(first);
  simulated_device::event mark;
  EXPECT_TRUE(second.record(stream_id{1}, mark));
  EXPECT_EQ(mark.ready_ns, 51'000u + 1'000'000u);
  EXPECT_EQ(second.log().size(), 2u);
  EXPECT_GT(number(second.acquire(2_MiB)), number(p));
  EXPECT_TRUE(second.release(p, 2_MiB));
}

TEST(simulated_device, is_shared_by_reference) {
  simulated_device device{options{.capacity = 4_MiB, .huge_budget = 0}};
  provider_ref<simulated_device> one(device), two(device);
  void* const p = one.acquire(4_MiB);
  EXPECT_EQ(two.acquire(512), nullptr);
  EXPECT_TRUE(two.release(p, 4_MiB));
  EXPECT_EQ(two.acquire(2_MiB, page_kind::huge), nullptr);
  EXPECT_EQ(one.capacity(), 4_MiB);
  EXPECT_EQ(one.granularity(), 512u);
  simulated_device::event mark;
  device.submit(stream_id{3}, 1'000'000);
  EXPECT_TRUE(one.record(stream_id{3}, mark));
  EXPECT_FALSE(two.query(mark));
  EXPECT_TRUE(two.wait(mark));
  EXPECT_TRUE(one.query(mark));
  two.discard(mark);
  EXPECT_EQ(device.calls().discard, 1u);
}

TEST(simulated_device_death, names_options_that_no_device_has) {
  EXPECT_DEATH((simulated_device{options{.granularity = 0}}),
               "simulated_device: options.granularity must be a power of two from 64 B to 1 GiB");
  EXPECT_DEATH((simulated_device{options{.granularity = 96}}), "options.granularity must be a power of two");
  EXPECT_DEATH((simulated_device{options{.granularity = 32}}), "options.granularity must be a power of two");
  EXPECT_DEATH((simulated_device{options{.granularity = 2_GiB}}),
               "options.granularity must be a power of two");
  EXPECT_DEATH((void)simulated_device{}.another_bank({.device = 1}),
               "options.device must be the number of the device in another_bank");
  EXPECT_DEATH((simulated_device{options{.device = 255}}),
               "simulated_device: options.device must be below 255");
}

}  // namespace
