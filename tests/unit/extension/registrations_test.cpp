// SPDX-License-Identifier: Apache-2.0
// Registered memory never moves, and a registry knows all memory. A network card knows the physical memory behind each
// address that is registered with it. Whether it is right is read from the calls of the device.
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/quotas.hpp>
#include <tessera/extension/registrations.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/observe/inspect.hpp>
#include <tessera/plan/planned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../../by_day.hpp"
#include "operations.hpp"

namespace {

using namespace tessera;
using namespace tessera::literals;
using extension::registered_at_sleep, extension::registrations, extension::sleep_contents;

/// What the device has, what a cache of registrations knows, and what a network card knows. Counts what breaks a rule.
struct network {
  struct part {
    std::size_t bytes = 0;
    std::uint64_t identity = 0;  ///< of the physical memory
    bool operator==(const part&) const = default;
  };
  using parts = std::map<std::uintptr_t, part>;
  struct registered {
    part known;
    std::size_t count = 0;
    bool is_present = true;  ///< false while it sleeps
  };

  parts device, cache;
  std::map<std::uintptr_t, registered> card;
  bool may_unmap_registered = false;
  bool has_changed = false;
  std::size_t mistakes = 0, maps = 0, unmaps = 0;

  // Calls of the device.

  void add(const void* p, std::size_t bytes, std::uint64_t identity) {
    device[address_of(p)] = {bytes, identity};
    has_changed = true;
  }
  /// The device is about to take memory back.
  void check_forgotten(const void* p) { mistakes += cache.contains(address_of(p)); }
  void remove(const void* p) {
    device.erase(address_of(p));
    has_changed = true;
  }

  // Calls of the allocator.

  void on_map(void* p, std::size_t bytes) noexcept {
    ++maps;
    const auto found = device.find(address_of(p));
    if (found == device.end() || found->second.bytes != bytes) {
      ++mistakes;
      return;
    }
    mistakes += !cache.insert(*found).second;
    if (const auto on = card.find(found->first); on != card.end())
      on->second = {found->second, on->second.count};
  }
  void on_unmap(void* p, std::size_t bytes) noexcept {
    ++unmaps;
    const auto found = device.find(address_of(p));
    mistakes += found == device.end() || found->second.bytes != bytes;
    mistakes += cache.erase(address_of(p)) != 1;
    if (const auto on = card.find(address_of(p)); on != card.end()) {
      mistakes += !may_unmap_registered;
      on->second.is_present = false;
    }
  }

  // Calls of the program.

  /// Changes the registrations of the parts with bytes in [address, end).
  void change(std::uintptr_t address, std::uintptr_t end, int more) {
    auto at = card.upper_bound(address);
    if (more > 0) {
      for (auto each = std::prev(device.upper_bound(address)); each != device.end() && each->first < end;
           ++each)
        ++card.try_emplace(each->first, registered{each->second}).first->second.count;
      return;
    }
    for (--at; at != card.end() && at->first < end;)
      at = --at->second.count == 0 ? card.erase(at) : std::next(at);
  }
  [[nodiscard]] std::size_t registered_bytes() const {
    std::size_t bytes = 0;
    for (const auto& [address, on] : card) bytes += on.known.bytes;
    return bytes;
  }
  /// The number of pairs of an address and physical memory that someone knows and the device does not have, and of
  /// those that the cache lacks.
  [[nodiscard]] std::size_t stale() const {
    std::size_t count = cache == device ? 0 : 1;
    for (const auto& [address, on] : card) {
      const auto found = device.find(address);
      const bool is_there = found != device.end() && found->second == on.known;
      count += on.is_present ? !is_there : !may_unmap_registered || found != device.end();
    }
    return count;
  }
  [[nodiscard]] static std::uintptr_t address_of(const void* p) {
    return reinterpret_cast<std::uintptr_t>(p);
  }
};

/// Tells a network what memory it has.
class known_device : public simulated_device {
 public:
  known_device(const options& settings, network& to) : simulated_device(settings), to_(&to) {}

  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind = page_kind::normal) noexcept {
    void* const p = simulated_device::acquire(bytes, kind);
    if (p != nullptr) to_->add(p, bytes, --segments_);
    return p;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    to_->check_forgotten(p);
    const bool works = simulated_device::release(p, bytes);
    if (works) to_->remove(p);
    return works;
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept {
    const bool works = simulated_device::map(p, bytes, memory);
    if (works) to_->add(p, bytes, memory.number);
    return works;
  }
  bool unmap(void* p, std::size_t bytes) noexcept {
    to_->check_forgotten(p);
    const bool works = simulated_device::unmap(p, bytes);
    if (works) to_->remove(p);
    return works;
  }

 private:
  network* to_;
  std::uint64_t segments_ = 0;
};

/// A registry is an object of the extension, so it refers to the network.
struct connection {
  network* to = nullptr;
  void on_map(void* p, std::size_t bytes) noexcept { to->on_map(p, bytes); }
  void on_unmap(void* p, std::size_t bytes) noexcept { to->on_unmap(p, bytes); }
};
using watch = registrations<connection>;

template <typename Recipe>
using watched = caching_allocator<Recipe, known_device, watch, extension::private_pools, extension::quotas,
                                  extension::sleep_mode>;

struct setting {
  registered_at_sleep at_sleep = registered_at_sleep::stays;
  std::uint64_t fail_every = 0;
  std::uint64_t seed = 1;
};

/// A random program over an allocator and a network.
template <typename Recipe>
class random_program {
  using allocator = watched<Recipe>;
  struct bytes_at {
    std::byte* p;
    std::size_t bytes;
  };

 public:
  random_program(const setting& with, std::size_t operations) : with_(with), random_(with.seed) {
    allocator memory{
        known_device({.capacity = 512_MiB, .address_seed = with.seed + 7, .fail_every = with.fail_every},
                     net_),
        {},
        watch{{&net_}, with.at_sleep}};
    const extension::private_pool pool(memory);
    const extension::pool_scope scope(pool, stream_id{2}, extension::scope_kind::plain);
    for (std::size_t step = 0; step < operations && !testing::Test::HasFatalFailure(); ++step) {
      net_.has_changed = false;
      run_one(memory);
      check(memory, step);
    }
    register_some(memory);
    net_.may_unmap_registered = true;
    is_registered_at_end_ = !net_.card.empty();
  }
  /// Checks what is left after the allocator ended.
  void expect_end() const {
    EXPECT_EQ(net_.mistakes, 0u) << "at the end of the allocator";
    EXPECT_TRUE(net_.cache.empty());
    EXPECT_TRUE(is_registered_at_end_) << "the end met no registered memory";
    EXPECT_GT(registered_, 0u);
    EXPECT_GT(refused_, 0u);
    EXPECT_GT(net_.unmaps, 10u);
  }

 private:
  [[nodiscard]] std::size_t below(std::size_t n) { return random_() % n; }

  void run_one(allocator& memory) {
    if constexpr (allocator::has_ranges) {
      if (is_asleep_ && below(8) == 0) return change_sleep(memory);
    }
    const std::size_t what = below(100);
    if (what < 37) return allocate(memory);
    if (what < 73) return deallocate(memory, live_.size() / 12);
    if (what < 84) return register_some(memory);
    if (what < 93) return deregister_some(memory);
    if (what < 95) return register_wrongly(memory);
    if (what < 96) return memory.trim(below(2) * 200_MiB);
    if (what < 97) return (void)memory.process_events();
    if (what < 98) return use_elsewhere(memory);
    if constexpr (allocator::has_ranges) return change_sleep(memory);
  }
  void allocate(allocator& memory) {
    const std::size_t bytes = below(3) == 0 ? 1 + below(48_MiB) : 1 + below(below(2) == 0 ? 600_KiB : 6_MiB);
    if (auto* const p = static_cast<std::byte*>(memory.try_allocate(bytes, stream_id{below(3)})))
      live_.push_back({p, bytes});
  }
  void deallocate(allocator& memory, std::size_t times) {
    for (; times > 0 && !live_.empty(); --times) {
      std::swap(live_[below(live_.size())], live_.back());
      memory.deallocate(live_.back().p);
      live_.pop_back();
    }
  }
  void use_elsewhere(allocator& memory) {
    if (live_.empty()) return;
    (void)memory.try_record_stream(live_[below(live_.size())].p, stream_id{3});
    memory.provider().submit(stream_id{3}, 1000);
    memory.provider().advance(below(2000));
  }
  void register_some(allocator& memory) {
    if (live_.empty() || registered_now_.size() > 30) return;
    bytes_at part = live_[below(live_.size())];
    if (below(3) == 0 && part.bytes > 2) {
      const std::size_t skipped = below(part.bytes - 1);
      part = {part.p + skipped, 1 + below(part.bytes - skipped)};
    }
    if (below(4) == 0 && !registered_now_.empty()) part = registered_now_[below(registered_now_.size())];
    const auto begin = network::address_of(part.p);
    if (outcome done = memory.template get<watch>().register_memory(part.p, part.bytes); !done) {
      ASSERT_TRUE(is_asleep_) << done.why;
      return;
    }
    registered_now_.push_back(part);
    net_.change(begin, begin + part.bytes, 1);
    ++registered_;
  }
  void deregister_some(allocator& memory) {
    while (registered_now_.size() > 1) {
      std::swap(registered_now_[below(registered_now_.size())], registered_now_.back());
      const bytes_at part = registered_now_.back();
      registered_now_.pop_back();
      const auto begin = network::address_of(part.p);
      net_.change(begin, begin + part.bytes, -1);
      const outcome done = memory.template get<watch>().deregister_memory(part.p, part.bytes);
      ASSERT_TRUE(done) << done.why;
      if (below(6) != 0) return;
    }
  }
  void register_wrongly(allocator& memory) {
    auto door = memory.template get<watch>();
    EXPECT_FALSE(door.register_memory(this, 8));
    EXPECT_FALSE(door.register_memory(nullptr, 8));
    if (live_.empty()) return;
    const bytes_at part = live_[below(live_.size())];
    EXPECT_FALSE(door.register_memory(part.p, 0));
    EXPECT_FALSE(door.register_memory(part.p, 4_GiB));
    EXPECT_FALSE(door.register_memory(part.p, unlimited));
    EXPECT_FALSE(door.deregister_memory(part.p, part.bytes + 1));
    EXPECT_FALSE(door.deregister_memory(part.p + 1, unlimited));
    ++refused_;
  }
  void change_sleep(allocator& memory) {
    auto mode = memory.template get<extension::sleep_mode>();
    net_.may_unmap_registered = with_.at_sleep == registered_at_sleep::goes;
    const std::size_t before = net_.registered_bytes();
    if (!is_asleep_) {
      const auto slept = mode.sleep(sleep_contents::discard);
      is_asleep_ = static_cast<bool>(slept);
      if (is_asleep_ && with_.fail_every == 0) {
        EXPECT_EQ(slept.kept, with_.at_sleep == registered_at_sleep::stays ? before : 0u);
        EXPECT_EQ(memory.current_usage().reserved, slept.kept);
      }
    } else if (mode.wake()) {
      is_asleep_ = false;
    }
    EXPECT_EQ(net_.registered_bytes(), before);
    net_.may_unmap_registered = is_asleep_ && net_.may_unmap_registered;
  }
  void check(allocator& memory, std::size_t step) {
    ASSERT_EQ(net_.mistakes, 0u) << step;
    ASSERT_EQ(memory.template get<watch>().bytes(), net_.registered_bytes()) << step;
    if (!net_.has_changed && step % 64 != 0) return;
    ASSERT_EQ(net_.stale(), 0u) << step;
    ASSERT_STREQ(memory.audit(), nullptr) << step;
  }

  network net_;
  setting with_;
  std::mt19937_64 random_;
  std::vector<bytes_at> live_, registered_now_;
  std::size_t registered_ = 0, refused_ = 0;
  bool is_asleep_ = false, is_registered_at_end_ = false;
};

template <typename Recipe>
void run(const setting& with) {
  const random_program<Recipe> program(with, operations_or(by_day(10'000, 40'000)));
  if (!testing::Test::HasFatalFailure()) program.expect_end();
}

using large_segments = with<pytorch<>, split_below<20_MiB>>;

TEST(registered_memory, stays_while_stitched_moves_the_rest) { run<stitched>({.seed = 3}); }
TEST(registered_memory, stays_if_the_device_fails_now_and_then) {
  run<stitched>({.fail_every = 1009, .seed = 4});
}
TEST(registered_memory, sleeps_if_the_program_says_so) {
  run<stitched>({.at_sleep = registered_at_sleep::goes, .seed = 5});
}
TEST(registered_memory, stays_in_expandable_segments) { run<pytorch_family::expandable>({.seed = 6}); }
TEST(registered_memory, sleeps_in_expandable_segments) {
  run<pytorch_family::expandable>({.at_sleep = registered_at_sleep::goes, .fail_every = 997, .seed = 7});
}
TEST(registered_memory, stays_in_segments) { run<pytorch<>>({.seed = 8}); }
TEST(registered_memory, stays_in_segments_that_recovery_releases) {
  run<large_segments>({.fail_every = 83, .seed = 9});
}
TEST(registered_memory, stays_in_segments_of_all_streams) { run<cuda_async>({.seed = 10}); }

template <typename Recipe>
class registered_block : public testing::Test {};
using recipes =
    types_by_day<3, pytorch<>, stitched, cuda_async, pytorch_family::expandable, paddle_family::auto_growth>;
TYPED_TEST_SUITE(registered_block, recipes);

TYPED_TEST(registered_block, serves_again_at_its_address) {
  network net;
  {
    watched<TypeParam> memory{known_device({}, net), {}, watch{{&net}}};
    auto door = memory.template get<watch>();
    void* const p = memory.allocate(40_MiB);
    ASSERT_TRUE(door.register_memory(p, 40_MiB));
    ASSERT_TRUE(door.register_memory(p, 40_MiB));
    EXPECT_GE(door.bytes(), 40_MiB);
    memory.deallocate(p);
    memory.trim();
    EXPECT_EQ(memory.current_usage().reserved, door.bytes()) << "only registered memory stays";
    EXPECT_EQ(memory.allocate(40_MiB), p);
    memory.deallocate(p);
    ASSERT_TRUE(door.deregister_memory(p, 40_MiB));
    memory.trim();
    EXPECT_EQ(memory.current_usage().reserved, door.bytes()) << "it was registered twice";
    ASSERT_TRUE(door.deregister_memory(p, 40_MiB));
    EXPECT_STREQ(door.deregister_memory(p, 40_MiB).why, "no registration has this address and this size");
    EXPECT_EQ(door.bytes(), 0u);
    memory.trim();
    EXPECT_EQ(memory.current_usage().reserved, 0u);
    EXPECT_TRUE(net.cache.empty());
    (void)memory.allocate(40_MiB);
    EXPECT_FALSE(net.cache.empty());
  }
  EXPECT_TRUE(net.cache.empty()) << "the registry hears of the end of the allocator";
  EXPECT_EQ(net.mistakes, 0u);
}

TYPED_TEST(registered_block, is_held_by_its_pool) {
  network net;
  watched<TypeParam> memory{known_device({}, net), {}, watch{{&net}}};
  ASSERT_TRUE(memory.template get<extension::quotas>().set(default_pools, {.limit = 100_MiB}));
  void* const p = memory.allocate(60_MiB);
  ASSERT_TRUE(memory.template get<watch>().register_memory(p, 60_MiB));
  memory.deallocate(p);
  EXPECT_STREQ(memory.audit(), nullptr);
  EXPECT_EQ(memory.try_allocate(70_MiB, stream_id{1}), nullptr) << "60 MiB cannot go back";
  ASSERT_TRUE(memory.template get<watch>().deregister_memory(p, 60_MiB));
  EXPECT_NE(memory.try_allocate(70_MiB, stream_id{1}), nullptr);
  EXPECT_STREQ(memory.audit(), nullptr);
}

TEST(registrations, say_why_they_refuse) {
  caching_allocator<stitched, simulated_device, registrations<>, extension::sleep_mode> memory;
  auto door = memory.get<registrations<>>();
  auto* const p = static_cast<std::byte*>(memory.allocate(4_MiB));
  EXPECT_STREQ(door.register_memory(&memory, 1).why, "the address is no mapped memory of this allocator");
  EXPECT_STREQ(door.register_memory(p, 0).why, "there are no bytes to register");
  EXPECT_STREQ(door.register_memory(p, 1_GiB).why, "the bytes reach beyond the mapped memory");
  EXPECT_STREQ(door.deregister_memory(p, 4_MiB).why, "no registration has this address and this size");
  ASSERT_TRUE(memory.get<extension::sleep_mode>().sleep(sleep_contents::discard));
  EXPECT_STREQ(door.register_memory(p, 4_MiB).why, "the address is no mapped memory of this allocator");
  ASSERT_TRUE(memory.get<extension::sleep_mode>().wake());
  EXPECT_TRUE(door.register_memory(p, 4_MiB));
}

TEST(registrations, keep_memory_that_tools_show_while_its_pool_sleeps) {
  caching_allocator<stitched, simulated_device, registrations<>, extension::sleep_mode> memory;
  void* const kept = memory.allocate(10_MiB);
  void* const other = memory.allocate(6_MiB);
  ASSERT_TRUE(memory.get<registrations<>>().register_memory(kept, 10_MiB));
  ASSERT_TRUE(memory.get<extension::sleep_mode>().sleep(sleep_contents::discard));
  std::size_t unbacked = 0;
  observe::for_each_block(memory, [&](const segment_view& s, const block_view& b) {
    unbacked += s.is_unbacked && b.is == block_view::state::live ? b.bytes : 0;
  });
  EXPECT_EQ(unbacked, 6_MiB);
  EXPECT_FALSE(observe::segment_of(memory, kept).is_unbacked);
  EXPECT_EQ(observe::segment_of(memory, kept).bytes, 10_MiB);
  EXPECT_TRUE(observe::segment_of(memory, other).is_unbacked);
}

// Registrations of several sizes may begin at one address.
TEST(registrations, are_told_apart_by_their_size) {
  caching_allocator<pytorch<>, simulated_device, registrations<>> memory;
  auto door = memory.get<registrations<>>();
  auto* const p = static_cast<std::byte*>(memory.allocate(4_MiB));
  for (const std::size_t bytes : {1_MiB, 2_MiB, 3_MiB}) ASSERT_TRUE(door.register_memory(p, bytes));
  for (const std::size_t bytes : {2_MiB, 3_MiB, 1_MiB}) {
    EXPECT_GT(door.bytes(), 0u);
    ASSERT_TRUE(door.deregister_memory(p, bytes));
    ASSERT_FALSE(door.deregister_memory(p, bytes));
  }
  EXPECT_EQ(door.bytes(), 0u);
}

struct known_memory {  // a cache of registrations
  std::map<void*, std::size_t> parts;
  // Before a block uses the memory:
  void on_map(void* p, std::size_t bytes) noexcept { parts[p] = bytes; }
  // Before it goes, while it is still there:
  void on_unmap(void* p, std::size_t) noexcept { parts.erase(p); }
};
using kept_known = tessera::extension::registrations<known_memory>;

TEST(registrations, are_followed_by_a_cache) {
  tessera::caching_allocator<tessera::recipe::stitched, tessera::provider::simulated_device, kept_known>
      memory;
  auto door = memory.get<kept_known>();
  const auto count = [&] { return door.with([](const known_memory& seen) { return seen.parts.size(); }); };
  void* const p = memory.allocate(4_MiB);
  EXPECT_EQ(count(), 1u);
  memory.deallocate(p);
  memory.trim();
  EXPECT_EQ(count(), 0u);
}

struct calls_back {
  void* allocator = nullptr;
  void on_map(void*, std::size_t) noexcept {
    if (allocator != nullptr)
      static_cast<locked<caching_allocator<stitched, simulated_device, registrations<calls_back>>>*>(
          allocator)
          ->trim();
  }
  void on_unmap(void*, std::size_t) noexcept {}
};

TEST(registrations, abort_if_the_registry_uses_the_allocator) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  locked<caching_allocator<stitched, simulated_device, registrations<calls_back>>> memory;
  memory.get<registrations<calls_back>>().with([&](calls_back& it) { it.allocator = &memory; });
  EXPECT_DEATH((void)memory.allocate(1_MiB), "a registry must not use the allocator that calls it");
}

// Another thread may get an address while its last owner has not returned from the release.
TEST(registrations, are_not_confused_by_addresses_that_come_back) {
  network net;
  {
    locked<caching_allocator<passthrough, simulated_device, watch>> shared{
        simulated_device({.capacity = 8_MiB, .address_seed = 3}), {}, watch{{&net}}};
    // The device does not report to the network: only the order of the calls of the allocator counts.
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&shared] {
        for (std::size_t i = 0; i < 2000; ++i) shared.deallocate(shared.try_allocate(1_MiB));
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(net.maps - net.unmaps, 0u);
  }
}

}  // namespace
