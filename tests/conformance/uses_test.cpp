// SPDX-License-Identifier: Apache-2.0
// Allocators and blocks as array elements, members, elements of containers, and parts of classes that move.
#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/interop/cuda_mempool.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using plain = caching_allocator<pytorch_family::native, simulated_device>;
using shared = locked<caching_allocator<pytorch_family::native, simulated_device>>;

template <typename Pool>
struct owner {
  Pool pool;
  int other;
};

template <typename Pool>
struct uses : ::testing::Test {};
using all =
    ::testing::Types<plain, shared, waiting<shared>,
                     per_stream<caching_allocator<pytorch_family::native, simulated_device>>,
                     background_reclaiming<caching_allocator<pytorch_family::native, simulated_device>>>;
TYPED_TEST_SUITE(uses, all);

TYPED_TEST(uses, allocators_are_members_and_elements) {
  owner<TypeParam> aggregate{};
  TypeParam array[2] = {};
  std::array<TypeParam, 2> elements{};
  for (TypeParam* pool : {&aggregate.pool, &array[1], &elements[1]}) {
    void* const p = pool->allocate(1000);
    EXPECT_EQ(pool->current_usage().allocated, 1024u);
    pool->deallocate(p);
  }
  static_assert(!std::is_copy_constructible_v<TypeParam> && !std::is_move_constructible_v<TypeParam>);
}

TEST(uses, a_driver_pool_is_a_member) {
  owner<cuda_mempool<caching_allocator<cuda_async, simulated_device>>> aggregate{};
  aggregate.pool.free_async(aggregate.pool.allocate_async(1000, stream_id{1}), stream_id{1});
  EXPECT_EQ(aggregate.pool.current_usage().allocated, 0u);
}

TEST(uses, allocators_are_elements_of_containers) {
  std::deque<plain> row;
  for (int i = 0; i < 3; ++i) row.emplace_back();
  std::map<int, plain> by_number;
  by_number.try_emplace(7);
  std::optional<plain> maybe;
  maybe.emplace();
  std::variant<std::monostate, plain, shared> either;
  auto& chosen = either.emplace<shared>();
  std::vector<std::unique_ptr<plain>> owned;
  owned.push_back(std::make_unique<plain>());
  std::vector<plain> fixed(3);
  for (plain* pool : {&row[1], &by_number[7], &*maybe, owned[0].get(), &fixed[2]})
    pool->deallocate(pool->allocate(5_MiB));
  chosen.deallocate(chosen.allocate(5_MiB));
  EXPECT_EQ(chosen.current_usage().reserved, 20_MiB);
}

template <typename Count>
concept counts_percent = requires(Count count) { percent(count); };

TEST(uses, limits_may_be_any_integer_type) {
  // 0.5 would be 0 bytes, not half of the device.
  static_assert(!std::is_convertible_v<double, memory_limit>);
  static_assert(!std::is_assignable_v<decltype(policies<pytorch_family::native>::growth.limit)&, double>);
  static_assert(counts_percent<int> && counts_percent<unsigned> && !counts_percent<double>);
  policies<pytorch_family::native> chosen;
  const int bytes = 1 << 22;
  chosen.growth.limit = bytes;
  plain small{{}, chosen};
  EXPECT_EQ(small.current_usage().limit, 4_MiB);
  static_assert(memory_limit(grow_exactly<4_MiB>().limit.get()) == memory_limit(4_MiB));
  small.policies().growth.limit = 0;
  EXPECT_EQ(small.try_allocate(1), nullptr);
}

/// A class that moves and owns all its memory.
class model {
 public:
  explicit model(std::size_t bytes) : weights_(make_block(pool_, bytes)) {}
  [[nodiscard]] const shared& pool() const noexcept { return pool_.get(); }
  [[nodiscard]] std::size_t size() const noexcept { return weights_.size(); }

 private:
  shared_allocator<shared> pool_ = shared_allocator<shared>::make();
  unique_block<shared_allocator<shared>> weights_;
};

TEST(uses, classes_that_own_an_allocator_and_its_blocks_move) {
  std::vector<model> models;
  for (std::size_t i = 1; i <= 8; ++i) models.emplace_back(i << 20);
  models.erase(models.begin(), models.begin() + 5);
  std::swap(models[0], models[2]);
  model last = std::move(models[0]);
  models.clear();
  EXPECT_EQ(last.size(), 8_MiB);
  EXPECT_EQ(last.pool().current_usage().allocated, 8_MiB);
  EXPECT_EQ(last.pool().audit(), nullptr);
}

TEST(uses, blocks_are_members_of_containers_and_lambdas) {
  shared pool;
  using block = unique_block<shared>;
  std::vector<block> row;
  for (std::size_t i = 0; i < 100; ++i) row.push_back(make_block(pool, i * 100));
  row.erase(row.begin() + 3, row.begin() + 50);
  std::swap(row[0], row[1]);
  block& self = row[4];
  row[4] = std::move(self);
  EXPECT_EQ(row[4].size(), 5100u);
  std::map<int, block> named;
  named[3] = make_block(pool, 5);
  named.insert_or_assign(3, make_block(pool, 6));
  EXPECT_EQ(pool.current_usage().requested, 6u + (100 * 99 / 2 - (3 + 49) * 47 / 2) * 100);
  const auto keeps = [kept = std::move(row[5])] { return kept.size(); };
  row.clear(), named.clear();
  EXPECT_EQ(pool.current_usage().requested, keeps());
}

TEST(uses, several_recipes_share_one_device_through_layers) {
  using device = limiting<limiting<simulated_device>>;
  device common(limiting<simulated_device>({}, 2_GiB), 1_GiB);
  using view = provider_ref<device>;
  {
    caching_allocator<pytorch_family::native, view> a{view(common)};
    locked<caching_allocator<stitched, view>> b{view(common)};
    void* const p = a.allocate(600_MiB);
    EXPECT_THROW((void)b.allocate(600_MiB), out_of_memory);
    void* const q = b.allocate(400_MiB);
    a.deallocate(p), b.deallocate(q);
    a.trim();
    b.deallocate(b.allocate(600_MiB));
    EXPECT_LE(common.taken(), 1_GiB);
  }
  EXPECT_EQ(common.taken(), 0u);
}

}  // namespace
