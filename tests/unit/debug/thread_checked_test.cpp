// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/debug/leak_checked.hpp>
#include <tessera/debug/thread_checked.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/interop/paddle_passes.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using plain = caching_allocator<pytorch<>, simulated_device>;
using checked = thread_checked<plain>;

template <typename F>
void elsewhere(F f) {
  std::thread(f).join();
}

TEST(thread_checked_threads, serves_its_thread_as_the_allocator_does) {
  checked pool(simulated_device({.capacity = 1_GiB}));
  void* const p = pool.allocate(5_MiB, stream_id{1});
  EXPECT_TRUE(pool.record_stream(p, stream_id{2}));
  EXPECT_EQ(pool.current_usage().allocated, 5_MiB);
  pool.deallocate(p, 5_MiB);
  const block_handle h = pool.allocate_by_handle(5_MiB);
  EXPECT_TRUE(pool.record_stream(h, stream_id{2}));
  pool.deallocate(h);
  EXPECT_FALSE(pool.try_deallocate(p));
  EXPECT_EQ(pool.try_allocate(2_GiB), nullptr);
  EXPECT_THROW((void)pool.allocate(2_GiB), out_of_memory);
  EXPECT_EQ(explain(pool, 2_GiB).requested, 2_GiB);
  EXPECT_EQ(pool.statistics().num_ooms, 2u);
  pool.reset_peak_statistics(), pool.reset_accumulated_statistics();
  EXPECT_EQ(pool.statistics().num_ooms, 0u);
  EXPECT_GT(pool.metadata_bytes(), 0u);
  EXPECT_TRUE(pool.on_pressure([](void*) noexcept { return false; }, nullptr));
  EXPECT_EQ(pool.provider().capacity(), 1_GiB);
  pool.policies().split.max = 64_MiB;
  {
    const unique_block block = make_block(pool, 1000);
  }
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

/// A front end that locks may give its provider, too.
struct locked_with_provider : locked<plain> {
  simulated_device& provider() noexcept;
};
static_assert(std::is_same_v<detail::mutex_like_in<plain>, detail::no_mutex>);
static_assert(std::is_same_v<detail::mutex_like_in<thread_checked<plain>>, std::mutex>);
static_assert(std::is_same_v<detail::mutex_like_in<locked_with_provider>, std::mutex>);
template <typename Pool>
concept gives_policies = requires(Pool& pool) {
  pool.policies();
  pool.provider();
};
static_assert(gives_policies<checked> && !gives_policies<thread_checked<locked<plain>>>);

TEST(thread_checked_threads, goes_inside_a_planned) {
  planned<thread_checked<locked<plain>>> pool(plan::memory_plan{});
  pool.deallocate(pool.allocate(5_MiB));
  EXPECT_EQ(pool.current_usage().cached, 20_MiB);
}

TEST(thread_checked_threads, belongs_to_the_first_user_until_it_is_passed_on) {
  checked pool;  // created here, used there
  void* p = nullptr;
  elsewhere([&] { p = pool.allocate(5_MiB), pool.detach_from_thread(); });
  pool.deallocate(p);
  pool.detach_from_thread();
  elsewhere([&] { p = pool.allocate(5_MiB), pool.deallocate(p), pool.detach_from_thread(); });
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(thread_checked_threads, may_be_destroyed_in_any_thread) {
  auto* const pool = new checked;
  pool->deallocate(pool->allocate(5_MiB));
  elsewhere([pool] { delete pool; });
  SUCCEED();
}

/// Counts the blocks that are reported to it.
struct count_live {
  std::size_t* live = nullptr;
  void operator()(const live_blocks& left) const { *live += left.count; }
};
template <typename Pool>
std::size_t left_where_it_ends_elsewhere() {
  std::size_t live = 0;
  std::optional<Pool> pool(std::in_place);
  if constexpr (requires { pool->report(); }) {
    pool->report().live = &live;
  } else {
    pool->inner().report().live = &live;
  }
  pool->deallocate(pool->allocate(5_MiB));
  (void)pool->allocate(5_MiB);
  elsewhere([&] { pool.reset(); });
  return live;
}
TEST(thread_checked_threads, reports_leaks_when_destroyed_in_any_thread) {
  EXPECT_EQ((left_where_it_ends_elsewhere<leak_checked<checked, count_live>>()), 1u);
  EXPECT_EQ((left_where_it_ends_elsewhere<thread_checked<leak_checked<plain, count_live>>>()), 1u);
}

TEST(thread_checked_threads, passes_a_block_on) {
  checked pool;
  void* input = pool.allocate(5_MiB);
  void* const at = input;
  EXPECT_EQ(allocate_in_place(pool, input, 5_MiB), at);
  pool.deallocate(at);
}

// Each call that uses the allocator.
TEST(thread_checked_death, names_both_threads) {
  checked pool;
  void* const p = pool.allocate(5_MiB);
  const block_handle h = pool.allocate_by_handle(5_MiB);
  constexpr const char* words =
      "tessera: thread_checked: thread [0-9]+ uses an allocator of thread [0-9]+, which has not detached "
      "from it";
  const auto dies = [&](auto use) { EXPECT_DEATH(elsewhere([&] { use(pool); }), words); };
  dies([](checked& c) { (void)c.allocate(1); });
  dies([](checked& c) { (void)c.try_allocate(1); });
  dies([](checked& c) { (void)c.allocate_by_handle(1); });
  dies([p](checked& c) { c.deallocate(p); });
  dies([p](checked& c) { c.deallocate(p, 5_MiB); });
  dies([h](checked& c) { c.deallocate(h); });
  dies([p](checked& c) { (void)c.try_deallocate(p); });
  dies([p](checked& c) { (void)c.record_stream(p, {}); });
  dies([h](checked& c) { (void)c.record_stream(h, {}); });
  dies([p](checked& c) { (void)c.try_record_stream(p, {}); });
  dies([p](checked& c) {
    void* donor = p;
    (void)allocate_in_place(c, donor, 5_MiB);
  });
  dies([](checked& c) { c.trim(); });
  dies([](checked& c) { (void)c.current_usage(); });
  dies([](checked& c) { (void)c.provider(); });
  dies([](checked& c) { c.detach_from_thread(); });  // which the other one must report
  pool.deallocate(p), pool.deallocate(h);
}

}  // namespace
