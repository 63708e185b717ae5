// SPDX-License-Identifier: Apache-2.0
// Every recipe of the library, alone on a simulated device; some on each other provider.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "suite.hpp"

namespace conformance {

compositions shipped_on_simulated_devices() {
  compositions all;
  for_each_shipped([&all]<typename Recipe>(named<Recipe> r) {
    all.push_back({r.name, &bare<Recipe, simulated>, rules_of<Recipe>(), simulated_habits()});
  });
  return all;
}

namespace {

compositions in_host_memory() {
  compositions all;
  for_each_by_day([&all]<typename Recipe>(named<Recipe> r) {
    extra_rules kept = rules_of<Recipe>();
    kept.host_visible = true;
    all.push_back({r.name, &bare<Recipe, host_stand>, kept, host_habits(), host_share<Recipe>});
  });
  return all;
}

/// The recipes that an NPU supports, one for each way to grow, and one that releases at each free.
compositions on_simulated_npus() {
  compositions all;
  const auto add = [&all]<typename Recipe>(named<Recipe> r) {
    all.push_back({r.name, &bare<Recipe, simulated_stand<tessera::provider::simulated_npu>>,
                   rules_of<Recipe>(), simulated_habits(), 0.2});
  };
  add(named<tessera::recipe::torch_npu_family::native>{"torch_npu_native"});
  add(named<tessera::recipe::torch_npu_family::expandable>{"torch_npu_expandable"});
  add(named<tessera::recipe::stitched>{"stitched"});
  add(named<tessera::recipe::passthrough>{"passthrough"});
  return all;
}

/// Segments that are cut from a region. The provider keeps its own type, which states release_waits.
compositions on_a_region() {
  using device = tessera::provider::preallocating<tessera::provider::simulated_device>;
  using pool = extended<tessera::recipe::passthrough, device>;
  const auto make = []() -> std::unique_ptr<subject> {
    struct region_stand final : stand {
      bool can_use(const void* p, std::size_t bytes) override { return below.can_use(p, bytes); }
      void hold_events(bool held) override { below.hold_events(held); }
      std::uint64_t waits() override { return below.waits(); }
      std::string left() override { return region.reset(), below.left(); }
      tessera::detail::simulated_calls* calls() override { return below.calls(); }
      any_device::calls& any() override { return below.any(); }
      simulated below;
      std::unique_ptr<tessera::provider::preallocating<tessera::provider::simulated_device>::region> region =
          std::make_unique<tessera::provider::preallocating<tessera::provider::simulated_device>::region>(
              below.device, 64_MiB);
    };
    auto on = std::make_unique<region_stand>();
    auto& region = *on->region;
    return std::make_unique<subject_of<pool>>(std::move(on),
                                              [&region] { return std::make_unique<pool>(device(region)); });
  };
  return {{"passthrough", make, rules_of<tessera::recipe::passthrough>(), simulated_habits(), 0.05}};
}

INSTANTIATE_TEST_SUITE_P(on_a_region, suite, testing::ValuesIn(on_a_region()), name_of);
INSTANTIATE_TEST_SUITE_P(on_a_simulated_device, suite, testing::ValuesIn(shipped_on_simulated_devices()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(on_a_simulated_device, suite_of_failures,
                         testing::ValuesIn(shipped_on_simulated_devices()), name_of);
INSTANTIATE_TEST_SUITE_P(in_host_memory, suite, testing::ValuesIn(in_host_memory()), name_of);
INSTANTIATE_TEST_SUITE_P(on_a_simulated_npu, suite, testing::ValuesIn(on_simulated_npus()), name_of);
INSTANTIATE_TEST_SUITE_P(on_a_simulated_npu, suite_of_failures, testing::ValuesIn(on_simulated_npus()),
                         name_of);

}  // namespace
}  // namespace conformance
