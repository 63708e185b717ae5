// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/policy/eviction.hpp>
#include <tessera/policy/streams.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/pinned.hpp>
#include <tessera/recipe/pytorch_2_14.hpp>
#include <tessera/recipe/symmetric.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/recording.hpp>
#include "by_day.hpp"
#include "operations.hpp"
#include "tessera_replay/files.hpp"
#include "tessera_replay/lifetimes.hpp"

// Ranks of one job: the same requests in each, other addresses, and work that ends at other times.
namespace {

using namespace tessera;

/// Where a block lies: in which segment, counted in the order of growth, and where in it.
struct place {
  std::size_t segment, offset;
  bool operator==(const place&) const = default;
};

/// The segments that an allocator has now, numbered in the order of growth.
class numbered_segments {
 public:
  void on(const allocator_event& e) noexcept {
    using action = allocator_event::action;
    if (e.what == action::segment_alloc) segments_[e.address] = ++count_;
    if (e.what == action::segment_free) segments_.erase(e.address);
  }
  [[nodiscard]] place of(const void* p) const {
    const auto at = reinterpret_cast<std::uintptr_t>(p);
    const auto& [begin, number] = *std::prev(segments_.upper_bound(at));
    return {number, at - begin};
  }

 private:
  std::map<std::uintptr_t, std::size_t> segments_;
  std::size_t count_ = 0;
};

/// A step of a program that all ranks run.
struct step {
  enum class kind : unsigned char { allocate, free, record, process, trim };
  kind what;
  std::size_t block = 0;  // number of the allocation
  std::size_t bytes = 0;
  stream_id stream{};
};

/// A recorded program, in which each third block is also used by another stream, with a boundary of a step now and then.
std::vector<step> job_of(const trace::recording& recorded, std::uint64_t seed) {
  const trace::program program(recorded);
  std::mt19937_64 random(seed);
  std::vector<step> job;
  std::map<std::size_t, stream_id> owners;
  for (std::size_t i = 0; i < program.events().size(); ++i) {
    const trace::event& e = program.events()[i];
    const std::size_t block = program.slot(i);
    if (e.what == trace::event::kind::allocate) {
      owners[block] = e.stream;
      job.push_back({step::kind::allocate, block, e.bytes, e.stream});
      if (random() % 3 == 0) job.push_back({step::kind::record, block, 0, stream_id{e.stream.handle + 1}});
    }
    if (e.what == trace::event::kind::record_stream) job.push_back({step::kind::record, block, 0, e.stream});
    if (e.what == trace::event::kind::free) job.push_back({step::kind::free, block});
    if (random() % 1'000 == 0) job.push_back({step::kind::process});
    if (random() % 5'000 == 0) job.push_back({step::kind::trim, 0, program.peak_live() / 2});
  }
  return job;
}

/// Runs a job as one rank, and returns the place of each block. Recipes with a garbage collection need a limit for it.
template <typename Recipe>
std::vector<place> run(const std::vector<step>& job, std::uint64_t rank, std::size_t limit = unlimited) {
  using watch = extension::observer<numbered_segments>;
  caching_allocator<Recipe, simulated_device, watch> pool{
      simulated_device{simulated_device::options{.address_seed = rank}}};
  if constexpr (requires { pool.policies().growth.limit; })
    pool.policies().growth.limit = memory_limit(limit);
  std::mt19937_64 random(rank);
  std::map<std::size_t, void*> live;
  std::vector<place> places;
  for (const step& s : job) {
    pool.provider().advance(random() % 100'000);
    if (random() % 4 == 0) pool.provider().submit(stream_id{random() % 4}, random() % 4'000'000);
    switch (s.what) {
      case step::kind::allocate: {
        void* const p = live[s.block] = pool.try_allocate(s.bytes, s.stream);
        if (p == nullptr) return {};
        places.push_back(
            pool.template get<watch>().with([p](const auto& segments) { return segments.of(p); }));
        break;
      }
      case step::kind::free: pool.deallocate(std::exchange(live[s.block], nullptr)); break;
      case step::kind::record: (void)pool.record_stream(live[s.block], s.stream); break;
      case step::kind::process: (void)pool.process_events(); break;
      case step::kind::trim: pool.trim(s.bytes); break;
    }
  }
  EXPECT_EQ(pool.audit(), nullptr);
  return places;
}

/// The places that differ between rank 1 and any of seven others.
template <typename Recipe>
std::size_t differing(const std::vector<step>& job, std::size_t limit = unlimited) {
  const std::vector<place> first = run<Recipe>(job, 1, limit);
  EXPECT_FALSE(first.empty());
  std::size_t count = 0;
  for (std::uint64_t rank = 2; rank <= 8; ++rank) {
    const std::vector<place> other = run<Recipe>(job, rank, limit);
    EXPECT_EQ(other.size(), first.size());
    for (std::size_t i = 0; i < std::min(first.size(), other.size()); ++i) count += first[i] != other[i];
  }
  return count;
}

trace::recording read(const std::string& path) {
  const auto text = replay::read_file(path);
  auto made = replay::read_text_trace(std::get<std::string>(text), path);
  return std::move(std::get<trace::recording>(made));
}

TEST(symmetric, places_alike_in_eight_ranks) {
  std::vector<std::string> paths;
  for (const std::string& folder : {std::string(TESSERA_TESTS_DIR) + "/../examples/traces",
                                    std::string(TESSERA_SHARED_DIR) + "/traces"}) {
    if (!std::filesystem::exists(folder)) continue;
    for (const auto& file : std::filesystem::directory_iterator(folder)) {
      const std::string name = file.path().filename().string();
      if (name.ends_with(".csv") && std::count(name.begin(), name.end(), '.') == 1)
        paths.push_back(file.path().string());
    }
  }
  ASSERT_GE(paths.size(), 4u);
  std::size_t otherwise = 0;
  std::size_t collected = 0;
  for (const std::string& path : paths) {
    trace::recording recorded = read(path);
    const std::size_t replayed = operations_or(by_day(6'000, 30'000));
    if (recorded.events.size() > replayed) recorded.events.resize(replayed);
    const std::vector<step> job = job_of(recorded, 7);
    using namespace recipe;
    EXPECT_EQ(differing<symmetric<pytorch<>>>(job), 0u) << path;
    using collecting = symmetric<pytorch<"max_split_size_mb:64,garbage_collection_threshold:0.5">>;
    const std::size_t limit = 2 * trace::program(recorded).peak_live();
    EXPECT_EQ(differing<collecting>(job, limit), 0u) << path;
    collected += run<collecting>(job, 1, limit) != run<collecting>(job, 1);
    EXPECT_EQ(differing<symmetric<pytorch_2_14<>>>(job), 0u) << path;
    EXPECT_EQ(differing<symmetric<power_of_two>>(job), 0u) << path;
    otherwise += differing<pytorch<>>(job);
    otherwise += differing<with<pytorch<>, policy::wait_for_events<policy::reuse_on_same_stream>>>(job);
  }
  EXPECT_GT(collected, 0u) << "the garbage collection changed nothing";
  EXPECT_GT(otherwise, 1'000u) << "the ranks hardly differ, so the test shows nothing";
}

TEST(wait_for_events, frees_pending_blocks_after_a_miss_and_when_asked) {
  using waiting = recipe::with<recipe::pytorch<>, policy::wait_for_events<policy::reuse_on_same_stream>>;
  caching_allocator<waiting, simulated_device> pool;
  const stream_id other{1};
  const auto freed_while_used = [&](std::size_t bytes) {
    void* const p = pool.allocate(bytes);
    EXPECT_TRUE(pool.record_stream(p, other));
    pool.provider().submit(other, 1'000'000'000);
    pool.deallocate(p);
    return p;
  };
  void* const p = freed_while_used(5_MiB);
  pool.provider().advance(2'000'000'000);
  void* const hit = pool.allocate(5_MiB);
  EXPECT_NE(hit, p) << "the event completed, but a hit must not know";
  EXPECT_NE(pool.allocate(10_MiB), nullptr);  // the rest of the segment
  EXPECT_EQ(pool.allocate(5_MiB), p);

  void* const late = freed_while_used(30_MiB);
  const std::uint64_t start = pool.provider().now_ns();
  EXPECT_EQ(pool.allocate(30_MiB), late);
  EXPECT_GE(pool.provider().now_ns() - start, 900'000'000u) << "the miss waited for the stream";
  (void)freed_while_used(40_MiB);
  EXPECT_EQ(pool.current_usage().pending(), 40_MiB);
  EXPECT_TRUE(pool.process_events());
  EXPECT_EQ(pool.current_usage().pending(), 0u);
}

}  // namespace
