// SPDX-License-Identifier: Apache-2.0
// Tools see what a plan serves, in every front end. A tool changes nothing.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/any_allocator.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/debug/leak_checked.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/debug/thread_checked.hpp>
#include <tessera/interop/aligned_request.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/observe/report.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/captured.hpp>

#include "../../by_day.hpp"
#include "../../conformance/planned_model.hpp"
#include "recorded_steps.hpp"

namespace {

using namespace tessera;
using namespace tessera::literals;
using device_ref = provider_ref<simulated_device>;
using segments = conformance::plans::segments_of<simulated_device>;

/// Steps of 5 MiB, then 3 MiB on stream 0; between them 1 MiB on stream 1.
plan::made_plan steps() {
  plan_tests::recorder of;
  for (int i = 0; i < 10; ++i) {
    of.begin_step(1);
    const std::uint64_t a = of.allocate(5_MiB), b = of.allocate(1_MiB, 1), c = of.allocate(3_MiB);
    for (const std::uint64_t id : {a, b, c}) of.free(id);
  }
  return plan::make(of.made, {.effort = 0.01, .reserved_without = unlimited});
}

/// A planned with two live blocks of its plan, one pending block of it, and one live block beside the plan.
template <typename Pool>
struct loaded {
  simulated_device device{{.capacity = 64_MiB}};
  plan::made_plan made = steps();
  Pool memory{made.view(), tessera::detail::device_of<Pool>(device)};
  void *a, *b, *c, *other;

  loaded() {
    a = memory.allocate(5_MiB);
    b = memory.allocate(1_MiB, stream_id{1});
    c = memory.allocate(3_MiB);
    other = memory.allocate(1000);
    device.hold_events(true);
    EXPECT_TRUE(memory.record_stream(c, stream_id{1}));
    memory.deallocate(c);
  }
  ~loaded() {
    device.hold_events(false);
    for (void* const p : {a, b, other}) memory.deallocate(p);
  }
};

template <typename Pool>
class plan_view : public testing::Test {
 protected:
  loaded<Pool> shown;
  const usage before = shown.memory.current_usage();
  const std::uint64_t time = shown.device.now_ns();  // each call of the device takes time

  ~plan_view() override {
    EXPECT_EQ(shown.memory.current_usage(), before) << "a tool changes what it shows";
    EXPECT_EQ(shown.device.now_ns(), time) << "a tool calls the device";
  }
};
using plain = caching_allocator<pytorch<>, device_ref>;
using pools = types_by_day<3, planned<plain>, planned<locked<plain>>, tagged<planned<locked<plain>>>,
                           planned<caching_allocator<stitched, device_ref>>,
                           planned<caching_allocator<pytorch<>, segments>>, planned<per_stream<plain>>,
                           waiting<planned<locked<plain>>>, thread_checked<planned<tagged<plain>>>,
                           trace::captured<tagged<planned<plain>>>>;
TYPED_TEST_SUITE(plan_view, pools);

TYPED_TEST(plan_view, lists_live_blocks) {
  auto& of = this->shown;
  const live_blocks live(of.memory);
  EXPECT_EQ(live.count, 3u);
  EXPECT_EQ(live.bytes, 6_MiB + 1000);
  std::map<std::uintptr_t, live_blocks::block> by_address;
  for (std::size_t i = 0; i < live.shown(); ++i) by_address[live.first[i].address] = live.first[i];
  const auto block_of = [&](void* p) { return by_address[reinterpret_cast<std::uintptr_t>(p)]; };
  EXPECT_EQ(block_of(of.a).bytes, 5_MiB);
  EXPECT_EQ(block_of(of.b).bytes, 1_MiB);
  EXPECT_EQ(block_of(of.b).stream, stream_id{1});
  EXPECT_EQ(block_of(of.other).bytes, 1000u);
}

TYPED_TEST(plan_view, finds_a_live_block_and_its_segment) {
  auto& of = this->shown;
  const block_view found = live_block_at(of.memory, of.b);
  EXPECT_EQ(found.address, reinterpret_cast<std::uintptr_t>(of.b));
  EXPECT_EQ(found.requested, 1_MiB);
  EXPECT_EQ(found.stream, stream_id{1});
  EXPECT_EQ(found.is, block_view::state::live);
  const segment_view segment = segment_of(of.memory, of.b);
  EXPECT_LE(segment.address, found.address);
  EXPECT_GE(segment.address + segment.bytes, found.address + found.bytes);
  EXPECT_TRUE(of.device.can_use(reinterpret_cast<void*>(segment.address), segment.bytes));
  EXPECT_EQ(live_block_at(of.memory, of.other).requested, 1000u);
  auto* const inside = static_cast<std::byte*>(of.a) + 64;
  for (const void* const p : {static_cast<const void*>(inside), static_cast<const void*>(of.c)}) {
    EXPECT_EQ(live_block_at(of.memory, p).bytes, 0u);
    EXPECT_EQ(segment_of(of.memory, p).bytes, 0u);
  }
}

TYPED_TEST(plan_view, reports_the_memory) {
  auto& of = this->shown;
  const memory_report report(of.memory);
  EXPECT_EQ(report.now, of.memory.current_usage());
  EXPECT_EQ(report.now.reserved, of.device.used());
  EXPECT_EQ(report.now.allocated, 6_MiB + 1024);
  EXPECT_EQ(report.now.pending(), 3_MiB);
  EXPECT_LE(report.non_releasable, report.now.cached);
  ASSERT_TRUE(report.by_plan.has_value());
  EXPECT_EQ(report.by_plan->requests, 3u);
}

TYPED_TEST(plan_view, takes_snapshots) {
  auto& of = this->shown;
  const snapshot seen = take_snapshot(of.memory);
  std::size_t reserved = 0;
  std::map<std::uint64_t, snapshot::block> blocks;
  for (const snapshot::segment& s : seen.segments) {
    reserved += s.size;
    std::uint64_t next = s.address;
    for (const snapshot::block& b : s.blocks) {
      EXPECT_EQ(b.address, next) << "blocks cover their segment";
      next += b.size;
      blocks[b.address] = b;
    }
    EXPECT_EQ(next, s.address + s.size);
    EXPECT_TRUE(of.device.can_use(reinterpret_cast<void*>(s.address), s.size));
  }
  EXPECT_EQ(reserved, of.device.used());
  using state = block_view::state;
  for (const auto& [p, bytes, is] : {std::tuple{of.a, std::size_t{5_MiB}, state::live},
                                     {of.b, std::size_t{1_MiB}, state::live},
                                     {of.c, std::size_t{3_MiB}, state::pending},
                                     {of.other, std::size_t{1000}, state::live}}) {
    const snapshot::block& b = blocks[reinterpret_cast<std::uintptr_t>(p)];
    EXPECT_EQ(b.requested, bytes);
    EXPECT_EQ(b.is, is);
  }
}

TYPED_TEST(plan_view, explains_failures_with_its_memory) {
  auto& of = this->shown;
  const oom_report report = explain(of.memory, 60_MiB);
  EXPECT_EQ(report.now.reserved, of.device.used());
  EXPECT_EQ(report.now.allocated, 6_MiB + 1024);
  EXPECT_EQ(report.room(), 64_MiB - of.device.used());
  EXPECT_LT(report.plan, report.now.reserved);
  EXPECT_LE(report.non_releasable, report.now.cached);
  const std::string text = report.text().c_str();
  EXPECT_EQ(text.find("others use the device"), std::string::npos) << text;
  EXPECT_NE(text.find("; a plan has "), std::string::npos) << text;
}

TYPED_TEST(plan_view, is_in_the_error) {
  auto& of = this->shown;
  const out_of_memory error = of.memory.make_out_of_memory(60_MiB);
  EXPECT_EQ(error.at_failure().reserved, of.device.used());
  EXPECT_EQ(error.at_failure().pending(), 3_MiB);
  EXPECT_EQ(error.numbers().available, 64_MiB - of.device.used());
  const std::string_view text = error.what();
  EXPECT_NE(text.find("; a plan has "), std::string_view::npos) << text;
  EXPECT_NE(text.find("[tessera/observe/explain.hpp]"), std::string_view::npos) << text;
}

TYPED_TEST(plan_view, has_blocks_in_address_order_that_cover_their_segments) {
  auto& of = this->shown;
  std::size_t bytes = 0;
  std::uintptr_t segment = 0, next = 0;
  for_each_block(of.memory, [&](const segment_view& s, const block_view& b) {
    if (s.address != segment) next = segment = s.address;
    EXPECT_EQ(b.address, next);
    next += b.bytes;
    bytes += b.bytes;
    EXPECT_TRUE(b.is == block_view::state::free || !s.in_range || b.stream == s.stream);
  });
  EXPECT_EQ(bytes, of.device.used());
}

// Calls that change something.

template <typename Pool>
class planned_front : public testing::Test {
 protected:
  simulated_device device{{.capacity = 64_MiB}};
  plan::made_plan made = steps();
  Pool memory{made.view(), tessera::detail::device_of<Pool>(device)};
  std::uint64_t by_plan() { return memory_report(memory).by_plan->requests; }
};
TYPED_TEST_SUITE(planned_front, pools);

TYPED_TEST(planned_front, passes_steps_on) {
  auto& front = this->memory;
  const auto miss_and_match = [&](auto begin_step, std::uint64_t expected) {
    front.deallocate(front.allocate(5_MiB));
    begin_step();
    void* const p = front.allocate(5_MiB);  // without the mark, 3 MiB would be next
    EXPECT_EQ(this->by_plan(), expected);
    front.deallocate(p);
    begin_step();
  };
  any_allocator any(front);
  miss_and_match([&] { front.begin_step(1); }, 2);
  miss_and_match([&] { any.begin_step(1); }, 4);
  miss_and_match([&] { any.begin_step(); }, 6);
  if constexpr (requires { front.begin_step(1, stream_id{}); }) {
    miss_and_match([&] { front.begin_step(1, stream_id{}); }, 8);
    miss_and_match([&] { any.begin_step(1, stream_id{}); }, 10);
  }
  plain other{device_ref(this->device)};
  any_allocator(other).begin_step(3);  // it has no steps
}

TYPED_TEST(planned_front, frees_aligned_blocks_of_the_plan) {
  const interop::aligned_request request(5_MiB - 4096 + min_alignment, 4096);
  void* const p = request.allocate(this->memory, stream_id{});  // needs 5 MiB in all
  EXPECT_EQ(this->by_plan(), 1u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 4096, 0u);
  EXPECT_TRUE(request.record_stream(this->memory, p, stream_id{1}));
  request.deallocate(this->memory, p);
  const interop::aligned_request large(3_MiB - 256_KiB + min_alignment, 256_KiB);
  void* const q = large.allocate(this->memory, stream_id{});
  EXPECT_EQ(this->by_plan(), 2u);
  large.deallocate(this->memory, q);
  EXPECT_EQ(this->memory.current_usage().allocated, 0u);
}

struct keep_report {
  live_blocks* to = nullptr;
  void operator()(const live_blocks& left) const noexcept {
    if (to != nullptr) *to = left;
  }
};
TYPED_TEST(planned_front, reports_leaks) {
  live_blocks left;
  void* leaked = nullptr;
  {
    leak_checked<TypeParam, keep_report> checked(this->made.view(),
                                                 tessera::detail::device_of<TypeParam>(this->device));
    checked.report().to = &left;
    leaked = checked.allocate(5_MiB);
    checked.deallocate(checked.allocate(3_MiB));
  }
  ASSERT_EQ(left.count, 1u);
  EXPECT_EQ(left.bytes, 5_MiB);
  EXPECT_EQ(left.first[0].address, reinterpret_cast<std::uintptr_t>(leaked));
}

// A limit of the allocator inside does not count the plan, and the report says what the request may take.
TEST(plan_view_of_a_limit, leaves_the_room_as_it_is) {
  simulated_device device({.capacity = 64_MiB});
  const plan::made_plan made = steps();
  planned<plain> memory(made.view(), device_ref(device));
  memory.visit_policies([](auto& settings) { settings.growth.limit = memory_limit(20_MiB); });
  void* const p = memory.allocate(5_MiB);
  const oom_report report = explain(memory, 30_MiB);
  EXPECT_EQ(report.room(), 20_MiB);
  EXPECT_EQ(report.now.limit, 20_MiB + device.used());
  EXPECT_EQ(memory.make_out_of_memory(30_MiB).at_failure().limit, 20_MiB + device.used());
  memory.deallocate(p);
}

using plan_view_death = testing::Test;
TEST(plan_view_death, of_a_tag_for_no_live_block) {
  simulated_device device;
  const plan::made_plan made = steps();
  tagged<planned<plain>> memory(made.view(), device_ref(device));
  void* const p = memory.allocate(5_MiB);
  memory.set_tag(p, block_tag{3});
  EXPECT_EQ(memory.usage_of(block_tag{3}).bytes, 5_MiB);
  EXPECT_DEATH(
      memory.set_tag(static_cast<std::byte*>(p) + 64, block_tag{1}),
      "set_tag: not the address of a live block; it lies .* bytes into the memory of the plan, inside a");
  memory.deallocate(p);
}

}  // namespace
