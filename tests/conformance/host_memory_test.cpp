// SPDX-License-Identifier: Apache-2.0
// Host memory runs out at any place where an allocator needs some. No host memory leaks.
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/extension/checkpoints.hpp>
#include <tessera/extension/faulty_memory.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/interop/aligned_request.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/provider/stream_order.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/captured.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>

#include "extensions.hpp"
#include "first_broken_rule.hpp"

#if __has_include(<malloc.h>)
#include <malloc.h>
#endif

namespace {
thread_local std::uint64_t asked = 0;     // the number of allocations of each kind that can fail
thread_local std::uint64_t fails_at = 0;  // 0 for never
thread_local std::uint64_t fails_for = 0;

bool fails() noexcept {
  ++asked;
  return fails_at != 0 && asked >= fails_at && asked < fails_at + fails_for;
}
template <typename... How>
void* unless_it_fails(std::size_t bytes, How... how) noexcept {
  if (fails()) return nullptr;
  try {
    return ::operator new(bytes, how...);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
}  // namespace

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return unless_it_fails(bytes); }
void* operator new(std::size_t bytes, std::align_val_t to, const std::nothrow_t&) noexcept {
  return unless_it_fails(bytes, to);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  if (fails()) return nullptr;
  try {
    return ::operator new[](bytes);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

namespace {

using namespace tessera;
using conformance::first_broken_rule;
using conformance::plan;

template <typename Recipe>
class host_memory : public testing::Test {};
using recipes =
    testing::Types<pytorch<>, with<paddle_family::auto_growth, pool_small_and_large<1_MiB>>,
                   pytorch_family::expandable, with<stitched, evict_idle_above<percent(60)>>, cuda_async>;
TYPED_TEST_SUITE(host_memory, recipes);

const std::vector<stream_id> streams{stream_id{0}, stream_id{1}, stream_id{2}};

TYPED_TEST(host_memory, that_runs_out_anywhere_breaks_no_rule) {
  for (const std::uint64_t calls : {1u, 3u}) {
    for (std::uint64_t k = 1; k <= 60; ++k) {
      simulated_device shared{simulated_device::options{.capacity = 200_MiB}};
      {
        caching_allocator<TypeParam, provider_ref<simulated_device>, extension::private_pools,
                          extension::checkpoints>
            pool{provider_ref(shared)};
        asked = 0;
        fails_at = k;
        fails_for = calls;
        const std::string broken = first_broken_rule(pool, plan{k, 300, 32_MiB, 150, 1}, streams);
        fails_at = 0;
        ASSERT_EQ(broken, "") << "with demand " << k << " for host memory failing";
      }
      ASSERT_EQ(shared.used(), 0u) << "with demand " << k << " for host memory failing";
      if (asked < k) break;
    }
  }
}

// Without host memory, calls that need some fail, and everything else stays as it was.
TYPED_TEST(host_memory, that_has_run_out_fails_requests_and_loses_nothing) {
  caching_allocator<TypeParam, simulated_device, extension::private_pools, extension::checkpoints> pool{
      simulated_device{simulated_device::options{.capacity = 600_MiB}}};
  std::vector<void*> live;
  for (int i = 0; i < 10; ++i) live.push_back(pool.allocate(3_MiB));
  asked = 0;
  fails_at = 1;
  fails_for = ~std::uint64_t{0} - 1;
  const auto before = pool.current_usage();
  EXPECT_EQ(pool.try_allocate(3_MiB, stream_id{77}), nullptr);
  EXPECT_EQ(pool.current_usage(), before);
  int served = 0;
  for (void* p = nullptr; (p = pool.try_allocate(2_MiB)) != nullptr && served < 200; ++served)
    live.push_back(p);
  EXPECT_FALSE(pool.on_pressure([](void*) noexcept { return false; }, nullptr));
  EXPECT_STREQ(pool.audit(), nullptr);
  fails_at = 0;
  EXPECT_NE(pool.try_allocate(3_MiB, stream_id{77}), nullptr);
  for (void* p : live) pool.deallocate(p);
  EXPECT_STREQ(pool.audit(), nullptr);
}

// The call that needs some fails with a reason. What the others hold can be given back.
TEST(host_memory, that_runs_out_counts_as_refused_by_a_simulated_device) {
  simulated_device device;
  simulated_device::physical memory;
  simulated_device::shareable name;
  ASSERT_TRUE(device.create(2_MiB, page_kind::normal, memory));
  ASSERT_TRUE(device.export_memory(memory, provider::importers::listed, name));
  fails_for = 1;
  const auto is_refused = [&](auto make_call) {
    const std::uint64_t before = device.calls().refused;
    asked = 0;
    fails_at = 1;
    const bool works = make_call();
    fails_at = 0;
    return !works && device.calls().refused == before + 1 && device.used() == 2_MiB;
  };
  EXPECT_TRUE(is_refused([&] { return device.allow(name, 7); }));
  EXPECT_TRUE(is_refused([&] { return device.acquire(2_MiB) != nullptr; }));
  EXPECT_TRUE(is_refused([&] { return device.create(2_MiB, page_kind::normal, memory); }));
  EXPECT_TRUE(is_refused([&] { return device.make_wait(stream_id{1}, stream_id{2}, 1); }));
}

TEST(host_memory, that_runs_out_makes_a_constructor_of_a_simulated_device_throw) {
  const simulated_device device;
  for (int way = 0; way < 2; ++way) {
    asked = 0;
    fails_at = fails_for = 1;
    EXPECT_THROW(way == 0 ? simulated_device() : device.another_process(), std::bad_alloc);
    fails_at = 0;
    EXPECT_EQ(asked, 1u);
  }
  simulated_device next = device.another_process();
  EXPECT_NE(next.acquire(2_MiB), nullptr);
}

TEST(host_memory, that_runs_out_fails_calls_of_a_simulated_device) {
  std::uint64_t k = 1;
  for (bool failed = true; failed; ++k) {
    simulated_device device{simulated_device::options{.log_calls = 8}};
    asked = 0;
    fails_at = k;
    fails_for = 1;
    simulated_device::physical memory{};
    simulated_device::shareable name{};
    void* const segment = device.acquire(2_MiB);
    void* const range = device.reserve(2_MiB, 2_MiB);
    const bool created = device.create(2_MiB, page_kind::normal, memory);
    const bool mapped = created && range != nullptr && device.map(range, 2_MiB, memory);
    const bool exported = created && device.export_memory(memory, provider::importers::any, name);
    const std::uint64_t before_ns = device.now_ns();
    for (int i = 0; i < 2; ++i) device.submit(stream_id{1}, 1'000);
    simulated_device::event mark;
    ASSERT_TRUE(device.record(stream_id{1}, mark));
    ASSERT_TRUE(device.wait(mark));
    fails_at = 0;
    EXPECT_TRUE(device.query(mark));
    device.discard(mark);
    failed = asked >= k;
    const bool all = segment != nullptr && range != nullptr && created && mapped && exported;
    EXPECT_LE(device.log().size(), 8u);
    EXPECT_EQ(all, std::string_view(device.last_error()).empty()) << "demand " << k;
    EXPECT_EQ(all, std::string_view(device.last_error()).find("host memory") == std::string_view::npos);
    EXPECT_GE(device.now_ns(), before_ns + 2'000) << "demand " << k;
    EXPECT_EQ(mapped && device.unmap(range, 2_MiB), mapped);
    EXPECT_EQ(created && device.destroy(memory), created);
    EXPECT_EQ(range != nullptr && device.unreserve(range, 2_MiB), range != nullptr);
    EXPECT_EQ(segment != nullptr && device.release(segment, 2_MiB), segment != nullptr);
    EXPECT_EQ(device.used(), 0u) << "demand " << k;
    EXPECT_EQ(device.held(), simulated_device::holdings{}) << "demand " << k;
  }
  EXPECT_GT(k, 6u) << "each kind of call needs host memory";
}

// A free needs no host memory. The whole block is then withheld, until there is host memory again.
TEST(host_memory, that_has_run_out_serves_no_faulty_memory) {
  caching_allocator<pytorch<>, simulated_device, extension::faulty_memory> pool;
  auto faulty = pool.get<extension::faulty_memory>();
  std::vector<void*> live{pool.allocate(3_MiB)};
  auto* const p = static_cast<std::byte*>(pool.allocate(3_MiB));
  for (const std::size_t bytes : {3_MiB, std::size_t{512}}) live.push_back(pool.allocate(bytes));
  ASSERT_TRUE(faulty.mark_faulty(p + 1_MiB, 1));
  fails_at = 1;
  fails_for = ~std::uint64_t{0} - 1;
  // By handle, no address needs host memory: the descriptors of blocks run out.
  std::vector<block_handle> small;
  while (const block_handle h = pool.allocate_by_handle(512)) small.push_back(h);
  pool.deallocate(p);
  EXPECT_EQ(faulty.current_usage().withheld, 3_MiB);
  EXPECT_STREQ(faulty.mark_faulty(live[0], 1).why, nullptr) << "there is room for it";
  fails_at = 0;
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.trim();
  EXPECT_EQ(faulty.current_usage().withheld, 512u);
  EXPECT_EQ(pool.allocate(2_MiB - 512), p + 1_MiB + 512);
  for (void* each : live) pool.deallocate(each);
  for (const block_handle h : small) pool.deallocate(h);
  EXPECT_STREQ(pool.audit(), nullptr);
}

// A chunk goes back although the block that contains it was withheld as a whole. Faulty bytes of other chunks stay withheld.
template <typename Recipe>
void expect_other_faulty_chunks_stay_withheld() {
  std::size_t gone = 0, kept = 0;
  for (const std::uint64_t calls : {1u, 2u, 3u, 4u}) {
    bool is_over = false;
    for (std::uint64_t k = 1; !is_over; ++k) {
      caching_allocator<Recipe, simulated_device, extension::faulty_memory> pool;
      auto faulty = pool.template get<extension::faulty_memory>();
      std::vector<block_handle> live{pool.allocate_by_handle(512)};
      // The block has a chunk of its own, and shares one.
      block_handle freed = pool.allocate_by_handle(20_MiB);
      const block_handle more = pool.allocate_by_handle(10_MiB + 512);
      live.push_back(pool.allocate_by_handle(1_MiB + 512));
      pool.deallocate(freed);
      pool.deallocate(more);
      freed = pool.allocate_by_handle(30_MiB + 512);
      auto* const p = static_cast<std::byte*>(freed.data());
      for (const std::size_t at : {1_MiB, 3_MiB, 21_MiB}) ASSERT_TRUE(faulty.mark_faulty(p + at, 1));
      fails_at = 1;
      fails_for = ~std::uint64_t{0} - 1;
      while (const block_handle h = pool.allocate_by_handle(512)) live.push_back(h);
      pool.deallocate(freed);
      EXPECT_EQ(faulty.current_usage().withheld, 30_MiB + 512);
      asked = 0;
      fails_at = k;
      fails_for = calls;
      pool.trim();
      fails_at = 0;
      is_over = asked < k;
      ASSERT_STREQ(pool.audit(), nullptr) << "with " << calls << " demands from number " << k << " failing";
      (faulty.current_usage().faulty == 1 ? gone : kept) += 1;
      pool.trim();
      ASSERT_EQ(faulty.current_usage(), (extension::faulty_memory_usage{1, 512, 0}));
      for (const block_handle h : live) pool.deallocate(h);
      pool.trim();
      ASSERT_EQ(pool.current_usage().reserved, 0u);
    }
  }
  EXPECT_GT(gone, 0u);
  EXPECT_GT(kept, 0u);
}
TEST(host_memory_for_chunks, that_runs_out_anywhere_keeps_others_withheld) {
  expect_other_faulty_chunks_stay_withheld<pytorch_family::expandable>();
  expect_other_faulty_chunks_stay_withheld<stitched>();
}

// No memory of the device gives host memory, so recovery does not empty the cache.
TYPED_TEST(host_memory, that_has_run_out_is_no_reason_to_empty_the_cache) {
  caching_allocator<TypeParam, simulated_device> pool{
      simulated_device{simulated_device::options{.capacity = 600_MiB}}};
  for (int i = 0; i < 4; ++i) pool.deallocate(pool.allocate(30_MiB, stream_id{1}));
  asked = 0;
  fails_at = 1;
  fails_for = ~std::uint64_t{0} - 1;
  const auto before = pool.current_usage();
  // More streams than reserved host memory has room for.
  for (std::uint64_t stream = 100; stream < 200; ++stream)
    (void)pool.try_allocate(300_MiB, stream_id{stream});
  EXPECT_EQ(pool.statistics().num_alloc_retries, 0u);
  EXPECT_EQ(pool.current_usage(), before);
  fails_at = 0;
  EXPECT_STREQ(pool.audit(), nullptr);
}

/// The addresses, bytes and states of the blocks of a private pool.
template <typename Allocator>
std::vector<std::size_t> blocks_of(Allocator& on, pool_id pool) {
  std::vector<std::size_t> result;
  for_each_block(on, [&](const segment_view& s, const block_view& b) {
    if (s.private_pool != pool) return;
    result.insert(result.end(), {b.address, b.bytes, b.requested, static_cast<std::size_t>(b.is)});
  });
  return result;
}

// A checkpoint that fails records nothing. A restore that fails changes nothing.
TYPED_TEST(host_memory, that_runs_out_anywhere_breaks_no_checkpoint) {
  std::size_t failed_checkpoints = 0, failed_restores = 0;
  for (const bool others_live : {false, true}) {  // their descriptors and addresses share the tables
    for (const std::uint64_t calls : {std::uint64_t{1}, std::uint64_t{1} << 60}) {
      bool is_over = false;
      for (std::uint64_t k = 1; !is_over; ++k) {
        caching_allocator<TypeParam, simulated_device, extension::private_pools, extension::checkpoints> on;
        extension::private_pool pool(on);
        std::vector<void*> live, others;
        for (int i = 0; i < 400; ++i) others.push_back(on.allocate(512));
        {
          const extension::pool_scope scope(pool, extension::scope_kind::capture);
          for (std::uint64_t i = 0; i < 200; ++i)
            live.push_back(on.allocate(i % 9 == 0 ? 3_MiB : 40_KiB, stream_id{i % 4}));
        }
        for (std::size_t i = 0; i < live.size(); i += 3) on.deallocate(live[i]);
        const auto fail_from = [calls](std::uint64_t first) {
          asked = 0;
          fails_at = first;
          fails_for = calls;
        };
        fail_from(k);
        extension::pool_checkpoint made = checkpoints_of(pool).record();
        fails_at = 0;
        is_over = asked < k;
        ASSERT_EQ(static_cast<bool>(made), is_over);
        if (!made) {
          ASSERT_STREQ(made.why(), "host memory ran out");
          ++failed_checkpoints;
          made = checkpoints_of(pool).record();
        }
        for (std::size_t i = 0; i < live.size(); ++i) {
          if (i % 3 != 0) on.deallocate(live[i]);
        }
        if (!others_live) {
          for (void* p : others) on.deallocate(p);
        }
        void* late = nullptr;
        {
          const extension::pool_scope scope(pool, extension::scope_kind::capture);
          late = on.allocate(30_MiB, stream_id{9});
        }
        const auto before = blocks_of(on, pool.id());
        const usage usage_before = on.current_usage();
        fail_from(k);
        const extension::restore_result result = checkpoints_of(pool).restore(made);
        fails_at = 0;
        ASSERT_STREQ(on.audit(), nullptr) << "with demand " << k;
        if (!result) {
          is_over = false;
          ++failed_restores;
          ASSERT_STREQ(result.why, "host memory ran out");
          ASSERT_TRUE(result.freed.empty() && result.allocated.empty());
          ASSERT_EQ(blocks_of(on, pool.id()), before) << "with demand " << k;
          ASSERT_EQ(on.current_usage(), usage_before);
          ASSERT_TRUE(checkpoints_of(pool).restore(made));
        } else {
          ASSERT_EQ(result.freed.size(), 1u);
          ASSERT_EQ(result.freed[0], late);
          ASSERT_EQ(result.allocated.size(), 133u);
        }
        ASSERT_STREQ(on.audit(), nullptr) << "with demand " << k;
        for (std::size_t i = 0; i < live.size(); ++i) {
          if (i % 3 != 0) on.deallocate(live[i]);
        }
        ASSERT_STREQ(on.audit(), nullptr);
      }
    }
  }
  EXPECT_GE(failed_checkpoints, 8u);
  EXPECT_GE(failed_restores, 16u);
}

// A restore keeps the descriptors of many frees for a moment only.
TEST(host_memory_for_checkpoints, goes_back_after_a_restore) {
  caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::checkpoints> on;
  extension::private_pool pool(on);
  std::vector<void*> live;
  const auto fill = [&](int count) {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    for (int i = 0; i < count; ++i) live.push_back(on.allocate(512));
  };
  fill(10);
  const extension::pool_checkpoint made = checkpoints_of(pool).record();
  on.trim();
  const std::size_t metadata_bytes = on.metadata_bytes();
  fill(20'000);
  EXPECT_GT(on.metadata_bytes(), metadata_bytes + 1_MiB);
  ASSERT_TRUE(checkpoints_of(pool).restore(made));
  EXPECT_LT(on.metadata_bytes(), metadata_bytes + 768_KiB);  // live blocks may hold a few regions
  EXPECT_STREQ(on.audit(), nullptr);
}

TEST(host_memory_for_uses, that_has_run_out_leaves_blocks_as_they_are) {
  caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::checkpoints> pool;
  void* const p = pool.allocate(1_MiB);
  pool.deallocate(pool.allocate(2_MiB));
  asked = 0;
  fails_at = 1;
  fails_for = 1000;
  EXPECT_FALSE(pool.record_stream(p, stream_id{9}));
  fails_at = 0;
  pool.deallocate(p);
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}
// In a capture, a free that no stream can be ordered after is pending, or, without host memory for that, does nothing.
TEST(host_memory_for_uses, that_has_run_out_in_a_capture_waits_for_no_stream) {
  for (const bool has_room : {false, true}) {
    caching_allocator<cuda_async, simulated_device, extension::private_pools> pool;
    void* const p = pool.allocate(1_MiB, stream_id{1});
    ASSERT_TRUE(!has_room || pool.record_stream(p, stream_id{2}));
    auto pools = pool.get<extension::private_pools>();
    const pool_id graph = pools.create();
    ASSERT_TRUE(pools.open(graph, stream_id{3}, extension::scope_kind::capture));
    const auto before = pool.provider().calls();
    pool.provider().fail_every(1);
    asked = 0;
    fails_at = 1;
    fails_for = 1000;
    EXPECT_EQ(pool.try_deallocate_on(p, stream_id{3}), has_room);
    fails_at = 0;
    pool.provider().fail_every(0);
    EXPECT_EQ(pool.provider().calls().synchronize, before.synchronize);
    EXPECT_EQ(pool.provider().calls().record, before.record);
    EXPECT_EQ(pool.current_usage().allocated, has_room ? 0 : 1_MiB);
    EXPECT_EQ(pool.current_usage().pending(), has_room ? 1_MiB : 0);
    EXPECT_STREQ(pool.audit(), nullptr);
    ASSERT_TRUE(pools.close(graph));
    EXPECT_EQ(pool.try_deallocate_on(p, stream_id{3}), !has_room);
    (void)pool.process_events();
    EXPECT_EQ(pool.current_usage().pending(), 0u);
    EXPECT_STREQ(pool.audit(), nullptr);
  }
}

// A request without host memory for its tag fails, and its block is free again.
template <typename Allocate>
void expect_no_untagged_blocks(Allocate allocate) {
  constexpr block_tag tag{1};
  bool any_failed = false;
  tagged<locked<
      caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::checkpoints>>>
      pool;
  pool.set_current_tag(tag);
  std::size_t served = 0;
  for (std::uint64_t k = 1; served < 2000; ++k) {
    asked = 0;
    fails_at = 1 + k % 3;
    fails_for = k % 2 * 4;  // also where a miss asks again; every other request gets what it needs
    const bool works = allocate(pool);
    fails_at = 0;
    served += works ? 1 : 0;
    any_failed = any_failed || !works;
    std::size_t bytes = 0;
    pool.for_each_tag([&](block_tag, const tag_usage& now) { bytes += now.bytes; });
    ASSERT_EQ(bytes, pool.current_usage().requested);
    ASSERT_EQ(pool.usage_of(tag).blocks, served);
    ASSERT_STREQ(pool.audit(), nullptr);
  }
  EXPECT_TRUE(any_failed);
}
TEST(host_memory_for_tags, that_runs_out_anywhere_fails_the_request) {
  expect_no_untagged_blocks([](auto& pool) { return pool.try_allocate(1000) != nullptr; });
  expect_no_untagged_blocks([](auto& pool) { return static_cast<bool>(pool.allocate_by_handle(1000)); });
  expect_no_untagged_blocks(
      [](auto& pool) { return aligned_request(1000, 4096).try_allocate(pool, stream_id{}) != nullptr; });
  expect_no_untagged_blocks([](auto& pool) {
    try {
      return pool.allocate(1000) != nullptr;
    } catch (const out_of_memory&) {
      return false;
    }
  });
}

// A recording ends at the first event without host memory. The program goes on.
TEST(host_memory_for_recordings, that_runs_out_anywhere_ends_the_recording) {
  std::size_t ended = 0;
  for (std::uint64_t k = 1;; ++k) {
    trace::captured<locked<
        caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::checkpoints>>>
        pool;
    extension::private_pool graph(pool);
    std::vector<void*> live;
    for (int i = 0; i < 100; ++i) live.push_back(pool.allocate(1000));
    const extension::stream_filter any([](void*, stream_id) noexcept { return true; }, nullptr);
    asked = 0;
    fails_at = k;
    fails_for = 1;
    const pool_id made = pools(pool).create();
    const bool begins = made != pool_id{} && pools(pool).open(made, any, extension::scope_kind::capture);
    for (int i = 0; i < 2000; ++i) {
      pool.begin_step();
      void* const p = pool.try_allocate(1000, stream_id{1});
      if (p != nullptr) live.push_back(p);
    }
    fails_at = 0;
    ended += pool.is_complete() ? 0 : 1;
    EXPECT_EQ(static_cast<bool>(pools(pool).close(made)), begins);
    for (void* const p : live) pool.deallocate(p);
    EXPECT_EQ(pool.current_usage().allocated, 0u);
    EXPECT_STREQ(pool.audit(), nullptr);
    const auto read = trace::read_csv(trace::to_csv(pool.recorded()), "T");
    const auto* const source = std::get_if<trace::recording>(&read);
    ASSERT_NE(source, nullptr) << std::get<trace::input_error>(read).text();
    caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::checkpoints> other;
    EXPECT_EQ(trace::replay(trace::program(*source), other), 0u);
    if (asked < k) break;
  }
  EXPECT_GT(ended, 4u) << "chunks of events, maps and nodes";
}

// A pool is in all arenas or in none.
TEST(host_memory_for_pools_of_arenas, that_runs_out_anywhere_creates_no_pool) {
  constexpr stream_id last{9};
  bool any_failed = false;
  for (std::uint64_t k = 1;; ++k) {
    per_stream<
        caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::checkpoints>>
        pool;
    for (std::uint64_t stream = 0; stream < 4; ++stream) (void)pool.allocate(1000, stream_id{stream});
    asked = 0;
    fails_at = k;
    fails_for = 1;
    const pool_id made = pools(pool).create();
    const bool created = made != pool_id{};
    const bool begins = static_cast<bool>(pools(pool).open(made, extension::scope_kind::capture));
    void* const p = pool.try_allocate(1000, last);  // creates an arena, or shares one
    fails_at = 0;
    any_failed = any_failed || !created;
    EXPECT_EQ(begins, created) << k;
    EXPECT_EQ(pools(pool).use_count(made), created ? 1u : 0u) << k;
    if (p != nullptr) {
      EXPECT_EQ(segment_of(pool, p).private_pool, made) << k;
    }
    EXPECT_EQ(static_cast<bool>(pools(pool).close(made)), created) << k;
    EXPECT_EQ(static_cast<bool>(pools(pool).release(made)), created) << k;
    if (!created) {
      const pool_id next = pools(pool).create();
      EXPECT_EQ(pools(pool).use_count(pool_id{next.number - 1}), 0u) << "no arena keeps the pool that failed";
    }
    EXPECT_STREQ(pool.audit(), nullptr);
    if (asked < k) break;
  }
  EXPECT_TRUE(any_failed);
  per_stream<caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::checkpoints>>
      empty;
  fails_at = 1, asked = 0, fails_for = 1;
  EXPECT_EQ(pools(empty).create(), pool_id{}) << "without an arena";
  fails_at = 0;
}

/// Whether every event of a failed device call is without an address.
struct refusals {
  std::size_t told = 0;
  bool have_address = false;
  void on(const allocator_event& e) noexcept {
    if (e.what == allocator_event::action::refused) ++told, have_address = have_address || e.address != 0;
  }
};
TEST(host_memory_for_segments, that_has_run_out_releases_them_and_reports_no_address) {
  std::size_t in_vain = 0;
  for (std::uint64_t k = 1; k <= 10; ++k) {
    caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::checkpoints,
                      extension::observer<refusals>>
        pool;
    asked = 0;
    fails_at = k;
    fails_for = ~std::uint64_t{0} - k;
    void* const p = pool.try_allocate(1_MiB);
    fails_at = 0;
    EXPECT_FALSE(observer_of(pool).have_address) << k;
    if (p != nullptr) continue;
    EXPECT_EQ(pool.provider().used(), 0u) << k;
    EXPECT_EQ(observer_of(pool).told, pool.provider().calls().acquire) << k;
    in_vain += pool.provider().calls().release;
  }
  EXPECT_GT(in_vain, 0u);
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
TYPED_TEST(host_memory, is_freed_at_the_end) {
  const auto run = [] {
    caching_allocator<TypeParam, simulated_device, extension::private_pools, extension::checkpoints> pool;
    (void)pool.on_pressure([](void*) noexcept { return false; }, nullptr);
    std::vector<void*> live;
    for (std::uint64_t i = 0; i < 200; ++i) live.push_back(pool.allocate(100_KiB, stream_id{i % 5}));
    for (std::size_t i = 0; i < live.size(); i += 2) {
      (void)pool.record_stream(live[i], stream_id{i % 7});
      pool.deallocate(live[i]);
    }
  };
  run();
  const auto before = mallinfo2().uordblks;
  for (int round = 0; round < 50; ++round) run();
  EXPECT_LT(mallinfo2().uordblks, before + 65'536) << "a chunk each time would be three times that";
}
#endif

// stream_order records a wait completely or not at all. A failed wait inserts nothing into a stream.
TEST(host_memory_for_stream_order, that_runs_out_anywhere_records_nothing) {
  static_assert(noexcept(std::declval<stream_order&>().add({}, 1, {}, 1)));
  for (std::uint64_t k = 1; k <= 40; ++k) {
    stream_order order;
    for (std::uint64_t other = 1; other <= 10; ++other)
      ASSERT_TRUE(order.add(stream_id{100}, other, stream_id{other}, 5));
    asked = 0;
    fails_at = k;
    fails_for = 1;
    const bool noted = order.add(stream_id{50}, 1, stream_id{100}, 10);
    fails_at = 0;
    EXPECT_EQ(noted, asked < k);
    for (std::uint64_t other = 1; other <= 10; ++other)
      EXPECT_EQ(order.is_ordered_after(stream_id{50}, stream_id{other}, 5), noted);
    EXPECT_EQ(order.is_ordered_after(stream_id{50}, stream_id{100}, 10), noted);
    if (noted) {
      EXPECT_GT(k, 10u) << "a pair is made for each stream that the other one waits for";
      return;
    }
    EXPECT_TRUE(order.add(stream_id{50}, 2, stream_id{100}, 10)) << "once there is some again";
    EXPECT_TRUE(order.is_ordered_after(stream_id{50}, stream_id{7}, 5));
  }
  ADD_FAILURE() << "it asks too often";
}
TEST(host_memory_for_stream_order, that_has_run_out_lets_no_stream_wait) {
  simulated_device device;
  device.submit(stream_id{1}, 1'000'000);
  asked = 0;
  fails_at = 1;
  fails_for = ~std::uint64_t{0} - 1;
  EXPECT_FALSE(device.make_wait(stream_id{2}, stream_id{1}, 1));
  fails_at = 0;
  EXPECT_FALSE(device.is_ordered_after(stream_id{2}, stream_id{1}, 1));
  EXPECT_EQ(device.position(stream_id{2}), 0u);
  EXPECT_TRUE(device.make_wait(stream_id{2}, stream_id{1}, 1));
  EXPECT_TRUE(device.is_ordered_after(stream_id{2}, stream_id{1}, 1));
}

}  // namespace
