// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/any_allocator.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/debug/guarded.hpp>
#include <tessera/debug/leak_checked.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/debug/thread_checked.hpp>
#include <tessera/extension/checkpoints.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/interop/aligned_request.hpp>
#include <tessera/interop/paddle_passes.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../../by_day.hpp"
#include "../interop/host_pools.hpp"
#include "../patterns.hpp"

namespace {

using namespace tessera;
using shape_tests::host_memory;
using shape_tests::packed_tightly;

constexpr block_tag none{}, weights{1}, activations{2}, optimizer{255};
constexpr std::size_t page = 4096;

using plain = caching_allocator<pytorch<>, simulated_device>;
using shared = locked<plain>;
using streamed = per_stream<plain>;

template <typename Pool>
concept frees_handles = requires(Pool& pool, block_handle h) { pool.deallocate(h); };
static_assert(frees_handles<tagged<shared>> && !frees_handles<tagged<streamed>>);
static_assert(!std::is_copy_constructible_v<tag_scope<tagged<plain>>>);

/// The bytes of all tags.
template <typename Pool>
std::size_t tagged_bytes(const Pool& pool) {
  std::size_t bytes = 0;
  pool.for_each_tag([&](block_tag, const tag_usage& now) { bytes += now.bytes; });
  return bytes;
}

template <typename Pool>
struct tagged_over : testing::Test {
  std::unique_ptr<Pool> owned = [] {
    if constexpr (std::is_constructible_v<Pool, host_pinned>) {
      return std::make_unique<Pool>(host_memory());
    } else {
      return std::make_unique<Pool>();
    }
  }();
  Pool& memory = *owned;
};
using kinds = types_by_day<3, tagged<plain>, tagged<shared>,
                           tagged<caching_allocator<packed_tightly, simulated_device>>,
                           tagged<caching_allocator<pytorch_family::expandable, simulated_device>>,
                           tagged<streamed>, tagged<guarded<caching_allocator<pinned_packed, host_pinned>>>,
                           tagged<leak_checked<shared>>, leak_checked<tagged<shared>>,
                           tagged<thread_checked<plain>>, tagged<waiting<shared>>, tagged<tagged<plain>>>;
TYPED_TEST_SUITE(tagged_over, kinds);

TYPED_TEST(tagged_over, counts_the_bytes_of_each_tag) {
  auto& pool = this->memory;
  void* const w = pool.allocate(3000, weights);
  void* const a = pool.try_allocate(1000, activations, stream_id{1});
  void* const other = pool.allocate(500);
  EXPECT_EQ(pool.tag_of(w), weights);
  EXPECT_EQ(pool.tag_of(a), activations);
  EXPECT_EQ(pool.tag_of(other), none);
  EXPECT_EQ(pool.usage_of(weights), (tag_usage{1, 3000, 3000}));
  EXPECT_EQ(pool.usage_of(none), (tag_usage{1, 500, 500}));
  EXPECT_EQ(pool.usage_of(optimizer), tag_usage{});
  EXPECT_EQ(tagged_bytes(pool), pool.current_usage().requested);

  pool.deallocate(w, 3000);
  pool.deallocate(a);
  EXPECT_EQ(pool.usage_of(weights), (tag_usage{0, 0, 3000})) << "the peak stays";
  std::vector<block_tag> seen;
  pool.for_each_tag([&](block_tag tag, const tag_usage&) { seen.push_back(tag); });
  EXPECT_EQ(seen, (std::vector{none, weights, activations}));
  pool.reset_peak_statistics();
  EXPECT_EQ(pool.usage_of(weights), tag_usage{});
  EXPECT_EQ(pool.usage_of(none), (tag_usage{1, 500, 500}));
  EXPECT_TRUE(pool.try_deallocate(other));
  EXPECT_EQ(pool.usage_of(none).bytes, 0u);
  EXPECT_FALSE(pool.try_deallocate(other));
  EXPECT_EQ(pool.audit(), nullptr);
}

TYPED_TEST(tagged_over, drops_a_tag_and_a_pointer_at_the_free) {
  auto& pool = this->memory;
  void* const p = pool.allocate(1000, weights);
  pool.set_user_pointer(p, &pool);
  EXPECT_EQ(pool.user_pointer_of(p), &pool);
  pool.set_tag(p, activations);
  EXPECT_EQ(pool.tag_of(p), activations);
  EXPECT_EQ(pool.user_pointer_of(p), &pool) << "the tag alone changes";
  EXPECT_EQ(pool.usage_of(weights), (tag_usage{0, 0, 1000}));
  EXPECT_EQ(pool.usage_of(activations), (tag_usage{1, 1000, 1000}));
  pool.deallocate(p);
  EXPECT_EQ(pool.tag_of(p), none);
  EXPECT_EQ(pool.user_pointer_of(p), nullptr);
  void* const again = pool.allocate(1000);
  EXPECT_EQ(pool.tag_of(again), none);
  EXPECT_EQ(pool.user_pointer_of(again), nullptr) << "of the block before at this address";
  pool.deallocate(again);
  EXPECT_EQ(pool.audit(), nullptr);
}

TYPED_TEST(tagged_over, keeps_tags_of_aligned_blocks_by_their_begin) {
  auto& pool = this->memory;
  void* const shift = pool.allocate(64);
  const tag_scope scope(pool, weights);
  for (const std::size_t alignment : {std::size_t{8}, std::size_t{128}, page}) {
    const aligned_request request(1000, alignment);
    void* const p = request.allocate(pool, {});
    void* const block = request.find(pool, p).address;
    EXPECT_EQ(pool.tag_of(block), weights);
    pool.set_tag(block, optimizer);
    pool.set_user_pointer(block, &pool);
    EXPECT_EQ(pool.tag_of(block), optimizer);
    EXPECT_EQ(pool.user_pointer_of(block), &pool);
    EXPECT_GE(pool.usage_of(optimizer).bytes, 1000u);
    EXPECT_EQ(tagged_bytes(pool), pool.current_usage().requested);
    EXPECT_TRUE(request.record_stream(pool, p, {}));
    request.deallocate(pool, p);
    EXPECT_EQ(pool.usage_of(optimizer).blocks, 0u);
    EXPECT_EQ(pool.tag_of(block), none);
  }
  pool.deallocate(shift);
  EXPECT_EQ(tagged_bytes(pool), 0u);
  EXPECT_EQ(pool.audit(), nullptr);
}

// A random program, with a map beside it.
TYPED_TEST(tagged_over, agrees_with_a_model) {
  auto& pool = this->memory;
  struct live {
    std::size_t bytes;
    block_tag tag;
  };
  std::map<void*, live> model;
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    const auto chosen = random();
    const block_tag tag{static_cast<std::uint8_t>(random() % 4)};
    auto some = model.begin();
    if (!model.empty()) std::advance(some, random() % model.size());
    if (chosen % 8 < 4 || model.empty()) {
      const std::size_t bytes = 1 + random() % 5000;
      model[pool.allocate(bytes, tag, stream_id{random() % 3})] = {bytes, tag};
    } else if (chosen % 8 < 7) {
      chosen % 2 == 0 ? pool.deallocate(some->first) : pool.deallocate(some->first, some->second.bytes);
      model.erase(some);
    } else {
      pool.set_tag(some->first, tag);
      some->second.tag = tag;
    }
    std::map<block_tag, tag_usage> expected;
    for (const auto& [p, block] : model) {
      ++expected[block.tag].blocks;
      expected[block.tag].bytes += block.bytes;
      ASSERT_EQ(pool.tag_of(p), block.tag);
    }
    for (const auto& [of, now] : expected) {
      ASSERT_EQ(pool.usage_of(of).blocks, now.blocks);
      ASSERT_EQ(pool.usage_of(of).bytes, now.bytes);
    }
    ASSERT_EQ(tagged_bytes(pool), pool.current_usage().requested);
  }
  for (const auto& [p, block] : model) pool.deallocate(p);
  EXPECT_EQ(tagged_bytes(pool), 0u);
  EXPECT_EQ(pool.audit(), nullptr);
}

TEST(tagged, scopes_set_the_tag_of_requests_that_name_none) {
  tagged<plain> pool;
  EXPECT_EQ(pool.current_tag(), none);
  {
    const tag_scope outer(pool, weights);
    void* const outside = pool.allocate(100);
    {
      const tag_scope inner(pool, activations);
      EXPECT_EQ(pool.tag_of(pool.allocate(100)), activations);
      EXPECT_EQ(pool.tag_of(pool.allocate(100, optimizer)), optimizer);
    }
    EXPECT_EQ(pool.tag_of(pool.allocate(100)), weights);
    EXPECT_EQ(pool.tag_of(outside), weights);
    any_allocator any(pool);
    EXPECT_EQ(pool.tag_of(any.allocate(100)), weights) << "through other interfaces, too";
  }
  EXPECT_EQ(pool.tag_of(pool.allocate(100)), none);
}

TEST(tagged, a_tag_holds_for_its_thread) {
  tagged<shared> pool;
  const tag_scope scope(pool, weights);
  std::thread([&pool] {
    EXPECT_EQ(pool.tag_of(pool.allocate(100)), none);
    {
      const tag_scope own(pool, activations);
      EXPECT_EQ(pool.tag_of(pool.allocate(100)), activations);
    }
    EXPECT_EQ(pool.tag_of(pool.allocate(100)), none);
  }).join();
  EXPECT_EQ(pool.tag_of(pool.allocate(100)), weights);
  pool.set_default_tag(optimizer);
  EXPECT_EQ(pool.tag_of(pool.allocate(100)), weights);
  std::thread([&pool] {
    EXPECT_EQ(pool.tag_of(pool.allocate(100)), optimizer);
    EXPECT_EQ(pool.set_current_tag(none), std::nullopt);
    EXPECT_EQ(pool.tag_of(pool.allocate(100)), none) << "tag 0 is a tag, too";
    EXPECT_EQ(pool.set_current_tag(std::nullopt), none);
    EXPECT_EQ(pool.tag_of(pool.allocate(100)), optimizer);
  }).join();
}

TEST(tagged, finds_nothing_behind_the_begin_of_a_block) {
  tagged<plain> pool;
  auto* const p = static_cast<std::byte*>(pool.allocate(100, weights));
  EXPECT_EQ(pool.tag_of(p + 64), none) << "only the begin counts";
  EXPECT_EQ(pool.user_pointer_of(nullptr), nullptr);
}

TEST(tagged, keeps_tags_of_blocks_with_handles) {
  tagged<shared> pool;
  block_handle h;
  {
    const tag_scope scope(pool, weights);
    h = pool.allocate_by_handle(1000);
  }
  EXPECT_EQ(pool.tag_of(h.data()), weights);
  pool.set_user_pointer(h.data(), &pool);
  EXPECT_FALSE(pool.try_deallocate(h.data())) << "the address frees nothing";
  EXPECT_FALSE(pool.reuse_in_place(h.data(), 1000, {}));
  EXPECT_EQ(pool.tag_of(h.data()), weights);
  EXPECT_EQ(pool.user_pointer_of(h.data()), &pool);
  EXPECT_EQ(tagged_bytes(pool), pool.current_usage().requested);
  EXPECT_TRUE(pool.record_stream(h, stream_id{2}));
  pool.deallocate(h);
  pool.deallocate(block_handle{});
  EXPECT_EQ(pool.usage_of(weights), (tag_usage{0, 0, 1000}));
  EXPECT_EQ(pool.audit(), nullptr);
}

TEST(tagged, gives_a_reused_block_the_current_tag) {
  tagged<plain> pool;
  void* input = pool.allocate(30_MiB, weights);
  pool.set_user_pointer(input, &pool);
  EXPECT_FALSE(pool.reuse_in_place(input, 300_MiB, {}));
  EXPECT_EQ(pool.usage_of(weights), (tag_usage{1, 30_MiB, 30_MiB})) << "nothing changed";
  const tag_scope scope(pool, activations);
  void* const output = allocate_in_place(pool, input, 30_MiB - 100);
  EXPECT_EQ(pool.tag_of(output), activations);
  EXPECT_EQ(pool.user_pointer_of(output), nullptr);
  EXPECT_EQ(pool.usage_of(weights), (tag_usage{0, 0, 30_MiB}));
  EXPECT_EQ(pool.usage_of(activations), (tag_usage{1, 30_MiB - 100, 30_MiB - 100}));
  EXPECT_EQ(tagged_bytes(pool), pool.current_usage().requested);
  pool.deallocate(output);
  EXPECT_EQ(pool.audit(), nullptr);
}

TEST(tagged, counts_no_requests_that_fail) {
  tagged<plain> pool(simulated_device({.capacity = 4_MiB}));
  EXPECT_THROW((void)pool.allocate(8_MiB, weights), out_of_memory);
  EXPECT_EQ(pool.try_allocate(8_MiB, weights), nullptr);
  EXPECT_EQ(pool.allocate(0, weights), nullptr);
  EXPECT_FALSE(pool.allocate_by_handle(8_MiB));
  pool.for_each_tag([](block_tag, const tag_usage&) { FAIL(); });
}

TEST(tagged, does_not_count_blocks_of_the_allocator_inside) {
  tagged<plain> pool;
  void* const p = pool.inner().allocate(1000);
  EXPECT_EQ(pool.tag_of(p), none);
  EXPECT_EQ(tagged_bytes(pool), 0u);
  pool.deallocate(p);
  EXPECT_EQ(pool.audit(), nullptr);
  // The address of a block that was freed around it gets the tag of its next block.
  void* const q = pool.allocate(1000, weights);
  pool.inner().deallocate(q);
  EXPECT_EQ(pool.allocate(1000, activations), q);
  EXPECT_EQ(pool.tag_of(q), activations);
  EXPECT_EQ(tagged_bytes(pool), 1000u);
  EXPECT_EQ(pool.audit(), nullptr);
}

TEST(tagged, counts_its_host_memory) {
  tagged<plain> pool;
  const std::size_t before = pool.metadata_bytes() - pool.inner().metadata_bytes();
  for (int i = 0; i < 1000; ++i) (void)pool.allocate(1000);
  const std::size_t used = pool.metadata_bytes() - pool.inner().metadata_bytes() - before;
  EXPECT_GE(used, 1000u * 40);
  EXPECT_LE(used, 1000u * 110);
}

TEST(tagged, may_be_the_front_end_of_each_device) {
  std::vector<simulated_device> two;
  for (unsigned d = 0; d < 2; ++d) two.emplace_back(simulated_device::options{.device = d});
  per_device<tagged<locked<caching_allocator<packed_tightly, simulated_device>>>> all(std::move(two));
  auto& front = all.front(1);
  void* const shift = all.allocate(64, 1);
  const tag_scope scope(front, weights);
  void* const p = all.allocate(5000, 1);
  void* const other = all.allocate(1000, 1);
  EXPECT_EQ(front.tag_of(p), weights);
  EXPECT_EQ(front.tag_of(other), weights);
  EXPECT_EQ(all.front(0).tag_of(p), none);
  EXPECT_EQ(front.usage_of(weights).blocks, 2u);
  EXPECT_EQ(tagged_bytes(front), front.current_usage().requested);
  EXPECT_TRUE(all.record_stream(other, stream_id{4}));
  all.deallocate(other, 1000);
  EXPECT_TRUE(all.try_deallocate(p));
  all.deallocate(shift);
  EXPECT_EQ(tagged_bytes(front), 0u);
  EXPECT_EQ(all.audit(), nullptr);
}

TEST(tagged, forwards_private_pools) {
  using namespace extension;
  using pooled = tagged<caching_allocator<pytorch<>, simulated_device, private_pools, checkpoints>>;
  pooled pool;
  private_pool apart(pool);
  const pool_scope scope(apart, stream_id{1}, scope_kind::capture);
  void* const p = pool.allocate(1000, weights, stream_id{1});
  EXPECT_EQ(segment_of(pool, p).private_pool, apart.id());
  EXPECT_EQ(pool.tag_of(p), weights);
  static_assert(
      !pooled::has<checkpoints> &&
      std::is_same_v<pooled::refused<checkpoints>, detail::missing::a_tagged_allocator_brings_no_tags_back>);
}

// Each thread has a tag, and frees blocks of the others.
template <typename Pool>
void use_from_threads() {
  Pool pool;
  constexpr std::size_t threads = 4, rounds = 20'000, slots = 64;
  std::vector<std::atomic<void*>> exchanged(slots);
  std::vector<std::thread> running;
  for (std::size_t t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      const block_tag mine{static_cast<std::uint8_t>(t + 1)};
      for (std::size_t i = 0; i < rounds; ++i) {
        void* const p = pool.allocate(1000, mine, stream_id{t % 2});
        ASSERT_EQ(pool.tag_of(p), mine);
        pool.set_user_pointer(p, p);
        void* const other = exchanged[(i * 7 + t) % slots].exchange(p);
        if (other == nullptr) continue;
        ASSERT_EQ(pool.user_pointer_of(other), other);
        // The other threads get its address at once.
        if (i % 3 == 0) {
          pool.deallocate(other);
        } else if (i % 3 == 1) {
          pool.deallocate(other, 1000);
        } else {
          ASSERT_TRUE(pool.try_deallocate(other));
        }
      }
    });
  }
  for (std::thread& t : running) t.join();
  std::size_t left = 0;
  for (auto& slot : exchanged) left += slot.load() != nullptr ? 1 : 0;
  std::size_t blocks = 0;
  pool.for_each_tag([&](block_tag, const tag_usage& now) { blocks += now.blocks; });
  EXPECT_EQ(blocks, left);
  EXPECT_EQ(tagged_bytes(pool), pool.current_usage().requested);
  for (auto& slot : exchanged) pool.deallocate(slot.load());
  EXPECT_EQ(tagged_bytes(pool), 0u);
  EXPECT_EQ(pool.audit(), nullptr);
}
TEST(tagged_threads, share_a_locked_allocator) { use_from_threads<tagged<shared>>(); }
TEST(tagged_threads, share_an_allocator_of_arenas) { use_from_threads<tagged<streamed>>(); }

TEST(tagged_death, names_the_call_and_the_block) {
  tagged<caching_allocator<packed_tightly, simulated_device>> pool;
  (void)pool.allocate(64);
  void* const p = aligned_request(1000, page).allocate(pool, {});
  EXPECT_DEATH(pool.set_tag(p, weights),
               "set_tag: not the address of a live block; it lies " A_NUMBER " bytes into a live block");
  EXPECT_DEATH(pool.set_user_pointer(&pool, nullptr),
               "set_user_pointer: not the address of a live block; it lies in no segment");
  tagged<streamed> arenas;
  EXPECT_DEATH(arenas.set_tag(&pool, weights), "set_tag: not the address of a live block; it lies in no");
  void* const freed = arenas.allocate(1000);
  arenas.deallocate(freed);
  EXPECT_DEATH(arenas.set_tag(freed, weights), "set_tag: .* free block of .*, perhaps freed before");
  EXPECT_DEATH(arenas.deallocate(freed), "deallocate: not the address of a live block");
  arenas.set_tag(nullptr, weights);
  arenas.set_user_pointer(nullptr, nullptr);
}

}  // namespace
