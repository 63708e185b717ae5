// SPDX-License-Identifier: Apache-2.0
// Two streams never use the same memory at the same time. A model with the complete history of every stream
// checks it on a simulated device. Data checks it if the streams are threads.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/interop/cuda_mempool.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "by_day.hpp"

namespace {

using namespace tessera;
using pool_attribute = cuda_mempool<caching_allocator<cuda_async, simulated_device>>::attribute;

constexpr int operations = by_day(6'000, 40'000);
constexpr int rounds = by_day(500, 4'000);

constexpr std::size_t streams = 4;

/// A simulated device that records for each task which tasks come before it, when it ends, and its addresses.
class ordered_device : public simulated_device {
 public:
  using simulated_device::simulated_device;
  using clock = std::array<std::uint64_t, streams>;  // tasks of each stream
  enum class lie { none, is_ordered_after, is_done, waits };

  /// Gives a stream a task that uses these addresses.
  void use(const void* p, std::size_t bytes, stream_id stream, std::uint64_t duration) {
    const auto begin = reinterpret_cast<std::uintptr_t>(p);
    std::erase_if(uses_, [this](const usage_of& u) { return ends_ns(u.stream, u.task) <= now_ns(); });
    const std::size_t s = stream.handle;
    for (const usage_of& u : uses_) {
      if (u.end <= begin || begin + bytes <= u.begin || u.stream == s) continue;
      if (last(s).behind[u.stream] < u.task) breaks("a stream uses what another one may still use");
      ++crossed_;
    }
    submit(stream, duration);
    push(s, last(s).behind, std::max(last(s).ends_ns, now_ns()) + duration);
    uses_.push_back({begin, begin + bytes, s, past_[s].size() - 1});
  }
  bool release(void* p, std::size_t bytes) noexcept {
    const auto begin = reinterpret_cast<std::uintptr_t>(p);
    for (const usage_of& u : uses_) {
      if (u.begin < begin + bytes && begin < u.end && ends_ns(u.stream, u.task) > now_ns())
        breaks("a segment goes that a stream may still use");
    }
    return simulated_device::release(p, bytes);
  }
  bool make_wait(stream_id stream, stream_id of, std::uint64_t at) noexcept {
    if (lie_ == lie::waits) return true;
    if (!simulated_device::make_wait(stream, of, at)) return false;
    if (stream == of) return true;
    const std::size_t s = stream.handle;
    const task& before = past_[of.handle][at];
    clock behind = last(s).behind;
    for (std::size_t i = 0; i < streams; ++i) behind[i] = std::max(behind[i], before.behind[i]);
    push(s, behind, std::max({last(s).ends_ns, before.ends_ns, now_ns()}));
    return true;
  }
  bool is_ordered_after(stream_id s, stream_id of, std::uint64_t at) const noexcept {
    return lie_ == lie::is_ordered_after || simulated_device::is_ordered_after(s, of, at);
  }
  bool is_done(stream_id s, std::uint64_t at) const noexcept {
    return lie_ == lie::is_done || simulated_device::is_done(s, at);
  }
  void tell_lies(lie which) { lie_ = which; }

  /// The first broken rule, or nothing.
  [[nodiscard]] const std::string& broken() const { return broken_; }
  /// How often a stream used memory while another one still used it.
  [[nodiscard]] std::size_t crossed() const { return crossed_; }

 private:
  struct task {
    clock behind{};  // including itself
    std::uint64_t ends_ns = 0;
  };
  struct usage_of {
    std::uintptr_t begin, end;
    std::size_t stream, task;
  };

  [[nodiscard]] const task& last(std::size_t s) const { return past_[s].back(); }
  [[nodiscard]] std::uint64_t ends_ns(std::size_t s, std::size_t at) const { return past_[s][at].ends_ns; }
  void push(std::size_t s, clock behind, std::uint64_t ends) {
    behind[s] = past_[s].size();
    past_[s].push_back({behind, ends});
  }
  void breaks(const char* rule) {
    if (broken_.empty()) broken_ = rule;
  }

  std::array<std::vector<task>, streams> past_{std::vector<task>(1), std::vector<task>(1),
                                               std::vector<task>(1), std::vector<task>(1)};
  std::vector<usage_of> uses_;
  std::string broken_;
  std::size_t crossed_ = 0;
  lie lie_ = lie::none;
};

/// Whether the statistics are right about free blocks that share a segment with others, and their bytes.
template <typename Pool>
bool counts_split_blocks(Pool& pool) {
  std::int64_t count = 0, bytes = 0;
  tessera::detail::introspect(pool).for_each_segment([&](const detail::block& head) {
    for (const detail::block* b = &head; b != head.prev; b = b->next) {
      if (!b->is_free() || !b->is_split()) continue;
      ++count;
      bytes += static_cast<std::int64_t>(b->size);
    }
  });
  const auto told = pool.statistics().all;
  return told.inactive_split.current == count && told.inactive_split_bytes.current == bytes;
}

struct outcome {
  std::string broken;
  std::size_t crossed = 0;
};

/// A random program that keeps the rules: it orders each use and each free on a second stream.
template <typename Recipe>
outcome after_random_program(std::uint64_t seed, policies<Recipe> chosen, std::uint64_t fail_every = 0,
                             ordered_device::lie lie = {}) {
  std::mt19937_64 random(seed);
  const auto pick = [&random](std::size_t below) { return static_cast<std::size_t>(random() % below); };
  struct held {
    void* p;
    std::size_t bytes;
    stream_id on;
  };
  std::vector<held> live;
  cuda_mempool<caching_allocator<Recipe, ordered_device>> pool{
      ordered_device{simulated_device::options{.capacity = 96_MiB}}, chosen};
  ordered_device& device = pool.provider();
  device.tell_lies(lie);
  const auto some_stream = [&] { return stream_id{pick(streams)}; };
  const auto put_behind = [&](stream_id later, stream_id earlier) {
    simulated_device::event mark;
    return device.record(earlier, mark) && device.make_wait(later, mark.stream, mark.position);
  };
  for (int i = 0; i < operations; ++i) {
    device.fail_every(i % 64 == 0 ? fail_every : 0);
    const std::size_t what = pick(100);
    if (what < 40 && live.size() < 60) {
      const held got{nullptr, 1 + pick(std::size_t{1} << (8 + pick(14))), some_stream()};
      if (void* const p = pool.try_allocate_async(got.bytes, got.on)) {
        device.use(p, got.bytes, got.on, pick(3'000'000));
        live.push_back({p, got.bytes, got.on});
      }
    } else if (what < 80 && !live.empty()) {
      held& h = live[pick(live.size())];
      const stream_id other = some_stream();
      bool freed = false;
      switch (pick(4)) {
        case 0:  // on another stream
          freed = put_behind(other, h.on);
          if (freed) pool.free_async(h.p, other);
          break;
        case 1:  // noted for another one
          if (put_behind(other, h.on) && pool.record_stream(h.p, other))
            device.use(h.p, h.bytes, other, pick(3'000'000));
          break;
        case 2: device.use(h.p, h.bytes, h.on, pick(3'000'000)); break;
        default: break;
      }
      if (!freed) pick(8) == 0 ? pool.pool().deallocate(h.p) : pool.free_async(h.p, h.on);
      h = live.back();
      live.pop_back();
    } else if (what < 88) {
      (void)put_behind(some_stream(), some_stream());
    } else if (what < 97) {
      device.advance(pick(1'000'000));
    } else if (what == 97) {
      pool.trim_to(pick(2) == 0 ? 0 : pool.current_usage().reserved / 2);
    } else if (what == 98) {
      (void)pool.synchronize(some_stream());
    } else {
      (void)pool.set(pool_attribute::release_threshold, pick(2) == 0 ? pick(32_MiB) : unlimited);
    }
    if (const char* broken = i % 7 == 0 ? pool.audit() : nullptr) return {broken, 0};
    if (i % 7 == 0 && !counts_split_blocks(pool.pool())) return {"split blocks are miscounted", 0};
    if (!device.broken().empty()) return {device.broken() + ", operation " + std::to_string(i), 0};
  }
  device.fail_every(0);
  for (const held& h : live) pool.free_async(h.p, h.on);
  pool.pool().trim();
  if (const char* broken = pool.audit()) return {broken, 0};
  if (pool.current_usage().reserved != 0 || device.used() != 0) return {"something is lost", 0};
  return {device.broken(), device.crossed()};
}

policies<cuda_async> with_rules(unsigned bits) {
  policies<cuda_async> chosen;
  chosen.streams.follow_dependencies = (bits & 1) != 0;
  chosen.streams.opportunistic = (bits & 2) != 0;
  chosen.streams.insert_dependencies = (bits & 4) != 0;
  return chosen;
}

TEST(order, holds_under_each_rule) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    const outcome alone = after_random_program<cuda_async>(seed, with_rules(0));
    for (unsigned rules = 0; rules < 8; ++rules) {
      const outcome came = after_random_program<cuda_async>(seed, with_rules(rules));
      ASSERT_EQ(came.broken, "") << "rules " << rules << ", seed " << seed;
      // The second streams of the program always share blocks. With the options to follow or to wait, other
      // blocks do too.
      EXPECT_TRUE((rules & 5) == 0 || came.crossed > alone.crossed);
    }
  }
}
TEST(order, holds_if_calls_fail) {
  for (std::uint64_t k = 1; k <= 8; ++k)
    ASSERT_EQ(after_random_program<cuda_async>(k, with_rules(7), k).broken, "") << "every call " << k;
}
TEST(order, holds_with_other_policies_on_the_other_axes) {
  using in_pools = with<cuda_async, pool_small_and_large<64_KiB>, split_below<2_MiB, 512_KiB>>;
  using whole = with<cuda_async, split_never<>>;
  ASSERT_EQ(after_random_program<in_pools>(1, {}).broken, "");
  ASSERT_EQ(after_random_program<whole>(1, {}).broken, "");
}
TEST(order, is_broken_if_the_device_ignores_waits) {
  using lie = ordered_device::lie;
  EXPECT_NE(after_random_program<cuda_async>(1, with_rules(1), 0, lie::is_ordered_after).broken, "");
  EXPECT_NE(after_random_program<cuda_async>(1, with_rules(2), 0, lie::is_done).broken, "");
  EXPECT_NE(after_random_program<cuda_async>(1, with_rules(4), 0, lie::waits).broken, "");
}

/// Whether stream B wrote to memory that A had still to read, after B got the block.
template <typename Device>
bool is_corrupted() {
  Device device{host_pinned::options{.capacity = 64_MiB, .pin = host_pinned::pinning::never}};
  const stream_id a = device.create_stream(), b = device.create_stream();
  cuda_mempool<caching_allocator<cuda_async, Device>> pool{std::move(device)};
  constexpr std::size_t bytes = 2_MiB;
  auto* const p = static_cast<unsigned char*>(pool.allocate_async(bytes, a));
  std::atomic<bool> filled = false, may_read = false, intact = true, written = false;
  pool.provider().submit(a, [&, p] {
    std::memset(p, 1, bytes);
    filled = true;
    while (!may_read) std::this_thread::yield();
    for (std::size_t i = 0; i < bytes; ++i) intact = intact && p[i] == 1;
  });
  pool.free_async(p, a);
  auto* const q = static_cast<unsigned char*>(pool.allocate_async(bytes, b));
  EXPECT_EQ(p, q);
  while (!filled) std::this_thread::yield();
  pool.provider().submit(b, [&, q] {
    std::memset(q, 2, bytes);
    written = true;
  });
  for (int ms = 0; ms < 50 && !written; ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  may_read = true;
  EXPECT_TRUE(pool.synchronize(a) && pool.synchronize(b));
  EXPECT_EQ(q[bytes - 1], 2);
  pool.free_async(q, b);
  return !intact;
}
struct thinks_all_is_behind : host_pinned {
  using host_pinned::host_pinned;
  static bool is_ordered_after(stream_id, stream_id, std::uint64_t) noexcept { return true; }
};
TEST(order, keeps_data_separate) {
  EXPECT_FALSE(is_corrupted<host_pinned>());
#if !defined(__SANITIZE_THREAD__)  // a data race by design
  EXPECT_TRUE(is_corrupted<thinks_all_is_behind>());
#endif
}

// Each block is filled and read on its stream, again and again, while other streams do the same.
TEST(order, keeps_data_separate_in_a_random_program) {
  for (unsigned rules = 1; rules < 8; ++rules) {
    host_pinned device{host_pinned::options{.capacity = 64_MiB, .pin = host_pinned::pinning::never}};
    std::array<stream_id, streams> on{};
    for (std::size_t i = 1; i < streams; ++i) on[i] = device.create_stream();
    cuda_mempool<caching_allocator<cuda_async, host_pinned>> pool{std::move(device), with_rules(rules)};
    std::atomic<int> corrupted = 0;
    std::mt19937_64 random(rules);
    const auto pick = [&random](std::size_t below) { return static_cast<std::size_t>(random() % below); };
    struct held {
      unsigned char* p;
      stream_id stream;
    };
    std::vector<held> live;
    for (int i = 0; i < rounds; ++i) {
      if (pick(2) == 0 && live.size() < 12) {
        const stream_id stream = on[pick(streams)];
        const std::size_t bytes = 1 + pick(std::size_t{1} << (6 + pick(12)));
        auto* const p = static_cast<unsigned char*>(pool.allocate_async(bytes, stream));
        const auto mark = static_cast<unsigned char>(i);
        pool.provider().submit(stream, [p, bytes, mark] { std::memset(p, mark, bytes); });
        pool.provider().submit(stream, [p, bytes, mark, &corrupted] {
          corrupted += std::any_of(p, p + bytes, [mark](unsigned char at) { return at != mark; });
        });
        live.push_back({p, stream});
      } else if (!live.empty()) {
        held& h = live[pick(live.size())];
        pool.free_async(h.p, h.stream);
        h = live.back();
        live.pop_back();
      }
      if (pick(16) == 0) {
        host_pinned::event mark;
        EXPECT_TRUE(pool.provider().record(on[pick(streams)], mark));
        EXPECT_TRUE(pool.provider().make_wait(on[pick(streams)], mark));
      }
      if (pick(200) == 0) pool.trim_to(0);
      if (pick(400) == 0) (void)pool.synchronize(on[pick(streams)]);
    }
    for (const held& h : live) pool.free_async(h.p, h.stream);
    for (const stream_id stream : on) EXPECT_TRUE(pool.synchronize(stream));
    EXPECT_EQ(corrupted, 0) << "rules " << rules;
    EXPECT_STREQ(pool.audit(), nullptr);
    EXPECT_EQ(pool.current_usage().reserved, 0u);
  }
}

}  // namespace
