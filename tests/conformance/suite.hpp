// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/caching_allocator.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>

#include "model.hpp"
#include "shipped.hpp"
#include "stands.hpp"
#include "subject_of.hpp"

/// The suite for every composition of a recipe, a provider and front ends. Each file lists compositions. The
/// tests are written and compiled once.
namespace conformance {

inline std::ostream& operator<<(std::ostream& out, const composition& c) { return out << c.name; }
using compositions = std::vector<composition>;

/// For each composition: random programs. If calls of the device can fail, also with each call failing in
/// turn, and with failures at intervals.
class suite : public testing::TestWithParam<composition> {};
class suite_of_failures : public testing::TestWithParam<composition> {};

inline std::string name_of(const testing::TestParamInfo<composition>& info) { return info.param.name; }

/// Functions for simulated memory, and for host memory.
[[nodiscard]] inline habits simulated_habits() {
  return {.seed = seed_asked_for(1),
          .largest = 32_MiB,
          .most_live = 200,
          .streams = {tessera::stream_id{0}, tessera::stream_id{1}, tessera::stream_id{2},
                      tessera::stream_id{~std::uint64_t{0}}},
          .settings = tunings,
          .pools = 3};
}
[[nodiscard]] inline habits host_habits() {
  return {.seed = seed_asked_for(7),
          .largest = 4_MiB,
          .most_live = 60,
          .streams = {tessera::stream_id{0}, host_stand::side},
          .holds_events = false,
          .settings = tunings,
          .pools = 2};
}
/// If pages are mapped one by one, the system clears each page.
template <typename Recipe>
inline constexpr double host_share = !Recipe::growth::backend::has_ranges ? 0.1 : 0.005;

/// A caching_allocator with the extensions that random programs use.
template <typename Recipe, typename Provider>
using extended = tessera::caching_allocator<Recipe, Provider, tessera::extension::private_pools,
                                            tessera::extension::sleep_mode>;

/// A caching_allocator on a device of its own type.
template <typename Recipe, typename Stand>
[[nodiscard]] std::unique_ptr<subject> bare() {
  using device = decltype(Stand::device);
  using pool = extended<Recipe, tessera::provider::provider_ref<device>>;
  auto on = std::make_unique<Stand>();
  device& d = on->device;
  return std::make_unique<subject_of<pool>>(
      std::move(on), [&d] { return std::make_unique<pool>(tessera::provider::provider_ref<device>(d)); });
}

/// A front end of any type, on a device of unknown type.
template <typename Pool, typename Stand, typename... First>
[[nodiscard]] std::unique_ptr<subject> over(const First&... first) {
  auto on = std::make_unique<Stand>();
  any_device d(on->any());
  return std::make_unique<subject_of<Pool>>(std::move(on),
                                            [&] { return std::make_unique<Pool>(first..., std::move(d)); });
}

/// Every recipe of the library, alone on a simulated device.
[[nodiscard]] compositions shipped_on_simulated_devices();

using simulated = simulated_stand<tessera::provider::simulated_device>;

}  // namespace conformance
