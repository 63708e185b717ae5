// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../concurrent/devices.hpp"
#include "../concurrent/stress.hpp"

namespace {

using namespace tessera;
using torch = caching_allocator<pytorch<>, simulated_device>;
using shared_torch = shared_allocator<torch>;

static_assert(std::is_nothrow_copy_constructible_v<shared_torch> &&
              std::is_nothrow_copy_assignable_v<shared_torch>);
static_assert(std::is_nothrow_move_constructible_v<shared_torch> &&
              std::is_nothrow_move_assignable_v<shared_torch>);

TEST(shared_allocator, lives_as_long_as_its_last_copy) {
  simulated_device device;
  using pool_type = caching_allocator<pytorch<>, provider_ref<simulated_device>>;
  auto first = shared_allocator<pool_type>::make(provider_ref(device));
  shared_allocator<pool_type> second;
  {
    const auto third = first;
    second = third;
  }
  void* const p = first.allocate(5_MiB, stream_id{1});
  first = {};
  EXPECT_EQ(device.used(), 20_MiB);
  second.deallocate(p, 5_MiB);
  EXPECT_EQ(second->current_usage().cached, 20_MiB);
  auto moved = std::move(second);
  EXPECT_EQ(device.used(), 20_MiB);
  second = moved;
  first = second;
  EXPECT_EQ(first, moved);
  {
    auto last = std::exchange(first, {});
    second = {};
  }
  EXPECT_EQ(device.used(), 20_MiB);
  moved = {};
  EXPECT_EQ(device.used(), 0u);
}

TEST(shared_allocator, is_equal_to_copies) {
  const auto a = shared_allocator<torch>::make();
  const auto b = shared_allocator<torch>::make();
  const shared_torch same = a, none;
  EXPECT_EQ(a, same);
  EXPECT_NE(a, b);
  EXPECT_NE(a, none);
  EXPECT_EQ(none, shared_torch{});
  EXPECT_EQ(&a.get(), &*same);
}

TEST(shared_allocator, has_the_calls_of_any_allocator) {
  auto pool = shared_allocator<torch>::make();
  void* const p = pool.allocate(1000, stream_id{1});
  EXPECT_TRUE(pool.record_stream(p, stream_id{2}));
  EXPECT_EQ(pool.statistics().all.allocation.current, 1);
  pool.deallocate(p, 1000);
  EXPECT_EQ(pool.current_usage().pending(), 512u * 2);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_FALSE(pool.try_deallocate(p));
  EXPECT_EQ(pool.try_allocate(0), nullptr);
  EXPECT_THROW((void)pool.allocate(max_request + 1), out_of_memory);
  const block_handle h = pool->allocate_by_handle(1000);
  pool->deallocate(h);
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.reset_accumulated_statistics();
  EXPECT_EQ(pool->statistics().num_ooms, 0u);
}

TEST(shared_allocator, is_reached_by_tools) {
  auto pool = shared_allocator<locked<caching_allocator<pytorch<>, simulated_device>>>::make();
  void* const p = pool.allocate(100);
  std::size_t live = 0;
  pool.for_each_allocator([&](auto& in) { live += in.current_usage().allocated; });
  EXPECT_EQ(live, 512u);
  EXPECT_EQ(pool.visit_provider([](auto& d) { return d.used(); }), 2_MiB);
  std::size_t settings = 0;
  pool.visit_policies([&](auto&) { ++settings; });
  EXPECT_EQ(settings, 1u);
  pool.deallocate(p);
}

TEST(shared_allocator, may_own_one_of_many) {
  using devices = per_device<locked<caching_allocator<pytorch<>, simulated_device>>>;
  std::vector<simulated_device> two;
  two.emplace_back(simulated_device::options{.device = 0});
  two.emplace_back(simulated_device::options{.device = 1});
  const auto all = std::make_shared<devices>(std::move(two));
  shared_allocator pool(std::shared_ptr<devices::front_type>(all, &all->front(1)));
  void* const p = pool.allocate(1000);
  EXPECT_EQ(all->device_of(p), 1u);
  pool.deallocate(p);
}

TEST(shared_allocator, compiles_the_example_of_its_comment) {
  using pool_type = tessera::concurrent::locked<
      tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>;
  auto pool = tessera::interop::shared_allocator<pool_type>::make();
  auto same = pool;
  same.deallocate(pool.allocate(1000));
  std::printf("%zu bytes reserved\n", pool->current_usage().reserved);
  EXPECT_EQ(pool->current_usage().cached, 2_MiB);
}

TEST(shared_allocator_death, from_an_empty_handle_aborts) {
  EXPECT_DEATH(shared_torch(std::shared_ptr<torch>()), "the pointer is null");
}

/// Each thread copies its handle, uses the copy, and destroys both while other threads still run.
template <typename Pool>
void end_with_the_last_thread() {
  adaptor_tests::gated_device device;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread> running;
    {
      const auto pool = shared_allocator<Pool>::make(adaptor_tests::gated_ref(device));
      for (std::uint64_t t = 0; t < 4; ++t) {
        running.emplace_back([given = pool, t]() mutable {
          std::vector<shared_allocator<Pool>> copies;
          for (int i = 0; i < 200; ++i) {
            copies.push_back(given);
            if (i == 100) given = {};
            if (i >= 100) given = copies.front();
            copies.back().deallocate(copies.front().allocate(1000 + t, stream_id{t}), 1000 + t);
            if (i % 3 == 0) copies.erase(copies.begin());
          }
        });
      }
    }
    for (std::thread& t : running) t.join();
    EXPECT_EQ(outstanding(device), 0u);
  }
}
TEST(shared_allocator_threads, end_it_with_the_last_of_them) {
  end_with_the_last_thread<locked<caching_allocator<pytorch<>, adaptor_tests::gated_ref>>>();
  end_with_the_last_thread<per_stream<caching_allocator<pytorch<>, adaptor_tests::gated_ref>>>();
}

TEST(shared_allocator_threads, keep_all_rules) {
  auto pool = shared_allocator<locked<caching_allocator<pytorch<>, simulated_device>>>::make();
  adaptor_tests::run_threads(pool, 4, 2000, 1_MiB);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

}  // namespace
