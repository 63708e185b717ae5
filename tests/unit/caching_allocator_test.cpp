// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/law/policy_laws.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "tessera_replay/restoring.hpp"

namespace {

using namespace tessera;
using torch = caching_allocator<pytorch<>, simulated_device, extension::private_pools>;

TEST(caching_allocator, answers_zero_bytes_with_null) {
  torch pool;
  EXPECT_EQ(pool.allocate(0), nullptr);
  EXPECT_EQ(pool.provider().calls().acquire, 0u);
  pool.deallocate(nullptr);
}

TEST(caching_allocator, explains_out_of_memory) {
  torch pool{simulated_device{simulated_device::options{.capacity = 30_MiB}}};
  (void)pool.allocate(5_MiB);
  try {
    (void)pool.allocate(25_MiB);
    FAIL();
  } catch (const out_of_memory& error) {
    EXPECT_EQ(error.requested(), 25_MiB);
    EXPECT_EQ(error.segment(), 26_MiB);
    EXPECT_EQ(error.at_failure().allocated, 5_MiB);
    EXPECT_EQ(error.at_failure().cached, 15_MiB);
    EXPECT_EQ(error.numbers().now, pool.current_usage());
    EXPECT_TRUE(std::string(error.what())
                    .starts_with("tessera: out of memory: 25.00 MiB (26214400 bytes) requested on stream 0; "
                                 "needs a block of 25.00 MiB and a segment of 26.00 MiB\n"))
        << error.what();
  }
}

// In ranges, the request needs whole pages of them, except for those that a free block at the end has.
TEST(caching_allocator, names_the_pages_that_the_device_was_asked_for) {
  caching_allocator<pytorch<"expandable_segments:True">, simulated_device> pool{
      simulated_device{simulated_device::options{.capacity = 10_MiB}}};
  try {
    (void)pool.allocate(5_MiB);
    FAIL();
  } catch (const out_of_memory& error) {
    EXPECT_EQ(error.segment(), 20_MiB);
    EXPECT_TRUE(std::string(error.what()).find("needs a block of 5.00 MiB and a segment of 20.00 MiB\n") !=
                std::string::npos)
        << error.what();
  }
}

TEST(caching_allocator, refuses_absurd_sizes) {
  torch pool;
  EXPECT_EQ(pool.try_allocate(max_request + 1), nullptr);
  EXPECT_THROW((void)pool.allocate(~std::size_t{0}), out_of_memory);
  EXPECT_EQ(pool.try_allocate(max_request), nullptr);
  EXPECT_EQ(pool.provider().calls().acquire,
            2u);  // only the last one is requested, before and after the cache is emptied
}

TEST(caching_allocator, leaves_foreign_addresses_alone) {
  torch pool;
  void* p = pool.allocate(1_KiB);
  int foreign = 0;
  EXPECT_FALSE(pool.try_deallocate(&foreign));
  EXPECT_FALSE(pool.try_record_stream(&foreign, stream_id{1}));
  EXPECT_FALSE(pool.try_deallocate(static_cast<char*>(p) + 512));
  EXPECT_TRUE(pool.try_deallocate(p));
  EXPECT_FALSE(pool.try_deallocate(p));
  EXPECT_STREQ(pool.audit(), nullptr);
}

using caching_allocator_death = testing::Test;
TEST(caching_allocator_death, names_a_double_free) {
  torch pool;
  void* p = pool.allocate(1_KiB);
  pool.deallocate(p);
  EXPECT_DEATH(pool.deallocate(p), "deallocate: not the address of a live block");
  void* q = pool.allocate(1_KiB);
  EXPECT_DEATH(pool.deallocate(q, 1000), "deallocate: not the requested size");
  pool.deallocate(q, 1_KiB);
}

TEST(caching_allocator, keeps_devices_and_allocators_apart) {
  simulated_device shared;
  caching_allocator<pytorch<>, provider_ref<simulated_device>, extension::private_pools> one{
      provider_ref(shared)},
      two{provider_ref(shared)};
  torch other{simulated_device{simulated_device::options{.device = 1}}};
  void* p = one.allocate(1_KiB);
  void* q = two.allocate(1_KiB);
  void* r = other.allocate(1_KiB);
  EXPECT_TRUE(p != q && p != r && q != r);
  EXPECT_FALSE(two.try_deallocate(p));
  EXPECT_EQ(shared.used(), 4_MiB);
  one.deallocate(p);
  two.deallocate(q);
  one.trim();
  EXPECT_EQ(shared.used(), 2_MiB);
}

TEST(caching_allocator, gives_everything_back_at_its_end) {
  simulated_device shared;
  {
    caching_allocator<pytorch<>, provider_ref<simulated_device>, extension::private_pools> pool{
        provider_ref(shared)};
    (void)pool.allocate(1_KiB);
    void* p = pool.allocate(30_MiB);
    (void)pool.record_stream(p, stream_id{9});
    shared.hold_events(true);
    pool.deallocate(p);
    (void)pool.allocate(3_MiB, stream_id{2});
  }
  EXPECT_EQ(shared.used(), 0u);
}

TEST(caching_allocator, trims_to_the_bytes_to_keep) {
  torch pool;
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.allocate(30_MiB));
  for (void* p : blocks) pool.deallocate(p);
  pool.trim(70_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 60_MiB);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

struct caches_above {
  torch* pool;
  void* spare;
  int calls = 0;
};
TEST(caching_allocator, asks_caches_above_it_before_growing) {
  torch pool;
  caches_above above{&pool, pool.allocate(30_MiB)};
  ASSERT_TRUE(pool.on_pressure(
      [](void* context) noexcept {
        auto& self = *static_cast<caches_above*>(context);
        ++self.calls;
        if (self.spare == nullptr) return false;
        self.pool->deallocate(self.spare);
        self.spare = nullptr;
        return true;
      },
      &above));
  (void)pool.allocate(30_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 30_MiB);
  (void)pool.allocate(30_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 60_MiB);
  EXPECT_EQ(above.calls, 2);
}

TEST(caching_allocator, lets_caches_above_it_use_it_while_they_are_asked) {
  torch pool;
  int calls = 0;
  std::pair<torch*, int*> context{&pool, &calls};
  ASSERT_TRUE(pool.on_pressure(
      [](void* given) noexcept {
        auto& [inner, count] = *static_cast<std::pair<torch*, int*>*>(given);
        ++*count;
        inner->deallocate(inner->allocate(40_MiB, stream_id{3}));
        inner->trim();
        return true;
      },
      &context));
  void* p = pool.allocate(30_MiB, stream_id{5});
  EXPECT_NE(p, nullptr);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(pool.current_usage().reserved, 30_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(caching_allocator, counts_oversize_by_the_setting_of_their_time) {
  torch pool{simulated_device{}, {.split = {.max = 30_MiB}}};
  void* p = pool.allocate(40_MiB);
  pool.policies().split.max = unlimited;
  pool.deallocate(p);
  pool.trim();
  EXPECT_EQ(pool.statistics().oversize_allocations, (counter{0, 1, 1, 1}));
  EXPECT_EQ(pool.statistics().oversize_segments, (counter{0, 1, 1, 1}));
}

TEST(caching_allocator, counts_a_block_of_exactly_the_limit_as_oversize) {
  torch pool{simulated_device{}, {.split = {.max = 30_MiB}}};
  (void)pool.allocate(28_MiB);
  EXPECT_EQ(pool.statistics().oversize_allocations.current, 0);
  (void)pool.allocate(30_MiB);
  EXPECT_EQ(pool.statistics().oversize_allocations.current, 1);
  EXPECT_EQ(pool.statistics().oversize_segments.current, 1);
}

struct memory {
  std::vector<allocator_event>* events;
  void on(const allocator_event& event) noexcept { events->push_back(event); }
};
TEST(caching_allocator, reports_to_its_observer) {
  std::vector<allocator_event> events;
  caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::observer<memory>> pool{
      simulated_device{simulated_device::options{.capacity = 4_MiB}},
      {},
      extension::observer<memory>{{&events}}};
  void* p = pool.allocate(1000);
  pool.deallocate(p);
  EXPECT_EQ(pool.try_allocate(5_MiB), nullptr);
  std::vector<allocator_event::action> actions;
  for (const auto& e : events) actions.push_back(e.what);
  using enum allocator_event::action;
  EXPECT_EQ(actions, (std::vector{segment_alloc, alloc, free_requested, free_completed, refused, segment_free,
                                  refused, oom}));
  EXPECT_EQ(events[1].bytes, 1000u);
  EXPECT_EQ(events[1].block, 1024u);
  EXPECT_EQ(events[4].bytes, 20_MiB);
  static_assert(sizeof(caching_allocator<pytorch<>, simulated_device, extension::private_pools>) <=
                sizeof(caching_allocator<pytorch<>, simulated_device, extension::private_pools,
                                         extension::observer<memory>>));
}

TEST(caching_allocator, allocates_from_the_high_end_if_the_policy_reports_so) {
  using high = with<pytorch<>, split_if_remainder_at_least<512, block_end::high>>;
  caching_allocator<high, simulated_device, extension::private_pools> pool;
  auto* first = static_cast<char*>(pool.allocate(1_KiB));
  auto* second = static_cast<char*>(pool.allocate(1_KiB));
  EXPECT_EQ(second + 1024, first);
  pool.deallocate(first);
  EXPECT_EQ(pool.allocate(1_KiB), first);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(caching_allocator, falls_back_from_huge_pages) {
  using recipe = with<pytorch<>, prefer_pages<page_preference::huge_first>>;
  caching_allocator<recipe, simulated_device, extension::private_pools> pool{
      simulated_device{simulated_device::options{.huge_budget = 20_MiB}}};
  (void)pool.allocate(20_MiB);
  EXPECT_EQ(pool.provider().calls().acquire, 1u);
  (void)pool.allocate(20_MiB);
  EXPECT_EQ(pool.provider().calls().acquire, 3u);
  EXPECT_EQ(pool.provider().calls().refused, 1u);
}

TEST(caching_allocator, passes_through) {
  caching_allocator<passthrough, simulated_device, extension::private_pools> pool;
  void* p = pool.allocate(1000);
  EXPECT_EQ(pool.current_usage().reserved, 1024u);
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  void* q = pool.allocate(1000);
  (void)pool.record_stream(q, stream_id{1});
  pool.provider().submit(stream_id{1}, 1000);
  pool.deallocate(q);
  EXPECT_EQ(pool.current_usage().pending(), 1024u);
  pool.provider().advance(1'000'000);
  (void)pool.allocate(10);
  EXPECT_EQ(pool.current_usage().reserved, 512u);
}

TEST(caching_allocator, serves_powers_of_two_from_their_class_only) {
  caching_allocator<power_of_two, simulated_device, extension::private_pools> pool;
  void* big = pool.allocate(100'000);
  EXPECT_EQ(pool.current_usage().allocated, 131'072u);
  pool.deallocate(big);
  EXPECT_NE(pool.allocate(50'000), big);
  EXPECT_EQ(pool.allocate(70'000), big);
}

TEST(caching_allocator, names_the_segment_that_the_device_was_asked_for) {
  caching_allocator<passthrough, simulated_device, extension::private_pools> pool{
      simulated_device{simulated_device::options{.capacity = 64_KiB, .granularity = 64_KiB}}};
  (void)pool.allocate(100);
  try {
    (void)pool.allocate(100);
    FAIL();
  } catch (const out_of_memory& error) {
    EXPECT_EQ(error.segment(), 64_KiB);
  }
}

// Then a block of 512 bytes gets a segment of 64 KiB, which the same request reuses.
TEST(caching_allocator, reuses_whole_blocks_if_the_granularity_exceeds_their_size) {
  caching_allocator<power_of_two, simulated_device, extension::private_pools> pool{
      simulated_device{simulated_device::options{.granularity = 64_KiB}}};
  void* const first = pool.allocate(100);
  EXPECT_EQ(pool.current_usage().allocated, 64_KiB);
  pool.deallocate(first);
  EXPECT_EQ(pool.allocate(100), first);
  pool.deallocate(first);
  EXPECT_EQ(pool.allocate(5000), first);
  pool.deallocate(pool.allocate(128_KiB));
  EXPECT_NE(pool.allocate(100), nullptr);
  EXPECT_EQ(pool.statistics().num_device_alloc, 3u);
  EXPECT_EQ(pool.current_usage().allocated, 128_KiB);
  EXPECT_STREQ(pool.audit(), nullptr);
}

/// Streams of equal parity share their blocks.
struct share_by_parity : tessera::detail::no_reuse_across_streams {
  static constexpr bool uses_events = true;
  [[nodiscard]] static constexpr stream_id reuse_key(stream_id s) noexcept { return stream_id(s.handle & 1); }
  [[nodiscard]] static constexpr bool needs_event(stream_id key, stream_id user) noexcept {
    return key != reuse_key(user);
  }
  bool operator==(const share_by_parity&) const = default;
};
static_assert(law::policy(share_by_parity{}));

TEST(caching_allocator, holds_blocks_of_a_group_for_other_groups_only) {
  caching_allocator<with<pytorch<>, share_by_parity>, simulated_device, extension::private_pools> pool;
  pool.provider().hold_events(true);
  void* p = pool.allocate(5_MiB, stream_id{3});
  (void)pool.record_stream(p, stream_id{1});
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  EXPECT_EQ(pool.allocate(5_MiB, stream_id{1}), p);
  (void)pool.record_stream(p, stream_id{2});
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 5_MiB);
}

TEST(caching_allocator, keeps_little_for_streams_that_came_and_went) {
  caching_allocator<passthrough, simulated_device, extension::private_pools> pool;
  for (std::uint64_t s = 1; s <= 5000; ++s) pool.deallocate(pool.allocate(100, stream_id{s}));
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_LT(pool.metadata_bytes(), 1_MiB);
}

TEST(caching_allocator, forgets_streams_that_own_nothing) {
  torch pool;
  const std::size_t before = pool.metadata_bytes();
  for (std::uint64_t s = 1; s <= 1000; ++s) {
    pool.deallocate(pool.allocate(1_KiB, stream_id{s}));
    pool.trim();
  }
  EXPECT_LT(pool.metadata_bytes(), before + 4_KiB);
}

TEST(caching_allocator, describes_blocks_in_128_bytes_and_gives_those_back) {
  torch pool;
  const std::size_t before = pool.metadata_bytes();
  std::vector<void*> live;
  for (std::size_t i = 0; i < 100'000; ++i) live.push_back(pool.allocate(512));
  EXPECT_LT(pool.metadata_bytes() - before, live.size() * 128);
  for (std::size_t i = 0; i < live.size(); ++i) pool.deallocate(live[i * 7919 % live.size()]);
  pool.trim();
  EXPECT_LT(pool.metadata_bytes(), before + 4_KiB);
}

TEST(caching_allocator, takes_over_a_segment_in_pieces) {
  for (const bool oversize : {true, false}) {
    caching_allocator<pytorch<>, simulated_device, replay::restoring> pool;
    if (oversize) pool.policies().split.max = 20_MiB;
    const std::vector<block_view> blocks{{.bytes = 12_MiB, .requested = 11_MiB}, {.bytes = 18_MiB}};
    ASSERT_TRUE(pool.get<replay::restoring>().restore({.bytes = 30_MiB, .pool = 1}, 12_MiB, blocks));
    void* segment = nullptr;
    tessera::detail::introspect(pool).for_each_segment(
        [&](const detail::block& first) { segment = reinterpret_cast<void*>(first.address); });
    EXPECT_EQ(pool.statistics().oversize_segments.current, oversize ? 1 : 0);
    EXPECT_EQ(pool.current_usage().requested, 11_MiB);
    EXPECT_EQ(pool.current_usage().allocated, 12_MiB);
    EXPECT_EQ(pool.current_usage().cached, 18_MiB);
    EXPECT_STREQ(pool.audit(), nullptr);
    pool.deallocate(segment);
    pool.trim();
    EXPECT_EQ(pool.statistics().oversize_segments.current, 0);
    EXPECT_EQ(pool.provider().used(), 0u);
  }
}

TEST(caching_allocator, resets_statistics_as_pytorch_does) {
  torch pool;
  void* p = pool.allocate(1_KiB);
  void* q = pool.allocate(3_KiB);
  pool.deallocate(q);
  EXPECT_EQ(pool.statistics().all.allocated_bytes, (counter{1024, 4096, 4096, 3072}));
  pool.reset_peak_statistics();
  EXPECT_EQ(pool.statistics().all.allocated_bytes.peak, 1024);
  pool.reset_accumulated_statistics();
  pool.deallocate(p);
  EXPECT_EQ(pool.statistics().all.allocated_bytes, (counter{0, 1024, 0, 1024}));
  EXPECT_EQ(pool.statistics().all.active, (counter{0, 1, 0, 1}));
  EXPECT_EQ(pool.statistics().pool[0].requested_bytes, (counter{0, 1024, 0, 1024}));
}

template <std::size_t Threshold, typename Eviction = evict_never>
using late = caching_allocator<with<pytorch<>, poll_events_lazily<reuse_on_same_stream, Threshold>, Eviction>,
                               simulated_device, extension::private_pools>;

TEST(caching_allocator, polls_after_a_miss_what_a_callback_freed) {
  struct holder {
    late<0> pool;
    void* kept = nullptr;
  } mine;
  mine.kept = mine.pool.allocate(300_MiB);
  ASSERT_TRUE(mine.pool.record_stream(mine.kept, stream_id{2}));
  ASSERT_TRUE(mine.pool.on_pressure(
      [](void* of) noexcept {
        auto& owner = *static_cast<holder*>(of);
        if (owner.kept == nullptr) return false;
        owner.pool.deallocate(std::exchange(owner.kept, nullptr));
        return true;
      },
      &mine));
  EXPECT_NE(mine.pool.allocate(300_MiB), nullptr);
  EXPECT_EQ(mine.pool.current_usage().reserved, 300_MiB) << "the block that the callback freed serves";
}

TEST(caching_allocator, evicts_what_a_poll_after_a_miss_freed) {
  late<512, evict_at_free<>> pool;
  void* const p = pool.allocate(30_MiB);
  ASSERT_TRUE(pool.record_stream(p, stream_id{2}));
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 30_MiB);
  EXPECT_NE(pool.allocate(50_MiB), nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 50_MiB);
}

/// Evicts during a capture, while the stream of the idle memory is busy.
template <typename Recipe>
void evict_in_a_capture() {
  simulated_device device({.capacity = 200_MiB});
  caching_allocator<Recipe, provider_ref<simulated_device>, extension::private_pools> memory{
      provider_ref(device)};
  void* const kept = memory.allocate(40_MiB);
  memory.deallocate(memory.allocate(120_MiB));
  device.submit(stream_id{}, 1'000'000'000);
  const extension::private_pool graph(memory);
  const extension::pool_scope capture(graph, stream_id{}, extension::scope_kind::capture);
  const auto before = device.calls();
  (void)memory.try_allocate(30_MiB);
  memory.deallocate(kept);
  EXPECT_EQ(device.calls().record, before.record);
  EXPECT_EQ(device.calls().wait + device.calls().synchronize, before.wait + before.synchronize);
}

TEST(caching_allocator, waits_for_nothing_in_a_capture) {
  evict_in_a_capture<with<pytorch<>, evict_idle_above<percent(60)>>>();
  evict_in_a_capture<with<pytorch<>, evict_at_free<>>>();
  evict_in_a_capture<with<pytorch<"expandable_segments:True">, evict_idle_above<percent(60)>>>();
  evict_in_a_capture<with<stitched, evict_at_free<>>>();
}

}  // namespace
