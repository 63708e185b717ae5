// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/law/policy_laws.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

constexpr page_kind normal_for_peers{.peer_to_peer = true};
constexpr page_kind huge_for_peers{.size = page_kind::page_size::huge, .peer_to_peer = true};

constexpr page_order just(page_kind kind) { return {{kind}, 1}; }
constexpr page_order both(page_kind first, page_kind then) { return {{first, then}, 2}; }

bool operator==(const page_order& a, const page_order& b) { return a.count == b.count && a.kinds == b.kinds; }

std::vector<page_choice> all_choices() {
  std::vector<page_choice> all;
  for (auto plan : {page_preference::normal_only, page_preference::huge_first, page_preference::huge_only,
                    page_preference::huge_1g_first, page_preference::huge_1g_only}) {
    for (auto speed : {page_kind::bandwidth::any, page_kind::bandwidth::low, page_kind::bandwidth::high}) {
      for (bool peers : {false, true}) {
        for (bool read_only : {false, true}) all.push_back({plan, speed, peers, read_only});
      }
    }
  }
  return all;
}

/// Gives addresses from a budget for each page size, and records its requests.
class recording_device {
 public:
  struct asked {
    std::size_t bytes;
    page_kind kind;
    bool operator==(const asked&) const = default;
  };
  std::map<page_kind::page_size, std::size_t> budget{{page_kind::page_size::normal, 64_GiB}};
  std::vector<asked> log;

  [[nodiscard]] void* acquire(std::size_t bytes) noexcept { return acquire(bytes, page_kind::normal); }
  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind) noexcept {
    log.push_back({bytes, kind});
    if (bytes > budget[kind.size] || bytes % kind.granularity() != 0) return nullptr;
    budget[kind.size] -= bytes;
    given_[next_] = kind.size;
    return reinterpret_cast<void*>(std::exchange(next_, next_ + align_up(bytes, 1_GiB)));
  }
  bool release(void* p, std::size_t bytes) noexcept {
    budget[given_.at(reinterpret_cast<std::uintptr_t>(p))] += bytes;
    return true;
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return 64_GiB; }
  [[nodiscard]] std::size_t granularity() const noexcept { return 512; }

 private:
  std::uintptr_t next_ = std::uintptr_t{1} << 40;
  std::map<std::uintptr_t, page_kind::page_size> given_;
};
static_assert(paged_provider<recording_device>);

/// One segment for each request, ignoring streams.
template <typename Pages>
using direct = caching_allocator<with<passthrough, reuse_immediately, Pages>, recording_device>;

static_assert(!prefer_pages<page_preference::normal_only>::uses_page_kinds &&
              prefer_pages<page_preference::huge_first>::uses_page_kinds);
static_assert(prefer_pages<page_choice{page_preference::normal_only, page_kind::bandwidth::any,
                                       true}>::uses_page_kinds &&
              prefer_pages<tunable(page_choice{page_preference::normal_only})>::uses_page_kinds);
static_assert(std::is_empty_v<prefer_pages<page_preference::huge_1g_only>> &&
              !std::is_empty_v<prefer_pages<>>);
static_assert(prefer_pages<>{}.choice.get() == page_choice{.pages = page_preference::huge_first});

TEST(pages, normal_only_requests_nothing_else) {
  for (std::size_t bytes : {std::size_t{1}, 1_MiB, 2_MiB, 5_GiB})
    EXPECT_TRUE(prefer_pages<page_preference::normal_only>{}.backing(bytes) == just(page_kind::normal))
        << bytes;
  EXPECT_EQ(detail::in_whole_pages(prefer_pages<page_preference::normal_only>{}, 3_MiB + 512), 3_MiB + 512);
}

// According to ACL's document, huge-first memory is rounded to 2 MiB, and in the next paragraph up to 1 MiB
// in normal pages.
TEST(pages, huge_first_rounds_only_above_one_mebibyte) {
  constexpr prefer_pages<page_preference::huge_first> pages;
  EXPECT_TRUE(pages.backing(1) == just(page_kind::normal));
  EXPECT_TRUE(pages.backing(1_MiB) == just(page_kind::normal));
  EXPECT_TRUE(pages.backing(1_MiB + 1) == both(page_kind::huge, page_kind::normal));
  EXPECT_EQ(detail::in_whole_pages(pages, 1_MiB - 512), 1_MiB - 512);
  EXPECT_EQ(detail::in_whole_pages(pages, 1_MiB), 1_MiB);
  EXPECT_EQ(detail::in_whole_pages(pages, 1_MiB + 1), 2_MiB);
  EXPECT_EQ(detail::in_whole_pages(pages, 2_MiB), 2_MiB);
  EXPECT_EQ(detail::in_whole_pages(pages, 2_MiB + 1), 4_MiB);
}

TEST(pages, huge_first_for_peers_has_the_small_rule_too) {
  constexpr prefer_pages<page_choice{.pages = page_preference::huge_first, .peer_to_peer = true}> pages;
  EXPECT_TRUE(pages.backing(1_MiB) == just(normal_for_peers));
  EXPECT_TRUE(pages.backing(1_MiB + 1) == both(huge_for_peers, normal_for_peers));
}

TEST(pages, huge_only_takes_a_huge_page_for_the_smallest_segment) {
  constexpr prefer_pages<page_preference::huge_only> pages;
  EXPECT_TRUE(pages.backing(1_KiB) == just(page_kind::huge));
  EXPECT_EQ(detail::in_whole_pages(pages, 1_KiB), 2_MiB);
  EXPECT_EQ(detail::in_whole_pages(pages, 1_MiB), 2_MiB);
  EXPECT_EQ(detail::in_whole_pages(pages, 3_MiB), 4_MiB);
}

TEST(pages, giant_only_rounds_to_gibibytes) {
  constexpr prefer_pages<page_preference::huge_1g_only> pages;
  EXPECT_TRUE(pages.backing(1_GiB) == just(page_kind::huge_1g));
  EXPECT_EQ(detail::in_whole_pages(pages, 1), 1_GiB);
  EXPECT_EQ(detail::in_whole_pages(pages, 1_GiB), 1_GiB);
  EXPECT_EQ(detail::in_whole_pages(pages, 19 * 1_GiB / 10), 2_GiB);
}

TEST(pages, giant_first_uses_smaller_pages_up_to_one_huge_page) {
  constexpr prefer_pages<page_preference::huge_1g_first> pages;
  EXPECT_TRUE(pages.backing(1_MiB) == just(page_kind::normal));
  EXPECT_TRUE(pages.backing(2_MiB) == both(page_kind::huge, page_kind::normal));
  EXPECT_TRUE(
      (pages.backing(2_MiB + 1) == page_order{{page_kind::huge_1g, page_kind::huge, page_kind::normal}, 3}));
  EXPECT_EQ(detail::in_whole_pages(pages, 2_MiB), 2_MiB);
  EXPECT_EQ(detail::in_whole_pages(pages, 20_MiB), 1_GiB);
}

TEST(pages, every_kind_carries_the_whole_choice) {
  int legal = 0;
  for (const page_choice& choice : all_choices()) {
    if (choice.broken_rule() != nullptr) continue;
    ++legal;
    const prefer_pages<> pages{.choice = choice};
    for (std::size_t bytes : {std::size_t{1}, 2_MiB, 1_GiB}) {
      for (const page_kind& kind : pages.backing(bytes)) {
        EXPECT_EQ(kind.speed, choice.speed);
        EXPECT_EQ(kind.peer_to_peer, choice.peer_to_peer);
        EXPECT_EQ(kind.read_only, choice.read_only);
      }
    }
  }
  // Five plans, for peers or not. Three of them also for low and high bandwidth. Each is writable or
  // read-only.
  EXPECT_EQ(legal, (5 * 2 + 3 * 2) * 2);
}

TEST(pages, bandwidth_goes_with_three_plans_and_no_peers) {
  for (const page_choice& choice : all_choices()) {
    const bool giant =
        choice.pages == page_preference::huge_1g_first || choice.pages == page_preference::huge_1g_only;
    const bool legal = choice.speed == page_kind::bandwidth::any || (!giant && !choice.peer_to_peer);
    EXPECT_EQ(choice.broken_rule() == nullptr, legal);
  }
}

TEST(pages, the_choice_of_one_kind_requests_only_that) {
  for (page_kind::page_size size :
       {page_kind::page_size::normal, page_kind::page_size::huge, page_kind::page_size::huge_1g}) {
    const page_kind kind{size, page_kind::bandwidth::high, true, true};
    for (std::size_t bytes : {std::size_t{1}, 1_MiB, 5_GiB})
      EXPECT_TRUE(page_choice::only(kind).order(bytes) == just(kind));
  }
}

TEST(pages, allocator_requests_huge_pages_then_normal_ones) {
  direct<prefer_pages<page_preference::huge_first>> pool;
  pool.provider().budget[page_kind::page_size::huge] = 4_MiB;
  using asked = std::vector<recording_device::asked>;
  (void)pool.allocate(1_MiB);
  EXPECT_EQ(pool.provider().log, (asked{{1_MiB, page_kind::normal}}));
  (void)pool.allocate(1_MiB + 1);
  (void)pool.allocate(2_MiB);
  (void)pool.allocate(3_MiB);
  EXPECT_EQ(pool.provider().log, (asked{{1_MiB, page_kind::normal},
                                        {2_MiB, page_kind::huge},
                                        {2_MiB, page_kind::huge},
                                        {4_MiB, page_kind::huge},
                                        {4_MiB, page_kind::normal}}));
  EXPECT_EQ(pool.current_usage().reserved, 1_MiB + 2_MiB + 2_MiB + 4_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(pages, allocator_has_no_fallback_from_huge_only) {
  direct<prefer_pages<page_preference::huge_only>> pool;
  pool.provider().budget[page_kind::page_size::huge] = 4_MiB;
  void* small = pool.allocate(1_KiB);
  (void)pool.allocate(2_MiB);
  try {
    (void)pool.allocate(1_KiB);
    FAIL();
  } catch (const out_of_memory& full) {
    EXPECT_EQ(full.segment(), 2_MiB);
  }
  for (const auto& asked : pool.provider().log) EXPECT_EQ(asked.kind, page_kind::huge);
  pool.deallocate(small);
  EXPECT_NE(pool.try_allocate(1_KiB), nullptr);
}

TEST(pages, allocator_has_no_fallback_from_giant_only) {
  direct<prefer_pages<page_preference::huge_1g_only>> pool;
  pool.provider().budget[page_kind::page_size::huge_1g] = 3_GiB;
  pool.provider().budget[page_kind::page_size::huge] = 64_GiB;
  (void)pool.allocate(19 * 1_GiB / 10);
  EXPECT_EQ(pool.current_usage().reserved, 2_GiB);
  EXPECT_EQ(pool.try_allocate(1_GiB + 1), nullptr);
  EXPECT_NE(pool.try_allocate(1), nullptr);
  for (const auto& asked : pool.provider().log) EXPECT_EQ(asked.kind, page_kind::huge_1g);
}

// torch_npu under page_size:1g: a small pool in segments of 2 MiB. If 1 GiB pages fail, smaller ones are
// tried.
TEST(pages, allocator_falls_back_from_giant_pages_twice) {
  using recipe = with<pytorch<>, reuse_immediately, prefer_pages<page_preference::huge_1g_first>>;
  caching_allocator<recipe, recording_device> pool;
  pool.provider().budget[page_kind::page_size::huge_1g] = 1_GiB;
  pool.provider().budget[page_kind::page_size::huge] = 1_GiB + 2_MiB;
  using asked = std::vector<recording_device::asked>;
  (void)pool.allocate(512);
  EXPECT_EQ(pool.provider().log, (asked{{2_MiB, page_kind::huge}}));
  pool.provider().log.clear();
  (void)pool.allocate(2_MiB);
  (void)pool.allocate(900_MiB);
  EXPECT_EQ(pool.provider().log, (asked{{1_GiB, page_kind::huge_1g}}));
  pool.provider().log.clear();
  (void)pool.allocate(900_MiB);
  EXPECT_EQ(pool.provider().log, (asked{{1_GiB, page_kind::huge_1g}, {1_GiB, page_kind::huge}}));
  pool.provider().log.clear();
  (void)pool.allocate(900_MiB);
  EXPECT_EQ(pool.provider().log,
            (asked{{1_GiB, page_kind::huge_1g}, {1_GiB, page_kind::huge}, {1_GiB, page_kind::normal}}));
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST(pages, allocator_requests_the_kind_chosen_at_run_time) {
  direct<prefer_pages<>> pool;
  pool.provider().budget[page_kind::page_size::huge_1g] = 1_GiB;
  pool.policies().pages.choice =
      page_choice{.pages = page_preference::huge_1g_only, .peer_to_peer = true, .read_only = true};
  (void)pool.allocate(1);
  pool.policies().pages.choice =
      page_choice{.pages = page_preference::normal_only, .speed = page_kind::bandwidth::low};
  (void)pool.allocate(1);
  ASSERT_EQ(pool.provider().log.size(), 2u);
  EXPECT_EQ(pool.provider().log[0],
            (recording_device::asked{
                1_GiB, {page_kind::page_size::huge_1g, page_kind::bandwidth::any, true, true}}));
  EXPECT_EQ(pool.provider().log[1],
            (recording_device::asked{512, {page_kind::page_size::normal, page_kind::bandwidth::low}}));
}

TEST(pages_death, an_invalid_choice_at_run_time_aborts) {
  direct<prefer_pages<>> pool;
  pool.policies().pages.choice = page_choice{.speed = page_kind::bandwidth::low, .peer_to_peer = true};
  EXPECT_DEATH((void)pool.try_allocate(1),
               "prefer_pages: low or high bandwidth does not go with peer-to-peer memory");
}

TEST(pages, budget_of_the_simulated_device_runs_out) {
  const simulated_device::options options{.capacity = 1_GiB, .huge_budget = 4_MiB};
  caching_allocator<with<passthrough, prefer_pages<page_preference::huge_first>>, simulated_device> first{
      simulated_device(options)};
  (void)first.allocate(1_MiB);  // takes none of the budget
  (void)first.allocate(1_MiB + 1);
  (void)first.allocate(1_MiB + 1);
  EXPECT_EQ(first.provider().calls().refused, 0u);
  (void)first.allocate(1_MiB + 1);
  EXPECT_EQ(first.provider().calls().refused, 1u);
  EXPECT_EQ(first.provider().used(), 7_MiB);

  caching_allocator<with<passthrough, prefer_pages<page_preference::huge_only>>, simulated_device> only{
      simulated_device(options)};
  EXPECT_NE(only.try_allocate(1_MiB), nullptr);
  void* second = only.try_allocate(1);
  EXPECT_NE(second, nullptr);
  EXPECT_EQ(only.try_allocate(1), nullptr);
  only.deallocate(second);
  EXPECT_NE(only.try_allocate(1), nullptr);
}

}  // namespace
