// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <iterator>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/types.hpp>
#include <tessera/detail/blocks/free_list_map.hpp>
#include <tessera/detail/containers/containers.hpp>

namespace {

using namespace tessera;
using namespace tessera::detail;

struct node {
  int key = 0;
  node* links[2] = {};
};
std::size_t comparisons = 0;
struct by_key {
  static bool precedes(const node& a, const node& b) noexcept {
    ++comparisons;
    return a.key < b.key;
  }
  bool operator()(const node* a, const node* b) const { return a->key < b->key; }
};

TEST(treap, keeps_the_order_of_a_set) {
  std::mt19937 random(3);
  std::vector<node> nodes(300);
  for (int i = 0; i < 300; ++i) nodes[static_cast<std::size_t>(i)].key = 2 * i;
  treap<node, by_key> tree;
  std::set<node*, by_key> model;
  for (int step = 0; step < 20000; ++step) {
    node& n = nodes[random() % nodes.size()];
    const bool is_new = model.insert(&n).second;
    const auto at = model.find(&n);
    const node* const before = at != model.begin() ? *std::prev(at) : nullptr;
    ASSERT_EQ(is_new ? tree.insert(n) : tree.erase(n), before);
    if (!is_new) model.erase(at);
    const int wanted = static_cast<int>(random() % 600);
    node key{.key = wanted};
    const auto first = model.lower_bound(&key);
    ASSERT_EQ(tree.find([wanted](const node& b) { return b.key < wanted; }),
              first != model.end() ? *first : nullptr);
    ASSERT_EQ(tree.empty(), model.empty());
  }
}

TEST(treap, is_logarithmic) {
  constexpr std::size_t count = 1 << 15;
  for (const bool is_rising : {true, false}) {
    std::vector<node> nodes(count);
    treap<node, by_key> tree;
    comparisons = 0;
    for (std::size_t i = 0; i < count; ++i) {
      nodes[i].key = static_cast<int>(is_rising ? i : count - i);
      tree.insert(nodes[i]);
    }
    for (node& n : nodes) tree.erase(n);
    EXPECT_LT(comparisons, count * 15 * 6);
  }
}

TEST(free_list_map, leads_through_its_lists_in_the_order_of_streams) {
  std::mt19937_64 random(5);
  search_clock clock;
  pool_group group;
  free_list_map lists;
  lists.set_place({0, &group, &clock});
  std::set<stream_id> streams;
  for (int i = 0; i < 400; ++i) {
    const stream_id stream{random() % 1000};
    free_list* const list = lists.find_or_create(stream);
    ASSERT_NE(list, nullptr);
    if (list->users == 0) streams.insert(stream);
    list->users = random() % 4 != 0;
    if (i % 100 == 99) {
      lists.erase_unused();
      streams.clear();
      for (const free_list* l = lists.first(); l != nullptr; l = l->next) {
        ASSERT_EQ(l->users, 1u);
        streams.insert(l->key);
      }
    }
    stream_id last{};
    for (const free_list* l = lists.first(); l != nullptr; l = l->next) {
      ASSERT_TRUE(l == lists.first() || last < l->key);
      last = l->key;
      ASSERT_EQ(lists.find_or_create(l->key), l);
    }
  }
  EXPECT_GT(streams.size(), 50u);
}

}  // namespace
