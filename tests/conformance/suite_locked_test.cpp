// SPDX-License-Identifier: Apache-2.0
// Each recipe that is tested by day in `locked`, over provider adaptors and inside other front ends.
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tessera/caching_allocator.hpp>
#include <tessera/concurrent/deferred_free_queue.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/configured.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/trace/captured.hpp>

#include "suite.hpp"

namespace conformance {
namespace {

using namespace tessera;

/// An allocator whose frees all go through a deferred_free_queue.
template <typename Allocator>
class collected {
 public:
  explicit collected(any_device device) : pool_(std::move(device)) {}
  void* try_allocate(std::size_t bytes, stream_id stream) {
    // A request that finds no memory executes the deferred frees.
    void* const p = pool_.try_allocate(bytes, stream);
    return p != nullptr ? p : (garbage_.finish(), pool_.try_allocate(bytes, stream));
  }
  void deallocate(void* p) { garbage_.push(p, 1_MiB); }
  void deallocate(void* p, std::size_t bytes) { garbage_.push(p, bytes); }
  bool record_stream(void* p, stream_id stream) { return pool_.record_stream(p, stream); }
  void trim(std::size_t keep) { garbage_.finish(), pool_.trim(keep); }
  const char* audit() { return pool_.audit(); }
  Allocator& inner() { return pool_; }

 private:
  Allocator pool_;
  deferred_free_queue<Allocator> garbage_{pool_, {.threshold = 64_MiB, .waits = true}};
};

/// A `waiting` that waits only a short time for frees.
template <typename Recipe>
[[nodiscard]] std::unique_ptr<subject> waiting_briefly() {
  return over<waiting<locked<extended<Recipe, any_device>>>, simulated>(std::chrono::milliseconds(1));
}
template <typename Recipe>
[[nodiscard]] std::unique_ptr<subject> collecting() {
  return over<collected<locked<extended<Recipe, any_device>>>, simulated>();
}

/// Over the device and over adaptors.
compositions behind_a_mutex() {
  compositions all;
  for_each_by_day([&all]<typename Recipe>(named<Recipe> r) {
    using pool = locked<extended<Recipe, any_device>>;
    const std::string name = r.name;
    const extra_rules kept = rules_of<Recipe>();
    all.push_back({name, &over<pool, simulated>, kept, simulated_habits(), 0.05});
    all.push_back(
        {name + "_limited", &over<pool, wrapped_stand<simulated, in_limit>>, kept, simulated_habits(), 0.05});
    all.push_back({name + "_reserving", &over<pool, wrapped_stand<simulated, in_region>>, kept,
                   simulated_habits(), 0.05});
    all.push_back(
        {name + "_timed", &over<pool, wrapped_stand<simulated, in_time>>, kept, simulated_habits(), 0.02});
    all.push_back({name + "_banked", &over<pool, wrapped_stand<simulated, in_domains>>, kept,
                   simulated_habits(), 0.02});
  });
  return all;
}

/// Each recipe once, and each adaptor with a recipe of segments and one of ranges.
compositions with_failures() {
  compositions all = behind_a_mutex();
  std::erase_if(all, [](const composition& c) {
    const bool is_wrapped = c.name.ends_with("_limited") || c.name.ends_with("_reserving") ||
                            c.name.ends_with("_timed") || c.name.ends_with("_banked");
    return is_wrapped && !c.name.starts_with("passthrough") && !c.name.starts_with("pytorch_expandable");
  });
  return all;
}

/// Inside front ends. Deferred frees are not executed yet.
compositions wrapped() {
  compositions all;
  for_each_by_day([&all]<typename Recipe>(named<Recipe> r) {
    const std::string name = r.name;
    extra_rules kept = rules_of<Recipe>();
    habits few = simulated_habits();
    few.most_live = 40;
    all.push_back({name + "_waiting", &waiting_briefly<Recipe>, kept, few, 0.02});
    all.push_back({name + "_tagged", &over<tagged<locked<extended<Recipe, any_device>>>, simulated>, kept,
                   simulated_habits(), 0.02});
    all.push_back({name + "_captured",
                   &over<trace::captured<locked<extended<Recipe, any_device>>>, simulated>, kept,
                   simulated_habits(), 0.02});
    kept.counts_at_once = false;
    all.push_back({name + "_collector", &collecting<Recipe>, kept, simulated_habits(), 0.05});
  });
  return all;
}

compositions of_host_memory() {
  compositions all;
  for_each_by_day([&all]<typename Recipe>(named<Recipe> r) {
    using pool = locked<extended<Recipe, any_device>>;
    const std::string name = r.name;
    extra_rules kept = rules_of<Recipe>();
    kept.host_visible = true;
    const double share = host_share<Recipe> / 10;
    all.push_back({name, &over<pool, host_stand>, kept, host_habits(), share});
    all.push_back(
        {name + "_limited", &over<pool, wrapped_stand<host_stand, in_limit>>, kept, host_habits(), share});
    all.push_back(
        {name + "_reserving", &over<pool, wrapped_stand<host_stand, in_region>>, kept, host_habits(), share});
    // Mapped memory is not registered, so this is for segments only.
    if constexpr (!Recipe::growth::backend::has_ranges)
      all.push_back({name + "_registering", &over<pool, wrapped_stand<host_stand, in_registry>>, kept,
                     host_habits(), share});
  });
  return all;
}

/// Every recipe that settings choose.
template <typename Family, typename Recipe>
composition chosen(const char* name, const typename Family::settings& said) {
  using pool = configured<Family, locked<extended<pytorch<>, any_device>>>;
  return {name, [said] { return over<pool, simulated>(said); }, rules_of<Recipe>(), simulated_habits(), 0.05};
}
compositions by_settings() {
  return {
      chosen<pytorch_family, pytorch_family::native>("pytorch_native", {.max_split_size = 64_MiB}),
      chosen<pytorch_family, pytorch_family::expandable>("pytorch_expandable", {.expandable_segments = true}),
      chosen<pytorch_family, cuda_async>("cuda_async", {.async_backend = true}),
      chosen<torch_npu_family, torch_npu_family::native>("torch_npu_native", {}),
      chosen<torch_npu_family, torch_npu_family::expandable>("torch_npu_expandable",
                                                             {.expandable_segments = true}),
      chosen<torch_npu_family::pinned_family, pinned>("pinned", {.pinned_max_cached_size = 64_MiB}),
      chosen<torch_npu_family::pinned_family, torch_npu_family::pinned_expandable>(
          "pinned_expandable", {.pin_memory_expandable_segments = true}),
      chosen<paddle_family, paddle_family::auto_growth>("paddle_auto_growth", {.free_idle_chunk = true}),
      chosen<paddle_family, paddle_family::naive_best_fit>("paddle_naive_best_fit",
                                                           {.naive_best_fit = true})};
}

INSTANTIATE_TEST_SUITE_P(locked, suite, testing::ValuesIn(behind_a_mutex()), name_of);
INSTANTIATE_TEST_SUITE_P(locked, suite_of_failures, testing::ValuesIn(with_failures()), name_of);
INSTANTIATE_TEST_SUITE_P(around_locked, suite, testing::ValuesIn(wrapped()), name_of);
INSTANTIATE_TEST_SUITE_P(locked_in_host_memory, suite, testing::ValuesIn(of_host_memory()), name_of);
INSTANTIATE_TEST_SUITE_P(configured, suite, testing::ValuesIn(by_settings()), name_of);

}  // namespace
}  // namespace conformance
