// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory_resource>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/configured_pinned.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/interop/std_allocators.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

#include "host_pools.hpp"

namespace {

using namespace tessera;
using shape_tests::host_memory;
using shape_tests::is_aligned;
using shape_tests::packed_tightly;
using host_pool = caching_allocator<packed_tightly, host_pinned>;

static_assert(!std::is_copy_constructible_v<pmr_resource<host_pool>>);

/// Grows, copies, moves and empties containers.
void use_containers(std::pmr::memory_resource* memory) {
  std::pmr::vector<std::uint64_t> numbers(memory);
  for (std::uint64_t i = 0; i < 20'000; ++i) numbers.push_back(i);
  EXPECT_EQ(std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0}), 19'999u * 10'000);

  std::pmr::map<int, std::pmr::string> names(memory);
  std::pmr::unordered_map<std::pmr::string, int> back(memory);
  for (int i = 0; i < 300; ++i) {
    const std::pmr::string& name =
        names.try_emplace(i, "a name that does not fit into the string itself: " + std::to_string(i))
            .first->second;
    EXPECT_EQ(name.get_allocator().resource(), memory);
    back[name] = i;
  }
  for (int i = 0; i < 300; i += 2) names.erase(i);
  EXPECT_EQ(names.size(), 150u);
  EXPECT_EQ(back.at(names.at(299)), 299);

  std::pmr::vector<std::uint64_t> copy(numbers, memory);
  std::pmr::vector<std::uint64_t> moved(std::move(numbers));
  EXPECT_EQ(copy, moved);
  moved.clear();
  moved.shrink_to_fit();
}

TEST(pmr_resource, serves_containers) {
  host_pool pool{host_memory()};
  pmr_resource memory(pool);
  use_containers(&memory);
  EXPECT_GT(pool.statistics().all.allocation.allocated, 900);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(pmr_resource, serves_the_resources_of_the_standard_library) {
  host_pool pool{host_memory()};
  pmr_resource memory(pool);
  {
    std::pmr::unsynchronized_pool_resource small(&memory);
    use_containers(&small);
    std::pmr::synchronized_pool_resource safe(&memory);
    use_containers(&safe);
    std::pmr::monotonic_buffer_resource growing(&memory);
    use_containers(&growing);
    EXPECT_GT(pool.current_usage().allocated, 0u);
  }
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(pmr_resource, serves_any_alignment_and_no_bytes) {
  host_pool pool{host_memory()};
  pmr_resource memory(pool);
  struct given {
    void* at;
    std::size_t bytes, alignment;
  };
  std::vector<given> all;
  for (std::size_t alignment = 1; alignment <= 1_MiB; alignment *= 2) {
    for (const std::size_t bytes : {0u, 1u, 100u, 5000u}) {
      all.push_back({memory.allocate(bytes, alignment), bytes, alignment});
      EXPECT_NE(all.back().at, nullptr);
      EXPECT_TRUE(is_aligned(all.back().at, alignment));
      std::memset(all.back().at, static_cast<int>(all.size()), bytes);
    }
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t byte = 0; byte < all[i].bytes; ++byte)
      ASSERT_EQ(static_cast<unsigned char*>(all[i].at)[byte], static_cast<unsigned char>(i + 1));
    memory.deallocate(all[i].at, all[i].bytes, all[i].alignment);
  }
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(pmr_resource, refuses_what_is_no_alignment) {
  host_pool allocator{host_memory()};
  pmr_resource resource(allocator);
  std::pmr::memory_resource& memory = resource;
  std::size_t alignment = 3;
  EXPECT_THROW((void)memory.allocate(100, alignment), std::bad_alloc);
  alignment = 0;
  EXPECT_THROW((void)memory.allocate(100, alignment), std::bad_alloc);
  alignment = std::size_t{1} << 63;
  EXPECT_THROW((void)memory.allocate(100, alignment), std::bad_alloc);
  EXPECT_EQ(allocator.current_usage().allocated, 0u);
}

TEST(pmr_resource, reports_out_of_memory) {
  host_pool pool{host_memory(4_MiB)};
  pmr_resource memory(pool);
  EXPECT_THROW((void)memory.allocate(8_MiB), out_of_memory);
  std::pmr::vector<char> v(&memory);
  EXPECT_THROW(v.resize(8_MiB), std::bad_alloc);
  EXPECT_TRUE(v.empty());
  EXPECT_THROW(v.reserve(v.max_size()), std::bad_alloc);
}

TEST(pmr_resource, works_on_its_stream) {
  caching_allocator<with<pinned_packed, reuse_on_same_stream>, host_pinned> pool{host_memory()};
  pmr_resource here(pool, stream_id{1}), there(pool, stream_id{2});
  EXPECT_EQ(here.stream(), stream_id{1});
  void* const p = here.allocate(1000);
  here.deallocate(p, 1000);
  void* const q = there.allocate(1000);
  EXPECT_NE(p, q);
  EXPECT_EQ(here.allocate(1000), p);
  here.deallocate(p, 1000);
  there.deallocate(q, 1000);
}

TEST(pmr_resource, is_equal_to_resources_of_the_same_allocator) {
  host_pool a{host_memory()}, b{host_memory()};
  pmr_resource to_a(a), on_stream(a, stream_id{1}), to_b(b);
  EXPECT_TRUE(to_a.is_equal(to_a));
  EXPECT_TRUE(to_a.is_equal(on_stream));
  EXPECT_FALSE(to_a.is_equal(to_b));
  EXPECT_FALSE(to_a.is_equal(*std::pmr::new_delete_resource()));
  on_stream.deallocate(to_a.allocate(100), 100);

  // A move between equal resources keeps the block; a move between others copies.
  std::pmr::vector<int> from({1, 2, 3}, &to_a), same(&on_stream), other(&to_b);
  const int* const at = from.data();
  same = std::move(from);
  EXPECT_EQ(same.data(), at);
  other = std::move(same);
  EXPECT_NE(other.data(), at);
  EXPECT_EQ(other, (std::pmr::vector<int>{1, 2, 3}));
  EXPECT_GT(b.current_usage().allocated, 0u);
}

TEST(pmr_resource, has_nodes_that_share_blocks_of_a_pool_resource) {
  const auto live_with_nodes = [](auto& pool, auto& memory) {
    std::pmr::map<int, float> by_number(&memory);
    for (int i = 0; i < 1000; ++i) by_number.emplace(i, 1.0f);
    return pool.current_usage().allocated;
  };
  caching_allocator<pinned, host_pinned> whole{host_memory()};
  pmr_resource bare(whole);
  EXPECT_EQ(live_with_nodes(whole, bare), 1000 * 4_KiB) << "what the documents warn of";
  caching_allocator<pinned_packed, host_pinned> pool{host_memory()};
  pmr_resource memory(pool);
  std::pmr::unsynchronized_pool_resource nodes(&memory);
  EXPECT_LE(live_with_nodes(pool, nodes), 128_KiB);
}

TEST(pmr_resource, owns_an_allocator_that_is_shared) {
  auto pool = shared_allocator<locked<caching_allocator<pinned_packed, host_pinned>>>::make(host_memory());
  pmr_resource memory(pool);
  EXPECT_EQ(memory.allocator(), pool);
  pool = {};
  use_containers(&memory);
  EXPECT_EQ(memory.allocator()->current_usage().allocated, 0u);
  pmr_resource of_its_own(shared_allocator<host_pool>::make(host_memory()));
  use_containers(&of_its_own);
}

TEST(pmr_resource, serves_from_a_configured_allocator) {
  configured_pinned<pytorch_family::pinned_family, host_pinned> pool(
      config::pytorch::settings{.pinned_use_background_threads = true}, host_memory());
  pmr_resource memory(pool);
  use_containers(&memory);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

/// Fills strings with data that identifies the stream.
constexpr auto fill_texts = [](auto& pool, stream_id stream) {
  const char letter = static_cast<char>('a' + stream.handle);
  pmr_resource memory(pool, stream);
  std::pmr::vector<std::pmr::string> texts(&memory);
  for (int i = 0; i < 300; ++i) texts.emplace_back(100, letter);
  for (const auto& text : texts) EXPECT_EQ(text.find_first_not_of(letter), text.npos);
};
TEST(pmr_resource_threads, have_containers_over_one_allocator) {
  shape_tests::serve_threads<locked<caching_allocator<packed_tightly, host_pinned>>>(fill_texts);
  shape_tests::serve_threads<
      per_stream<caching_allocator<with<packed_tightly, reuse_on_same_stream>, host_pinned>>>(fill_texts);
}

TEST(pmr_resource, compiles_the_example_of_its_comment) {
  tessera::caching_allocator<tessera::recipe::pinned_packed, tessera::provider::host_pinned> pool{
      host_memory()};
  tessera::interop::pmr_resource memory(pool);
  std::pmr::vector<float> batch(1000, &memory);
  EXPECT_EQ(pool.statistics().all.requested_bytes.current, 4000);
}

}  // namespace
