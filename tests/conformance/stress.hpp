// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/concurrent/arena.hpp>
#include <tessera/core/types.hpp>
#include <tessera/interop/paddle_passes.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/observe/report.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

#include "by_day.hpp"
#include "extensions.hpp"
#include "operations.hpp"
#include "watchdog.hpp"

/// Threads that start and end all the time, and use all thread-safe functions of an allocator at once.
namespace conformance::thread_stress {

/// The number of operations: TESSERA_OPERATIONS, or few.
inline std::size_t operations(std::size_t usual) { return operations_or(tessera::by_day(usual / 4, usual)); }

/// A block whose first, second and last words name its owner. If another owner gets the same memory, it
/// overwrites them.
struct held {
  std::uint64_t* words;
  std::size_t bytes;
  std::uint64_t tag;

  static constexpr std::size_t least = 3 * sizeof(std::uint64_t);
  void sign() const noexcept {
    words[0] = tag;
    words[1] = ~tag ^ bytes;
    words[last()] = tag;
  }
  [[nodiscard]] bool is_signed() const noexcept {
    return words[0] == tag && words[1] == (~tag ^ bytes) && words[last()] == tag;
  }
  [[nodiscard]] std::size_t last() const noexcept { return bytes / sizeof(std::uint64_t) - 1; }
};

/// The allocator under stress, over any memory that the host can write.
struct subject {
  virtual ~subject() = default;
  virtual void* allocate(std::size_t bytes, tessera::stream_id stream) = 0;
  virtual void deallocate(const held& freed, std::uint64_t random) = 0;
  virtual bool record(void* p, tessera::stream_id stream) = 0;
  /// Whether the block serves another request of this size, as a free and an allocation would.
  virtual bool reuse_in_place(const held& given, tessera::stream_id stream) = 0;
  /// Trims, queries and changes settings.
  virtual void look(std::uint64_t random) = 0;
  virtual bool on_pressure(bool (*call)(void* context) noexcept, void* context) = 0;
  virtual tessera::pool_statistics counts() = 0;
  /// The reserved bytes after all blocks are freed and the cache is trimmed.
  virtual tessera::usage left() = 0;
  virtual const char* audit() = 0;
};

template <typename Pool>
tessera::pool_statistics statistics_of(Pool& pool) {
  tessera::pool_statistics sum;
  pool.for_each_device(
      [&sum](auto& front, std::size_t) { tessera::detail::add_to(sum, front.statistics().all); });
  return sum;
}
template <typename Pool>
tessera::usage usage_of_all(Pool& pool) {
  tessera::usage sum;
  pool.for_each_device(
      [&sum](auto& front, std::size_t) { tessera::detail::add_to(sum, front.current_usage()); });
  return sum;
}

/// Functions that are slow to compile are omitted for an allocator whose inner allocator has them.
template <typename Pool, bool IsCaptured = true>
struct stressed : subject {
  explicit stressed(Pool& given) : pool(given) {}

  void* allocate(std::size_t bytes, tessera::stream_id stream) override {
    if constexpr (has_devices) {
      return pool.try_allocate(bytes, stream.handle % pool.devices(), stream);
    } else {
      return pool.try_allocate(bytes, stream);
    }
  }
  void deallocate(const held& freed, std::uint64_t random) override {
    switch (random % 3) {
      case 0: return pool.deallocate(freed.words);
      case 1: return pool.deallocate(freed.words, freed.bytes);
      default: EXPECT_TRUE(pool.try_deallocate(freed.words));
    }
  }
  bool record(void* p, tessera::stream_id stream) override { return pool.record_stream(p, stream); }
  bool reuse_in_place(const held& given, tessera::stream_id stream) override {
    if constexpr (has_devices) {
      return false;
    } else {
      return pool.reuse_in_place(given.words, given.bytes, stream);
    }
  }
  void look(std::uint64_t random) override {
    switch (random % 10) {
      case 0: return pool.trim();
      case 1: return pool.trim(usage_of_all(pool).reserved / 2);
      case 2: EXPECT_STREQ(pool.audit(), nullptr); return;
      case 3: return set(random);
      case 4:
        if (random / 10 % tessera::by_day(64u, 16u) != 0) return;  // it may search for milliseconds
        pool.for_each_device([random](auto& front, std::size_t) {
          const tessera::observe::oom_report told = tessera::observe::explain(front, random % 10'000'000);
          EXPECT_EQ(told.now.active + told.now.cached, told.now.reserved);
          front.reset_peak_statistics();
        });
        return;
      case 5: return report();
      case 6: return capture();
      case 7: return pool.evict_idle();
      default: {
        const tessera::usage now = usage_of_all(pool);
        EXPECT_EQ(now.active + now.cached, now.reserved);
        const tessera::pool_statistics all = statistics_of(pool);
        EXPECT_EQ(all.allocation.current, all.allocation.allocated - all.allocation.freed);
        EXPECT_GE(all.allocation.current, 0);
        EXPECT_GE(all.reserved_bytes.current, all.active_bytes.current);
      }
    }
  }
  bool on_pressure(bool (*call)(void* context) noexcept, void* context) override {
    bool works = true;
    pool.for_each_device(
        [&](auto& front, std::size_t) { works = works && front.on_pressure(call, context); });
    return works;
  }
  tessera::pool_statistics counts() override { return statistics_of(pool); }
  tessera::usage left() override {
    pool.trim();
    return usage_of_all(pool);
  }
  const char* audit() override { return pool.audit(); }

  Pool& pool;

 private:
  static constexpr bool has_devices = requires(Pool& p) { p.devices(); };

  void set(std::uint64_t random) {
    const std::size_t chosen = random / 16 % 4;
    pool.visit_policies([chosen](auto& settings) {
      if constexpr (requires { settings.split.max = chosen; }) settings.split.max = (4 + chosen) << 20;
      settings.growth.limit = chosen == 0 ? (std::size_t{24} << 20) : tessera::unlimited;
    });
  }
  void report() {
    if constexpr (IsCaptured) {
      const tessera::observe::memory_report told(pool);
      EXPECT_EQ(told.now.active + told.now.cached, told.now.reserved);
      EXPECT_FALSE(told.json().empty());
    }
  }
  void capture() {
    if constexpr (IsCaptured) {
      const tessera::observe::snapshot seen = tessera::observe::take_snapshot(pool);
      for (const auto& segment : seen.segments) {
        std::size_t bytes = 0;
        for (const auto& block : segment.blocks) bytes += block.size;
        EXPECT_EQ(bytes, segment.size);
      }
    }
  }
};

/// The threads, and the blocks that they pass to each other.
class threads_under_test {
 public:
  threads_under_test(subject& stressed, tessera::provider::host_pinned& device)
      : stressed_(stressed), device_(device) {}

  /// Each thread ends after about sixty operations, and another one starts.
  void run(std::size_t operations, std::size_t at_a_time) {
    ASSERT_TRUE(stressed_.on_pressure(&threads_under_test::under_pressure, this));
    constexpr std::size_t of_a_life = 64;
    const std::size_t lives = operations / of_a_life / at_a_time + 1;
    std::vector<std::thread> places;
    for (std::size_t place = 0; place < at_a_time; ++place) {
      places.emplace_back([this, place, lives] {
        for (std::size_t life = 0; life < lives; ++life)
          std::thread([this, seed = life * 64 + place] { live(seed, of_a_life); }).join();
      });
    }
    for (auto& t : places) t.join();
    for (auto& t : table_) give_back(std::unique_ptr<held>(t.exchange(nullptr)));
    settle();
  }

 private:
  struct own_stream {
    explicit own_stream(tessera::provider::host_pinned& on) : device(on), id(on.create_stream()) {}
    ~own_stream() { EXPECT_TRUE(device.destroy_stream(id)); }
    tessera::provider::host_pinned& device;
    tessera::stream_id id;
  };

  void live(std::uint64_t seed, std::size_t count) {
    std::mt19937_64 random(seed);
    std::vector<std::unique_ptr<held>> mine;
    std::unique_ptr<own_stream> own;
    // The stream of requests. No work is on it, so the host may write to freed memory.
    const tessera::stream_id stream{1'000'000 + (seed % 4 == 0 ? seed : seed % 5)};
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t what = random() % 32;
      if (what < 12 || mine.empty()) {
        if (mine.size() < 12) take(mine, random, stream);
      } else if (what < 20) {
        give_back(std::move(mine.back()));
        mine.pop_back();
      } else if (what < 26) {  // to any other thread
        mine.back().reset(table_[random() % table_.size()].exchange(mine.back().release()));
        if (mine.back() == nullptr) mine.pop_back();
      } else if (what < 28) {
        if (own == nullptr) own = std::make_unique<own_stream>(device_);
        read_and_free(std::move(mine.back()), own->id);
        mine.pop_back();
        if (random() % 2 == 0) own.reset();  // the stream ends after the free
      } else if (what < 29) {
        renew(*mine.back(), random(), stream);
      } else {
        stressed_.look(random());
      }
    }
    for (auto& left : mine) give_back(std::move(left));
  }

  void take(std::vector<std::unique_ptr<held>>& mine, std::mt19937_64& random, tessera::stream_id stream) {
    const std::uint64_t kind = random() % 64;
    const std::size_t most = kind == 0 ? (3u << 20) : kind < 8 ? (200u << 10) : 4096u;
    const std::size_t bytes = held::least + random() % most / 8 * 8;
    auto* const words = static_cast<std::uint64_t*>(stressed_.allocate(bytes, stream));
    if (words == nullptr) return;
    count(bytes);
    mine.push_back(std::make_unique<held>(held{words, bytes, random()}));
    mine.back()->sign();
  }
  void give_back(std::unique_ptr<held> freed) {
    if (freed == nullptr) return;
    wrong_ += !freed->is_signed();
    stressed_.deallocate(*freed, freed->tag);
  }
  void read_and_free(std::unique_ptr<held> freed, tessera::stream_id stream) {
    const held read = *freed;
    wrong_ += !stressed_.record(read.words, stream);
    device_.submit(stream, [this, read] { wrong_ += !read.is_signed(); });
    stressed_.deallocate(read, read.tag);
  }
  void renew(held& mine, std::uint64_t tag, tessera::stream_id stream) {
    if (!stressed_.reuse_in_place(mine, stream)) return;
    count(mine.bytes);
    wrong_ += !mine.is_signed();
    mine.tag = tag;
    mine.sign();
  }
  void count(std::size_t bytes) {
    allocations_.fetch_add(1, std::memory_order_relaxed);
    requested_.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  }
  static bool under_pressure(void* context) noexcept {
    auto& self = *static_cast<threads_under_test*>(context);
    const held mine{static_cast<std::uint64_t*>(self.stressed_.allocate(4096, tessera::stream_id{77})), 4096,
                    77};
    if (mine.words != nullptr) {
      self.count(mine.bytes);
      mine.sign();
      self.wrong_ += !mine.is_signed();
      self.stressed_.deallocate(mine, 0);
    }
    return ++self.pressed_ % 2 == 0;
  }

  /// No block had two owners, and no counter is wrong.
  void settle() {
    EXPECT_EQ(wrong_, 0);
    const tessera::usage left = stressed_.left();
    EXPECT_EQ(left.allocated, 0u);
    EXPECT_EQ(left.requested, 0u);
    EXPECT_EQ(left.pending(), 0u);
    EXPECT_EQ(left.reserved, 0u);
    EXPECT_STREQ(stressed_.audit(), nullptr);
    const tessera::pool_statistics all = stressed_.counts();
    EXPECT_EQ(all.allocation.allocated, allocations_);
    EXPECT_EQ(all.allocation.freed, allocations_);
    EXPECT_EQ(all.requested_bytes.allocated, requested_);
    EXPECT_EQ(all.requested_bytes.freed, requested_);
    EXPECT_EQ(all.active.current, 0);
    EXPECT_EQ(all.segment.current, 0);
    EXPECT_EQ(all.segment.allocated, all.segment.freed);
    EXPECT_GT(pressed_, 0);
  }

  subject& stressed_;
  tessera::provider::host_pinned& device_;
  std::array<std::atomic<held*>, 16> table_{};
  std::atomic<std::int64_t> allocations_{0};
  std::atomic<std::int64_t> requested_{0};
  std::atomic<int> wrong_{0};
  std::atomic<int> pressed_{0};
};

inline constexpr std::size_t usual = 8'000;

inline tessera::provider::host_pinned unlocked(std::size_t capacity = std::size_t{128} << 20) {
  return tessera::provider::host_pinned(
      {.capacity = capacity, .pin = tessera::provider::host_pinned::pinning::never});
}

/// An observer that counts for one thread at a time, so that the thread sanitizer detects simultaneous calls.
struct counting_observer {
  std::int64_t handed_out = 0, asked_back = 0, free = 0, segments = 0;
  void on(const tessera::allocator_event& e) noexcept {
    using action = tessera::allocator_event::action;
    handed_out += e.what == action::alloc;
    asked_back += e.what == action::free_requested;
    free += e.what == action::free_completed;
    segments += (e.what == action::segment_alloc) - (e.what == action::segment_free);
  }
};

template <bool IsCaptured = true, typename Pool>
void stress(Pool& pool, tessera::provider::host_pinned& device, std::size_t count = usual) {
  stressed<Pool, IsCaptured> stressing(pool);
  threads_under_test(stressing, device).run(thread_stress::operations(count), 4);
}
/// The same; the observer also saw everything that the allocator counted.
template <typename Pool>
void stress_and_compare_counts(Pool& pool, tessera::provider::host_pinned& device,
                               std::size_t count = usual) {
  stress(pool, device, count);
  const std::int64_t counted = pool.statistics().all.allocation.allocated;
  with_observer(pool, [counted](const counting_observer& kept) {
    EXPECT_EQ(kept.handed_out, counted);
    EXPECT_EQ(kept.asked_back, counted);
    EXPECT_EQ(kept.free, counted);
    EXPECT_EQ(kept.segments, 0);
  });
}
inline void expect_all_back(const tessera::provider::host_pinned& device) {
  EXPECT_EQ(device.held(), tessera::provider::host_pinned::holdings{});
}

template <typename Pool>
void stress_with_observer(const char* what, std::size_t capacity = std::size_t{128} << 20) {
  const watchdog guard(what);
  tessera::provider::host_pinned device = unlocked(capacity);
  {
    Pool pool{tessera::provider::provider_ref(device)};
    stress_and_compare_counts(pool, device);
  }
  expect_all_back(device);
}

}  // namespace conformance::thread_stress
