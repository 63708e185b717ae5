// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/engine/free_blocks.hpp>

namespace {

using tessera::engine::block;
using tessera::engine::free_blocks;

struct by_key {
  bool operator()(const block* a, const block* b) const {
    return std::tuple(a->size, a->address) < std::tuple(b->size, b->address);
  }
};

std::size_t any_size(std::mt19937_64& random) {
  return ((std::size_t{1} << (random() % 42)) + random() % 4096) / 64 * 64 + 64;
}

// The index against an ordered set, for every question it answers.
TEST(free_blocks, answer_as_an_ordered_set_does) {
  std::mt19937_64 random(11);
  const std::uint64_t clock = 0;
  auto index = std::make_unique<free_blocks>(0, tessera::stream_id{}, clock);
  std::set<block*, by_key> reference;
  std::vector<std::unique_ptr<block>> storage;
  for (int i = 0; i < 60000; ++i) {
    const std::size_t size = i % 3 == 0 ? 512 * (1 + random() % 40) : any_size(random);
    switch (random() % 4) {
      case 0:
      case 1: {
        auto made = std::make_unique<block>();
        made->address = random() % 100000 * 512;
        made->size = size;
        if (!reference.insert(made.get()).second) break;
        index->insert(*made);
        storage.push_back(std::move(made));
        break;
      }
      case 2: {
        if (reference.empty()) break;
        auto it = reference.lower_bound(storage[random() % storage.size()].get());
        if (it == reference.end()) it = reference.begin();
        index->remove(**it);
        reference.erase(it);
        break;
      }
      case 3: {
        if (reference.empty()) break;
        block* const b = *reference.begin();
        block wanted{};
        wanted.size = size;
        wanted.address = b->address;
        if (reference.contains(&wanted)) break;
        reference.erase(reference.begin());
        index->change(*b, b->address, size);
        reference.insert(b);
        break;
      }
    }
    block wanted{};
    wanted.size = any_size(random);
    const auto fit = reference.lower_bound(&wanted);
    ASSERT_EQ(index->best_fit(wanted.size), fit == reference.end() ? nullptr : *fit);
    wanted.address = random() % 100000 * 512;
    const auto first = reference.lower_bound(&wanted);
    ASSERT_EQ(index->first_from(wanted.size, wanted.address), first == reference.end() ? nullptr : *first);
    ASSERT_EQ(index->last_before(wanted.size, wanted.address),
              first == reference.begin() ? nullptr : *std::prev(first));
  }
  block* walked = index->first_from(0, 0);
  for (block* expected : reference) {
    ASSERT_EQ(walked, expected);
    walked = index->after(*walked);
  }
  EXPECT_EQ(walked, nullptr);
}

TEST(free_blocks, fit_in_a_cache_line_each) { EXPECT_EQ(sizeof(block), 64u); }

TEST(free_blocks, age_with_the_searches_of_the_pool) {
  std::uint64_t clock = 5;
  auto index = std::make_unique<free_blocks>(0, tessera::stream_id{}, clock);
  block b{};
  b.size = 512;
  index->insert(b);
  clock = 12;
  EXPECT_EQ(index->age(b), 7u);
  index->change(b, 512, 1024);
  EXPECT_EQ(index->age(b), 0u);
}

}  // namespace
