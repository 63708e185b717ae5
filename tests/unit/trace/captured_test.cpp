// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/any_allocator.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/debug/thread_checked.hpp>
#include <tessera/extension/checkpoints.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/interop/aligned_request.hpp>
#include <tessera/interop/paddle_passes.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/observe/report.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/captured.hpp>
#include <tessera/trace/csv.hpp>
#include <tessera/trace/recording.hpp>

#include "../../by_day.hpp"
#include "../../replay/recording_lines.hpp"
#include "../interop/host_pools.hpp"

namespace {

using namespace tessera;
using extension::pool_scope, extension::private_pool, extension::scope_kind, extension::sleep_contents,
    extension::stream_filter;
using recording_lines::line;
using shape_tests::packed_tightly;
using trace::captured;
using trace::event;
using trace::program;
using trace::recording;
using kind = event::kind;

constexpr std::size_t page = 4096;
constexpr std::uint64_t no_stream = ~std::uint64_t{0};

using plain =
    caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::checkpoints>;
using ranges = caching_allocator<pytorch_family::expandable, simulated_device, extension::private_pools,
                                 extension::sleep_mode>;
using tight = caching_allocator<packed_tightly, simulated_device>;
using shared = locked<plain>;
using streamed = per_stream<plain>;

template <typename Pool>
concept frees_handles = requires(Pool& pool, block_handle h) {
  pool.deallocate(h);
  pool.allocate_by_handle(1);
};
static_assert(frees_handles<captured<shared>> && !frees_handles<captured<streamed>>);
struct made_of_a_number : plain {
  explicit made_of_a_number(int) {}
};
static_assert(!std::is_default_constructible_v<captured<made_of_a_number>>);

/// The recording of a program, after it was written to a file and read again.
template <typename Pool>
recording written_and_read(const Pool& pool) {
  const auto read = trace::read_csv(trace::to_csv(pool.recorded()), "captured");
  if (const auto* const error = std::get_if<trace::input_error>(&read)) {
    ADD_FAILURE() << error->text();
    return {};
  }
  return std::get<recording>(read);
}
template <typename Pool>
std::vector<line> lines_of(const Pool& pool) {
  EXPECT_TRUE(pool.is_complete());
  return recording_lines::lines(written_and_read(pool));
}
/// The statistics of an allocator, without its host memory.
template <typename Pool>
std::string statistics_of(Pool& pool) {
  memory_report report(pool);
  report.metadata_bytes = 0;  // blocks by handle have no entry
  return report.json();
}
/// Replays what was recorded on another allocator, and compares the statistics.
template <typename Inner, typename Pool>
void expect_same_on_replay(Pool& pool) {
  const recording read = written_and_read(pool);
  Inner other;
  EXPECT_EQ(trace::replay(program(read), other), 0u);
  EXPECT_EQ(other.current_usage(), pool.current_usage());
  EXPECT_EQ(statistics_of(other), statistics_of(pool));
  EXPECT_EQ(other.audit(), nullptr);
}

/// Makes random requests of every kind.
template <typename Pool>
class random_program {
 public:
  explicit random_program(Pool& pool) : pool_(pool) {}
  void run(int calls) {
    for (int i = 0; i < calls; ++i) {
      if (i % 100 == 0) pool_.begin_step(static_cast<std::uint64_t>(i / 100));
      if (i % 333 == 332) pool_.trim();
      if (live_.empty() || random_() % 5 < 3) {
        allocate();
      } else if (random_() % 5 == 0) {
        use(live_[random_() % live_.size()]);
      } else {
        std::swap(live_[random_() % live_.size()], live_.back());
        free(live_.back());
        live_.pop_back();
      }
    }
  }
  void free_all() {
    for (const block& b : live_) free(b);
    live_.clear();
  }

 private:
  enum class way : unsigned char { by_address, by_handle, aligned };
  struct block {
    way how;
    void* p;
    block_handle h;
    std::size_t bytes;
  };
  void allocate() {
    const std::size_t bytes = 1 + (random_() % 8 == 0 ? random_() % 30_MiB : random_() % 5000);
    const stream_id stream{random_() % 3};
    block made{static_cast<way>(random_() % 3), nullptr, {}, bytes};
    if (made.how == way::aligned) {
      made.p = aligned_request(bytes, page).allocate(pool_, stream);
    } else if (made.how == way::by_address || !frees_handles<Pool>) {
      made.how = way::by_address;
      made.p = random_() % 2 == 0 ? pool_.allocate(bytes, stream) : pool_.try_allocate(bytes, stream);
    } else if constexpr (frees_handles<Pool>) {
      made.h = pool_.allocate_by_handle(bytes, stream);
    }
    live_.push_back(made);
  }
  void use(const block& b) {
    const stream_id stream{random_() % 3};
    if (b.how == way::aligned) {
      EXPECT_TRUE(aligned_request(b.bytes, page).record_stream(pool_, b.p, stream));
    } else if (b.how == way::by_address) {
      EXPECT_TRUE(random_() % 2 == 0 ? pool_.record_stream(b.p, stream)
                                     : pool_.try_record_stream(b.p, stream));
    } else if constexpr (frees_handles<Pool>) {
      EXPECT_TRUE(pool_.record_stream(b.h, stream));
    }
  }
  void free(const block& b) {
    if constexpr (frees_handles<Pool>) {
      if (b.how == way::by_handle) return pool_.deallocate(b.h);
    }
    if (b.how == way::aligned) return aligned_request(b.bytes, page).deallocate(pool_, b.p);
    const auto chosen = random_() % 3;
    if (chosen == 0) return pool_.deallocate(b.p);
    if (chosen == 1) return pool_.deallocate(b.p, b.bytes);
    EXPECT_TRUE(pool_.try_deallocate(b.p));
  }

  Pool& pool_;
  std::mt19937 random_{7};
  std::vector<block> live_;
};

template <typename Inner>
struct captured_over : testing::Test {};
using kinds = types_by_day<5, plain, caching_allocator<stitched, simulated_device>, shared,
                           caching_allocator<cuda_async, simulated_device>, ranges, tight, streamed,
                           thread_checked<plain>, waiting<shared>, tagged<plain>, captured<plain>>;
TYPED_TEST_SUITE(captured_over, kinds);

TYPED_TEST(captured_over, records_a_program_that_replays_with_the_same_statistics) {
  captured<TypeParam> pool;
  random_program<captured<TypeParam>> running(pool);
  running.run(2000);
  EXPECT_TRUE(pool.is_complete());
  EXPECT_EQ(pool.audit(), nullptr);
  expect_same_on_replay<TypeParam>(pool);
  running.free_all();
  expect_same_on_replay<TypeParam>(pool);
}

TEST(captured, records_each_call_as_an_event) {
  captured<plain> pool;
  pool.begin_step();
  void* const p = pool.allocate(1000);
  void* const q = pool.try_allocate(3_MiB, stream_id{2});
  const block_handle h = pool.allocate_by_handle(500, stream_id{1});
  EXPECT_TRUE(pool.record_stream(p, stream_id{2}));
  EXPECT_TRUE(pool.try_record_stream(q, stream_id{1}));
  EXPECT_TRUE(pool.record_stream(h, stream_id{1})) << "its own stream";
  pool.begin_step(77);
  pool.deallocate(p);
  pool.deallocate(h);
  EXPECT_TRUE(pool.try_deallocate(q));
  pool.trim();
  const std::vector<line> expected{{'m', 0, 0, 0},    {'a', 0, 1000, 0}, {'a', 1, 3_MiB, 2}, {'a', 2, 500, 1},
                                   {'r', 0, 0, 2},    {'r', 1, 0, 1},    {'r', 2, 0, 1},     {'m', 77, 0, 0},
                                   {'f', 0, 1000, 0}, {'f', 2, 500, 0},  {'f', 1, 3_MiB, 0}, {'c', 0, 0, 0}};
  EXPECT_EQ(lines_of(pool), expected);
  EXPECT_EQ(pool.recorded("name").name, "name");
  EXPECT_EQ(pool.recorded().events.size(), expected.size());
}

TEST(captured, records_no_call_that_does_nothing) {
  captured<plain> pool(simulated_device({.capacity = 4_MiB}));
  EXPECT_EQ(pool.allocate(0), nullptr);
  EXPECT_FALSE(pool.allocate_by_handle(0));
  EXPECT_THROW((void)pool.allocate(8_MiB), out_of_memory);
  EXPECT_EQ(pool.try_allocate(8_MiB), nullptr);
  EXPECT_EQ(aligned_request(8_MiB, page).try_allocate(pool, {}), nullptr);
  EXPECT_FALSE(pool.allocate_by_handle(8_MiB));
  pool.deallocate(nullptr);
  pool.deallocate(nullptr, 0);
  pool.deallocate(block_handle{});
  EXPECT_FALSE(pool.try_deallocate(&pool));
  EXPECT_FALSE(pool.record_stream(nullptr, stream_id{1}));
  EXPECT_FALSE(pool.try_record_stream(&pool, stream_id{1}));
  EXPECT_FALSE(pool.reuse_in_place(&pool, 100, {}));
  auto pools = pool.get<extension::private_pools>();
  EXPECT_FALSE(pools.retain(pool_id{9}));
  EXPECT_FALSE(pools.release(pool_id{}));
  EXPECT_FALSE(pools.open(pool_id{9}, extension::scope_kind::capture));
  EXPECT_FALSE(pools.close(pool_id{9}));
  pools.trim(pool_id{});
  EXPECT_TRUE(pool.recorded().events.empty());
  EXPECT_TRUE(pool.is_complete());
}

TEST(captured, records_the_peak_of_the_program) {
  captured<plain> pool;
  std::vector<void*> live;
  for (const std::size_t mib : {3u, 9u, 1u}) live.push_back(pool.allocate(mib << 20));
  for (void* const p : live) pool.deallocate(p);
  (void)pool.allocate(5_MiB);
  const recording read = written_and_read(pool);
  EXPECT_EQ(program(read).peak_live(), 13_MiB);
  EXPECT_EQ(pool.statistics().all.requested_bytes.peak, static_cast<std::int64_t>(13_MiB));
}

TEST(captured, records_aligned_requests_as_the_allocator_gets_them) {
  captured<tight> pool;
  (void)pool.allocate(64);
  void* const p = aligned_request(1000, page).allocate(pool, stream_id{3});
  EXPECT_TRUE(aligned_request(1000, page).record_stream(pool, p, stream_id{4}));
  aligned_request(1000, page).deallocate(pool, p);
  const std::vector<line> expected{
      {'a', 0, 64, 0}, {'a', 1, 1000 + 4096 - 64, 3}, {'r', 1, 0, 4}, {'f', 1, 1000 + 4096 - 64, 0}};
  EXPECT_EQ(lines_of(pool), expected);
  expect_same_on_replay<tight>(pool);
}

TEST(captured, records_a_reused_block_as_a_free_and_a_request) {
  captured<plain> pool;
  void* input = pool.allocate(30_MiB);
  EXPECT_FALSE(pool.reuse_in_place(input, 300_MiB, {}));
  void* const output = allocate_in_place(pool, input, 30_MiB - 100);
  pool.deallocate(output);
  const std::vector<line> expected{
      {'a', 0, 30_MiB, 0}, {'f', 0, 30_MiB, 0}, {'a', 1, 30_MiB - 100, 0}, {'f', 1, 30_MiB - 100, 0}};
  EXPECT_EQ(lines_of(pool), expected);
}

TEST(captured, records_a_block_by_handle_until_its_handle_is_freed) {
  captured<plain> pool;
  const block_handle h = pool.allocate_by_handle(1000);
  EXPECT_FALSE(pool.try_deallocate(h.data())) << "the address frees nothing";
  EXPECT_FALSE(pool.reuse_in_place(h.data(), 1000, {}));
  EXPECT_EQ(lines_of(pool).size(), 1u);
  pool.deallocate(h);
  EXPECT_EQ(lines_of(pool).back(), (line{'f', 0, 1000, 0}));
}

TEST(captured, records_calls_through_other_interfaces) {
  captured<shared> pool;
  any_allocator any(pool);
  any.deallocate(any.allocate(100, stream_id{5}), 100);
  waiting<captured<shared>> patient;
  patient.deallocate(patient.allocate(200));
  EXPECT_EQ(lines_of(pool), (std::vector<line>{{'a', 0, 100, 5}, {'f', 0, 100, 0}}));
  EXPECT_EQ(lines_of(patient.inner()), (std::vector<line>{{'a', 0, 200, 0}, {'f', 0, 200, 0}}));
}

TEST(captured, may_be_the_front_end_of_each_device) {
  std::vector<simulated_device> two;
  for (unsigned d = 0; d < 2; ++d) two.emplace_back(simulated_device::options{.device = d});
  per_device<captured<locked<tight>>> all(std::move(two));
  void* const p = all.allocate(5000, 1);
  EXPECT_TRUE(all.record_stream(p, stream_id{4}));
  EXPECT_TRUE(all.try_deallocate(p));
  EXPECT_TRUE(all.front(0).recorded().events.empty());
  EXPECT_EQ(lines_of(all.front(1)),
            (std::vector<line>{{'a', 0, 5000, 0}, {'r', 0, 0, 4}, {'f', 0, 5000, 0}}));
}

TEST(captured, ignores_blocks_of_the_allocator_inside) {
  captured<plain> pool;
  void* const p = pool.inner().allocate(1000);
  EXPECT_TRUE(pool.record_stream(p, stream_id{1}));
  pool.deallocate(p);
  EXPECT_TRUE(pool.recorded().events.empty());
  // The address of a block that was freed around it gets the number of its next block.
  void* const q = pool.allocate(1000);
  pool.inner().deallocate(q);
  EXPECT_EQ(pool.allocate(900), q);
  EXPECT_EQ(lines_of(pool), (std::vector<line>{{'a', 0, 1000, 0}, {'f', 0, 1000, 0}, {'a', 1, 900, 0}}));
}

/// An allocator to which a program says that a step begins.
struct with_steps : plain {
  void begin_step(std::uint64_t key) noexcept { keys.push_back(key); }
  void begin_step(std::uint64_t key, stream_id stream) noexcept { keys.push_back(key + 100 * stream.handle); }
  std::vector<std::uint64_t> keys;
};
TEST(captured, passes_steps_on) {
  captured<with_steps> pool;
  pool.begin_step(3);
  pool.begin_step();
  pool.begin_step(4, stream_id{2});
  any_allocator(pool).begin_step(5, stream_id{3});
  EXPECT_EQ(pool.inner().keys, (std::vector<std::uint64_t>{3, 0, 204, 305}));
  captured<plain> other;
  const recording read = written_and_read(pool);
  EXPECT_EQ(trace::replay(program(read), other), 0u);
  EXPECT_EQ(lines_of(other), lines_of(pool)) << "a replay passes them on, too";
}

TEST(captured_pools, are_numbered_from_1) {
  captured<plain> pool;
  (void)pool.inner().get<extension::private_pools>().create();
  {
    private_pool first(pool);
    private_pool second(pool, {.never_splits = true});
    {
      const pool_scope all(first, scope_kind::capture);
      const pool_scope one(second, stream_id{3}, scope_kind::capture);
      (void)pool.allocate(1000, stream_id{3});
    }
    auto pools = pool.get<extension::private_pools>();
    EXPECT_TRUE(pools.retain(second.id()));
    EXPECT_TRUE(pools.release(second.id()));
    pools.trim(first.id());
  }
  const std::vector<line> expected{{'p', 1, 0, 0}, {'p', 2, 0, 0}, {'b', 1, 1, 0},    {'x', 1, 0, 0},
                                   {'b', 2, 0, 3}, {'x', 2, 0, 0}, {'a', 0, 1000, 3}, {'n', 2, 0, 0},
                                   {'n', 1, 0, 0}, {'p', 2, 0, 0}, {'x', 2, 0, 0},    {'c', 1, 0, 0},
                                   {'x', 2, 0, 0}, {'x', 1, 0, 0}};
  EXPECT_EQ(lines_of(pool), expected);
}

TEST(captured_pools, serve_the_same_requests_in_a_replay) {
  captured<plain> pool;
  std::vector<void*> live;
  {
    private_pool graph(pool);
    for (int i = 0; i < 3; ++i) {
      for (const std::uint64_t stream : {1u, 2u}) live.push_back(pool.allocate(3_MiB, stream_id{stream}));
      const pool_scope scope(graph, stream_id{1}, scope_kind::capture);
      for (const std::uint64_t stream : {1u, 2u}) live.push_back(pool.allocate(2_MiB, stream_id{stream}));
    }
    EXPECT_EQ(segment_of(pool, live[2]).private_pool, graph.id());
    expect_same_on_replay<plain>(pool);
    for (void* const p : live) pool.deallocate(p);
    pool.trim();
    EXPECT_GT(pool.current_usage().reserved, 0u);
  }
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  expect_same_on_replay<plain>(pool);
}

TEST(captured_pools, of_functions_select_a_stream_from_its_first_request) {
  captured<plain> pool;
  private_pool graph(pool);
  const stream_filter even([](void*, stream_id s) noexcept { return s.handle % 2 == 0; }, nullptr);
  {
    const pool_scope scope(graph, even, scope_kind::capture);
    for (const std::uint64_t stream : {1u, 2u, 2u, 4u}) (void)pool.allocate(1000, stream_id{stream});
  }
  (void)pool.allocate(1000, stream_id{6});
  {
    const pool_scope again(graph, even, scope_kind::capture);
    (void)pool.allocate(1000, stream_id{2});
  }
  const std::vector<line> expected{
      {'p', 1, 0, 0},    {'b', 1, 0, no_stream}, {'x', 1, 0, 0},    {'a', 0, 1000, 1},
      {'j', 1, 0, 2},    {'a', 1, 1000, 2},      {'a', 2, 1000, 2}, {'j', 1, 0, 4},
      {'a', 3, 1000, 4}, {'n', 1, 0, 0},         {'a', 4, 1000, 6}, {'b', 1, 0, no_stream},
      {'x', 1, 0, 0},    {'j', 1, 0, 2},         {'a', 5, 1000, 2}, {'n', 1, 0, 0}};
  EXPECT_EQ(lines_of(pool), expected);
  expect_same_on_replay<plain>(pool);
  // A replay directs requests by functions, too.
  captured<plain> other;
  const recording read = written_and_read(pool);
  EXPECT_EQ(trace::replay(program(read), other), 0u);
  EXPECT_EQ(statistics_of(other), statistics_of(pool));
  expect_same_on_replay<plain>(other);
}

TEST(captured_pools, leave_out_scopes_that_are_no_capture) {
  captured<plain> pool;
  private_pool tenant(pool);
  {
    const pool_scope scope(tenant, stream_id{1}, scope_kind::plain);
    (void)pool.allocate(1000, stream_id{1});
  }
  EXPECT_EQ(lines_of(pool), (std::vector<line>{{'p', 1, 0, 0}, {'a', 0, 1000, 1}}));
}

TEST(captured_pools, sleep_and_wake) {
  captured<ranges> pool;
  private_pool apart(pool);
  auto memory = pool.get<extension::sleep_mode>();
  (void)pool.allocate(5_MiB);
  EXPECT_TRUE(memory.sleep(apart.id(), sleep_contents::discard, stream_id{4}));
  EXPECT_FALSE(memory.sleep(apart.id(), sleep_contents::discard));
  EXPECT_TRUE(memory.wake(apart.id()));
  EXPECT_TRUE(memory.sleep(sleep_contents::save, stream_id{4}));
  EXPECT_EQ(pool.try_allocate(1000), nullptr);
  EXPECT_TRUE(memory.wake(stream_id{5}));
  EXPECT_FALSE(memory.wake(pool_id{}));
  const std::vector<line> expected{{'p', 1, 0, 0}, {'a', 0, 5_MiB, 0}, {'s', 1, 0, 0},
                                   {'w', 1, 0, 0}, {'s', 0, 1, 4},     {'w', 0, 0, 5}};
  EXPECT_EQ(lines_of(pool), expected);
  EXPECT_TRUE(memory.sleep(pool_id{}, sleep_contents::discard)) << "of the default pools alone";
  EXPECT_TRUE(memory.wake(pool_id{}));
  EXPECT_EQ(lines_of(pool), expected);
}

TEST(captured_pools, end_the_recording_by_a_restore) {
  captured<plain> pool;
  private_pool graph(pool);
  void* result = nullptr;
  {
    const pool_scope scope(graph, scope_kind::capture);
    result = pool.allocate(5_MiB);
  }
  auto recorder = pool.get<extension::checkpoints>();
  const auto before = recorder.record(graph.id());
  pool.deallocate(result);
  EXPECT_TRUE(pool.is_complete());
  EXPECT_TRUE(recorder.restore(before));
  EXPECT_FALSE(pool.is_complete());
  pool.deallocate(result);
  EXPECT_EQ(pool.dropped(), 2u);
  EXPECT_EQ(pool.recorded().events.back().what, kind::free);
  EXPECT_EQ(written_and_read(pool).events.size(), 6u);
}

TEST(captured, ends_at_its_limit) {
  for (const std::size_t limit : {0u, 1u, 4u, 5u, 6u, 7u}) {
    captured<plain> pool({.max_events = limit});
    void* const p = pool.allocate(1000);
    void* const q = pool.allocate(1000);
    pool.deallocate(p);
    EXPECT_TRUE(pool.try_deallocate(q));
    EXPECT_FALSE(pool.try_deallocate(q));
    pool.begin_step();
    EXPECT_TRUE(pool.record_stream(pool.allocate(1000), stream_id{}));
    EXPECT_EQ(pool.recorded().events.size(), limit);
    EXPECT_EQ(pool.dropped(), 7u - limit);
    EXPECT_EQ(pool.is_complete(), limit == 7);
    EXPECT_EQ(written_and_read(pool).events.size(), limit) << "it is valid wherever it ends";
    EXPECT_EQ(pool.current_usage().requested, 1000u);
    EXPECT_EQ(pool.audit(), nullptr);
  }
}

TEST(captured, passes_arguments_to_the_allocator) {
  captured<plain> pool({.max_events = 1}, simulated_device({.capacity = 4_MiB}));
  pool.visit_provider([](auto& device) { EXPECT_EQ(device.capacity(), 4_MiB); });
  pool.begin_step();
  pool.begin_step();
  EXPECT_EQ(pool.dropped(), 1u);
}

TEST(captured, counts_its_host_memory) {
  captured<plain> pool;
  const std::size_t before = pool.metadata_bytes() - pool.inner().metadata_bytes();
  for (int i = 0; i < 10'000; ++i) (void)pool.allocate(1000);
  const std::size_t used = pool.metadata_bytes() - pool.inner().metadata_bytes() - before;
  EXPECT_GE(used, 10'000u * 64);
  EXPECT_LE(used, 10'000u * 130);
}

// Each thread frees blocks of the others, while one reads the recording.
template <typename Pool>
void use_from_threads() {
  Pool pool;
  constexpr std::size_t threads = 4, rounds = 5'000, slots = 64;
  std::vector<std::atomic<void*>> exchanged(slots);
  std::atomic<std::size_t> running = threads;
  std::vector<std::thread> all;
  for (std::size_t t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      for (std::size_t i = 0; i < rounds; ++i) {
        if (i % 100 == 0) pool.begin_step(t);
        void* const p = pool.allocate(1000 + t, stream_id{t % 2});
        EXPECT_TRUE(pool.record_stream(p, stream_id{t % 3}));
        void* const other = exchanged[(i * 7 + t) % slots].exchange(p);
        if (other == nullptr) continue;
        // The other threads get its address at once.
        if (i % 2 == 0) {
          pool.deallocate(other);
        } else {
          EXPECT_TRUE(pool.try_deallocate(other));
        }
      }
      --running;
    });
  }
  std::size_t seen = 0;
  while (running > 0) {
    const std::size_t now = pool.recorded().events.size();
    EXPECT_GE(now, seen);
    seen = now;
  }
  for (std::thread& t : all) t.join();
  for (auto& slot : exchanged) pool.deallocate(slot.load());
  const recording read = written_and_read(pool);
  std::map<kind, std::size_t> count;
  for (const event& e : read.events) ++count[e.what];
  EXPECT_EQ(count[kind::allocate], threads * rounds);
  EXPECT_EQ(count[kind::free], threads * rounds);
  EXPECT_EQ(count[kind::record_stream], threads * rounds);
  EXPECT_EQ(count[kind::begin_step], threads * rounds / 100);
  EXPECT_LE(program(read).peak_live(), (slots + threads) * 1003);
  EXPECT_TRUE(pool.is_complete());
  plain other;
  EXPECT_EQ(trace::replay(program(read), other), 0u);
  EXPECT_EQ(other.current_usage().allocated, 0u);
}
TEST(captured_threads, share_a_locked_allocator) { use_from_threads<captured<shared>>(); }
TEST(captured_threads, share_an_allocator_of_arenas) { use_from_threads<captured<streamed>>(); }

}  // namespace
