// SPDX-License-Identifier: Apache-2.0
// Requirements from the tests of other memory libraries (Umpire, UMF, mimalloc, snmalloc, D3D12MA, std::pmr
// in libc++), applied to tessera.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <random>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/interop/aligned_request.hpp>
#include <tessera/interop/std_allocators.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/policy/chunks.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using interop::aligned_request;

/// A pool like Umpire's: chunks of 16 KiB, sizes in multiples of 64 bytes; every rest is kept.
struct primary_pool final {
  using rounding = round_to_multiple<64>;
  using pools = pool_together;
  using streams = reuse_immediately;
  using split = split_if_remainder_at_least<64>;
  using pages = prefer_pages<page_preference::normal_only>;
  using growth = grow_by_chunks<tunable(std::size_t{0}), tunable(16_KiB)>;
  using eviction = evict_never;
  using recovery = recover_by_emptying_cache<>;
};
using primary = caching_allocator<primary_pool, simulated_device>;

struct parts {
  std::size_t free = 0, used = 0, largest_free = 0;
};
template <typename Pool>
parts parts_of(Pool& pool) {
  parts all;
  for_each_block(pool, [&all](const segment_view&, const block_view& b) {
    if (b.is != block_view::state::free) {
      ++all.used;
    } else {
      ++all.free;
      if (b.bytes > all.largest_free) all.largest_free = b.bytes;
    }
  });
  return all;
}

TEST(peers_umpire, the_first_request_takes_the_first_chunk) {
  primary pool;
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  pool.deallocate(pool.allocate(100));
  EXPECT_EQ(pool.current_usage().reserved, 16_KiB);
  pool.deallocate(pool.allocate(512 * sizeof(double)));
  EXPECT_EQ(pool.current_usage().reserved, 16_KiB);
}

TEST(peers_umpire, parts_split_and_become_one_again) {
  primary pool;
  void* const halves[] = {pool.allocate(8_KiB), pool.allocate(8_KiB)};
  EXPECT_EQ(parts_of(pool).used + parts_of(pool).free, 2u);
  void* const more[] = {pool.allocate(128), pool.allocate(128)};
  EXPECT_EQ(parts_of(pool).used, 4u);
  EXPECT_EQ(parts_of(pool).free, 1u);
  pool.deallocate(more[1]), pool.deallocate(more[0]);
  EXPECT_EQ(parts_of(pool).used + parts_of(pool).free, 3u);
  pool.deallocate(halves[1]), pool.deallocate(halves[0]);
  EXPECT_EQ(parts_of(pool).free, 2u) << "one in each chunk";
  pool.trim();
  EXPECT_EQ(parts_of(pool).free, 0u);
}

TEST(peers_umpire, reports_sizes_and_peaks) {
  primary pool;
  const std::size_t size = 16_KiB - 1;
  void* const first = pool.allocate(size);
  EXPECT_EQ(live_block_at(pool, first).requested, size);
  EXPECT_EQ(pool.statistics().all.requested_bytes.peak, static_cast<std::int64_t>(size));
  void* const second = pool.allocate(16_KiB);
  pool.deallocate(first);
  EXPECT_EQ(pool.current_usage().allocated, 16_KiB);
  EXPECT_EQ(pool.statistics().all.requested_bytes.peak, static_cast<std::int64_t>(size + 16_KiB));
  EXPECT_EQ(pool.statistics().all.reserved_bytes.peak, static_cast<std::int64_t>(32_KiB));
  EXPECT_EQ(live_block_at(pool, second).bytes, 16_KiB);
  pool.deallocate(second);
}

TEST(peers_umpire, the_largest_free_part_is_the_rest) {
  primary pool;
  pool.deallocate(pool.allocate(1024));
  EXPECT_EQ(parts_of(pool).largest_free, 16_KiB);
  std::vector<void*> row;
  for (std::size_t i = 1; i <= 16; ++i) {
    row.push_back(pool.allocate(1024));
    EXPECT_EQ(parts_of(pool).largest_free, 16_KiB - i * 1024);
  }
  for (std::size_t i = 0; i < 16; i += 2) {
    pool.deallocate(row[i]);
    EXPECT_EQ(parts_of(pool).largest_free, 1024u);
  }
  for (std::size_t i = 1; i < 16; i += 2) {
    pool.deallocate(row[i]);
    EXPECT_EQ(parts_of(pool).largest_free, (i + 2 < 16 ? i + 2 : i + 1) * 1024);
  }
}

TEST(peers_umpire, a_live_block_keeps_its_chunk_when_the_rest_is_released) {
  primary pool;
  void* const one = pool.allocate(62);
  pool.deallocate(pool.allocate(16_KiB));
  EXPECT_EQ(pool.current_usage().allocated, 64u);
  EXPECT_EQ(pool.current_usage().reserved, 32_KiB);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 16_KiB);
  pool.deallocate(one);
  pool.trim();
  EXPECT_EQ(pool.current_usage().allocated + pool.current_usage().reserved, 0u);
}

TEST(peers_umpire, a_pool_with_a_limit_serves_slowly_growing_requests) {
  // 4 MiB of memory. A part of the first chunk stays in use. Each request is 1 KiB larger than all before.
  caching_allocator<primary_pool, limiting<simulated_device>> pool{limiting<simulated_device>({}, 4_MiB)};
  pool.deallocate(pool.allocate(100));
  void* const first = pool.allocate(1024);
  void* const second = pool.allocate(1024);
  pool.deallocate(first);
  void* const stays = pool.allocate(100);
  pool.deallocate(second);
  for (std::size_t i = 0; i < 16; ++i) {
    void* const p = pool.try_allocate(1_MiB + i * 1024);
    ASSERT_NE(p, nullptr) << i;
    pool.deallocate(p);
    EXPECT_LE(pool.provider().taken(), 4_MiB);
  }
  pool.deallocate(stays);
  EXPECT_EQ(pool.audit(), nullptr);
}

/// A device that can refuse to release memory.
class reluctant : public provider_adaptor<simulated_device> {
 public:
  using provider_adaptor::provider_adaptor;
  bool release(void* p, std::size_t bytes) noexcept { return !refuses && inner().release(p, bytes); }
  inline static bool refuses = false;
};

TEST(peers_umf, memory_whose_release_failed_is_released_later) {
  simulated_device device;
  {
    caching_allocator<passthrough, reluctant> pool{reluctant(device)};
    void* const p = pool.allocate(1024);
    reluctant::refuses = true;
    pool.deallocate(p);
    EXPECT_EQ(pool.current_usage().allocated, 0u);
    EXPECT_EQ(pool.current_usage().reserved, 1024u) << "and so it is still counted";
    EXPECT_EQ(pool.audit(), nullptr);
    reluctant::refuses = false;
    pool.trim();
    EXPECT_EQ(pool.current_usage().reserved, 0u);
  }
  EXPECT_EQ(device.used(), 0u);
}

TEST(peers_umf, trims_to_the_bytes_to_keep) {
  caching_allocator<power_of_two, simulated_device> pool;
  std::vector<void*> four;
  for (int i = 0; i < 4; ++i) four.push_back(pool.allocate(4_KiB));
  for (void* p : four) pool.deallocate(p);
  for (const std::size_t kept : {4u, 3u, 1u, 0u}) {
    pool.trim(kept * 4_KiB);
    EXPECT_EQ(parts_of(pool).free, kept);
    EXPECT_EQ(pool.current_usage().reserved, kept * 4_KiB);
  }
}

TEST(peers_umf, two_pools_share_a_limit_and_release_all_at_the_end) {
  limiting<simulated_device> common({}, 8 * 1_KiB);
  {
    using pool = caching_allocator<power_of_two, provider_ref<limiting<simulated_device>>>;
    pool a{provider_ref(common)}, b{provider_ref(common)};
    std::vector<void*> of_a, of_b;
    for (int i = 0; i < 4; ++i) of_a.push_back(a.try_allocate(1024)), of_b.push_back(b.try_allocate(1024));
    EXPECT_EQ(common.taken(), 8 * 1_KiB);
    EXPECT_EQ(a.try_allocate(1024), nullptr);
    for (void* p : of_a) a.deallocate(p);
    EXPECT_EQ(b.try_allocate(1024), nullptr) << "what the other one keeps is taken";
    a.trim();
    EXPECT_NE(b.try_allocate(1024), nullptr);
  }
  EXPECT_EQ(common.taken(), 0u);
}

/// Serves a request at a multiple of `to`, and checks the address.
template <typename Pool>
void serve_aligned(Pool& pool, std::size_t bytes, std::size_t to, int times) {
  std::vector<void*> given;
  for (int i = 0; i < times; ++i) {
    void* const p = aligned_request(bytes, to).allocate(pool, {});
    ASSERT_NE(p, nullptr);
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(p) % to, 0u) << bytes << " at " << to;
    given.push_back(p);
  }
  for (void* p : given) aligned_request(bytes, to).deallocate(pool, p);
}

TEST(peers_mimalloc, serves_every_size_at_every_alignment) {
  primary pool{simulated_device(simulated_device::options{.granularity = 64})};
  for (std::size_t to = 1; to <= (std::size_t{1} << 24); to *= 2)
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{8}, to + 43, 512_KiB / 1024, 1_MiB})
      serve_aligned(pool, bytes, to, to <= 4_KiB ? 3 : 1);
  for (std::size_t bytes = 1; bytes <= 1024; bytes += 31)
    for (std::size_t to = 1; to <= bytes; to *= 2) serve_aligned(pool, bytes, to, 4);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_EQ(pool.audit(), nullptr);
}

TEST(peers_mimalloc, refuses_impossible_sizes) {
  caching_allocator<pytorch_family::native, simulated_device> pool;
  volatile std::size_t most = unlimited;  // so that no compiler warns of it
  for (const std::size_t bytes : {most, most / 2, most / 2 + 1, most / 1000}) {
    EXPECT_THROW((void)pool.allocate(bytes), std::bad_alloc) << bytes;
    EXPECT_EQ(pool.try_allocate(bytes), nullptr) << bytes;
    for (const std::size_t to : {std::size_t{8}, 1_KiB, most / 2 + 1})
      EXPECT_THROW((void)aligned_request(bytes, to).allocate(pool, {}), std::bad_alloc) << bytes;
  }
  pool.deallocate(nullptr);
  pool.deallocate(nullptr, 100);
  EXPECT_FALSE(pool.try_deallocate(reinterpret_cast<void*>(std::uintptr_t{0x03990080})));
  void* const large = pool.allocate(67'108'872);
  EXPECT_GE(live_block_at(pool, large).bytes, 67'108'872u);
  pool.deallocate(large);
}

TEST(peers_mimalloc_death, an_alignment_is_a_power_of_two) {
  for (const std::size_t to : {0u, 3u, 24u})
    EXPECT_DEATH(aligned_request(32, to), "an alignment is a power of two");
}

TEST(peers_mimalloc, many_heaps_live_on_one_device_and_leave_nothing) {
  simulated_device device;
  {
    using heap = caching_allocator<pytorch_family::native, provider_ref<simulated_device>>;
    std::vector<std::unique_ptr<heap>> heaps;
    for (int i = 0; i < 1000; ++i) {
      heaps.push_back(std::make_unique<heap>(provider_ref(device)));
      ASSERT_NE(heaps.back()->try_allocate(32), nullptr);
    }
    EXPECT_EQ(device.used(), 1000 * 2_MiB);
  }
  EXPECT_EQ(device.used(), 0u);
}

TEST(peers_mimalloc, a_block_that_grows_step_by_step_does_not_spread) {
  // Like realloc: each time 64 bytes more, then the old block is freed.
  caching_allocator<pytorch_family::native, simulated_device> pool;
  void* shared = nullptr;
  for (int round = 0; round < 16; ++round)
    for (std::size_t i = 1; i < 1024; ++i) {
      void* const larger = pool.allocate(i * 64);
      pool.deallocate(std::exchange(shared, larger));
    }
  EXPECT_EQ(pool.current_usage().reserved, 2_MiB);
  pool.deallocate(shared);
  EXPECT_EQ(parts_of(pool).free, 1u);
}

TEST(peers_snmalloc, the_memory_kept_by_one_live_page_is_bounded) {
  // Thousands of blocks are allocated and freed; one of each round stays live.
  caching_allocator<pytorch_family::native, simulated_device> pool;
  std::vector<void*> garbage, kept;
  for (int round = 0; round < 12; ++round) {
    for (int i = 0; i < 1024; ++i) garbage.push_back(pool.allocate(16));
    kept.push_back(pool.allocate(16));
    for (void* p : garbage) pool.deallocate(p);
    garbage.clear();
  }
  EXPECT_LE(pool.current_usage().reserved, 4_MiB);
  for (void* p : kept) pool.deallocate(p);
}

TEST(peers_snmalloc, addresses_are_new_and_allocators_strangers) {
  simulated_device device;
  using pool = caching_allocator<pytorch_family::native, provider_ref<simulated_device>>;
  pool a{provider_ref(device)}, b{provider_ref(device)};
  for (int k = 0; k < 3; ++k) {
    std::set<void*> all, of_a, of_b;
    for (int i = 0; i < 2000; ++i) of_a.insert(a.allocate(20)), of_b.insert(b.allocate(20));
    all.insert(of_a.begin(), of_a.end()), all.insert(of_b.begin(), of_b.end());
    EXPECT_EQ(all.size(), 4000u);
    // In snmalloc, one heap accepts the blocks of another. Here the allocator reports that it does not know
    // the block.
    for (void* p : of_a) EXPECT_FALSE(b.try_deallocate(p));
    for (void* p : of_a) EXPECT_TRUE(a.try_deallocate(p));
    for (void* p : of_b) EXPECT_TRUE(b.try_deallocate(p));
  }
}

TEST(peers_snmalloc, host_memory_of_blocks_is_freed_too) {
  caching_allocator<stitched, simulated_device> in_pages;
  caching_allocator<pytorch_family::native, simulated_device> in_segments;
  const auto fill_and_empty = [](auto& pool) {
    const std::size_t before = pool.metadata_bytes();
    std::mt19937_64 random(7);
    std::vector<void*> live;
    for (int phase = 0; phase < 3; ++phase) {
      for (int i = 0; i < 6'000; ++i) live.push_back(pool.allocate(1024));
      while (live.size() > 3'000) {
        std::swap(live[random() % live.size()], live.back());
        pool.deallocate(live.back());
        live.pop_back();
      }
    }
    const std::size_t full = pool.metadata_bytes();
    EXPECT_GT(full, before + 200'000);
    for (void* p : live) pool.deallocate(p);
    pool.trim();
    EXPECT_EQ(pool.current_usage().reserved, 0u);
    EXPECT_LT(pool.metadata_bytes(), before + 50'000) << "of " << full;
  };
  fill_and_empty(in_pages), fill_and_empty(in_segments);
}

TEST(peers_d3d12ma, a_block_of_16_mib_serves_8_and_4_and_another_8_after_the_4_are_freed) {
  using whole = with<primary_pool, round_to_multiple<256>, grow_exactly<>>;
  simulated_device device(simulated_device::options{.capacity = 16_MiB});
  caching_allocator<whole, provider_ref<simulated_device>> block{provider_ref(device)};
  block.deallocate(block.allocate(16_MiB));
  auto* const first = static_cast<std::byte*>(block.allocate(8_MiB));
  auto* const second = static_cast<std::byte*>(block.allocate(4_MiB));
  EXPECT_TRUE(second + 4_MiB <= first || first + 8_MiB <= second);
  EXPECT_EQ(live_block_at(block, first).bytes, 8_MiB);
  EXPECT_EQ(block.try_allocate(8_MiB), nullptr);
  block.deallocate(second);
  auto* const third = static_cast<std::byte*>(block.try_allocate(8_MiB));
  ASSERT_NE(third, nullptr);
  EXPECT_TRUE(third + 8_MiB <= first || first + 8_MiB <= third);
  EXPECT_EQ(parts_of(block).used, 2u);
  EXPECT_EQ(block.current_usage().allocated, 16_MiB);
  EXPECT_EQ(block.current_usage().cached, 0u);
  block.deallocate(first);
  std::array<void*, 10> small{};
  for (std::size_t i = 0; i < small.size(); ++i)
    small[i] = aligned_request(i * 3 + 15, 8).allocate(block, {});
  for (std::size_t i = small.size(); i-- > 0;) aligned_request(i * 3 + 15, 8).deallocate(block, small[i]);
  block.deallocate(third);
  EXPECT_EQ(parts_of(block).free, 1u);
}

/// An element whose third copy throws.
struct costly {
  explicit costly(int given) : value(given) {
    if (given == 3) throw std::runtime_error("the third one");
  }
  int value;
  std::array<char, 500> more{};
};

TEST(peers_pmr, nothing_leaks_if_an_element_throws) {
  host_pinned host(host_pinned::options{.capacity = 64_MiB, .pin = host_pinned::pinning::never});
  caching_allocator<pinned_packed, host_pinned> pool{std::move(host)};
  pmr_resource memory(pool);
  {
    std::pmr::vector<costly> row(&memory);
    const auto fill = [&row] {
      for (int i = 0; i < 5; ++i) row.emplace_back(i);
    };
    EXPECT_THROW(fill(), std::runtime_error);
    EXPECT_EQ(row.size(), 3u);
    std::pmr::polymorphic_allocator<> objects(&memory);
    EXPECT_THROW((void)objects.new_object<costly>(3), std::runtime_error);
    auto* const one = objects.new_object<costly>(1);
    objects.delete_object(one);
    EXPECT_THROW((void)objects.allocate_object<costly>(unlimited / 2), std::bad_array_new_length);
  }
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(peers_pmr, the_standard_resources_free_all_their_memory) {
  host_pinned host(host_pinned::options{.capacity = 64_MiB, .pin = host_pinned::pinning::never});
  caching_allocator<pinned_packed, host_pinned> pool{std::move(host)};
  pmr_resource memory(pool);
  const auto use = [](std::pmr::memory_resource& over, std::size_t most) {
    std::vector<std::pair<void*, std::size_t>> given;
    for (std::size_t bytes = 1; bytes < 100'000; bytes = bytes * 3 + 1)
      for (std::size_t to = 1; to <= most; to *= 8) {
        void* const p = over.allocate(bytes, to);
        ASSERT_EQ(reinterpret_cast<std::uintptr_t>(p) % to, 0u);
        static_cast<char*>(p)[0] = static_cast<char*>(p)[bytes - 1] = 'x';
        over.deallocate(p, bytes, to);
        given.emplace_back(over.allocate(bytes, 8), bytes);
      }
    for (const auto& [p, bytes] : given) over.deallocate(p, bytes, 8);
  };
  {
    std::pmr::unsynchronized_pool_resource plain(
        {.max_blocks_per_chunk = 8, .largest_required_pool_block = 4096}, &memory);
    std::pmr::synchronized_pool_resource synchronized(&memory);
    std::pmr::monotonic_buffer_resource monotonic(64, &memory);
    use(memory, 32_KiB), use(monotonic, 32_KiB);
    use(plain, 8), use(synchronized, 8);  // libstdc++ 12 does not support larger alignments in its pools
    plain.release(), synchronized.release(), monotonic.release();
    EXPECT_EQ(pool.current_usage().allocated, 0u);
    use(monotonic, 4_KiB);
  }
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_EQ(pool.audit(), nullptr);
}

}  // namespace
