// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <random>
#include <unordered_map>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/detail/containers/containers.hpp>

#include "../../../by_day.hpp"

namespace {

using tessera::detail::key_map;
using tessera::detail::slab;

struct thing {
  std::uint64_t key;
  [[nodiscard]] std::uint64_t map_key() const { return key; }
};

TEST(key_map, answers_as_a_standard_map_does) {
  std::mt19937_64 random(5);
  key_map<thing> map;
  std::unordered_map<std::uint64_t, thing> reference;
  for (int i = 0; i < 200000; ++i) {
    const std::uint64_t key = (random() % 3000) << (i % 2 == 0 ? 9 : 21);
    if (random() % 5 < (i < 100000 ? 3u : 2u)) {
      if (!reference.contains(key)) {
        ASSERT_TRUE(map.reserve_one());
        map.insert(key, reference[key] = thing{key});
      }
    } else {
      const auto found = reference.find(key);
      ASSERT_EQ(map.remove(key), found == reference.end() ? nullptr : &found->second);
      if (found != reference.end()) reference.erase(found);
    }
    ASSERT_EQ(map.size(), reference.size());
  }
  for (auto& [key, value] : reference) ASSERT_EQ(map.find(key), &value);
  for (std::uint64_t key = 1; key < 1000; key += 2) ASSERT_EQ(map.find(key), nullptr);
}

TEST(key_map, takes_key_zero_and_gives_memory_back) {
  key_map<thing> map;
  EXPECT_EQ(map.find(0), nullptr);
  EXPECT_EQ(map.remove(~std::uint64_t{0}), nullptr);
  std::vector<thing> things(100000);
  for (std::size_t i = 0; i < things.size(); ++i) {
    things[i].key = i;
    ASSERT_TRUE(map.reserve_one());
    map.insert(i, things[i]);
  }
  EXPECT_EQ(map.find(0), &things[0]);
  const std::size_t full = map.metadata_bytes();
  for (thing& t : things) ASSERT_EQ(map.remove(t.key), &t);
  EXPECT_LT(map.metadata_bytes(), full / 100);
}

TEST(key_map, is_at_most_three_eighths_full_if_small) {
  key_map<thing> map;
  std::vector<thing> things(2000);
  EXPECT_EQ(map.metadata_bytes(), 0u);
  for (std::size_t i = 0; i < things.size(); ++i) {
    things[i].key = i << 9;
    ASSERT_TRUE(map.reserve_one());
    map.insert(things[i].key, things[i]);
    const std::size_t slots = map.metadata_bytes() / sizeof(void*);
    ASSERT_LE(map.size() * 8, slots * 3);
  }
  EXPECT_EQ(map.metadata_bytes() / sizeof(void*), 8192u);
}

// An object that counts how often its key is read: once for each step of a search, and for each moved entry.
struct counting_thing {
  static inline std::size_t reads = 0;
  std::uint64_t key;
  [[nodiscard]] std::uint64_t map_key() const {
    ++reads;
    return key;
  }
};

TEST(key_map, takes_few_steps_in_each_call_while_it_grows_and_shrinks) {
  key_map<counting_thing> map;
  std::mt19937_64 random(3);
  std::vector<counting_thing> things(tessera::by_day(250'000, 1'000'000));
  std::size_t most = 0;
  const auto count = [&most](auto call) {
    counting_thing::reads = 0;
    call();
    most = std::max(most, counting_thing::reads);
  };
  for (std::size_t i = 0; i < things.size(); ++i) {
    things[i].key = random() % (std::uint64_t{1} << 40) << 9 | i % 512;
    count([&] { ASSERT_TRUE(map.reserve_one()); });
    count([&] { map.insert(things[i].key, things[i]); });
  }
  EXPECT_LE(map.metadata_bytes(), 17u * things.size());
  std::vector<const counting_thing*> order;
  for (const counting_thing& t : things) order.push_back(&t);
  std::shuffle(order.begin(), order.end(), random);
  for (const counting_thing* t : order) count([&] { ASSERT_EQ(map.remove(t->key), t); });
  EXPECT_LE(most, 100u);
  EXPECT_LE(map.metadata_bytes(), 8192u);
}

TEST(key_map, keeps_a_held_reserve_while_objects_are_removed) {
  key_map<thing> map;
  std::vector<thing> things(10000);
  for (std::size_t i = 0; i < things.size(); ++i) things[i].key = i << 9;
  ASSERT_TRUE(map.hold_reserve(things.size()));
  const std::size_t full = map.metadata_bytes();
  for (int again = 0; again < 2; ++again) {
    for (thing& t : things) map.insert(t.key, t);
    for (thing& t : things) ASSERT_EQ(map.remove(t.key), &t);
    ASSERT_EQ(map.metadata_bytes(), full);
  }
  map.shrink_to_fit();
  EXPECT_LT(map.metadata_bytes(), full / 100);
  map.shrink_to_fit();
  ASSERT_TRUE(map.hold_reserve(0));
}

struct node {
  std::uint64_t words[8];
};

TEST(slab, keeps_a_held_reserve_until_a_purge) {
  slab<node> nodes;
  ASSERT_TRUE(nodes.hold_reserve(10000));
  const std::size_t full = nodes.metadata_bytes();
  ASSERT_TRUE(nodes.reserve(1));
  nodes.give_back(nodes.take());
  EXPECT_EQ(nodes.metadata_bytes(), full);
  nodes.purge();
  EXPECT_EQ(nodes.metadata_bytes(), 0u);
}

TEST(slab, gives_regions_back_but_the_last) {
  slab<node> nodes;
  std::mt19937_64 random(2);
  std::vector<node*> many;
  std::size_t full = 0;
  for (int again = 0; again < 3; ++again) {
    for (int i = 0; i < 100000; ++i) {
      ASSERT_TRUE(nodes.reserve(2));
      many.push_back(nodes.take());
      many.back()->words[0] = static_cast<std::uint64_t>(i);
    }
    ASSERT_EQ(nodes.in_use(), many.size());
    full = std::max(full, nodes.metadata_bytes());
    ASSERT_LT(nodes.metadata_bytes(), many.size() * sizeof(node) * 106 / 100 + 140000);
    std::shuffle(many.begin(), many.end(), random);
    while (!many.empty()) {
      nodes.give_back(many.back());
      many.pop_back();
    }
    ASSERT_EQ(nodes.in_use(), 0u);
    EXPECT_LT(nodes.metadata_bytes(), 1300000u);  // the nodes that came back last hold 8 regions at most
  }
  nodes.purge();
  EXPECT_EQ(nodes.metadata_bytes(), 0u);
}

TEST(slab, recycles_the_latest_and_gives_empty_chunks_back) {
  slab<node> nodes;
  ASSERT_TRUE(nodes.reserve(1));
  node* const first = nodes.take();
  nodes.give_back(first);
  EXPECT_EQ(nodes.take(), first);
  std::vector<node*> many{first};
  for (int i = 0; i < 10000; ++i) {
    ASSERT_TRUE(nodes.reserve(1));
    many.push_back(nodes.take());
    many.back()->words[7] = static_cast<std::uint64_t>(i);
  }
  for (int i = 0; i < 10000; ++i)
    ASSERT_EQ(many[static_cast<std::size_t>(i) + 1]->words[7], static_cast<std::uint64_t>(i));
  EXPECT_GE(nodes.metadata_bytes(), 10000 * sizeof(node));
  EXPECT_LT(nodes.metadata_bytes(), 10000 * sizeof(node) * 11 / 10 + 140000);
  for (node* n : many) nodes.give_back(n);
  nodes.purge();
  EXPECT_EQ(nodes.metadata_bytes(), 0u);
}

}  // namespace
