// SPDX-License-Identifier: Apache-2.0
// An extension that a program could write. It is one block, which would be a header of that program.
#include <cstddef>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/detail/extensions/extension_set.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../../by_day.hpp"

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
    types_by_day<2, pytorch<>, stitched, pytorch_family::expandable, cuda_async, paddle_family::auto_growth>;
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

}  // namespace
