// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
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
using shared_pool = shared_allocator<locked<caching_allocator<packed_tightly, host_pinned>>>;

template <typename T>
using in_pool = typed_allocator<T, host_pool>;
template <typename T>
using vector_in_pool = std::vector<T, in_pool<T>>;

using traits = std::allocator_traits<in_pool<int>>;
static_assert(std::is_same_v<traits::value_type, int> && std::is_same_v<traits::pointer, int*>);
static_assert(std::is_same_v<traits::rebind_alloc<long>, in_pool<long>>);
static_assert(std::is_same_v<traits::rebind_traits<long>::rebind_alloc<int>, in_pool<int>>);
static_assert(!traits::propagate_on_container_copy_assignment::value && !traits::is_always_equal::value);
static_assert(traits::propagate_on_container_move_assignment::value);
static_assert(traits::propagate_on_container_swap::value);
static_assert(std::is_nothrow_copy_constructible_v<in_pool<int>> &&
              std::is_nothrow_move_constructible_v<in_pool<int>>);
static_assert(std::is_nothrow_constructible_v<in_pool<int>, const in_pool<long>&>);
static_assert(std::is_nothrow_move_constructible_v<vector_in_pool<int>>);
static_assert(std::is_nothrow_move_assignable_v<vector_in_pool<int>> &&
              std::is_nothrow_swappable_v<vector_in_pool<int>>);
static_assert(noexcept(std::declval<in_pool<int>&>().deallocate(nullptr, 0)));

template <typename A, typename T>
using of = typename std::allocator_traits<A>::template rebind_alloc<T>;

/// All containers of the standard library with an allocator.
template <typename A>
void use_containers(const A& a) {
  std::vector<std::uint64_t, of<A, std::uint64_t>> numbers(a);
  for (std::uint64_t i = 0; i < 20'000; ++i) numbers.push_back(i);
  EXPECT_EQ(std::accumulate(numbers.begin(), numbers.end(), std::uint64_t{0}), 19'999u * 10'000);
  std::vector<bool, of<A, bool>> flags(1000, true, a);
  flags.resize(5000);
  EXPECT_TRUE(flags[999]);
  EXPECT_FALSE(flags[4999]);
  std::deque<int, of<A, int>> queue(a);
  for (int i = 0; i < 5000; ++i) queue.push_front(i);
  while (queue.size() > 1) queue.pop_back();
  EXPECT_EQ(queue.front(), 4999);
  std::list<std::string, of<A, std::string>> texts(a);
  for (int i = 0; i < 100; ++i) texts.push_back(std::to_string(i));
  texts.remove("7");
  EXPECT_EQ(texts.size(), 99u);

  using text = std::basic_string<char, std::char_traits<char>, of<A, char>>;
  std::map<int, text, std::less<>, of<A, std::pair<const int, text>>> names(a);
  for (int i = 0; i < 200; ++i) names.emplace(i, text(static_cast<std::size_t>(i), 'x', a));
  EXPECT_EQ(names.at(199).size(), 199u);
  std::unordered_map<int, int, std::hash<int>, std::equal_to<>, of<A, std::pair<const int, int>>> table(a);
  for (int i = 0; i < 2000; ++i) table[i * 7] = i;
  EXPECT_EQ(table.at(7 * 1999), 1999);

  const auto shared = std::allocate_shared<std::vector<int>>(a, 10u, 3);
  const std::weak_ptr<std::vector<int>> watched = shared;
  EXPECT_EQ(watched.lock()->size(), 10u);
  EXPECT_EQ(watched.use_count(), 1);
  auto copy = numbers;
  EXPECT_EQ(copy.get_allocator(), numbers.get_allocator());
  auto moved = std::move(numbers);
  EXPECT_EQ(copy, moved);
  numbers.assign(5, 1);
  EXPECT_EQ(numbers.back(), 1u);
}

TEST(typed_allocator, serves_containers) {
  host_pool pool{host_memory()};
  use_containers(in_pool<int>(pool));
  EXPECT_EQ(pool.current_usage().allocated, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

/// A pool of the standard library over blocks of an allocator.
struct node_pool {
  locked<caching_allocator<recipe::pinned_packed, host_pinned>> allocator{host_memory()};
  pmr_resource<decltype(allocator)> blocks{allocator};
  std::pmr::synchronized_pool_resource nodes{&blocks};
};
node_pool& own_nodes() {
  static auto* const pool = new node_pool;
  return *pool;
}
std::pmr::memory_resource& own_resource() { return own_nodes().nodes; }

TEST(typed_allocator, serves_containers_from_a_memory_resource) {
  node_pool pool;
  use_containers(typed_allocator<int, std::pmr::memory_resource>(pool.nodes));
  pool.nodes.release();
  EXPECT_EQ(pool.allocator.current_usage().allocated, 0u);
  EXPECT_STREQ(pool.allocator.audit(), nullptr);

  using own = typed_allocator<int, allocator_from<own_resource>>;
  static_assert(std::is_default_constructible_v<own> && std::allocator_traits<own>::is_always_equal::value);
  use_containers(own());
  own_nodes().nodes.release();
  EXPECT_EQ(own_nodes().allocator.current_usage().allocated, 0u);

  typed_allocator<std::uint64_t, std::pmr::memory_resource> numbers(pool.nodes);
  EXPECT_THROW((void)numbers.allocate(SIZE_MAX / 4), std::bad_array_new_length);
  EXPECT_THROW((void)numbers.allocate(std::size_t{1} << 40), out_of_memory);
}

TEST(typed_allocator, needs_little_memory_for_nodes_from_a_pool) {
  node_pool pool;
  using pair = std::pair<const int, int>;
  std::map<int, int, std::less<>, typed_allocator<pair, std::pmr::memory_resource>> table(pool.nodes);
  for (int i = 0; i < 100'000; ++i) table.emplace(i, i);
  // A node has 40 bytes, for which malloc takes 48.
  EXPECT_LT(pool.allocator.current_usage().allocated, 100'000u * 48 * 13 / 10);
}

TEST(typed_allocator, owns_an_allocator_that_is_shared) {
  auto pool = shared_allocator<locked<caching_allocator<packed_tightly, host_pinned>>>::make(host_memory());
  typed_allocator<int, shared_pool> own(pool);
  pool = {};
  use_containers(own);
  EXPECT_EQ(own.allocator()->current_usage().allocated, 0u);

  // A moved-from container keeps its allocator.
  std::vector<int, typed_allocator<int, shared_pool>> from({1, 2, 3}, own);
  const auto to = std::move(from);
  from.assign(100, 5);
  EXPECT_EQ(from.get_allocator(), own);
  const auto moved = std::move(own);
  EXPECT_EQ(own, moved);
}

TEST(typed_allocator, moves_between_allocators_without_copying) {
  host_pool a{host_memory()}, b{host_memory()};
  vector_in_pool<int> in_a({1, 2, 3}, a), in_b({4, 5}, b);
  const int *const at_a = in_a.data(), *const at_b = in_b.data();
  std::swap(in_a, in_b);
  EXPECT_EQ(in_a.data(), at_b);
  EXPECT_EQ(in_b.data(), at_a);
  EXPECT_EQ(in_a.get_allocator(), in_pool<int>(b));
  in_a = std::move(in_b);
  EXPECT_EQ(in_a.data(), at_a);
  EXPECT_EQ(in_a.get_allocator(), in_pool<int>(a));
  EXPECT_EQ(b.current_usage().allocated, 0u);
  // Construction with an allocator selects the memory of the elements.
  const vector_in_pool<int> moved_to_b(std::move(in_a), in_pool<int>(b));
  EXPECT_NE(moved_to_b.data(), at_a);
  EXPECT_EQ(moved_to_b, vector_in_pool<int>({1, 2, 3}, a));

  std::list<int, in_pool<int>> list_a({1}, a), list_b({2, 3}, b);
  list_a.swap(list_b);
  list_a = std::move(list_b);
  EXPECT_EQ(list_a.size(), 1u);
  std::map<int, int, std::less<>, in_pool<std::pair<const int, int>>> map_a(a), map_b(b);
  map_a[1] = 2;
  map_a.swap(map_b);
  EXPECT_EQ(map_b.at(1), 2);
}

TEST(typed_allocator, copies_into_the_allocator_of_the_copy) {
  host_pool a{host_memory()}, b{host_memory()};
  vector_in_pool<int> in_a({1, 2, 3}, a), in_b(b);
  in_b = in_a;
  EXPECT_EQ(in_b.get_allocator(), in_pool<int>(b));
  EXPECT_EQ(in_b, in_a);
  const auto constructed = in_b;
  EXPECT_EQ(constructed.get_allocator(), in_pool<int>(b));
}

struct alignas(4096) page_of_floats {
  float values[1024];
};
struct alignas(128) two_lines {
  std::uint64_t number;
};
TEST(typed_allocator, aligns_over_aligned_types) {
  host_pool pool{host_memory()};
  void* const shift = pool.allocate(64);
  {
    std::vector<page_of_floats, in_pool<page_of_floats>> pages(in_pool<page_of_floats>{pool});
    vector_in_pool<two_lines> lines(pool);
    std::list<two_lines, in_pool<two_lines>> nodes(pool);
    for (std::uint64_t i = 0; i < 50; ++i) {
      pages.push_back({});
      EXPECT_TRUE(is_aligned(pages.data(), 4096));
      lines.push_back({i});
      EXPECT_TRUE(is_aligned(lines.data(), 128));
      nodes.push_back({i});
      EXPECT_TRUE(is_aligned(&nodes.back(), 128));
    }
  }
  pool.deallocate(shift);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(typed_allocator, refuses_incomplete_types) {
  host_pool pool{host_memory()};
  in_pool<std::uint64_t> a(pool);
  EXPECT_EQ(a.max_size(), max_request / 8);
  EXPECT_EQ(std::allocator_traits<in_pool<std::uint64_t>>::max_size(a), max_request / 8);
  EXPECT_THROW((void)a.allocate(a.max_size() + 1), std::bad_array_new_length);
  // Eight times as many bytes would wrap around.
  EXPECT_THROW((void)a.allocate(std::numeric_limits<std::size_t>::max() / 8 + 2), std::bad_array_new_length);
  EXPECT_THROW((void)a.allocate(a.max_size()), out_of_memory);
  vector_in_pool<std::uint64_t> v(a);
  EXPECT_THROW(v.reserve(v.max_size() + 1), std::length_error);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(typed_allocator, frees_by_size_and_has_an_address_for_no_elements) {
  host_pool pool{host_memory()};
  in_pool<std::uint64_t> a(pool);
  std::uint64_t* const none = a.allocate(0);
  EXPECT_NE(none, nullptr);
  a.deallocate(none, 0);
  std::uint64_t* const ten = a.allocate(10);
  EXPECT_EQ(pool.statistics().all.requested_bytes.current, 80);
  EXPECT_DEATH(a.deallocate(ten, 11), "not the requested size");
  a.deallocate(ten, 10);
}

host_pool& static_pool() {
  static auto* const pool = new host_pool(host_memory());
  return *pool;
}
host_pool& other_static_pool() {
  static auto* const pool = new host_pool(host_memory());
  return *pool;
}
template <typename T>
using in_static_pool = typed_allocator<T, allocator_from<static_pool>>;
template <typename T>
using in_other_static_pool = typed_allocator<T, allocator_from<other_static_pool>>;

/// Default constructs its allocators, like nlohmann::json.
template <template <typename> class Allocator>
class text_list {
 public:
  void add(const char* words) {
    Allocator<node> in;
    node* const made = std::allocator_traits<Allocator<node>>::allocate(in, 1);
    new (made) node{first_, text(words)};
    first_ = made;
  }
  ~text_list() {
    Allocator<node> in;
    while (node* const gone = first_) {
      first_ = gone->next;
      gone->~node();
      std::allocator_traits<Allocator<node>>::deallocate(in, gone, 1);
    }
  }

 private:
  using text = std::basic_string<char, std::char_traits<char>, Allocator<char>>;
  struct node {
    node* next;
    text words;
  };
  node* first_ = nullptr;
};
TEST(typed_allocator, is_made_by_libraries_from_a_template_of_one_parameter) {
  static_assert(std::is_nothrow_default_constructible_v<in_static_pool<int>>);
  static_assert(std::allocator_traits<in_static_pool<int>>::is_always_equal::value);
  static_assert(!std::is_default_constructible_v<in_pool<int>>);  // it would use an unknown allocator
  static_assert(!std::is_default_constructible_v<typed_allocator<int, shared_pool>>);
  static_assert(!std::is_convertible_v<in_static_pool<int>, in_other_static_pool<int>>);
  EXPECT_EQ(in_static_pool<int>(), in_static_pool<long>());
  {
    text_list<in_static_pool> list;
    for (int i = 0; i < 10; ++i) list.add("a text that is too long for the string itself");
    EXPECT_GE(static_pool().statistics().all.allocation.current, 20);
    std::vector<int, in_static_pool<int>> numbers(100, 7);
    EXPECT_EQ(numbers.back(), 7);
    EXPECT_EQ(static_pool().statistics().all.allocation.current, 21);
  }
  EXPECT_EQ(static_pool().current_usage().allocated, 0u);
  EXPECT_EQ(other_static_pool().current_usage().reserved, 0u);
  use_containers(in_static_pool<int>());
  EXPECT_EQ(static_pool().current_usage().allocated, 0u);
}

TEST(typed_allocator, works_on_its_stream) {
  caching_allocator<with<pinned_packed, reuse_on_same_stream>, host_pinned> pool{host_memory()};
  typed_allocator<int, decltype(pool)> here(pool, stream_id{1}), there(pool, stream_id{2});
  EXPECT_EQ(here, there);
  EXPECT_EQ((of<decltype(here), long>(here).stream()), stream_id{1});
  int* const p = here.allocate(10);
  there.deallocate(p, 10);
  int* const q = there.allocate(10);
  EXPECT_NE(p, q);
  EXPECT_EQ(here.allocate(10), p);
  here.deallocate(p, 10);
  there.deallocate(q, 10);
}

constexpr auto use_them_in = []<typename Pool>(Pool& pool, stream_id stream) {
  use_containers(typed_allocator<int, Pool>(pool, stream));
};
TEST(typed_allocator_threads, have_containers_over_one_allocator) {
  shape_tests::serve_threads<locked<caching_allocator<packed_tightly, host_pinned>>>(use_them_in);
  shape_tests::serve_threads<
      per_stream<caching_allocator<with<packed_tightly, reuse_on_same_stream>, host_pinned>>>(use_them_in);
}

TEST(typed_allocator, compiles_the_example_of_its_comment) {
  tessera::caching_allocator<tessera::recipe::pinned_packed, tessera::provider::host_pinned> pool{
      host_memory()};
  using floats = tessera::interop::typed_allocator<float, decltype(pool)>;
  std::vector<float, floats> batch(1000, floats(pool));
  EXPECT_EQ(batch.size(), 1000u);
  EXPECT_EQ(pool.statistics().all.requested_bytes.current, 4000);
}

}  // namespace
