// SPDX-License-Identifier: Apache-2.0
// Time is simulated, and a script lists the events during waits. No wait exceeds its deadline, to the
// nanosecond.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using namespace std::chrono_literals;

/// A clock that advances only when a test says so.
struct still_clock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<still_clock>;
  static inline time_point time{};
  static time_point now() noexcept { return time; }
};

/// The events during waits. Each wait ends at the time of the next event, or at its deadline if that is
/// sooner.
struct happening {
  std::chrono::nanoseconds after;  // the beginning of the test
  std::function<void()> what;      // nothing: a spurious wake-up
};

/// A condition variable in a program whose other threads follow the script.
class scripted {
 public:
  static inline std::vector<happening> script;
  static inline std::size_t next = 0;
  static inline std::vector<still_clock::time_point> asked;  // the deadline of each wait
  static inline std::size_t begun_late = 0;

  static void begin(std::vector<happening> play, still_clock::time_point at = {}) {
    script = std::move(play);
    next = begun_late = 0;
    asked.clear();
    still_clock::time = at;
  }
  template <typename Woken>
  bool wait_until(std::unique_lock<std::mutex>& lock, still_clock::time_point deadline, Woken woken) {
    asked.push_back(deadline);
    begun_late += still_clock::time >= deadline ? 1 : 0;
    while (!woken()) {
      if (still_clock::time >= deadline) return woken();
      const bool any = next < script.size();
      const auto then = any ? still_clock::time_point(script[next].after) : deadline;
      if (!any || then > deadline) {
        still_clock::time = deadline;
        continue;
      }
      if (then > still_clock::time) still_clock::time = then;
      const auto what = script[next++].what;
      lock.unlock();
      if (what) std::thread(what).join();
      lock.lock();
    }
    return true;
  }
  void notify_all() noexcept { ++notifications; }
  std::size_t notifications = 0;
};

using patient =
    waiting<locked<caching_allocator<paddle_family::auto_growth, simulated_device>>, still_clock, scripted>;
simulated_device of(std::size_t capacity) { return simulated_device({.capacity = capacity}); }
std::chrono::nanoseconds passed() { return still_clock::time.time_since_epoch(); }

TEST(waiting_deadline, is_kept_to_the_nanosecond_without_frees) {
  patient pool(7ms, of(1_MiB));
  void* const held = pool.allocate(1_MiB);
  scripted::begin({});
  EXPECT_EQ(pool.try_allocate(512), nullptr);
  EXPECT_EQ(passed(), 7ms);
  EXPECT_EQ(scripted::asked, std::vector{still_clock::time_point(7ms)});
  EXPECT_EQ(scripted::begun_late, 0u);
  pool.deallocate(held);
}

/// After each free, it tries again, but its deadline stays.
TEST(waiting_deadline, is_kept_however_often_others_free_too_little) {
  patient pool(7ms, of(2_MiB));
  void* const held = pool.allocate(1_MiB);
  void* little = pool.allocate(512);
  std::vector<happening> play;
  for (int i = 1; i <= 1000; ++i) {
    play.push_back({i * 1ms, [&] {
                      pool.deallocate(little);
                      little = pool.try_allocate(512);
                    }});
  }
  scripted::begin(play);
  EXPECT_EQ(pool.try_allocate(2_MiB), nullptr);
  EXPECT_EQ(passed(), 7ms);
  EXPECT_EQ(scripted::begun_late, 0u);
  for (const auto& deadline : scripted::asked) EXPECT_EQ(deadline, still_clock::time_point(7ms));
  pool.deallocate(little);
  pool.deallocate(held);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

/// As if each try, or the return from a wait, took longer than the time left.
TEST(waiting_deadline, is_kept_if_time_passes_during_wake_ups) {
  patient pool(7ms, of(2_MiB));
  void* const held = pool.allocate(1_MiB);
  void* const little = pool.allocate(512);
  scripted::begin({{6ms, [&] {
                      pool.deallocate(little);
                      still_clock::time += 1h;
                    }}});
  EXPECT_EQ(pool.try_allocate(2_MiB), nullptr);
  EXPECT_EQ(passed(), 6ms + 1h);
  EXPECT_EQ(scripted::asked.size(), 1u);  // none begins after that
  pool.deallocate(held);
}

TEST(waiting_deadline, what_is_freed_at_the_last_moment_still_serves) {
  for (const auto when : {1ns, 6'999'999ns, 7'000'000ns}) {
    patient pool(7ms, of(1_MiB));
    void* const held = pool.allocate(1_MiB);
    scripted::begin({{when, [&] { pool.deallocate(held); }}});
    void* const got = pool.try_allocate(1_MiB);
    EXPECT_EQ(got, held);
    EXPECT_EQ(passed(), when);
    pool.deallocate(got);
  }
}

TEST(waiting_deadline, waking_up_without_a_reason_neither_tries_nor_prolongs) {
  patient pool(7ms, of(1_MiB));
  void* const held = pool.allocate(1_MiB);
  std::vector<happening> play;
  for (int i = 1; i <= 100; ++i) play.push_back({i * 100us, nullptr});
  scripted::begin(play);
  const std::uint64_t before = pool.statistics().num_ooms;
  EXPECT_EQ(pool.try_allocate(1_MiB), nullptr);
  EXPECT_EQ(passed(), 7ms);
  EXPECT_EQ(pool.statistics().num_ooms - before, 3u);  // at first, before it waits, and at the deadline
  EXPECT_EQ(scripted::asked.size(), 1u);
  pool.deallocate(held);
}

TEST(waiting_deadline, a_clock_that_jumps_on_ends_the_wait) {
  patient pool(7ms, of(1_MiB));
  void* const held = pool.allocate(1_MiB);
  scripted::begin({{1ms, [] { still_clock::time += 48h; }}});
  EXPECT_EQ(pool.try_allocate(1_MiB), nullptr);
  EXPECT_EQ(passed(), 1ms + 48h);
  EXPECT_EQ(scripted::asked, std::vector{still_clock::time_point(7ms)});
  pool.deallocate(held);
}

TEST(waiting_deadline, a_clock_that_jumps_back_moves_no_deadline) {
  patient pool(7ms, of(1_MiB));
  void* const held = pool.allocate(1_MiB);
  scripted::begin({{1h + 1ms, [] { still_clock::time -= 30min; }}}, still_clock::time_point(1h));
  EXPECT_EQ(pool.try_allocate(1_MiB), nullptr);
  EXPECT_EQ(passed(), 1h + 7ms);
  pool.deallocate(held);
}

TEST(waiting_deadline, of_zero_or_less_is_no_wait) {
  for (const auto timeout : {0ms, -1ms, std::chrono::milliseconds::min()}) {
    patient pool(timeout, of(1_MiB));
    void* const held = pool.allocate(1_MiB);
    scripted::begin({});
    EXPECT_EQ(pool.try_allocate(512), nullptr);
    EXPECT_THROW((void)pool.allocate(512), out_of_memory);
    EXPECT_EQ(passed(), 0ms);
    EXPECT_TRUE(scripted::asked.empty());
    pool.deallocate(held);
  }
}

/// A year at most, so that no clock overflows.
TEST(waiting_deadline, of_any_length_lies_ahead) {
  for (const auto timeout : {std::chrono::milliseconds::max(), std::chrono::milliseconds(10'000h * 1'000)}) {
    patient pool(timeout, of(1_MiB));
    void* const held = pool.allocate(1_MiB);
    const auto late = still_clock::time_point(24h * 365 * 200);
    scripted::begin({{24h * 365 * 200 + 24h * 300, [&] { pool.deallocate(held); }}}, late);
    void* const got = pool.try_allocate(1_MiB);
    EXPECT_EQ(got, held);
    EXPECT_EQ(scripted::asked, std::vector{late + 24h * 365});
    pool.deallocate(got);
  }
}

TEST(waiting_deadline, holds_for_handles) {
  patient pool(7ms, of(2_MiB));
  block_handle held = pool.allocate_by_handle(1_MiB);
  void* little = pool.allocate(512);
  std::vector<happening> play;
  for (int i = 1; i <= 100; ++i) {
    play.push_back({i * 1ms, [&] {
                      pool.deallocate(little);
                      little = pool.try_allocate(512);
                    }});
  }
  scripted::begin(play);
  EXPECT_FALSE(pool.allocate_by_handle(2_MiB));
  EXPECT_EQ(passed(), 7ms);
  EXPECT_EQ(scripted::begun_late, 0u);
  pool.deallocate(little);
  pool.deallocate(held);
}

/// The report states the time of the wait. For an impossible request, it states that there was no wait.
TEST(waiting_deadline, is_in_the_report) {
  patient pool(7ms, of(1_MiB));
  void* const held = pool.allocate(1_MiB);
  scripted::begin({});
  try {
    (void)pool.allocate(512);
    ADD_FAILURE() << "there is no memory";
  } catch (const out_of_memory& error) {
    EXPECT_EQ(error.numbers().waited_ms, 7);
  }
  scripted::begin({});
  try {
    (void)pool.allocate(max_request + 1);
    ADD_FAILURE() << "that cannot be";
  } catch (const out_of_memory& error) {
    EXPECT_LT(error.numbers().waited_ms, 0);
    EXPECT_EQ(std::string_view(error.what()).find("waited"), std::string_view::npos);
  }
  EXPECT_TRUE(scripted::asked.empty());
  pool.deallocate(held);
}

}  // namespace
