// SPDX-License-Identifier: Apache-2.0
// Every recipe of the library, over a device that fails each of its calls, all calls of one kind, or whose
// events never complete.
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "by_day.hpp"
#include "tested_allocator.hpp"

namespace {

using namespace tessera;
using conformance::watched_device;
using conformance::faults::consequences;
using conformance::faults::program;
using conformance::faults::tested_allocator;
using conformance::faults::under;
using conformance::faults::workload;
using call = watched_device::call;

template <typename Recipe>
class shipped_faults : public testing::Test {
 public:
  using kept = under<Recipe>;
  static inline std::vector<usage> undisturbed;
  static inline std::uint64_t calls = 0;
  static const program& plan() {
    static const program all = workload(1);
    return all;
  }
  static void SetUpTestSuite() {
    tested_allocator<kept> healthy;
    ASSERT_EQ(healthy.run(plan(), undisturbed), "") << "though nothing failed";
    calls = healthy.provider().made();
    ASSERT_EQ(healthy.empty(), "") << "though nothing failed";
  }
  template <typename Harm, typename Heal>
  static std::string after(Harm harm, Heal heal) {
    return consequences<kept>(plan(), undisturbed, harm, heal);
  }
};
using recipes =
    types_by_day<7, pytorch_family::native, pytorch_family::expandable, cuda_async, stitched,
                 torch_npu_family::pinned_expandable, paddle_family::virtual_memory_v2, passthrough,
                 torch_npu_family::native, torch_npu_family::expandable, paddle_family::auto_growth,
                 paddle_family::naive_best_fit, paddle_family::virtual_memory, pinned, pinned_packed,
                 power_of_two, with<cuda_async, reuse_across_streams<false, true, false>>>;
TYPED_TEST_SUITE(shipped_faults, recipes);

TYPED_TEST(shipped_faults, of_any_call_are_survived) {
  ASSERT_GT(this->calls, 5u);
  // Stitching makes many calls. faults_test.cpp tries each of them.
  const std::uint64_t step = TypeParam::growth::backend::moves_memory ? 29 : step_by_day(this->calls, 15);
  const auto heal = [](watched_device& device) { device.fail({}); };
  for (std::uint64_t k = 1; k <= this->calls; k += step)
    ASSERT_EQ(this->after([k](watched_device& device) { device.fail({{k, k}}); }, heal), "")
        << "with call " << k << " failing";
}

TYPED_TEST(shipped_faults, of_all_calls_of_a_kind_are_survived) {
  const std::vector<std::vector<call>> kinds{{call::acquire},
                                             {call::release},
                                             {call::record},
                                             {call::wait},
                                             {call::reserve},
                                             {call::unreserve},
                                             {call::create},
                                             {call::destroy},
                                             {call::map},
                                             {call::grant},
                                             {call::unmap},
                                             {call::synchronize},
                                             {call::make_wait},
                                             {call::unmap, call::destroy, call::unreserve},
                                             {call::record, call::synchronize}};
  for (std::size_t i = 0; i < kinds.size(); ++i)
    ASSERT_EQ(this->after([&](watched_device& device) { device.fail_kinds(kinds[i]); },
                          [](watched_device& device) { device.fail_kinds({}); }),
              "")
        << "with the calls of row " << i << " failing";
}

/// From any operation on, until the end of the program.
TYPED_TEST(shipped_faults, of_streams_that_never_complete_are_tolerated) {
  const auto heal = [](watched_device& device) { device.stick(false); };
  for (std::size_t begin = 0; begin < this->plan().size(); begin += by_day(11, 5)) {
    std::vector<usage> standing;
    tested_allocator<typename TestFixture::kept> p;
    for (std::size_t part = 0; part < 2; ++part) {
      const auto at = this->plan().begin() + static_cast<std::ptrdiff_t>(begin);
      p.provider().stick(part == 1);
      const program now = part == 0 ? program(this->plan().begin(), at) : program(at, this->plan().end());
      ASSERT_EQ(p.run(now, standing), "") << "stuck from operation " << begin << " on";
    }
    heal(p.provider());
    ASSERT_EQ(p.empty(), "") << "stuck from operation " << begin << " on, until then";
    p.end();
    ASSERT_EQ(p.holds_nothing(), "");
  }
  ASSERT_EQ(this->after([](watched_device& device) { device.stick(true); }, heal), "");
}

/// The destructor of an allocator releases what the device accepts, whatever its streams do.
TYPED_TEST(shipped_faults, of_streams_that_never_complete_end_with_the_allocator) {
  for (std::size_t length = 20; length <= this->plan().size(); length += 10) {
    tested_allocator<typename TestFixture::kept> p;
    std::vector<usage> standing;
    p.provider().stick(true);
    const program part(this->plan().begin(), this->plan().begin() + static_cast<std::ptrdiff_t>(length));
    ASSERT_EQ(p.run(part, standing), "");
    p.end();
    ASSERT_EQ(p.holds_nothing(), "");
  }
}

/// Blocks of streams that never complete are not reused. A request that needs them fails for that reason, and
/// succeeds once the streams complete.
TYPED_TEST(shipped_faults, of_streams_that_never_complete_keep_their_blocks) {
  if constexpr (TypeParam::streams::uses_events) {
    watched_device device{simulated_device::options{.capacity = 72_MiB, .page_granularity = 64_KiB}};
    {
      caching_allocator<TypeParam, provider_ref<watched_device>> pool{provider_ref(device)};
      void* const used = pool.allocate(40_MiB);
      device.stick(true);
      device.submit(stream_id{1}, 1'000'000);
      ASSERT_TRUE(pool.record_stream(used, stream_id{1}));
      pool.deallocate(used);
      const usage before = pool.current_usage();
      EXPECT_GE(before.pending(), 40_MiB);
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(pool.try_allocate(40_MiB), nullptr);
        try {
          (void)pool.allocate(40_MiB);
          ADD_FAILURE() << "there is no memory";
        } catch (const out_of_memory& refused) {
          EXPECT_EQ(refused.requested(), 40_MiB);
          EXPECT_EQ(refused.at_failure().pending(), before.pending());
          EXPECT_EQ(refused.at_failure().allocated, 0u);
        }
        pool.trim();
        EXPECT_EQ(pool.current_usage().pending(), before.pending());
        EXPECT_STREQ(pool.audit(), nullptr);
        device.advance(10'000'000'000);
      }
      void* const small = pool.allocate(512);  // there is other memory
      EXPECT_TRUE(small < used || static_cast<char*>(small) >= static_cast<char*>(used) + 40_MiB);
      pool.deallocate(small);
      device.stick(false);
      void* const again = pool.allocate(40_MiB);
      pool.deallocate(again);
      pool.trim();
      const usage after = pool.current_usage();
      EXPECT_EQ(after, (usage{.limit = after.limit, .has_limit = after.has_limit}));
    }
    EXPECT_EQ(device.used(), 0u);
  }
}

}  // namespace
