// SPDX-License-Identifier: Apache-2.0
// No request is served from faulty memory. Which memory is faulty is known from the calls of the device and from the marks
// of the program, not from the allocator.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/debug/leak_checked.hpp>
#include <tessera/extension/checkpoints.hpp>
#include <tessera/extension/count_totals.hpp>
#include <tessera/extension/faulty_memory.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/quotas.hpp>
#include <tessera/extension/registrations.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/provider/memory_domains.hpp>
#include <tessera/provider/preallocating.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../../by_day.hpp"
#include "operations.hpp"

namespace {

using namespace tessera;
using namespace tessera::literals;
using extension::faulty_memory, extension::faulty_memory_usage;

std::uintptr_t at(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }
std::byte* bytes_of(void* p) { return static_cast<std::byte*>(p); }

/// Disjoint intervals of addresses.
class intervals {
 public:
  using map = std::map<std::uintptr_t, std::uintptr_t>;  // the end by the beginning

  void add(std::uintptr_t begin, std::uintptr_t end) {
    remove(begin, end);
    all_[begin] = end;
  }
  void remove(std::uintptr_t begin, std::uintptr_t end) {
    for (const auto& [low, high] : within(begin, end)) {
      const auto found = std::prev(all_.upper_bound(low));
      const auto [old_low, old_high] = *found;
      all_.erase(found);
      if (old_low < low) all_[old_low] = low;
      if (high < old_high) all_[high] = old_high;
    }
  }
  /// The parts of the intervals in [begin, end).
  [[nodiscard]] map within(std::uintptr_t begin, std::uintptr_t end) const {
    map found;
    auto from = all_.upper_bound(begin);
    if (from != all_.begin()) --from;
    for (; from != all_.end() && from->first < end; ++from) {
      const std::uintptr_t low = std::max(begin, from->first);
      const std::uintptr_t high = std::min(end, from->second);
      if (low < high) found[low] = high;
    }
    return found;
  }
  [[nodiscard]] static std::size_t bytes(const map& of) {
    std::size_t sum = 0;
    for (const auto& [low, high] : of) sum += high - low;
    return sum;
  }
  [[nodiscard]] std::size_t bytes() const { return bytes(all_); }
  [[nodiscard]] std::size_t count() const { return all_.size(); }
  [[nodiscard]] bool touches(std::uintptr_t begin, std::uintptr_t end) const {
    return !within(begin, end).empty();
  }

 private:
  map all_;
};

/// The memory that the device gave, and what of it is faulty.
struct machine {
  std::map<std::uintptr_t, std::size_t> parts;
  intervals faulty;
  std::map<std::uintptr_t, std::uint64_t> identities;  // of the physical memory of mapped parts
  std::set<std::uint64_t> broken;                      // physical memory that went with faulty bytes
  std::size_t mistakes = 0, returned = 0;

  void add(const void* p, std::size_t bytes) {
    parts[at(p)] = bytes;
    mistakes += faulty.touches(at(p), at(p) + bytes);
  }
  void remove(const void* p, std::size_t bytes) {
    returned += faulty.touches(at(p), at(p) + bytes);
    faulty.remove(at(p), at(p) + bytes);
    parts.erase(at(p));
  }
  /// Marks the bytes that the device gave.
  void mark(std::uintptr_t begin, std::uintptr_t end) {
    for (const auto& [address, bytes] : parts) {
      const std::uintptr_t low = std::max(begin, address);
      const std::uintptr_t high = std::min(end, address + bytes);
      if (low < high) faulty.add(low, high);
    }
  }
};

class faulty_device : public simulated_device {
 public:
  faulty_device(const options& settings, machine& to) : simulated_device(settings), to_(&to) {}

  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind = page_kind::normal) noexcept {
    void* const p = simulated_device::acquire(bytes, kind);
    if (p != nullptr) to_->add(p, bytes);
    return p;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    const bool works = simulated_device::release(p, bytes);
    if (works) to_->remove(p, bytes);
    return works;
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept {
    const bool works = simulated_device::map(p, bytes, memory);
    if (!works) return false;
    to_->add(p, bytes);
    to_->identities[at(p)] = memory.number;
    to_->mistakes += to_->broken.contains(memory.number);
    return true;
  }
  bool unmap(void* p, std::size_t bytes) noexcept {
    const bool works = simulated_device::unmap(p, bytes);
    if (!works) return false;
    if (to_->faulty.touches(at(p), at(p) + bytes)) to_->broken.insert(to_->identities[at(p)]);
    to_->remove(p, bytes);
    return true;
  }

 private:
  machine* to_;
};

template <typename Recipe>
using checked = caching_allocator<Recipe, faulty_device, extension::private_pools, extension::quotas,
                                  faulty_memory, extension::registrations<>, extension::sleep_mode>;

struct setting {
  std::uint64_t seed = 1;
  std::uint64_t fail_every = 0;
  std::size_t limit = unlimited;  // of the default pools
};

/// A random program, whose memory becomes faulty now and then.
template <typename Recipe>
class random_program {
  using allocator = checked<Recipe>;
  struct live_block {
    void* p;
    std::size_t bytes;
    block_handle handle{};
  };

 public:
  random_program(const setting& with, std::size_t operations) : with_(with), random_(with.seed) {
    allocator memory(faulty_device(
        {.capacity = 512_MiB, .address_seed = with.seed + 7, .fail_every = with.fail_every}, on_));
    if (with.limit != unlimited) {
      EXPECT_TRUE(memory.template get<extension::quotas>().set(default_pools, {.limit = with.limit}));
    }
    {
      const extension::private_pool pool(memory);
      const extension::pool_scope scope(pool, stream_id{2}, extension::scope_kind::plain);
      for (std::size_t step = 0; step < operations && !testing::Test::HasFatalFailure(); ++step) {
        run_one(memory);
        check(memory, step);
      }
      EXPECT_TRUE(wake(memory));
      deallocate(memory, live_.size());
      if (testing::Test::HasFatalFailure()) return;
      EXPECT_GT(on_.returned, 0u) << "faulty memory went back";
      EXPECT_GT(withheld_, 0u);
      EXPECT_GT(hit_, 0u) << "live blocks became faulty";
    }
    for (int tries = 0; tries < 20; ++tries) {
      memory.provider().advance(1'000'000'000);
      memory.trim();
    }
    EXPECT_EQ(memory.template get<faulty_memory>().current_usage(), faulty_memory_usage{});
    EXPECT_EQ(memory.current_usage().reserved, 0u);
    EXPECT_STREQ(memory.audit(), nullptr);
  }

 private:
  [[nodiscard]] std::size_t below(std::size_t n) { return random_() % n; }

  void run_one(allocator& memory) {
    if constexpr (allocator::has_ranges) {
      if (is_asleep_ && below(8) == 0) return (void)wake(memory);
    }
    const std::size_t what = below(100);
    if (what < 40) return allocate(memory);
    if (what < 76) return deallocate(memory, below(2) + live_.size() / 24);
    if (what < 82) return mark(memory);
    if (what < 86) return repair(memory);
    if (what < 89) return use_elsewhere(memory);
    if (what < 92) return reuse(memory);
    if (what < 94) return memory.trim(below(2) * 200_MiB);
    if (what < 96) return (void)memory.process_events();
    if (what < 97) return mark_wrongly(memory);
    if constexpr (allocator::has_ranges) {
      if (what < 98 && !is_asleep_)
        is_asleep_ = static_cast<bool>(
            memory.template get<extension::sleep_mode>().sleep(extension::sleep_contents::discard));
    }
  }
  void expect_healthy(const void* p, std::size_t bytes) {
    EXPECT_FALSE(on_.faulty.touches(at(p), at(p) + bytes)) << "a request was served from faulty memory";
  }
  void allocate(allocator& memory) {
    const std::size_t bytes = below(3) == 0 ? 1 + below(48_MiB) : 1 + below(below(2) == 0 ? 600_KiB : 6_MiB);
    live_block fresh{nullptr, bytes};
    if (below(4) == 0) {
      fresh.handle = memory.allocate_by_handle(bytes, stream_id{below(3)});
      fresh.p = fresh.handle.data();
    } else {
      fresh.p = memory.try_allocate(bytes, stream_id{below(3)});
    }
    if (fresh.p == nullptr) return;
    expect_healthy(fresh.p, bytes);
    live_.push_back(fresh);
  }
  void deallocate(allocator& memory, std::size_t times) {
    for (; times > 0 && !live_.empty(); --times) {
      std::swap(live_[below(live_.size())], live_.back());
      if (live_.back().handle) {
        memory.deallocate(live_.back().handle);
      } else {
        memory.deallocate(live_.back().p);
      }
      live_.pop_back();
    }
  }
  /// A part of the device's memory, or of the memory around it.
  [[nodiscard]] std::pair<std::uintptr_t, std::size_t> some_bytes() {
    if (on_.parts.empty()) return {0, 0};
    const auto part = std::next(on_.parts.begin(), static_cast<std::ptrdiff_t>(below(on_.parts.size())));
    const std::uintptr_t begin = part->first + below(part->second);
    const std::size_t kind = below(20);
    const std::size_t bytes = kind == 0  ? part->second * 2
                              : kind < 5 ? 1 + below(3_MiB)
                              : kind < 8 ? 1 + below(64_KiB)
                                         : 1 + below(4_KiB);
    return {kind == 1 ? part->first : begin, bytes};
  }
  void mark(allocator& memory) {
    if (on_.faulty.count() > 30) return repair(memory);
    const auto [begin, bytes] = some_bytes();
    if (bytes == 0) return;
    on_.mark(begin, begin + bytes);
    const auto marked =
        memory.template get<faulty_memory>().mark_faulty(reinterpret_cast<const void*>(begin), bytes);
    ASSERT_TRUE(marked);
    EXPECT_EQ(marked.bytes, intervals::bytes(on_.faulty.within(begin, begin + bytes)));
    hit_ += marked.live;
  }
  void repair(allocator& memory) {
    auto [begin, bytes] = some_bytes();
    if (bytes == 0) return;
    if (below(2) == 0) begin -= std::min<std::size_t>(begin, 2_MiB), bytes += 8_MiB;
    on_.faulty.remove(begin, begin + bytes);
    ASSERT_TRUE(
        memory.template get<faulty_memory>().mark_repaired(reinterpret_cast<const void*>(begin), bytes));
  }
  void mark_wrongly(allocator& memory) {
    auto door = memory.template get<faulty_memory>();
    EXPECT_STREQ(door.mark_faulty(this, 0).why, "there are no bytes to mark");
    EXPECT_STREQ(door.mark_repaired(this, 0).why, "there are no bytes to repair");
    EXPECT_EQ(door.mark_faulty(&on_, sizeof on_).bytes, 0u);
    EXPECT_TRUE(door.mark_repaired(&on_, sizeof on_));
    EXPECT_TRUE(door.is_safe(nullptr));
    EXPECT_TRUE(door.is_safe(&on_));
  }
  void use_elsewhere(allocator& memory) {
    if (live_.empty()) return;
    (void)memory.try_record_stream(live_[below(live_.size())].p, stream_id{3});
    memory.provider().submit(stream_id{3}, 1000);
    memory.provider().advance(below(2000));
  }
  void reuse(allocator& memory) {
    if (live_.empty() || is_asleep_) return;
    live_block& old = live_[below(live_.size())];
    if (old.handle) return;
    const std::size_t bytes = old.bytes - below(std::min<std::size_t>(old.bytes, 64));
    if (!memory.reuse_in_place(old.p, bytes, stream_id{below(3)})) return;
    expect_healthy(old.p, bytes);
    old.bytes = bytes;
  }
  [[nodiscard]] bool wake(allocator& memory) {
    if constexpr (allocator::has_ranges) {
      for (int tries = 0; tries < 20 && is_asleep_; ++tries)
        is_asleep_ = !memory.template get<extension::sleep_mode>().wake();
    }
    return !is_asleep_;
  }
  void check(allocator& memory, std::size_t step) {
    auto door = memory.template get<faulty_memory>();
    const usage before = memory.current_usage();
    const faulty_memory_usage now = door.current_usage();
    ASSERT_EQ(on_.mistakes, 0u) << step;
    ASSERT_EQ(now.faulty, on_.faulty.bytes()) << step;
    ASSERT_LE(now.withheld, before.pending()) << step;
    withheld_ += now.withheld;
    if (step % 16 != 0) return;
    std::set<std::uintptr_t> listed;
    intervals used;
    door.for_each_live([&](const block_view& b) {
      listed.insert(b.address);
      used.add(b.address, b.address + b.bytes);
    });
    ASSERT_EQ(now.live, used.bytes()) << step;
    for (const live_block& b : live_) {
      const bool is_faulty = on_.faulty.touches(at(b.p), at(b.p) + b.bytes);
      if (is_faulty) {
        ASSERT_TRUE(listed.contains(at(b.p))) << step;
      }
      // The block may be larger than the request.
      ASSERT_EQ(door.is_safe(b.p), !listed.contains(at(b.p))) << step;
      ASSERT_EQ(door.is_safe(bytes_of(b.p) + b.bytes - 1), !listed.contains(at(b.p))) << step;
    }
    ASSERT_STREQ(memory.audit(), nullptr) << step;
    ASSERT_EQ(memory.current_usage(), before) << "a query changes nothing";
    ASSERT_EQ(door.current_usage(), now);
  }

  machine on_;
  setting with_;
  std::mt19937_64 random_;
  std::vector<live_block> live_;
  std::size_t withheld_ = 0, hit_ = 0;
  bool is_asleep_ = false;
};

template <typename Recipe>
void run(const setting& with) {
  const random_program<Recipe> program(with, operations_or(by_day(3'000, 10'000)));
}

using npu_ranges = torch_npu_family::expandable;

TEST(faulty_memory_program, of_segments) { run<pytorch<>>({.seed = 1}); }
TEST(faulty_memory_program, of_segments_of_a_device_that_fails) {
  run<pytorch<>>({.seed = 2, .fail_every = 83});
}
TEST(faulty_memory_program, of_segments_of_all_streams) { run<cuda_async>({.seed = 3}); }
TEST(faulty_memory_program, of_size_classes) { run<power_of_two>({.seed = 4}); }
TEST(faulty_memory_program, of_torch_npu) { run<torch_npu<>>({.seed = 5}); }
TEST(faulty_memory_program, of_torch_npu_with_ranges) { run<npu_ranges>({.seed = 6}); }
TEST(faulty_memory_program, of_expandable_segments) { run<pytorch_family::expandable>({.seed = 7}); }
TEST(faulty_memory_program, of_expandable_segments_that_fail) {
  run<pytorch_family::expandable>({.seed = 8, .fail_every = 997});
}
TEST(faulty_memory_program, of_stitched) { run<stitched>({.seed = 9}); }
TEST(faulty_memory_program, of_stitched_memory_that_fails) {
  run<stitched>({.seed = 10, .fail_every = 1009});
}
TEST(faulty_memory_program, of_memory_that_is_appended) { run<paddle_virtual_memory_v2>({.seed = 11}); }
TEST(faulty_memory_program, of_pinned_memory) { run<pinned_packed>({.seed = 12}); }
TEST(faulty_memory_program, under_a_quota) {
  run<pytorch<>>({.seed = 13, .limit = 300_MiB});
  run<stitched>({.seed = 14, .limit = 300_MiB});
}

template <typename Recipe>
class faulty_memory_of : public testing::Test {};
using recipes =
    types_by_day<3, pytorch<>, stitched, cuda_async, pytorch_family::expandable, torch_npu<>, npu_ranges>;
TYPED_TEST_SUITE(faulty_memory_of, recipes);

TYPED_TEST(faulty_memory_of, a_live_block_is_reported_and_withheld_once_freed) {
  machine on;
  checked<TypeParam> memory(faulty_device({}, on));
  auto door = memory.template get<faulty_memory>();
  void* const kept = memory.allocate(3_MiB);
  void* const p = memory.allocate(4_MiB);
  ASSERT_TRUE(door.is_safe(p));
  on.mark(at(p) + 1_MiB, at(p) + 1_MiB + 1);
  const auto marked = door.mark_faulty(bytes_of(p) + 1_MiB, 1);
  ASSERT_TRUE(marked);
  EXPECT_EQ(marked.bytes, 1u);
  EXPECT_EQ(marked.live, 1u);
  EXPECT_FALSE(door.is_safe(p));
  EXPECT_TRUE(door.is_safe(kept));
  std::vector<block_view> seen;
  door.for_each_live([&](const block_view& b) { seen.push_back(b); });
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].address, at(p));
  EXPECT_EQ(seen[0].requested, 4_MiB);
  EXPECT_EQ(door.current_usage(), (faulty_memory_usage{1, 0, seen[0].bytes}));
  EXPECT_FALSE(memory.reuse_in_place(p, 4_MiB, stream_id{})) << "the block keeps its request";
  const usage before = memory.current_usage();
  const std::size_t unit = memory.policies().rounding.block_size(1);
  memory.deallocate(p);
  EXPECT_EQ(door.current_usage(), (faulty_memory_usage{1, unit, 0}));
  EXPECT_EQ(memory.current_usage().pending(), unit);
  EXPECT_EQ(memory.current_usage().allocated, before.allocated - seen[0].bytes);
  EXPECT_FALSE(door.is_safe(bytes_of(p) + 1_MiB));
  EXPECT_TRUE(door.is_safe(p));
  EXPECT_STREQ(memory.audit(), nullptr);
  EXPECT_EQ(memory.try_deallocate(bytes_of(p) + 1_MiB), false);
  void* const other = memory.allocate(4_MiB);
  EXPECT_TRUE(door.is_safe(other));
  EXPECT_TRUE(at(other) + 4_MiB <= at(p) + 1_MiB || at(other) > at(p) + 1_MiB);
  memory.deallocate(other);
  ASSERT_TRUE(door.mark_repaired(bytes_of(p) + 1_MiB, 1));
  EXPECT_EQ(door.current_usage(), faulty_memory_usage{});
  EXPECT_EQ(memory.current_usage().pending(), 0u);
  EXPECT_EQ(memory.allocate(4_MiB), p);
  EXPECT_STREQ(memory.audit(), nullptr);
}

TYPED_TEST(faulty_memory_of, free_memory_goes_back_once_no_block_uses_its_part) {
  machine on;
  checked<TypeParam> memory(faulty_device({}, on));
  auto door = memory.template get<faulty_memory>();
  void* const kept = memory.allocate(2_MiB);
  void* const p = memory.allocate(100_KiB + 2_MiB);
  memory.deallocate(p);
  on.mark(at(p), at(p) + 3);
  ASSERT_EQ(door.mark_faulty(p, 3).live, 0u);
  EXPECT_GT(door.current_usage().withheld, 0u);
  memory.trim();
  const bool shares_part = memory.current_usage().pending() > 0;
  EXPECT_EQ(door.current_usage().faulty, shares_part ? 3u : 0u);
  EXPECT_TRUE(door.is_safe(kept));
  memory.deallocate(kept);
  memory.trim();
  EXPECT_EQ(door.current_usage(), faulty_memory_usage{});
  EXPECT_EQ(memory.current_usage().reserved, 0u);
  EXPECT_EQ(memory.current_usage().pending(), 0u);
  EXPECT_EQ(on.returned, 1u);
}

TYPED_TEST(faulty_memory_of, a_pending_block_is_withheld_after_its_event) {
  machine on;
  checked<TypeParam> memory(faulty_device({}, on));
  auto door = memory.template get<faulty_memory>();
  void* const p = memory.allocate(4_MiB);
  ASSERT_TRUE(memory.record_stream(p, stream_id{1}));
  memory.provider().submit(stream_id{1}, 1'000'000);
  memory.deallocate(p);
  ASSERT_EQ(door.mark_faulty(p, 4_MiB).live, 0u);
  EXPECT_EQ(door.current_usage().withheld, 0u);
  memory.provider().advance(1'000'000);
  (void)memory.process_events();
  EXPECT_GE(door.current_usage().withheld, 4_MiB);
  void* const other = memory.allocate(4_MiB);
  EXPECT_TRUE(at(other) >= at(p) + 4_MiB || at(other) + 4_MiB <= at(p));
}

TYPED_TEST(faulty_memory_of, a_request_fails_if_only_faulty_memory_is_left_and_says_so) {
  machine on;
  checked<TypeParam> memory(faulty_device({.capacity = 64_MiB}, on));
  auto door = memory.template get<faulty_memory>();
  std::vector<void*> all;
  while (void* const p = memory.try_allocate(3_MiB)) all.push_back(p);
  ASSERT_GT(all.size(), 12u);
  std::vector<void*> small;
  while (void* const p = memory.try_allocate(4096)) small.push_back(p);
  // Registered memory does not go back, so that recovery has nothing to release.
  auto registered = memory.template get<extension::registrations<>>();
  for (void* const p : all) {
    ASSERT_TRUE(registered.register_memory(p, 3_MiB));
    ASSERT_EQ(door.mark_faulty(p, 3_MiB).bytes, 3_MiB);
  }
  for (void* const p : all) memory.deallocate(p);
  EXPECT_GE(memory.current_usage().pending(), all.size() * 3_MiB);
  EXPECT_EQ(memory.try_allocate(3_MiB), nullptr);
  EXPECT_STREQ(memory.audit(), nullptr);
  for (void* const p : all) ASSERT_TRUE(registered.deregister_memory(p, 3_MiB));
  for (void* const p : small) memory.deallocate(p);
  EXPECT_NE(memory.try_allocate(3_MiB), nullptr) << "recovery gives faulty memory back";
  EXPECT_LT(door.current_usage().faulty, all.size() * 3_MiB);
  EXPECT_STREQ(memory.audit(), nullptr);
}

// Streams share free blocks. Work that was submitted before the free may still use what is not faulty.
TEST(faulty_memory, the_rest_of_a_block_waits_for_its_stream) {
  constexpr stream_id first{1}, other{2};
  constexpr std::uint64_t long_time = 1'000'000'000;
  policies<cuda_async> only_done;
  only_done.streams.follow_dependencies = only_done.streams.insert_dependencies = false;
  for (const bool is_live : {false, true}) {
    for (const bool is_repaired : {false, true}) {
      caching_allocator<cuda_async, simulated_device, faulty_memory> memory{simulated_device{}, only_done};
      auto door = memory.get<faulty_memory>();
      void* const p = memory.allocate(6_MiB, first);
      const auto is_inside = [p](const void* q) { return at(q) >= at(p) && at(q) < at(p) + 6_MiB; };
      if (is_live) (void)door.mark_faulty(bytes_of(p) + 2_MiB, 1);
      memory.provider().submit(first, long_time);
      memory.deallocate(p);
      if (!is_live) (void)door.mark_faulty(bytes_of(p) + 2_MiB, 1);
      ASSERT_EQ(door.current_usage().withheld, 512u);
      if (is_repaired) (void)door.mark_repaired(p, 6_MiB);
      ASSERT_EQ(door.current_usage().withheld, is_repaired ? 0u : 512u);
      EXPECT_FALSE(is_inside(memory.allocate(2_MiB, other))) << "the part below";
      EXPECT_FALSE(is_inside(memory.allocate(4_MiB - 512, other))) << "the part above";
      memory.provider().advance(long_time);
      EXPECT_EQ(memory.allocate(2_MiB, other), p);
      EXPECT_TRUE(is_inside(memory.allocate(4_MiB - 512, other)));
      EXPECT_STREQ(memory.audit(), nullptr);
    }
  }
}

TEST(faulty_memory, says_why_a_request_fails) {
  caching_allocator<pytorch<>, simulated_device, faulty_memory> memory(
      simulated_device({.capacity = 20_MiB}));
  auto door = memory.get<faulty_memory>();
  void* const kept = memory.allocate(2_MiB);
  void* const p = memory.allocate(16_MiB);
  memory.deallocate(p);
  ASSERT_TRUE(door.mark_faulty(p, 15_MiB));
  try {
    (void)memory.allocate(8_MiB);
    ADD_FAILURE() << "it was served";
  } catch (const out_of_memory& error) {
    EXPECT_STREQ(error.why(),
                 "15.00 MiB of unused memory are withheld, because 15.00 MiB are faulty; reserved 20.00 MiB");
  }
  EXPECT_LT(observe::explain(memory, 8_MiB).after_pending, 8_MiB) << "no wait would help";
  EXPECT_NE(memory.try_allocate(2_MiB), nullptr) << "the healthy rest serves";
  memory.deallocate(kept);
}

TEST(faulty_memory, statistics_count_withheld_bytes_as_pending) {
  caching_allocator<pytorch<>, simulated_device, faulty_memory> memory;
  auto door = memory.get<faulty_memory>();
  void* const p = memory.allocate(20_MiB);
  memory.deallocate(p);
  const auto before = memory.statistics().all;
  ASSERT_TRUE(door.mark_faulty(bytes_of(p) + 1_MiB + 1, 1024));
  const auto during = memory.statistics().all;
  EXPECT_EQ(during.active_bytes.current, 1536);
  EXPECT_EQ(during.active.current, 1);
  EXPECT_EQ(during.allocated_bytes.current, 0);
  EXPECT_EQ(during.allocated_bytes.peak, before.allocated_bytes.peak);
  EXPECT_EQ(during.requested_bytes, before.requested_bytes);
  EXPECT_EQ(during.active_bytes.allocated - during.active_bytes.freed, 1536);
  EXPECT_EQ(during.inactive_split.current, 2);
  EXPECT_EQ(during.inactive_split_bytes.current, std::int64_t(20_MiB - 1536));
  ASSERT_TRUE(door.mark_repaired(p, 20_MiB));
  ASSERT_TRUE(door.mark_faulty(bytes_of(p) + 20_MiB - 1, 1));
  EXPECT_EQ(memory.statistics().all.inactive_split.current, 1);
  ASSERT_TRUE(door.mark_faulty(p, 1));
  EXPECT_EQ(memory.statistics().all.inactive_split.current, 1);
  EXPECT_EQ(memory.statistics().all.inactive_split_bytes.current, std::int64_t(20_MiB - 1024));
  ASSERT_TRUE(door.mark_faulty(p, 20_MiB));
  EXPECT_EQ(memory.statistics().all.inactive_split.current, 0);
  EXPECT_EQ(memory.statistics().all.inactive_split_bytes.current, 0);
  ASSERT_TRUE(door.mark_repaired(p, 20_MiB));
  const auto after = memory.statistics().all;
  EXPECT_EQ(after.active_bytes.current, 0);
  EXPECT_EQ(after.inactive_split.current, 0);
  EXPECT_EQ(after.inactive_split_bytes.current, 0);
  EXPECT_STREQ(memory.audit(), nullptr);
}

TEST(faulty_memory, works_without_statistics) {
  caching_allocator<pytorch<>, simulated_device, extension::count_totals, faulty_memory> memory;
  void* const p = memory.allocate(4_MiB);
  memory.deallocate(p);
  ASSERT_TRUE(memory.get<faulty_memory>().mark_faulty(p, 1));
  EXPECT_EQ(memory.current_usage().active, 512u);
  EXPECT_EQ(memory.current_usage().allocated, 0u);
  memory.trim();
  EXPECT_EQ(memory.current_usage(), usage({.limit = 80_GiB, .has_limit = false}));
}

TEST(faulty_memory, marks_the_same_bytes_twice_as_once) {
  caching_allocator<pytorch<>, simulated_device, faulty_memory> memory;
  auto door = memory.get<faulty_memory>();
  auto* const p = bytes_of(memory.allocate(4_MiB));
  ASSERT_TRUE(door.mark_faulty(p, 100));
  ASSERT_TRUE(door.mark_faulty(p + 50, 100));
  ASSERT_TRUE(door.mark_faulty(p + 150, 10));
  EXPECT_EQ(door.current_usage().faulty, 160u);
  ASSERT_TRUE(door.mark_repaired(p + 40, 10));
  EXPECT_EQ(door.current_usage().faulty, 150u);
  ASSERT_TRUE(door.mark_repaired(p, ~std::size_t{0}));
  EXPECT_EQ(door.current_usage(), faulty_memory_usage{});
  EXPECT_TRUE(door.is_safe(p));
}

TEST(faulty_memory, keeps_faulty_chunks_during_sleep) {
  machine on;
  checked<stitched> memory(faulty_device({}, on));
  auto door = memory.get<faulty_memory>();
  void* const p = memory.allocate(64_MiB);
  on.mark(at(p) + 3, at(p) + 5);
  ASSERT_EQ(door.mark_faulty(bytes_of(p) + 3, 2).live, 1u);
  const auto slept = memory.get<extension::sleep_mode>().sleep(extension::sleep_contents::discard);
  ASSERT_TRUE(slept);
  EXPECT_GT(slept.kept, 0u);
  EXPECT_EQ(memory.current_usage().reserved, slept.kept);
  EXPECT_FALSE(door.is_safe(p));
  EXPECT_EQ(door.mark_faulty(bytes_of(p) + 63_MiB, 5).bytes, slept.kept == 64_MiB ? 5u : 0u) << "that sleeps";
  memory.deallocate(p);
  memory.trim();
  ASSERT_TRUE(memory.get<extension::sleep_mode>().wake());
  EXPECT_FALSE(door.is_safe(bytes_of(p) + 3));
  EXPECT_STREQ(memory.audit(), nullptr);
  memory.trim();
  EXPECT_EQ(memory.current_usage().reserved, 0u);
  EXPECT_EQ(door.current_usage(), faulty_memory_usage{});
}

TEST(faulty_memory, keeps_registered_memory_until_it_is_deregistered) {
  machine on;
  checked<pytorch<>> memory(faulty_device({}, on));
  auto door = memory.get<faulty_memory>();
  void* const p = memory.allocate(30_MiB);
  ASSERT_TRUE(memory.get<extension::registrations<>>().register_memory(p, 30_MiB));
  memory.deallocate(p);
  ASSERT_TRUE(door.mark_faulty(p, 1));
  memory.trim();
  EXPECT_EQ(door.current_usage().withheld, 512u);
  EXPECT_STREQ(memory.audit(), nullptr);
  ASSERT_TRUE(memory.get<extension::registrations<>>().deregister_memory(p, 30_MiB));
  memory.trim();
  EXPECT_EQ(door.current_usage(), faulty_memory_usage{});
  EXPECT_EQ(memory.current_usage().reserved, 0u);
}

TEST(faulty_memory, forbids_checkpoints_of_a_pool_with_faulty_memory) {
  caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::checkpoints,
                    faulty_memory>
      memory;
  const extension::private_pool pool(memory);
  void* p = nullptr;
  {
    const extension::pool_scope scope(pool, extension::scope_kind::capture);
    p = memory.allocate(3_MiB);
  }
  void* const other = memory.allocate(3_MiB);
  auto checkpoints = memory.get<extension::checkpoints>();
  const auto recorded = checkpoints.record(pool.id());
  ASSERT_TRUE(memory.get<faulty_memory>().mark_faulty(other, 1));
  EXPECT_TRUE(checkpoints.restore(recorded)) << "another pool is faulty";
  ASSERT_TRUE(memory.get<faulty_memory>().mark_faulty(p, 1));
  EXPECT_STREQ(checkpoints.restore(recorded).why, "the pool has faulty memory");
  ASSERT_TRUE(memory.get<faulty_memory>().mark_repaired(p, 1));
  EXPECT_TRUE(checkpoints.restore(recorded));
  memory.deallocate(p);
  memory.deallocate(other);
}

TEST(faulty_memory, a_withheld_block_is_no_leak_and_a_free_of_it_says_what_it_is) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  leak_checked<caching_allocator<pytorch<>, simulated_device, faulty_memory>> memory;
  void* const p = memory.allocate(4_MiB);
  memory.deallocate(p);
  ASSERT_TRUE(memory.get<faulty_memory>().mark_faulty(p, 1));
  EXPECT_DEATH(memory.deallocate(p), "free block of 512 bytes at .*, perhaps freed before");
  std::size_t live = 0;
  observe::for_each_block(
      memory, [&live](const segment_view&, const block_view& b) { live += b.is == block_view::state::live; });
  EXPECT_EQ(live, 0u);
}

TEST(faulty_memory, aborts_if_the_function_uses_the_allocator) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  locked<caching_allocator<pytorch<>, simulated_device, faulty_memory>> memory;
  void* const p = memory.allocate(1_MiB);
  ASSERT_TRUE(memory.get<faulty_memory>().mark_faulty(p, 1));
  EXPECT_DEATH(memory.get<faulty_memory>().for_each_live([&](const block_view&) { memory.trim(); }),
               "a function given to an extension must not use the allocator");
}

TEST(faulty_memory, of_one_device_of_several) {
  std::vector<simulated_device> devices;
  for (unsigned number : {0u, 1u}) devices.push_back(simulated_device({.device = number}));
  per_device<caching_allocator<pytorch<>, simulated_device, faulty_memory>> memory(std::move(devices));
  void* const p = memory.allocate(1_MiB, 1);
  EXPECT_EQ(memory.front(0).get<faulty_memory>().mark_faulty(p, 1).bytes, 0u);
  EXPECT_EQ(memory.front(1).get<faulty_memory>().mark_faulty(p, 1).bytes, 1u);
  memory.deallocate(p);
}

struct memory_range {
  const void* p;
  std::size_t bytes;
};
// What torch_npu's check_uce_in_memory returns.
template <typename Allocator>
int check_faults(Allocator& allocator, const std::vector<memory_range>& reported) {
  auto memory = allocator.template get<tessera::extension::faulty_memory>();
  std::size_t found = 0;
  for (const memory_range& each : reported) found += memory.mark_faulty(each.p, each.bytes).bytes;
  if (reported.empty()) return 0;
  if (found == 0) return 1;  // it is not in this allocator
  allocator.trim();
  return memory.current_usage().faulty == 0 ? 2 : 3;  // it went back: repeat the step; or load a checkpoint
}

/// Emptying the cache gives idle faulty memory back, so its pool does not hold it.
template <typename Recipe>
void faulty_memory_is_not_held() {
  caching_allocator<Recipe, simulated_device, extension::private_pools, extension::quotas, faulty_memory> in{
      simulated_device{{.capacity = 48_MiB}}};
  auto pools = in.template get<extension::private_pools>();
  const pool_id tenant = pools.create();
  ASSERT_TRUE(in.template get<extension::quotas>().set(tenant, {.guaranteed = 40_MiB, .limit = 40_MiB}));
  ASSERT_TRUE(pools.open(tenant, extension::scope_kind::plain));
  void* const p = in.allocate(10_MiB);
  void* const beside = in.allocate(1_MiB);
  EXPECT_EQ(in.template get<faulty_memory>().mark_faulty(p, 64).live, 1u);
  in.deallocate(p);
  in.deallocate(beside);
  EXPECT_GT(in.template get<faulty_memory>().current_usage().withheld, 0u);
  EXPECT_EQ(pools.usage_of(tenant).non_releasable, 0u);
  EXPECT_EQ(in.audit(), nullptr);
  void* const whole = in.try_allocate(40_MiB);
  EXPECT_NE(whole, nullptr) << "within what is guaranteed";
  EXPECT_EQ(in.audit(), nullptr);
  EXPECT_EQ(pools.usage_of(tenant).non_releasable, 40_MiB);
}
TEST(faulty_memory, keeps_nothing_from_a_pool_whose_faulty_memory_is_idle) {
  faulty_memory_is_not_held<pytorch<>>();
  faulty_memory_is_not_held<stitched>();
}

/// Gives the segments of a pool, and gives the same memory again.
struct one_segment {
  bool is_taken = false;
  void* acquire(std::size_t) noexcept {
    return std::exchange(is_taken, true) ? nullptr : reinterpret_cast<void*>(std::uintptr_t{1} << 46);
  }
  bool release(void*, std::size_t) noexcept { return std::exchange(is_taken, false); }
};

/// Marks memory of a provider that keeps what is released, and requests as much again.
template <typename Provider>
void stays_withheld_over(Provider from) {
  caching_allocator<pytorch<>, Provider, extension::private_pools, faulty_memory> in(std::move(from));
  auto* const p = static_cast<std::byte*>(in.allocate(20_MiB));
  EXPECT_EQ(in.template get<faulty_memory>().mark_faulty(p + 4096, 64).live, 1u);
  in.deallocate(p);
  in.trim();
  EXPECT_FALSE(in.template get<faulty_memory>().is_safe(p + 4096));
  EXPECT_GT(in.template get<faulty_memory>().current_usage().withheld, 0u);
  EXPECT_EQ(in.template get<extension::private_pools>().usage_of(default_pools).non_releasable, 20_MiB);
  EXPECT_EQ(in.audit(), nullptr);
  auto* const again = static_cast<std::byte*>(in.allocate(20_MiB));
  EXPECT_FALSE(again <= p + 4096 && p + 4096 < again + 20_MiB);
  EXPECT_TRUE(in.template get<faulty_memory>().mark_repaired(p, 20_MiB));
  in.trim();
  EXPECT_EQ(in.current_usage().reserved, 20_MiB) << "repaired memory goes back";
}
TEST(faulty_memory, withholds_what_would_not_go_back_to_the_device) {
  using preallocating_device = preallocating<simulated_device>;
  simulated_device device;
  preallocating_device::region region(device, 64_MiB);
  preallocating_device in_region(region);
  stays_withheld_over(preallocating_device(region));
  stays_withheld_over(provider_ref<preallocating_device>(in_region));
  using domains = memory_domains<preallocating_device, spill_banks>;
  std::vector<domains::bank> banks;
  banks.push_back({preallocating_device(region), "one"});
  stays_withheld_over(domains(std::move(banks)));
}
TEST(faulty_memory, withholds_memory_of_a_source) {
  one_segment source;  // outlives the allocator
  caching_allocator<pytorch<>, simulated_device, extension::private_pools, faulty_memory> in;
  auto pools = in.get<extension::private_pools>();
  const pool_id pool = pools.create(source);
  ASSERT_TRUE(pools.open(pool, extension::scope_kind::plain));
  auto* const p = static_cast<std::byte*>(in.allocate(20_MiB));
  ASSERT_TRUE(pools.close(pool));
  EXPECT_EQ(in.get<faulty_memory>().mark_faulty(p, 64).live, 1u);
  in.deallocate(p);
  ASSERT_TRUE(pools.release(pool));
  in.trim();
  EXPECT_FALSE(in.get<faulty_memory>().is_safe(p));
  EXPECT_TRUE(source.is_taken);
}

TEST(faulty_memory, answers_as_torch_npu) {
  locked<caching_allocator<torch_npu<>, simulated_npu, faulty_memory>> npu;
  void* const weights = npu.allocate(30_MiB);
  void* const step = npu.allocate(40_MiB);
  npu.deallocate(step);
  EXPECT_EQ(check_faults(npu, {}), 0);
  EXPECT_EQ(check_faults(npu, {{&npu, 64}}), 1);
  EXPECT_EQ(check_faults(npu, {{&npu, 64}, {step, 64}}), 2);
  EXPECT_EQ(check_faults(npu, {{weights, 64}}), 3);
  EXPECT_FALSE(npu.get<faulty_memory>().is_safe(weights));
  ASSERT_TRUE(npu.get<faulty_memory>().mark_repaired(weights, 64));
  EXPECT_TRUE(npu.get<faulty_memory>().is_safe(weights));
  npu.deallocate(weights);
}

// A block is faulty only if a mark came after its request.
template <typename Recipe>
void run_threads() {
  locked<caching_allocator<Recipe, simulated_device, faulty_memory>> shared{
      simulated_device({.capacity = 256_MiB})};
  std::atomic<std::uint64_t> marks = 0;
  std::atomic<std::size_t> mistakes = 0;
  std::atomic<bool> is_over = false;
  std::atomic<void*> latest = nullptr;
  std::vector<std::thread> workers;
  for (std::size_t t = 0; t < 3; ++t) {
    workers.emplace_back([&, t] {
      std::mt19937_64 random(t);
      std::vector<void*> live;
      while (!is_over) {
        const std::uint64_t before = marks.load();
        if (void* const p = shared.try_allocate(1 + random() % 6_MiB, stream_id{t})) {
          mistakes += !shared.template get<faulty_memory>().is_safe(p) && marks.load() == before;
          latest = p;
          live.push_back(p);
        }
        if (live.size() > 12) {
          std::swap(live[random() % live.size()], live.back());
          shared.deallocate(live.back());
          live.pop_back();
        }
      }
      for (void* const p : live) shared.deallocate(p);
    });
  }
  std::mt19937_64 random(9);
  std::size_t marked = 0;
  for (int rounds = 0; rounds < 100 || marked == 0;) {
    auto door = shared.template get<faulty_memory>();
    std::byte* const p = bytes_of(latest.load());
    std::this_thread::yield();
    if (p == nullptr) continue;
    ++rounds;
    ++marks;
    marked += door.mark_faulty(p + random() % 1_MiB, 1 + random() % 8_KiB).bytes;
    ++marks;
    if (random() % 4 == 0) shared.trim();
    if (random() % 3 == 0) (void)door.mark_repaired(nullptr, at(p) + 8_MiB);
  }
  is_over = true;
  for (std::thread& each : workers) each.join();
  EXPECT_EQ(mistakes, 0u);
  EXPECT_GT(marked, 0u);
  shared.trim();
  shared.trim();
  EXPECT_EQ(shared.template get<faulty_memory>().current_usage(), faulty_memory_usage{});
  EXPECT_EQ(shared.current_usage().reserved, 0u);
  EXPECT_STREQ(shared.audit(), nullptr);
}
TEST(faulty_memory_threads, share_segments) { run_threads<pytorch<>>(); }
TEST(faulty_memory_threads, share_ranges) { run_threads<stitched>(); }

TEST(faulty_memory, ignores_memory_that_sleeps) {
  caching_allocator<recipe::stitched, simulated_device, extension::faulty_memory, extension::sleep_mode>
      memory;
  void* const p = memory.allocate(20_MiB);
  ASSERT_TRUE(memory.get<extension::sleep_mode>().sleep(extension::sleep_contents::discard));
  const extension::faulty_memory_result marked = memory.get<extension::faulty_memory>().mark_faulty(p, 64);
  EXPECT_EQ(marked.bytes, 0u);
  EXPECT_EQ(marked.live, 0u);
  EXPECT_TRUE(memory.get<extension::faulty_memory>().is_safe(p));
}

}  // namespace
