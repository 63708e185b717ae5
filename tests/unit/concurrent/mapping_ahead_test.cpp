// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <random>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <tessera/concurrent/mapping_ahead.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include "conformance/recorded.hpp"

namespace {

using namespace tessera;

using recipe_type = recipe::pytorch<"expandable_segments:True">;
using device_ref = provider_ref<simulated_device>;
using pool = locked<caching_allocator<recipe_type, device_ref, extension::private_pools>>;
using ahead = mapping_ahead<pool>;

/// The calls of a device that give memory or take it back.
std::uint64_t memory_calls(const simulated_device& device) {
  const auto& made = device.calls();
  return made.reserve + made.unreserve + made.create + made.destroy + made.map + made.grant + made.unmap;
}

TEST(mapping_ahead, maps_up_to_the_high_watermark) {
  simulated_device device;
  ahead memory({.low = 50_MiB, .high = 100_MiB, .enabled = false}, device_ref(device));
  EXPECT_EQ(memory.current_usage().reserved, 0u);
  EXPECT_TRUE(memory.map_ahead());
  EXPECT_EQ(memory.current_usage().cached, 100_MiB);
  const std::uint64_t before = memory_calls(device);
  std::vector<void*> pages;
  for (int i = 0; i < 5; ++i) pages.push_back(memory.allocate(20_MiB));
  EXPECT_EQ(memory_calls(device), before);
  EXPECT_TRUE(memory.map_ahead());
  EXPECT_EQ(memory.current_usage().reserved, 200_MiB);
  for (void* const p : pages) memory.deallocate(p);
  EXPECT_TRUE(memory.map_ahead());
  EXPECT_EQ(memory.current_usage().reserved, 200_MiB);
  EXPECT_STREQ(memory.audit(), nullptr);
}

TEST(mapping_ahead, does_nothing_between_the_watermarks) {
  simulated_device device;
  ahead memory({.low = 40_MiB, .high = 100_MiB, .enabled = false}, device_ref(device));
  EXPECT_TRUE(memory.map_ahead());
  void* const p = memory.allocate(60_MiB);
  const std::uint64_t before = memory_calls(device);
  EXPECT_TRUE(memory.map_ahead());  // 40 MiB are left
  EXPECT_EQ(memory_calls(device), before);
  void* const one = memory.allocate(2_MiB);
  EXPECT_TRUE(memory.map_ahead());  // 38 MiB are left
  EXPECT_GT(memory_calls(device), before);
  EXPECT_GE(memory.current_usage().cached, 100_MiB);
  EXPECT_LT(memory.current_usage().cached, 120_MiB);
  memory.deallocate(p);
  memory.deallocate(one);
}

TEST(mapping_ahead, a_refusal_is_quiet_and_takes_nothing_from_others) {
  simulated_device device({.capacity = 200_MiB});
  ahead memory({.low = 100_MiB, .high = 200_MiB, .enabled = false}, device_ref(device));
  void* const p = memory.allocate(100_MiB);
  void* const q = memory.allocate(60_MiB);
  EXPECT_FALSE(memory.map_ahead());
  EXPECT_EQ(memory.refusals(), 1u);
  EXPECT_EQ(memory.statistics().num_ooms, 0u);
  EXPECT_EQ(memory.statistics().num_alloc_retries, 0u);
  EXPECT_EQ(memory.current_usage().reserved, 200_MiB);  // what there was
  EXPECT_FALSE(memory.map_ahead());
  EXPECT_EQ(device.calls().refused, 0u);  // a full device is not even asked
  memory.deallocate(p);
  EXPECT_TRUE(memory.map_ahead());
  EXPECT_EQ(memory.refusals(), 2u);
  memory.deallocate(q);
  EXPECT_STREQ(memory.audit(), nullptr);
}

TEST(mapping_ahead, a_device_that_fails_is_asked_again) {
  simulated_device device;
  ahead memory({.low = 40_MiB, .high = 40_MiB, .enabled = false}, device_ref(device));
  device.fail_call(2);  // create; the first call is reserve
  EXPECT_FALSE(memory.map_ahead());
  for (std::uint64_t call = 1; call <= 3; ++call) {  // create, map, grant
    device.fail_call(call);
    EXPECT_FALSE(memory.map_ahead());
    EXPECT_STREQ(memory.audit(), nullptr);
  }
  EXPECT_TRUE(memory.map_ahead());
  EXPECT_EQ(memory.current_usage().cached, 40_MiB);
}

TEST(mapping_ahead, asks_for_fewer_addresses_if_those_of_a_range_are_refused) {
  simulated_device device;
  ahead memory({.low = 40_MiB, .high = 40_MiB, .enabled = false}, device_ref(device));
  device.fail_call(1);
  EXPECT_TRUE(memory.map_ahead());
  EXPECT_EQ(memory.current_usage().cached, 40_MiB);
}

TEST(mapping_ahead, waits_until_no_graph_is_captured) {
  simulated_device device;
  ahead memory({.low = 20_MiB, .high = 40_MiB, .enabled = false}, device_ref(device));
  extension::private_pool graph(memory);
  {
    const extension::pool_scope capture(graph, extension::scope_kind::capture);
    const std::uint64_t before = memory_calls(device);
    EXPECT_FALSE(memory.map_ahead());
    EXPECT_EQ(memory_calls(device), before);
  }
  EXPECT_TRUE(memory.map_ahead());
}

TEST(mapping_ahead, names_wrong_watermarks) {
  const auto make = [](std::size_t low, std::size_t high) {
    simulated_device device({.capacity = 1_GiB});
    const ahead memory({.low = low, .high = high}, device_ref(device));
  };
  EXPECT_DEATH(make(0, 1), "mapping_ahead: the low watermark is 0: low 0, high 1, capacity 1073741824");
  EXPECT_DEATH(make(2_MiB, 1_MiB), "mapping_ahead: the low watermark exceeds the high one");
  EXPECT_DEATH(make(1_MiB, 2_GiB), "mapping_ahead: the high watermark exceeds the capacity");
}

/// A random program, with a model of what must hold after each round: a request of `low` bytes makes no call unless mapping
/// was refused, live blocks stay, and a round maps at most `high` bytes and one unit.
TEST(mapping_ahead, keeps_its_promise_in_random_programs) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    simulated_device device({.capacity = 1_GiB});
    const std::size_t low = (2 + random() % 100) * 1_MiB;  // above small blocks
    const std::size_t high = low + random() % 100 * 1_MiB;
    ahead memory({.low = low, .high = high, .enabled = false}, device_ref(device));
    std::vector<void*> live;
    for (int step = 0; step < 400; ++step) {
      if (live.empty() || random() % 3 != 0) {
        const std::size_t bytes = 1 + (random() % 2 == 0 ? random() % 1_MiB : random() % 40_MiB);
        if (void* const p = memory.try_allocate(bytes)) live.push_back(p);
      } else {
        std::swap(live[random() % live.size()], live.back());
        memory.deallocate(live.back());
        live.pop_back();
      }
      if (random() % 50 == 0) memory.trim();
      if (random() % 4 != 0) continue;
      const usage before = memory.current_usage();
      const bool mapped = memory.map_ahead();
      const usage after = memory.current_usage();
      EXPECT_EQ(after.active, before.active);
      EXPECT_GE(after.reserved, before.reserved);
      EXPECT_LE(after.reserved, before.reserved + high + 20_MiB);
      EXPECT_STREQ(memory.audit(), nullptr);
      if (!mapped) {
        EXPECT_LT(device.capacity() - device.used(), high + 20_MiB);
        continue;
      }
      const std::uint64_t calls = memory_calls(device);
      memory.deallocate(memory.allocate(low));
      EXPECT_EQ(memory_calls(device), calls);
    }
    for (void* const p : live) memory.deallocate(p);
  }
}

TEST(mapping_ahead, the_thread_maps_for_requests) {
  mapping_ahead<locked<caching_allocator<recipe_type, simulated_device>>> memory(
      {.low = 100_MiB, .high = 200_MiB}, simulated_device({.capacity = 4_GiB}));
  const auto await = [&memory](std::size_t bytes) {
    while (memory.current_usage().cached < bytes) std::this_thread::yield();
  };
  std::vector<void*> pages;
  for (int round = 0; round < 5; ++round) {
    await(200_MiB);
    for (int i = 0; i < 6; ++i) pages.push_back(memory.allocate(20_MiB));
  }
  EXPECT_TRUE(memory.has_worker());
  for (void* const p : pages) memory.deallocate(p);
  EXPECT_STREQ(memory.audit(), nullptr);
}

TEST(mapping_ahead, ends_while_the_device_is_full) {
  simulated_device device({.capacity = 100_MiB});
  pool other{device_ref(device)};
  void* const p = other.allocate(100_MiB);
  {
    ahead memory({.low = 20_MiB, .high = 40_MiB, .retry = std::chrono::microseconds(1)}, device_ref(device));
    while (memory.refusals() < 2) std::this_thread::yield();
  }
  other.deallocate(p);
}

TEST(mapping_ahead, several_threads_allocate_meanwhile) {
  waiting<mapping_ahead<locked<caching_allocator<recipe_type, simulated_device>>>> memory(
      std::chrono::milliseconds(0),
      mapping_ahead<locked<caching_allocator<recipe_type, simulated_device>>>::watermarks{
          .low = 20_MiB, .high = 60_MiB, .retry = std::chrono::microseconds(10)},
      simulated_device({.capacity = 300_MiB}));
  std::vector<std::thread> threads;
  for (unsigned id = 0; id < 3; ++id) {
    threads.emplace_back([&memory, id] {
      std::mt19937 random(id);
      for (int step = 0; step < 300; ++step) {
        void* const p = memory.try_allocate(1 + random() % 60_MiB);
        if (step % 30 == 0) memory.trim();
        memory.deallocate(p);
      }
    });
  }
  for (std::thread& one : threads) one.join();
  EXPECT_STREQ(memory.audit(), nullptr);
}

TEST(mapping_ahead, a_forked_process_ends) {
  simulated_device device;
  const pid_t child = [&] {
    ahead memory({.low = 20_MiB, .high = 40_MiB}, device_ref(device));
    while (memory.current_usage().cached < 40_MiB) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // until the thread waits
    const pid_t made = ::fork();
    if (made != 0) return made;
    const bool works = memory.try_allocate(10_MiB) != nullptr;
    memory.~mapping_ahead();
    ::_exit(works ? 7 : 8);
  }();
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

/// The calls of the device for memory, by who made them, during a recorded program.
struct call_counts {
  std::uint64_t by_requests = 0, by_rounds = 0;
};
/// Replays a program with a round behind each event: a thread that is always in time.
template <typename Pool>
call_counts counts_of(const trace::program& source, Pool& memory, simulated_device& device, auto round) {
  call_counts counts;
  const auto run = [&] {
    counts.by_requests = memory_calls(device) - counts.by_rounds;
    round();
    counts.by_rounds = memory_calls(device) - counts.by_requests;
  };
  run();
  EXPECT_EQ(conformance::replay_on(memory, device, source, run), 0u);
  EXPECT_STREQ(memory.audit(), nullptr);
  return counts;
}

TEST(mapping_ahead, takes_the_calls_of_a_recorded_server_from_its_requests) {
  const std::string path = TESSERA_SHARED_DIR "/traces/llm_serve_batched.csv";
  const auto text = replay::read_file(path);
  if (!std::holds_alternative<std::string>(text)) GTEST_SKIP() << path << " is not here";
  const auto recorded = std::get<trace::recording>(trace::read_csv(std::get<std::string>(text), path));
  const trace::program source(recorded);
  constexpr simulated_device::options server{.capacity = 16_GiB};
  const ahead::watermarks marks{.low = 200_MiB, .high = 400_MiB, .enabled = false};
  {
    simulated_device device(server);
    ahead memory(marks, device_ref(device));
    const call_counts without = counts_of(source, memory, device, [] {});
    EXPECT_EQ(without.by_requests, 293u);
  }
  {
    simulated_device device(server);
    ahead memory(marks, device_ref(device));
    const call_counts large = counts_of(source, memory, device, [&] { (void)memory.map_ahead(); });
    EXPECT_EQ(large.by_requests, 37u);  // of small blocks, which have a pool of their own
    EXPECT_EQ(large.by_rounds, 316u);
  }
  simulated_device device(server);
  mapping_ahead<ahead> memory({.low = 1_MiB, .high = 1_MiB, .enabled = false}, marks, device_ref(device));
  const call_counts both = counts_of(source, memory, device, [&] {
    (void)memory.map_ahead();
    (void)memory.inner().map_ahead();
  });
  EXPECT_EQ(both.by_requests, 0u);
  EXPECT_EQ(both.by_rounds, 353u);
}

}  // namespace
