// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/concurrent/configured_pinned.hpp>
#include <tessera/concurrent/deferred_free_queue.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/configured.hpp>
#include <tessera/debug/oom_observed.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/interop/torch_pluggable.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "by_day.hpp"
#include "extensions.hpp"
#include "watchdog.hpp"

/// The rules for user functions that an allocator calls, and the message if a function breaks a rule.
namespace {

using namespace tessera;
using conformance::watchdog;
using device_type = simulated_device;

device_type of(std::size_t capacity) { return device_type({.capacity = capacity}); }
constexpr std::size_t room = 120_MiB;

template <typename Pool>
struct made_of_a_device {
  Pool pool{of(room)};
};
template <typename Pool>
struct single_threaded : made_of_a_device<Pool> {
  static constexpr std::uint64_t threads = 1;
};
template <typename Pool>
struct in_three_threads : made_of_a_device<Pool> {
  static constexpr std::uint64_t threads = 3;
};
template <typename Pool>
struct waiting_allocator {
  static constexpr std::uint64_t threads = 3;
  waiting<Pool> pool{std::chrono::milliseconds(1), of(room)};
};
struct under_settings {
  static constexpr std::uint64_t threads = 3;
  configured<pytorch_family, per_stream<caching_allocator<pytorch<>, device_type>>> pool{{}, of(room)};
};
struct for_the_host {
  static constexpr std::uint64_t threads = 3;
  configured_pinned<pytorch_family::pinned_family, device_type> pool{{.pinned_use_background_threads = true},
                                                                     of(room)};
};
struct in_a_copy {
  static constexpr std::uint64_t threads = 3;
  shared_allocator<locked<caching_allocator<pytorch<>, device_type>>> pool =
      shared_allocator<locked<caching_allocator<pytorch<>, device_type>>>::make(of(room));
};

template <typename Pool>
class callbacks_in_threads : public testing::Test {};
using pools =
    types_by_day<9, single_threaded<caching_allocator<stitched, device_type>>,
                 in_three_threads<locked<caching_allocator<pytorch<>, device_type>>>,
                 in_three_threads<locked<caching_allocator<cuda_async, device_type>>>,
                 in_three_threads<per_stream<caching_allocator<pytorch_family::expandable, device_type>>>,
                 in_three_threads<background_reclaiming<caching_allocator<pytorch<>, device_type>>>,
                 waiting_allocator<locked<caching_allocator<pytorch<>, device_type>>>, under_settings,
                 for_the_host, in_a_copy, single_threaded<caching_allocator<pytorch<>, device_type>>,
                 single_threaded<caching_allocator<pytorch_family::expandable, device_type>>,
                 single_threaded<caching_allocator<cuda_async, device_type>>,
                 in_three_threads<locked<caching_allocator<pytorch_family::expandable, device_type>>>,
                 in_three_threads<locked<caching_allocator<stitched, device_type>>>,
                 in_three_threads<per_stream<caching_allocator<pytorch<>, device_type>>>,
                 waiting_allocator<per_stream<caching_allocator<pytorch<>, device_type>>>>;
TYPED_TEST_SUITE(callbacks_in_threads, pools);

/// Does everything that a function given to on_pressure may do with its allocator.
template <typename Pool>
struct all_that_is_allowed {
  Pool& pool;
  std::atomic<int> calls{0}, second_calls{0};

  static bool call(void* context) noexcept {
    auto& self = *static_cast<all_that_is_allowed*>(context);
    Pool& pool = self.pool;
    void* const small = pool.try_allocate(1000, stream_id{7});
    void* const large = pool.try_allocate(30_MiB, stream_id{8});
    if (small != nullptr) (void)pool.record_stream(small, stream_id{9});
    pool.deallocate(large);
    pool.deallocate(small);
    EXPECT_STREQ(pool.audit(), nullptr);
    const usage now = pool.current_usage();
    EXPECT_EQ(now.active + now.cached, now.reserved);
    (void)pool.statistics();
    pool.reset_peak_statistics();
    EXPECT_GT(explain(pool, 1_GiB).wanted, 0u);
    pool.visit_policies([](auto& settings) { settings.growth.limit = unlimited; });
    pool.visit_provider([](auto& device) { EXPECT_GT(device.capacity(), 0u); });
    EXPECT_TRUE(self.calls++ > 0 || pool.on_pressure(&second, context));
    self.calls % 2 == 0 ? pool.trim() : pool.trim(40_MiB);
    return true;
  }
  static bool second(void* context) noexcept {
    return ++static_cast<all_that_is_allowed*>(context)->second_calls, false;
  }
};

TYPED_TEST(callbacks_in_threads, use_the_allocator_under_pressure) {
  const watchdog guard("a callback of on_pressure uses the allocator");
  TypeParam made;
  auto& pool = made.pool;
  using pool_type = std::remove_reference_t<decltype(pool)>;
  all_that_is_allowed<pool_type> above{pool};
  ASSERT_TRUE(pool.on_pressure(&above.call, &above));
  std::vector<std::thread> running;
  for (std::uint64_t t = 0; t < TypeParam::threads; ++t) {
    running.emplace_back([&pool, t] {
      for (std::size_t i = 1; i < 60; ++i) {
        void* const held = pool.try_allocate(i % 3 * 12_MiB + 512, stream_id{t});
        pool.deallocate(pool.try_allocate(i % 5 * 14_MiB + 512, stream_id{t}));
        pool.deallocate(held);
      }
    });
  }
  for (auto& t : running) t.join();
  EXPECT_GT(above.calls, 0);
  EXPECT_GT(above.second_calls, 0);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(callbacks_in_threads, a_collector_frees_under_pressure) {
  const watchdog guard("a queue is flushed under pressure");
  locked<caching_allocator<pytorch<>, device_type>> pool{of(100_MiB)};
  deferred_free_queue garbage(pool, {.threshold = unlimited});
  for (int i = 0; i < 3; ++i) garbage.push(pool.allocate(30_MiB), 30_MiB);
  ASSERT_TRUE(pool.on_pressure(
      [](void* context) noexcept {
        auto& kept = *static_cast<decltype(garbage)*>(context);
        const bool any = kept.queued_bytes() > 0;
        kept.flush();
        return any;
      },
      &garbage));
  void* const p = pool.try_allocate(90_MiB);
  EXPECT_NE(p, nullptr);
  pool.deallocate(p);
}

TEST(callbacks_in_threads, a_round_wakes_its_worker) {
  const watchdog guard("a round wakes its worker");
  struct rounds {
    detail::round_worker worker{&one, this, std::chrono::microseconds(0)};
    std::atomic<int> made{0};
    static bool one(void* context) noexcept {
      auto& self = *static_cast<rounds*>(context);
      EXPECT_TRUE(self.worker.is_running() || self.made == 0);
      if (++self.made < 100) self.worker.wake();
      return false;
    }
  } all;
  all.worker.wake();
  while (all.made < 100) std::this_thread::yield();
}

TEST(callbacks_in_threads, a_function_given_a_device_for_many_threads_uses_the_allocator) {
  const watchdog guard("visit_provider of a provider for many threads");
  const auto use = [](auto&& pool) {
    pool.visit_provider([&pool](host_pinned& device) {
      EXPECT_GT(device.capacity(), 0u);
      pool.deallocate(pool.allocate(1_MiB));
      pool.trim();
    });
  };
  const auto memory = [] { return host_pinned({.capacity = 64_MiB, .pin = host_pinned::pinning::never}); };
  use(locked<caching_allocator<pytorch<>, host_pinned>>{memory()});
  use(per_stream<caching_allocator<pytorch<>, host_pinned>>{memory()});
  use(background_reclaiming<caching_allocator<pytorch<>, host_pinned>>{memory()});
}

TEST(callbacks_in_threads, a_function_given_a_tag_uses_the_allocator) {
  tagged<locked<caching_allocator<pytorch<>, simulated_device>>> pool;
  void* const p = pool.allocate(1000, block_tag{1});
  int calls = 0;
  pool.for_each_tag([&](block_tag tag, const tag_usage& now) {
    ++calls;
    pool.deallocate(pool.allocate(2000, tag));
    pool.set_tag(p, block_tag{2});
    EXPECT_EQ(now.bytes, 1000u);
  });
  EXPECT_EQ(calls, 1) << "the numbers are those before the calls";
}

TEST(callbacks_in_threads, a_function_under_one_lock_takes_later_locks) {
  const watchdog guard("visit_provider within visit_policies");
  const auto use = [](auto&& pool) {
    std::size_t seen = 0;
    pool.for_each_allocator([&](auto& inner) { inner.trim(), ++seen; });  // this calls the device
    pool.deallocate(pool.allocate(5_MiB));
    pool.for_each_allocator([&](auto& inner) {
      pool.visit_provider([&](auto& device) { seen += device.used(); });
      inner.trim();
    });
    EXPECT_GE(seen, 20_MiB);
    EXPECT_EQ(pool.current_usage().reserved, 0u);
  };
  use(locked<caching_allocator<pytorch<>, device_type>>{of(room)});
}

/// Work on a stream of the host. A thread waits for its events meanwhile.
template <typename Pool>
void free_from_work_on_a_stream() {
  const watchdog guard("work on a stream frees");
  host_pinned memory({.capacity = 64_MiB, .pin = host_pinned::pinning::never});
  Pool pool{provider_ref(memory)};
  const stream_id side = memory.create_stream();
  for (int i = 0; i < 200; ++i) {
    void* const read = pool.allocate(1_MiB);
    void* const freed = pool.allocate(1_MiB);
    EXPECT_TRUE(pool.record_stream(read, side));
    memory.submit(side, [&pool, freed] { pool.deallocate(freed); });
    pool.deallocate(read);
    pool.trim();  // this waits for that work
  }
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}
TEST(callbacks_in_threads, work_on_a_stream_frees_blocks_of_segments) {
  free_from_work_on_a_stream<locked<caching_allocator<pytorch<>, provider_ref<host_pinned>>>>();
  free_from_work_on_a_stream<per_stream<caching_allocator<pytorch<>, provider_ref<host_pinned>>>>();
}

/// An observer that uses the allocator that it is given.
struct meddling {
  void (*use)(void* pool) = nullptr;
  void* pool = nullptr;
  void on(const allocator_event& event) noexcept {
    if (use != nullptr && event.what == allocator_event::action::free_completed) use(pool);
  }
};

class callbacks_in_threads_death : public testing::Test {
 protected:
  callbacks_in_threads_death() { testing::FLAGS_gtest_death_test_style = "threadsafe"; }

  template <typename Pool>
  static void meddle(void (*use)(void* pool)) {
    const watchdog guard("a sink uses its allocator", std::chrono::seconds(60));
    Pool pool{of(room)};
    with_observer(pool, [&](meddling& observer) { observer = {use, &pool}; });
    pool.deallocate(pool.allocate(1000));
    pool.trim();
  }
  template <typename Pool>
  static void expect_that_no_sink_uses() {
    constexpr const char* rule = "an observer must not use the allocator that calls it";
    EXPECT_DEATH(meddle<Pool>([](void* p) { (void)static_cast<Pool*>(p)->try_allocate(1); }), rule);
    EXPECT_DEATH(meddle<Pool>([](void* p) { (void)static_cast<Pool*>(p)->try_allocate(1, stream_id{2}); }),
                 rule);
  }
  template <typename Pool, typename F>
  static void expect_that_nobody_uses(F lend, const char* rule) {
    EXPECT_DEATH(
        {
          const watchdog guard("a function uses the allocator that lends", std::chrono::seconds(60));
          Pool pool{of(room)};
          pool.deallocate(pool.allocate(1000));
          lend(pool, [&pool](auto&) { (void)pool.try_allocate(1000); });
        },
        rule);
  }
};

TEST_F(callbacks_in_threads_death, no_observer_uses_its_allocator) {
  expect_that_no_sink_uses<caching_allocator<pytorch<>, device_type, extension::observer<meddling>>>();
  expect_that_no_sink_uses<
      locked<caching_allocator<pytorch<>, device_type, extension::observer<meddling>>>>();
  expect_that_no_sink_uses<
      per_stream<caching_allocator<pytorch<>, device_type, extension::observer<meddling>>>>();
  EXPECT_DEATH(
      (meddle<background_reclaiming<
           caching_allocator<pytorch<>, device_type, extension::observer<meddling>>>>([](void* p) {
        (void)static_cast<
            background_reclaiming<caching_allocator<pytorch<>, device_type, extension::observer<meddling>>>*>(
            p)
            ->current_usage();
      })),
      "an observer must not use the allocator that calls it");
}

/// Uses an allocator that is made later.
struct question {
  void* (*ask)(void* pool) = nullptr;
  void* pool = nullptr;
  void* operator()() const noexcept { return ask != nullptr ? ask(pool) : nullptr; }
};
template <typename Pool>
void* ask_for_much(void* pool) {
  return static_cast<Pool*>(pool)->try_allocate(1_GiB);
}

struct asking_clock {
  const question* asks;
  std::uint64_t operator()() const noexcept { return (*asks)() != nullptr; }
};
void let_a_clock_ask() {
  const watchdog guard("a clock uses the allocator", std::chrono::seconds(60));
  using pool_type =
      locked<caching_allocator<pytorch<>, device_type, extension::observer<history<asking_clock>>>>;
  question asks;
  pool_type pool{of(room), {}, extension::observer{history<asking_clock>(10, asking_clock{&asks})}};
  asks = {&ask_for_much<pool_type>, &pool};
  (void)pool.try_allocate(1);
}
TEST_F(callbacks_in_threads_death, no_clock_of_a_history_uses_the_allocator) {
  EXPECT_DEATH(let_a_clock_ask(), "an observer must not use the allocator that calls it");
}

struct ignoring {
  static void on(const allocator_event&) noexcept {}
};
template <typename Pool>
void expect_rules_of(auto expect) {
  expect([](Pool& pool, auto f) { pool.visit_policies(f); }, "visit_policies: the function must not use");
  expect([](Pool& pool, auto f) { with_observer(pool, f); },
         "a function given to an extension must not use the allocator");
  expect([](Pool& pool, auto f) { pool.visit_provider(f); }, "visit_provider: .* must not use");
  expect([](Pool& pool, auto f) { pool.for_each_allocator(f); },
         "for_each_allocator: the function must not use");
}
TEST_F(callbacks_in_threads_death, no_function_uses_the_allocator_that_is_locked) {
  using one = locked<caching_allocator<pytorch<>, device_type, extension::observer<ignoring>>>;
  using many = per_stream<caching_allocator<pytorch<>, device_type, extension::observer<ignoring>>>;
  using background = background_reclaiming<caching_allocator<pytorch<>, device_type>>;
  expect_rules_of<one>([](auto lend, const char* rule) { expect_that_nobody_uses<one>(lend, rule); });
  expect_rules_of<many>([](auto lend, const char* rule) { expect_that_nobody_uses<many>(lend, rule); });
  expect_that_nobody_uses<background>([](background& pool, auto f) { pool.visit_provider(f); },
                                      "visit_provider: .* must not use");
}

/// Asks the allocator that calls it, as the function of a scope or as the source of a pool.
template <typename Pool>
struct asking_source {
  Pool* pool;
  void* acquire(std::size_t) noexcept { return (void)pool->current_usage(), nullptr; }
  bool release(void*, std::size_t) noexcept { return true; }
};
template <typename Pool>
void let_a_scope_ask() {
  const watchdog guard("a stream_filter uses the allocator", std::chrono::seconds(60));
  Pool pool{of(room)};
  extension::private_pool own(pool);
  const extension::pool_scope scope(own,
                                    {[](void* asked, stream_id) noexcept {
                                       return static_cast<Pool*>(asked)->current_usage().reserved == 0;
                                     },
                                     &pool},
                                    extension::scope_kind::plain);
  (void)pool.try_allocate(1000);
}
template <typename Pool>
void let_a_source_ask() {
  const watchdog guard("a pool_upstream uses the allocator", std::chrono::seconds(60));
  Pool pool{of(room)};
  asking_source<Pool> from{&pool};
  extension::private_pool own(pool, extension::pool_upstream(from));
  const extension::pool_scope scope(own, extension::scope_kind::capture);
  (void)pool.try_allocate(1000);
}
TEST_F(callbacks_in_threads_death, no_scope_and_no_source_of_a_pool_uses_the_allocator) {
  using inside = caching_allocator<pytorch<>, device_type, extension::private_pools>;
  constexpr const char* rule =
      "a stream_filter, pool_upstream or function of take_back must not use the allocator that calls it";
  EXPECT_DEATH(let_a_scope_ask<locked<inside>>(), rule);
  EXPECT_DEATH(let_a_scope_ask<per_stream<inside>>(), rule);
  EXPECT_DEATH(let_a_source_ask<locked<inside>>(), rule);
}

/// Requests more memory than there is from the allocator that calls it.
class asking_back : public provider_adaptor<device_type> {
 public:
  static constexpr bool is_thread_safe = true;
  asking_back(device_type& to, const question& asks) noexcept : provider_adaptor(to), asks_(&asks) {}
  [[nodiscard]] void* acquire(std::size_t bytes) noexcept { return bytes < 1_GiB ? (*asks_)() : nullptr; }

 private:
  const question* asks_;
};
void let_a_provider_ask() {
  const watchdog guard("a provider uses the allocator", std::chrono::seconds(60));
  using pool_type = locked<caching_allocator<pytorch<>, asking_back>>;
  device_type device = of(room);
  question asks;
  pool_type pool{asking_back(device, asks)};
  asks = {&ask_for_much<pool_type>, &pool};
  (void)pool.try_allocate(1);
}
TEST_F(callbacks_in_threads_death, no_provider_uses_the_allocator_that_calls_it) {
  EXPECT_DEATH(let_a_provider_ask(), "a provider must not use the allocator that calls it");
}

/// Lets the user free a block if memory is short.
class giving_back : public provider_ref<device_type> {
 public:
  static constexpr bool is_thread_safe = true;  // the test has one thread
  giving_back(device_type& to, void (*give)(void* context), void* context) noexcept
      : provider_ref(to), give_(give), context_(context) {}
  bool reclaim() noexcept { return give_(context_), true; }

 private:
  void (*give_)(void* context);
  void* context_;
};
template <typename Pool>
void let_a_provider_give_back() {
  struct holding {
    Pool* pool;
    void* block = nullptr;
  } held{};
  const watchdog guard("a provider gives back", std::chrono::seconds(60));
  device_type device = of(room);
  const auto give = [](void* context) {
    auto& of = *static_cast<holding*>(context);
    of.pool->deallocate(std::exchange(of.block, nullptr));
    of.pool->trim();
  };
  Pool pool{giving_back(device, give, &held)};
  held = {&pool, pool.allocate(room / 2)};
  void* const p = pool.try_allocate(room);
  EXPECT_NE(p, nullptr);
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.deallocate(p);
}
TEST(callbacks_in_reclaim, may_free) {
  let_a_provider_give_back<caching_allocator<pytorch<>, giving_back>>();
  let_a_provider_give_back<caching_allocator<pytorch_family::expandable, giving_back>>();
  let_a_provider_give_back<locked<caching_allocator<pytorch<>, giving_back>>>();
  let_a_provider_give_back<per_stream<caching_allocator<pytorch<>, giving_back>>>();
}

struct uses_its_allocator {
  void (*use)(void* pool) noexcept = nullptr;
  void* pool = nullptr;
  void operator()(const out_of_memory&) noexcept { use(pool); }
};
using failing_pool = oom_observed<locked<caching_allocator<pytorch<>, device_type>>, uses_its_allocator>;
TEST(callbacks_after_failure, may_use_the_allocator) {
  failing_pool pool(of(room));
  static int calls = 0;
  calls = 0;
  pool.observer() = {[](void* p) noexcept {
                       ++calls;
                       auto& failed = *static_cast<failing_pool*>(p);
                       EXPECT_EQ(failed.try_allocate(2 * room), nullptr);
                       failed.deallocate(failed.try_allocate(1000));
                       failed.trim();
                     },
                     &pool};
  const watchdog guard("an observer uses its allocator", std::chrono::seconds(60));
  EXPECT_EQ(pool.try_allocate(2 * room), nullptr);
  EXPECT_EQ(calls, 1);
}

struct device_that_needs_another {
  static device_type make_device(int number);
  static auto make_allocator(auto device) {
    return locked<caching_allocator<pytorch<>, decltype(device)>>(std::move(device));
  }
};
torch_pluggable<device_that_needs_another>& all_devices() {
  static torch_pluggable<device_that_needs_another> all;
  return all;
}
device_type device_that_needs_another::make_device(int number) {
  EXPECT_TRUE(number != 1 || all_devices().alloc(1, 0, nullptr) != nullptr) << "that is there already";
  if (number == 2) (void)all_devices().alloc(1, 3, nullptr);
  return of(room);
}
TEST_F(callbacks_in_threads_death, no_device_is_made_while_another_is_made) {
  auto& all = all_devices();
  EXPECT_NE(all.alloc(1, 0, nullptr), nullptr);
  EXPECT_NE(all.alloc(1, 1, nullptr), nullptr);
  EXPECT_DEATH(
      {
        const watchdog guard("devices are made", std::chrono::seconds(60));
        (void)all.alloc(1, 2, nullptr);
      },
      "make_device and make_allocator must not use devices that are not made yet");
}

}  // namespace
