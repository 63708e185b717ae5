// SPDX-License-Identifier: Apache-2.0
// A stream that has ended has completed its work. Nothing waits for it any more, and it cannot be recorded
// any more.
#include <atomic>
#include <cstddef>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/debug/guarded.hpp>
#include <tessera/interop/cuda_mempool.hpp>
#include <tessera/interop/end_stream.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/tessera.hpp>

#include "../by_day.hpp"

namespace {

using namespace tessera;

host_pinned host() { return host_pinned({.capacity = 128_MiB, .pin = host_pinned::pinning::never}); }

template <typename Pool>
stream_id begin_stream(Pool& pool) {
  return pool.visit_provider([](auto& d) { return d.create_stream(); });
}
template <typename Pool>
void end_stream(Pool& pool, stream_id stream) {
  pool.visit_provider([stream](auto& d) { EXPECT_TRUE(d.destroy_stream(stream)); });
}
/// The stream is busy until `go` is set.
template <typename Pool>
void keep_busy(Pool& pool, stream_id stream, std::atomic<bool>& go) {
  pool.visit_provider([&go, stream](auto& d) {
    d.submit(stream, [&go] {
      while (!go) std::this_thread::yield();
    });
  });
}

template <typename Pool>
class ended_streams : public testing::Test {};
using pools =
    types_by_day<3, caching_allocator<pytorch<>, host_pinned>, caching_allocator<cuda_async, host_pinned>,
                 per_stream<caching_allocator<pytorch<>, host_pinned>>,
                 background_reclaiming<caching_allocator<pytorch<>, host_pinned>>,
                 guarded<caching_allocator<pytorch<>, host_pinned>>>;
TYPED_TEST_SUITE(ended_streams, pools);

TYPED_TEST(ended_streams, hold_nothing_back_on_host_pinned) {
  TypeParam pool(host());
  const stream_id own = begin_stream(pool), user = begin_stream(pool);
  void* const p = pool.allocate(5_MiB, own);
  EXPECT_TRUE(pool.record_stream(p, user));
  end_stream(pool, user);
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TYPED_TEST(ended_streams, are_not_recorded_any_more_on_host_pinned) {
  TypeParam pool(host());
  const stream_id user = begin_stream(pool);
  end_stream(pool, user);
  void* const p = pool.allocate(5_MiB);
  EXPECT_FALSE(pool.record_stream(p, user));
  EXPECT_FALSE(pool.record_stream(p, stream_id{12345}));  // which never existed
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 0u);
}

TYPED_TEST(ended_streams, leave_others_waiting_on_host_pinned) {
  TypeParam pool(host());
  const stream_id ending = begin_stream(pool), staying = begin_stream(pool);
  void* const p = pool.allocate(5_MiB);
  EXPECT_TRUE(pool.record_stream(p, ending));
  EXPECT_TRUE(pool.record_stream(p, staying));
  std::atomic<bool> go{false};
  keep_busy(pool, staying, go);
  end_stream(pool, ending);
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 5_MiB);
  go = true;
  pool.trim();
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TYPED_TEST(ended_streams, complete_their_recorded_events_on_host_pinned) {
  TypeParam pool(host());
  const stream_id user = begin_stream(pool);
  void* const p = pool.allocate(5_MiB);
  EXPECT_TRUE(pool.record_stream(p, user));
  std::atomic<bool> go{false};
  keep_busy(pool, user, go);
  pool.deallocate(p);
  EXPECT_GT(pool.current_usage().pending(), 0u);
  go = true;
  end_stream(pool, user);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TYPED_TEST(ended_streams, own_blocks_that_come_back_as_others_do_on_host_pinned) {
  TypeParam pool(host());
  const stream_id own = begin_stream(pool);
  void* const p = pool.allocate(5_MiB, own);
  end_stream(pool, own);
  pool.deallocate(p, 5_MiB);
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TYPED_TEST(ended_streams, give_back_what_they_had_on_host_pinned) {
  TypeParam pool(host());
  const stream_id own = begin_stream(pool);
  void* const live = pool.allocate(1_KiB, own);
  pool.deallocate(pool.allocate(60_MiB, own));
  void* const p = pool.allocate(5_MiB);
  void* const q = pool.allocate(5_MiB);
  EXPECT_TRUE(pool.record_stream(p, own) && pool.record_stream(q, own));
  std::atomic<bool> go{false};
  keep_busy(pool, own, go);
  pool.deallocate(p);
  go = true;
  EXPECT_TRUE(interop::end_stream(pool, own));
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  go = false;
  keep_busy(pool, own, go);
  pool.deallocate(q);  // as if the stream were a new one with the same handle
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  go = true;
  pool.deallocate(pool.allocate(100_MiB, stream_id{}));  // of 128 MiB
  pool.deallocate(live);
  EXPECT_TRUE(interop::end_stream(pool, own));
  EXPECT_TRUE(interop::end_stream(pool, {}));
  EXPECT_STREQ(pool.audit(), nullptr);
  if constexpr (!TypeParam::recipe_type::streams::reuses_across_streams) {
    EXPECT_EQ(pool.current_usage().reserved, 0u);
  }
}

TEST(ended_streams_host_pinned, are_forgotten_once_nothing_is_noted_for_them) {
  caching_allocator<pytorch<>, host_pinned> pool(host());
  const stream_id user = begin_stream(pool);
  void* const p = pool.allocate(5_MiB);
  void* const q = pool.allocate(5_MiB);
  EXPECT_TRUE(pool.record_stream(p, user) && pool.record_stream(q, user));
  end_stream(pool, user);
  pool.deallocate(p);
  EXPECT_TRUE(pool.has_recorded_streams());
  pool.deallocate(q);
  EXPECT_FALSE(pool.has_recorded_streams());
}

/// Fails to record when the test says so.
class forgetful : public provider_adaptor<host_pinned> {
 public:
  using provider_adaptor<host_pinned>::provider_adaptor;
  bool record(stream_id stream, event& mark) noexcept { return !fails && inner().record(stream, mark); }
  static inline bool fails = false;
};

TEST(ended_streams_host_pinned, also_if_their_events_could_not_be_recorded_before) {
  host_pinned device = host();
  using limited_device = detail::within_budget<host_pinned>;
  static_assert(detail::stream_listing_provider<limited_device> &&
                detail::stream_listing_provider<forgetful>);
  for (const bool waits : {false, true}) {
    caching_allocator<pytorch<>, forgetful> pool{forgetful(device)};
    const stream_id user = device.create_stream();
    void* const p = pool.allocate(5_MiB);
    EXPECT_TRUE(pool.record_stream(p, user));
    forgetful::fails = true;
    pool.deallocate(p);
    EXPECT_EQ(pool.current_usage().pending(), 5_MiB);
    EXPECT_FALSE(pool.process_events());
    device.destroy_stream(user);
    waits ? pool.trim() : void(pool.process_events());
    EXPECT_EQ(pool.current_usage().pending(), 0u);
    forgetful::fails = false;
    EXPECT_STREQ(pool.audit(), nullptr);
  }
}

/// Frees a block while no event can be recorded. Afterwards, what waits must wait for the stream itself.
template <typename Recipe>
void free_without_events() {
  std::atomic<bool> go{false};
  host_pinned device = host();
  caching_allocator<Recipe, forgetful> pool{forgetful(device)};
  const stream_id user = device.create_stream();
  void* const p = pool.allocate(5_MiB);
  EXPECT_TRUE(pool.record_stream(p, user));
  device.submit(user, [&go] {
    while (!go) std::this_thread::yield();
  });
  forgetful::fails = true;
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 5_MiB);
  EXPECT_FALSE(pool.process_events());
  go = true;
  pool.trim();
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  forgetful::fails = false;
  EXPECT_STREQ(pool.audit(), nullptr);
}
TEST(streams_without_events, are_waited_for_as_a_whole) {
  free_without_events<pytorch<>>();
  free_without_events<cuda_async>();
  free_without_events<pinned_packed>();
}

/// A device whose release does not wait, and that has no function to wait for a stream.
class without_synchronize {
 public:
  static constexpr bool release_waits = false;
  using event = host_pinned::event;

  [[nodiscard]] std::size_t capacity() const noexcept { return memory.capacity(); }
  [[nodiscard]] std::size_t granularity() const noexcept { return memory.granularity(); }
  [[nodiscard]] void* acquire(std::size_t bytes) noexcept { return memory.acquire(bytes); }
  bool release(void* p, std::size_t bytes) noexcept { return memory.release(p, bytes); }
  bool record(stream_id stream, event& mark) noexcept { return !fails && memory.record(stream, mark); }
  [[nodiscard]] bool query(event& mark) noexcept { return memory.query(mark); }
  bool wait(event& mark) noexcept { return memory.wait(mark); }
  void discard(event& mark) noexcept { memory.discard(mark); }
  [[nodiscard]] bool has_stream(stream_id stream) noexcept { return memory.has_stream(stream); }

  host_pinned memory = host();
  bool fails = false;
};
static_assert(detail::stream_listing_provider<without_synchronize>);

TEST(ended_streams_without_synchronize, leave_memory_that_can_be_released) {
  caching_allocator<pytorch<>, without_synchronize> pool;
  stream_id own{};
  pool.visit_provider([&](without_synchronize& d) { own = d.memory.create_stream(); });
  pool.deallocate(pool.allocate(100_MiB, own));
  // The stream exists, and no event can be recorded on it. So its work may still run.
  pool.visit_provider([](without_synchronize& d) { d.fails = true; });
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 100_MiB);
  pool.visit_provider([&](without_synchronize& d) { EXPECT_TRUE(d.memory.destroy_stream(own)); });
  void* const other = pool.allocate(100_MiB);  // the device has 128 MiB
  pool.deallocate(other);
  pool.visit_provider([](without_synchronize& d) { d.fails = false; });
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(ended_streams_host_pinned, are_refused_by_a_cuda_mempool) {
  cuda_mempool<caching_allocator<cuda_async, host_pinned>> pool(host());
  const stream_id stream = pool.provider().create_stream();
  void* const p = pool.allocate_async(5_MiB, stream);
  ASSERT_TRUE(pool.provider().destroy_stream(stream));
  EXPECT_FALSE(pool.try_free_async(p, stream));
  EXPECT_FALSE(pool.record_stream(p, stream_id{stream.handle + 1}));
  EXPECT_EQ(pool.current_usage().allocated, 5_MiB);
  EXPECT_DEATH(pool.free_async(p, stream), "free_async: there is no stream 1 .pointer 0x");
  pool.free_async(p, stream_id{});
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

}  // namespace
