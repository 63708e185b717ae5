// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/detail/blocks/free_list.hpp>

#include "../../../by_day.hpp"

namespace {

using tessera::detail::bin;
using tessera::detail::block;
using tessera::detail::free_list;

struct by_key {
  bool operator()(const block* a, const block* b) const {
    return std::tuple(a->size, a->address) < std::tuple(b->size, b->address);
  }
};
using ordered = std::set<block*, by_key>;

/// A position to search for.
tessera::detail::list_position key_of(std::size_t size, std::uintptr_t address) {
  return {.size = size, .address = address};
}
block* first_not_before(const ordered& reference, std::size_t size, std::uintptr_t address) {
  block wanted{};
  wanted.size = size;
  wanted.address = address;
  const auto found = reference.lower_bound(&wanted);
  return found == reference.end() ? nullptr : *found;
}
block* last_before(const ordered& reference, std::size_t size, std::uintptr_t address) {
  block wanted{};
  wanted.size = size;
  wanted.address = address;
  const auto found = reference.lower_bound(&wanted);
  return found == reference.begin() ? nullptr : *std::prev(found);
}
// Any of them; which one does not depend on their addresses in host memory.
block* one_of(const ordered& reference, std::mt19937_64& random) {
  block* const found = first_not_before(reference, std::size_t{1} << (random() % 42), 0);
  return found != nullptr ? found : *reference.begin();
}

template <typename Index>
void expect_walk(const Index& index, const ordered& reference) {
  block* walked = index.first();
  for (block* expected : reference) {
    ASSERT_EQ(walked, expected);
    walked = index.after(*walked);
  }
  ASSERT_EQ(walked, nullptr);
}

std::size_t any_size(std::mt19937_64& random) {
  return ((std::size_t{1} << (random() % 42)) + random() % 4096) / 64 * 64 + 64;
}

// Both forms of a bin: a few blocks are a circular list, many in random order become a treap.
TEST(bin, answers_as_an_ordered_set_does) {
  for (const std::size_t most : {1u, 3u, 20u, 400u}) {
    std::mt19937_64 random(most);
    std::vector<block> storage(most);
    bool any_treap = false;
    bin tested;
    ordered reference;
    for (int i = 0; i < 20000; ++i) {
      block& b = storage[random() % most];
      if (const auto same = reference.find(&b); same != reference.end() && *same == &b) {
        tested.erase(b);
        reference.erase(&b);
      } else {
        b.address = random() % 1000 * 512;
        b.size = 4096 + random() % 4 * 64;
        if (reference.contains(&b)) continue;
        tested.insert(b);
        reference.insert(&b);
      }
      if (i % 4000 > 3000) {  // sometimes all are removed
        while (!reference.empty()) {
          tested.erase(**reference.begin());
          reference.erase(reference.begin());
        }
      }
      ASSERT_EQ(tested.first(), reference.empty() ? nullptr : *reference.begin());
      ASSERT_EQ(tested.last(), reference.empty() ? nullptr : *reference.rbegin());
      const std::size_t size = 4096 + random() % 5 * 64;
      const std::uintptr_t address = random() % 1000 * 512;
      ASSERT_EQ(tested.best_fit(size), first_not_before(reference, size, 0));
      ASSERT_EQ(tested.last_before(key_of(size, address)), last_before(reference, size, address));
      if (i % 100 == 0) expect_walk(tested, reference);
      for (const block* kept : reference) any_treap = any_treap || kept->status.tally == 255;
    }
    EXPECT_EQ(any_treap, most == 400);
  }
}

// Increasing sizes, inserted into the middle of a circular list, so that it is long before it becomes a
// treap.
TEST(bin, finds_a_block_in_a_treap_in_few_steps) {
  constexpr std::size_t count = 4096;
  std::vector<block> storage(count);
  bin tested;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = i % 2 == 0 ? i : count - i;
    storage[i].address = at * 64;
    storage[i].size = 4096 + at * 64;
    tested.insert(storage[i]);
  }
  ASSERT_EQ(storage[0].status.tally, 255);
  std::set<const block*> below_others;
  for (const block& b : storage) {
    for (const block* below : b.links) below_others.insert(below);
  }
  std::vector<const block*> level;
  for (const block& b : storage) {
    if (!below_others.contains(&b)) level.push_back(&b);
  }
  ASSERT_EQ(level.size(), 1u);
  std::size_t depth = 0, seen = 0;
  for (; !level.empty(); ++depth) {
    std::vector<const block*> next;
    for (const block* b : level) {
      for (const block* below : b->links) {
        if (below != nullptr) next.push_back(below);
      }
    }
    seen += level.size();
    level = std::move(next);
  }
  EXPECT_EQ(seen, count);
  EXPECT_LT(depth, 80u);  // five times its logarithm and more
}

// Counts the comparisons of an order.
struct counting_order : tessera::detail::by_size_and_address {
  static inline std::size_t comparisons = 0;
  [[nodiscard]] static bool precedes(const block& a, const block& b) noexcept {
    ++comparisons;
    return by_size_and_address::precedes(a, b);
  }
};

// The blocks come and go in order, from both ends, and at random. One call makes a treap of a list of 40 blocks: it
// compares each with at most all before it. How many steps the others take depends on the addresses of the blocks, which
// differ in each run, but 100 is twice the height of a random tree with so many.
TEST(bin, takes_few_steps_in_each_call_with_many_blocks) {
  constexpr std::size_t count = tessera::by_day(50'000, 300'000);
  std::vector<block> storage(count);
  std::vector<std::size_t> order(count);
  std::mt19937_64 random(8);
  for (const int way : {0, 1, 2}) {
    bin tested;
    std::size_t most = 0, of_change = 0;
    const auto steps_of = [&](auto call, bool is_change = false) {
      counting_order::comparisons = 0;
      call();
      std::size_t& counted = is_change ? of_change : most;
      counted = std::max(counted, counting_order::comparisons);
    };
    for (std::size_t i = 0; i < count; ++i) order[i] = way == 1 ? count - 1 - i : i;
    if (way == 2) std::shuffle(order.begin(), order.end(), random);
    std::size_t inserted = 0;
    for (std::size_t i : order) {
      storage[i].address = i * 64;
      storage[i].size = 4096 + i % 2 * 64;
      steps_of([&] { tested.insert<counting_order>(storage[i]); }, ++inserted == 41);
    }
    std::shuffle(order.begin(), order.end(), random);
    for (std::size_t i : order) {
      steps_of([&] { ASSERT_NE(tested.best_fit<counting_order>(4096), nullptr); });
      steps_of([&] { tested.erase<counting_order>(storage[i]); });
    }
    ASSERT_EQ(tested.first(), nullptr);
    EXPECT_GT(of_change, 80u) << "way " << way;
    EXPECT_LE(of_change, 40u * 41 / 2) << "way " << way;
    EXPECT_LE(most, 100u) << "way " << way;
  }
}

TEST(free_list, find_the_largest_before_a_size_however_far_below) {
  auto index = std::make_unique<free_list>(free_list::place{}, tessera::stream_id{});
  block small{}, large{};
  small.size = 512;
  large.size = std::size_t{1} << 40;
  index->insert(small);
  EXPECT_EQ(index->last_before(key_of(512, 0)), nullptr);
  EXPECT_EQ(index->last_before(key_of(576, 0)), &small);
  EXPECT_EQ(index->last_before(key_of(large.size, 0)), &small);
  index->insert(large);
  EXPECT_EQ(index->last_before(key_of(large.size, 0)), &small);
  EXPECT_EQ(index->last_before(key_of(std::size_t{1} << 50, 0)), &large);
  index->erase(small);
  EXPECT_EQ(index->last_before(key_of(large.size, 0)), nullptr);
  EXPECT_EQ(index->last_before(key_of(64, 0)), nullptr);
}

TEST(free_list, answer_as_an_ordered_set_does) {
  std::mt19937_64 random(11);
  auto index = std::make_unique<free_list>(free_list::place{}, tessera::stream_id{});
  ordered reference;
  std::vector<std::unique_ptr<block>> storage;
  for (int i = 0; i < 60000; ++i) {
    const std::size_t size = i % 3 == 0 ? 512 * (1 + random() % 40) : any_size(random);
    const std::size_t action = random() % 4;
    if (action < 2) {
      auto made = std::make_unique<block>();
      made->address = random() % 100000 * 512;
      made->size = size;
      if (!reference.insert(made.get()).second) continue;
      index->insert(*made);
      storage.push_back(std::move(made));
    } else if (!reference.empty()) {
      block* const b = one_of(reference, random);
      if (action == 2) {
        index->erase(*b);
        reference.erase(b);
      } else if (block* const same = first_not_before(reference, size, b->address);
                 same == nullptr || same->size != size || same->address != b->address) {
        reference.erase(b);
        index->begin_resize(*b);
        b->size = size;
        reference.insert(b);
        ASSERT_EQ(index->last_resized(), b);
      }
    }
    const std::size_t wanted = any_size(random);
    ASSERT_EQ(index->best_fit(wanted), first_not_before(reference, wanted, 0));
    if (i % 16 == 0) {
      index->flush();
      ASSERT_EQ(index->last_resized(), nullptr);
      const std::uintptr_t address = random() % 100000 * 512;
      ASSERT_EQ(index->last_before(key_of(wanted, address)), last_before(reference, wanted, address));
    }
    if (i % 1008 == 0) expect_walk(*index, reference);  // just flushed
  }
}

TEST(block, fits_in_a_cache_line) { EXPECT_EQ(sizeof(block), 64u); }

}  // namespace
