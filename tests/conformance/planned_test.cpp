// SPDX-License-Identifier: Apache-2.0
// Any plan is safe with any program and any recipe. Random programs are recorded and planned, and then run with
// deviations of every kind.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/plan/planned.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

#include "by_day.hpp"
#include "planned_model.hpp"
#include "shipped.hpp"

namespace {

using namespace tessera;
using conformance::any_device;
using conformance::watched_device;
using namespace conformance::plans;

/// The recipes that are tested by day, and one over a provider of segments alone.
std::vector<composition> compositions() {
  std::vector<composition> all{
      composed<pytorch<>, planned<caching_allocator<pytorch<>, segments_only, extension::private_pools>>>(
          "pytorch_over_segments")};
  conformance::for_each_by_day([&all]<typename Recipe>(const conformance::named<Recipe>& one) {
    all.push_back(composed<Recipe>(one.name));
  });
  return all;
}

plan::made_plan plan_of(const script& s, std::uint64_t seed) {
  dice d(seed);
  plan::make_options options{.effort = 0.01};
  options.alignment = std::uint32_t{64} << d.pick(6);
  const trace::recording recorded = s.record();
  if (d.one_in(2)) {
    options.reserved_without = unlimited;  // no stream is left out
    return plan::make(recorded, options);
  }
  if (d.one_in(4)) {
    options.first_event = d.pick(recorded.events.size());
    options.end_event = options.first_event + d.pick(recorded.events.size());
  }
  return plan::make(recorded, options);
}

/// Runs the case of a seed: a program, a plan and deviations.
std::string run_seed(const composition& what, std::uint64_t seed, std::size_t operations, served& all) {
  const script program(seed);
  dice d(seed + 1);
  deviations how;
  how.none = d.one_in(8);
  how.has_scopes = d.one_in(3);
  if (!how.none) {
    how.stays_aside = d.one_in(3);
    const std::size_t capacities[] = {1_MiB, 8_MiB, 44_MiB, 160_MiB, 4_GiB};
    how.capacity = capacities[d.pick(std::size(capacities))];
    if (d.one_in(4)) how.fails = 2 + d.pick(30);
  }
  // Without deviations, the plan is the program's own.
  plan::made_plan made = !how.none && d.one_in(6) ? plan_of(script(seed + 2), seed) : plan_of(program, seed);
  if (const char* const fault = plan::find_fault(made.view()))
    return std::string("a plan has a fault: ") + fault;
  if (!how.none && d.one_in(2)) {
    for (int tries = 0; tries < 20; ++tries) {
      plan::made_plan changed = made;
      mutate(changed, d);
      if (plan::find_fault(changed.view()) == nullptr) made = std::move(changed);
    }
  }
  return run_of(what, program, made.view(), how, seed + 3).run(operations, all);
}

class planned_programs : public testing::TestWithParam<composition> {};
std::string name_of(const testing::TestParamInfo<composition>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(recipes, planned_programs, testing::ValuesIn(compositions()), name_of);

TEST_P(planned_programs, are_served_safely) {
  const std::size_t wanted = operations(20'000);
  const char* const said = std::getenv("TESSERA_SEED");
  served all;
  for (std::uint64_t seed = said != nullptr ? std::strtoull(said, nullptr, 10) : 1; all.operations < wanted;
       seed += 10)
    ASSERT_EQ(run_seed(GetParam(), seed, 1000, all), "") << "seed " << seed;
  std::printf("%ju operations: %ju by plan, %ju not, %ju occupied, %ju failed, %ju refused plans\n",
              std::uintmax_t{all.operations}, std::uintmax_t{all.by_plan}, std::uintmax_t{all.unplanned},
              std::uintmax_t{all.occupied}, std::uintmax_t{all.failed}, std::uintmax_t{all.refused_plans});
  // A plan steps aside after 100 requests of which too few are its own, so it serves few of these programs' requests.
  EXPECT_GT(all.by_plan, all.operations / 20);
  EXPECT_GT(all.occupied, 0u);
  EXPECT_GT(all.unplanned, 0u);
}

// Each call of a short run fails in turn. Afterwards everything still goes back to the device.
TEST_P(planned_programs, survive_a_failure_of_any_call) {
  for (std::uint64_t seed : {3u, 8u, 21u}) {
    const script program(seed);
    const plan::made_plan made = plan_of(program, seed);
    deviations how;
    how.capacity = 24_MiB;
    constexpr std::uint64_t every = by_day(11, 1);
    for (std::uint64_t k = 1 + seed % every, made_calls = k; k <= made_calls; k += every) {
      run_of run(GetParam(), program, made.view(), how, seed);
      run.device().fail({{k, k}});
      run.play(300);
      made_calls = std::min<std::uint64_t>(run.device().made(), 400);
      run.device().fail({});
      served all;
      ASSERT_EQ(run.run(600, all), "") << "seed " << seed << " with call " << k << " failing";
    }
  }
}
// A call of the destructor fails. The rest is memory whose release failed, as in other allocators.
TEST_P(planned_programs, leak_only_memory_whose_release_failed) {
  const script program(3);
  const plan::made_plan made = plan_of(program, 3);
  const deviations how;
  bool any_failed = true;
  for (std::uint64_t k = 1; any_failed; k += by_day(3, 1)) {
    run_of run(GetParam(), program, made.view(), how, 3);
    run.play(300);
    watched_device& device = run.device();
    device.fail({{k, k}});
    run.end();
    ASSERT_EQ(device.held().named + device.held().mapped, 0u) << "with call " << k << " failing";
    ASSERT_EQ(device.used(), device.segments_refused()) << "with call " << k << " failing";
    ASSERT_EQ(device.held().reserved, device.ranges_refused()) << "with call " << k << " failing";
    any_failed = device.calls().failed > 0;
  }
}

// Real bytes. A block is written, and work of streams reads it after the free. Recipes for host memory let the
// program write a block that no stream was recorded for. Under the others, work of the block's stream writes it.

/// Runs a program in host memory. Counts the reads that find other bytes than were written.
class host_run {
 public:
  host_run(const composition& what, const script& of, const memory_plan& plan, std::uint64_t seed)
      : what_(what), of_(of), dice_(seed), pool_(what.over_any(plan, any_device(any_))) {}

  /// Returns the number of wrong reads.
  std::size_t run(std::size_t operations) {
    for (std::size_t number = 0; made_ < operations; ++number) {
      const step& s = of_.steps[of_.order[number % of_.order.size()]];
      for (const request& r : s) {
        while (!due_.empty() && due_.begin()->first <= made_) free_first();
        make(r);
      }
    }
    while (!due_.empty()) free_first();
    for (const stream_id stream : streams_) device_.synchronize(stream);
    return wrong_.load();
  }
  [[nodiscard]] plan_usage by_plan() { return pool_->by_plan(); }
  [[nodiscard]] std::size_t reads() const { return reads_; }

 private:
  struct block {
    planned_memory::block at;
    std::size_t bytes;
  };
  static void write(void* p, std::size_t bytes, std::uint8_t mark) {
    std::memset(p, mark, 1);
    std::memset(static_cast<std::byte*>(p) + bytes - 1, mark, 1);
  }

  void make(const request& r) {
    const stream_id own = streams_[r.stream];
    const block b{pool_->allocate(r.bytes, own, false), r.bytes};
    const auto mark = static_cast<std::uint8_t>(1 + made_++ % 251);
    ASSERT_NE(b.at.address, nullptr);
    if (what_.waits_all()) {
      write(b.at.address, b.bytes, mark);
    } else {
      device_.submit(own, [b, mark] { write(b.at.address, b.bytes, mark); });
    }
    // One block in two is read by two streams.
    for (int reader = 0; reader < 2 && dice_.one_in(2); ++reader) {
      const stream_id by = streams_[dice_.pick(streams_.size())];
      if (!what_.waits_all() && by != own) device_.synchronize(own);
      device_.submit(by, [this, b, mark] {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        const auto* const at = static_cast<const std::uint8_t*>(b.at.address);
        if (at[0] != mark || at[b.bytes - 1] != mark) ++wrong_;
      });
      ++reads_;
      if (what_.delays(own, by)) {
        EXPECT_TRUE(pool_->record(b.at, by));
      } else if (by != own) {
        device_.synchronize(by);  // the recipe leaves it to the program
      }
    }
    due_.emplace(made_ + r.life % 40, b);
  }
  void free_first() {
    const block b = due_.begin()->second;
    due_.erase(due_.begin());
    pool_->free(b.at);
  }

  const composition& what_;
  const script& of_;
  dice dice_;
  host_pinned device_{host_pinned::options{.capacity = 512_MiB, .pin = host_pinned::pinning::never}};
  std::vector<stream_id> streams_{stream_id{0}, device_.create_stream(), device_.create_stream()};
  conformance::calls_of<provider_ref<host_pinned>> any_{device_};
  std::unique_ptr<planned_memory> pool_;
  std::multimap<std::size_t, block> due_;  // by the request that they live until
  std::size_t made_ = 0, reads_ = 0;
  std::atomic<std::size_t> wrong_{0};
};

class planned_host_programs : public testing::TestWithParam<composition> {};
std::vector<composition> compositions_for_any_device() {
  std::vector<composition> all = compositions();
  std::erase_if(all, [](const composition& what) { return what.over_any == nullptr; });
  return all;
}
INSTANTIATE_TEST_SUITE_P(recipes, planned_host_programs, testing::ValuesIn(compositions_for_any_device()),
                         name_of);

TEST_P(planned_host_programs, keep_their_bytes) {
  const composition& what = GetParam();
  std::uint64_t planned = 0;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const script program(seed);
    const plan::made_plan made =
        plan::make(program.record(), {.effort = 0.01, .reserved_without = unlimited});
    host_run run(what, program, made.view(), seed);
    EXPECT_EQ(run.run(300), 0u) << "wrong bytes of " << run.reads() << " reads, seed " << seed;
    planned += run.by_plan().requests;
  }
  EXPECT_GT(planned, 100u);
}

// Pinned memory is written by the program itself. So a block waits for a recorded use even on its own stream.
TEST(planned_pinned, keeps_pinned_memory_until_recorded_work_has_read_it) {
  using pinned_pool = caching_allocator<pytorch_pinned<>, provider_ref<host_pinned>>;
  host_pinned device({.capacity = 64_MiB, .pin = host_pinned::pinning::never});
  trace::recording recorded{"batches", {}};
  for (std::uint64_t id = 0; id < 10; ++id) {
    recorded.events.push_back({trace::event::kind::allocate, id, 1_MiB});
    recorded.events.push_back({trace::event::kind::free, id});
  }
  const plan::made_plan made = plan::make(recorded, {.effort = 0.01});
  planned<pinned_pool> memory(made.view(), provider_ref(device));
  std::atomic<int> wrong = 0;
  for (unsigned char batch = 1; batch <= 12; ++batch) {
    auto* const p = static_cast<unsigned char*>(memory.allocate(1_MiB));
    std::memset(p, batch, 1_MiB);
    device.submit(stream_id{0}, [p, batch, &wrong] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (p[0] != batch || p[1_MiB - 1] != batch) ++wrong;
    });
    ASSERT_TRUE(memory.record_stream(p, stream_id{0}));
    memory.deallocate(p);
  }
  device.synchronize(stream_id{0});
  EXPECT_EQ(wrong.load(), 0) << "of 12 batches";
  EXPECT_GT(memory.statistics().by_plan.requests, 0u);
  EXPECT_GT(memory.statistics().by_plan.unplanned_requests, 0u);
  memory.trim();
  memory.begin_step();
  memory.deallocate(memory.allocate(1_MiB));
  EXPECT_EQ(memory.current_usage().pending(), 0u);
}

// The judge finds planted errors.

using plain = planned<caching_allocator<pytorch<>, provider_ref<watched_device>, extension::private_pools>>;

/// Forgets which streams use a block.
struct forgetful : plain {
  using plain::plain;
  using plain::record_stream;
  bool record_stream(void*, stream_id) noexcept { return true; }
};
/// Forgets uses by stream 0 of its own blocks, among others, which delay the reuse of host memory.
using host_plain = planned<caching_allocator<pinned, any_device, extension::private_pools>>;
struct forgetful_of_one : host_plain {
  using host_plain::host_plain;
  using host_plain::record_stream;
  bool record_stream(void* p, stream_id by) noexcept {
    return by == stream_id{0} || host_plain::record_stream(p, by);
  }
};
/// Serves some requests at the address of the latest block.
struct overlapping : plain {
  using plain::plain;
  void* try_allocate(std::size_t bytes, stream_id stream) noexcept {
    if (++calls % 100 == 0) return latest;
    return latest = plain::try_allocate(bytes, stream);
  }
  std::size_t calls = 0;
  void* latest = nullptr;
};
/// Returns memory of the plan while it is in use.
struct hasty : plain {
  using plain::plain;
  void evict_idle() noexcept {
    watched_device& device = provider().inner();
    if (device.pieces().empty()) return;
    const watched_device::piece first = device.pieces().begin()->second;
    if (first.at != 0) (void)device.unmap(reinterpret_cast<void*>(first.at), first.bytes);
  }
};

/// Returns the first finding of the judge about an allocator with a planted error, of several runs.
template <typename Pool, typename Recipe = pytorch<>, typename Harm>
std::string first_finding(Harm harm, std::uint64_t seeds = 100) {
  const composition what = composed<Recipe, Pool>("with an error");
  for (std::uint64_t seed = 1; seed < seeds; ++seed) {
    const script program(seed);
    plan::made_plan made = plan_of(program, seed);
    const deviations how;
    run_of run(what, program, made.view(), how, seed + 3);
    harm(made);
    served all;
    if (const std::string found = run.run(2000, all); !found.empty())
      return found.substr(0, found.find(" at operation"));
  }
  return "nothing";
}
TEST(planned_judge, finds_planted_errors) {
  const auto nothing = [](plan::made_plan&) {};
  EXPECT_EQ(first_finding<plain>(nothing, by_day(8, 100)), "nothing");
  EXPECT_EQ(first_finding<forgetful>(nothing), "a block is reused that another stream still uses");
  EXPECT_EQ((first_finding<host_plain, pinned>(nothing, by_day(8, 100))), "nothing");
  const std::string forgotten = first_finding<forgetful_of_one, pinned>(nothing);
  EXPECT_TRUE(forgotten == "a block is reused that another stream still uses" ||
              forgotten == "a segment goes that another stream still uses")
      << forgotten;
  EXPECT_EQ(first_finding<overlapping>(nothing), "a block overlaps one in use");
  const std::string hasty_finding = first_finding<hasty>(nothing);
  EXPECT_TRUE(hasty_finding == "the memory of a live block went back to the device" ||
              hasty_finding == "a block is not in memory that the device gave")
      << hasty_finding;
}
// The follower reads the deaths while it runs. If they lie, it gives out places that are in use.
TEST(planned_judge, finds_a_follower_that_compares_too_little) {
  const auto forget_deaths = [](plan::made_plan& made) {
    std::uint32_t begin = 0;
    for (std::uint32_t i = 0; i < made.entries.size(); ++i) {
      for (std::uint32_t d = begin; d < made.entries[i].deaths; ++d) made.deaths[d] = i;
      begin = made.entries[i].deaths;
    }
  };
  EXPECT_EQ(first_finding<plain>(forget_deaths), "a block overlaps one in use");
}

}  // namespace
