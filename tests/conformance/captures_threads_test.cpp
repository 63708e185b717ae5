// SPDX-License-Identifier: Apache-2.0
// A thread begins a capture while a call of another thread waits for the device, with its mutex unlocked. That call then
// asks the device for nothing more.
#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/extension/faulty_memory.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

#include "../unit/plan/recorded_steps.hpp"

namespace {

using namespace tessera;

/// What the hook below saw.
struct call_log {
  std::atomic<bool> waits = false;     // whether a call has begun to wait
  std::atomic<bool> captures = false;  // whether the capture has begun
  std::mutex mutex;
  std::string late;                  // the calls since then
  std::function<void()> in_release;  // called in the first call of release()
};
/// Notes the calls that are forbidden during a capture.
struct log_calls {
  static constexpr bool is_thread_safe = true;
  call_log* log;

  template <typename F>
  auto operator()(provider::provider_call call, F f) noexcept {
    using provider::provider_call;
    const bool waits = call == provider_call::wait || call == provider_call::synchronize;
    const bool asks = waits || call == provider_call::record || call == provider_call::query;
    const bool returns_memory = call == provider_call::release || call == provider_call::unmap ||
                                call == provider_call::unreserve || call == provider_call::reclaim;
    if (log->captures && (asks || returns_memory)) {
      const std::lock_guard lock(log->mutex);
      log->late.append(call.name()).append(" ");
    }
    if (waits) log->waits = true;
    if (call == provider_call::release && log->in_release) std::exchange(log->in_release, {})();
    return f();
  }
};
using device = provider::provider_adaptor<host_pinned, log_calls>;

template <typename Recipe>
using over = caching_allocator<Recipe, device, extension::private_pools>;

template <typename Allocator>
struct captures_of_threads : testing::Test {
  captures_of_threads() {
    for (int i = 0; i < 10; ++i) of.step({5_MiB, 7_MiB});
    made = plan_tests::make(of.made);
  }
  [[nodiscard]] Allocator make() {
    const device on(host, {&log});
    if constexpr (requires { Allocator(made.view(), on); }) {
      return Allocator(made.view(), on);
    } else {
      return Allocator(on);
    }
  }
  /// Where the blocks of a test lie.
  enum class place { plan, plan_with_streams, allocator, pool };
  /// Frees blocks; streams are recorded for all but the last. Then calls f(allocator, pool of the blocks), which waits for
  /// these streams. Work of the first of them begins a capture.
  template <typename F>
  void check(place in, F f) {
    Allocator memory = make();
    auto pools = memory.template get<extension::private_pools>();
    extension::private_pool captured(memory);
    std::optional<extension::private_pool<Allocator>> own(std::in_place, memory);
    const pool_id own_id = own->id();
    std::vector<void*> blocks{memory.allocate(5_MiB)};
    if (in == place::plan_with_streams) blocks.push_back(memory.allocate(7_MiB));
    if (in == place::allocator || in == place::pool) {
      std::optional<extension::pool_scope<Allocator>> scope;
      if (in == place::pool) scope.emplace(*own, extension::stream_filter{}, extension::scope_kind::plain);
      for (const std::size_t bytes : {3_MiB, 7_MiB, 30_MiB}) blocks.push_back(memory.allocate(bytes, one));
    }
    std::atomic<bool> is_over = false;
    std::once_flag once;
    for (const stream_id stream : {stream_id{}, one, two, three}) {
      host.submit(stream, [&] {
        while (!log.waits && !is_over) std::this_thread::yield();
        std::call_once(once, [&] {
          EXPECT_FALSE(is_over) << "it waited for nothing";
          EXPECT_TRUE(pools.open(captured.id(), extension::scope_kind::capture));
          log.captures = true;
        });
      });
    }
    for (void* const p : blocks) {
      EXPECT_TRUE(p == blocks.back() || (memory.record_stream(p, two) && memory.record_stream(p, three)));
      memory.deallocate(p);
    }
    f(memory, own);
    is_over = true;
    for (const stream_id stream : {stream_id{}, one, two, three}) host.synchronize(stream);
    EXPECT_EQ(log.late, "");
    log.captures = false;
    EXPECT_TRUE(pools.close(captured.id()));
    EXPECT_EQ(memory.audit(), nullptr);
    own.reset();
    memory.trim();
    pools.trim(own_id);
    EXPECT_EQ(memory.current_usage().reserved, 0u);
  }

  plan_tests::recorder of;
  plan::made_plan made;
  call_log log;
  host_pinned host{host_pinned::options{.capacity = 100_MiB, .pin = host_pinned::pinning::never}};
  const stream_id one = host.create_stream(), two = host.create_stream(), three = host.create_stream();
};

using subjects =
    testing::Types<concurrent::locked<over<pytorch<>>>, concurrent::locked<over<pytorch_family::expandable>>,
                   concurrent::locked<over<stitched>>, concurrent::locked<over<cuda_async>>,
                   concurrent::per_stream<over<pytorch<>>>,
                   concurrent::background_reclaiming<over<pytorch<>>>,
                   plan::planned<concurrent::locked<over<pytorch<>>>>,
                   plan::planned<concurrent::locked<over<pytorch_family::expandable>>>>;
TYPED_TEST_SUITE(captures_of_threads, subjects);

TYPED_TEST(captures_of_threads, end_a_trim) {
  this->check(TestFixture::place::allocator, [](auto& memory, auto&) { memory.trim(); });
}
TYPED_TEST(captures_of_threads, end_the_recovery_of_a_request) {
  this->check(TestFixture::place::allocator,
              [](auto& memory, auto&) { memory.deallocate(memory.try_allocate(90_MiB)); });
}

// per_stream changes one pool at a time, so that a capture begins after the trim of a pool.
template <typename Allocator>
using captures_of_threads_with_pools = captures_of_threads<Allocator>;
using with_pools =
    testing::Types<concurrent::locked<over<pytorch<>>>, concurrent::locked<over<stitched>>,
                   concurrent::locked<over<cuda_async>>, concurrent::background_reclaiming<over<pytorch<>>>>;
TYPED_TEST_SUITE(captures_of_threads_with_pools, with_pools);

TYPED_TEST(captures_of_threads_with_pools, end_a_trim_of_a_pool) {
  this->check(TestFixture::place::pool, [](auto& memory, auto& own) {
    const pool_id id = own->id();
    own.reset();
    memory.template get<extension::private_pools>().trim(id);
  });
}

template <typename Allocator>
using captures_of_threads_with_ranges = captures_of_threads<Allocator>;
using with_ranges = testing::Types<
    concurrent::locked<caching_allocator<pytorch_family::expandable, device, extension::private_pools,
                                         extension::sleep_mode>>,
    concurrent::locked<caching_allocator<stitched, device, extension::private_pools, extension::sleep_mode>>>;
TYPED_TEST_SUITE(captures_of_threads_with_ranges, with_ranges);

TYPED_TEST(captures_of_threads_with_ranges, end_the_sleep_of_a_pool) {
  this->check(TestFixture::place::pool, [](auto& memory, auto& own) {
    auto sleep = memory.template get<extension::sleep_mode>();
    EXPECT_FALSE(sleep.sleep(own->id(), extension::sleep_contents::discard));
  });
}

template <typename Allocator>
using captures_of_threads_with_plans = captures_of_threads<Allocator>;
using with_plans = testing::Types<plan::planned<concurrent::locked<over<pytorch<>>>>,
                                  plan::planned<concurrent::locked<over<pytorch_family::expandable>>>>;
TYPED_TEST_SUITE(captures_of_threads_with_plans, with_plans);

TYPED_TEST(captures_of_threads_with_plans, end_a_trim_that_waits_for_streams_of_the_plan) {
  this->check(TestFixture::place::plan, [](auto& memory, auto&) { memory.trim(); });
}
TYPED_TEST(captures_of_threads_with_plans, end_a_trim_that_waits_for_recorded_streams) {
  this->check(TestFixture::place::plan_with_streams, [](auto& memory, auto&) { memory.trim(); });
}
TYPED_TEST(captures_of_threads_with_plans, end_a_request_that_waits_for_places) {
  this->check(TestFixture::place::plan_with_streams,
              [](auto& memory, auto&) { memory.deallocate(memory.try_allocate(98_MiB)); });
}
TYPED_TEST(captures_of_threads_with_plans, let_a_plan_step_aside) {
  this->check(TestFixture::place::plan_with_streams, [](auto& memory, auto&) {
    const auto is_aside = [&memory] { return memory.statistics().by_plan.is_aside; };
    for (int i = 0; i < 1000 && !is_aside(); ++i) memory.deallocate(memory.allocate(1000));
    EXPECT_TRUE(is_aside());
  });
}

/// Its release() waits for the device, as that of CUDA does. So the allocator itself waits for nothing.
struct waiting_device : device {
  using device::device;
  static constexpr bool is_thread_safe = device::inner_is_thread_safe;
  static constexpr bool release_waits = true;
};

template <typename Recipe>
struct captures_of_threads_during_a_release : testing::Test {};
using with_releases = testing::Types<pytorch<>, torch_npu<>, cuda_async>;
TYPED_TEST_SUITE(captures_of_threads_during_a_release, with_releases);

// A capture begins in the first release of a trim.
TYPED_TEST(captures_of_threads_during_a_release, end_a_trim_with_and_without_faulty_segments) {
  for (const bool is_faulty : {false, true}) {
    call_log log;
    host_pinned host(host_pinned::options{.capacity = 200_MiB, .pin = host_pinned::pinning::never});
    using allocator =
        caching_allocator<TypeParam, waiting_device, extension::private_pools, extension::faulty_memory>;
    concurrent::locked<allocator> memory(waiting_device(host, {&log}));
    extension::private_pool pool(memory);
    std::vector<void*> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(memory.allocate(30_MiB));
    if (is_faulty) {
      for (void* const p : blocks)
        ASSERT_TRUE(memory.template get<extension::faulty_memory>().mark_faulty(p, 64));
    }
    for (void* const p : blocks) memory.deallocate(p);
    const std::size_t before = memory.current_usage().reserved;
    auto pools = memory.template get<extension::private_pools>();
    log.in_release = [&] {
      std::thread([&] {
        log.captures = static_cast<bool>(pools.open(pool.id(), extension::scope_kind::capture));
      }).join();
    };
    memory.trim();
    EXPECT_TRUE(log.captures);
    EXPECT_EQ(log.late, "");
    EXPECT_EQ(memory.current_usage().reserved, before / 4 * 3);
    log.captures = false;
    EXPECT_TRUE(pools.close(pool.id()));
    memory.trim();
    EXPECT_EQ(memory.current_usage().reserved, 0u);
  }
}

}  // namespace
