// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/deferred_free_queue.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/config/grammar.hpp>
#include <tessera/configured.hpp>
#include <tessera/interop/paddle_passes.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using namespace std::chrono_literals;
using paddle_settings = config::paddle::settings;

static_assert(paddle_settings{}.limit() == unlimited);
static_assert(paddle_settings{.gpu_memory_limit = 1_MiB}.limit() == 1_MiB);

constexpr stream_id compute{1};
constexpr std::uint64_t long_time = 1'000'000'000;

using bounded = limiting<simulated_device>;
using allocator = waiting<configured<paddle_family, locked<caching_allocator<paddle<>, bounded>>>>;

std::uint64_t refusals(allocator& pool) {
  return pool.inner().visit([](auto& in) { return in.statistics().num_ooms; });
}

template <std::size_t Count>
constexpr std::array<bool, Count> chosen(const std::int64_t (&bytes)[Count], fraction share) {
  std::array<paddle_passes::variable, Count> all{};
  for (std::size_t i = 0; i < Count; ++i) all[i].bytes = bytes[i];
  const std::size_t count = paddle_passes::choose_collected(all, share);
  std::array<bool, Count> is{};
  std::size_t found = 0;
  for (std::size_t i = 0; i < Count; ++i) found += is[i] = all[i].is_collected;
  return found == count ? is : std::array<bool, Count>{};
}

static_assert(chosen({5, 30, 50, 15}, percent(60)) == std::array{false, true, true, false});
static_assert(chosen({1, 100, 1, 1}, percent(50)) == std::array{false, true, false, false});
static_assert(chosen({10, 10, 10}, percent(1)) == std::array{false, false, false});
static_assert(chosen({10, 10, 10}, percent(0)) == std::array{false, false, false});
static_assert(chosen({10, 0, -10}, percent(100)) == std::array{true, true, true});
static_assert(chosen({10, 10, 10}, percent(50)) == std::array{true, true, false});
static_assert(chosen({-40, 30, 30}, percent(40)) == std::array{true, false, false});
static_assert(chosen({1, std::numeric_limits<std::int64_t>::min()}, percent(50)) == std::array{false, true});

TEST(choose_collected, agrees_with_sorting) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 2'000; ++round) {
    std::vector<paddle_passes::variable> all(random() % 20);
    for (paddle_passes::variable& v : all) {
      v.bytes = static_cast<std::int64_t>(random() % 50) - 10;
      v.is_collected = random() % 2 == 0;
    }
    const fraction share{random() % 1'000'000'000};
    std::vector<std::size_t> order(all.size());
    std::size_t total = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      order[i] = i;
      total += static_cast<std::size_t>(std::abs(all[i].bytes));
    }
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::abs(all[a].bytes) > std::abs(all[b].bytes);
    });
    std::vector<bool> expected(all.size());
    std::size_t count = 0;
    for (std::size_t held = 0; count < order.size() && held < share.of(total); ++count) {
      expected[order[count]] = true;
      held += static_cast<std::size_t>(std::abs(all[order[count]].bytes));
    }
    EXPECT_EQ(paddle_passes::choose_collected(all, share), count);
    for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].is_collected, expected[i]) << i;
  }
}

TEST(paddle_adaptors, obey_the_flags) {
  const auto read = config::parse<config::paddle>(
      "FLAGS_gpu_memory_limit_mb=100,FLAGS_gpu_allocator_retry_time=50,FLAGS_eager_delete_tensor_gb=0.001,"
      "FLAGS_memory_fraction_of_eager_deletion=0.6,FLAGS_fast_eager_deletion_mode=False");
  ASSERT_EQ(read.index(), 0u);
  const paddle_settings& flags = std::get<0>(read);

  allocator pool(std::chrono::milliseconds(flags.retry_milliseconds), flags,
                 bounded(simulated_device{}, flags.limit()));
  deferred_free_queue<allocator> garbage(
      pool, {.threshold = flags.garbage_threshold, .waits = !flags.fast_eager_deletion, .stream = compute});
  const auto submit = [&] {
    pool.visit_provider([](bounded& device) { device.inner().submit(compute, long_time); });
  };

  std::array<paddle_passes::variable, 4> variables{{{700'000}, {100'000}, {500'000}, {200'000}}};
  EXPECT_EQ(paddle_passes::choose_collected(variables, flags.memory_fraction_of_eager_deletion), 2u);
  EXPECT_TRUE(variables[0].is_collected && variables[2].is_collected);
  std::array<void*, 4> at{};
  for (std::size_t i = 0; i < 4; ++i)
    at[i] = pool.allocate(static_cast<std::size_t>(variables[i].bytes), compute);
  submit();

  garbage.push(at[0], 700'000);
  EXPECT_EQ(garbage.queued_bytes(), 700'000u) << "less than a thousandth of a GiB";
  garbage.push(at[2], 500'000);
  EXPECT_EQ(garbage.queued_bytes(), 0u);
  EXPECT_TRUE(garbage.has_pending());
  EXPECT_GT(pool.current_usage().allocated, 1'500'000u) << "work that uses them is under way";
  pool.visit_provider([](bounded& device) { device.inner().advance(long_time); });
  garbage.poll();
  EXPECT_LT(pool.current_usage().allocated, 400'000u);

  void* const most = pool.allocate(90_MiB);
  const std::uint64_t refused_before = refusals(pool);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(pool.try_allocate(20_MiB), nullptr) << "over the limit";
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 50ms);
  EXPECT_EQ(refusals(pool) - refused_before, 3u) << "at once, before it waits, and in the end";
  EXPECT_LE(pool.current_usage().reserved, 100_MiB);
  pool.deallocate(most);
  for (const std::size_t rest : {std::size_t{1}, std::size_t{3}}) pool.deallocate(at[rest]);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(paddle_adaptors, change_nothing_if_the_flags_disable_them) {
  const paddle_settings flags{.retry_milliseconds = 0};
  allocator pool(std::chrono::milliseconds(flags.retry_milliseconds), flags,
                 bounded(simulated_device({.capacity = 1_MiB}), flags.limit()));
  deferred_free_queue<allocator> garbage(
      pool, {.threshold = flags.garbage_threshold, .waits = !flags.fast_eager_deletion});
  void* const all = pool.allocate(1_MiB);
  EXPECT_EQ(pool.try_allocate(1_MiB), nullptr);
  EXPECT_EQ(refusals(pool), 1u);
  garbage.push(all, 1_MiB);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

}  // namespace
