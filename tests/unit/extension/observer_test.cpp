// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <gtest/gtest.h>

#include <tessera/concurrent/arena.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/core/types.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

struct recursive {
  void (*use)(void* context, const allocator_event&) = nullptr;
  void* context = nullptr;
  int count = 0;
  void on(const allocator_event& event) noexcept {
    ++count;
    if (use != nullptr) use(context, event);
  }
};
/// The types of an allocator, as far as an observer asks for them.
struct core {
  struct allocator {};
};
using state = extension::observer<recursive>::state<core>;
using arena_state = detail::arena_observer<recursive>::state<core>;

TEST(observer_extension, reports_one_event_after_the_other) {
  core::allocator in;
  state one(in, extension::observer<recursive>{});
  one.on_event({});
  one.on_event({});
  EXPECT_EQ(one.target().count, 2);
  one.check_thread();
}

TEST(observer_extension, is_called_by_all_arenas) {
  core::allocator in;
  detail::shared_observer<recursive> shared{recursive{}};
  arena_state one(in, {&shared}), other(in, {&shared});
  one.on_event({});
  other.on_event({});
  EXPECT_EQ(shared.to.count, 2);
  EXPECT_TRUE(shared.mutex.try_lock());
  shared.mutex.unlock();
  one.check_thread();
}

template <typename State>
void report_again(void* same, const allocator_event& event) {
  static_cast<State*>(same)->on_event(event);
}
using observer_extension_death = testing::Test;
TEST(observer_extension_death, refuses_events_of_an_observer_that_uses_the_allocator) {
  constexpr const char* rule = "an observer must not use the allocator that calls it";
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  core::allocator in;
  state one(in, extension::observer<recursive>{});
  one.target().use = report_again<state>;
  one.target().context = &one;
  EXPECT_DEATH(one.on_event({}), rule);
  detail::shared_observer<recursive> shared{recursive{}};
  arena_state of_arena(in, {&shared});
  shared.to.use = report_again<arena_state>;
  shared.to.context = &of_arena;
  EXPECT_DEATH(of_arena.on_event({}), rule);
}

/// An observer that asks the allocator for its provider, or for its usage.
using observed = locked<caching_allocator<pytorch<>, simulated_device, extension::observer<recursive>>>;
void ask_provider(void* pool, const allocator_event&) {
  static_cast<observed*>(pool)->visit_provider([](const simulated_device& d) { return d.capacity(); });
}
void ask_usage(void* pool, const allocator_event&) { (void)static_cast<observed*>(pool)->current_usage(); }

TEST(observer_extension_death, of_a_locked_allocator_may_take_later_locks_only) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  observed pool;
  pool.get<extension::observer<recursive>>().with([&pool](recursive& o) { o = {ask_provider, &pool, 0}; });
  pool.deallocate(pool.allocate(1000));
  pool.get<extension::observer<recursive>>().with([](recursive& o) {
    EXPECT_EQ(o.count, 4);
    o.use = ask_usage;
  });
  EXPECT_DEATH(pool.deallocate(pool.allocate(1000)), "an observer must not use the allocator that calls it");
}

}  // namespace
