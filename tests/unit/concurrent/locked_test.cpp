// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "devices.hpp"
#include "stress.hpp"

namespace {

using namespace tessera;
using unobserved = caching_allocator<pytorch<>, simulated_device>;
static_assert(
    !std::is_constructible_v<locked<unobserved>, simulated_device, recipe::policies<pytorch<>>, int>);
static_assert(!std::is_constructible_v<background_reclaiming<unobserved>, simulated_device,
                                       recipe::policies<pytorch<>>, detail::background_options, int>);
using adaptor_tests::gated_device;
using adaptor_tests::gated_ref;
using adaptor_tests::run_streams_in_host_memory;
using adaptor_tests::run_threads_over_recipes;
using adaptor_tests::run_threads_with_failing_calls;
using torch = locked<caching_allocator<pytorch<>, gated_ref>>;

template <typename recipe>
void decide_alone_as_without_a_lock() {
  for (std::uint64_t seed : {1u, 2u, 3u}) {
    const simulated_device::options options{.capacity = 300_MiB, .fail_every = seed * 13};
    caching_allocator<recipe, simulated_device> plain{simulated_device{options}};
    locked<caching_allocator<recipe, simulated_device>> safe{simulated_device{options}};
    std::mt19937_64 random(seed);
    std::vector<std::pair<void*, void*>> live;
    for (int i = 0; i < 20'000; ++i) {
      const std::size_t what = random() % 100;
      const stream_id stream{random() % 3};
      if (what < 50 && live.size() < 100) {
        const std::size_t bytes = 1 + random() % (std::size_t{1} << (4 + random() % 22));
        void* const p = plain.try_allocate(bytes, stream);
        ASSERT_EQ(safe.try_allocate(bytes, stream), p) << "operation " << i;
        if (p != nullptr) live.emplace_back(p, p);
      } else if (what < 98 && !live.empty()) {
        auto& chosen = live[random() % live.size()];
        const bool records = what % 4 == 0;
        ASSERT_EQ(records && plain.record_stream(chosen.first, stream),
                  records && safe.record_stream(chosen.second, stream));
        plain.deallocate(chosen.first);
        safe.deallocate(chosen.second);
        chosen = live.back();
        live.pop_back();
      } else if (what == 99) {
        const std::size_t keep = plain.current_usage().reserved / 2;
        plain.trim(keep);
        safe.trim(keep);
        plain.reset_peak_statistics();
        safe.reset_peak_statistics();
      } else if (what == 98) {
        plain.reset_accumulated_statistics();
        safe.reset_accumulated_statistics();
      }
      ASSERT_EQ(plain.current_usage(), safe.current_usage()) << "operation " << i;
    }
    EXPECT_STREQ(safe.audit(), nullptr);
    const auto of_plain = plain.statistics(), of_safe = safe.statistics();
    for (const auto& [name, of] : detail::pool_counters) EXPECT_EQ(of_plain.all.*of, of_safe.all.*of) << name;
    for (const auto& [name, of] : detail::event_counts) EXPECT_EQ(of_plain.*of, of_safe.*of) << name;
    const auto calls = safe.visit_provider([](auto& d) { return d.calls(); });
    EXPECT_EQ(plain.provider().calls().query, calls.query);
    EXPECT_EQ(plain.provider().calls().discard, calls.discard);
    EXPECT_EQ(plain.provider().calls().unmap, calls.unmap);
    EXPECT_GT(calls.failed, 0u);
  }
}
TEST(locked_threads, decide_alone_as_without_a_lock) {
  decide_alone_as_without_a_lock<with<pytorch<>, split_below<16_MiB>, evict_idle_above<percent(50)>>>();
  decide_alone_as_without_a_lock<with<pytorch_family::expandable, evict_idle_above<percent(50)>>>();
}

/// Has only the required functions.
struct plain_device {
  void* acquire(std::size_t) noexcept { return nullptr; }
  bool release(void*, std::size_t) noexcept { return true; }
  std::size_t capacity() const noexcept { return 1_GiB; }
  std::size_t granularity() const noexcept { return 512; }
};
TEST(locked_threads, ask_of_a_device_what_the_recipe_asks) {
  locked<caching_allocator<with<pytorch<>, reuse_immediately>, plain_device>> plain;
  EXPECT_EQ(plain.try_allocate(1), nullptr);
  locked<caching_allocator<with<pytorch<>, prefer_pages<page_preference::huge_first>>, simulated_device>>
      paged{simulated_device{simulated_device::options{.huge_budget = 20_MiB}}};
  (void)paged.allocate(20_MiB);
  (void)paged.allocate(20_MiB);
  EXPECT_EQ(paged.visit_provider([](auto& d) { return d.calls().acquire; }), 3u);
}

TEST(locked_threads, explain_out_of_memory) {
  locked<caching_allocator<pytorch<>, simulated_device>> pool{
      simulated_device{simulated_device::options{.capacity = 30_MiB}}};
  void* p = pool.allocate(5_MiB);
  try {
    (void)pool.allocate(25_MiB);
    FAIL();
  } catch (const out_of_memory& error) {
    EXPECT_EQ(error.requested(), 25_MiB);
    EXPECT_EQ(error.segment(), 26_MiB);
    EXPECT_EQ(error.at_failure().allocated, 5_MiB);
  }
  EXPECT_EQ(pool.allocate(0), nullptr);
  EXPECT_EQ(pool.try_allocate(max_request + 1), nullptr);
  EXPECT_FALSE(pool.try_deallocate(&pool));
  pool.deallocate(p, 5_MiB);
  EXPECT_EQ(pool.statistics().num_ooms, 1u);
}

struct call_at_oom {
  std::function<void()> call;
  void on(const allocator_event& event) noexcept {
    if (event.what == allocator_event::action::oom) call();
  }
};
// Another thread frees a block as soon as the failed request unlocks the mutex.
TEST(locked_threads, throws_the_numbers_of_the_failure) {
  for (int i = 0; i < 20; ++i) {
    locked<caching_allocator<pytorch<>, simulated_device, extension::observer<call_at_oom>>> pool{
        simulated_device{simulated_device::options{.capacity = 30_MiB}}};
    void* const block = pool.allocate(5_MiB);
    std::thread freeing;
    pool.get<extension::observer<call_at_oom>>().with([&](call_at_oom& observer) {
      observer.call = [&] { freeing = std::thread([&] { pool.deallocate(block); }); };
    });
    try {
      (void)pool.allocate(25_MiB);
      ADD_FAILURE();
    } catch (const out_of_memory& error) {
      EXPECT_EQ(error.at_failure().allocated, 5_MiB);
    }
    freeing.join();
    EXPECT_EQ(pool.current_usage().allocated, 0u);
  }
}

TEST(locked_threads, keep_all_rules_with_every_kind_of_recipe) {
  run_threads_over_recipes<locked, with<pytorch<>, evict_idle_above<percent(50)>>,
                           with<pytorch_family::expandable, evict_idle_above<percent(50)>>, cuda_async>();
}

#if !defined(_WIN32)  // where host_pinned has no virtual memory
TEST(locked_threads, take_no_page_from_under_a_stream) {
  run_streams_in_host_memory<
      locked<caching_allocator<pytorch_family::expandable, provider_ref<host_pinned>>>>(3, 600);
}
#endif

TEST(locked_threads, let_no_block_cross_to_a_stream_too_early) {
  run_streams_in_host_memory<locked<caching_allocator<cuda_async, provider_ref<host_pinned>>>>(3, 2000);
}

TEST(locked_threads, survive_calls_failing_again_and_again) {
  run_threads_with_failing_calls<locked<caching_allocator<with<pytorch<>, split_below<2_MiB>>, gated_ref>>>();
  run_threads_with_failing_calls<locked<caching_allocator<pytorch_family::expandable, gated_ref>>>();
  run_threads_with_failing_calls<locked<caching_allocator<cuda_async, gated_ref>>>();
}

TEST(locked_threads, find_cached_blocks_while_another_waits_for_the_device) {
  gated_device shared;
  torch pool{gated_ref(shared)};
  pool.deallocate(pool.allocate(5_MiB));
  shared.acquires.shut();
  void* large = nullptr;
  std::thread growing([&] { large = pool.allocate(100_MiB); });
  shared.acquires.await(1);
  for (int i = 0; i < 100; ++i) pool.deallocate(pool.allocate(5_MiB));
  EXPECT_EQ(pool.current_usage().reserved, 20_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.trim();  // erases the free list of the block that is being acquired
  shared.acquires.open();
  growing.join();
  EXPECT_NE(large, nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 100_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.deallocate(large);
}

TEST(locked_threads, never_pass_the_limit_together) {
  gated_device shared;
  torch pool{gated_ref(shared), {.growth = {.limit = 150_MiB}}};
  shared.acquires.shut();
  void* first = nullptr;
  std::thread growing([&] { first = pool.try_allocate(100_MiB); });
  shared.acquires.await(1);
  void* second = nullptr;
  std::thread waiting([&] { second = pool.try_allocate(90_MiB, stream_id{1}); });
  while (pool.statistics().num_ooms == 0) std::this_thread::yield();  // it waits for the first one now
  shared.acquires.open();
  growing.join();
  waiting.join();
  EXPECT_NE(first, nullptr);
  EXPECT_EQ(second, nullptr);
  EXPECT_LE(shared.with([](auto& d) { return d.peak_used(); }), 150_MiB);
  pool.deallocate(first);
}

/// A segment of 100 MiB whose release does not return until go_on() is called.
struct release_under_way {
  explicit release_under_way(std::size_t capacity = 1_GiB) : shared(capacity) {
    pool.deallocate(cached);
    shared.releases.shut();
    trimming = std::thread([this] { pool.trim(); });
    shared.releases.await(1);
  }
  void go_on() {
    shared.releases.open();
    trimming.join();
  }

  gated_device shared;
  torch pool{gated_ref(shared)};
  void* const cached = pool.allocate(100_MiB);
  std::thread trimming;
};

TEST(locked_threads, do_not_allocate_memory_during_its_release) {
  release_under_way now;
  auto& pool = now.pool;
  EXPECT_EQ(pool.current_usage().reserved, 100_MiB);  // the device has not released it yet
  EXPECT_STREQ(pool.audit(), nullptr);
  void* const fresh = pool.allocate(100_MiB);
  EXPECT_NE(fresh, now.cached);
  pool.trim();
  now.go_on();
  EXPECT_EQ(pool.current_usage().reserved, 100_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.deallocate(fresh);
}

TEST(locked_threads, keep_what_the_device_fails_to_take_back) {
  release_under_way now;
  auto& pool = now.pool;
  now.shared.with([](auto& d) { d.fail_call(1); });
  now.go_on();
  EXPECT_EQ(pool.current_usage().cached, 100_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
  EXPECT_EQ(pool.allocate(100_MiB), now.cached);
  pool.deallocate(now.cached);
}

TEST(locked_threads, wait_for_memory_that_another_thread_releases) {
  release_under_way now(120_MiB);
  auto& pool = now.pool;
  void* p = nullptr;
  std::thread needing([&] { p = pool.try_allocate(100_MiB, stream_id{1}); });
  while (pool.statistics().num_ooms == 0) std::this_thread::yield();
  now.go_on();
  needing.join();
  EXPECT_NE(p, nullptr);
  pool.deallocate(p);
}

TEST(locked_threads, retire_a_use_once_while_others_wait_for_it) {
  gated_device shared;
  shared.with([](auto& d) { d.hold_events(true); });
  torch pool{gated_ref(shared)};
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.allocate(30_MiB));
  for (void* p : blocks) {
    (void)pool.record_stream(p, stream_id{7});
    (void)pool.record_stream(p, stream_id{8});
  }
  pool.deallocate(blocks[0]);
  pool.deallocate(blocks[1]);
  shared.waits.shut();
  std::thread one([&] { pool.trim(); });
  std::thread two([&] { pool.trim(); });
  shared.waits.await(2);
  EXPECT_EQ(pool.current_usage().pending(), 60_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.deallocate(blocks[2]);  // into a queue whose blocks are all being waited for
  pool.deallocate(blocks[3]);
  shared.with([](auto& d) { d.hold_events(false), d.advance(1); });
  // processes complete events, but not the ones that are being waited for
  void* const p = pool.allocate(1_KiB);
  EXPECT_STREQ(pool.audit(), nullptr);
  shared.with([](auto& d) { d.fail_call(1); });
  shared.waits.open();
  one.join();
  two.join();
  pool.trim();
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
  EXPECT_EQ(shared.with([](auto& d) { return d.calls().discard; }), 8u);
  pool.deallocate(p);
}

/// Another thread fills the cache again while the device releases a segment.
class refilling_device : public gated_ref {
 public:
  struct refill {
    void (*run)(void* pool, stream_id stream) = nullptr;
    void* pool = nullptr;
  };
  refilling_device(gated_device& to, const refill& by) : gated_ref(to), by_(&by) {}
  bool release(void* p, std::size_t bytes) noexcept {
    if (by_->run != nullptr) by_->run(by_->pool, stream_id{++next_});
    return gated_ref::release(p, bytes);
  }

 private:
  const refill* by_;
  std::uint64_t next_ = 0;
};
TEST(locked_threads, end_a_walk_though_others_fill_the_cache) {
  gated_device shared(1000_GiB);
  refilling_device::refill refill;
  using refilled = locked<caching_allocator<pytorch<>, refilling_device>>;
  refilled pool{refilling_device(shared, refill), {.split = {.max = 20_MiB}, .growth = {.limit = 999_GiB}}};
  for (int i = 0; i < 10; ++i) (void)pool.allocate(30_MiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(pool.allocate(30_MiB));
  for (void* p : blocks) pool.deallocate(p);
  refill = {[](void* to, stream_id stream) {
              auto& filled = *static_cast<refilled*>(to);
              filled.deallocate(filled.try_allocate(30_MiB, stream));
            },
            &pool};
  pool.trim();
  EXPECT_EQ(pool.statistics().num_device_free, 20u);  // as many as there were segments
  EXPECT_EQ(pool.try_allocate(999_GiB), nullptr);
  EXPECT_STREQ(pool.audit(), nullptr);
  refill = {};
  pool.trim();
  EXPECT_EQ(pool.current_usage().cached, 0u);
}

TEST(locked_threads, may_use_the_allocator_in_callbacks_under_pressure) {
  adaptor_tests::use_the_allocator_under_pressure<torch>();
}

TEST(locked_threads, reach_settings_and_device_safely) {
  locked<caching_allocator<pytorch<>, host_pinned>> pool{
      host_pinned{host_pinned::options{.capacity = 64_MiB, .pin = host_pinned::pinning::never}}};
  const stream_id side = pool.visit_provider([](auto& d) { return d.create_stream(); });
  std::thread setting([&] {
    for (std::size_t i = 0; i < 100; ++i) pool.visit_policies([](auto& s) { s.growth.limit = 64_MiB; });
  });
  for (int i = 0; i < 200; ++i) {
    void* const p = pool.allocate(1_MiB);
    pool.visit_provider([=](auto& d) { return d.submit(side, [p] { *static_cast<char*>(p) = 1; }); });
    EXPECT_TRUE(pool.record_stream(p, side));
    pool.deallocate(p);
  }
  setting.join();
  pool.trim();
  EXPECT_EQ(pool.current_usage().limit, 64_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TEST(locked, retires_and_trims_without_waiting) {
  locked<caching_allocator<pytorch<>, simulated_device>> pool;
  constexpr stream_id other{1};
  const auto free_in_use = [&] {
    void* const p = pool.allocate(5_MiB);
    EXPECT_TRUE(pool.record_stream(p, other));
    pool.visit_provider([&](simulated_device& device) { device.submit(other, 1'000'000'000); });
    pool.deallocate(p);
  };
  const auto finish = [&] {
    pool.visit_provider([](simulated_device& device) { device.advance(1'000'000'000); });
  };
  free_in_use();
  EXPECT_FALSE(pool.process_events());
  finish();
  EXPECT_TRUE(pool.process_events());
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  free_in_use();
  pool.trim_without_waiting();
  EXPECT_EQ(pool.current_usage().pending(), 5_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 20_MiB);
  finish();
  pool.trim_without_waiting(20_MiB);
  EXPECT_EQ(pool.current_usage().cached, 20_MiB);
  pool.trim_without_waiting();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_EQ(pool.statistics().num_sync_all_streams, 0u);
}

// The work of its own stream may still use a free block.
template <typename Recipe>
void keep_idle_memory_of_a_busy_stream() {
  locked<caching_allocator<Recipe, simulated_device>> pool{
      simulated_device{simulated_device::options{.capacity = 1_GiB}}};
  const stream_id stream{3};
  void* const p = pool.allocate(20_MiB, stream);
  const std::size_t reserved = pool.current_usage().reserved;
  EXPECT_TRUE(pool.record_stream(p, stream_id{4}));
  pool.deallocate(p);
  pool.visit_provider([&](simulated_device& device) { device.submit(stream, 1'000'000'000); });
  pool.trim_without_waiting();
  EXPECT_EQ(pool.current_usage().reserved, reserved);
  pool.visit_provider([](simulated_device& device) {
    EXPECT_EQ(device.calls().synchronize + device.calls().wait, 0u);
    device.advance(1'000'000'000);
  });
  pool.trim_without_waiting();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TEST(locked, keeps_idle_memory_of_a_busy_stream_if_it_must_not_wait) {
  keep_idle_memory_of_a_busy_stream<pytorch<>>();
  keep_idle_memory_of_a_busy_stream<pytorch<"expandable_segments:True">>();
  keep_idle_memory_of_a_busy_stream<cuda_async>();
  keep_idle_memory_of_a_busy_stream<stitched>();
  keep_idle_memory_of_a_busy_stream<with<pytorch<>, evict_at_free<>>>();
  keep_idle_memory_of_a_busy_stream<with<stitched, evict_at_free<>>>();
}

TEST(locked_threads, explain_out_of_memory_of_a_stream) {
  locked<caching_allocator<pytorch<>, simulated_device>> pool{
      simulated_device{simulated_device::options{.capacity = 30_MiB}}};
  (void)pool.allocate(5_MiB, stream_id{4});
  const oom_report report = explain(pool, 12_MiB, stream_id{9});
  EXPECT_EQ(report.stream, stream_id{9});
  EXPECT_EQ(report.largest.stream, stream_id{4});
  EXPECT_EQ(report.largest_is, oom_report::reason::stream);
  EXPECT_EQ(report.non_releasable, 15_MiB);
  EXPECT_TRUE(report.device_has_ranges && report.device_has_order) << "of the provider itself";
  EXPECT_EQ(report.now, pool.current_usage());
  try {
    (void)pool.allocate(12_MiB, stream_id{9});
    FAIL();
  } catch (const out_of_memory& error) {
    EXPECT_EQ(error.stream(), stream_id{9});
  }
}

// Events that are not discarded stay with the driver, which has a limited number.
TEST(locked, discards_events_that_are_not_ready) {
  const auto events_after_trims = [](auto& pool) {
    pool.deallocate(pool.allocate(50_MiB));
    pool.visit_provider([](simulated_device& device) { device.submit({}, 1'000'000); });
    for (int i = 0; i < 3; ++i) pool.trim_without_waiting();
    return pool.visit_provider([](simulated_device& device) { return device.live_events(); });
  };
  locked<caching_allocator<pytorch<>, simulated_device>> alone;
  EXPECT_EQ(events_after_trims(alone), 0u);
  background_reclaiming<caching_allocator<pytorch<>, simulated_device>> beside_a_thread;
  EXPECT_EQ(events_after_trims(beside_a_thread), 0u);
}

// The report is made with the mutex held. So its numbers are consistent whatever other threads do.
TEST(locked_threads, explain_out_of_memory_while_others_work) {
  locked<caching_allocator<pytorch<>, simulated_device>> pool{
      simulated_device{simulated_device::options{.capacity = 60_MiB}}};
  std::atomic<bool> stop{false};
  std::thread other([&] {
    for (std::size_t i = 0; !stop; ++i) pool.deallocate(pool.try_allocate(i % 7 * 1_MiB + 1));
  });
  for (int i = 0; i < 200; ++i) {
    const oom_report report = explain(pool, 100_MiB);
    EXPECT_EQ(report.now.active + report.now.cached, report.now.reserved);
    EXPECT_EQ(report.idle + report.non_releasable, report.now.cached);
    EXPECT_LE(report.largest.bytes, report.now.cached);
  }
  stop = true;
  other.join();
}

}  // namespace
