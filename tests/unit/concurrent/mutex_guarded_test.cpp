// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstddef>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/mutex_guarded.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using detail::unlocking_provider, detail::unlockable_mutex;

/// Counts the device calls that were made with the mutex held, and without it.
struct asked {
  unlockable_mutex inside;
  std::set<std::string> with_mutex, without;

  void note(const char* call) {
    bool taken = false;
    std::thread([&] {
      taken = inside.mutex.try_lock();
      if (taken) inside.mutex.unlock();
    }).join();
    (taken ? without : with_mutex).insert(call);
  }
};

class noting : public provider_ref<simulated_device> {
 public:
  noting(simulated_device& to, asked& in) noexcept : provider_ref(to), in_(&in) {}

  void* acquire(std::size_t bytes) noexcept { return in_->note("acquire"), inner().acquire(bytes); }
  bool release(void* p, std::size_t bytes) noexcept {
    return in_->note("release"), inner().release(p, bytes);
  }
  bool wait(event& mark) noexcept { return in_->note("wait"), inner().wait(mark); }
  void* reserve(std::size_t bytes, std::size_t to_multiple) noexcept {
    return in_->note("reserve"), inner().reserve(bytes, to_multiple);
  }
  bool unreserve(void* p, std::size_t bytes) noexcept {
    return in_->note("unreserve"), inner().unreserve(p, bytes);
  }
  bool create(std::size_t bytes, page_kind kind, simulated_device::physical& made) noexcept {
    return in_->note("create"), inner().create(bytes, kind, made);
  }
  bool destroy(const simulated_device::physical& leaving) noexcept {
    return in_->note("destroy"), inner().destroy(leaving);
  }
  bool map(void* p, std::size_t bytes, const simulated_device::physical& made) noexcept {
    return in_->note("map"), inner().map(p, bytes, made);
  }
  bool grant(void* p, std::size_t bytes) noexcept { return in_->note("grant"), inner().grant(p, bytes); }
  bool unmap(void* p, std::size_t bytes) noexcept { return in_->note("unmap"), inner().unmap(p, bytes); }
  bool synchronize(stream_id stream) noexcept {
    return in_->note("synchronize"), inner().synchronize(stream);
  }

 private:
  asked* in_;
};

template <typename Recipe>
void fill_and_empty(asked& calls) {
  simulated_device device;
  noting noted(device, calls);
  const std::lock_guard lock(calls.inside.mutex);
  caching_allocator<Recipe, unlocking_provider<noting>> pool{unlocking_provider<noting>(noted, calls.inside)};
  void* const p = pool.allocate(5_MiB);
  (void)pool.record_stream(p, stream_id{3});
  pool.deallocate(p);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

using strings = std::set<std::string>;

TEST(mutex_guarded_threads, let_go_of_the_mutex_while_segments_come_and_go) {
  asked calls;
  fill_and_empty<pytorch<>>(calls);
  EXPECT_EQ(calls.without, (strings{"acquire", "release", "wait"}));
  EXPECT_EQ(calls.with_mutex, strings{});
}

TEST(mutex_guarded_threads, keep_the_mutex_while_pages_are_mapped_and_unmapped) {
  asked calls;
  fill_and_empty<pytorch_family::expandable>(calls);
  EXPECT_EQ(calls.without, strings{"wait"});
  EXPECT_EQ(calls.with_mutex,
            (strings{"reserve", "create", "map", "grant", "synchronize", "unmap", "destroy", "unreserve"}));
}

TEST(short_mutex, excludes_threads_and_lets_each_in) {
  detail::short_mutex mutex;
  int entered = 0;
  mutex.lock();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10000; ++i) {
        const std::lock_guard lock(mutex);
        ++entered;
      }
    });
  }
  // All threads sleep by now, and try again.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(mutex.try_lock());
  EXPECT_EQ(entered, 0);
  mutex.unlock();
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(entered, 40000);
  EXPECT_TRUE(mutex.try_lock());
  mutex.unlock();
}

}  // namespace
