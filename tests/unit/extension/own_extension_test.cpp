// SPDX-License-Identifier: Apache-2.0
// Two extensions that a program could write. Each is one block, which would be a header of that program.
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/core/types.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

// ---- long_lived.hpp
namespace program {

/// Serves the requests that the program marks as long-lived from segments of their own. They then keep no segment in
/// which other blocks come and go.
///
///     const program::long_lived_requests mark(allocator);
///     void* const weights = allocator.allocate(bytes);
struct long_lived {
  template <typename Core>
  class state : public tessera::detail::extension_defaults {
    using access = tessera::detail::core_access;
    using group = typename Core::group;
    using allocator = typename Core::allocator;

   public:
    state(allocator& in, const long_lived&) noexcept : in_(in) {
      group_.number = tessera::detail::new_pool_id().number;
    }

    /// Marks the requests of the calling thread. Returns the state whose requests it marked until now.
    [[nodiscard]] const void* begin() noexcept {
      access::extensions(in_).note_special_case(1);
      return std::exchange(marked(), this);
    }
    void end(const void* outer) noexcept {
      access::extensions(in_).note_special_case(-1);
      marked() = outer;
    }
    [[nodiscard]] tessera::pool_id id() const noexcept { return {group_.number}; }
    [[nodiscard]] std::size_t reserved() const noexcept { return group_.reserved; }

    // Questions of the core.
    [[nodiscard]] group* group_for(tessera::stream_id) noexcept {
      return marked() == this ? &group_ : nullptr;
    }
    [[nodiscard]] group* find_group(tessera::pool_id id) noexcept {
      return id.number == group_.number ? &group_ : nullptr;
    }
    template <typename F>
    void for_each_group(F& f) noexcept {
      f(group_);
    }
    [[nodiscard]] bool may_release(const group& g) const noexcept { return &g == &group_; }

   private:
    [[nodiscard]] static const void*& marked() noexcept {
      static thread_local const void* state = nullptr;
      return state;
    }
    allocator& in_;
    group group_;
  };

  template <typename Allocator>
  class door {
   public:
    explicit door(Allocator& in) noexcept : in_(&in) {}
    [[nodiscard]] const void* begin() noexcept {
      const void* outer = nullptr;
      (void)in_->template change_extension<long_lived>(
          [&outer](auto& s) {
            outer = s.begin();
            return tessera::outcome{};
          },
          [](auto&) {});
      return outer;
    }
    void end(const void* outer) noexcept {
      (void)in_->template change_extension<long_lived>(
          [outer](auto& s) { return s.end(outer), tessera::outcome{}; }, [](auto&) {});
    }
    /// The pool_id that events and tools show for long-lived blocks.
    [[nodiscard]] tessera::pool_id id() const noexcept {
      return in_->template visit_extension<long_lived>([](const auto& s) { return s.id(); });
    }
    [[nodiscard]] std::size_t reserved() const noexcept {
      return in_->template visit_extension<long_lived>([](const auto& s) { return s.reserved(); });
    }

   private:
    Allocator* in_;
  };
};

/// Marks the requests of this thread as long-lived while it lives.
template <typename Allocator>
class long_lived_requests {
 public:
  explicit long_lived_requests(Allocator& in) noexcept
      : in_(in), outer_(in.template get<long_lived>().begin()) {}
  long_lived_requests(const long_lived_requests&) = delete;
  long_lived_requests& operator=(const long_lived_requests&) = delete;
  ~long_lived_requests() { in_.template get<long_lived>().end(outer_); }

 private:
  Allocator& in_;
  const void* outer_;
};

}  // namespace program

// ---- registration.hpp
namespace program {

/// Registers the memory of an allocator with an object, for example with a network device that reads it.
/// `Registry` has add(address, bytes) and remove(address, bytes). Each is called with a whole segment, or in ranges with
/// a whole chunk. With a lock around the allocator, the calls come one at a time.
template <typename Registry>
struct registration {
  Registry* with = nullptr;

  template <typename Core>
  class state : public tessera::detail::extension_defaults {
    using group = typename Core::group;

   public:
    state(typename Core::allocator&, const registration& from) noexcept : with_(from.with) {}
    [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

    // Questions of the core.
    void on_event(const tessera::allocator_event& e) noexcept {
      using enum tessera::allocator_event::action;
      if (e.what == segment_alloc || e.what == segment_map || e.what == wake) {
        regions_.emplace(e.address, e.bytes);
        bytes_ += e.bytes;
        with_->add(e.address, e.bytes);
      }
      if (e.what == segment_unmap || e.what == sleep) remove(e.address);
    }
    /// Here a segment is about to go back. The event comes later, when other threads may have got its addresses again.
    [[nodiscard]] bool release(group&, const void* memory, std::size_t, bool&) noexcept {
      remove(reinterpret_cast<std::uintptr_t>(memory));
      return false;  // the provider takes it
    }
    void on_end() noexcept {
      while (!regions_.empty()) remove(regions_.begin()->first);
    }

   private:
    void remove(std::uintptr_t address) noexcept {
      const auto found = regions_.find(address);
      if (found == regions_.end()) return;
      with_->remove(found->first, found->second);
      bytes_ -= found->second;
      regions_.erase(found);
    }

    Registry* with_;
    std::map<std::uintptr_t, std::size_t> regions_;
    std::size_t bytes_ = 0;
  };

  template <typename Allocator>
  class door {
   public:
    explicit door(Allocator& in) noexcept : in_(&in) {}
    [[nodiscard]] std::size_t bytes() const noexcept {
      return in_->template visit_extension<registration>([](const auto& s) { return s.bytes(); });
    }

   private:
    Allocator* in_;
  };
};

}  // namespace program

namespace {

using namespace tessera;
using program::long_lived, program::long_lived_requests;

/// Checks that no segment has long-lived blocks and others.
template <typename A>
void expect_apart(A& allocator, const std::set<const void*>& long_lived_blocks) {
  std::size_t found = 0;
  allocator.for_each_allocator([&](auto& in) {
    tessera::detail::introspect(in).for_each_segment([&](const detail::block& first) {
      std::size_t long_lived = 0, others = 0;
      for (const detail::block *b = &first, *end = first.prev; b != end; b = b->next) {
        if (b->status.state != detail::block::state::live &&
            b->status.state != detail::block::state::live_flagged)
          continue;
        const bool is_long = long_lived_blocks.contains(reinterpret_cast<const void*>(b->address));
        (is_long ? long_lived : others) += 1;
      }
      EXPECT_TRUE(long_lived == 0 || others == 0);
      found += long_lived;
    });
  });
  EXPECT_EQ(found, long_lived_blocks.size());
}

template <typename Recipe>
class own_groups : public testing::Test {};
using recipes =
    testing::Types<pytorch<>, pytorch_family::expandable, stitched, cuda_async, paddle_family::auto_growth>;
TYPED_TEST_SUITE(own_groups, recipes);

template <typename A>
void keep_apart(A& allocator) {
  std::mt19937_64 random(3);
  std::set<const void*> kept;
  std::vector<void*> others;
  for (int step = 0; step < 1500; ++step) {
    const std::size_t bytes = random() % 4 == 0 ? 1 + random() % 4_MiB : 1 + random() % 20_KiB;
    const stream_id stream{random() % 2};
    if (random() % 10 == 0) {
      const long_lived_requests mark(allocator);
      kept.insert(allocator.allocate(bytes, stream));
    } else {
      others.push_back(allocator.allocate(bytes, stream));
    }
    while (others.size() > 40) {
      std::swap(others[random() % others.size()], others.back());
      allocator.deallocate(others.back());
      others.pop_back();
    }
    if (step % 100 == 0) {
      expect_apart(allocator, kept);
      ASSERT_STREQ(allocator.audit(), nullptr);
    }
  }
  expect_apart(allocator, kept);
  auto extension = allocator.template get<long_lived>();
  for (void* const p : others) allocator.deallocate(p);
  allocator.trim();
  EXPECT_GT(extension.reserved(), 0u);
  EXPECT_EQ(allocator.current_usage().reserved, extension.reserved()) << "only long-lived blocks keep memory";
  ASSERT_STREQ(allocator.audit(), nullptr);
  for (const void* const p : kept) allocator.deallocate(const_cast<void*>(p));
  allocator.trim();
  EXPECT_EQ(extension.reserved(), 0u);
  EXPECT_EQ(allocator.current_usage().reserved, 0u);
  ASSERT_STREQ(allocator.audit(), nullptr);
}

TYPED_TEST(own_groups, never_share_a_segment) {
  caching_allocator<TypeParam, simulated_device, long_lived> plain;
  keep_apart(plain);
  locked<caching_allocator<TypeParam, simulated_device, long_lived>> shared;
  keep_apart(shared);
}

TYPED_TEST(own_groups, exist_beside_private_pools) {
  caching_allocator<TypeParam, simulated_device, long_lived, extension::private_pools> pool;
  auto pools = pool.template get<extension::private_pools>();
  const pool_id own = pool.template get<long_lived>().id();
  const extension::private_pool graph(pool);
  EXPECT_NE(graph.id(), own);
  const extension::pool_scope scope(graph, {}, extension::scope_kind::plain);
  void* const in_graph = pool.allocate(3_MiB);
  EXPECT_EQ(pools.usage_of(own).reserved, 0u);
  const long_lived_requests mark(pool);
  void* const marked = pool.allocate(3_MiB);
  EXPECT_GE(pools.usage_of(own).non_releasable, 3_MiB) << "a tool finds the group by its name";
  EXPECT_GE(pools.usage_of(graph.id()).non_releasable, 3_MiB);
  expect_apart(pool, {marked});
  pool.deallocate(marked);
  EXPECT_EQ(pools.usage_of(own).non_releasable, 0u);
  pool.deallocate(in_graph);
  ASSERT_STREQ(pool.audit(), nullptr);
}

TEST(own_groups_of_marks, are_those_of_one_allocator) {
  using allocator = caching_allocator<pytorch<>, simulated_device, long_lived>;
  allocator first, second;
  const long_lived_requests outer(first);
  {
    const long_lived_requests inner(second);
    (void)first.allocate(1_MiB);
    EXPECT_EQ(first.get<long_lived>().reserved(), 0u);
  }
  (void)first.allocate(1_MiB);
  (void)second.allocate(1_MiB);
  EXPECT_GT(first.get<long_lived>().reserved(), 0u);
  EXPECT_EQ(second.get<long_lived>().reserved(), 0u);
}

// Each thread marks its own requests, also while requests of other threads are in progress.
TEST(own_groups_threads, are_chosen_by_each_thread) {
  locked<caching_allocator<pytorch<>, simulated_device, long_lived>> shared;
  std::vector<std::set<const void*>> kept(4);
  std::vector<std::thread> threads;
  for (auto& mine : kept) {
    threads.emplace_back([&shared, &mine] {
      std::vector<void*> others;
      for (std::size_t i = 0; i < 300; ++i) {
        std::optional<long_lived_requests<decltype(shared)>> mark;
        if (i % 7 == 0) mark.emplace(shared);
        void* const p = shared.allocate(1 + i * 9973 % 3_MiB, stream_id{i % 2});
        if (mark) {
          mine.insert(p);
        } else {
          others.push_back(p);
        }
        if (others.size() > 10) {
          shared.deallocate(others.front());
          others.erase(others.begin());
        }
        if (i % 50 == 0) shared.trim();
      }
      for (void* const p : others) shared.deallocate(p);
    });
  }
  for (std::thread& t : threads) t.join();
  std::set<const void*> all;
  for (const auto& mine : kept) all.insert(mine.begin(), mine.end());
  expect_apart(shared, all);
  shared.trim();
  EXPECT_EQ(shared.current_usage().reserved, shared.get<long_lived>().reserved());
  ASSERT_STREQ(shared.audit(), nullptr);
}

/// Knows which memory it may read. Counts what breaks its rules.
struct network {
  std::map<std::uintptr_t, std::size_t> regions;
  std::size_t bytes = 0, mistakes = 0;

  void add(std::uintptr_t address, std::size_t size) noexcept {
    const auto above = regions.lower_bound(address);
    if (above != regions.end() && above->first < address + size) ++mistakes;
    if (above != regions.begin() && std::prev(above)->first + std::prev(above)->second > address) ++mistakes;
    regions.emplace(address, size);
    bytes += size;
  }
  void remove(std::uintptr_t address, std::size_t size) noexcept {
    const auto found = regions.find(address);
    if (found == regions.end() || found->second != size) {
      ++mistakes;
      return;
    }
    bytes -= size;
    regions.erase(found);
  }
  /// Whether it may read all bytes of a block.
  [[nodiscard]] bool covers(const void* p, std::size_t size) const {
    auto at = reinterpret_cast<std::uintptr_t>(p);
    const std::uintptr_t end = at + size;
    while (at < end) {
      auto found = regions.upper_bound(at);
      if (found == regions.begin() || (--found)->first + found->second <= at) return false;
      at = found->first + found->second;
    }
    return true;
  }
};
using registered = program::registration<network>;

template <typename Recipe>
class own_registration : public testing::Test {};
TYPED_TEST_SUITE(own_registration, recipes);

TYPED_TEST(own_registration, covers_every_block_and_nothing_else) {
  network net;
  {
    caching_allocator<TypeParam, simulated_device, registered> pool{
        simulated_device{simulated_device::options{.capacity = 400_MiB}}, {}, registered{&net}};
    std::mt19937_64 random(9);
    std::vector<std::pair<void*, std::size_t>> live;
    for (int step = 0; step < 1500; ++step) {
      const std::size_t bytes = random() % 4 == 0 ? 1 + random() % 30_MiB : 1 + random() % 200_KiB;
      if (void* const p = pool.try_allocate(bytes)) {
        live.emplace_back(p, bytes);
        ASSERT_TRUE(net.covers(p, bytes)) << step;
      }
      while (live.size() > 20) {
        std::swap(live[random() % live.size()], live.back());
        pool.deallocate(live.back().first);
        live.pop_back();
      }
      if (step % 100 == 0) pool.trim();
      ASSERT_EQ(net.bytes, pool.current_usage().reserved) << step;
      ASSERT_EQ(net.bytes, pool.template get<registered>().bytes());
    }
    for (const auto& [p, bytes] : live) ASSERT_TRUE(net.covers(p, bytes));
    EXPECT_GT(net.bytes, 0u);
  }
  EXPECT_EQ(net.bytes, 0u) << "the allocator ended with live blocks";
  EXPECT_EQ(net.mistakes, 0u);
}

TEST(own_registration_of_sleep, ends_when_memory_goes_back_under_live_blocks) {
  network net;
  caching_allocator<stitched, simulated_device, registered, extension::private_pools, extension::sleep_mode>
      pool{simulated_device{}, {}, registered{&net}};
  void* const p = pool.allocate(40_MiB);
  auto asleep = pool.get<extension::sleep_mode>();
  ASSERT_TRUE(asleep.sleep(extension::sleep_contents::discard));
  EXPECT_EQ(net.bytes, 0u);
  ASSERT_TRUE(asleep.wake());
  EXPECT_TRUE(net.covers(p, 40_MiB));
  pool.deallocate(p);
  pool.trim();
  EXPECT_EQ(net.bytes, 0u);
  EXPECT_EQ(net.mistakes, 0u);
}

// Another thread may get an address while its last owner has not returned from the release.
TEST(own_registration_threads, is_not_confused_by_addresses_that_come_back) {
  network net;
  {
    locked<caching_allocator<passthrough, simulated_device, registered>> shared{
        simulated_device{simulated_device::options{.capacity = 8_MiB}}, {}, registered{&net}};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&shared] {
        for (std::size_t i = 0; i < 2000; ++i) shared.deallocate(shared.try_allocate(1_MiB));
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(shared.get<registered>().bytes(), shared.current_usage().reserved);
  }
  EXPECT_EQ(net.bytes, 0u);
  EXPECT_EQ(net.mistakes, 0u);
}

}  // namespace
