// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/observe/std_stacktrace.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "stacks.hpp"

namespace {

using namespace tessera;
using action = allocator_event::action;

/// Counts the calls.
struct ticks {
  std::uint64_t operator()() noexcept { return ++asked; }
  std::uint64_t asked = 0;
};
using ticking = history<ticks>;
using watch = extension::observer<ticking>;
template <typename Recipe>
using watched = caching_allocator<Recipe, simulated_device, watch>;

/// The history of an allocator.
ticking& seen_by(watched<pytorch<>>& pool) {
  return pool.get<watch>().with([](ticking& seen) -> ticking& { return seen; });
}

template <typename History>
std::vector<std::size_t> bytes_of(const History& seen) {
  std::vector<std::size_t> all;
  seen.for_each([&](const auto& e) { all.push_back(e.event.bytes); });
  return all;
}
allocator_event of(std::size_t bytes) { return {.what = action::alloc, .bytes = bytes}; }

TEST(history, keeps_the_latest_oldest_first) {
  ticking seen(3);
  EXPECT_EQ(seen.size(), 0u);
  for (std::size_t i = 1; i <= 3; ++i) seen.on(of(i));
  EXPECT_EQ(bytes_of(seen), (std::vector<std::size_t>{1, 2, 3}));
  EXPECT_EQ(seen.dropped(), 0u);
  for (std::size_t i = 4; i <= 8; ++i) seen.on(of(i));
  EXPECT_EQ(bytes_of(seen), (std::vector<std::size_t>{6, 7, 8}));
  EXPECT_EQ(seen.dropped(), 5u);
  std::vector<std::uint64_t> times;
  seen.for_each([&](const auto& e) { times.push_back(e.time_us); });
  EXPECT_EQ(times, (std::vector<std::uint64_t>{6, 7, 8}));
  seen.clear();
  EXPECT_EQ(seen.size(), 0u);
  seen.on(of(9));
  EXPECT_EQ(bytes_of(seen), (std::vector<std::size_t>{9}));
}

TEST(history, has_a_capacity_of_at_least_one) {
  ticking seen(0);
  seen.on(of(1));
  seen.on(of(2));
  EXPECT_EQ(bytes_of(seen), (std::vector<std::size_t>{2}));
}

TEST(history, copies_are_independent) {
  ticking seen(2);
  for (std::size_t i = 1; i <= 3; ++i) seen.on(of(i));
  ticking copy = seen;
  copy.on(of(4));
  EXPECT_EQ(bytes_of(copy), (std::vector<std::size_t>{3, 4}));
  EXPECT_EQ(bytes_of(seen), (std::vector<std::size_t>{2, 3}));
  seen = copy;
  EXPECT_EQ(bytes_of(seen), (std::vector<std::size_t>{3, 4}));
}

TEST(history, labels_events) {
  ticking seen(10);
  seen.on(of(1));
  seen.label("forward");
  seen.on(of(2));
  seen.label("backward");
  seen.on(of(3));
  seen.label("forward");
  seen.on(of(4));
  seen.label("");
  seen.on(of(5));
  std::vector<std::string> labels;
  seen.for_each([&](const auto& e) { labels.emplace_back(seen.label_of(e)); });
  EXPECT_EQ(labels, (std::vector<std::string>{"", "forward", "backward", "forward", ""}));
}

TEST(history, too_many_labels_become_one) {
  ticking seen(4);
  for (std::size_t i = 0; i < 2 * ticking::max_labels; ++i) seen.label("step " + std::to_string(i));
  seen.on(of(1));
  seen.label("step 0");
  seen.on(of(2));
  std::vector<std::string> labels;
  seen.for_each([&](const auto& e) { labels.emplace_back(seen.label_of(e)); });
  EXPECT_EQ(labels, (std::vector<std::string>{"(more labels)", "step 0"}));
}

TEST(history, observes_all_events_of_an_allocator) {
  watched<pytorch_family::native> pool{
      simulated_device{simulated_device::options{.capacity = 30_MiB}}, {}, watch{ticking(100)}};
  void* const p = pool.allocate(1_MiB + 1);
  EXPECT_EQ(pool.try_allocate(25_MiB), nullptr);
  (void)pool.record_stream(p, stream_id{7});
  pool.provider().hold_events(true);
  pool.deallocate(p);
  pool.trim();
  std::vector<action> all;
  allocator_event oom{};
  pool.get<watch>().with([&](const ticking& seen) {
    seen.for_each([&](const auto& e) {
      all.push_back(e.event.what);
      if (e.event.what == action::oom) oom = e.event;
    });
  });
  EXPECT_EQ(all, (std::vector<action>{action::segment_alloc, action::alloc, action::refused, action::refused,
                                      action::oom, action::free_requested, action::free_completed,
                                      action::segment_free}));
  EXPECT_EQ(oom.bytes, 25_MiB);
  EXPECT_EQ(oom.address, 10_MiB) << "what the device has left";
}

TEST(history, is_reached_through_adaptors) {
  locked<watched<pytorch_family::native>> one;
  per_stream<watched<pytorch_family::native>> arenas;
  per_device<locked<watched<pytorch_family::native>>> two(std::vector<simulated_device>(2));
  one.deallocate(one.allocate(1));
  arenas.deallocate(arenas.allocate(1, stream_id{1}));
  arenas.deallocate(arenas.allocate(1, stream_id{2}));
  two.deallocate(two.allocate(1, 1));
  const auto totals = [](auto& pool) {
    std::vector<std::size_t> sizes;
    pool.for_each_device([&](auto& front, std::size_t device) {
      front.for_each_observer([&](const auto& seen) {
        EXPECT_EQ(device, sizes.size());
        sizes.push_back(seen.size());
      });
    });
    return sizes;
  };
  EXPECT_EQ(totals(one), (std::vector<std::size_t>{4}));
  EXPECT_EQ(totals(arenas), (std::vector<std::size_t>{8}));
  EXPECT_EQ(totals(two), (std::vector<std::size_t>{0, 4}));
}

std::uintptr_t address_of(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

TEST(history, keeps_a_label_in_place) {
  watched<pytorch<>> pool{simulated_device(), {}, watch{ticking(2)}};
  seen_by(pool).label("weights");
  void* const p = pool.allocate(1000);
  const std::string_view label = seen_by(pool).block_at(address_of(p)).label;
  for (int i = 0; i < 100; ++i) seen_by(pool).label("step " + std::to_string(i));
  EXPECT_EQ(seen_by(pool).block_at(address_of(p)).label.data(), label.data());
  EXPECT_EQ(label, "weights");
  pool.deallocate(p);
}

TEST(history, keeps_the_label_of_a_live_block_after_its_event_is_dropped) {
  watched<pytorch<>> pool{simulated_device(), {}, watch{ticking(2)}};
  seen_by(pool).label("weights");
  void* const kept = pool.allocate(1000);
  void* const freed = pool.allocate(1000);
  seen_by(pool).label("");
  for (int i = 0; i < 100; ++i) pool.deallocate(pool.allocate(3000));
  EXPECT_GT(seen_by(pool).dropped(), 100u);
  EXPECT_EQ(seen_by(pool).block_at(address_of(kept)).label, "weights");
  pool.deallocate(freed);
  EXPECT_EQ(seen_by(pool).block_at(address_of(freed)).label, "");
  EXPECT_EQ(pool.allocate(1000), freed);
  EXPECT_EQ(seen_by(pool).block_at(address_of(freed)).label, "") << "another block at that address";
  seen_by(pool).label("batch");
  EXPECT_TRUE(pool.reuse_in_place(kept, 900, {}));
  EXPECT_EQ(seen_by(pool).block_at(address_of(kept)).label, "batch") << "a new request";
  seen_by(pool).clear();
  EXPECT_EQ(seen_by(pool).block_at(address_of(kept)).label, "batch");
  const ticking copy = seen_by(pool);
  pool.deallocate(kept);
  EXPECT_EQ(copy.block_at(address_of(kept)).label, "batch");
  EXPECT_EQ(seen_by(pool).block_at(address_of(kept)).label, "");
}

TEST(history, keeps_the_label_of_a_pending_block) {
  watched<pytorch<>> pool{simulated_device(), {}, watch{ticking(2)}};
  seen_by(pool).label("copy");
  void* const p = pool.allocate(1000);
  pool.provider().hold_events(true);
  (void)pool.record_stream(p, stream_id{3});
  pool.deallocate(p);
  EXPECT_EQ(seen_by(pool).block_at(address_of(p)).label, "copy");
  pool.provider().hold_events(false);
  pool.trim();
  EXPECT_EQ(seen_by(pool).block_at(address_of(p)).label, "");
}

template <typename Pool>
void label_blocks_of_threads() {
  Pool pool;
  const auto label_of_block = [&pool](std::uint64_t stream) {
    void* const p = pool.allocate(1000, stream_id{stream});
    std::string label;
    pool.for_each_observer([&](auto& seen) { label = seen.block_at(address_of(p)).label; });
    return label;
  };
  const label_scope forward(pool, "forward");
  EXPECT_EQ(label_of_block(1), "forward");
  std::thread([&] {
    EXPECT_EQ(label_of_block(1), "") << "a label holds for its thread";
    pool.for_each_observer([](auto& seen) { seen.label("other"); });
    EXPECT_EQ(label_of_block(1), "other");
    pool.for_each_observer([](auto& seen) { seen.label(""); });
    EXPECT_EQ(label_of_block(1), "");
  }).join();
  {
    const label_scope inner(pool, "backward, with a name that is long");
    const label_scope innermost(pool, "optimizer");
    EXPECT_EQ(label_of_block(1), "optimizer");
  }
  EXPECT_EQ(label_of_block(1), "forward");
  pool.for_each_observer([](auto& seen) { seen.set_default_label("data"); });
  EXPECT_EQ(label_of_block(1), "forward");
  std::thread([&] {
    EXPECT_EQ(label_of_block(1), "data");
    {
      const label_scope scope(pool, "mine");
      EXPECT_EQ(label_of_block(2), "mine");
    }
    EXPECT_EQ(label_of_block(2), "data");
  }).join();
}

TEST(history, labels_hold_for_a_thread) {
  label_blocks_of_threads<locked<watched<pytorch<>>>>();
  label_blocks_of_threads<per_stream<watched<pytorch<>>>>();
}

TEST(history, label_scopes_of_several_devices) {
  per_device<locked<watched<pytorch<>>>> all(std::vector<simulated_device>(2));
  const label_scope scope(all, "both");
  for (std::size_t d = 0; d < 2; ++d) {
    void* const p = all.allocate(1000, d);
    all.front(d).for_each_observer(
        [p](const auto& seen) { EXPECT_EQ(seen.block_at(address_of(p)).label, "both"); });
  }
}

TEST(history, label_scopes_of_several_histories) {
  using other = extension::observer<history<>>;
  locked<caching_allocator<pytorch<>, simulated_device, watch, other>> pool;
  pool.get<other>().with([](auto& seen) { seen.label("before"); });
  const auto labels = [&pool] {
    std::vector<std::string> all;
    pool.for_each_observer([&all](auto& seen) { all.emplace_back(seen.current_label()); });
    return all;
  };
  {
    const label_scope scope(pool, "both");
    EXPECT_EQ(labels(), (std::vector<std::string>{"both", "both"}));
  }
  EXPECT_EQ(labels(), (std::vector<std::string>{"", "before"}));
}
TEST(history_death, a_label_scope_needs_a_history) {
  caching_allocator<pytorch<>, simulated_device> pool;
  EXPECT_DEATH((void)label_scope(pool, "none"), "label_scope: the allocator has no history");
}

TEST(history, keeps_the_call_stacks_of_live_blocks) {
  int depth = 1;
  using stacks_tests::with_stacks;
  using stacks = extension::observer<with_stacks>;
  caching_allocator<pytorch<>, simulated_device, stacks> pool{
      simulated_device(), {}, stacks{with_stacks(4, {}, {&depth})}};
  void* const first = pool.allocate(1000);
  depth = 0;
  void* const second = pool.allocate(1000);
  depth = 1;
  void* const third = pool.allocate(1000);
  for (int i = 0; i < 20; ++i) pool.deallocate(pool.allocate(2000));
  const with_stacks& seen = pool.get<stacks>().with([](auto& s) -> with_stacks& { return s; });
  const std::uint32_t number = seen.block_at(address_of(first)).stack;
  EXPECT_NE(number, 0u);
  EXPECT_EQ(seen.block_at(address_of(third)).stack, number) << "equal stacks are kept once";
  EXPECT_NE(seen.block_at(address_of(second)).stack, number);
  const std::vector<stack_frame> calls = seen.stack_of(number);
  ASSERT_EQ(calls.size(), 2u) << "without the calls of the allocator";
  EXPECT_EQ(calls[0].function, "function_1");
  EXPECT_EQ(calls[0].file, "program.cpp");
  EXPECT_EQ(calls[0].line, 11u);
  EXPECT_EQ(calls[1].function, "function_0");
  EXPECT_TRUE(seen.stack_of(0).empty());
  std::size_t count = 0;
  seen.for_each_stack([&](std::uint32_t, const auto& all) { count += !all.empty(); });
  EXPECT_EQ(count, 2u);
  pool.deallocate(first);
  EXPECT_EQ(seen.block_at(address_of(first)).stack, 0u);
  depth = 100;  // more calls than are kept
  void* const deep = pool.allocate(1000);
  EXPECT_EQ(seen.stack_of(seen.block_at(address_of(deep)).stack).size(), 63u);
}

#if defined(__cpp_lib_stacktrace)
static_assert(stack_source<std_stacktrace>);
#endif

template <typename History>
concept has_stacks = requires(const History& seen) { seen.stack_of(0); };

TEST(history, takes_no_stacks_by_default) {
  static_assert(!has_stacks<history<>> && has_stacks<stacks_tests::with_stacks>);
  static_assert(sizeof(history<>::entry) == 64);
  using plain = extension::observer<history<>>;
  caching_allocator<pytorch<>, simulated_device, plain> pool;
  void* const p = pool.allocate(1000);
  EXPECT_EQ(pool.get<plain>().with([p](auto& seen) { return seen.block_at(address_of(p)).stack; }), 0u);
}

}  // namespace
