// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/types.hpp>
#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using extension::stream_filter, extension::scope_kind;

template <typename Recipe>
using allocator_of = caching_allocator<Recipe, simulated_device, extension::private_pools>;
using allocator = allocator_of<passthrough>;
using newest_first = allocator_of<with<passthrough, newest_scope_first<passthrough::pools>>>;
[[nodiscard]] auto pools_of(auto& in) { return in.template get<extension::private_pools>(); }
/// The pool that serves a request of a stream.
[[nodiscard]] pool_id destination(auto& in, stream_id stream) {
  return {detail::core_access::manager(in).group_for(stream).number};
}

/// Counts the calls of a filter, which selects even streams.
std::size_t calls = 0;
const stream_filter even(
    [](void*, stream_id stream) noexcept {
      ++calls;
      return stream.handle % 2 == 0;
    },
    nullptr);

struct open_scope {
  pool_id pool;
  stream_filter filter;
};

/// Opens and closes scopes at random, and asks a list of them for the one that decides.
template <typename Allocator>
void compare_with_a_list(bool prefers_newest) {
  std::mt19937 random(7);
  Allocator in;
  auto pools = pools_of(in);
  std::vector<pool_id> all;
  std::vector<open_scope> open;
  for (int i = 0; i < 40; ++i) all.push_back(pools.create());
  for (int step = 0; step < 20000; ++step) {
    const pool_id pool = all[random() % all.size()];
    if (pools.close(pool)) {
      std::erase_if(open, [pool](const open_scope& s) { return s.pool == pool; });
    } else {
      const auto kind = random() % 16;
      const stream_filter filter = kind == 0  ? stream_filter{}
                                   : kind < 3 ? even
                                              : stream_filter(stream_id{random() % 12});
      ASSERT_TRUE(pools.open(pool, filter, random() % 2 == 0 ? scope_kind::capture : scope_kind::plain));
      open.push_back({pool, filter});
    }
    const stream_id stream{random() % 12};
    pool_id expected{};
    for (const open_scope& s : open) {
      if (s.filter.selects(stream) && (prefers_newest || expected == pool_id{})) expected = s.pool;
    }
    ASSERT_EQ(destination(in, stream), expected) << step;
    ASSERT_EQ(detail::core_access::extensions(in).uses_fast_path(), open.empty());
    if (step % 64 == 0) {
      Allocator copies;
      ASSERT_TRUE(copies.adopt(in));
      for (std::size_t s = 0; s < 12; ++s)
        ASSERT_EQ(destination(copies, stream_id{s}), destination(in, stream_id{s}));
    }
  }
}
TEST(open_scopes, direct_a_stream_to_the_oldest_that_selects_it) { compare_with_a_list<allocator>(false); }
TEST(open_scopes, direct_a_stream_to_the_newest_if_the_recipe_says_so) {
  compare_with_a_list<newest_first>(true);
}

TEST(open_scopes, ask_no_function_of_a_scope_that_is_younger_than_the_answer) {
  allocator in;
  auto pools = pools_of(in);
  const pool_id first = pools.create();
  ASSERT_TRUE(pools.open(first, stream_id{2}));
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(pools.open(pools.create(), even));
  calls = 0;
  EXPECT_EQ(destination(in, stream_id{2}), first);
  EXPECT_EQ(calls, 0u);
  (void)destination(in, stream_id{4});
  EXPECT_EQ(calls, 1u) << "the oldest selects it";
}
TEST(open_scopes, ask_no_function_of_a_scope_that_is_older_than_the_answer) {
  newest_first in;
  auto pools = pools_of(in);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(pools.open(pools.create(), even));
  const pool_id last = pools.create();
  ASSERT_TRUE(pools.open(last, stream_id{2}));
  calls = 0;
  EXPECT_EQ(destination(in, stream_id{2}), last);
  EXPECT_EQ(calls, 0u);
  (void)destination(in, stream_id{4});
  EXPECT_EQ(calls, 1u) << "the newest of the others selects it";
}

}  // namespace
