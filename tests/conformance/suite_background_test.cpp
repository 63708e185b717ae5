// SPDX-License-Identifier: Apache-2.0
// Each recipe that is tested by day with a thread that polls events; all settings of pinned memory; cuda_mempool.
#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include <tessera/caching_allocator.hpp>
#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/concurrent/configured_pinned.hpp>
#include <tessera/interop/cuda_mempool.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>

#include "suite.hpp"

namespace conformance {
namespace {

using namespace tessera;

/// A cuda_mempool in which each block is freed on the stream of its allocation.
class in_order_of_streams {
 public:
  using device = provider_ref<simulated_device>;
  explicit in_order_of_streams(simulated_device& on) : pool_(device(on)) {}
  void* try_allocate(std::size_t bytes, stream_id stream) {
    void* const p = pool_.try_allocate_async(bytes, stream);
    if (p != nullptr) streams_[p] = stream;
    return p;
  }
  void deallocate(void* p) { pool_.free_async(p, streams_.at(p)), streams_.erase(p); }
  void deallocate(void* p, std::size_t) { deallocate(p); }
  bool record_stream(void* p, stream_id stream) { return pool_.record_stream(p, stream); }
  void trim(std::size_t keep) {
    for (const auto handle : {0u, 1u, 2u}) pool_.synchronize(stream_id{handle});
    pool_.synchronize(stream_id{~std::uint64_t{0}});
    pool_.trim_to(keep);
  }
  const char* audit() { return pool_.audit(); }
  auto& inner() { return pool_.pool(); }

 private:
  cuda_mempool<caching_allocator<cuda_async, device>> pool_;
  std::map<void*, stream_id> streams_;
};
std::unique_ptr<subject> driver() {
  auto on = std::make_unique<simulated>();
  simulated_device& d = on->device;
  return std::make_unique<subject_of<in_order_of_streams>>(
      std::move(on), [&d] { return std::make_unique<in_order_of_streams>(d); });
}

/// The thread may change the pending bytes at any time.
compositions with_a_thread() {
  compositions all;
  for_each_by_day([&all]<typename Recipe>(named<Recipe> r) {
    extra_rules kept = rules_of<Recipe>();
    kept.counts_at_once = false;
    all.push_back({r.name, &over<background_reclaiming<extended<Recipe, any_device>>, simulated>, kept,
                   simulated_habits(), 0.02});
  });
  return all;
}
compositions with_a_thread_in_host_memory() {
  compositions all;
  for_each_by_day([&all]<typename Recipe>(named<Recipe> r) {
    extra_rules kept = rules_of<Recipe>();
    kept.counts_at_once = false;
    kept.host_visible = true;
    all.push_back({r.name, &over<background_reclaiming<extended<Recipe, any_device>>, host_stand>, kept,
                   host_habits(), host_share<Recipe> / 10});
  });
  return all;
}
compositions of_a_driver() {
  extra_rules kept = rules_of<cuda_async>();
  return {{"cuda_async", &driver, kept, simulated_habits(), 0.2}};
}

INSTANTIATE_TEST_SUITE_P(background_reclaiming, suite, testing::ValuesIn(with_a_thread()), name_of);
INSTANTIATE_TEST_SUITE_P(retiring_in_host_memory, suite, testing::ValuesIn(with_a_thread_in_host_memory()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(cuda_mempool, suite, testing::ValuesIn(of_a_driver()), name_of);

}  // namespace
}  // namespace conformance
