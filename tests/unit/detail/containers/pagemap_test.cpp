// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/indexed.hpp>
#include <tessera/core/bytes.hpp>

namespace {

using namespace tessera;
using detail::pagemap;
constexpr auto no_owner = pagemap::no_owner;

void* at(std::uint64_t address) { return reinterpret_cast<void*>(address); }

TEST(directory_threads, find_the_owner_of_an_address) {
  pagemap where;
  EXPECT_EQ(where.owner_of(at(0)), no_owner);
  EXPECT_EQ(where.owner_of(at(4_MiB)), no_owner);
  ASSERT_TRUE(where.add(at(4_MiB), 6_MiB, 7));
  ASSERT_TRUE(where.add(at((std::uint64_t{1} << 56) + 2_MiB), 2_MiB, 8));
  ASSERT_TRUE(where.add(at(~std::uint64_t{0} - 2_MiB + 1), 2_MiB, 9));
  ASSERT_TRUE(where.add(at(512), 512, 0));
  EXPECT_EQ(where.owner_of(at(4_MiB - 1)), no_owner);
  EXPECT_EQ(where.owner_of(at(4_MiB)), 7u);
  EXPECT_EQ(where.owner_of(at(7_MiB)), 7u);
  EXPECT_EQ(where.owner_of(at(10_MiB - 1)), 7u);
  EXPECT_EQ(where.owner_of(at(10_MiB)), no_owner);
  EXPECT_EQ(where.owner_of(at((std::uint64_t{1} << 56) + 3_MiB)), 8u);
  EXPECT_EQ(where.owner_of(at(~std::uint64_t{0})), 9u);
  EXPECT_EQ(where.owner_of(at(512)), 0u);
  where.forget(where.take_out(at(512)));
  where.forget(where.take_out(at(4_MiB)));
  EXPECT_EQ(where.owner_of(at(512)), no_owner);
  EXPECT_EQ(where.owner_of(at(4_MiB)), no_owner);
  EXPECT_EQ(where.owner_of(at(~std::uint64_t{0})), 9u);
}

TEST(directory_threads, find_the_owner_of_reserved_addresses_without_memory) {
  pagemap where;
  ASSERT_TRUE(where.add(at(64_MiB), 64_KiB, 2));  // another owner in the first frame
  ASSERT_TRUE(where.add_reserved(at(64_MiB + 1_MiB), 100_MiB, 1));
  EXPECT_EQ(where.owner_of(at(64_MiB)), 2u);
  EXPECT_EQ(where.owner_of(at(64_MiB + 64_KiB)), no_owner);
  EXPECT_EQ(where.owner_of(at(64_MiB + 1_MiB)), 1u);
  EXPECT_EQ(where.owner_of(at(165_MiB - 1)), 1u);
  EXPECT_EQ(where.owner_of(at(165_MiB)), no_owner);
  ASSERT_TRUE(where.add(at(80_MiB), 4_MiB, 1));
  where.forget(where.take_out(at(80_MiB)));
  EXPECT_EQ(where.owner_of(at(80_MiB)), 1u) << "memory that sleeps";
  ASSERT_TRUE(where.add(at(165_MiB), 64_KiB, 3));  // in the last frame
  EXPECT_EQ(where.owner_of(at(165_MiB - 1)), 1u);
  EXPECT_EQ(where.owner_of(at(165_MiB)), 3u);
  where.remove_reserved(at(65_MiB));
  EXPECT_EQ(where.owner_of(at(80_MiB)), no_owner);
  EXPECT_EQ(where.owner_of(at(165_MiB)), 3u);
}

TEST(directory_threads, contain_exactly_the_added_addresses) {
  pagemap where;
  EXPECT_FALSE(where.contains(at(4_MiB)));
  ASSERT_TRUE(where.add(at(4_MiB + 64_KiB), 64_KiB, 7));
  EXPECT_EQ(where.owner_of(at(4_MiB)), 7u) << "another address of the frame";
  EXPECT_FALSE(where.contains(at(4_MiB + 64_KiB - 1)));
  EXPECT_TRUE(where.contains(at(4_MiB + 64_KiB)));
  EXPECT_TRUE(where.contains(at(4_MiB + 128_KiB - 1)));
  EXPECT_FALSE(where.contains(at(4_MiB + 128_KiB)));
  where.forget(where.take_out(at(4_MiB + 64_KiB)));
  EXPECT_FALSE(where.contains(at(4_MiB + 64_KiB)));
}

TEST(directory_threads, tell_owners_in_one_frame_apart) {
  pagemap where;
  const std::uint64_t frame = 64_MiB;
  ASSERT_TRUE(where.add(at(frame), 4_KiB, 1));
  ASSERT_TRUE(where.add(at(frame + 8_KiB), 4_KiB, 1));
  EXPECT_EQ(where.owner_of(at(frame + 8_KiB)), 1u);
  ASSERT_TRUE(where.add(at(frame + 1_MiB), 3_MiB, 2));
  EXPECT_EQ(where.owner_of(at(frame)), 1u);
  EXPECT_EQ(where.owner_of(at(frame + 4_KiB)), no_owner);
  EXPECT_EQ(where.owner_of(at(frame + 12_KiB - 1)), 1u);
  EXPECT_EQ(where.owner_of(at(frame + 1_MiB)), 2u);
  EXPECT_EQ(where.owner_of(at(frame + 3_MiB)), 2u);
  where.forget(where.take_out(at(frame)));
  EXPECT_EQ(where.owner_of(at(frame)), no_owner);
  EXPECT_EQ(where.owner_of(at(frame + 8_KiB)), 1u);
  where.forget(where.take_out(at(frame + 1_MiB)));
  EXPECT_EQ(where.owner_of(at(frame + 8_KiB)), 1u);
  EXPECT_EQ(where.owner_of(at(frame + 3_MiB)), no_owner);
}

TEST(directory_threads, restore_removed_owners) {
  pagemap where;
  std::vector<pagemap::taken> out;
  for (std::uint64_t i = 1; i <= 100; ++i) ASSERT_TRUE(where.add(at(i * 16_MiB), 3_MiB, 1));
  for (std::uint64_t i = 1; i <= 100; ++i) out.push_back(where.take_out(at(i * 16_MiB)));
  EXPECT_EQ(where.owner_of(at(16_MiB)), no_owner);
  for (std::uint64_t i = 1; i <= 5000; ++i) ASSERT_TRUE(where.add(at(i * 16_MiB + 8_MiB), 2_MiB, 2));
  for (auto& r : out) where.put_back(std::move(r));
  for (std::uint64_t i = 1; i <= 100; ++i) {
    EXPECT_EQ(where.owner_of(at(i * 16_MiB + 3_MiB - 1)), 1u);
    EXPECT_EQ(where.owner_of(at(i * 16_MiB + 8_MiB)), 2u);
  }
}

TEST(directory_threads, refuse_ranges_that_cannot_be_added) {
  pagemap where;
  ASSERT_TRUE(where.add(at(2_MiB), 2_MiB, 1));
  EXPECT_FALSE(where.add(at(std::uint64_t{1} << 62), std::size_t{1} << 62, 2));
  EXPECT_EQ(where.owner_of(at(std::uint64_t{1} << 62)), no_owner);
  EXPECT_EQ(where.owner_of(at(2_MiB)), 1u);
}

TEST(directory_threads, need_no_more_memory_for_addresses_that_never_come_again) {
  pagemap where;
  std::size_t largest = 0;
  for (std::uint64_t i = 1; i <= 100'000; ++i) {
    ASSERT_TRUE(where.add(at(i * 2_MiB), 2_MiB, static_cast<std::uint32_t>(i % 5)));
    ASSERT_EQ(where.owner_of(at(i * 2_MiB)), i % 5);
    if (i > 50) where.forget(where.take_out(at((i - 50) * 2_MiB)));
    if (where.metadata_bytes() > largest) largest = where.metadata_bytes();
  }
  EXPECT_LT(largest, 32_KiB);
}

TEST(directory_threads, agree_with_a_map) {
  pagemap where;
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint32_t>> truth;  // pages
  std::mt19937_64 random(1);
  for (int i = 0; i < 5000; ++i) {
    const std::uint64_t first = 1 + random() % 40'000;
    const std::uint64_t count = 1 + random() % (random() % 8 == 0 ? 2000 : 20);
    const auto above = truth.lower_bound(first);
    const bool is_free = (above == truth.end() || above->first >= first + count) &&
                         (above == truth.begin() || std::prev(above)->second.first <= first);
    if (is_free) {
      const auto owner = static_cast<std::uint32_t>(random() % 3);
      ASSERT_TRUE(where.add(at(first << 12), count << 12, owner));
      truth[first] = {first + count, owner};
    } else if (above != truth.end()) {
      auto out = where.take_out(at(above->first << 12));
      if (random() % 4 == 0) {
        where.put_back(std::move(out));
      } else {
        where.forget(std::move(out));
        truth.erase(above);
      }
    }
    for (const auto& [begin, r] : truth) {
      if (random() % 16 != 0) continue;
      ASSERT_EQ(where.owner_of(at(begin << 12)), r.second);
      ASSERT_EQ(where.owner_of(at((r.first << 12) - 1)), r.second);
    }
  }
  EXPECT_GT(truth.size(), 10u);
}

// More threads than processors, so that some are interrupted while they read a table.
TEST(directory_threads, read_while_others_write) {
  pagemap where;
  for (std::uint64_t i = 0; i < 4; ++i)  // two owners in each frame
    ASSERT_TRUE(where.add(at(1_GiB + i * 1_MiB), 1_MiB, static_cast<std::uint32_t>(i % 2)));
  ASSERT_TRUE(where.add(at(4_GiB), 10_MiB, 9));
  std::atomic<bool> done = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> reading;
  for (unsigned t = 0; t < 2 * std::thread::hardware_concurrency() + 1; ++t) {
    reading.emplace_back([&] {
      for (std::uint64_t i = 0; !done; ++i) {
        for (int n = 0; n < 100; ++n) {
          if (where.owner_of(at(4_GiB + (i * 1237 << 9) % 10_MiB)) != 9) ++wrong;
        }
        if (where.owner_of(at(1_GiB + i % 4 * 1_MiB + i % 1_MiB)) != i % 4 % 2) ++wrong;
        if (where.owner_of(at(3_GiB)) != no_owner) ++wrong;
      }
    });
  }
  std::uint64_t next = std::uint64_t{1} << 56;
  for (int round = 0; round < 100'000; ++round, next += 4_MiB) {
    ASSERT_TRUE(where.add(at(next), 3_MiB, 5));
    where.forget(where.take_out(at(next)));
  }
  for (int i = 0; i < 1000; ++i, next += 4_MiB) ASSERT_TRUE(where.add(at(next), 3_MiB, 5));  // larger tables
  done = true;
  for (auto& t : reading) t.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
