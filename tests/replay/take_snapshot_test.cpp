// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/observe/to_pickle.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/passthrough.hpp>
#include <tessera/recipe/pinned.hpp>
#include <tessera/recipe/power_of_two.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/files.hpp"
#include "tessera_replay/read_snapshot.hpp"
#include "tessera_replay/snapshot_recording.hpp"
#include "tessera_replay/verify.hpp"

#include "../unit/observe/stacks.hpp"
#include "by_day.hpp"
#include "viewer.hpp"

namespace {

using namespace tessera;

using state = snapshot::block::state;
using action = snapshot::action;

/// Each event is a microsecond after the one before.
struct ticks {
  std::uint64_t operator()() noexcept { return ++asked; }
  std::uint64_t asked = 0;
};
using ticking = extension::observer<history<ticks>>;

struct total {
  std::size_t reserved = 0, allocated = 0, requested = 0, blocks = 0;
  bool operator==(const total&) const = default;
};
total count_bytes(const snapshot& seen) {
  total t;
  for (const snapshot::segment& s : seen.segments) {
    t.reserved += s.size;
    t.allocated += s.count_bytes().allocated;
    t.requested += s.count_bytes().requested;
    for (const snapshot::block& b : s.blocks) t.blocks += b.is == state::live;
  }
  return t;
}
template <typename Statistics>
total told_by(const Statistics& counted) {
  const auto of = [](const auto& c) { return static_cast<std::size_t>(c.current); };
  return {of(counted.all.reserved_bytes), of(counted.all.allocated_bytes), of(counted.all.requested_bytes),
          of(counted.all.allocation)};
}

TEST(take_snapshot, has_the_state_of_an_allocator) {
  caching_allocator<pytorch_family::native, simulated_device> pool;
  void* const kept = pool.allocate(1000, stream_id{3});
  void* const used = pool.allocate(600, stream_id{3});
  (void)pool.allocate(30_MiB);
  (void)pool.record_stream(used, stream_id{4});
  pool.provider().hold_events(true);
  pool.deallocate(used);
  const snapshot seen = take_snapshot(pool);
  ASSERT_EQ(seen.segments.size(), 2u);
  const snapshot::segment& small = seen.segments[0];
  EXPECT_FALSE(small.large);
  EXPECT_FALSE(small.expandable);
  EXPECT_EQ(small.size, 2_MiB);
  EXPECT_EQ(small.stream, stream_id{3});
  ASSERT_EQ(small.blocks.size(), 3u);
  EXPECT_EQ(small.blocks[0],
            (snapshot::block{reinterpret_cast<std::uintptr_t>(kept), 1024, 1000, state::live}));
  EXPECT_EQ(small.blocks[1].is, state::pending);
  EXPECT_EQ(small.blocks[1].requested, 600u);
  EXPECT_EQ(small.blocks[2].is, state::free);
  EXPECT_EQ(small.count_bytes().allocated, 1024u);
  EXPECT_EQ(small.count_bytes().active, 2048u);
  EXPECT_EQ(small.count_bytes().requested, 1600u);
  EXPECT_TRUE(seen.segments[1].large);
  ASSERT_EQ(seen.traces.size(), 1u) << "a list for each device, also without an observer";
  EXPECT_TRUE(seen.traces[0].empty());
  pool.provider().hold_events(false);
}

TEST(take_snapshot, of_nothing_is_empty) {
  caching_allocator<pytorch_family::native, simulated_device> pool;
  const snapshot seen = take_snapshot(pool);
  EXPECT_TRUE(seen.segments.empty());
  EXPECT_TRUE(seen.traces.empty());
}

/// The functions of a call stack, innermost first.
std::vector<std::string> functions_of(const snapshot& seen, std::uint32_t stack) {
  std::vector<std::string> all;
  for (const std::uint32_t position : seen.stacks.stack(stack)) {
    const snapshot::call_stacks::frame& f = seen.stacks.frame_at(position);
    EXPECT_EQ(seen.stacks.text(f.file), "program.cpp");
    all.push_back(std::string(seen.stacks.text(f.function)) + ":" + std::to_string(f.line));
  }
  return all;
}

TEST(take_snapshot, has_the_call_stacks_of_blocks_and_events) {
  using stacks_tests::with_stacks;
  int depth = 1;
  const auto check = [&depth](auto& pool) {
    (void)pool.allocate(1000);
    depth = 0;
    (void)pool.allocate(2000);
    depth = 1;
    for (int i = 0; i < 20; ++i) pool.deallocate(pool.allocate(3000));
    const snapshot taken = take_snapshot(pool);
    const auto read = replay::read_snapshot(to_pickle(taken), "file");
    ASSERT_TRUE(std::holds_alternative<snapshot>(read));
    for (const snapshot& seen : {taken, std::get<snapshot>(read)}) {
      const std::vector<std::string> deep{"function_1:11", "function_0:10"}, shallow{"function_0:10"};
      ASSERT_EQ(seen.segments.size(), 1u);
      const auto& blocks = seen.segments[0].blocks;
      EXPECT_EQ(functions_of(seen, blocks[0].stack), deep);
      EXPECT_EQ(functions_of(seen, blocks[1].stack), shallow);
      EXPECT_EQ(blocks.back().stack, 0u) << "the block is free";
      ASSERT_FALSE(seen.traces[0].empty());
      for (const snapshot::entry& e : seen.traces[0]) {
        if (e.what == action::alloc || e.what == action::free_requested) {
          EXPECT_EQ(functions_of(seen, e.stack), deep);
        }
      }
    }
  };
  using watch = extension::observer<with_stacks>;
  using watched = caching_allocator<pytorch<>, simulated_device, watch>;
  watched plain{simulated_device(), {}, watch{with_stacks(4, {}, {&depth})}};
  check(plain);
  locked<watched> shared(simulated_device(), {}, watch{with_stacks(4, {}, {&depth})});
  check(shared);
  per_stream<watched> arenas(simulated_device(), {}, watch{with_stacks(4, {}, {&depth})});
  check(arenas);
}

TEST(take_snapshot, has_the_history_with_times_and_labels) {
  caching_allocator<pytorch_family::native, simulated_device, ticking> pool{
      simulated_device{simulated_device::options{.capacity = 30_MiB}}, {}, ticking{history<ticks>(100)}};
  void* const p = pool.allocate(1_MiB + 1, stream_id{2});
  pool.get<ticking>().with([](auto& h) { h.label("forward"); });
  EXPECT_EQ(pool.try_allocate(25_MiB), nullptr);
  pool.deallocate(p);
  const auto before = take_snapshot(pool);
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(p);
  ASSERT_EQ(before.traces.size(), 1u);
  EXPECT_EQ(before.dropped, std::vector<std::uint64_t>{0}) << "the history is complete";
  std::vector<action> all;
  for (const snapshot::entry& e : before.traces[0]) all.push_back(e.what);
  EXPECT_EQ(all, (std::vector<action>{action::segment_alloc, action::alloc, action::refused, action::refused,
                                      action::oom, action::free_requested, action::free_completed}));
  const auto& trace = before.traces[0];
  EXPECT_EQ(trace[1], (snapshot::entry{.what = action::alloc,
                                       .address = at,
                                       .size = 1_MiB + 1,
                                       .block = 1_MiB + 512,
                                       .stream = stream_id{2},
                                       .time_us = 2}));
  EXPECT_EQ(trace[0].block, 0u) << "of a segment, nothing but its size is known";
  EXPECT_EQ(trace[4].label, "forward");
  EXPECT_EQ(trace[4].address, 0u);
  EXPECT_EQ(trace[4].size, 25_MiB);
  EXPECT_EQ(trace[4].device_free, 10_MiB);
  EXPECT_EQ(trace[1].label, "");
  // The next call sees the polling of this one.
  const auto after = take_snapshot(pool);
  ASSERT_EQ(after.traces[0].size(), trace.size() + 1);
  EXPECT_EQ(after.traces[0].back().what, action::snapshot);
  EXPECT_EQ(after.traces[0].back().size, 0u);
}

TEST(take_snapshot, translates_the_settings_to_those_of_pytorch) {
  caching_allocator<
      pytorch<"max_split_size_mb:32,garbage_collection_threshold:0.75,roundup_power2_divisions:[256:1,>:4]">,
      simulated_device>
      tuned;
  (void)tuned.allocate(1);
  const auto native = take_snapshot(tuned).configured;
  EXPECT_EQ(native.max_split_size, 32_MiB);
  EXPECT_EQ(native.garbage_collection_threshold, 0.75);
  EXPECT_FALSE(native.expandable_segments);
  EXPECT_EQ(native.roundup_power2_divisions[8], 1u);
  EXPECT_EQ(native.roundup_power2_divisions[15], 4u);
  EXPECT_EQ(native.recipe, "tessera::recipe::pytorch_native");
  caching_allocator<stitched, simulated_device> ranges;
  (void)ranges.allocate(1);
  const auto in_ranges = take_snapshot(ranges).configured;
  EXPECT_TRUE(in_ranges.expandable_segments);
  EXPECT_EQ(in_ranges.max_split_size, unlimited);
  EXPECT_EQ(in_ranges.recipe, "tessera::recipe::stitched");
}

TEST(take_snapshot, joins_adjacent_mapped_pages_to_a_segment) {
  caching_allocator<pytorch_family::expandable, simulated_device, ticking> pool{
      simulated_device{}, {}, ticking{history<ticks>(1000)}};
  void* const low = pool.allocate(20_MiB);
  void* const middle = pool.allocate(20_MiB);
  void* const high = pool.allocate(20_MiB);
  pool.deallocate(middle);
  EXPECT_EQ(take_snapshot(pool).segments.size(), 1u);
  pool.trim();
  const snapshot seen = take_snapshot(pool);
  ASSERT_EQ(seen.segments.size(), 2u);
  for (const snapshot::segment& s : seen.segments) {
    EXPECT_TRUE(s.expandable);
    EXPECT_EQ(s.size, 20_MiB);
    ASSERT_EQ(s.blocks.size(), 1u);
  }
  EXPECT_EQ(seen.segments[0].address, reinterpret_cast<std::uintptr_t>(low));
  EXPECT_EQ(seen.segments[1].address, reinterpret_cast<std::uintptr_t>(high));
  EXPECT_EQ(viewer::backward(seen, 0).rule(), "");
}

/// A program that repeats the same operations, and needs no more memory than the device has.
template <typename Recipe>
class random_program {
 public:
  random_program(std::size_t capacity, std::size_t kept, std::uint64_t fail_every, unsigned seed)
      : pool_(simulated_device{simulated_device::options{.capacity = capacity, .fail_every = fail_every}}, {},
              ticking{history<ticks>(kept)}),
        dice_(seed) {}

  void run(int operations) {
    for (int i = 0; i < operations; ++i) step();
  }
  auto& pool() { return pool_; }

 private:
  void step() {
    const auto choice = dice_() % 100;
    if (choice < 50 || live_.empty()) {
      const std::size_t size = std::size_t{1} << (8 + dice_() % 17);
      void* const p = pool_.try_allocate(size + dice_() % size, stream_id{dice_() % 3});
      if (p != nullptr) live_.push_back(p);
    } else if (choice < 90) {
      std::swap(live_[dice_() % live_.size()], live_.back());
      pool_.deallocate(live_.back());
      live_.pop_back();
    } else if (choice < 96) {
      (void)pool_.record_stream(live_[dice_() % live_.size()], stream_id{dice_() % 3});
    } else if (choice < 98) {
      pool_.provider().hold_events(choice == 96);
    } else if (choice == 98) {
      pool_.template get<ticking>().with([this](auto& h) { h.label("step " + std::to_string(dice_() % 5)); });
    } else if (dice_() % 8 == 0) {
      pool_.trim();
    }
  }

  caching_allocator<Recipe, simulated_device, ticking> pool_;
  std::mt19937 dice_;
  std::vector<void*> live_;
};

template <typename Recipe>
class capture_of : public testing::Test {};
using recipes = types_by_day<4, pytorch_family::native, pytorch_family::expandable, stitched, cuda_async,
                             torch_npu_family::native, paddle_family::auto_growth, power_of_two, passthrough,
                             pinned_packed>;
TYPED_TEST_SUITE(capture_of, recipes);

TYPED_TEST(capture_of, undone_history_leads_to_an_empty_allocator) {
  for (const std::uint64_t fail_every : {0u, 7u}) {
    random_program<TypeParam> program(150_MiB, 1 << 20, fail_every, 5);
    for (int part = 0; part < 8; ++part) {
      program.run(400);
      const snapshot seen = take_snapshot(program.pool());
      ASSERT_EQ(count_bytes(seen), told_by(program.pool().statistics()));
      const viewer::backward run(seen, 0);
      ASSERT_EQ(run.rule(), "") << "where every k-th call fails, k = " << fail_every;
      ASSERT_TRUE(run.began_empty());
    }
  }
}

TYPED_TEST(capture_of, undone_bounded_history_leads_to_its_start) {
  for (const std::size_t kept : {1u, 10u, 333u}) {
    random_program<TypeParam> program(150_MiB, kept, 0, 6);
    bool began_full = false;
    program.run(500);
    for (int part = 0; part < 12; ++part) {
      program.run(100);
      const snapshot seen = take_snapshot(program.pool());
      ASSERT_EQ(seen.traces[0].size(), kept);
      const viewer::backward run(seen, 0);
      ASSERT_EQ(run.rule(), "");
      began_full = began_full || !run.began_empty();
    }
    EXPECT_TRUE(began_full) << "nothing was forgotten";
  }
}

TYPED_TEST(capture_of, goes_through_a_pickle_unchanged) {
  random_program<TypeParam> program(150_MiB, 1000, 0, 7);
  program.run(2000);
  snapshot seen = take_snapshot(program.pool());
  ASSERT_EQ(seen.dropped.size(), 1u);
  EXPECT_GT(seen.dropped[0], 0u) << "the file says that the history was full";
  const std::string bytes = to_pickle(seen);
  EXPECT_EQ(viewer::refuses(bytes), "");
  const auto read = replay::read_snapshot(bytes, "");
  ASSERT_TRUE(std::holds_alternative<snapshot>(read)) << std::get<trace::input_error>(read).text();
  std::erase_if(seen.traces[0],
                [](const snapshot::entry& e) { return detail::pytorch_name(e.what).empty(); });
  EXPECT_EQ(std::get<snapshot>(read), seen);
}

TEST(take_snapshot, of_a_locked_allocator_is_consistent_under_concurrent_use) {
  locked<caching_allocator<pytorch_family::native, simulated_device, ticking>> pool{
      simulated_device{simulated_device::options{.capacity = 300_MiB}}, {}, ticking{history<ticks>(5000)}};
  std::atomic<bool> done{false};
  std::vector<std::thread> users;
  for (unsigned user = 0; user < 3; ++user) {
    users.emplace_back([&, user] {
      std::mt19937 dice(user);
      while (!done) {
        void* const p = pool.try_allocate(1 + dice() % 30'000'000, stream_id{user});
        if (dice() % 4 == 0) pool.trim();
        pool.deallocate(p);
      }
    });
  }
  std::string rule;
  for (int i = 0; i < 200; ++i) {
    const snapshot seen = take_snapshot(pool);
    const viewer::backward run(seen, 0);
    if (rule.empty()) rule = run.rule();
  }
  done = true;
  for (std::thread& user : users) user.join();
  EXPECT_EQ(rule, "");
}

template <typename Recipe>
void expect_to_be_what_it_decides() {
  random_program<Recipe> program(80_GiB, 1 << 20, 0, 8);
  program.run(3000);
  const snapshot seen = take_snapshot(program.pool());
  const auto outcome = replay::verifier(seen, 0).run();
  ASSERT_TRUE(std::holds_alternative<replay::verification>(outcome))
      << std::get<trace::input_error>(outcome).text();
  const auto& found = std::get<replay::verification>(outcome);
  EXPECT_GT(found.allocations, 1000u);
  EXPECT_EQ(found.same_address, found.allocations);
  EXPECT_TRUE(found.agrees()) << found.first_other_segment;
}
/// A device with room for one segment. It calls a function when it has taken the segment back, before the allocator
/// knows it. Its threads wait for each other, so that they never call it at the same time.
struct device_of_one_segment {
  static constexpr bool is_thread_safe = true;
  struct state {
    bool is_taken = false;
    std::function<void()> after_release{};
  };
  state* kept;

  void* acquire(std::size_t) noexcept {
    return std::exchange(kept->is_taken, true) ? nullptr : reinterpret_cast<void*>(std::uintptr_t{1} << 40);
  }
  bool release(void*, std::size_t) noexcept {
    kept->is_taken = false;
    if (kept->after_release) std::exchange(kept->after_release, nullptr)();
    return true;
  }
  [[nodiscard]] static std::size_t capacity() noexcept { return 1_GiB; }
  [[nodiscard]] static std::size_t granularity() noexcept { return 2_MiB; }
};

TEST(take_snapshot, shows_memory_once_that_another_thread_got_during_its_release) {
  device_of_one_segment::state device;
  locked<caching_allocator<with<pytorch<>, reuse_immediately>, device_of_one_segment>> pool{
      device_of_one_segment{&device}};
  void* const first = pool.allocate(12_MiB);
  pool.deallocate(first);
  void* second = nullptr;
  snapshot seen;
  device.after_release = [&] {
    std::thread([&] {
      second = pool.allocate(11_MiB);
      seen = take_snapshot(pool);
    }).join();
  };
  pool.trim();
  ASSERT_EQ(second, first);
  ASSERT_EQ(seen.segments.size(), 1u);
  EXPECT_EQ(seen.segments[0].size, 12_MiB);
  EXPECT_EQ(count_bytes(seen).allocated, 12_MiB);
  std::size_t bytes = 0;
  for (const auto& block : seen.segments[0].blocks) bytes += block.size;
  EXPECT_EQ(bytes, seen.segments[0].size);
  pool.deallocate(second);
}

TEST(take_snapshot, agrees_with_the_pytorch_recipe) {
  expect_to_be_what_it_decides<pytorch_family::native>();
}
TEST(take_snapshot, agrees_with_the_expandable_recipe) {
  expect_to_be_what_it_decides<pytorch_family::expandable>();
}

TEST(take_snapshot, a_recording_of_it_repeats_failed_requests) {
  caching_allocator<pytorch_family::native, simulated_device, extension::observer<history<>>> pool{
      simulated_device{simulated_device::options{.capacity = 1_GiB}}};
  (void)pool.allocate(300_MiB);
  EXPECT_EQ(pool.try_allocate(900_MiB), nullptr);
  const auto made = replay::recording_of(take_snapshot(pool));
  const auto& events = std::get<trace::recording>(made).events;
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].what, trace::event::kind::refused);
  EXPECT_EQ(events[1].bytes, 900_MiB);
  const trace::program again(std::get<trace::recording>(made));
  EXPECT_EQ(again.peak_live(), 300_MiB) << "a request that failed is not live";
  for (const std::size_t capacity : {1_GiB, 2_GiB}) {
    caching_allocator<pytorch_family::native, simulated_device> same{
        simulated_device{simulated_device::options{.capacity = capacity}}};
    std::size_t refused = 0;
    const auto after = [&]<typename Outcome>(std::size_t i, Outcome outcome) {
      if constexpr (std::is_pointer_v<Outcome>) refused += i == 1 && outcome == nullptr;
    };
    EXPECT_EQ(trace::replay(again, same, [](std::size_t) {}, after), 0u);
    EXPECT_EQ(refused, capacity == 1_GiB ? 1u : 0u);
    EXPECT_EQ(same.current_usage().allocated, 300_MiB) << "it is freed at once where it succeeds";
  }
}

}  // namespace
