// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <string>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/configured.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/interop/cuda_mempool.hpp>
#include <tessera/observe/report.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/captured.hpp>
#include <tessera/trace/recording.hpp>

#include "tessera_replay/planner/make_plan.hpp"

namespace {

using namespace tessera;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(format_bytes, has_a_unit_and_two_digits) {
  EXPECT_STREQ(format_bytes(0).text(), "0 B");
  EXPECT_STREQ(format_bytes(1023).text(), "1023 B");
  EXPECT_STREQ(format_bytes(1024).text(), "1.00 KiB");
  EXPECT_STREQ(format_bytes(3_GiB / 2).text(), "1.50 GiB");
  EXPECT_STREQ(format_bytes(unlimited).text(), "16.00 EiB");
}

TEST(report, has_the_statistics_of_each_pool) {
  caching_allocator<pytorch<"max_split_size_mb:30">, simulated_device> pool;
  void* const small = pool.allocate(1000);
  (void)pool.allocate(40_MiB);
  pool.deallocate(small);
  pool.deallocate(pool.allocate(5_MiB));
  (void)pool.allocate(100);
  const memory_report report(pool);
  EXPECT_EQ(report.now, pool.current_usage());
  EXPECT_EQ(report.non_releasable, 2_MiB - 512);
  EXPECT_EQ(report.metadata_bytes, pool.metadata_bytes());
  ASSERT_EQ(report.pools.size(), 2u);
  EXPECT_EQ(report.pools[0].allocation.allocated, 2);
  EXPECT_EQ(report.pools[1].allocated_bytes.peak, static_cast<std::int64_t>(45_MiB));
  EXPECT_EQ(report.oversize_allocations.current, 1);
  EXPECT_EQ(report.max_split_size, 30_MiB);

  const std::string table = report.table();
  EXPECT_TRUE(has(table,
                  "reserved 62.00 MiB of 80.00 GiB: live 40.00 MiB (requested 40.00 MiB), pending 0 B, "
                  "cached 22.00 MiB (non-releasable 2.00 MiB)\n"))
      << table;
  EXPECT_TRUE(has(table,
                  "\nallocation                             2             2             4             2\n"
                  "  small_pool                           1             1             2             1\n"
                  "  large_pool                           1             2             2             1\n"))
      << table;
  EXPECT_TRUE(
      has(table, "\nreserved_bytes                 62.00 MiB     62.00 MiB     62.00 MiB           0 B\n"))
      << table;
  EXPECT_TRUE(has(table, "\nmax_split_size                 30.00 MiB\n")) << table;
  EXPECT_FALSE(has(table, "device calls"));

  const std::string json = report.json();
  EXPECT_TRUE(has(json,
                  "\"allocation\": {\"all\": {\"current\": 2, \"peak\": 2, \"allocated\": 4, \"freed\": 2}, "
                  "\"small_pool\": {\"current\": 1, "))
      << json;
  EXPECT_TRUE(has(json, "\"num_device_alloc\": 3,")) << json;
  EXPECT_TRUE(has(json, "\"max_split_size\": 31457280,")) << json;
}

TEST(report, peaks_can_be_reset) {
  caching_allocator<pytorch_family::native, simulated_device> pool;
  pool.deallocate(pool.allocate(5_MiB));
  pool.reset_peak_statistics();
  EXPECT_EQ(memory_report(pool).all.allocated_bytes.peak, 0);
  EXPECT_EQ(memory_report(pool).all.allocated_bytes.allocated, static_cast<std::int64_t>(5_MiB));
  EXPECT_TRUE(has(memory_report(pool).json(), "\"max_split_size\": -1,"));
}

TEST(report, has_the_times_of_device_calls) {
  simulated_device device;
  call_times times;
  caching_allocator<pytorch_family::native, timed<simulated_device>> pool({device, times});
  (void)pool.allocate(5_MiB);
  const memory_report report(pool, &times);
  EXPECT_EQ(report.calls[0].count, 1u);
  EXPECT_TRUE(has(report.table(), "\n  acquire                              1 ")) << report.table();
  EXPECT_TRUE(has(report.json(), "\"acquire\": {\"count\": 1, ")) << report.json();
}

TEST(report, works_with_any_allocator) {
  locked<caching_allocator<passthrough, simulated_device>> one;
  (void)one.allocate(1_MiB);
  EXPECT_EQ(memory_report(one).pools.size(), 1u);
  EXPECT_TRUE(has(memory_report(one).json(), "\"pool_0\": {"));
  per_stream<caching_allocator<pytorch_family::native, simulated_device>> arenas;
  (void)arenas.allocate(512, stream_id{1});
  (void)arenas.allocate(512, stream_id{2});
  EXPECT_EQ(memory_report(arenas).non_releasable, 4_MiB - 1024);
  EXPECT_EQ(memory_report(arenas).num_device_alloc, 2u);
  configured<pytorch_family, caching_allocator<pytorch<>, simulated_device>> chosen(
      pytorch_family::settings{});
  (void)chosen.allocate(512);
  EXPECT_EQ(memory_report(chosen).all.allocation.current, 1);
  cuda_mempool<caching_allocator<cuda_async, simulated_device>> driver;
  (void)driver.allocate_async(512, {});
  EXPECT_EQ(memory_report(driver.pool()).all.allocation.current, 1);
}

/// A program of one block of 5 MiB in each of three steps.
plan::made_plan small_plan() {
  using trace::event;
  trace::recording recorded{"small", {}};
  for (std::uint64_t step = 0; step < 3; ++step) {
    recorded.events.push_back({event::kind::begin_step});
    recorded.events.push_back({event::kind::allocate, step, 5_MiB});
    recorded.events.push_back({event::kind::free, step});
  }
  return plan::make(recorded);
}

TEST(report, has_what_a_plan_served) {
  const plan::made_plan made = small_plan();
  planned<caching_allocator<pytorch<>, simulated_device>> pool(made.view());
  void* const block = pool.allocate(5_MiB);
  (void)pool.allocate(1_MiB);
  const memory_report report(pool);
  ASSERT_TRUE(report.by_plan.has_value());
  EXPECT_EQ(report.by_plan->requests, 1u);
  EXPECT_EQ(report.by_plan->bytes, 5_MiB);
  EXPECT_EQ(report.by_plan->unplanned_requests, 1u);
  EXPECT_EQ(report.by_plan->unplanned_bytes, 1_MiB);
  EXPECT_EQ(report.by_plan->plan_bytes, 5_MiB);
  EXPECT_EQ(report.by_plan->fingerprint, made.numbers.fingerprint);
  EXPECT_FALSE(report.by_plan->is_stale());
  EXPECT_EQ(report.now, pool.current_usage());
  EXPECT_EQ(report.metadata_bytes, pool.metadata_bytes());

  const std::string table = report.table();
  EXPECT_TRUE(has(table, ", 5.00 MiB of places\n")) << table;
  EXPECT_TRUE(has(table, "\n  by_plan                              1      5.00 MiB\n")) << table;
  EXPECT_TRUE(has(table, "\n  unplanned                            1      1.00 MiB\n")) << table;
  EXPECT_TRUE(has(table, "\n  device_bytes                  6.00 MiB      6.00 MiB ")) << table;
  EXPECT_FALSE(has(table, "the plan "));
  const std::string json = report.json();
  EXPECT_TRUE(has(json, "\"requests\": 1, \"bytes\": 5242880, \"unplanned_requests\": 1, ")) << json;
  EXPECT_TRUE(has(json, "\"is_stale\": false, \"is_aside\": false, \"fault\": null}")) << json;

  pool.deallocate(block);
  for (int i = 0; i < 1000; ++i) pool.deallocate(pool.allocate(2_MiB));
  EXPECT_TRUE(has(memory_report(pool).table(), "the plan is stale: it served 1 of the last 1000 requests"));
  EXPECT_TRUE(has(memory_report(pool).json(), "\"is_stale\": true"));
}

TEST(report, names_the_fault_of_a_plan) {
  const plan::made_plan made = small_plan();
  memory_plan broken = made.view();
  broken.alignment = 3;
  trace::captured<planned<caching_allocator<pytorch<>, simulated_device>>> pool(broken);
  (void)pool.allocate(5_MiB);
  const memory_report report(pool);
  EXPECT_TRUE(has(report.table(), "the plan serves nothing: the alignment is a power of two, at least 64\n"));
  EXPECT_TRUE(has(report.json(), "\"fault\": \"the alignment is a power of two, at least 64\"}"));
  EXPECT_FALSE(memory_report(pool.inner().inner()).by_plan.has_value());
  EXPECT_FALSE(has(memory_report(pool.inner().inner()).json(), "\"plan\""));
}

}  // namespace
