// SPDX-License-Identifier: Apache-2.0
// Allocators over CUDA's driver: their blocks can be used, and whatever call fails, the driver gets all
// memory back.
#include <array>
#include <cstddef>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/debug/checked_provider.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/cuda_driver.hpp>
#include <tessera/recipe/passthrough.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/tessera.hpp>

#include "../../by_day.hpp"
#include "fake_cuda.hpp"

namespace {

using namespace tessera;

struct operation {
  enum class kind { allocate, deallocate, record, work, finish, trim } what;
  std::size_t slot;
  std::size_t amount;
  stream_id stream;
};
std::vector<operation> any_program(std::size_t length, std::size_t largest) {
  using kind = operation::kind;
  std::vector<operation> made;
  std::mt19937_64 random(7);
  const auto pick = [&random](std::size_t below) { return static_cast<std::size_t>(random() % below); };
  while (made.size() < length) {
    const std::size_t slot = pick(12);
    const stream_id stream = std::array{stream_id{}, stream_id{0x1000}, stream_id{0x2000}}[pick(3)];
    const std::size_t what = pick(20);
    const kind next = what < 8    ? kind::allocate
                      : what < 14 ? kind::deallocate
                      : what < 16 ? kind::record
                      : what < 18 ? kind::work
                      : what < 19 ? kind::finish
                                  : kind::trim;
    made.push_back({next, slot, 1 + pick(std::size_t{1} << (8 + pick(18))) % largest, stream});
  }
  return made;
}

/// Runs a program on an allocator over a device. At its end no block is live.
template <typename Pool>
void run(const std::vector<operation>& program, Pool& pool, const fake_cuda& cuda, int number) {
  using kind = operation::kind;
  std::array<std::pair<void*, std::size_t>, 12> held{};
  const auto free = [&](std::pair<void*, std::size_t>& block) {
    if (block.first != nullptr) pool.deallocate(block.first, block.second);
    block = {};
  };
  for (const operation& o : program) {
    auto& [p, bytes] = held[o.slot];
    switch (o.what) {
      case kind::allocate:
        if (p != nullptr) break;
        p = pool.try_allocate(o.amount, o.stream);
        bytes = o.amount;
        if (p != nullptr) {
          ASSERT_TRUE(cuda.is_usable(number, p, bytes));
        }
        break;
      case kind::deallocate: free(held[o.slot]); break;
      case kind::record:
        if (p != nullptr) (void)pool.record_stream(p, o.stream);
        break;
      case kind::work: cuda.submit(number, handle_of(o.stream)); break;
      case kind::finish: cuda.finish(number, handle_of(o.stream)); break;
      case kind::trim: pool.trim(o.slot % 2 == 0 ? 0 : pool.current_usage().reserved / 2); break;
    }
    ASSERT_STREQ(pool.audit(), nullptr);
    for (const auto& [q, size] : held) ASSERT_TRUE(q == nullptr || cuda.is_usable(number, q, size));
  }
  for (auto& block : held) free(block);
}

template <typename Recipe>
class cuda_recipes : public with_fake_cuda {};
using recipes = types_by_day<3, pytorch<>, stitched, cuda_async, pytorch_family::expandable, passthrough>;
TYPED_TEST_SUITE(cuda_recipes, recipes);

TYPED_TEST(cuda_recipes, serve) {
  const auto program = any_program(1500, 40_MiB);
  for (const bool holds : {false, true}) {
    cuda_device device(this->load(), 1);
    this->cuda.hold(holds ? 1 : 0);
    caching_allocator<TypeParam, provider_ref<cuda_device>> pool{provider_ref(device)};
    run(program, pool, this->cuda, 1);
    EXPECT_GT(pool.statistics().all.allocation.allocated, 200);
    pool.trim();
    EXPECT_EQ(pool.current_usage().reserved, 0u);
    EXPECT_EQ(this->cuda.used(1), 0u);
    EXPECT_EQ(this->cuda.used(0), 0u);
  }
}

TYPED_TEST(cuda_recipes, serve_in_checked_mode) {
  using checked = checked_provider<provider_ref<cuda_device>>;
  const auto program = any_program(400, 40_MiB);
  for (const unsigned long long first : {0u, 10u, 30u, 50u, 70u, 90u}) {
    cuda_device device(this->load(), 1);
    this->cuda.hold(1);
    caching_allocator<TypeParam, checked> pool{checked(provider_ref(device))};
    this->cuda.fail(first, first + first / 2, detail::cuda::out_of_memory);
    run(program, pool, this->cuda, 1);
    this->cuda.fail(0, 0, 0);
    this->cuda.hold(0);
    pool.trim();
    EXPECT_EQ(pool.current_usage().reserved, 0u);
    EXPECT_EQ(this->cuda.used(1), 0u);
  }
}

TYPED_TEST(cuda_recipes, serve_while_any_call_fails) {
  const auto program = any_program(150, 60_MiB);
  unsigned long long calls = 0;
  for (unsigned long long first = 1; first < 4000; first += by_day(7, 1)) {
    for (const unsigned long long count : {1u, 3u, 40u}) {
      SCOPED_TRACE(testing::Message() << "calls from " << first << ", " << count << " of them");
      this->begin(2, 128_MiB);
      {
        cuda_device device(this->load(), 0);
        this->cuda.hold(1);
        caching_allocator<TypeParam, provider_ref<cuda_device>> pool{provider_ref(device)};
        this->cuda.fail(first, first + count - 1, detail::cuda::out_of_memory);
        run(program, pool, this->cuda, 0);
        calls = this->cuda.calls();
        this->cuda.fail(0, 0, 0);
        this->cuda.hold(0);
        pool.trim();
        EXPECT_STREQ(pool.audit(), nullptr);
        EXPECT_EQ(pool.current_usage().reserved, 0u);
        EXPECT_EQ(this->cuda.used(0), 0u);
      }
      ASSERT_STREQ(this->cuda.misuse(), "");
      ASSERT_EQ(this->cuda.outstanding(), 0u);
      if (this->HasFailure()) return;
    }
    if (first > calls) {
      EXPECT_GT(first, 40u);
      return;
    }
  }
  FAIL() << "not all calls were tried";
}

}  // namespace
