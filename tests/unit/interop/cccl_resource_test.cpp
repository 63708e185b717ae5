// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/configured_pinned.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/configured.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/interop/cccl.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "cccl_stand_ins.hpp"
#include "host_pools.hpp"

namespace {

using namespace tessera;
using cccl_stand_ins::device_accessible;
using cccl_stand_ins::host_accessible;
using cccl_stand_ins::stream_ref;
using shape_tests::host_memory;
using shape_tests::is_aligned;
using shape_tests::packed_tightly;
using torch = caching_allocator<pytorch<>, simulated_device>;
using safe_torch = locked<caching_allocator<pytorch<>, simulated_device>>;
using on_device = cccl_resource<torch, device_accessible>;
using owner = cccl_resource<shared_allocator<safe_torch>, device_accessible>;

template <typename R>
constexpr bool has_the_shapes =
    cccl_stand_ins::synchronous_resource<R> && cccl_stand_ins::resource<R> && cccl_stand_ins::can_be_kept<R>;
static_assert(has_the_shapes<cccl_resource<torch>> && has_the_shapes<on_device> && has_the_shapes<owner>);
static_assert(has_the_shapes<cccl_resource<per_stream<caching_allocator<pytorch<>, simulated_device>>>>);
static_assert(has_the_shapes<
              cccl_resource<configured<pytorch_family, caching_allocator<pytorch<>, simulated_device>>>>);
static_assert(has_the_shapes<
              cccl_resource<configured_pinned<pytorch_family::pinned_family, host_pinned>, host_accessible>>);

static_assert(cccl_stand_ins::resource_with<on_device, device_accessible>);
static_assert(!cccl_stand_ins::has_property<on_device, host_accessible>);
static_assert(!cccl_stand_ins::has_property<cccl_resource<torch>, device_accessible>);
static_assert(cccl_stand_ins::resource_with<cccl_resource<torch, host_accessible, device_accessible>,
                                            device_accessible, host_accessible>);
static_assert(cccl_stand_ins::synchronous_resource_with<owner, device_accessible>);

static_assert(noexcept(std::declval<on_device&>().deallocate(std::declval<stream_ref>(), nullptr, 0, 1)));
static_assert(noexcept(std::declval<on_device&>().deallocate_sync(nullptr, 0, 1)));
// A wrapped resource is a resource.
static_assert(cccl_stand_ins::resource<cccl_stand_ins::any_resource<device_accessible>>);

static_assert(detail::stream_like<stream_id> && detail::stream_like<stream_ref> &&
              detail::stream_like<cccl_stand_ins::stream_handle>);
static_assert(detail::stream_like<stream_id::any>);
static_assert(!detail::stream_like<double> && !detail::stream_like<int> && !detail::stream_like<torch>);
static_assert(!detail::stream_like<std::size_t> && !detail::stream_like<bool> &&
              !detail::stream_like<std::nullptr_t>);
/// Like rmm::cuda_stream_view and c10::cuda::CUDAStream.
struct stream_view {
  cccl_stand_ins::stream_handle of;
  operator cccl_stand_ins::stream_handle() const noexcept { return of; }
};
static_assert(detail::stream_like<stream_view>);
struct queue {
  int number;
  operator stream_id() const { return stream_id(static_cast<std::uint64_t>(number) + 10); }
};
static_assert(detail::stream_like<queue>);

// The calls of CCCL before 3.1 do not compile, neither with variables nor with literals.
template <typename R>
concept allocates_by_two_numbers = requires(R& r, std::size_t number) {
  r.allocate(number, number);
} || requires(R& r) { r.allocate(1000, 256); } || requires(R& r) { r.allocate(0, 256); };
template <typename R>
concept frees_by_two_numbers = requires(R& r, void* p, std::size_t number) {
  r.deallocate(p, number, number);
} || requires(R& r, void* p) { r.deallocate(p, 0, 256); };
static_assert(!allocates_by_two_numbers<on_device> && !frees_by_two_numbers<on_device>);
static_assert(!cccl_stand_ins::before_3_1::resource<on_device>);
static_assert(!cccl_stand_ins::before_3_1::resource<owner> &&
              !cccl_stand_ins::before_3_1::async_resource<owner>);

stream_ref stream(std::uintptr_t number) { return {reinterpret_cast<cccl_stand_ins::stream_handle>(number)}; }

TEST(cccl_resource, names_streams_by_their_handles) {
  EXPECT_EQ(detail::to_stream_id(stream_id{3}), stream_id{3});
  EXPECT_EQ(detail::to_stream_id(stream(0x7f00)), stream_id{0x7f00});
  EXPECT_EQ(detail::to_stream_id(stream(0x7f00).get()), stream_id{0x7f00});
  EXPECT_EQ(detail::to_stream_id(stream_view{stream(0x7f00).get()}), stream_id{0x7f00});
  EXPECT_EQ(detail::to_stream_id(queue{2}), stream_id{12});
  EXPECT_EQ(detail::to_stream_id(stream(0)), stream_id{});
}

TEST(cccl_resource, allocates_and_frees_in_the_order_of_a_stream) {
  torch pool;
  on_device memory(pool);
  void* const p = memory.allocate(stream(1), 1000, 256);
  EXPECT_TRUE(is_aligned(p, 256));
  memory.deallocate(stream(1), p, 1000, 256);
  EXPECT_EQ(memory.allocate(stream(1), 1000, 256), p);
  EXPECT_NE(memory.allocate(stream(2), 1000), p);
  EXPECT_EQ(pool.current_usage().allocated, 2048u);
}

TEST(cccl_resource, reuses_in_order_of_the_stream_that_freed_it) {
  torch pool;
  cccl_resource memory(pool);
  void* const p = memory.allocate(stream(1), 1000);
  pool.provider().submit(stream_id{2}, 1'000'000);
  memory.deallocate(stream(2), p, 1000);
  EXPECT_EQ(pool.current_usage().pending(), 1024u);
  void* const other = memory.allocate(stream(1), 1000);
  EXPECT_NE(other, p);
  pool.provider().advance(2'000'000);
  EXPECT_EQ(memory.allocate(stream(1), 1000), p);
}

TEST(cccl_resource, waits_if_memory_is_for_any_stream_at_once) {
  torch pool;
  cccl_resource memory(pool, stream_id{9});
  void* const p = memory.allocate(stream(9), 1000);
  pool.provider().submit(stream_id{9}, 1'000'000);
  memory.deallocate(stream(9), p, 1000);  // that work may still use it
  const std::uint64_t before = pool.provider().now_ns();
  EXPECT_EQ(memory.allocate_sync(1000), p);
  EXPECT_GE(pool.provider().now_ns(), before + 1'000'000);
  memory.deallocate_sync(p, 1000);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

/// A device whose streams cannot be synchronized.
struct broken_device : simulated_device {
  using simulated_device::simulated_device;
  bool broken = false;
  bool record(stream_id s, event& e) noexcept { return !broken && simulated_device::record(s, e); }
  bool synchronize(stream_id s) noexcept { return !broken && simulated_device::synchronize(s); }
};
TEST(cccl_resource, reports_that_the_device_could_not_wait) {
  caching_allocator<pytorch<>, broken_device> pool;
  cccl_resource memory(pool);
  pool.provider().broken = true;
  EXPECT_THROW((void)memory.allocate_sync(1000), std::runtime_error);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}
TEST(cccl_resource, does_not_wait_in_a_capture) {
  caching_allocator<pytorch<>, simulated_device, extension::private_pools> pool;
  cccl_resource memory(pool);
  memory.deallocate(stream(0), memory.allocate(stream(0), 1000), 1000);
  pool.provider().submit({}, 1'000'000);
  const std::uint64_t before = pool.provider().now_ns();
  {
    const extension::private_pool graph(pool);
    const extension::pool_scope scope(graph, extension::scope_kind::capture);
    EXPECT_THROW((void)memory.allocate_sync(1000), std::runtime_error);
    EXPECT_LT(pool.provider().now_ns(), before + 1'000'000);
  }
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  memory.deallocate_sync(memory.allocate_sync(1000), 1000);
  EXPECT_GE(pool.provider().now_ns(), before + 1'000'000);
}

/// Has only the required functions.
struct plain_device {
  simulated_device inside;
  void* acquire(std::size_t bytes) noexcept { return inside.acquire(bytes); }
  bool release(void* p, std::size_t bytes) noexcept { return inside.release(p, bytes); }
  std::size_t capacity() const noexcept { return inside.capacity(); }
  std::size_t granularity() const noexcept { return inside.granularity(); }
};
TEST(cccl_resource, serves_without_streams) {
  caching_allocator<with<pytorch<>, reuse_immediately>, plain_device> pool;
  cccl_resource memory(pool);
  void* const p = memory.allocate_sync(1000);
  memory.deallocate_sync(p, 1000);
  memory.deallocate(stream(5), memory.allocate(stream(4), 1000), 1000);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_EQ(pool.current_usage().pending(), 0u);
}

TEST(cccl_resource, serves_any_alignment_and_no_bytes) {
  caching_allocator<packed_tightly, simulated_device> pool;
  cccl_resource memory(pool);
  std::vector<std::pair<void*, std::size_t>> given;
  for (std::size_t alignment = 1; alignment <= 64_KiB; alignment *= 2) {
    given.emplace_back(memory.allocate(stream(1), 0, alignment), alignment);
    EXPECT_TRUE(is_aligned(given.back().first, alignment));
    EXPECT_NE(given.back().first, nullptr);
    given.emplace_back(memory.allocate_sync(0, alignment), alignment);
    EXPECT_TRUE(is_aligned(given.back().first, alignment));
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (i % 4 < 2) {
      memory.deallocate(stream(i), given[i].first, 0, given[i].second);
    } else {
      memory.deallocate_sync(given[i].first, 0, given[i].second);
    }
  }
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(cccl_resource, refuses_what_is_no_alignment) {
  torch allocator;
  cccl_resource resource(allocator);
  for (const std::size_t alignment : {std::size_t{0}, std::size_t{3}, std::size_t{768}, ~std::size_t{0}}) {
    EXPECT_THROW((void)resource.allocate(stream_id{1}, 100, alignment), std::invalid_argument);
    EXPECT_THROW((void)resource.allocate_sync(100, alignment), std::invalid_argument);
  }
  for (const int power : {50, 59, 60, 63}) {
    EXPECT_THROW((void)resource.allocate(stream_id{1}, 100, std::size_t{1} << power), std::bad_alloc);
    EXPECT_THROW((void)resource.allocate_sync(100, std::size_t{1} << power), std::bad_alloc);
  }
  EXPECT_EQ(allocator.current_usage().allocated, 0u);
  try {
    (void)resource.allocate(stream_id{1}, 100, 3);
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "tessera: cccl_resource: an alignment is a power of two, unlike 3");
  }
}

TEST(cccl_resource, is_equal_to_resources_of_the_same_allocator) {
  torch a, b;
  on_device to_a(a), with_its_stream(a, stream_id{1}), to_b(b);
  EXPECT_EQ(to_a, with_its_stream);
  EXPECT_NE(to_a, to_b);
  to_b = to_a;
  EXPECT_EQ(to_a, to_b);
}

TEST(cccl_resource, can_be_stored_as_any_resource) {
  torch pool;
  cccl_stand_ins::any_resource<device_accessible> kept{on_device(pool)}, copy = kept;
  EXPECT_EQ(kept, copy);
  torch another;
  EXPECT_NE(kept, cccl_stand_ins::any_resource<device_accessible>(on_device(another)));
  void* const p = kept.allocate(stream(1), 1000, 256);
  void* const q = copy.allocate_sync(1000, 16);
  copy.deallocate(stream(1), p, 1000, 256);
  kept.deallocate_sync(q, 1000, 16);
  on_device memory(pool);
  cccl_stand_ins::resource_ref<device_accessible> ref(memory);
  ref.deallocate(stream(2), ref.allocate(stream(2), 100, 8), 100, 8);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(cccl_resource, owns_a_shared_allocator) {
  simulated_device device;
  {
    using pool_type = locked<caching_allocator<pytorch<>, provider_ref<simulated_device>>>;
    using memory = cccl_resource<shared_allocator<pool_type>, device_accessible>;
    auto pool = shared_allocator<pool_type>::make(provider_ref(device));
    cccl_stand_ins::any_resource<device_accessible> kept{memory(pool)};
    pool = {};
    auto copy = kept;
    void* const p = kept.allocate(stream(1), 1000, 256);
    kept = memory(shared_allocator<pool_type>::make(provider_ref(device)));
    EXPECT_NE(kept, copy);
    EXPECT_EQ(device.used(), 2_MiB);
    copy.deallocate(stream(1), p, 1000, 256);
    EXPECT_NE(copy.allocate_sync(1000, 256), nullptr);
  }
  EXPECT_EQ(device.used(), 0u);
}

TEST(stream_resource_threads, share_one_allocator_by_copies) {
  using pool_type = locked<caching_allocator<packed_tightly, host_pinned>>;
  const cccl_resource memory(shared_allocator<pool_type>::make(host_memory()));
  std::vector<std::thread> running;
  for (std::uint64_t t = 0; t < 3; ++t) {
    running.emplace_back([mine = memory, t]() mutable {
      for (std::size_t i = 0; i < 500; ++i) {
        const std::size_t alignment = std::size_t{1} << i % 13;
        auto* const p = static_cast<std::uint64_t*>(mine.allocate(stream_id{t}, 8, alignment));
        *p = t;
        auto* const q = static_cast<std::uint64_t*>(mine.allocate_sync(8, alignment));
        *q = t;
        EXPECT_EQ(*p + *q, 2 * t);
        mine.deallocate(stream_id{t}, p, 8, alignment);
        mine.deallocate_sync(q, 8, alignment);
      }
    });
  }
  for (std::thread& t : running) t.join();
  EXPECT_EQ(memory.allocator()->current_usage().allocated, 0u);
}

TEST(cccl_resource, compiles_the_example_of_its_comment) {
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> pool;
  tessera::interop::cccl_resource memory(pool);
  void* p = memory.allocate(tessera::stream_id{1}, 1000, 256);
  memory.deallocate(tessera::stream_id{1}, p, 1000, 256);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

}  // namespace
