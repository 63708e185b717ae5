// SPDX-License-Identifier: Apache-2.0
// Requirements from the tests of RMM and of CUDA's memory pools, applied to tessera.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/interop/cccl.hpp>
#include <tessera/interop/cuda_mempool.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using pool_attribute = cuda_mempool<caching_allocator<cuda_async, simulated_device>>::attribute;

constexpr std::size_t cuda_alignment = 256;  // CUDA_ALLOCATION_ALIGNMENT

/// RMM runs the same checks over each of its resources. Here they run over the corresponding recipe or front
/// end.
template <typename Pool>
struct peers_rmm : ::testing::Test {
  std::unique_ptr<Pool> owned = std::make_unique<Pool>();
  cccl_resource<Pool> memory{*owned};

  void serve(std::size_t bytes, stream_id stream) {
    for (const bool by_stream : {false, true}) {
      void* const p = by_stream ? memory.allocate(stream, bytes, cuda_alignment)
                                : memory.allocate_sync(bytes, cuda_alignment);
      ASSERT_NE(p, nullptr) << bytes;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % cuda_alignment, 0u) << bytes;
      by_stream ? memory.deallocate(stream, p, bytes, cuda_alignment)
                : memory.deallocate_sync(p, bytes, cuda_alignment);
    }
  }
};
using resources =
    ::testing::Types<caching_allocator<passthrough, simulated_device>,                     // cuda
                     caching_allocator<cuda_async, simulated_device>,                      // cuda_async
                     caching_allocator<stitched, simulated_device>,                        // pool
                     caching_allocator<power_of_two, simulated_device>,                    // binning
                     locked<caching_allocator<pytorch_family::native, simulated_device>>,  // thread_safe
                     per_stream<caching_allocator<pytorch_family::expandable, simulated_device>>>;  // arena
TYPED_TEST_SUITE(peers_rmm, resources);

TYPED_TEST(peers_rmm, serves_any_size_on_any_stream_and_reports_too_large_ones) {
  for (const stream_id stream : {stream_id{}, stream_id{7}}) {
    void* const nothing = this->memory.allocate(stream, 0, cuda_alignment);
    this->memory.deallocate(stream, nothing, 0, cuda_alignment);
    for (const std::size_t bytes : {std::size_t{4}, 1_KiB, 1_MiB, 1_GiB}) this->serve(bytes, stream);
    void* p = nullptr;
    try {
      p = this->memory.allocate(stream, std::size_t{1} << 50, cuda_alignment);
      ADD_FAILURE() << "1 PiB was served";
    } catch (const std::bad_alloc& error) {
      EXPECT_NE(std::string(error.what()).find("out of memory"), std::string::npos) << error.what();
    }
    EXPECT_EQ(p, nullptr);
    // Two live blocks never overlap, however small.
    void* const a = this->memory.allocate(stream, 8, cuda_alignment);
    void* const b = this->memory.allocate(stream, 8, cuda_alignment);
    EXPECT_NE(a, b);
    this->memory.deallocate(stream, a, 8, cuda_alignment);
    this->memory.deallocate(stream, b, 8, cuda_alignment);
  }
  EXPECT_EQ(this->owned->current_usage().allocated, 0u);
  EXPECT_EQ(this->owned->audit(), nullptr);
}

TYPED_TEST(peers_rmm, serves_a_hundred_random_sizes_freed_in_any_order) {
  struct allocation {
    std::uintptr_t at;
    std::size_t bytes;
  };
  std::mt19937_64 random(861);
  std::vector<allocation> live;
  for (int made = 0; made < 100 || !live.empty();) {
    if (made < 100 && (live.empty() || random() % 100 < 53)) {
      const std::size_t bytes = 1 + random() % 5_MiB;
      const auto at = reinterpret_cast<std::uintptr_t>(this->memory.allocate(stream_id{3}, bytes));
      ASSERT_EQ(at % cuda_alignment, 0u);
      for (const allocation& other : live)
        ASSERT_TRUE(at + bytes <= other.at || other.at + other.bytes <= at);
      live.push_back({at, bytes}), ++made;
    } else {
      std::swap(live[random() % live.size()], live.back());
      this->memory.deallocate(stream_id{3}, reinterpret_cast<void*>(live.back().at), live.back().bytes);
      live.pop_back();
    }
  }
  EXPECT_EQ(this->owned->current_usage().allocated, 0u);
}

/// A pool from which other pools get their memory. RMM calls it an upstream.
template <typename Pool>
class upstream {
 public:
  explicit upstream(Pool& from) noexcept : from_(&from) {}
  [[nodiscard]] void* acquire(std::size_t bytes) noexcept { return from_->try_allocate(bytes); }
  bool release(void* p, std::size_t) noexcept { return from_->try_deallocate(p); }
  [[nodiscard]] std::size_t capacity() const noexcept { return unlimited; }
  [[nodiscard]] std::size_t granularity() const noexcept { return 512; }

 private:
  Pool* from_;
};

TEST(peers_rmm_pool, may_have_a_pool_for_its_upstream) {
  caching_allocator<pytorch_family::native, simulated_device> outer;
  {
    using recipe = with<paddle_family::auto_growth, reuse_immediately>;  // an upstream has no events here
    caching_allocator<recipe, upstream<decltype(outer)>> inner{upstream(outer)};
    inner.deallocate(inner.allocate(1024));
    void* const kept = inner.allocate(3000);
    EXPECT_EQ(inner.current_usage().reserved, outer.current_usage().allocated);
    inner.trim();
    EXPECT_EQ(inner.current_usage().reserved, 3072u);
    inner.deallocate(kept);
  }
  EXPECT_EQ(outer.current_usage().allocated, 0u) << "what the inner one had has gone back with it";
}

TEST(peers_rmm_pool, grows_up_to_the_limit_of_its_upstream) {
  // 6,000 bytes in RMM, whose segments are multiples of 256; here of 512.
  using few = limiting<simulated_device>;
  caching_allocator<paddle_family::auto_growth, few> pool{few({}, 6144)};
  (void)pool.allocate(1000);
  (void)pool.allocate(4000);
  (void)pool.allocate(500);
  EXPECT_THROW((void)pool.allocate(2000), out_of_memory);
  EXPECT_EQ(pool.provider().taken(), pool.current_usage().reserved);

  // A pool whose first chunk is as large as its limit serves from that chunk and does not grow.
  policies<paddle_family::auto_growth> whole;
  whole.growth.large = 1'000'448;
  whole.growth.limit = 1'000'448;
  caching_allocator<paddle_family::auto_growth, simulated_device> filled{{}, whole};
  (void)filled.allocate(1000);
  (void)filled.allocate(900'000);
  EXPECT_EQ(filled.current_usage().reserved, 1'000'448u);
  EXPECT_EQ(filled.try_allocate(100'000), nullptr);
  EXPECT_EQ(filled.provider().calls().acquire, 1u);
}

TEST(peers_rmm_pool, outlives_the_streams_it_served) {
  caching_allocator<pytorch_family::native, simulated_device> pool;
  void* const on_it = pool.allocate(10'000, stream_id{1});
  pool.provider().submit(stream_id{1}, 1000);
  pool.deallocate(on_it);
  pool.provider().synchronize(stream_id{1});  // the stream is not used any more
  EXPECT_NE(pool.allocate(10'000), nullptr);
  pool.trim();
  EXPECT_EQ(pool.audit(), nullptr);
}

TEST(peers_rmm_limiting, counts_and_refuses_requests_above_it) {
  using inner = limiting<simulated_device>;
  caching_allocator<passthrough, inner> pool{inner({}, 10_MiB)};
  void* const first = pool.allocate(4_MiB);
  void* const second = pool.allocate(4_MiB);
  EXPECT_EQ(pool.provider().taken(), 8_MiB);
  EXPECT_THROW((void)pool.allocate(3_MiB), out_of_memory);
  EXPECT_EQ(pool.provider().taken(), 8_MiB) << "a refusal takes nothing";
  pool.deallocate(first);
  EXPECT_EQ(pool.provider().limit() - pool.provider().taken(), 6_MiB);
  void* const third = pool.allocate(6_MiB);
  EXPECT_EQ(pool.provider().limit() - pool.provider().taken(), 0u);
  pool.deallocate(second), pool.deallocate(third);
  EXPECT_EQ(pool.provider().taken(), 0u);
  EXPECT_THROW((void)pool.allocate(10_MiB + 1), out_of_memory);

  // Of two nested limits, the smaller one applies.
  caching_allocator<passthrough, limiting<inner>> both{limiting<inner>(inner({}, 2_MiB), 5_MiB)};
  EXPECT_THROW((void)both.allocate(4_MiB), out_of_memory);
  both.deallocate(both.allocate(2_MiB));
  EXPECT_EQ(both.provider().taken(), 0u);
}

TEST(peers_rmm_statistics, have_value_peak_and_total) {
  caching_allocator<pytorch_family::native, simulated_device> pool;
  const auto bytes = [&pool] { return pool.statistics().all.requested_bytes; };
  const auto pieces = [&pool] { return pool.statistics().all.allocation; };
  const auto mib = [](std::size_t n) { return static_cast<std::int64_t>(n << 20); };
  EXPECT_EQ(bytes(), counter{});
  EXPECT_EQ(pieces(), counter{});

  std::vector<void*> live;
  for (int i = 0; i < 10; ++i) live.push_back(pool.allocate(10_MiB));
  for (int i = 0; i < 5; ++i) {
    pool.deallocate(live[static_cast<std::size_t>(i)]);
    live.erase(live.begin() + i);
  }
  EXPECT_EQ(bytes(), (counter{mib(50), mib(100), mib(100), mib(50)}));
  EXPECT_EQ(pieces(), (counter{5, 10, 10, 5}));
  for (int i = 0; i < 10; ++i) live.push_back(pool.allocate(10_MiB));
  for (void* p : live) pool.deallocate(p);
  EXPECT_EQ(bytes(), (counter{0, mib(150), mib(200), mib(200)}));
  EXPECT_EQ(pieces(), (counter{0, 15, 20, 20}));

  // Counts the allocations of a part of the program. RMM pushes and pops counters; here they are reset.
  void* const before = pool.allocate(10_MiB);
  pool.reset_peak_statistics(), pool.reset_accumulated_statistics();
  pool.deallocate(pool.allocate(10_MiB));
  EXPECT_EQ(bytes(), (counter{mib(10), mib(20), mib(10), mib(10)}));
  EXPECT_EQ(pieces(), (counter{1, 2, 1, 1}));
  pool.deallocate(before);
}

TEST(peers_rmm_tracking, reports_live_blocks) {
  caching_allocator<pytorch_family::native, simulated_device> pool;
  std::vector<void*> live;
  for (int i = 0; i < 10; ++i) live.push_back(pool.allocate(10_MiB + 100));
  for (std::size_t i = 0; i < live.size(); i += 2) pool.deallocate(live[i]);
  std::size_t outstanding = 0, requested = 0;
  for_each_block(pool, [&](const segment_view&, const block_view& b) {
    if (b.is == block_view::state::live) ++outstanding, requested += b.requested;
  });
  EXPECT_EQ(outstanding, 5u);
  EXPECT_EQ(requested, 5 * (10_MiB + 100));
  EXPECT_EQ(requested, pool.current_usage().requested);
  for (std::size_t i = 1; i < live.size(); i += 2) pool.deallocate(live[i]);
}

/// A failure handler like RMM's, which returns whether to try again.
struct once {
  int calls = 0;
  void* hoarded = nullptr;
  caching_allocator<pytorch_family::native, simulated_device>* pool = nullptr;
  static bool handle(void* context) noexcept {
    auto& self = *static_cast<once*>(context);
    if (self.calls++ > 0) return false;
    self.pool->deallocate(self.hoarded);
    return true;
  }
};

TEST(peers_rmm_failure_callback, is_called_and_the_request_tried_again) {
  const simulated_device::options one_gib{.capacity = 1_GiB};
  caching_allocator<pytorch_family::native, simulated_device> pool{simulated_device(one_gib)};
  once handler{.hoarded = pool.allocate(700_MiB), .pool = &pool};
  ASSERT_TRUE(pool.on_pressure(&once::handle, &handler));
  void* const served = pool.try_allocate(600_MiB);
  EXPECT_NE(served, nullptr) << "from what the handler gave up";
  EXPECT_EQ(handler.calls, 1);
  EXPECT_THROW((void)pool.allocate(600_MiB), out_of_memory);
  EXPECT_EQ(handler.calls, 2) << "and not again and again";
}

TEST(peers_rmm_arena, merges_with_the_neighbours_on_either_side) {
  // Three neighbours are freed in every order. Then their memory serves one request, at the address of the
  // first.
  constexpr std::size_t orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  const auto merge = [&]<typename Recipe>(Recipe) {
    for (const auto& order : orders) {
      caching_allocator<Recipe, simulated_device> pool;
      void* const three[] = {pool.allocate(2048), pool.allocate(2048), pool.allocate(2048)};
      void* const fence = pool.allocate(2048);
      for (const std::size_t i : order) pool.deallocate(three[i]);
      std::size_t free_parts = 0;
      for_each_block(pool, [&](const segment_view&, const block_view& b) {
        free_parts += b.is == block_view::state::free && b.bytes == 3 * 2048;
      });
      EXPECT_EQ(free_parts, 1u);
      EXPECT_EQ(pool.allocate(3 * 2048), three[0] < three[2] ? three[0] : three[2]);
      pool.deallocate(fence);
      EXPECT_EQ(pool.audit(), nullptr);
    }
  };
  merge(pytorch_family::native{}), merge(pytorch_family::expandable{}), merge(stitched{}),
      merge(pinned_packed{});
  merge(cuda_async{});
}

TEST(peers_cuda_pools, keep_memory_up_to_the_threshold_at_synchronizations) {
  // Twenty iterations of allocate, compute, free and synchronize on one stream.
  constexpr stream_id stream{1};
  for (const std::size_t threshold : {std::size_t{0}, unlimited}) {
    cuda_mempool<caching_allocator<cuda_async, simulated_device>> pool;
    ASSERT_TRUE(pool.set(pool_attribute::release_threshold, threshold));
    EXPECT_EQ(pool.get(pool_attribute::release_threshold), threshold);
    for (int i = 0; i < 20; ++i) {
      void* blocks[3];
      for (void*& p : blocks) p = pool.allocate_async(4_MiB, stream);
      pool.provider().submit(stream, 1000);
      for (void* p : blocks) pool.free_async(p, stream);
      ASSERT_TRUE(pool.synchronize(stream));
    }
    EXPECT_EQ(pool.provider().calls().acquire, threshold == 0 ? 60u : 3u);
    EXPECT_EQ(pool.get(pool_attribute::reserved_current), threshold == 0 ? 0u : 12_MiB);
    EXPECT_EQ(pool.get(pool_attribute::used_current), 0u);
    EXPECT_EQ(pool.get(pool_attribute::used_high), 12_MiB);
  }
}

TEST(peers_cuda_pools, take_each_attribute_that_may_be_set) {
  cuda_mempool<caching_allocator<cuda_async, simulated_device>> pool;
  for (const pool_attribute rule :
       {pool_attribute::follow_event_dependencies, pool_attribute::allow_opportunistic,
        pool_attribute::allow_internal_dependencies}) {
    const std::uint64_t was = pool.get(rule);
    ASSERT_TRUE(pool.set(rule, 1 - was));
    EXPECT_EQ(pool.get(rule), 1 - was);
    EXPECT_FALSE(pool.set(rule, 2));
    EXPECT_EQ(pool.get(rule), 1 - was);
    ASSERT_TRUE(pool.set(rule, was));
  }
  void* const p = pool.allocate_async(1_KiB, stream_id{2});
  for (const auto& [high, current] :
       {std::pair{pool_attribute::reserved_high, pool_attribute::reserved_current},
        std::pair{pool_attribute::used_high, pool_attribute::used_current}}) {
    const std::uint64_t peak = pool.get(high);
    EXPECT_EQ(peak, pool.get(current));
    EXPECT_TRUE(pool.set(high, 0));
    EXPECT_EQ(pool.get(high), peak) << "it begins again at what there is";
    EXPECT_FALSE(pool.set(high, peak)) << "and takes no other value";
    EXPECT_FALSE(pool.set(current, 0));
  }
  pool.free_async(p, stream_id{2});
  pool.trim_to(0);
  EXPECT_EQ(pool.get(pool_attribute::reserved_current), 0u);
}

}  // namespace
