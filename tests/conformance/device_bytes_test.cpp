// SPDX-License-Identifier: Apache-2.0
// The counters of an allocator equal the bytes that the device gave, after every call and at the peak.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <type_traits>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "model.hpp"
#include "recorded.hpp"
#include "shipped.hpp"

namespace {

using namespace tessera;
using conformance::for_each_by_day;
using conformance::named;

std::int64_t number(std::size_t bytes) { return static_cast<std::int64_t>(bytes); }

/// The first wrong counter, or nothing. `reserved_bytes` is compared only for one allocator.
template <typename Recipe, bool IsOneAllocator, typename Pool>
std::string wrong_counter(Pool& pool, const simulated_device& device) {
  const auto counted = pool.statistics();
  const auto& reserved = counted.all.reserved_bytes;
  if (counted.device_bytes.current != number(device.used())) return "device_bytes differ from the device's";
  if (counted.device_bytes.peak != number(device.peak_used())) return "the peak of device_bytes differs";
  // A range that grows page by page, as PyTorch's do, does not count the pages of a failed growth as
  // reserved.
  if (Recipe::growth::backend::has_ranges &&
      !std::is_same_v<typename Recipe::growth::backend, policy::stitching_backend> &&
      device.calls().refused > 0)
    return {};
  if (IsOneAllocator && reserved.current != number(device.used()))
    return "reserved_bytes differ from the device's";
  if (reserved.peak != number(device.peak_used())) return "the peak of reserved_bytes differs";
  return {};
}

/// Executes an operation of the model.
template <typename Pool>
void carry_out(const conformance::operation& o, Pool& pool, simulated_device& device,
               trace::pool_operations<Pool>& pools, std::map<std::uint64_t, void*>& live) {
  using kind = conformance::operation::kind;
  const auto at = live.find(o.id);
  switch (o.what) {
    case kind::allocate:
      if (void* const p = pool.try_allocate(o.bytes, o.stream)) live[o.id] = p;
      break;
    case kind::free:
      if (at != live.end()) pool.deallocate(at->second), live.erase(at);
      break;
    case kind::record:
      if (at != live.end()) (void)pool.record_stream(at->second, o.stream);
      break;
    case kind::hold: device.hold_events(o.amount != 0); break;
    case kind::trim: pool.trim(pool.current_usage().reserved / 100 * o.amount); break;
    case kind::retune:
    case kind::sleep: break;
    case kind::pool: (void)pools.run(conformance::pool_event(o)); break;
  }
}

/// Runs random programs on a device that is often full. Returns the first wrong counter after any call, or
/// nothing.
template <typename Pool, typename Check>
std::string over_random_programs(Check wrong, std::uint64_t fail_every = 0) {
  for (const std::size_t capacity : {200_MiB, 600_MiB, 4_GiB}) {
    simulated_device device{simulated_device::options{.capacity = capacity, .fail_every = fail_every}};
    Pool pool{provider_ref(device)};
    conformance::author writing({.seed = capacity >> 20,
                                 .largest = 32_MiB,
                                 .most_live = 100,
                                 .streams = {stream_id{0}, stream_id{1}, stream_id{2}},
                                 .pools = 2,
                                 .sleeps = false});
    trace::pool_operations<Pool> pools(pool);
    std::map<std::uint64_t, void*> live;
    for (int i = 0; i < 3000; ++i) {
      carry_out(writing.next(), pool, device, pools, live);
      if (const std::string found = wrong(pool, device); !found.empty())
        return found + ", capacity " + std::to_string(capacity) + ", operation " + std::to_string(i);
    }
  }
  return {};
}

/// Runs a recorded program with all memory, and with so little that it flushes and fails.
template <typename Pool, typename Check>
std::string over_recorded_program(const trace::program& source, Check wrong) {
  for (const std::size_t capacity : {80_GiB, source.peak_live() / 20 * 21}) {
    simulated_device device{simulated_device::options{.capacity = capacity}};
    Pool pool{provider_ref(device)};
    std::string found;
    int done = 0;
    (void)conformance::replay_on(pool, device, source, [&] {
      ++done;
      if (!found.empty()) return;
      if (found = wrong(pool, device); !found.empty())
        found += ", capacity " + std::to_string(capacity) + ", event " + std::to_string(done);
    });
    if (!found.empty()) return found;
  }
  return {};
}

template <typename Recipe>
using plain = caching_allocator<Recipe, provider_ref<simulated_device>>;

TEST(device_bytes, are_counted_by_every_recipe_over_random_programs) {
  for_each_by_day([]<typename Recipe>(named<Recipe> r) {
    using pool = plain<Recipe>;
    EXPECT_EQ(over_random_programs<pool>(&wrong_counter<Recipe, true, pool>), "") << r.name;
  });
}

TEST(device_bytes, are_counted_by_every_recipe_over_a_recorded_program) {
  const trace::recording recording = conformance::recorded("gnn_sage_streams");
  const trace::program source(recording);
  for_each_by_day([&]<typename Recipe>(named<Recipe> r) {
    using pool = plain<Recipe>;
    EXPECT_EQ(over_recorded_program<pool>(source, &wrong_counter<Recipe, true, pool>), "") << r.name;
  });
}

TEST(device_bytes, are_counted_if_calls_fail) {
  for_each_by_day([]<typename Recipe>(named<Recipe> r) {
    const auto wrong = [](auto& pool, const simulated_device& device) -> std::string {
      const counter told = pool.statistics().device_bytes;
      return told.current == number(device.used()) && told.peak == number(device.peak_used())
                 ? ""
                 : "the device gave something else than is counted";
    };
    for (const std::uint64_t every : {2u, 7u, 31u})
      EXPECT_EQ(over_random_programs<plain<Recipe>>(wrong, every), "") << r.name << ", every " << every;
  });
}

TEST(device_bytes, are_counted_by_locked) {
  for_each_by_day([]<typename Recipe>(named<Recipe> r) {
    using pool = locked<caching_allocator<Recipe, provider_ref<simulated_device>>>;
    EXPECT_EQ(over_random_programs<pool>(&wrong_counter<Recipe, true, pool>), "") << r.name;
  });
}

TEST(device_bytes, are_counted_by_arenas_together) {
  for_each_by_day([]<typename Recipe>(named<Recipe> r) {
    using pool = per_stream<caching_allocator<Recipe, provider_ref<simulated_device>>>;
    EXPECT_EQ(over_random_programs<pool>(&wrong_counter<Recipe, false, pool>), "") << r.name;
  });
}

// Others use the device too. Three of five pages are granted; they are returned because the fourth is
// refused.
TEST(device_bytes, have_the_peak_of_a_failed_growth) {
  simulated_device device{simulated_device::options{.capacity = 200_MiB}};
  void* const others = device.acquire(130_MiB);
  plain<pytorch_family::expandable> pool{provider_ref(device)};
  EXPECT_EQ(pool.try_allocate(100_MiB), nullptr);
  EXPECT_EQ(pool.statistics().device_bytes.peak, number(60_MiB));
  EXPECT_EQ(pool.statistics().device_bytes.current, 0);
  EXPECT_EQ(pool.statistics().all.reserved_bytes.peak, 0) << "as PyTorch counts";
  pool.reset_peak_statistics();
  EXPECT_EQ(pool.statistics().device_bytes.peak, 0);
  EXPECT_TRUE(device.release(others, 130_MiB));
}

}  // namespace
