// SPDX-License-Identifier: Apache-2.0
// Threads with streams of their own follow one plan, and free each other's blocks.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../unit/plan/recorded_steps.hpp"
#include "planned_model.hpp"

namespace {

using namespace tessera;
using namespace conformance::plans;

/// Blocks of host memory. Their first and last bytes name their owner.
struct signed_blocks {
  static bool claim(void* p, std::size_t bytes, std::uint8_t owner) {
    std::memset(p, owner, 1);
    std::memset(static_cast<std::byte*>(p) + bytes - 1, owner, 1);
    return true;
  }
  static bool drop(const void* p, std::size_t bytes, std::uint8_t owner) {
    const auto* const at = static_cast<const std::uint8_t*>(p);
    return at[0] == owner && at[bytes - 1] == owner;
  }
};
/// Blocks without contents.
struct listed_blocks {
  std::mutex mutex;
  conformance::ownership owned;
  bool claim(void* p, std::size_t bytes, std::uint8_t) {
    const std::lock_guard lock(mutex);
    return owned.claim(p, bytes);
  }
  bool drop(void* p, std::size_t, std::uint8_t) {
    const std::lock_guard lock(mutex);
    owned.drop(p);
    return true;
  }
};

struct block {
  void* address;
  std::size_t bytes;
  std::uint8_t owner;
};

/// Blocks that any thread may free.
class shared_blocks {
 public:
  void put(const block& b) {
    const std::lock_guard lock(mutex_);
    left_.push_back(b);
  }
  [[nodiscard]] std::optional<block> take() {
    const std::lock_guard lock(mutex_);
    if (left_.empty()) return {};
    const block found = left_.back();
    left_.pop_back();
    return found;
  }

 private:
  std::mutex mutex_;
  std::vector<block> left_;
};

constexpr std::size_t threads = 3;

/// Threads repeat the steps of a program, each on a stream of its own, and deviate now and then.
template <typename Pool, typename Blocks>
class crowd {
 public:
  crowd(Pool& pool, std::vector<stream_id> streams) : pool_(pool), streams_(std::move(streams)) {}

  void run(const script& program, std::size_t operations, std::uint64_t seed) {
    std::vector<std::thread> all;
    for (std::size_t t = 0; t < threads; ++t)
      all.emplace_back([&, t] { work(program, t, operations / threads, seed * threads + t); });
    for (std::thread& one : all) one.join();
    while (const std::optional<block> left = shared_.take()) free(*left, 0);
    EXPECT_EQ(wrong_.load(), 0u) << "blocks overlap";
    EXPECT_STREQ(pool_.audit(), nullptr);
    pool_.trim();
    const usage now = pool_.current_usage();
    EXPECT_EQ(now.active + now.reserved, 0u);
  }

 private:
  void work(const script& program, std::size_t number, std::size_t operations, std::uint64_t seed) {
    dice d(seed);
    const stream_id own = streams_[number];
    std::vector<std::pair<std::size_t, block>> live;  // with the request that each lives until
    const auto free_due = [&](std::size_t now) {
      for (std::size_t i = 0; i < live.size();) {
        if (live[i].first > now) {
          ++i;
          continue;
        }
        const block given = live[i].second;
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(i));
        d.one_in(20) ? shared_.put(given) : free(given, d.pick(3));
      }
    };
    for (std::size_t done = 0, number_of_step = 0; done < operations; ++number_of_step) {
      const bool is_exact = !d.one_in(3);
      if (d.one_in(2)) pool_.begin_step(0, own);
      for (const request& r : program.steps[number_of_step % program.steps.size()]) {
        free_due(done++);
        const std::size_t bytes = !is_exact && d.one_in(8) ? 1 + d.of_bits(16) : r.bytes;
        const block b{pool_.try_allocate(bytes, own), bytes, static_cast<std::uint8_t>(d.pick(256))};
        if (b.address == nullptr) continue;
        if (!blocks_.claim(b.address, b.bytes, b.owner)) ++wrong_;
        if (d.one_in(16)) (void)pool_.record_stream(b.address, streams_[d.pick(streams_.size())]);
        live.emplace_back(done + (!is_exact && d.one_in(8) ? d.pick(60) : r.life % 20), b);
        if (d.one_in(50)) disturb(d);
        if (d.one_in(8)) {
          if (const std::optional<block> left = shared_.take()) free(*left, d.pick(3));
        }
      }
    }
    free_due(~std::size_t{0});
  }
  void free(const block& b, std::size_t way) {
    if (!blocks_.drop(b.address, b.bytes, b.owner)) ++wrong_;
    if (way == 0) return pool_.deallocate(b.address);
    if (way == 1) return pool_.deallocate(b.address, b.bytes);
    if (!pool_.try_deallocate(b.address)) ++wrong_;
  }
  void disturb(dice& d) {
    switch (d.pick(7)) {
      case 0: return pool_.trim(d.one_in(2) ? 0 : 4_MiB);
      case 1: wrong_ += pool_.audit() != nullptr; return;
      case 2: (void)pool_.current_usage(); return;
      case 3: (void)pool_.statistics(); return;
      case 4: return pool_.reset_peak_statistics();
      case 5: pool_.begin_step(d.pick(5), streams_[d.pick(streams_.size())]); return;
      default: (void)pool_.metadata_bytes();
    }
  }

  Pool& pool_;
  std::vector<stream_id> streams_;
  Blocks blocks_;
  shared_blocks shared_;
  std::atomic<std::size_t> wrong_ = 0;
};

/// The plan of a program whose steps run on several streams at once.
plan::made_plan plan_of(script s) {
  for (step& of : s.steps) {
    step on_all;
    for (const request& r : of) {
      for (std::uint64_t t = 1; t <= threads; ++t) on_all.push_back({r.bytes, t, r.life % 20 * threads});
    }
    of = on_all;
  }
  s.order.clear();
  for (std::size_t i = 0; i < 6 * s.steps.size(); ++i) s.order.push_back(i % s.steps.size());
  return plan::make(s.record(), {.effort = 0.01, .reserved_without = unlimited});
}

template <typename Pool, typename Blocks, typename MakePool>
void run(std::vector<stream_id> streams, MakePool make) {
  const std::size_t wanted = operations(100'000), each = 6'000;
  std::uint64_t by_plan = 0;
  for (std::uint64_t seed = 1; seed * each <= wanted + each; ++seed) {
    const script program(seed);
    const plan::made_plan made = plan_of(program);
    ASSERT_STREQ(plan::find_fault(made.view()), nullptr);
    const auto pool = make(made.view());
    crowd<Pool, Blocks>(*pool, streams).run(program, each, seed);
    by_plan += pool->statistics().by_plan.requests;
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
  std::printf("%ju of about %ju requests by plan\n", std::uintmax_t{by_plan}, std::uintmax_t{wanted});
  EXPECT_GT(by_plan, wanted / 20);
}

template <typename Recipe>
using in_host_memory = planned<locked<caching_allocator<Recipe, provider_ref<host_pinned>>>>;

template <typename Pool>
void run_in_host_memory() {
  using provider = tessera::detail::device_of<Pool>;
  host_pinned device{host_pinned::options{.capacity = 256_MiB, .pin = host_pinned::pinning::never}};
  std::vector<stream_id> streams;
  for (std::size_t t = 0; t < threads; ++t) streams.push_back(device.create_stream());
  run<Pool, signed_blocks>(
      streams, [&device](const memory_plan& plan) { return std::make_unique<Pool>(plan, provider(device)); });
  const auto held = device.held();
  EXPECT_EQ(held.acquired + held.created + held.reserved + held.mapped, 0u);
}

TEST(planned_threads, share_a_plan_over_segments) { run_in_host_memory<in_host_memory<pytorch<>>>(); }
TEST(planned_threads, share_a_plan_over_ranges) {
  run_in_host_memory<in_host_memory<pytorch_family::expandable>>();
}
TEST(planned_threads, share_a_plan_in_one_segment) {
  run_in_host_memory<planned<locked<caching_allocator<pytorch<>, segments_of<host_pinned>>>>>();
}
// The device makes one call at a time.
TEST(planned_threads, share_a_plan_on_a_device_for_one_thread) {
  using pool = planned<locked<caching_allocator<stitched, provider_ref<simulated_device>>>>;
  static_assert(!tessera::detail::is_thread_safe<simulated_device>);
  simulated_device device({.capacity = 64_MiB, .page_granularity = 64_KiB});
  run<pool, listed_blocks>({stream_id{3}, stream_id{1}, stream_id{7}}, [&device](const memory_plan& plan) {
    return std::make_unique<pool>(plan, provider_ref(device));
  });
  EXPECT_EQ(device.used(), 0u);
}

// Work of a stream frees a block while trim() waits for that stream.
TEST(planned_threads, may_free_blocks_from_work_that_trim_waits_for) {
  plan_tests::recorder of;
  for (int i = 0; i < 10; ++i) of.step({5_MiB});
  const plan::made_plan made = plan_tests::make(of.made);
  planned<locked<caching_allocator<pytorch<>, host_pinned>>> memory(
      made.view(), host_pinned(host_pinned::options{.capacity = 64_MiB, .pin = host_pinned::pinning::never}));
  void* const by_plan = memory.allocate(5_MiB);
  void* const other = memory.allocate(9_MiB);
  std::atomic<bool> begin = false;
  memory.visit_provider([&](host_pinned& device) {
    device.submit(stream_id{}, [&] {
      while (!begin) std::this_thread::yield();
      memory.deallocate(other);
    });
  });
  memory.deallocate(by_plan);
  EXPECT_EQ(memory.statistics().by_plan.requests, 1u);
  std::thread later([&] { begin = true; });
  memory.trim();
  later.join();
  memory.trim();
  EXPECT_EQ(memory.current_usage().reserved, 0u);
}

// Work of a stream trims while a plan that steps aside waits for that stream. The plan then serves again.
TEST(planned_threads, keep_memory_given_out_after_a_trim_during_the_wait_of_a_plan_that_steps_aside) {
  plan_tests::recorder of;
  for (int i = 0; i < 10; ++i) of.step({5_MiB, 7_MiB});
  const plan::made_plan made = plan_tests::make(of.made);
  planned<locked<caching_allocator<pytorch_family::expandable, host_pinned>>> memory(
      made.view(), host_pinned(host_pinned::options{.capacity = 64_MiB, .pin = host_pinned::pinning::never}));
  void* const first = memory.allocate(5_MiB);
  std::atomic<bool> is_back = false;
  memory.visit_provider([&](host_pinned& device) {
    device.submit(stream_id{}, [&] {
      while (!memory.statistics().by_plan.is_aside) std::this_thread::yield();
      memory.trim_without_waiting();
      is_back = true;
    });
  });
  while (!is_back) memory.deallocate(memory.allocate(1000));
  void* const second = memory.allocate(7_MiB);
  ASSERT_EQ(memory.statistics().by_plan.requests, 2u);
  while (!memory.statistics().by_plan.is_aside) memory.deallocate(memory.allocate(1000));
  for (int i = 0; i < 200; ++i) memory.deallocate(memory.allocate(1000));
  EXPECT_GE(memory.statistics().by_plan.device_bytes.current, std::int64_t{12_MiB})
      << "live memory went back";
  memory.deallocate(first);
  memory.deallocate(second);
  memory.trim();
  EXPECT_EQ(memory.current_usage().reserved, 0u);
}

}  // namespace
