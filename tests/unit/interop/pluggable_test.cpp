// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/configured.hpp>
#include <tessera/extension/count_totals.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/interop/torch_pluggable.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../concurrent/devices.hpp"

namespace {

using namespace tessera;
using adaptor_tests::gated_device;
using adaptor_tests::gated_ref;

/// The devices of the definitions below, new for each test.
struct machine {
  std::optional<gated_device> device[2];
  int made = 0;
};
machine here;

gated_ref reach_device(int number) {
  if (number > 1) throw std::runtime_error("device " + std::to_string(number) + " is not plugged in");
  ++here.made;
  return gated_ref(*here.device[number]);
}

template <typename Recipe, template <typename> typename Front = locked, typename... Extension>
struct of_extensions {
  static gated_ref make_device(int number) { return reach_device(number); }
  static auto make_allocator(auto device) {
    return Front<caching_allocator<Recipe, decltype(device), Extension...>>(std::move(device));
  }
};
template <typename Recipe, template <typename> typename Front = locked>
using of = of_extensions<Recipe, Front, extension::private_pools>;
struct throwing : of<pytorch<>> {
  static constexpr bool throws_out_of_memory = true;
};
struct throwing_and_printing : throwing {
  static bool prints_out_of_memory() { return true; }
};
struct chosen_at_run_time {
  static gated_ref make_device(int number) { return reach_device(number); }
  static auto make_allocator(auto device) {
    using allocator =
        caching_allocator<pytorch<>, decltype(device), extension::private_pools, extension::sleep_mode>;
    return configured<pytorch_family, locked<allocator>>({.expandable_segments = true}, std::move(device));
  }
};

/// A front end without the optional calls, such as those on private pools.
template <typename Allocator>
class without_pools : public allocator_adaptor<without_pools<Allocator>> {
 public:
  explicit without_pools(typename Allocator::provider_type device) : in_(std::move(device)) {}

 private:
  friend allocator_adaptor<without_pools>;
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F f) {
    return f(me.in_);
  }
  locked<Allocator> in_;
};

class pluggable_test : public testing::Test {
 protected:
  pluggable_test() {
    here.made = 0;
    for (unsigned i = 0; i < 2; ++i) {
      here.device[i].emplace();
      here.device[i]->with(
          [i](auto& d) { d = simulated_device{simulated_device::options{.capacity = 1_GiB, .device = i}}; });
    }
  }
  ~pluggable_test() override {
    for (auto& d : here.device) {
      EXPECT_EQ(adaptor_tests::outstanding(*d), 0u);
    }
  }
};

char* at(void* p) { return static_cast<char*>(p); }
void* stream(std::uintptr_t number) { return reinterpret_cast<void*>(number); }

template <typename Pool>
std::string last_error(Pool& pool) {
  std::string text(pool.last_error(nullptr, 0), '\0');
  EXPECT_EQ(pool.last_error(text.data(), text.size() + 1), text.size());
  return text;
}
template <typename Pool>
std::string statistics_of(Pool& pool, int device) {
  std::string text(pool.statistics(device, nullptr, 0), '\0');
  EXPECT_EQ(pool.statistics(device, text.data(), text.size() + 1), text.size());
  return text;
}
bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST_F(pluggable_test, makes_a_device_when_it_is_used) {
  torch_pluggable<of<pytorch<>>> pool;
  pool.init(0);
  pool.init(8);
  pool.reset();
  EXPECT_EQ(here.made, 0);
  void* const p = pool.alloc(5_MiB, 1, nullptr);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(here.made, 1);
  EXPECT_EQ(here.device[0]->used(), 0u);
  EXPECT_EQ(here.device[1]->used(), 20_MiB);
  pool.free(p, 5_MiB, 1, nullptr);
  EXPECT_EQ(pool.alloc(5_MiB, 1, nullptr), p);
  pool.free(p, 5_MiB, 1, nullptr);
  pool.reset();
  EXPECT_EQ(here.device[1]->used(), 0u);
  EXPECT_EQ(here.made, 1);
  EXPECT_EQ(last_error(pool), "");
}

TEST_F(pluggable_test, gives_null_for_nothing_and_takes_it_back) {
  torch_pluggable<of<pytorch<>>> pool;
  EXPECT_EQ(pool.alloc(0, 0, nullptr), nullptr);
  EXPECT_EQ(pool.alloc(0, 77, nullptr), nullptr);
  pool.free(nullptr, 0, 0, nullptr);
  EXPECT_EQ(here.made, 0);
  EXPECT_EQ(last_error(pool), "");
}

TEST_F(pluggable_test, reports_a_missing_device) {
  torch_pluggable<of<pytorch<>>> pool;
  testing::internal::CaptureStderr();
  EXPECT_EQ(pool.alloc(1, 2, nullptr), nullptr);
  EXPECT_EQ(last_error(pool), "device 2: device 2 is not plugged in");
  EXPECT_EQ(pool.alloc(1, -1, nullptr), nullptr);
  EXPECT_EQ(last_error(pool), "there is no device -1");
  EXPECT_EQ(pool.alloc(1, 1 << 20, nullptr), nullptr);
  EXPECT_EQ(last_error(pool), "there is no device 1048576");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "device 2: device 2 is not plugged in\nthere is no device -1\n");
}

TEST_F(pluggable_test, returns_null_if_memory_is_full_and_prints_some_of_the_reasons) {
  torch_pluggable<of<pytorch<>>> pool;
  void* const p = pool.alloc(700_MiB, 0, nullptr);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 9; ++i)
    EXPECT_EQ(pool.alloc(400_MiB + 1_MiB * static_cast<unsigned>(i), 0, nullptr), nullptr);
  EXPECT_TRUE(has(last_error(pool), "out of memory")) << last_error(pool);
  const std::string said = testing::internal::GetCapturedStderr();
  std::size_t times = 0;
  for (std::size_t i = said.find("out of memory"); i != std::string::npos;
       i = said.find("out of memory", i + 1))
    ++times;
  EXPECT_EQ(times, 4u) << said;  // the first, second, fourth and eighth
  EXPECT_NE(pool.alloc(1_MiB, 1, nullptr), nullptr) << "the other device is not full";
  pool.free(p, 700_MiB, 0, nullptr);
  EXPECT_NE(pool.alloc(400_MiB, 0, nullptr), nullptr);
}

TEST_F(pluggable_test, returns_a_length_above_the_buffer) {
  torch_pluggable<of<pytorch<>>> pool;
  testing::internal::CaptureStderr();
  EXPECT_EQ(pool.alloc(1, 7, nullptr), nullptr);
  (void)testing::internal::GetCapturedStderr();
  std::array<char, 8> little;
  little.fill('x');
  EXPECT_EQ(pool.last_error(little.data(), 6), std::string("device 7: device 7 is not plugged in").size());
  EXPECT_STREQ(little.data(), "devic");
  EXPECT_EQ(little[6], 'x');
}

TEST_F(pluggable_test, prints_no_out_of_memory_that_the_host_may_catch) {
  torch_pluggable<throwing> pool;
  testing::internal::CaptureStderr();
  EXPECT_THROW((void)pool.alloc(2_GiB, 0, nullptr), out_of_memory);
  EXPECT_TRUE(has(last_error(pool), "out of memory: 2.00 GiB")) << last_error(pool);
  EXPECT_THROW((void)pool.alloc(1, 2, nullptr), std::runtime_error);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "device 2: device 2 is not plugged in\n");

  torch_pluggable<throwing_and_printing> loud;
  testing::internal::CaptureStderr();
  EXPECT_THROW((void)loud.alloc(2_GiB, 0, nullptr), out_of_memory);
  EXPECT_TRUE(has(testing::internal::GetCapturedStderr(), "out of memory: 2.00 GiB"));
}

TEST_F(pluggable_test, throws_if_the_host_supports_exceptions) {
  torch_pluggable<throwing> pool;
  static_assert(!noexcept(pool.alloc(1, 0, nullptr)));
  static_assert(noexcept(std::declval<torch_pluggable<of<pytorch<>>>&>().alloc(1, 0, nullptr)));
  testing::internal::CaptureStderr();
  EXPECT_THROW((void)pool.alloc(2_GiB, 0, nullptr), out_of_memory);
  EXPECT_THROW((void)pool.alloc(1, 2, nullptr), std::runtime_error);
  EXPECT_EQ(last_error(pool), "device 2: device 2 is not plugged in");
  EXPECT_EQ(pool.alloc(1, 200, nullptr), nullptr);
  pool.memory_fraction(0.5, 2);
  EXPECT_THROW(pool.end_allocate_to_pool(0, {1, 2}), std::runtime_error);
  torch_pluggable<of<pytorch<>>> silent;
  static_assert(noexcept(silent.end_allocate_to_pool(0, {1, 2})));
  silent.end_allocate_to_pool(0, {1, 2});
  EXPECT_EQ(last_error(silent),
            "tessera: end_allocate_to_pool: private pool (1, 2) of device 0: no scope of the pool is open");
  (void)testing::internal::GetCapturedStderr();
}

bool is_stream_1(void* s) { return s == stream(1); }

template <typename Definition>
void use_private_pools() {
  torch_pluggable<Definition> pool;
  using numbers = detail::torch_pool_id;
  pool.begin_allocate_to_pool(0, numbers{0, 1}, is_stream_1);
  void* const inside = pool.alloc(5_MiB, 0, stream(1));
  void* const outside = pool.alloc(5_MiB, 0, stream(2));
  pool.end_allocate_to_pool(0, numbers{0, 1});
  pool.free(inside, 5_MiB, 0, nullptr);
  EXPECT_NE(pool.alloc(5_MiB, 0, stream(1)), inside);
  pool.free(outside, 5_MiB, 0, nullptr);
  pool.begin_allocate_to_pool(0, numbers{0, 1}, is_stream_1);
  EXPECT_EQ(pool.alloc(5_MiB, 0, stream(1)), inside);
  pool.free(inside, 5_MiB, 0, nullptr);
  const std::size_t used = here.device[0]->used();
  pool.reset();
  EXPECT_EQ(here.device[0]->used(), used) << "the scope is open";
  pool.end_allocate_to_pool(0, numbers{0, 1});
  pool.release_pool(0, numbers{0, 1});
  pool.reset();
  EXPECT_LT(here.device[0]->used(), used);
  EXPECT_GT(here.device[0]->used(), 0u) << "one of the two uses is left";
  pool.release_pool(0, numbers{0, 1});
  pool.reset();
  EXPECT_EQ(here.device[0]->used(), 20_MiB) << "of the live block";
}
TEST_F(pluggable_test, has_private_pools) { use_private_pools<chosen_at_run_time>(); }
TEST_F(pluggable_test, has_private_pools_of_arenas) {
  use_private_pools<of<pytorch_family::expandable, per_stream>>();
}

TEST_F(pluggable_test, gives_memory_back_under_live_blocks) {
  torch_pluggable<chosen_at_run_time> pool;
  EXPECT_FALSE(pool.sleep(0, true));
  EXPECT_EQ(last_error(pool), "sleep: device 0: the device has no allocator yet");
  pool.begin_allocate_to_pool(0, {0, 1}, is_stream_1);
  void* const inside = pool.alloc(5_MiB, 0, stream(1));
  void* const outside = pool.alloc(50_MiB, 0, stream(2));
  void* const freed = pool.alloc(50_MiB, 0, stream(2));
  pool.end_allocate_to_pool(0, {0, 1});
  const std::size_t used = here.device[0]->used();
  EXPECT_TRUE(pool.sleep_pool(0, {0, 1}, false));
  EXPECT_EQ(here.device[0]->used(), used - 20_MiB);
  EXPECT_FALSE(pool.sleep_pool(0, {7, 7}, true));
  EXPECT_EQ(last_error(pool), "sleep_pool: device 0: no such pool exists");
  EXPECT_TRUE(pool.wake_pool(0, {0, 1}));
  EXPECT_EQ(here.device[0]->used(), used);
  EXPECT_TRUE(pool.sleep(0, false));
  EXPECT_EQ(here.device[0]->used(), 0u);
  EXPECT_EQ(pool.alloc(1, 0, stream(2)), nullptr);
  EXPECT_TRUE(has(last_error(pool), "the pool that serves them sleeps, so wake it first"));
  pool.free(freed, 50_MiB, 0, nullptr);
  EXPECT_TRUE(pool.wake(0));
  EXPECT_LE(here.device[0]->used(), used - 40_MiB);
  pool.free(inside, 5_MiB, 0, nullptr);
  pool.free(outside, 50_MiB, 0, nullptr);
  pool.release_pool(0, {0, 1});
  pool.reset();
  EXPECT_EQ(here.device[0]->used(), 0u);
  torch_pluggable<of<pytorch<>>> without;
  (void)without.alloc(1, 0, nullptr);
  EXPECT_FALSE(without.sleep(0, true));
  EXPECT_EQ(last_error(without), "sleep: device 0: the allocator lacks the extension sleep_mode");
  torch_pluggable<of_extensions<pytorch<>, locked, extension::sleep_mode>> segments;
  (void)segments.alloc(1, 0, nullptr);
  EXPECT_FALSE(segments.wake(0));
  EXPECT_EQ(last_error(segments), "wake: device 0: the allocator's recipe maps no memory into ranges");
}

TEST_F(pluggable_test, reports_invalid_calls_on_private_pools) {
  torch_pluggable<throwing> pool;
  testing::internal::CaptureStderr();
  const auto expect = [&](const char* text, auto call) {
    EXPECT_THROW(call(), std::runtime_error);
    EXPECT_TRUE(has(last_error(pool), text)) << last_error(pool);
  };
  pool.begin_allocate_to_pool(0, {1, 0}, is_stream_1);
  expect("release_pool: private pool (1, 0) of device 0: the pool has no use, or its scope is open",
         [&] { pool.release_pool(0, {1, 0}); });
  pool.end_allocate_to_pool(0, {1, 0});
  pool.release_pool(0, {1, 0});
  expect("release_pool", [&] { pool.release_pool(0, {1, 0}); });
  expect("release_pool", [&] { pool.release_pool(0, {9, 9}); });
  expect("end_allocate_to_pool", [&] { pool.end_allocate_to_pool(1, {1, 0}); });
  (void)testing::internal::GetCapturedStderr();
}

/// PyTorch recovers if an allocation of a capture fails, but not if its begin fails.
TEST_F(pluggable_test, refuses_a_capture_at_its_first_allocation) {
  torch_pluggable<throwing> pool;
  testing::internal::CaptureStderr();
  const auto refuse = [&](int device, const char* text) {
    pool.begin_allocate_to_pool(device, {1, 0}, is_stream_1);
    EXPECT_TRUE(has(last_error(pool), text)) << last_error(pool);
    try {
      (void)pool.alloc(5_MiB, device, stream(1));
      ADD_FAILURE() << "a capture that cannot be served";
    } catch (const std::runtime_error& error) {
      EXPECT_TRUE(
          has(error.what(), "tessera: alloc: the graph cannot be captured: private pool (1, 0) of device "))
          << error.what();
      EXPECT_TRUE(has(error.what(), text)) << error.what();
    }
  };
  pool.begin_allocate_to_pool(0, {1, 0}, is_stream_1);
  void* const p = pool.alloc(5_MiB, 0, stream(1));
  refuse(0, "its scope is open");
  void* const outside = pool.alloc(5_MiB, 0, stream(2));
  EXPECT_NE(outside, nullptr);
  pool.end_allocate_to_pool(0, {1, 0});
  void* const q = pool.alloc(5_MiB, 0, stream(1));
  pool.end_allocate_to_pool(0, {1, 0});
  // The host gives both uses back, without knowing which of them was refused.
  pool.release_pool(0, {1, 0});
  pool.release_pool(0, {1, 0});
  refuse(0, "it was released, and owns memory");
  pool.end_allocate_to_pool(0, {1, 0});
  pool.release_pool(0, {1, 0});
  refuse(2, "there is no such device");
  refuse(200, "there is no such device");
  pool.end_allocate_to_pool(200, {1, 0});
  pool.release_pool(200, {1, 0});

  for (void* const block : {p, outside, q}) pool.free(block, 5_MiB, 0, nullptr);
  pool.reset();
  pool.begin_allocate_to_pool(0, {1, 0}, is_stream_1);
  EXPECT_NE(pool.alloc(5_MiB, 0, stream(1)), nullptr);
  pool.end_allocate_to_pool(0, {1, 0});

  torch_pluggable<of<pytorch<>, without_pools>> without;
  without.begin_allocate_to_pool(0, {1, 0}, is_stream_1);
  EXPECT_TRUE(has(last_error(without), "no graph can be captured"));
  EXPECT_EQ(without.alloc(5_MiB, 0, stream(1)), nullptr);
  EXPECT_NE(without.alloc(5_MiB, 0, stream(2)), nullptr);
  (void)testing::internal::GetCapturedStderr();
}

/// As a host that passes begin_allocate_to_pool, but not the function that ends a scope.
TEST_F(pluggable_test, ends_a_scope_if_its_capture_is_over) {
  torch_pluggable<throwing> pool;
  void* captured = nullptr;
  const auto condition = [&captured](void* s) { return s == captured; };
  for (int i = 0; i < 3; ++i) {
    pool.begin_allocate_to_pool(0, {0, 1}, condition);
    captured = stream(1);
    void* const inside = pool.alloc(5_MiB, 0, stream(1));
    // Another thread asks about streams of its own.
    std::thread([&] {
      const auto while_asked = std::exchange(captured, nullptr);
      pool.free(pool.alloc(5_MiB, 0, stream(2)), 5_MiB, 0, nullptr);
      captured = while_asked;
    }).join();
    pool.free(inside, 5_MiB, 0, nullptr);
    EXPECT_EQ(pool.alloc(5_MiB, 0, stream(1)), inside);
    captured = nullptr;
    void* const after = pool.alloc(5_MiB, 0, stream(1));
    EXPECT_NE(after, inside);
    pool.free(inside, 5_MiB, 0, nullptr);
    pool.free(after, 5_MiB, 0, nullptr);
    EXPECT_EQ(pool.alloc(5_MiB, 0, stream(1)), after) << "of the default pools";
    pool.free(after, 5_MiB, 0, nullptr);
  }
  pool.end_allocate_to_pool(0, {0, 1});  // by a host that does end it, but later
  pool.reset();
  EXPECT_EQ(here.device[0]->used(), 20_MiB) << "the pool is in use";
  for (int i = 0; i < 3; ++i) pool.release_pool(0, {0, 1});
  pool.reset();
  EXPECT_EQ(here.device[0]->used(), 0u);
  EXPECT_EQ(last_error(pool), "");
}
TEST_F(pluggable_test, selects_no_stream_if_the_condition_throws) {
  torch_pluggable<throwing> pool;
  pool.begin_allocate_to_pool(0, {0, 1}, [](void*) -> bool { throw 1; });
  void* const p = pool.alloc(5_MiB, 0, stream(1));
  pool.end_allocate_to_pool(0, {0, 1});
  pool.free(p, 5_MiB, 0, nullptr);
  EXPECT_EQ(pool.alloc(5_MiB, 0, stream(1)), p);
}

TEST_F(pluggable_test, counts_the_calls_of_the_device) {
  torch_pluggable<chosen_at_run_time> pool;
  const auto calls = [&](const char* name) {
    const std::string text = statistics_of(pool, 0);
    const std::string key = '"' + std::string(name) + "\": {\"count\": ";
    const std::size_t at = text.find(key);
    return at != std::string::npos ? std::stol(text.substr(at + key.size())) : -1;
  };
  void* const p = pool.alloc(50_MiB, 0, nullptr);
  EXPECT_EQ(calls("reserve"), 1);
  EXPECT_EQ(calls("create"), 3);
  EXPECT_EQ(calls("map"), 3);
  EXPECT_EQ(calls("unmap"), 0);
  EXPECT_EQ(calls("acquire"), 0);
  pool.free(p, 50_MiB, 0, nullptr);
  pool.reset();
  EXPECT_EQ(calls("unmap"), 3);
  EXPECT_EQ(calls("destroy"), 3);
}

struct on_device_only : throwing {
  struct full {
    int device;
    std::size_t bytes;
    std::string text;
  };
  static bool bypasses_cache() { return true; }
  static void raise_out_of_memory(int device, const out_of_memory& error, const char* text) {
    if (error.requested() != 3_GiB) throw full{device, error.requested(), text};
  }
};
TEST_F(pluggable_test, bypasses_its_cache) {
  torch_pluggable<on_device_only> pool;
  void* const p = pool.alloc(5_MiB + 512, 1, nullptr);
  void* const q = pool.alloc(1024, 1, nullptr);
  pool.record_stream(p, stream(2));
  std::size_t bytes = 0;
  EXPECT_EQ(pool.base_alloc(at(p) + 5_MiB, &bytes), p);
  EXPECT_EQ(bytes, 5_MiB + 512);
  EXPECT_EQ(pool.base_alloc(&bytes, &bytes), nullptr);
  EXPECT_TRUE(has(statistics_of(pool, 1), "\"acquire\": {\"count\": 2"));
  EXPECT_TRUE(has(statistics_of(pool, 1), "\"allocation\": {\"all\": {\"current\": 0, \"peak\": 0"));
  const std::size_t used = here.device[1]->used();
  pool.free(q, 1024, 1, nullptr);
  EXPECT_LT(here.device[1]->used(), used);
  EXPECT_DEATH(pool.free(p, 5_MiB, 1, nullptr), "free: not the requested size");
  EXPECT_DEATH(pool.free(q, 1024, 1, nullptr), "free: not the address of a live block");
  pool.free(p, 5_MiB + 512, 1, nullptr);
  EXPECT_EQ(here.device[1]->used(), 0u);

  testing::internal::CaptureStderr();
  try {
    (void)pool.alloc(2_GiB, 1, nullptr);
    ADD_FAILURE() << "2 GiB of 1 GiB";
  } catch (const on_device_only::full& error) {
    EXPECT_EQ(error.device, 1);
    EXPECT_EQ(error.bytes, 2_GiB);
    EXPECT_TRUE(has(error.text, "out of memory")) << error.text;
  }
  try {
    (void)pool.alloc(3_GiB, 1, nullptr);
    ADD_FAILURE() << "3 GiB of 1 GiB";
  } catch (const out_of_memory& error) {
    EXPECT_TRUE(has(error.what(), "requested on stream 0 of device 1")) << error.what();
  }
  pool.begin_allocate_to_pool(1, {1, 0}, is_stream_1);
  EXPECT_TRUE(has(last_error(pool), "private pool (1, 0) of device 1: memory is not cached"));
  EXPECT_THROW((void)pool.alloc(1, 1, stream(1)), std::runtime_error);
  pool.end_allocate_to_pool(1, {1, 0});
  (void)testing::internal::GetCapturedStderr();
}

TEST_F(pluggable_test, limits_the_share_of_a_device) {
  torch_pluggable<of<pytorch<>>> pool;
  pool.memory_fraction(0.5, 1);
  testing::internal::CaptureStderr();
  EXPECT_EQ(pool.alloc(600_MiB, 1, nullptr), nullptr);
  EXPECT_NE(pool.alloc(500_MiB, 1, nullptr), nullptr);
  EXPECT_NE(pool.alloc(600_MiB, 0, nullptr), nullptr);
  pool.memory_fraction(1, 1);
  EXPECT_NE(pool.alloc(500_MiB, 1, nullptr), nullptr);
  pool.memory_fraction(1.5, 1);
  EXPECT_EQ(last_error(pool), "memory_fraction: device 1: not from 0 to 1: 1.5");
  (void)testing::internal::GetCapturedStderr();
}

TEST_F(pluggable_test, knows_the_segment_of_a_block) {
  torch_pluggable<of<pytorch<>>> pool;
  void* const first = pool.alloc(4_MiB, 1, nullptr);
  void* const second = pool.alloc(3_MiB, 1, nullptr);
  ASSERT_EQ(second, at(first) + 4_MiB);
  std::size_t bytes = 0;
  for (void* const p : {first, second, static_cast<void*>(at(second) + 3_MiB - 1)}) {
    bytes = 0;
    EXPECT_EQ(pool.base_alloc(p, &bytes), first);
    EXPECT_EQ(bytes, 20_MiB);
  }
  EXPECT_EQ(pool.base_alloc(second, nullptr), first);
  EXPECT_EQ(pool.base_alloc(at(second) + 3_MiB, &bytes), nullptr);
  EXPECT_EQ(bytes, 0u);
  pool.free(second, 3_MiB, 1, nullptr);
  EXPECT_EQ(pool.base_alloc(second, &bytes), nullptr);
  EXPECT_EQ(pool.base_alloc(&bytes, &bytes), nullptr);
  EXPECT_EQ(pool.base_alloc(nullptr, &bytes), nullptr);
}

TEST_F(pluggable_test, reports_neighbouring_mappings) {
  torch_pluggable<chosen_at_run_time> pool;
  void* const first = pool.alloc(40_MiB, 0, nullptr);
  void* const second = pool.alloc(20_MiB, 0, nullptr);
  ASSERT_EQ(second, at(first) + 40_MiB);
  std::size_t bytes = 0;
  EXPECT_EQ(pool.base_alloc(second, &bytes), first);
  EXPECT_EQ(bytes, 60_MiB);
  pool.free(first, 40_MiB, 0, nullptr);
  pool.reset();
  EXPECT_EQ(pool.base_alloc(second, &bytes), second);
  EXPECT_EQ(bytes, 20_MiB);
  EXPECT_TRUE(has(statistics_of(pool, 0), "\"large_pool\": {\"current\": 20971520, \"peak\": 62914560"));
  EXPECT_TRUE(has(statistics_of(pool, 0), "\"num_device_alloc\": "));
}

TEST_F(pluggable_test, keeps_blocks_of_other_streams_pending) {
  torch_pluggable<of<pytorch<>>> pool;
  void* const p = pool.alloc(5_MiB, 0, stream(7));
  here.device[0]->with([](auto& d) { d.submit(stream_id{9}, 1'000'000'000); });
  pool.record_stream(p, stream(9));
  pool.record_stream(&pool, stream(9));
  pool.record_stream(nullptr, stream(9));
  EXPECT_DEATH(
      pool.record_stream(static_cast<char*>(p) + 512, stream(9)),
      "record_stream: not the address of a live block; it lies 512 bytes into a live block of 5242880");
  pool.free(p, 5_MiB, 0, stream(7));
  EXPECT_NE(pool.alloc(5_MiB, 0, stream(7)), p);
  here.device[0]->with([](auto& d) { d.advance(2'000'000'000); });
  EXPECT_EQ(pool.alloc(5_MiB, 0, stream(7)), p);
  EXPECT_EQ(last_error(pool), "");
}

TEST_F(pluggable_test, keeps_streams_and_the_default_one_apart) {
  torch_pluggable<of<pytorch<>>> pool;
  void* const p = pool.alloc(5_MiB, 0, nullptr);
  pool.free(p, 5_MiB, 0, nullptr);
  EXPECT_NE(pool.alloc(5_MiB, 0, stream(1)), p);
  EXPECT_EQ(pool.alloc(5_MiB, 0, nullptr), p);
}

TEST_F(pluggable_test, writes_the_statistics_that_pytorch_has) {
  torch_pluggable<of<pytorch<>>> pool;
  EXPECT_EQ(statistics_of(pool, 0), "{}");
  EXPECT_EQ(statistics_of(pool, -3), "{}");
  void* const p = pool.alloc(1000, 0, nullptr);
  void* const q = pool.alloc(5_MiB, 0, nullptr);
  pool.free(q, 5_MiB, 0, nullptr);
  const std::string text = statistics_of(pool, 0);
  EXPECT_EQ(text.front(), '{');
  EXPECT_EQ(text.back(), '}');
  for (const char* const part :
       {"\"allocation\": {\"all\": {\"current\": 1, \"peak\": 2, \"allocated\": 2, \"freed\": 1}, "
        "\"small_pool\"",
        "\"allocated_bytes\": {\"all\": {\"current\": 1024, ",
        "\"reserved_bytes\": {\"all\": {\"current\": 23068672, ",
        "\"requested_bytes\": {\"all\": {\"current\": 1000, ", "\"num_ooms\": 0", "\"num_device_alloc\": 2"})
    EXPECT_TRUE(has(text, part)) << part << " is not in " << text;
  std::string cut(40, 'x');
  EXPECT_EQ(pool.statistics(0, cut.data(), 20), text.size());
  EXPECT_EQ(cut.substr(0, 20), text.substr(0, 19) + '\0');
  EXPECT_EQ(cut.substr(20), std::string(20, 'x'));

  pool.reset_peak_statistics(0);
  EXPECT_TRUE(
      has(statistics_of(pool, 0), "\"allocated_bytes\": {\"all\": {\"current\": 1024, \"peak\": 1024, "));
  pool.reset_accumulated_statistics(0);
  EXPECT_TRUE(has(statistics_of(pool, 0),
                  "\"allocation\": {\"all\": {\"current\": 1, \"peak\": 1, \"allocated\": 0, "));
  pool.reset_peak_statistics(1);
  EXPECT_EQ(here.made, 1);
  pool.free(p, 1000, 0, nullptr);
}

TEST_F(pluggable_test, writes_a_snapshot_that_fits) {
  using watch = extension::observer<observe::history<>>;
  torch_pluggable<of_extensions<pytorch<>, locked, watch>> pool;
  EXPECT_EQ(pool.snapshot(0, nullptr, 0), 0u) << "the device is unused";
  void* const p = pool.alloc(1000, 0, nullptr);
  std::string bytes(100'000, 'x');
  const std::size_t length = pool.snapshot(0, bytes.data(), 10);
  EXPECT_EQ(bytes, std::string(100'000, 'x')) << "it is longer than 10 bytes";
  EXPECT_GT(length, 100u);
  // The first snapshot is an event of the second one's history.
  const std::size_t with_event = pool.snapshot(0, bytes.data(), bytes.size());
  EXPECT_GT(with_event, length);
  EXPECT_EQ(bytes[with_event], 'x');
  bytes.resize(with_event);
  for (const char* const part : {"active_allocated", "segment_alloc", "device_traces"})
    EXPECT_TRUE(has(bytes, part)) << part;
  EXPECT_EQ(bytes.front(), '\x80');
  EXPECT_EQ(bytes.back(), '.');
  pool.free(p, 1000, 0, nullptr);
}

TEST_F(pluggable_test, needs_no_statistics) {
  torch_pluggable<of_extensions<pytorch<>, locked, extension::count_totals>> pool;
  pool.free(pool.alloc(1, 0, nullptr), 1, 0, nullptr);
  EXPECT_EQ(statistics_of(pool, 0), "{}");
  EXPECT_EQ(pool.device_stats<detail::npu_device_stats>(0).allocation[0].allocated, 0);
}

TEST_F(pluggable_test, serves_other_recipes) {
  torch_pluggable<of<passthrough>> direct;
  void* const p = direct.alloc(3_MiB, 0, nullptr);
  std::size_t bytes = 0;
  EXPECT_EQ(direct.base_alloc(p, &bytes), p);
  EXPECT_EQ(bytes, 3_MiB);
  EXPECT_FALSE(has(statistics_of(direct, 0), "small_pool"));
  EXPECT_EQ(direct.device_stats<detail::npu_device_stats>(0).allocation[0].current, 1);
  EXPECT_EQ(direct.device_stats<detail::npu_device_stats>(0).allocation[1].current, 0);
  direct.free(p, 3_MiB, 0, nullptr);
  EXPECT_EQ(here.device[0]->used(), 0u);

  torch_pluggable<of<cuda_async, per_stream>> driver;
  void* const q = driver.alloc(3_MiB, 1, stream(1));
  driver.record_stream(q, stream(2));
  driver.free(q, 3_MiB, 1, stream(1));
  EXPECT_EQ(driver.alloc(3_MiB, 1, stream(1)), q);
}

using pluggable_death = pluggable_test;
TEST_F(pluggable_death, aborts_on_a_foreign_free) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  torch_pluggable<of<pytorch<>>> pool;
  void* const p = pool.alloc(1000, 0, nullptr);
  (void)pool.alloc(1024, 1, nullptr);
  EXPECT_DEATH(pool.free(p, 1024, 1, nullptr), "free: the block is on another device");
  EXPECT_DEATH(pool.free(p, 1000, 5, nullptr), "free: the block is on another device");
  EXPECT_DEATH(pool.free(&pool, 1000, 0, nullptr), "free: not the address of a live block");
  EXPECT_DEATH(pool.free(p, 1001, 0, nullptr), "deallocate: not the requested size");
  EXPECT_DEATH(pool.free(at(p) + 512, 1000, 0, nullptr), "deallocate: not");
  pool.free(p, 1000, 0, nullptr);
  EXPECT_DEATH(pool.free(p, 1000, 0, nullptr), "deallocate: not");
}

using pluggable_threads = pluggable_test;
template <typename Definition>
void serve_threads() {
  torch_pluggable<Definition> pool;
  std::array<std::atomic<void*>, 4> given{};
  constexpr auto size_on = [](int device) { return 1_MiB + static_cast<std::size_t>(device) * 3_MiB; };
  std::vector<std::thread> threads;
  for (std::uintptr_t t = 0; t < given.size(); ++t) {
    threads.emplace_back([&, t] {
      const int mine = static_cast<int>(t % 2);
      for (int i = 0; i < 300; ++i) {
        void* const p = pool.alloc(size_on(mine), mine, stream(t));
        ASSERT_NE(p, nullptr);
        if (i % 5 == 0) pool.record_stream(p, stream(t + 1));
        if (i % 50 == 0) pool.reset();
        if (i % 20 == 0) {
          std::size_t bytes = 0;
          EXPECT_NE(pool.base_alloc(p, &bytes), nullptr);
          EXPECT_GE(bytes, size_on(mine));
        }
        // The next thread on this device frees it, with no more information than a host has.
        if (void* const other = given[(t + 2) % 4].exchange(p))
          pool.free(other, size_on(mine), mine, stream(t));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (std::size_t t = 0; t < given.size(); ++t)
    pool.free(given[(t + 2) % 4].load(), size_on(static_cast<int>(t % 2)), static_cast<int>(t % 2), nullptr);
  EXPECT_EQ(here.made, 2);
  for (const int device : {0, 1}) {
    EXPECT_TRUE(has(statistics_of(pool, device), "\"allocation\": {\"all\": {\"current\": 0, "));
  }
  pool.reset();
}
TEST_F(pluggable_threads, share_it) { serve_threads<of<pytorch<>>>(); }
TEST_F(pluggable_threads, share_it_in_streams) {
  here.made = 0;
  serve_threads<of<pytorch_family::expandable, per_stream>>();
}

/// Passed as torch_npu passes a stream: a class with a destructor that converts to the stream.
class npu_stream {
 public:
  explicit npu_stream(void* names) : names_(names) {}
  ~npu_stream() { names_ = nullptr; }
  operator void*() const { return names_; }  // as there

 private:
  std::uint16_t device_ = 0;
  void* names_;
};
/// Has the members of torch_npu's structure, in another order and with other types.
struct other_device_stats {
  struct one {
    long long freed = 0, allocated = 0, peak = 0, current = 0;
  };
  long long max_split_size = 7, num_alloc_retries = 0, num_ooms = 0;
  one oversize_allocations, oversize_segments;
  std::array<one, 3> allocation, segment, active, inactive_split, allocated_bytes, reserved_bytes,
      active_bytes, inactive_split_bytes, requested_bytes;
};

}  // namespace

TESSERA_TORCH_FUNCTIONS(unit_cuda, of<pytorch<>>);
TESSERA_TORCH_NPU_FUNCTIONS(unit_npu, of<pytorch<>>, npu_stream, other_device_stats);
TESSERA_TORCH_NPU_FUNCTIONS(unit_npu_plain, throwing, void*, torch_pluggable<throwing>::npu_device_stats);

namespace {

template <auto Function, typename Type>
constexpr bool is = std::is_same_v<decltype(Function), Type*>;
static_assert(is<&unit_cuda_alloc, void*(std::size_t, int, void*)>);
static_assert(is<&unit_cuda_free, void(void*, std::size_t, int, void*)>);
static_assert(is<&unit_cuda_init, void(int)> && is<&unit_cuda_reset, void()>);
static_assert(is<&unit_cuda_memory_fraction, void(double, int)>);
static_assert(is<&unit_cuda_base_alloc, void*(void*, std::size_t*)>);
static_assert(is<&unit_cuda_record_stream, void(void*, void*)>);
static_assert(
    is<&unit_cuda_begin_allocate_to_pool, void(int, detail::torch_pool_id, std::function<bool(void*)>)>);
static_assert(is<&unit_cuda_end_allocate_to_pool, void(int, detail::torch_pool_id)>);
static_assert(is<&unit_cuda_release_pool, void(int, detail::torch_pool_id)>);
static_assert(is<&unit_npu_alloc, void*(std::size_t, int, void*)>);
static_assert(is<&unit_npu_free, void(void*, std::size_t, int, void*)>);
static_assert(is<&unit_npu_init, void(int)> && is<&unit_npu_reset, void(bool)>);
static_assert(is<&unit_npu_record_stream, void(void*, npu_stream)>);
static_assert(is<&unit_npu_erase_stream, void(void*, npu_stream)>);
static_assert(is<&unit_npu_get_device_stats, other_device_stats(int)>);
static_assert(is<&unit_npu_reset_peak_status, void(int)>);
static_assert(is<&unit_npu_plain_record_stream, void(void*, void*)>);

/// The state of the functions lives until the program ends, so the devices must, too. One test uses and empties them.
TEST_F(pluggable_test, has_functions_of_c) {
  unit_cuda_init(0);
  void* const p = unit_cuda_alloc(5_MiB, 0, nullptr);
  unit_cuda_record_stream(p, stream(3));
  std::size_t bytes = 0;
  EXPECT_EQ(unit_cuda_base_alloc(p, &bytes), p);
  EXPECT_EQ(bytes, 20_MiB);
  unit_cuda_memory_fraction(0.5, 0);
  EXPECT_GT(unit_cuda_statistics(0, nullptr, 0), 1000u);
  EXPECT_GT(unit_cuda_snapshot(0, nullptr, 0), 100u);
  unit_cuda_free(p, 5_MiB, 0, nullptr);
  unit_cuda_reset_peak_statistics(0);
  unit_cuda_reset_accumulated_statistics(0);
  EXPECT_EQ(unit_cuda_last_error(nullptr, 0), 0u);
  unit_cuda_reset();
  EXPECT_EQ(here.device[0]->used(), 0u);

  void* const q = unit_npu_alloc(5_MiB, 1, stream(1));
  here.device[1]->with([](auto& d) { d.submit(stream_id{2}, 1'000'000'000); });
  unit_npu_record_stream(q, npu_stream(stream(2)));
  unit_npu_erase_stream(q, npu_stream(stream(2)));
  const other_device_stats stats = unit_npu_get_device_stats(1);
  EXPECT_EQ(stats.allocation[0].current, 1);
  EXPECT_EQ(stats.allocation[1].current, 0);
  EXPECT_EQ(stats.allocation[2].allocated, 1);
  EXPECT_EQ(stats.reserved_bytes[0].peak, 20 << 20);
  EXPECT_EQ(stats.requested_bytes[2].current, 5 << 20);
  EXPECT_EQ(stats.oversize_segments.current, 0);
  EXPECT_EQ(stats.num_ooms, 0);
  EXPECT_EQ(stats.max_split_size, -1);
  unit_npu_free(q, 5_MiB, 1, stream(1));
  EXPECT_EQ(unit_npu_alloc(5_MiB, 1, stream(1)), q) << "the free waits for no stream";
  unit_npu_record_stream(q, npu_stream(stream(2)));
  unit_npu_erase_stream(q, npu_stream(stream(3)));
  unit_npu_erase_stream(&here, npu_stream(stream(2)));
  unit_npu_free(q, 5_MiB, 1, stream(1));
  EXPECT_NE(unit_npu_alloc(5_MiB, 1, stream(1)), q) << "the work of stream 2 is waited for";
  unit_npu_reset_peak_status(1);
  unit_npu_reset(true);
  EXPECT_EQ(unit_npu_get_device_stats(0).max_split_size, 7) << "device 0 was not used";
  unit_npu_free(at(q) + 5_MiB, 5_MiB, 1, stream(1));
  unit_npu_reset(false);

  unit_npu_plain_record_stream(nullptr, nullptr);
  testing::internal::CaptureStderr();
  EXPECT_THROW((void)unit_npu_plain_alloc(2_GiB, 0, nullptr), std::bad_alloc);
  (void)testing::internal::GetCapturedStderr();
  EXPECT_EQ(unit_npu_plain_get_device_stats(0).num_ooms, 1);
}

}  // namespace
