// SPDX-License-Identifier: Apache-2.0
// Every setting in the examples of other systems' documents runs a training program, on a simulated device
// and in host memory.
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/configured_pinned.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/tessera.hpp>

#include "seed_settings.hpp"

namespace {

using namespace tessera;
using namespace conformance;

/// A training step. It allocates blocks, lets another stream copy every second one, and frees them while that
/// stream waits. Then it allocates as many again, which must be other memory. Returns whether each block kept
/// its contents.
template <typename Pool, typename Place>
bool step(Pool& pool, Place& place) {
  struct made {
    void* p;
    std::size_t bytes;
    unsigned number;
  };
  unsigned last = 0;
  const auto make = [&] {
    std::vector<made> all;
    for (std::size_t bytes :
         {std::size_t{1}, std::size_t{700}, 300_KiB, 1_MiB, 1_MiB + 1, 3_MiB + 100, 12_MiB, 25_MiB}) {
      all.push_back({pool.allocate(bytes, place.compute), bytes, ++last});
      place.write(place.compute, all.back().p, bytes, last);
    }
    return all;
  };
  const std::vector<made> forward = make();
  place.finish();
  place.hold();
  for (std::size_t i = 0; i < forward.size(); i += 2) {
    EXPECT_TRUE(pool.record_stream(forward[i].p, place.copies));
    place.read(place.copies, forward[i].p, forward[i].bytes, forward[i].number);
  }
  for (auto each = forward.rbegin(); each != forward.rend(); ++each) {
    place.read(place.compute, each->p, each->bytes, each->number);
    pool.deallocate(each->p, each->bytes);
  }
  const std::vector<made> next = make();
  place.let_go();
  for (const made& each : next) {
    place.read(place.compute, each.p, each.bytes, each.number);
    pool.deallocate(each.p, each.bytes);
  }
  place.finish();
  EXPECT_STREQ(pool.audit(), nullptr);
  return place.is_good();
}

/// A setting, and the device for its program.
template <typename Recipe, typename Place>
struct run {
  using recipe = Recipe;
  using place = Place;
};
template <typename... Recipe>
struct settings {
  using simulated = testing::Types<run<Recipe, simulated_place>...>;
  using on_both = testing::Types<run<Recipe, simulated_place>..., run<Recipe, host_place>...>;
};

using everywhere = settings<
    pytorch<>, pytorch<"expandable_segments:True">, npu_1, npu_2, npu_4, npu_5_number, npu_5_list, npu_7,
    paddle_growing, paddle_ahead, paddle_ahead_by_0_4,
    backed<acl_malloc_policy::choice("ACL_MEM_MALLOC_HUGE_FIRST")>,
    backed<acl_malloc_policy::choice("ACL_MEM_MALLOC_NORMAL_ONLY")>,
    backed<acl_malloc_policy::choice("ACL_MEM_MALLOC_HUGE_FIRST_P2P")>,
    backed<acl_malloc_policy::choice("ACL_MEM_MALLOC_NORMAL_ONLY_P2P")>,
    backed<acl_malloc_policy::choice("ACL_MEM_TYPE_LOW_BAND_WIDTH")>,
    backed<acl_malloc_policy::choice("ACL_MEM_MALLOC_HUGE_FIRST | ACL_MEM_TYPE_HIGH_BAND_WIDTH")>>::on_both;
// A machine may lack huge pages, and must not write to read-only memory.
using where_pages_are =
    settings<npu_3, backed<acl_malloc_policy::choice("ACL_MEM_MALLOC_HUGE_ONLY")>,
             backed<acl_malloc_policy::choice("ACL_MEM_MALLOC_HUGE_ONLY_P2P")>,
             backed<acl_malloc_policy::choice("ACL_MEM_MALLOC_HUGE1G_ONLY")>,
             backed<acl_malloc_policy::choice("ACL_MEM_MALLOC_HUGE1G_ONLY_P2P")>,
             backed<acl_malloc_policy::choice("ACL_MEM_ACCESS_USER_SPACE_READONLY")>>::simulated;

template <typename Run>
void learn_and_leave_nothing() {
  typename Run::place place;
  {
    on<typename Run::recipe, typename Run::place> pool{provider_ref(place.device)};
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(step(pool, place));
    const std::size_t so_far = taken(pool);
    EXPECT_GT(so_far, 0u);
    EXPECT_TRUE(step(pool, place));
    EXPECT_EQ(taken(pool), so_far) << "what was cached serves the third step";
    EXPECT_EQ(pool.current_usage().allocated, 0u);
    pool.trim();
    EXPECT_EQ(pool.current_usage().pending(), 0u);
    EXPECT_EQ(reserved(pool), 0u);
    EXPECT_EQ(place.device.used(), 0u);
    EXPECT_TRUE(step(pool, place));
  }
  EXPECT_EQ(place.device.used(), 0u);
  EXPECT_EQ(place.device.held().mapped + place.device.held().reserved, 0u);
}
template <typename Run>
class seed_programs : public testing::Test {};
TYPED_TEST_SUITE(seed_programs, everywhere);
TYPED_TEST(seed_programs, learn_and_leave_nothing) { learn_and_leave_nothing<TypeParam>(); }

template <typename Run>
class seed_programs_on_special_pages : public testing::Test {};
TYPED_TEST_SUITE(seed_programs_on_special_pages, where_pages_are);
TYPED_TEST(seed_programs_on_special_pages, learn_and_leave_nothing) { learn_and_leave_nothing<TypeParam>(); }

// These tests use the device from several threads, or register memory. The simulated device supports neither.
TEST(seed_programs_of_pinned_memory, npu_6_a_thread_processes_completed_events) {
  host_place place;
  {
    configured_pinned<torch_npu_family::pinned_family, provider_ref<host_pinned>> pool(
        npu_6::settings, provider_ref(place.device));
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(step(pool, place));
    EXPECT_TRUE(pool.visit([](const auto& in) { return in.has_worker(); }));
  }
  EXPECT_EQ(place.device.used(), 0u);
}
TEST(seed_programs_of_pinned_memory, npu_8_the_device_accesses_registered_memory) {
  host_place place, memory;
  {
    configured_pinned<torch_npu_family::pinned_family, provider_ref<host_pinned>, host_pinned> pool(
        npu_8::settings, provider_ref(memory.device), place.device);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(step(pool, place));
    EXPECT_GT(reserved(pool), 0u);
    EXPECT_EQ(place.device.held().registered, reserved(pool));
    EXPECT_EQ(memory.device.held().acquired, reserved(pool));
  }
  EXPECT_EQ(place.device.held().registered, 0u);
  EXPECT_EQ(memory.device.used(), 0u);
}

TEST(seed_programs_can_fail, if_a_block_is_reused_too_early) {
  using careless = with<pytorch<>, reuse_immediately>;
  simulated_place simulated;
  host_place host;
  on<careless, simulated_place> there{provider_ref(simulated.device)};
  on<careless, host_place> here{provider_ref(host.device)};
  EXPECT_FALSE(step(there, simulated));
  EXPECT_FALSE(step(here, host));
}

}  // namespace
