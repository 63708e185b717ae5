// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../../by_day.hpp"
#include "devices.hpp"
#include "stress.hpp"

namespace {

using namespace tessera;
using adaptor_tests::gated_device;
using adaptor_tests::gated_ref;
using adaptor_tests::run_streams_in_host_memory;
using adaptor_tests::run_threads_over_recipes;
using adaptor_tests::run_threads_with_failing_calls;
using torch = per_stream<caching_allocator<pytorch<>, gated_ref>>;
using expandable = per_stream<caching_allocator<pytorch_family::expandable, gated_ref>>;

// Streams that use the whole device one after the other have their peaks at different times.
TEST(per_stream_threads, have_no_peak_above_what_is_possible) {
  using pool_type = per_stream<caching_allocator<pytorch<>, simulated_device>>;
  pool_type pool{simulated_device{simulated_device::options{.capacity = 100_MiB}}};
  for (std::uint64_t s = 0; s < 4; ++s) {
    pool.deallocate(pool.allocate(100_MiB, stream_id{s}));
    pool.trim();
  }
  const auto seen = pool.statistics();
  for (const pool_statistics& in : {seen.all, seen.pool[1]}) {
    for (const counter& c : {in.allocated_bytes, in.active_bytes, in.requested_bytes, in.reserved_bytes})
      EXPECT_EQ(c.peak, 100_MiB);
    EXPECT_EQ(in.segment.peak, 1);
  }
  EXPECT_EQ(seen.device_bytes.peak, 100_MiB);
  EXPECT_LE(seen.all.inactive_split_bytes.peak, 100_MiB);
}

TEST(per_stream_threads, serve_as_one_allocator) {
  per_stream<caching_allocator<pytorch<>, simulated_device>> pool;
  void* weights = pool.allocate(300_MiB);
  void* batch = pool.allocate(5_MiB, stream_id{1});
  EXPECT_EQ(pool.arena_count(), 2u);
  EXPECT_TRUE(pool.record_stream(weights, stream_id{1}));
  pool.deallocate(batch, 5_MiB);
  pool.deallocate(weights);
  EXPECT_EQ(pool.current_usage().reserved, 320_MiB);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_EQ(pool.current_usage().limit, 80_GiB);
  EXPECT_EQ(pool.allocate(5_MiB, stream_id{1}), batch);
  EXPECT_EQ(pool.statistics().all.segment.current, 2);
  EXPECT_EQ(pool.statistics().all.allocation.allocated, 3);
  pool.reset_accumulated_statistics();
  pool.reset_peak_statistics();
  EXPECT_EQ(pool.statistics().all.allocation, (counter{1, 1, 0, 0}));
  EXPECT_EQ(pool.allocate(0), nullptr);
  EXPECT_EQ(pool.try_allocate(max_request + 1), nullptr);
  EXPECT_TRUE(pool.try_deallocate(batch));
  EXPECT_FALSE(pool.try_deallocate(batch));
  EXPECT_FALSE(pool.try_deallocate(&pool));
  EXPECT_FALSE(pool.try_record_stream(&pool, stream_id{1}));
  pool.deallocate(nullptr);
  pool.trim(250_MiB);
  EXPECT_LE(pool.current_usage().reserved, 250_MiB);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

using per_stream_threads_death = testing::Test;
TEST(per_stream_threads_death, find_a_double_free) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  per_stream<caching_allocator<pytorch<>, simulated_device>> pool;
  void* p = pool.allocate(1_KiB);
  EXPECT_DEATH(pool.deallocate(&pool), "deallocate: not the address of a live block");
  EXPECT_DEATH(pool.deallocate(p, 1000), "deallocate: not the requested size");
  EXPECT_DEATH(pool.deallocate(p, unlimited), "deallocate: not the requested size");
  EXPECT_DEATH(
      {
        std::thread([&] { pool.deallocate(p), pool.deallocate(p); }).join();
        pool.deallocate(pool.allocate(1_KiB));
      },
      "deallocate: not the address of a live block");
  EXPECT_DEATH(
      {
        std::thread([&] { pool.deallocate(p, 1000); }).join();
        (void)pool.current_usage();
      },
      "deallocate: not the requested size");
  pool.deallocate(p);
}

template <typename droppable>
void tell_a_limit_from_a_full_device() {
  policies<droppable> chosen;
  chosen.growth.limit = 100_MiB;
  const auto second_stream_is_served = [&](std::size_t capacity, const policies<droppable>& settings) {
    per_stream<caching_allocator<droppable, simulated_device>> pool{simulated_device{{.capacity = capacity}},
                                                                    settings};
    pool.deallocate(pool.allocate(80_MiB, stream_id{1}));
    void* const p = pool.try_allocate(80_MiB, stream_id{2});
    const bool served = p != nullptr;
    pool.deallocate(p);
    EXPECT_EQ(pool.statistics().num_oom_rejections, served ? 0u : 1u);
    return served;
  };
  EXPECT_FALSE(second_stream_is_served(1_GiB, chosen));
  EXPECT_TRUE(second_stream_is_served(100_MiB, {}));
}
TEST(per_stream_threads, tell_a_limit_from_a_full_device) {
  tell_a_limit_from_a_full_device<with<pytorch<>, fail_fast<recover_by_releasing_oversize, true>>>();
  tell_a_limit_from_a_full_device<
      with<pytorch_family::expandable, fail_fast<recover_by_emptying_cache<>, true>>>();
}

template <typename recipe>
void decide_on_one_stream_like_a_caching_allocator(std::size_t capacity, std::size_t limit) {
  for (std::uint64_t seed : {1u, 2u}) {
    const simulated_device::options options{.capacity = capacity};
    policies<recipe> settings;
    settings.growth.limit = limit;
    caching_allocator<recipe, simulated_device> plain{simulated_device{options}, settings};
    per_stream<caching_allocator<recipe, simulated_device>> arenas{simulated_device{options}, settings};
    std::mt19937_64 random(seed);
    std::vector<void*> live;
    for (int i = 0; i < 20'000; ++i) {
      if (random() % 2 == 0 && live.size() < 100) {
        const std::size_t most = std::size_t{1} << (4 + random() % 22);
        const std::size_t bytes = 1 + random() % most;
        void* const p = plain.try_allocate(bytes, stream_id{5});
        ASSERT_EQ(arenas.try_allocate(bytes, stream_id{5}), p) << "operation " << i;
        if (p != nullptr) live.push_back(p);
      } else if (!live.empty()) {
        void*& chosen = live[random() % live.size()];
        if (random() % 8 == 0) {
          (void)plain.record_stream(chosen, stream_id{6});
          (void)arenas.record_stream(chosen, stream_id{6});
        }
        plain.deallocate(chosen);
        arenas.deallocate(chosen);
        chosen = live.back();
        live.pop_back();
      }
    }
    EXPECT_EQ(arenas.current_usage(), plain.current_usage());
    const auto counted = arenas.statistics();
    const auto right = plain.statistics();
    static_assert(std::has_unique_object_representations_v<decltype(counted)>);
    EXPECT_EQ(std::memcmp(&counted, &right, sizeof counted), 0);
    EXPECT_GT(counted.num_ooms, 0u);
  }
}
TEST(per_stream_threads, decide_on_one_stream_like_a_caching_allocator) {
  decide_on_one_stream_like_a_caching_allocator<pytorch<>>(150_MiB, unlimited);
  decide_on_one_stream_like_a_caching_allocator<pytorch<>>(1_GiB, 150_MiB);
  decide_on_one_stream_like_a_caching_allocator<pytorch_family::expandable>(150_MiB, unlimited);
  decide_on_one_stream_like_a_caching_allocator<pytorch_family::expandable>(1_GiB, 155_MiB);
}

TEST(per_stream_threads, keep_all_rules_with_every_kind_of_recipe) {
  run_threads_over_recipes<per_stream, with<pytorch<>, evict_idle_above<percent(20)>>,
                           with<pytorch_family::expandable, evict_idle_above<percent(20)>>>();
}

#if !defined(_WIN32)  // where host_pinned has no virtual memory
TEST(per_stream_threads, take_no_page_from_under_a_stream) {
  run_streams_in_host_memory<
      per_stream<caching_allocator<pytorch_family::expandable, provider_ref<host_pinned>>>>(3, 600);
}
#endif

TEST(per_stream_threads, survive_calls_failing_again_and_again) {
  run_threads_with_failing_calls<
      per_stream<caching_allocator<with<pytorch<>, split_below<2_MiB>>, gated_ref>>>();
  run_threads_with_failing_calls<expandable>();
}

TEST(per_stream_threads, pass_blocks_from_producer_to_consumer) {
  gated_device shared;
  torch pool{gated_ref(shared)};
  std::atomic<void*> passing = nullptr;
  std::thread consuming([&] {
    for (int i = 0; i < 20'000;) {
      void* const p = passing.exchange(nullptr);
      if (p == nullptr) {
        std::this_thread::yield();
      } else {
        i % 2 == 0 ? pool.deallocate(p) : pool.deallocate(p, 1_MiB + 1);
        ++i;
      }
    }
  });
  for (int i = 0; i < 20'000; ++i) {
    void* const p = pool.allocate(1_MiB + 1, stream_id{3});
    for (void* none = nullptr; !passing.compare_exchange_weak(none, p); none = nullptr)
      std::this_thread::yield();
  }
  consuming.join();
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_LE(pool.current_usage().reserved, 60_MiB);  // the queued block was reused
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(per_stream_threads, free_more_at_once_than_can_be_handed_over) {
  gated_device shared;
  torch pool{gated_ref(shared)};
  std::vector<void*> blocks;
  for (int i = 0; i < 5000; ++i) blocks.push_back(pool.allocate(1_KiB));
  std::vector<std::thread> freeing;
  for (std::size_t t = 0; t < 3; ++t) {
    freeing.emplace_back([&, t] {
      for (std::size_t i = t; i < blocks.size(); i += 3) pool.deallocate(blocks[i]);
    });
  }
  for (auto& t : freeing) t.join();
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_EQ(pool.statistics().all.allocation.freed, 5000);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(per_stream_threads, record_the_event_of_a_stream_that_ends_after_the_free) {
  per_stream<caching_allocator<pytorch<>, host_pinned>> pool{
      host_pinned{host_pinned::options{.capacity = 64_MiB, .pin = host_pinned::pinning::never}}};
  const stream_id side = pool.visit_provider([](auto& d) { return d.create_stream(); });
  void* const p = pool.allocate(1_MiB);
  ASSERT_TRUE(pool.record_stream(p, side));
  std::thread([&] {
    pool.deallocate(p);
    pool.visit_provider([&](auto& d) { d.destroy_stream(side); });
  }).join();
  void* const q = pool.allocate(1_KiB);
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  pool.deallocate(q);
}

TEST(per_stream_threads, find_cached_blocks_while_another_stream_waits_for_the_device) {
  gated_device shared;
  torch pool{gated_ref(shared)};
  pool.deallocate(pool.allocate(5_MiB, stream_id{1}));
  shared.acquires.shut();
  void* large = nullptr;
  std::thread growing([&] { large = pool.allocate(100_MiB, stream_id{2}); });
  shared.acquires.await(1);
  for (int i = 0; i < 100; ++i) pool.deallocate(pool.allocate(5_MiB, stream_id{1}));
  EXPECT_STREQ(pool.audit(), nullptr);
  shared.acquires.open();
  growing.join();
  EXPECT_NE(large, nullptr);
  pool.deallocate(large);
}

TEST(per_stream_threads, find_cached_blocks_while_another_stream_maps_pages) {
  gated_device shared;
  expandable pool{gated_ref(shared)};
  void* const p = pool.allocate(5_MiB, stream_id{1});
  pool.deallocate(p);
  shared.maps.shut();
  void* large = nullptr;
  std::thread growing([&] { large = pool.allocate(100_MiB, stream_id{2}); });
  shared.maps.await(1);
  for (int i = 0; i < 100; ++i) pool.deallocate(pool.allocate(5_MiB, stream_id{1}));
  shared.maps.open();
  growing.join();
  EXPECT_NE(large, nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 120_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.deallocate(large);
}

/// Is not called by several threads at once.
struct for_one : gated_ref {
  using gated_ref::gated_ref;
  static constexpr bool is_thread_safe = false;
};
TEST(per_stream_threads, ask_for_events_without_waiting_for_a_turn_and_record_them_with) {
  gated_device shared;
  per_stream<caching_allocator<pytorch<>, for_one>> pool{for_one(shared)};
  void* const held = pool.allocate(5_MiB, stream_id{1});
  void* const later = pool.allocate(5_MiB, stream_id{1});
  (void)pool.record_stream(held, stream_id{3});
  (void)pool.record_stream(later, stream_id{3});
  pool.deallocate(held);
  shared.acquires.shut();
  void* large = nullptr;
  std::thread growing([&] { large = pool.allocate(100_MiB, stream_id{2}); });
  shared.acquires.await(1);
  pool.deallocate(pool.allocate(5_MiB, stream_id{1}));  // the event cannot be queried now
  EXPECT_EQ(pool.current_usage().pending(), 5_MiB);
  std::thread freeing([&] { pool.deallocate(later); });  // and then stream 3 may end
  shared.acquires.open();
  growing.join();
  freeing.join();
  pool.deallocate(pool.allocate(5_MiB, stream_id{1}));
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  EXPECT_EQ(shared.with([](auto& d) { return d.calls().discard; }), 2u);
  pool.deallocate(large);
}

/// Returns the peak bytes of the device.
template <typename Pool>
std::size_t keep_one_limit_together() {
  gated_device shared;
  Pool pool{gated_ref(shared), {.growth = {.limit = 150_MiB}}};
  std::vector<std::thread> running;
  for (std::uint64_t t = 0; t < 4; ++t) {
    running.emplace_back([&pool, t] {
      for (std::size_t i = 1; i < 200; ++i) pool.deallocate(pool.try_allocate(i % 9 * 10_MiB, stream_id{t}));
    });
  }
  for (auto& t : running) t.join();
  const std::size_t peak = shared.with([](auto& d) { return d.peak_used(); });
  EXPECT_EQ(pool.current_usage().limit, 150_MiB);
  pool.visit_policies([](auto& s) { s.growth.limit = 40_MiB; });
  pool.trim();
  EXPECT_EQ(pool.try_allocate(50_MiB), nullptr);
  void* const p = pool.allocate(30_MiB);
  EXPECT_THROW((void)pool.allocate(30_MiB, stream_id{7}), out_of_memory);
  pool.deallocate(p);
  return peak;
}
TEST(per_stream, policies_change_in_all_arenas_or_in_none) {
  per_stream<caching_allocator<pytorch<>, simulated_device>> pool;
  (void)pool.allocate(1000, stream_id{1});
  (void)pool.allocate(1000, stream_id{2});
  const auto limits = [&pool] {
    std::vector<std::size_t> found;
    pool.for_each_allocator([&found](auto& in) { found.push_back(in.policies().growth.limit.on(1_GiB)); });
    return found;
  };
  const std::vector<std::size_t> before = limits();
  const auto fail = [](auto& settings) {
    settings.growth.limit = 100_MiB;
    throw std::runtime_error("no such limit");
  };
  EXPECT_THROW(pool.visit_policies(fail), std::runtime_error);
  EXPECT_EQ(limits(), before);
  EXPECT_FALSE(pool.current_usage().has_limit);
  const int result = pool.visit_policies([](auto& settings) {
    settings.growth.limit = 50_MiB;
    return 7;
  });
  EXPECT_EQ(result, 7);
  EXPECT_EQ(limits(), (std::vector<std::size_t>{50_MiB, 50_MiB}));
  EXPECT_EQ(pool.current_usage().limit, 50_MiB);
}
TEST(per_stream, a_question_creates_no_arena) {
  const per_stream<caching_allocator<pytorch<>, simulated_device>> pool;
  const out_of_memory error = pool.make_out_of_memory(5_MiB, stream_id{3});
  EXPECT_EQ(error.requested(), 5_MiB);
  EXPECT_EQ(error.stream(), stream_id{3});
  EXPECT_EQ(pool.arena_count(), 0u);
}
TEST(per_stream, functions_given_to_it_may_throw) {
  per_stream<caching_allocator<pytorch<>, simulated_device>> pool;
  void* const p = pool.allocate(1000);
  const auto fail = [](auto&, bool = true) { throw std::runtime_error("unwilling"); };
  EXPECT_THROW(pool.visit_arenas(stream_id{}, fail), std::runtime_error);
  EXPECT_THROW(pool.visit_owner(p, fail), std::runtime_error);
  pool.deallocate(p);
}

TEST(per_stream_threads, keep_one_limit_together) {
  const std::size_t in_segments = keep_one_limit_together<torch>();
  EXPECT_LE(in_segments, 150_MiB);
  EXPECT_GT(in_segments, 80_MiB);
  const std::size_t in_pages = keep_one_limit_together<expandable>();
  EXPECT_LT(in_pages, 170_MiB) << "less than a page above, as without arenas";
  EXPECT_GT(in_pages, 80_MiB);
}

TEST(per_stream_threads, keep_one_limit_though_each_asks_before_the_others_take) {
  gated_device shared;
  expandable pool{gated_ref(shared), {.growth = {.limit = 150_MiB}}};
  shared.reserves.shut();
  std::vector<std::thread> running;
  for (std::uint64_t t = 0; t < 3; ++t) {
    running.emplace_back([&pool, t] { pool.deallocate(pool.try_allocate(100_MiB, stream_id{t})); });
  }
  shared.reserves.await(3);
  shared.reserves.open();
  for (auto& t : running) t.join();
  EXPECT_LT(shared.with([](auto& d) { return d.peak_used(); }), 170_MiB);
  EXPECT_NE(pool.try_allocate(140_MiB, stream_id{9}), nullptr);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(per_stream_threads, count_pages_against_the_limit_as_long_as_they_are_there) {
  gated_device shared;
  expandable pool{gated_ref(shared), {.growth = {.limit = 50_MiB}}};
  void* const first = pool.allocate(30_MiB, stream_id{1});
  EXPECT_EQ(pool.current_usage().reserved, 40_MiB);
  EXPECT_EQ(pool.try_allocate(5_MiB, stream_id{2}), nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 40_MiB) << "what is live keeps its pages";
  void* const second = pool.allocate(10_MiB, stream_id{2});
  EXPECT_EQ(pool.current_usage().reserved, 60_MiB) << "the last page passes the limit in part";
  EXPECT_EQ(pool.try_allocate(1, stream_id{3}), nullptr);
  pool.deallocate(first);
  void* const third = pool.allocate(20_MiB, stream_id{3});
  EXPECT_NE(third, nullptr) << "the first arena gave its pages back";
  EXPECT_EQ(pool.current_usage().reserved, 40_MiB);
  shared.with([](auto& d) { d.fail_call(3); });  // after reserve and create
  EXPECT_NE(pool.try_allocate(1, stream_id{4}), nullptr) << "the second try serves it";
  EXPECT_EQ(pool.current_usage().reserved, 42_MiB);
  EXPECT_EQ(shared.used(), 42_MiB);
  pool.deallocate(second);
  pool.deallocate(third);
  pool.trim();
  EXPECT_NE(pool.try_allocate(48_MiB, stream_id{5}), nullptr) << "of the limit nothing is lost";
}

TEST(per_stream_threads, keep_pages_within_their_arena) {
  gated_device shared;
  expandable pool{gated_ref(shared)};
  pool.deallocate(pool.allocate(40_MiB, stream_id{1}));
  pool.deallocate(pool.allocate(40_MiB, stream_id{2}));
  EXPECT_EQ(pool.current_usage().reserved, 80_MiB);
  EXPECT_EQ(shared.with([](auto& d) { return d.held().reserved; }), 2 * 1160_MiB);
  pool.trim();
  EXPECT_EQ(adaptor_tests::outstanding(shared), 0u);
}

template <typename recipe>
void get_memory_that_other_arenas_cache() {
  gated_device shared(100_MiB);
  per_stream<caching_allocator<recipe, gated_ref>> pool{gated_ref(shared)};
  for (std::uint64_t s = 0; s < 4; ++s) pool.deallocate(pool.allocate(20_MiB, stream_id{s}));
  void* const handed = pool.allocate(2_MiB, stream_id{1});
  std::thread([&] { pool.deallocate(handed); }).join();  // so that it waits for the free
  EXPECT_EQ(pool.current_usage().reserved, 80_MiB);
  void* const p = pool.allocate(90_MiB, stream_id{9});
  EXPECT_NE(p, nullptr);
  pool.deallocate(p);
  per_stream<caching_allocator<with<recipe, recover_never>, gated_ref>> unwilling{gated_ref(shared)};
  pool.trim();
  unwilling.deallocate(unwilling.allocate(90_MiB, stream_id{1}));
  EXPECT_EQ(unwilling.try_allocate(90_MiB, stream_id{2}), nullptr);
}
TEST(per_stream_threads, get_memory_that_other_arenas_cache) {
  get_memory_that_other_arenas_cache<pytorch<>>();
  get_memory_that_other_arenas_cache<pytorch_family::expandable>();
}

TEST(per_stream_threads, share_arenas_if_there_are_many_streams) {
  per_stream<caching_allocator<pytorch<>, simulated_device>> pool{
      simulated_device{simulated_device::options{.capacity = 1000_GiB}}};
  for (std::uint64_t s = 0; s < by_day(2'000u, 10'000u); ++s)
    pool.deallocate(pool.allocate(1_KiB, stream_id{s * 64}));
  EXPECT_LE(pool.arena_count(), pool.max_arenas);
  EXPECT_GT(pool.arena_count(), 200u);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  const std::size_t before = pool.metadata_bytes();
  for (std::uint64_t s = 0; s < by_day(2'000u, 10'000u); ++s) {
    pool.deallocate(pool.allocate(1_KiB, stream_id{s * 64 + 1'000'000}));
    if (s % 100 == 0) pool.trim();
  }
  pool.trim();
  EXPECT_LE(pool.metadata_bytes(), before + 64_KiB);
  EXPECT_LT(before, 32_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(per_stream_threads, put_streams_that_share_blocks_into_one_arena) {
  per_stream<caching_allocator<with<pytorch<>, reuse_immediately>, simulated_device>> pool;
  void* const p = pool.allocate(1_KiB, stream_id{1});
  pool.deallocate(p);
  EXPECT_EQ(pool.allocate(1_KiB, stream_id{2}), p);
  EXPECT_EQ(pool.arena_count(), 1u);
}

TEST(per_stream_threads, release_memory_that_cannot_be_registered) {
  simulated_device shared{simulated_device::options{.capacity = 500'000_GiB}};
  per_stream<caching_allocator<pytorch<>, provider_ref<simulated_device>>> pool{provider_ref(shared)};
  EXPECT_EQ(pool.try_allocate(200'000_GiB), nullptr);
  EXPECT_EQ(shared.used(), 0u);
  EXPECT_GT(shared.calls().release, 0u);
  void* const p = pool.allocate(1_KiB);  // its part of the budget is free again
  pool.deallocate(p);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(per_stream_threads, may_use_the_allocator_in_callbacks_under_pressure) {
  adaptor_tests::use_the_allocator_under_pressure<torch>();
}

struct tally {
  std::size_t events = 0;
  void on(const allocator_event&) noexcept { ++events; }
};
TEST(per_stream_threads, report_to_one_observer) {
  gated_device shared;
  per_stream<caching_allocator<pytorch<>, gated_ref, extension::observer<tally>>> pool{gated_ref(shared)};
  std::vector<std::thread> running;
  for (std::uint64_t t = 0; t < 4; ++t) {
    running.emplace_back([&pool, t] {
      for (int i = 0; i < 1000; ++i) pool.deallocate(pool.allocate(1_KiB, stream_id{t}));
    });
  }
  for (auto& t : running) t.join();
  EXPECT_EQ(pool.get<extension::observer<tally>>().with([](tally& t) { return t.events; }),
            4u + 4 * 3 * 1000);
}

TEST(per_stream_threads, explain_out_of_memory_with_the_numbers_of_all_arenas) {
  gated_device shared(64_MiB);
  torch pool{gated_ref(shared)};
  (void)pool.allocate(5_MiB, stream_id{1});
  (void)pool.allocate(2_MiB, stream_id{2});
  void* const own = pool.allocate(12_MiB, stream_id{3});
  try {
    (void)pool.allocate(18_MiB, stream_id{3});
    FAIL();
  } catch (const out_of_memory& error) {
    const oom_report explanation = explain(pool, error.requested(), error.stream());
    const oom_report& report = explanation;
    EXPECT_EQ(error.numbers().now, pool.current_usage());
    EXPECT_EQ(report.stream, stream_id{3});
    EXPECT_EQ(report.segment, 18_MiB);
    EXPECT_EQ(report.now, pool.current_usage());
    EXPECT_EQ(report.now.reserved, 52_MiB);
    EXPECT_EQ(report.room(), 12_MiB);
    EXPECT_EQ(report.elsewhere, 33_MiB);
    EXPECT_EQ(report.non_releasable, 33_MiB);
    EXPECT_EQ(report.non_releasable_units, 2u);
    EXPECT_EQ(report.units[0].bytes, 18_MiB);
    EXPECT_EQ(report.units[1].bytes, 15_MiB);
    EXPECT_EQ(report.largest.bytes, 0u) << "in its own arena";
    EXPECT_FALSE(report.device_is_limited);
    EXPECT_NE(
        std::string_view(explanation.text().c_str()).find("33.00 MiB of the cache belong to other arenas"),
        std::string_view::npos)
        << explanation.text().c_str();
    for (std::size_t i = 0; i < report.hint_count; ++i)
      EXPECT_NE(report.hints[i].what, oom_report::hint::share_arenas);
  }
  pool.deallocate(own);
  EXPECT_NE(pool.allocate(18_MiB, stream_id{3}), nullptr);
}

TEST(per_stream_threads, have_the_peak_of_the_device_bytes_of_all_arenas) {
  per_stream<caching_allocator<pytorch<>, simulated_device>> pool;
  for (std::size_t arena = 0; arena < 5; ++arena) pool.deallocate(pool.allocate(70_GiB, stream_id{arena}));
  const auto report = pool.statistics();
  EXPECT_EQ(report.device_bytes.peak, static_cast<std::int64_t>(70_GiB));
  EXPECT_EQ(report.all.reserved_bytes.peak, static_cast<std::int64_t>(70_GiB));
  pool.trim();
  pool.reset_peak_statistics();
  EXPECT_EQ(pool.statistics().device_bytes.peak, 0);
}

TEST(per_stream_threads, a_limit_of_growth_is_no_limit_of_the_device) {
  gated_device shared(100_MiB);
  torch pool{gated_ref(shared), {.growth = {.limit = 40_MiB}}};
  (void)pool.allocate(30_MiB, stream_id{1});
  const oom_report report = explain(pool, 20_MiB, stream_id{2});
  EXPECT_EQ(report.now.limit, 40_MiB);
  ASSERT_EQ(report.hint_count, 1u);
  EXPECT_EQ(report.hints[0].what, oom_report::hint::raise_limit);
}

TEST(per_stream_threads, suggest_one_lock_if_blocks_may_change_streams) {
  gated_device shared(20_MiB);
  per_stream<caching_allocator<cuda_async, gated_ref>> pool{gated_ref(shared)};
  pool.deallocate(pool.allocate(20_MiB, stream_id{1}));
  void* const kept = pool.allocate(1_MiB, stream_id{1});
  const oom_report report = explain(pool, 10_MiB, stream_id{2});
  EXPECT_EQ(pool.try_allocate(10_MiB, stream_id{2}), nullptr);
  ASSERT_GT(report.hint_count, 0u);
  EXPECT_EQ(report.hints[0].what, oom_report::hint::share_arenas);
  EXPECT_EQ(report.hints[0].bytes, 19_MiB);
  pool.deallocate(kept);
  locked<caching_allocator<cuda_async, gated_ref>> together{gated_ref(shared)};
  pool.trim();
  together.deallocate(together.allocate(20_MiB, stream_id{1}));
  (void)together.allocate(1_MiB, stream_id{1});
  EXPECT_NE(together.try_allocate(10_MiB, stream_id{2}), nullptr) << "the advice is true";
}

}  // namespace
