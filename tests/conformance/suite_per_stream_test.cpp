// SPDX-License-Identifier: Apache-2.0
// Each recipe that is tested by day with an arena for each stream, and on one of several devices.
#include <string>
#include <utility>
#include <vector>

#include <tessera/caching_allocator.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>

#include "suite.hpp"

namespace conformance {
namespace {

using namespace tessera;

/// A list of devices that has one device.
template <typename PerDevice>
class first_of {
 public:
  explicit first_of(any_device device) : all_({std::move(device)}) {}
  void* try_allocate(std::size_t bytes, stream_id stream) { return all_.try_allocate(bytes, 0, stream); }
  void deallocate(void* p) { all_.deallocate(p); }
  void deallocate(void* p, std::size_t bytes) { all_.deallocate(p, bytes); }
  bool record_stream(void* p, stream_id stream) { return all_.record_stream(p, stream); }
  void trim(std::size_t keep) { all_.trim(keep); }
  const char* audit() { return all_.audit(); }
  PerDevice& inner() { return all_; }

 private:
  PerDevice all_;
};

template <template <typename> typename Front>
compositions with_each_recipe() {
  compositions all;
  for_each_by_day([&all]<typename Recipe>(named<Recipe> r) {
    all.push_back({r.name, &over<Front<Recipe>, simulated>, rules_of<Recipe>(), simulated_habits(), 0.05});
  });
  return all;
}
template <template <typename> typename Front>
compositions in_host_memory() {
  compositions all;
  for_each_by_day([&all]<typename Recipe>(named<Recipe> r) {
    extra_rules kept = rules_of<Recipe>();
    kept.host_visible = true;
    all.push_back({r.name, &over<Front<Recipe>, host_stand>, kept, host_habits(), host_share<Recipe> / 10});
  });
  return all;
}

template <typename Recipe>
using arenas = per_stream<extended<Recipe, any_device>>;
template <typename Recipe>
using devices = first_of<per_device<locked<extended<Recipe, any_device>>>>;

INSTANTIATE_TEST_SUITE_P(per_stream, suite, testing::ValuesIn(with_each_recipe<arenas>()), name_of);
INSTANTIATE_TEST_SUITE_P(per_stream, suite_of_failures, testing::ValuesIn(with_each_recipe<arenas>()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(per_stream_in_host_memory, suite, testing::ValuesIn(in_host_memory<arenas>()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(per_device, suite, testing::ValuesIn(with_each_recipe<devices>()), name_of);
INSTANTIATE_TEST_SUITE_P(per_device, suite_of_failures, testing::ValuesIn(with_each_recipe<devices>()),
                         name_of);

}  // namespace
}  // namespace conformance
