// SPDX-License-Identifier: Apache-2.0
// What one thread may expect of an allocator, it may expect of those for threads.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/adaptor/locked.hpp>
#include <tessera/adaptor/per_device.hpp>
#include <tessera/adaptor/per_stream.hpp>

#include <tessera/provider/host_pinned.hpp>

#include "model.hpp"

namespace {

using namespace tessera;
using conformance::misbehaviour;
using conformance::plan;
using eager = with<pytorch<>, split_up_to<32_MiB>, evict_idle_above<percent(60)>>;
using eager_in_ranges =
    with<pytorch_expandable, split_up_to<32_MiB, 20_MiB, 1_MiB, 0>, evict_idle_above<percent(60)>>;

/// The first of several devices, of which there is one.
template <typename PerDevice, typename Device>
class first_of {
 public:
  explicit first_of(Device device) : all_({device}) {}
  void* try_allocate(std::size_t bytes, stream_id stream) { return all_.try_allocate(bytes, 0, stream); }
  void deallocate(void* p) { all_.deallocate(p); }
  void deallocate(void* p, std::size_t bytes) { all_.deallocate(p, bytes); }
  bool record_stream(void* p, stream_id stream) { return all_.record_stream(p, stream); }
  void trim(std::size_t keep = 0) { all_.trim(keep); }
  const char* audit() { return all_.audit(); }
  usage now() { return all_.front(0).now(); }

 private:
  PerDevice all_;
};

template <typename Recipe>
struct one_lock {
  template <typename Device>
  using on = locked<Recipe, Device>;
};
template <typename Recipe>
struct lanes {
  template <typename Device>
  using on = per_stream<Recipe, Device>;
};
template <typename Recipe>
struct devices {
  template <typename Device>
  using on = first_of<per_device<Recipe, Device>, Device>;
};
template <typename Recipe>
struct devices_with_lanes {
  template <typename Device>
  using on = first_of<per_device<Recipe, Device, per_stream>, Device>;
};

template <typename Front>
class threads : public testing::Test {};
using fronts =
    testing::Types<one_lock<pytorch<>>, one_lock<passthrough>, one_lock<eager>, one_lock<paddle_auto_growth>,
                   lanes<paddle_naive_best_fit>, one_lock<pytorch_expandable>, one_lock<eager_in_ranges>,
                   lanes<pytorch<>>, lanes<passthrough>, lanes<eager>,
                   lanes<with<pytorch<>, reuse_ignoring_streams>>, lanes<pytorch_expandable>,
                   lanes<eager_in_ranges>,
                   lanes<with<pytorch_expandable, reuse_ignoring_streams, evict_at_free>>, devices<pytorch<>>,
                   devices<pytorch_expandable>, one_lock<cuda_async>, lanes<cuda_async>,
                   devices_with_lanes<pytorch_expandable>>;
TYPED_TEST_SUITE(threads, fronts);

/// Of whatever kind; 0 for none.
template <typename Device>
std::size_t outstanding(const Device& d) {
  return d.used() + d.held().reserved + d.held().mapped;
}

TYPED_TEST(threads, keep_every_promise_to_one) {
  for (std::uint64_t seed : {1u, 2u, 3u}) {
    simulated_device device{simulated_device::options{.capacity = 900_MiB}};
    {
      typename TypeParam::template on<provider_ref<simulated_device>> pool{provider_ref(device)};
      ASSERT_EQ(misbehaviour(pool, plan{seed, 30'000, 32_MiB, 200, 97},
                             {stream_id{0}, stream_id{1}, stream_id{2}, stream_id{~std::uint64_t{0}}}),
                "");
      EXPECT_EQ(pool.now().reserved, 0u);
    }
    EXPECT_EQ(outstanding(device), 0u);
    EXPECT_EQ(device.held().handles, 0u);
  }
}

TYPED_TEST(threads, keep_every_promise_in_host_memory) {
  host_pinned device{host_pinned::options{.capacity = 256_MiB, .pin = host_pinned::pinning::never}};
  const stream_id side = device.create_stream();
  {
    typename TypeParam::template on<provider_ref<host_pinned>> pool{provider_ref(device)};
    ASSERT_EQ(misbehaviour(pool, plan{7, 10'000, 4_MiB, 60, 97}, {stream_id{0}, side}), "");
    EXPECT_EQ(pool.now().reserved, 0u);
  }
  EXPECT_EQ(outstanding(device), 0u);
}

TYPED_TEST(threads, survive_any_failing_call) {
  for (std::uint64_t k = 1; k <= 150; ++k) {
    simulated_device device{simulated_device::options{.capacity = 200_MiB}};
    {
      typename TypeParam::template on<provider_ref<simulated_device>> pool{provider_ref(device)};
      device.fail_call(k);
      ASSERT_EQ(misbehaviour(pool, plan{k, 400, 32_MiB, 40, 1}, {stream_id{0}, stream_id{1}, stream_id{2}}),
                "")
          << "with call " << k << " failing";
    }
    ASSERT_EQ(outstanding(device), 0u) << "with call " << k << " failing";
  }
}

}  // namespace
