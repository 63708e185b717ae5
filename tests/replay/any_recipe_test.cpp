// SPDX-License-Identifier: Apache-2.0
// Recipes and policies of any type, as the tool knows them.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/caching_allocator.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/policy/evict_after.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/stitched.hpp>
#include <tessera/tessera.hpp>
#include <tessera/tool/any_recipe.hpp>
#include <tessera/trace/recording.hpp>
#include "tessera_replay/tune_composition.hpp"

namespace {

using namespace tessera;
using namespace tessera::tool::detail;
using kind = trace::event::kind;

struct own_steps {
  [[nodiscard]] static constexpr std::size_t block_size(std::size_t n) noexcept {
    return align_up(n, n <= 1_MiB ? 512 : 64_KiB);
  }
  bool operator==(const own_steps&) const = default;
};
struct own_boundary {
  static constexpr std::size_t count = 2;
  [[nodiscard]] static constexpr std::size_t select(std::size_t n) noexcept { return n > 256_KiB; }
  [[nodiscard]] static constexpr std::size_t max_small_block() noexcept { return 256_KiB; }
  bool operator==(const own_boundary&) const = default;
};
struct own_polling : reuse_on_same_stream {
  [[nodiscard]] static constexpr bool should_poll_events(std::size_t waiting) noexcept { return waiting > 2; }
  bool operator==(const own_polling&) const = default;
};
template <std::size_t Rest>
struct own_rest {
  using alternatives = tool::alternatives<own_rest<4_KiB>, split_never<>>;
  [[nodiscard]] static constexpr bool may_serve(std::size_t, std::size_t) noexcept { return true; }
  [[nodiscard]] static constexpr bool should_split(std::size_t wanted, std::size_t block,
                                                   pool_traits in = {}) noexcept {
    return block - wanted >= (wanted <= in.max_small_block ? 512 : Rest);
  }
  [[nodiscard]] static constexpr block_end allocated_end() noexcept { return block_end::high; }
  [[nodiscard]] static constexpr std::size_t oversize_from() noexcept { return unlimited; }
  bool operator==(const own_rest&) const = default;
};
struct own_doubling {
  using backend = segment_backend;
  static constexpr memory_limit limit{};
  [[nodiscard]] static constexpr std::size_t segment_size(std::size_t block, const usage& now) noexcept {
    return now.reserved > block ? align_up(now.reserved, 2_MiB) : align_up(block, 2_MiB);
  }
  bool operator==(const own_doubling&) const = default;
};
struct own_half {
  [[nodiscard]] static constexpr std::size_t bytes_to_evict(eviction_trigger when,
                                                            const usage& now) noexcept {
    return when == eviction_trigger::after_free && now.cached > now.reserved / 2 ? now.cached / 2 : 0;
  }
  [[nodiscard]] static constexpr bool is_candidate(std::size_t, const usage&) noexcept { return true; }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment&) noexcept { return true; }
  bool operator==(const own_half&) const = default;
};
struct own_search : recover_by_emptying_cache<> {
  bool operator==(const own_search&) const = default;
};
struct own {
  using rounding = own_steps;
  using pools = own_boundary;
  using streams = own_polling;
  using split = own_rest<1_MiB>;
  using pages = normal_pages;
  using growth = own_doubling;
  using eviction = own_half;
  using recovery = own_search;
};

/// Requests of many sizes on two streams, frees in any order, and uses of another stream.
trace::recording mixed() {
  trace::recording made{"mixed", {}};
  std::mt19937 random(7);
  std::vector<std::uint64_t> live;
  for (std::uint64_t id = 0; id < 2000; ++id) {
    const std::size_t bytes = std::size_t{1} << (8 + random() % 17);
    made.events.push_back({kind::allocate, id, bytes + random() % bytes, stream_id{random() % 2}});
    live.push_back(id);
    if (id % 5 == 0)
      made.events.push_back({kind::record_stream, live[random() % live.size()], 0, stream_id{3}});
    while (live.size() > 20 + random() % 40) {
      std::swap(live[random() % live.size()], live.back());
      made.events.push_back({kind::free, live.back()});
      live.pop_back();
    }
  }
  return made;
}

simulated_device device_of(std::size_t capacity) {
  return simulated_device{simulated_device::options{.capacity = capacity}};
}

/// The addresses that an allocator gives, and the calls of its device.
template <typename Pool>
std::vector<std::uint64_t> deeds_of(const trace::program& program, Pool&& pool) {
  std::vector<std::uint64_t> all;
  trace::replay(
      program, pool, [](std::size_t) {},
      [&](std::size_t, const void* p) { all.push_back(reinterpret_cast<std::uintptr_t>(p)); });
  all.push_back(pool.provider().peak_used());
  all.push_back(pool.provider().now_ns());
  return all;
}
template <typename Recipe>
auto compiled(std::size_t capacity) {
  return caching_allocator<Recipe, simulated_device>{device_of(capacity)};
}

TEST(any_recipe, decides_as_the_recipe_that_it_holds) {
  const trace::recording recording = mixed();
  const trace::program program(recording);
  const auto expect_same = [&]<typename Recipe>(std::size_t capacity) {
    EXPECT_TRUE(deeds_of(program, compiled<Recipe>(capacity)) ==
                deeds_of(program, any_recipe::of<Recipe>({}).make(device_of(capacity))))
        << name_of<Recipe>() << ", " << capacity;
  };
  for (const std::size_t capacity : {1_GiB, program.peak_live() / 8 * 9}) {
    expect_same.operator()<own>(capacity);
    expect_same.operator()<stitched>(capacity);
  }
}

TEST(any_recipe, keeps_its_decisions_if_its_policies_are_chosen_at_run_time) {
  const trace::recording recording = mixed();
  const trace::program program(recording);
  const std::optional<composition> made = any_recipe::of<own>({}).composed();
  ASSERT_TRUE(made);
  for (const std::size_t capacity : {1_GiB, program.peak_live() / 8 * 9}) {
    const auto when_run = replay::tune::with_recipe(*made, [&]<typename Held>(const policies<Held>& same) {
      return deeds_of(program, caching_allocator<Held, simulated_device>{device_of(capacity), same});
    });
    EXPECT_TRUE(when_run == deeds_of(program, compiled<own>(capacity))) << capacity;
  }
}

TEST(any_recipe, is_equal_to_one_of_the_same_type_and_settings) {
  policies<pytorch<>> other;
  other.split.max = 64_MiB;
  EXPECT_TRUE(any_recipe::of<pytorch<>>({}) == any_recipe::of<pytorch<>>({}));
  EXPECT_FALSE(any_recipe::of<pytorch<>>({}) == any_recipe::of<pytorch<>>(other));
  EXPECT_FALSE(any_recipe::of<pytorch<>>({}) == any_recipe::of<stitched>({}));
  EXPECT_TRUE(any_recipe::of<stitched>({}).has_ranges());
  EXPECT_FALSE(any_recipe::of<own>({}).has_ranges());
}

/// A split policy that learns, and eviction policies that rank segments or count their reuses.
struct learning : split_below<> {
  std::size_t seen = 0;
  void note_served(const served_request& r) noexcept { seen += r.requested; }
  bool operator==(const learning&) const = default;
};
struct ranking : evict_idle_above<percent(80)> {
  [[nodiscard]] static constexpr double value(const idle_segment& s) noexcept {
    return static_cast<double>(s.bytes);
  }
  bool operator==(const ranking&) const = default;
};
struct counting : evict_idle_above<percent(80)> {
  static constexpr bool counts_reuses = true;
  bool operator==(const counting&) const = default;
};

TEST(any_recipe, is_out_of_a_search_if_a_policy_would_not_hear_what_it_asks_for) {
  const auto axis = []<typename... Policy>(std::type_identity<Policy>...) {
    return std::string_view(any_recipe::of<with<pytorch<>, Policy...>>({}).axis_out_of_search());
  };
  EXPECT_EQ(axis(std::type_identity<learning>()), "split");
  EXPECT_EQ(axis(std::type_identity<ranking>()), "eviction");
  EXPECT_EQ(axis(std::type_identity<counting>()), "eviction");
  EXPECT_EQ(axis(std::type_identity<wait_for_events<reuse_on_same_stream>>()), "streams");
  own_policies found;
  add_policies_of<with<pytorch<>, learning, counting>>(found);
  EXPECT_TRUE(found.split.empty() && found.eviction.empty());
}

TEST(any_recipe, names_the_axis_that_a_search_cannot_vary) {
  using by_time = with<pytorch<>, evict_after<1000>>;
  const any_recipe made = any_recipe::of<by_time>({});
  EXPECT_FALSE(made.composed());
  EXPECT_STREQ(made.axis_out_of_search(), "eviction");
  EXPECT_EQ(any_recipe::of<own>({}).axis_out_of_search(), nullptr);
}

TEST(own_policies, are_those_of_the_recipe_and_their_alternatives) {
  own_policies found;
  add_policies_of<own>(found);
  EXPECT_EQ(found.rounding.size(), 1u);
  EXPECT_EQ(found.growth.size(), 1u);
  ASSERT_EQ(found.split.size(), 3u);
  EXPECT_TRUE(found.split[2] == any_split(split_never<>{}));
  composition c;
  c.split = found.split[1];
  EXPECT_TRUE(found.split[1].is<own_split>());
  EXPECT_FALSE(found.split[0] == found.split[1]);
  const pool_traits in{256_KiB};
  EXPECT_TRUE(c.split.should_split(2_MiB, 2_MiB + 4_KiB, in));
  EXPECT_FALSE(found.split[0].should_split(2_MiB, 2_MiB + 4_KiB, in));
}

struct counter {
  std::size_t segments = 0;
  void on(const allocator_event& e) noexcept { segments += e.what == allocator_event::action::segment_alloc; }
};

TEST(simulated_allocator, reports_events_to_an_observer) {
  counter seen;
  any_observer observer(seen);
  simulated_allocator pool = any_recipe::of<pytorch<>>({}).make(device_of(1_GiB), {.observer = &observer});
  pool.deallocate(pool.try_allocate(5_MiB, {}));
  EXPECT_EQ(seen.segments, 1u);
  std::size_t blocks = 0;
  pool.for_each_block([&](const segment_view& s, const block_view&) { blocks += s.bytes == 20_MiB; });
  EXPECT_EQ(blocks, 1u);
  EXPECT_EQ(pool.statistics().all.reserved_bytes.current, std::int64_t{20_MiB});
  EXPECT_EQ(pool.take_snapshot().segments.size(), 1u);
}

TEST(simulated_allocator, explains_a_request_that_fails) {
  simulated_allocator pool = any_recipe::of<pytorch<>>({}).make(device_of(64_MiB));
  EXPECT_EQ(pool.try_allocate(100_MiB, {}), nullptr);
  EXPECT_EQ(pool.explain(100_MiB, {}).capacity, 64_MiB);
}

TEST(simulated_allocator, follows_a_plan) {
  static constexpr plan::memory_plan::kind kinds[] = {{5_MiB}};
  static constexpr plan::memory_plan::track tracks[] = {{.kinds_end = 1, .entries_end = 1}};
  static constexpr plan::memory_plan::entry entries[] = {{}};
  constexpr plan::memory_plan planned{
      .bytes = 5_MiB, .peak_live = 5_MiB, .kinds = kinds, .tracks = tracks, .entries = entries};
  simulated_allocator pool = any_recipe::of<stitched>({}).make(device_of(1_GiB), {.plan = &planned});
  pool.deallocate(pool.try_allocate(5_MiB, {}));
  EXPECT_EQ(pool.statistics().by_plan.requests, 1u);
}

TEST(simulated_allocator, sleeps_if_its_recipe_maps_memory_into_ranges) {
  const trace::recording made{"sleep", {{kind::allocate, 0, 5_MiB}, {kind::sleep}, {kind::wake}}};
  const trace::program program(made);
  const auto outcomes = [&](simulated_allocator pool) {
    std::vector<trace::pool_outcome> all;
    trace::replay(
        program, pool, [](std::size_t) {},
        [&]<typename Outcome>(std::size_t, Outcome outcome) {
          if constexpr (std::is_same_v<Outcome, trace::pool_outcome>) all.push_back(outcome);
        });
    return all;
  };
  const auto slept = outcomes(any_recipe::of<stitched>({}).make(device_of(1_GiB)));
  EXPECT_TRUE(slept[0].works && slept[1].works);
  EXPECT_GT(slept[0].bytes, 0u);
  EXPECT_STREQ(outcomes(any_recipe::of<own>({}).make(device_of(1_GiB)))[0].why, "the allocator cannot sleep");
}

struct with_a_name : own {
  static constexpr const char* name = "mine";
};

}  // namespace

namespace dev0_1 {
struct subclass {};
}  // namespace dev0_1
namespace of_others::v0_1 {
template <typename>
struct mystruct {};
}  // namespace of_others::v0_1

namespace {

TEST(recipe_names, leave_out_the_version_of_tessera_and_nothing_of_others) {
  EXPECT_EQ(tessera::detail::recipe_name<stitched>(), "tessera::recipe::stitched");
  EXPECT_EQ(tessera::detail::recipe_name<dev0_1::subclass>(), "dev0_1::subclass");
  EXPECT_EQ(tessera::detail::recipe_name<of_others::v0_1::mystruct<stitched>>(),
            "of_others::v0_1::mystruct<tessera::recipe::stitched>");
}

TEST(recipe_names, leave_out_the_namespaces_of_tessera) {
  EXPECT_EQ((name_of<with<pytorch<>, evict_never>>()), "with<pytorch, evict_never>");
  EXPECT_EQ(name_of<stitched>(), "stitched");
  EXPECT_EQ(name_of<own>(), "own");
  EXPECT_EQ(name_of<with_a_name>(), "mine");
}

TEST(recipe_entries, refuse_settings_and_a_limit_that_cannot_be_set) {
  const recipe_entry entry{.name = "mine", .configure = &configure_plain<own>};
  const auto error = [&](const std::string& conf, const memory_limits& limits) {
    const recipe_or_error made = entry.configure(entry, conf, limits);
    return std::holds_alternative<std::string>(made) ? std::get<std::string>(made) : "";
  };
  EXPECT_EQ(error("", {}), "");
  EXPECT_EQ(error("a:1", {}), "--conf: recipe mine takes no settings");
  EXPECT_EQ(error("", {.fraction = 0.5}),
            "recipe mine: its growth policy has no limit that can be set, which --memory-fraction needs; "
            "declare it as `tessera::memory_limit limit{};`");
}

}  // namespace
