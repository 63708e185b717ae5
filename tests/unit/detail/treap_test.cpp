// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <iterator>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/private_pool.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/free_list_map.hpp>
#include <tessera/detail/private_pools.hpp>
#include <tessera/detail/treap.hpp>

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
    if (list->segments == 0) streams.insert(stream);
    list->segments = random() % 4 != 0;
    if (i % 100 == 99) {
      lists.erase_unused();
      streams.clear();
      for (const free_list* l = lists.first(); l != nullptr; l = l->next) {
        ASSERT_EQ(l->segments, 1u);
        streams.insert(l->key());
      }
    }
    stream_id last{};
    for (const free_list* l = lists.first(); l != nullptr; l = l->next) {
      ASSERT_TRUE(l == lists.first() || last < l->key());
      last = l->key();
      ASSERT_EQ(lists.find_or_create(l->key()), l);
    }
  }
  EXPECT_GT(streams.size(), 50u);
}

/// Counts the calls of a filter, which selects even streams.
std::size_t calls = 0;
const stream_filter even(
    [](void*, stream_id stream) noexcept {
      ++calls;
      return stream.handle % 2 == 0;
    },
    nullptr);

TEST(open_scopes, direct_a_stream_to_the_oldest_that_selects_it) {
  std::mt19937 random(7);
  private_pools<1> pools;
  std::vector<private_pools<1>::group*> all, open;
  for (int i = 0; i < 40; ++i) all.push_back(pools.create({}, {}, 0));
  for (int step = 0; step < 20000; ++step) {
    private_pools<1>::group& g = *all[random() % all.size()];
    if (g.is_open) {
      pools.close(g);
      std::erase(open, &g);
    } else {
      const auto kind = random() % 16;
      pools.open(g,
                 kind == 0  ? stream_filter{}
                 : kind < 3 ? even
                            : stream_filter(stream_id{random() % 12}),
                 random() % 2 == 0 ? scope_kind::capture : scope_kind::redirect);
      open.push_back(&g);
    }
    const stream_id stream{random() % 12};
    const pool_group* expected = &pools.defaults();
    for (auto* const o : open) {
      if (o->filter.selects(stream)) {
        expected = o;
        break;
      }
    }
    ASSERT_EQ(&pools.destination(stream), expected) << step;
    ASSERT_EQ(pools.are_defaults_enough(), open.empty());
    if (step % 64 == 0) {
      private_pools<1> copies;
      ASSERT_TRUE(copies.copy_used(pools));
      for (std::size_t s = 0; s < 12; ++s)
        ASSERT_EQ(copies.destination(stream_id{s}).number, pools.destination(stream_id{s}).number);
    }
  }
}

TEST(open_scopes, ask_no_function_of_a_scope_that_is_younger_than_the_answer) {
  private_pools<1> pools;
  auto& first = *pools.create({}, {}, 0);
  pools.open(first, stream_id{2}, scope_kind::capture);
  for (int i = 0; i < 1000; ++i) pools.open(*pools.create({}, {}, 0), even, scope_kind::capture);
  calls = 0;
  EXPECT_EQ(&pools.destination(stream_id{2}), &first);
  EXPECT_EQ(calls, 0u);
  (void)pools.destination(stream_id{4});
  EXPECT_EQ(calls, 1u) << "the oldest selects it";
}

}  // namespace
