// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/interop/end_stream.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../../conformance/planned_model.hpp"
#include "../patterns.hpp"
#include "recorded_steps.hpp"
#include "tessera_replay/planner/make_plan.hpp"

namespace {

using namespace tessera;
using namespace tessera::literals;
using plan_tests::make;
using plan_tests::recorder;
using inside = caching_allocator<pytorch<>, provider_ref<simulated_device>, extension::private_pools>;
using pool = planned<inside>;

/// Steps of ten requests of different sizes, of which two are live at a time.
constexpr std::size_t sizes[] = {5_MiB, 3_MiB, 4_MiB, 1_MiB, 2_MiB, 6_MiB, 7_MiB, 1000, 8_MiB, 512_KiB};
plan::made_plan ten() {
  recorder of;
  for (int i = 0; i < 10; ++i) {
    of.begin_step();
    of.step(
        {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], sizes[7], sizes[8], sizes[9]});
  }
  return make(of.made);
}
/// Steps of 5 MiB, then 3 MiB; both are live until the end of the step.
plan::made_plan two(std::uint64_t stream = 0) {
  recorder of;
  for (int i = 0; i < 10; ++i) {
    of.begin_step();
    of.step({5_MiB, 3_MiB}, stream);
  }
  return make(of.made);
}

class planned_on_a_device : public testing::Test {
 protected:
  simulated_device device{{.capacity = 1_GiB}};
  plan::made_plan made = ten();
  pool memory{made.view(), provider_ref(device)};

  plan_usage used() const { return memory.statistics().by_plan; }
  void run_step() {
    std::vector<void*> blocks;
    for (const std::size_t bytes : sizes) {
      if (blocks.size() >= 2) memory.deallocate(blocks[blocks.size() - 2]);
      blocks.push_back(memory.allocate(bytes));
    }
    memory.deallocate(blocks[8]);
    memory.deallocate(blocks[9]);
  }
};

TEST_F(planned_on_a_device, makes_no_device_calls_after_the_first_step) {
  run_step();
  const auto before = device.calls();
  for (int i = 0; i < 10; ++i) run_step();
  EXPECT_EQ(device.calls().create, before.create);
  EXPECT_EQ(device.calls().map, before.map);
  EXPECT_EQ(device.calls().acquire, 0u);
  EXPECT_EQ(used().requests, 110u);
  EXPECT_EQ(used().unplanned_requests, 0u);
  EXPECT_FALSE(used().is_stale());
  EXPECT_EQ(device.used(), align_up(made.numbers.bytes, 2_MiB));
}

TEST_F(planned_on_a_device, goes_on_after_an_extra_request) {
  void* const a = memory.allocate(sizes[0]);
  void* const extra = memory.allocate(9_MiB);
  void* const b = memory.allocate(sizes[1]);
  EXPECT_EQ(used().requests, 2u);
  EXPECT_EQ(used().unplanned_requests, 1u);
  EXPECT_EQ(used().unplanned_bytes, 9_MiB);
  for (void* const p : {a, extra, b}) memory.deallocate(p);
}

TEST_F(planned_on_a_device, finds_its_place_again_after_a_missing_request) {
  std::vector<void*> blocks{memory.allocate(sizes[0])};
  for (std::size_t i = 2; i < 6; ++i) blocks.push_back(memory.allocate(sizes[i]));
  EXPECT_EQ(used().unplanned_requests, 4u);
  // Four requests in a row tell where the program is. The first block is where the plan does not expect it.
  for (std::size_t i = 6; i < 10; ++i) {
    blocks.push_back(memory.allocate(sizes[i]));
    memory.deallocate(blocks.back());
    blocks.pop_back();
  }
  EXPECT_EQ(used().requests + used().occupied, 5u);
  EXPECT_GT(used().requests, 1u);
  for (void* const p : blocks) memory.deallocate(p);
  run_step();
  EXPECT_EQ(used().unplanned_requests, 4u + used().occupied);
  EXPECT_STREQ(memory.audit(), nullptr);
}

TEST_F(planned_on_a_device, begins_a_step_where_the_program_says) {
  void* const kept = memory.allocate(sizes[0]);
  memory.deallocate(memory.allocate(sizes[1]));
  memory.begin_step();
  void* const again = memory.allocate(sizes[0]);  // its place is in use
  EXPECT_EQ(used().occupied, 1u);
  EXPECT_NE(again, kept);
  memory.deallocate(memory.allocate(sizes[1]));
  EXPECT_EQ(used().requests, 3u);
  memory.deallocate(kept);
  memory.deallocate(again);
  memory.begin_step(17, stream_id{5});  // neither the key nor the stream is known
  run_step();
  EXPECT_EQ(used().occupied, 1u);
}

// A mark may lead into the middle of a step, where the plan expects only blocks of that step.
TEST(planned, compares_live_blocks_after_a_mark_inside_a_step) {
  simulated_device device;
  plan::made_plan made = ten();
  // A later block in the place of the first one, which died some entries before.
  std::uint32_t lowest = 0;
  for (std::uint32_t i = 3; i < made.entries.size(); ++i) {
    const std::uint64_t end = made.entries[0].place + sizes[0] / made.numbers.alignment;
    if (made.entries[i].place >= made.entries[0].place && made.entries[i].place < end) lowest = i;
  }
  ASSERT_GT(lowest, 0u);
  made.steps.push_back({99, lowest});
  made.tracks[0].steps_end = static_cast<std::uint32_t>(made.steps.size());
  pool memory(made.view(), provider_ref(device));
  void* const first = memory.allocate(sizes[0]);
  memory.begin_step(99);
  void* const second = memory.allocate(made.kinds[made.entries[lowest].kind].bytes);
  EXPECT_EQ(memory.statistics().by_plan.occupied, 1u);
  memory.deallocate(first);
  memory.deallocate(second);
  memory.begin_step(99);
  memory.deallocate(memory.allocate(made.kinds[made.entries[lowest].kind].bytes));
  EXPECT_EQ(memory.statistics().by_plan.requests, 2u);
}

TEST(planned, serves_kept_blocks_at_any_free_kept_place) {
  simulated_device device;
  recorder of;
  std::vector<std::uint64_t> ring;
  for (int i = 0; i < 100; ++i) {
    ring.push_back(of.allocate(2_MiB));
    if (ring.size() < 4) continue;
    of.free(ring.front());
    ring.erase(ring.begin());
  }
  const plan::made_plan made = make(of.made);
  pool memory(made.view(), provider_ref(device));
  void* blocks[4];
  for (void*& p : blocks) p = memory.allocate(2_MiB);
  EXPECT_EQ(memory.statistics().by_plan.requests, 4u);
  void* const fifth = memory.allocate(2_MiB);
  EXPECT_EQ(memory.statistics().by_plan.requests, 4u);
  memory.deallocate(blocks[2]);
  EXPECT_EQ(memory.allocate(2_MiB), blocks[2]);
  memory.deallocate(fifth);
  for (void* const p : blocks) memory.deallocate(p);
  EXPECT_STREQ(memory.audit(), nullptr);
}

TEST_F(planned_on_a_device, gives_back_the_memory_of_unused_places) {
  run_step();
  memory.trim(1);
  EXPECT_EQ(device.used(), align_up(made.numbers.bytes, 2_MiB));
  void* const live = memory.allocate(sizes[0]);
  memory.trim();
  EXPECT_TRUE(device.can_use(live, sizes[0]));
  EXPECT_LT(device.used(), align_up(made.numbers.bytes, 2_MiB) + 1);
  memory.deallocate(live);
  memory.trim();
  EXPECT_EQ(device.used(), 0u);
  EXPECT_EQ(memory.current_usage().reserved, 0u);
  memory.begin_step();
  run_step();
  EXPECT_EQ(used().requests, 21u);
}

TEST_F(planned_on_a_device, keeps_the_memory_of_a_busy_stream_if_it_must_not_wait) {
  run_step();
  device.submit(stream_id{}, 1'000'000'000);
  memory.trim_without_waiting();
  EXPECT_EQ(device.calls().synchronize, 0u);
  EXPECT_EQ(device.used(), align_up(made.numbers.bytes, 2_MiB));
  device.advance(1'000'000'000);
  memory.trim_without_waiting();
  EXPECT_EQ(device.used(), 0u);
}

// Places whose memory the device failed to take back must not be served without memory.
TEST(planned, survives_a_failed_return_of_memory) {
  recorder of;
  for (int i = 0; i < 10; ++i) of.step({5_MiB});
  const plan::made_plan made = make(of.made);
  for (std::uint64_t call = 1; call <= 3; ++call) {
    simulated_device device;
    pool memory(made.view(), provider_ref(device));
    memory.deallocate(memory.allocate(5_MiB));
    device.fail_call(call);  // to synchronize, to unmap, to destroy
    memory.trim();
    EXPECT_EQ(device.calls().failed, 1u);
    EXPECT_EQ(device.used(), call == 1 ? 6_MiB : 2_MiB);  // the other pages go back
    void* const p = memory.allocate(5_MiB);
    EXPECT_TRUE(device.can_use(p, 5_MiB)) << call;
    EXPECT_EQ(memory.statistics().by_plan.requests, 2u);
    memory.deallocate(p);
    memory.trim();
    EXPECT_EQ(device.used(), 0u) << call;
  }
}

TEST_F(planned_on_a_device, counts_planned_blocks) {
  void* const p = memory.allocate(sizes[0]);
  (void)memory.allocate(1000);
  const usage now = memory.current_usage();
  EXPECT_EQ(now.requested, sizes[0] + 1000);
  EXPECT_EQ(now.allocated, sizes[0] + 1024);
  EXPECT_EQ(now.active + now.cached, now.reserved);
  EXPECT_EQ(now.reserved, device.used());
  EXPECT_EQ(used().bytes, sizes[0]);
  EXPECT_EQ(used().plan_bytes, made.numbers.bytes);
  EXPECT_EQ(used().fingerprint, made.numbers.fingerprint);
  EXPECT_STREQ(used().fault, nullptr);
  memory.deallocate(p);
  memory.trim();
  EXPECT_GT(used().device_bytes.peak, 0);
  memory.reset_peak_statistics();
  EXPECT_EQ(used().device_bytes.peak, 0);
  memory.reset_accumulated_statistics();
  EXPECT_EQ(used().requests, 0u);
  EXPECT_EQ(used().device_bytes.allocated, 0);
  EXPECT_GT(memory.metadata_bytes(), memory.inner().metadata_bytes());
}

TEST(planned, says_that_a_plan_is_stale) {
  simulated_device device;
  const plan::made_plan made = ten();
  pool memory(made.view(), provider_ref(device));
  for (int i = 0; i < 999; ++i) memory.deallocate(memory.allocate(100));
  EXPECT_FALSE(memory.statistics().by_plan.is_stale());
  memory.deallocate(memory.allocate(100));
  EXPECT_TRUE(memory.statistics().by_plan.is_stale());
}

// Good steps of the past say nothing about the requests of today.
TEST_F(planned_on_a_device, is_stale_if_the_last_requests_differ) {
  for (int i = 0; i < 1000; ++i) run_step();
  for (int i = 0; i < 1001; ++i) memory.deallocate(memory.allocate(100));
  EXPECT_TRUE(used().is_stale());
  EXPECT_EQ(used().requests, 10'000u);
}

// Both would else hold memory for the same blocks: 16 MiB of the plan, and 30 MiB inside.
TEST_F(planned_on_a_device, gives_back_idle_memory_before_the_allocator_inside_grows) {
  run_step();
  EXPECT_GT(device.used(), 10_MiB);
  memory.deallocate(memory.allocate(30_MiB));
  EXPECT_EQ(device.peak_used(), 30_MiB);
}

// Its places need four times peak live. A smaller bound would take pages from one place for the next in each step.
TEST(planned, keeps_all_places_of_a_plan_with_gaps) {
  plan::made_plan made = ten();
  made.numbers.peak_live = made.numbers.bytes / 4;
  simulated_device device{{.capacity = 1_GiB}};
  pool memory(made.view(), provider_ref(device));
  for (int step = 0; step < 10; ++step) {
    for (const std::size_t bytes : sizes) memory.deallocate(memory.allocate(bytes));
  }
  EXPECT_EQ(memory.statistics().by_plan.unplanned_requests, 0u);
  EXPECT_EQ(device.calls().unmap, 0u);
}

TEST_F(planned_on_a_device, steps_aside_while_the_program_makes_other_requests) {
  void* const kept = memory.allocate(sizes[0]);
  memory.begin_step();
  for (int i = 0; i < 100; ++i) memory.deallocate(memory.allocate(600_KiB));
  EXPECT_TRUE(used().is_aside);
  const std::uint64_t served = used().requests;
  run_step();
  EXPECT_EQ(used().requests, served);
  EXPECT_TRUE(device.can_use(kept, sizes[0]));
  memory.deallocate(kept);
  for (int i = 0; i < 100; ++i) memory.deallocate(memory.allocate(600_KiB));
  EXPECT_EQ(used().device_bytes.current, 0);
  memory.trim();
  memory.begin_step();
  run_step();
  EXPECT_FALSE(used().is_aside);
  EXPECT_GT(used().requests, served);
  EXPECT_STREQ(memory.audit(), nullptr);
}

TEST_F(planned_on_a_device, waits_once_when_it_steps_aside) {
  run_step();
  device.submit(stream_id{}, 1'000'000);
  memory.begin_step();
  for (int i = 0; i < 300; ++i) memory.deallocate(memory.allocate(600_KiB));
  EXPECT_TRUE(used().is_aside);
  EXPECT_EQ(used().device_bytes.current, 0);
  EXPECT_EQ(device.calls().synchronize, 1u);
}

// A stream that always has work is never idle, but it completes the work that it had when a block was freed.
TEST_F(planned_on_a_device, gives_back_what_busy_streams_have_left) {
  const auto make_others = [this] {
    for (int i = 0; i < 100; ++i) memory.deallocate(memory.allocate(600_KiB));
  };
  void* const first = memory.allocate(sizes[0]);
  void* const second = memory.allocate(sizes[1]);
  memory.begin_step();
  make_others();
  ASSERT_TRUE(used().is_aside);
  constexpr std::uint64_t second_ns = 1'000'000'000;
  device.submit(stream_id{}, second_ns);
  memory.deallocate(first);
  make_others();
  memory.deallocate(second);
  make_others();
  EXPECT_TRUE(device.can_use(first, sizes[0])) << "before its work is done";
  device.submit(stream_id{}, second_ns);
  device.advance(second_ns);
  make_others();
  EXPECT_FALSE(device.can_use(first, sizes[0]));
  EXPECT_TRUE(device.can_use(second, sizes[1])) << "it was live at the point that has passed";
  device.submit(stream_id{}, second_ns);
  device.advance(second_ns);
  make_others();
  EXPECT_EQ(used().device_bytes.current, 0);
  EXPECT_EQ(device.calls().synchronize, 1u) << "when the plan stepped aside";
  memory.trim();
  memory.begin_step();
  run_step();
  EXPECT_FALSE(used().is_aside);
}

// The plan of another program serves a request by chance.
TEST_F(planned_on_a_device, leaves_the_cache_inside_alone_if_it_hardly_served) {
  void* const by_chance = memory.allocate(sizes[0]);
  for (int i = 0; i < 100; ++i) memory.deallocate(memory.allocate(600_KiB));
  EXPECT_TRUE(used().is_aside);
  EXPECT_GT(used().device_bytes.current, 0);
  memory.deallocate(memory.allocate(30_MiB));
  const std::uint64_t before = device.calls().release;
  memory.deallocate(memory.allocate(40_MiB));
  EXPECT_EQ(device.calls().release, before);
  memory.deallocate(by_chance);
}

TEST_F(planned_on_a_device, does_not_count_requests_in_scopes) {
  memory.begin_step();
  {
    const extension::private_pool others(memory);
    const extension::pool_scope scope(others, stream_id{}, extension::scope_kind::plain);
    for (int i = 0; i < 200; ++i) memory.deallocate(memory.allocate(600_KiB));
  }
  EXPECT_EQ(used().unplanned_requests, 0u);
  EXPECT_FALSE(used().is_aside);
  const std::uint64_t served = used().requests;
  memory.begin_step();
  run_step();
  EXPECT_GT(used().requests, served);
}

// The plan leaves out a stream whose places would cost too much. The program may still follow the plan.
TEST(planned, is_not_judged_by_streams_that_it_leaves_out) {
  plan_tests::recorder of;
  for (int step = 0; step < 12; ++step) {
    of.begin_step(1);
    for (const auto& [stream, count] : {std::pair{0u, 10u}, std::pair{1u, 90u}}) {
      std::vector<std::uint64_t> live;
      for (std::size_t i = 0; i < count; ++i)
        live.push_back(of.allocate((i % 3 + 1) * (stream == 0 ? 9_MiB : 1_MiB), stream));
      for (const std::uint64_t id : live) of.free(id);
    }
  }
  const plan::made_plan made = plan::make(of.made, {.effort = 0.01});
  ASSERT_EQ(made.view().tracks.size(), 1u);
  planned<caching_allocator<pytorch<>, simulated_device>> memory(made.view());
  std::vector<void*> blocks(of.next);
  for (const trace::event& e : of.made.events) {
    if (e.what == trace::event::kind::begin_step) memory.begin_step(1);
    if (e.what == trace::event::kind::allocate) blocks[e.id] = memory.allocate(e.bytes, e.stream);
    if (e.what == trace::event::kind::free) memory.deallocate(blocks[e.id]);
  }
  EXPECT_EQ(memory.statistics().by_plan.requests, 120u);
  EXPECT_FALSE(memory.statistics().by_plan.is_aside);
  EXPECT_FALSE(memory.statistics().by_plan.is_stale());
}

// A place without memory is wanted in each step. The device refuses it once, not each time.
TEST(planned, asks_no_more_after_the_device_refused) {
  simulated_device device({.capacity = 6_MiB});
  const plan::made_plan made = two();
  pool memory(made.view(), provider_ref(device));
  void* const live = memory.allocate(5_MiB);
  const std::uint64_t before = device.calls().create;
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(memory.try_allocate(3_MiB), nullptr);
    memory.begin_step();
  }
  EXPECT_LE(device.calls().create, before + 2);
  memory.deallocate(live);
}

TEST_F(planned_on_a_device, frees_with_sizes_and_on_trial) {
  void* const a = memory.allocate(sizes[0]);
  void* const b = memory.allocate(sizes[1]);
  memory.deallocate(a, sizes[0]);
  EXPECT_TRUE(memory.try_deallocate(b));
  EXPECT_FALSE(memory.try_deallocate(b));
  EXPECT_FALSE(memory.try_deallocate(static_cast<std::byte*>(b) + 64));
  EXPECT_FALSE(memory.try_record_stream(b, stream_id{1}));
  EXPECT_FALSE(memory.try_deallocate(&device));
  memory.deallocate(nullptr);
  EXPECT_FALSE(memory.reuse_in_place(b, sizes[1], stream_id{}));
}

using planned_death = planned_on_a_device;
TEST_F(planned_death, of_wrong_frees) {
  void* const p = memory.allocate(sizes[0]);
  void* const q = memory.allocate(sizes[1]);
  auto* const inner = static_cast<std::byte*>(p) + 64;
  EXPECT_DEATH(memory.deallocate(p, 1),
               "deallocate: not the requested size: 1 bytes were passed, 5242880 were requested");
  EXPECT_DEATH(memory.deallocate(inner), "deallocate: not the address of a live block.*inside a live block");
  EXPECT_DEATH((void)memory.record_stream(inner, stream_id{1}),
               "record_stream: not the address of a live block");
  device.hold_events(true);
  EXPECT_TRUE(memory.record_stream(q, stream_id{1}));
  memory.deallocate(q);
  EXPECT_DEATH(memory.deallocate(q),
               "deallocate: not the address of a live block.*in a freed, still used block");
  memory.deallocate(p);
  EXPECT_DEATH(memory.deallocate(p), "lies " A_NUMBER " bytes into the memory of the plan, in no live block");
  EXPECT_DEATH(memory.deallocate(p, sizes[0]), "deallocate: not the address of a live block");
  EXPECT_DEATH(memory.deallocate(&device), "not the address of a live block");
  device.hold_events(false);
}

// 50 of 64 MiB are idle memory of the plan.
TEST(planned, gives_idle_memory_to_requests_that_it_does_not_plan) {
  recorder of;
  for (int i = 0; i < 10; ++i) of.step({50_MiB});
  const plan::made_plan made = make(of.made);
  simulated_device device({.capacity = 64_MiB});
  pool memory(made.view(), provider_ref(device));
  for (int i = 0; i < 3; ++i) {
    memory.begin_step();
    memory.deallocate(memory.allocate(50_MiB));
    EXPECT_EQ(device.used(), 50_MiB);
    const block_handle block = memory.allocate_by_handle(40_MiB);
    ASSERT_TRUE(block);
    memory.deallocate(block);
    memory.trim();
  }
  void* const whole = memory.allocate(60_MiB);
  EXPECT_FALSE(memory.allocate_by_handle(40_MiB));
  memory.deallocate(whole);
}

TEST_F(planned_on_a_device, leaves_handles_to_the_allocator_inside) {
  const block_handle h = memory.allocate_by_handle(sizes[0]);
  EXPECT_EQ(used().requests, 0u);
  EXPECT_TRUE(memory.record_stream(h, stream_id{1}));
  memory.deallocate(h);
}

/// Counts how often it is asked whether a stream exists.
struct device_with_streams : simulated_device {
  int asked = 0;
  [[nodiscard]] bool has_stream(stream_id) noexcept {
    ++asked;
    return true;
  }
};
void ask_for_no_stream_in_a_capture() {
  device_with_streams device;
  const plan::made_plan made = ten();
  plan::planned<caching_allocator<pytorch<>, provider_ref<device_with_streams>, extension::private_pools>>
      memory(made.view(), provider_ref(device));
  void* const first = memory.allocate(sizes[0]);
  void* const second = memory.allocate(sizes[1]);
  EXPECT_TRUE(memory.record_stream(first, stream_id{1}));
  EXPECT_EQ(device.asked, 1);
  auto pools = memory.get<extension::private_pools>();
  const pool_id graph = pools.create();
  ASSERT_TRUE(pools.open(graph, extension::scope_kind::capture));
  EXPECT_TRUE(memory.record_stream(second, stream_id{1}));
  EXPECT_EQ(device.asked, 1);
  EXPECT_EQ(memory.statistics().by_plan.requests, 2u);
  ASSERT_TRUE(pools.close(graph));
  for (void* const p : {first, second}) memory.deallocate(p);
}

TEST_F(planned_on_a_device, leaves_scopes_of_private_pools_to_the_allocator_inside) {
  ask_for_no_stream_in_a_capture();
  void* const before = memory.allocate(sizes[0]);
  auto pools = memory.get<extension::private_pools>();
  const pool_id graph = pools.create();
  ASSERT_TRUE(pools.open(graph, extension::scope_kind::capture));
  EXPECT_FALSE(pools.close(pool_id{12345}));
  void* const captured = memory.allocate(sizes[1]);
  EXPECT_EQ(used().requests, 1u);
  EXPECT_TRUE(memory.record_stream(before, stream_id{1}));
  memory.deallocate(before);
  EXPECT_EQ(memory.current_usage().pending(), sizes[0]);  // no event is recorded during a capture
  memory.trim();
  EXPECT_EQ(device.calls().record, 0u);
  ASSERT_TRUE(pools.close(graph));
  void* const after = memory.allocate(sizes[1]);
  EXPECT_EQ(used().requests, 2u);
  memory.deallocate(after);
  memory.deallocate(captured);
  EXPECT_TRUE(pools.release(graph));
  memory.trim();
  EXPECT_EQ(memory.current_usage().reserved, 0u);
}

TEST_F(planned_on_a_device, waits_for_recorded_streams) {
  void* const p = memory.allocate(sizes[0]);
  EXPECT_TRUE(memory.record_stream(p, stream_id{0}));  // its own: nothing to wait for
  EXPECT_TRUE(memory.record_stream(p, stream_id{1}));
  EXPECT_TRUE(memory.record_stream(p, stream_id{1}));
  EXPECT_TRUE(memory.record_stream(p, stream_id{2}));
  device.hold_events(true);
  memory.deallocate(p);
  EXPECT_EQ(device.calls().record, 2u);
  EXPECT_EQ(memory.current_usage().pending(), sizes[0]);
  memory.begin_step();
  void* const other = memory.allocate(sizes[0]);
  EXPECT_NE(other, p);
  EXPECT_EQ(used().occupied, 1u);
  memory.deallocate(other);
  device.hold_events(false);
  memory.begin_step();
  EXPECT_EQ(memory.allocate(sizes[0]), p);
  EXPECT_EQ(memory.current_usage().pending(), 0u);
  memory.deallocate(p);

  // Nothing waits for a stream that ended, also if its handle is used again before the free.
  memory.begin_step();
  void* const again = memory.allocate(sizes[0]);
  EXPECT_EQ(again, p) << "by the plan";
  EXPECT_TRUE(memory.record_stream(again, stream_id{3}));
  EXPECT_TRUE(interop::end_stream(memory, stream_id{3}));
  device.submit(stream_id{3}, 1'000'000);
  auto pools = memory.get<extension::private_pools>();
  const pool_id graph = pools.create();
  ASSERT_TRUE(pools.open(graph, extension::scope_kind::capture));
  memory.deallocate(again);
  EXPECT_EQ(memory.current_usage().pending(), 0u);
  EXPECT_TRUE(pools.close(graph));
}

// A place that a slow stream keeps says nothing about the program.
TEST(planned, stays_with_a_program_whose_streams_are_slow) {
  simulated_device device;
  const plan::made_plan made = two();
  pool memory(made.view(), provider_ref(device));
  void* const slow = memory.allocate(5_MiB);
  EXPECT_TRUE(memory.record_stream(slow, stream_id{1}));
  device.hold_events(true);
  memory.deallocate(slow);
  memory.deallocate(memory.allocate(3_MiB));
  for (int i = 0; i < 200; ++i) {
    void* const other = memory.allocate(5_MiB);
    EXPECT_NE(other, slow);
    memory.deallocate(memory.allocate(3_MiB));
    memory.deallocate(other);
  }
  EXPECT_EQ(memory.statistics().by_plan.occupied, 200u);
  EXPECT_FALSE(memory.statistics().by_plan.is_aside);
  device.hold_events(false);
  EXPECT_EQ(memory.allocate(5_MiB), slow);
  memory.deallocate(slow);
}

// Which uses delay the reuse is a question for the streams policy, also for one of a user with a state.
struct delays_chosen : reuse_on_same_stream {
  std::uint64_t chosen = 0;
  [[nodiscard]] constexpr bool needs_event(stream_id key, stream_id user) const noexcept {
    return key != user && user.handle == chosen;
  }
  bool operator==(const delays_chosen&) const = default;
};
TEST(planned, asks_the_streams_policy_of_the_allocator_inside) {
  using chosen_pool = caching_allocator<with<pytorch<>, delays_chosen>, provider_ref<simulated_device>>;
  simulated_device device;
  const plan::made_plan made = two();
  policies<with<pytorch<>, delays_chosen>> settings;
  settings.streams.chosen = 7;
  planned<chosen_pool> memory(made.view(), provider_ref(device), settings);
  device.hold_events(true);
  for (const std::uint64_t user : {0u, 1u, 7u}) {
    memory.begin_step();
    void* const p = memory.allocate(5_MiB);
    EXPECT_TRUE(memory.record_stream(p, stream_id{user}));
    memory.deallocate(p);
    EXPECT_EQ(memory.current_usage().pending(), user == 7 ? 5_MiB : 0u) << user;
  }
  EXPECT_EQ(memory.statistics().by_plan.requests, 3u);
  device.hold_events(false);
}

// A kept place whose last use has ended serves again.
TEST(planned, serves_kept_places_after_recorded_uses) {
  simulated_device device;
  plan::made_plan made;
  made.numbers.alignment = 512;
  made.numbers.bytes = 2_MiB;
  made.kinds = {{2_MiB, 0, 1}};
  made.entries = {{0, memory_plan::keeps, 0, 0}};
  made.tracks = {{0, 1, 1, 0}};
  ASSERT_STREQ(plan::find_fault(made.view()), nullptr);
  pool memory(made.view(), provider_ref(device));
  for (int i = 0; i < 3; ++i) {
    void* const p = memory.allocate(2_MiB);
    EXPECT_TRUE(memory.record_stream(p, stream_id{1}));
    memory.deallocate(p);
  }
  EXPECT_EQ(memory.statistics().by_plan.requests, 3u);
}

// Uses that were recorded during a capture are dropped after it, as in the allocator inside.
TEST_F(planned_on_a_device, drops_uses_of_a_capture) {
  void* const p = memory.allocate(sizes[0]);
  auto pools = memory.get<extension::private_pools>();
  const pool_id graph = pools.create();
  ASSERT_TRUE(pools.open(graph, extension::scope_kind::capture));
  EXPECT_TRUE(memory.record_stream(p, stream_id{1}));
  memory.deallocate(p);
  EXPECT_EQ(memory.current_usage().pending(), sizes[0]);
  ASSERT_TRUE(pools.close(graph));
  device.hold_events(true);
  memory.process_events();
  EXPECT_EQ(memory.current_usage().pending(), 0u);
  EXPECT_EQ(device.calls().record, 0u);
  device.hold_events(false);
  EXPECT_TRUE(pools.release(graph));
}

TEST_F(planned_on_a_device, discards_its_events_if_it_ends_in_a_capture) {
  {
    pool ending{made.view(), provider_ref(device)};
    void* const p = ending.allocate(sizes[0]);
    EXPECT_TRUE(ending.record_stream(p, stream_id{1}));
    device.submit(stream_id{1}, 1'000'000);
    ending.deallocate(p);
    auto pools = ending.get<extension::private_pools>();
    ASSERT_TRUE(pools.open(pools.create(), extension::scope_kind::capture));
    EXPECT_EQ(device.live_events(), 1u);
  }
  EXPECT_EQ(device.live_events(), 0u);
}

// Only a capture forbids to wait for streams and to give memory back.
TEST_F(planned_on_a_device, gives_memory_back_while_a_scope_redirects) {
  auto pools = memory.get<extension::private_pools>();
  const pool_id tenant = pools.create(), graph = pools.create();
  run_step();
  ASSERT_TRUE(pools.open(tenant, extension::scope_kind::plain));
  EXPECT_GT(device.used(), 0u);
  memory.trim(0);
  EXPECT_EQ(device.used(), 0u);
  ASSERT_TRUE(pools.close(tenant));

  // A capture besides forbids it, until it ends.
  memory.begin_step();
  run_step();
  const std::size_t plan_bytes = device.used();
  ASSERT_TRUE(pools.open(tenant, extension::scope_kind::plain));
  ASSERT_TRUE(pools.open(graph, extension::scope_kind::capture));
  memory.trim(0);
  EXPECT_EQ(device.used(), plan_bytes);
  ASSERT_TRUE(pools.close(graph));

  void* const p = memory.try_allocate(1_GiB);
  EXPECT_NE(p, nullptr) << "the plan keeps memory that no block uses";
  memory.deallocate(p);
  ASSERT_TRUE(pools.close(tenant));
  for (const pool_id each : {tenant, graph}) EXPECT_TRUE(pools.release(each));
}

// A request that fails takes the memory of unused places.
TEST(planned, gives_up_unused_places_before_a_request_fails) {
  simulated_device device({.capacity = 20_MiB});
  const plan::made_plan made = two();
  pool memory(made.view(), provider_ref(device));
  for (int i = 0; i < 3; ++i) {
    void* const a = memory.allocate(5_MiB);
    void* const b = memory.allocate(3_MiB);
    memory.deallocate(a);
    memory.deallocate(b);
    void* const large = memory.allocate(20_MiB);
    EXPECT_EQ(memory.try_allocate(5_MiB), nullptr);  // planned, but without memory
    memory.deallocate(large);
    memory.inner().trim();  // else its cache serves the next step
    memory.begin_step();
  }
  EXPECT_EQ(memory.try_allocate(21_MiB), nullptr);
  EXPECT_THROW((void)memory.allocate(21_MiB), out_of_memory);
  EXPECT_EQ(memory.statistics().by_plan.requests, 6u);
  EXPECT_STREQ(memory.audit(), nullptr);
}

// With its plan, a program needs the plan's bytes and not a page more.
TEST(planned, needs_only_the_bytes_of_its_plan) {
  recorder of;
  for (int i = 0; i < 4; ++i) of.step({5_MiB, 3_MiB, 9_MiB, 6_MiB, 2_MiB});
  const plan::made_plan made = make(of.made);
  const trace::program program(of.made);
  const auto failures = [&](std::size_t capacity) {
    simulated_device device({.capacity = capacity});
    planned<caching_allocator<pytorch<>, provider_ref<simulated_device>>> memory(made.view(),
                                                                                 provider_ref(device));
    std::size_t failed = 0;
    std::vector<void*> blocks(program.slot_count());
    for (std::size_t i = 0; i < of.made.events.size(); ++i) {
      void*& p = blocks[program.slot(i)];
      if (of.made.events[i].what == trace::event::kind::free) {
        memory.deallocate(std::exchange(p, nullptr));
      } else {
        p = memory.try_allocate(of.made.events[i].bytes);
        failed += p == nullptr;
      }
    }
    return failed;
  };
  const std::size_t needed = align_up(made.numbers.bytes, 2_MiB);
  EXPECT_EQ(failures(needed), 0u);
  EXPECT_GT(failures(needed - 2_MiB), 0u);
}

TEST(planned, serves_nothing_by_a_plan_with_a_fault) {
  simulated_device device;
  plan::made_plan made = ten();
  made.entries[1].place = made.entries[0].place;
  {
    pool memory(made.view(), provider_ref(device));
    memory.begin_step(1);
    void* const a = memory.allocate(sizes[0]);
    void* const b = memory.allocate(sizes[1]);
    EXPECT_STREQ(memory.statistics().by_plan.fault, plan::find_fault(made.view()));
    EXPECT_EQ(memory.statistics().by_plan.requests, 0u);
    memory.deallocate(a);
    memory.deallocate(b);
    memory.trim();
  }
  EXPECT_EQ(device.calls().reserve, 0u);
  // Tracks without entries were once read beyond the end.
  made.entries.clear();
  pool memory(made.view(), provider_ref(device));
  EXPECT_STREQ(memory.statistics().by_plan.fault, "tracks follow each other, and each has entries");
}

TEST(planned, serves_nothing_by_plan_if_the_device_reserves_no_addresses) {
  simulated_device device;
  const plan::made_plan made = two();
  device.fail_call(1);
  pool memory(made.view(), provider_ref(device));
  EXPECT_STREQ(memory.statistics().by_plan.fault, "the device reserves no addresses for the plan");
  void* const p = memory.allocate(5_MiB);
  EXPECT_TRUE(memory.try_deallocate(p));
  EXPECT_EQ(memory.statistics().by_plan.requests, 0u);
}

// Host memory for the pages runs out before the device is asked.
TEST(planned, owns_no_address_without_host_memory_for_its_pages) {
  simulated_device device({.page_granularity = 4_KiB});
  plan::made_plan made;
  made.numbers.alignment = std::uint32_t{1} << 30;
  made.numbers.bytes = max_request;
  made.kinds = {{5_MiB, 0, 0}};
  made.entries = {{0, 0, 0, 0}};
  made.tracks = {{0, 1, 1, 0}};
  ASSERT_STREQ(plan::find_fault(made.view()), nullptr);
  pool memory(made.view(), provider_ref(device));
  EXPECT_STRNE(memory.statistics().by_plan.fault, nullptr);
  EXPECT_TRUE(memory.try_deallocate(memory.allocate(5_MiB)));
}

TEST(planned, gives_streams_tracks_of_their_own) {
  simulated_device device;
  const plan::made_plan made = two(7);
  pool memory(made.view(), provider_ref(device));
  const stream_id first{3}, second{4};
  memory.deallocate(memory.allocate(5_MiB));  // stream 0 follows only the recorded stream 0
  EXPECT_EQ(memory.statistics().by_plan.requests, 0u);
  memory.deallocate(memory.allocate(3_MiB, second));  // it does not begin like the recorded stream
  void* const p = memory.allocate(5_MiB, first);
  EXPECT_EQ(memory.statistics().by_plan.requests, 1u);
  memory.deallocate(p);
  memory.deallocate(memory.allocate(5_MiB, second));  // the track is taken
  memory.deallocate(memory.allocate(3_MiB, first));
  EXPECT_EQ(memory.statistics().by_plan.requests, 2u);
}

TEST(planned, aligns_places_without_virtual_memory) {
  using segments = conformance::plans::segments_of<simulated_device>;
  recorder of;
  for (int i = 0; i < 10; ++i) of.step({5_MiB});
  plan::made_plan made = make(of.made);
  made.numbers.alignment = 1_MiB;
  simulated_device device({.capacity = 30_MiB});
  {
    planned<caching_allocator<pytorch<>, segments>> memory(made.view(), segments(device));
    (void)device.acquire(512);
    void* const p = memory.allocate(5_MiB);
    EXPECT_EQ(memory.statistics().by_plan.requests, 1u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 1_MiB, 0u);
    EXPECT_TRUE(device.can_use(p, 5_MiB));
    memory.deallocate(p);
  }
  EXPECT_EQ(device.used(), 512u);
}

// Without virtual memory, the places are one segment.
TEST(planned, takes_one_segment_without_virtual_memory) {
  using segments = conformance::plans::segments_of<simulated_device>;
  simulated_device device({.capacity = 30_MiB});
  const plan::made_plan made = two();
  {
    planned<caching_allocator<pytorch<>, segments>> memory(made.view(), segments(device));
    void* const p = memory.allocate(5_MiB);
    EXPECT_EQ(device.calls().acquire, 1u);
    EXPECT_EQ(device.used(), 8_MiB);
    memory.trim();
    EXPECT_TRUE(device.can_use(p, 5_MiB));
    memory.deallocate(p);
    memory.trim();
    EXPECT_EQ(device.used(), 0u);
    memory.begin_step();
    void* const again = memory.allocate(5_MiB);
    void* const last = memory.allocate(3_MiB);
    EXPECT_EQ(memory.statistics().by_plan.requests, 3u);
    EXPECT_TRUE(device.can_use(again, 5_MiB) && device.can_use(last, 3_MiB));
    EXPECT_FALSE(memory.try_deallocate(p));
    memory.deallocate(again);
    memory.deallocate(last);
    void* const large = memory.allocate(30_MiB);
    EXPECT_EQ(memory.statistics().by_plan.device_bytes.current, 0);
    memory.deallocate(large);
  }
  EXPECT_EQ(device.used(), 0u);
}

/// A provider with segments and nothing else.
class bare_segments {
 public:
  explicit bare_segments(simulated_device& device) noexcept : device_(&device) {}
  [[nodiscard]] void* acquire(std::size_t bytes) noexcept { return device_->acquire(bytes); }
  bool release(void* p, std::size_t bytes) noexcept { return device_->release(p, bytes); }
  [[nodiscard]] std::size_t capacity() const noexcept { return device_->capacity(); }
  [[nodiscard]] std::size_t granularity() const noexcept { return device_->granularity(); }

 private:
  simulated_device* device_;
};
TEST(planned, records_no_streams_without_events) {
  simulated_device device;
  const plan::made_plan made = two();
  planned<caching_allocator<with<pytorch<>, reuse_immediately>, bare_segments>> memory(made.view(),
                                                                                       bare_segments(device));
  void* const p = memory.allocate(5_MiB);
  EXPECT_TRUE(memory.record_stream(p, stream_id{1}));
  memory.deallocate(p);
  EXPECT_EQ(memory.current_usage().pending(), 0u);
}

TEST(planned, is_as_thread_safe_as_the_allocator_inside) {
  simulated_device device;
  recorder of;
  for (int i = 0; i < 10; ++i) {
    std::uint64_t ids[4];
    for (std::uint64_t k = 0; k < 4; ++k) ids[k] = of.allocate(k < 2 ? 5_MiB : 3_MiB, 1 + k % 2);
    for (const std::uint64_t id : ids) of.free(id);
  }
  const plan::made_plan made = make(of.made);
  planned<locked<caching_allocator<pytorch<>, provider_ref<simulated_device>>>> memory(made.view(),
                                                                                       provider_ref(device));
  std::vector<std::thread> threads;
  for (std::uint64_t t = 1; t <= 2; ++t) {
    threads.emplace_back([&memory, t] {
      for (int i = 0; i < 500; ++i) {
        void* const a = memory.allocate(5_MiB, stream_id{t});
        void* const b = memory.allocate(3_MiB, stream_id{t});
        memory.deallocate(a);
        memory.deallocate(b, 3_MiB);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(memory.statistics().by_plan.requests, 2000u);
  EXPECT_EQ(memory.statistics().by_plan.unplanned_requests, 0u);
  EXPECT_STREQ(memory.audit(), nullptr);
}

TEST(planned, returns_everything_at_its_end) {
  simulated_device device;
  const plan::made_plan made = ten();
  {
    pool memory(made.view(), provider_ref(device));
    (void)memory.allocate(sizes[0]);
    void* const p = memory.allocate(sizes[1]);
    (void)memory.allocate(40_MiB);
    device.hold_events(true);
    EXPECT_TRUE(memory.record_stream(p, stream_id{1}));
    memory.deallocate(p);
  }
  EXPECT_EQ(device.used(), 0u);
  EXPECT_EQ(device.held().reserved, 0u);
  EXPECT_EQ(device.calls().record, device.calls().discard);
}

}  // namespace
