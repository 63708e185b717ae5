// SPDX-License-Identifier: Apache-2.0
// A user's front end over `allocator_adaptor`, with all functions of an allocator.
#include <atomic>
#include <concepts>
#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/interop/aligned_request.hpp>
#include <tessera/interop/allocator_handle.hpp>
#include <tessera/interop/paddle_passes.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

// The section "Write a front end" of the guide shows these lines.
template <typename Allocator>
class counted : public tessera::allocator_adaptor<counted<Allocator>, Allocator> {
  using adaptor_type = tessera::allocator_adaptor<counted, Allocator>;

 public:
  template <typename... Args>
    requires std::constructible_from<Allocator, Args...>
  explicit counted(Args&&... args) : allocator_(std::forward<Args>(args)...) {}

  std::atomic<std::size_t> calls = 0, failures = 0;

  using adaptor_type::try_allocate;
  void* try_allocate(std::size_t bytes, tessera::stream_id stream = {}) noexcept {
    void* const p = adaptor_type::try_allocate(bytes, stream);
    if (p == nullptr && bytes != 0) ++failures;
    return p;
  }

 private:
  friend adaptor_type;
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F f) {
    if constexpr (!std::is_const_v<Me>) ++me.calls;
    return f(me.allocator_);
  }

  Allocator allocator_;
};

using namespace tessera;
using plain = caching_allocator<pytorch<>, simulated_device>;
using shared = locked<caching_allocator<pytorch<>, simulated_device>>;
using streamed = per_stream<caching_allocator<pytorch<>, simulated_device>>;

static_assert(detail::stream_allocator<counted<plain>> && detail::stream_allocator<counted<streamed>>);

template <typename Pool>
concept gives_handles = requires(Pool& pool) {
  { pool.allocate_by_handle(1) } -> std::same_as<block_handle>;
};
static_assert(gives_handles<counted<shared>> && !gives_handles<counted<streamed>>);

// Changes the calls of a handle; all others come from the allocator_adaptor.
class counts_handles : public allocator_adaptor<counts_handles, plain> {
  using adaptor_type = allocator_adaptor<counts_handles, plain>;

 public:
  int handles_freed = 0, handles_recorded = 0;

  using adaptor_type::deallocate, adaptor_type::record_stream;
  void deallocate(block_handle h) noexcept {
    ++handles_freed;
    adaptor_type::deallocate(h);
  }
  [[nodiscard]] bool record_stream(block_handle h, stream_id stream) noexcept {
    ++handles_recorded;
    return adaptor_type::record_stream(h, stream);
  }

 private:
  friend adaptor_type;
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F f) {
    return f(me.allocator_);
  }
  plain allocator_;
};

TEST(front_end, changes_the_calls_of_a_handle) {
  counts_handles pool;
  const block_handle h = pool.allocate_by_handle(1_MiB);
  EXPECT_TRUE(pool.record_stream(h, stream_id{2}));
  pool.deallocate(h);
  pool.deallocate(pool.allocate(1_MiB));
  EXPECT_EQ(pool.handles_recorded, 1);
  EXPECT_EQ(pool.handles_freed, 1);
}

TEST(front_end, enters_for_every_call) {
  counted<shared> pool;
  void* p = pool.allocate(1_MiB);
  EXPECT_EQ(pool.calls, 1u);
  EXPECT_TRUE(pool.record_stream(p, stream_id{2}));
  pool.deallocate(p, 1_MiB);
  EXPECT_FALSE(pool.try_deallocate(p));
  pool.trim();
  EXPECT_EQ(pool.calls, 5u);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_EQ(pool.statistics().all.allocation.allocated, 1);
  EXPECT_STREQ(pool.audit(), nullptr);
  EXPECT_EQ(pool.calls, 5u) << "queries are const";
}

TEST(front_end, serves_what_follows_from_its_calls) {
  counted<plain> pool;
  void* const aligned = aligned_request(1000, 4096).allocate(pool, stream_id{});
  aligned_request(1000, 4096).deallocate(pool, aligned);
  const block_handle h = pool.allocate_by_handle(1000);
  pool.deallocate(h);
  void* input = pool.allocate(30_MiB);
  void* const address = input;
  void* const output = allocate_in_place(pool, input, 30_MiB);
  EXPECT_EQ(output, address);
  EXPECT_EQ(live_block_at(pool, output).requested, 30_MiB);
  pool.deallocate(output);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(front_end, throws_through_its_own_try_allocate) {
  counted<plain> pool(simulated_device({.capacity = 4_MiB}));
  EXPECT_THROW((void)pool.allocate(8_MiB), out_of_memory);
  EXPECT_EQ(pool.try_allocate(8_MiB), nullptr);
  EXPECT_EQ(pool.allocate(0), nullptr);
  EXPECT_EQ(pool.failures, 2u);
}

TEST(front_end, may_wrap_another) {
  counted<counted<streamed>> pool;
  pool.deallocate(pool.allocate(1_MiB, stream_id{1}));
  std::size_t devices = 0, arenas = 0;
  pool.for_each_device([&](auto&, std::size_t) { ++devices; });
  pool.for_each_allocator([&](auto&) { ++arenas; });
  pool.visit_policies([](auto& settings) { settings.split.max = 16_MiB; });
  EXPECT_EQ(devices, 1u);
  EXPECT_EQ(arenas, 1u);
}

/// Counts the calls that may have freed memory.
class freeing : public allocator_adaptor<freeing, plain> {
 public:
  int frees = 0;

 private:
  friend allocator_adaptor<freeing, plain>;
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F f) {
    return f(me.allocator_);
  }
  static void after_free(freeing& me) noexcept { ++me.frees; }

  plain allocator_;
};

TEST(front_end, learns_of_pending_blocks_that_become_free) {
  freeing pool;
  constexpr stream_id other{1};
  void* const p = pool.allocate(5_MiB);
  ASSERT_TRUE(pool.record_stream(p, other));
  pool.visit_provider([&](simulated_device& device) { device.submit(other, 1'000'000'000); });
  pool.deallocate(p);
  const int before = pool.frees;
  EXPECT_FALSE(pool.process_events());
  EXPECT_EQ(pool.frees, before);
  pool.visit_provider([](simulated_device& device) { device.advance(1'000'000'000); });
  EXPECT_TRUE(pool.process_events());
  EXPECT_EQ(pool.frees, before + 1);
}

}  // namespace
