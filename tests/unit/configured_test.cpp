// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/concurrent/deferred_free_queue.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/configured.hpp>
#include <tessera/core/types.hpp>
#include <tessera/extension/observer.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/interop/memory_fraction.hpp>
#include <tessera/interop/paddle_passes.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/recipe/with.hpp>
#include <tessera/tessera.hpp>

#include "environment.hpp"

namespace {

using namespace tessera;
using plain = caching_allocator<pytorch<>, simulated_device>;
using chosen = configured<pytorch_family, plain>;

template <typename Pool>
constexpr bool is_expandable =
    std::is_same_v<Pool, caching_allocator<pytorch_family::expandable, simulated_device>>;

TEST(configured, chooses_the_recipe_that_serves_the_settings) {
  for (const bool expandable : {false, true}) {
    chosen pool({.expandable_segments = expandable});
    EXPECT_EQ(pool.visit([]<typename Pool>(Pool&) { return is_expandable<Pool>; }), expandable);
    void* const p = pool.allocate(30_MiB);
    EXPECT_EQ(pool.current_usage().reserved, expandable ? 40_MiB : 30_MiB);
    EXPECT_EQ(pool.statistics().all.allocation.current, 1);
    EXPECT_STREQ(pool.audit(), nullptr);
    pool.deallocate(p, 30_MiB);
    pool.trim();
    EXPECT_EQ(pool.current_usage().reserved, 0u);
  }
}

TEST(configured, changes_what_its_policies_read) {
  chosen pool({});
  EXPECT_FALSE(pool.change("max_split_size_mb:64,throw_on_cudamalloc_oom:True"));
  pool.deallocate(pool.allocate(64_MiB));
  pool.deallocate(pool.allocate(5_MiB));
  EXPECT_EQ(pool.current_usage().reserved, 84_MiB);  // the oversize block is not split
  EXPECT_FALSE(pool.change(""));
  EXPECT_EQ(pool.settings(), config::pytorch::settings{});
  void* const p = pool.allocate(30_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 84_MiB);
  pool.deallocate(p);
}

TEST(configured, warns_in_words_of_growth_without_bound) {
  chosen pool({.expandable_segments = true});
  EXPECT_TRUE(pool.growth_is_bounded());
  EXPECT_STREQ(pool.growth_is_bounded().text().c_str(), "");
  ASSERT_FALSE(pool.change("max_split_size_mb:128,expandable_segments:True"));
  const law::growth_witness found = pool.growth_is_bounded();
  ASSERT_FALSE(found);
  EXPECT_GT(found.reserved, 40 * found.peak_live);
  EXPECT_NE(std::string(found.text().c_str()).find("growth has no bound: 100 cycles that free "),
            std::string::npos);
  configured<pytorch_family, locked<plain>> shared({.max_split_size = 128_MiB});
  EXPECT_FALSE(shared.growth_is_bounded());
}

TEST(configured, refuses_an_impossible_change_and_names_the_key) {
  chosen pool({.max_split_size = 64_MiB});
  const auto other_recipe = pool.change("max_split_size_mb:32,expandable_segments:True");
  ASSERT_TRUE(other_recipe);
  EXPECT_EQ(other_recipe->key, "expandable_segments");
  EXPECT_STREQ(config::bad_setting("--conf", *other_recipe).what(),
               "--conf: expandable_segments: chooses another recipe, so it cannot change any more");
  const auto read_before = pool.change("pinned_free_catch_all:True,max_split_size_mb:32");
  ASSERT_TRUE(read_before);
  EXPECT_EQ(read_before->key, "pinned_free_catch_all");
  EXPECT_EQ(read_before->code, config::setting_error::error_code::not_changeable);
  const auto broken = pool.change("max_split_size_mb:2");
  ASSERT_TRUE(broken);
  EXPECT_EQ(broken->offset, 18u);
  EXPECT_EQ(pool.settings().max_split_size, 64_MiB);
  pool.visit([]<typename Pool>(Pool& in) {
    if constexpr (requires { in.policies().split.max; }) {
      EXPECT_EQ(in.policies().split.max.get(), 64_MiB);
    }
  });
}

TEST(configured, says_which_settings_a_text_sets_back) {
  using npu = configured<torch_npu_family, caching_allocator<pytorch<>, simulated_device>>;
  npu pool({.expandable_segments = true, .base_addr_aligned = 4_KiB, .segment_size = 40_MiB});
  const auto changed = pool.change("expandable_segments:True, large_segment_size _mb:60");
  EXPECT_FALSE(changed);
  EXPECT_EQ(std::vector(changed.set_back().begin(), changed.set_back().end()),
            (std::vector<std::string_view>{"base_addr_aligned_kb", "segment_size_mb"}));
  const auto refused = pool.change("max_split_size_mb:30");
  EXPECT_TRUE(refused);
  EXPECT_TRUE(refused.set_back().empty());
  EXPECT_TRUE(pool.change("expandable_segments:True,large_segment_size_mb:60").set_back().empty());
}

TEST(configured, says_which_setting_has_no_effect_and_who_would_read_it) {
  const auto text_of = [](const auto& found) {
    return found ? config::bad_setting("conf", *found).what() : std::string();
  };
  EXPECT_EQ(text_of(chosen({.max_split_size = 64_MiB, .release_lock = true}).setting_without_effect()), "");
  EXPECT_EQ(text_of(chosen({.expandable_segments = true, .async_backend = true}).setting_without_effect()),
            "conf: expandable_segments: no policy of the recipe reads it");
  EXPECT_EQ(text_of(chosen({.large_segment_size = 40_MiB, .async_backend = true}).setting_without_effect()),
            "conf: large_segment_size_mb: no policy of the recipe reads it");
  EXPECT_EQ(
      text_of(chosen({.pinned_use_background_threads = true}).setting_without_effect()),
      "conf: pinned_use_background_threads: read by configured_pinned: no policy of the recipe reads it");
  using by_flags = configured<paddle_family, caching_allocator<paddle<>, simulated_device>>;
  const by_flags waits({.retry_milliseconds = 5, .garbage_threshold = 1_GiB});
  EXPECT_EQ(text_of(waits.setting_without_effect()),
            "conf: FLAGS_gpu_allocator_retry_time: read by waiting: no policy of the recipe reads it");
  EXPECT_EQ(
      text_of(waits.setting_without_effect({"waiting"})),
      "conf: FLAGS_eager_delete_tensor_gb: read by deferred_free_queue: no policy of the recipe reads it");
  EXPECT_FALSE(waits.setting_without_effect({"waiting", "deferred_free_queue"}));
  // A key that another one overrides has an effect without that one.
  const by_flags both({.virtual_memory = true, .multi_scale = true, .vmm_small_pool_size = 0});
  EXPECT_FALSE(both.setting_without_effect());
  // A key may have an effect beside another one only.
  const by_flags two_pools({.small_pool_size = 1_MiB, .large_pool_chunk_size = 8_MiB});
  EXPECT_FALSE(two_pools.setting_without_effect());
  const by_flags one_pool({.large_pool_chunk_size = 8_MiB});
  ASSERT_TRUE(one_pool.setting_without_effect());
  EXPECT_EQ(one_pool.setting_without_effect()->key, "FLAGS_large_pool_auto_growth_chunk_size_in_mb");
  using npu = configured<torch_npu_family, caching_allocator<pytorch<>, simulated_npu>>;
  EXPECT_FALSE(npu({.expandable_segments = true, .huge_1g_pages = true, .segment_size = 40_MiB})
                   .setting_without_effect());
  // A front end may read settings.
  using pinned_pool =
      configured<torch_npu_family::pinned_family,
                 concurrent::background_reclaiming<caching_allocator<pytorch<>, simulated_device>>>;
  const pinned_pool pinned({.pinned_use_background_threads = true, .pinned_mem_register = true});
  EXPECT_EQ(pinned.setting_without_effect()->key, "pinned_mem_register");
}

TEST(configured, reads_the_environment) {
  ASSERT_TRUE(set_variable("TESSERA_TEST_CONF", "expandable_segments:True"));
  auto pool = chosen::from_environment("TESSERA_TEST_CONF");
  EXPECT_TRUE(pool.settings().expandable_segments);
  ASSERT_TRUE(set_variable("TESSERA_TEST_CONF", "max_split_size_mb:2"));
  try {
    (void)chosen::from_environment("TESSERA_TEST_CONF");
    ADD_FAILURE();
  } catch (const config::bad_setting& error) {
    EXPECT_STREQ(error.what(),
                 "TESSERA_TEST_CONF, character 18: max_split_size_mb 2: must be at least "
                 "large_segment_size_mb");
  }
  ASSERT_TRUE(unset_variable("TESSERA_TEST_CONF"));
  auto absent = chosen::from_environment("TESSERA_TEST_CONF");
  EXPECT_EQ(absent.settings(), config::pytorch::settings{});
}

TEST(configured, names_the_variable_that_it_read) {
  ASSERT_TRUE(set_variable("PYTORCH_ALLOC_CONF", "max_split_size_mb:2"));
  try {
    (void)chosen::from_environment();
    ADD_FAILURE();
  } catch (const config::bad_setting& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("PYTORCH_ALLOC_CONF, character 18: ")) << error.what();
  }
  ASSERT_TRUE(unset_variable("PYTORCH_ALLOC_CONF"));
}

struct without_ranges : provider_adaptor<simulated_device> {
  using provider_adaptor::provider_adaptor;
  void* reserve(std::size_t, std::size_t) noexcept = delete;
};
TEST(configured, names_the_flag_of_paddle_that_it_read) {
  ASSERT_TRUE(set_variable("FLAGS_free_idle_chunk", "maybe"));
  using by_flags = configured<paddle_family, caching_allocator<paddle<>, simulated_device>>;
  try {
    (void)by_flags::from_environment();
    ADD_FAILURE();
  } catch (const config::bad_setting& error) {
    EXPECT_STREQ(error.what(),
                 "paddle: FLAGS_free_idle_chunk maybe: must be True, true, 1, False, false or 0");
  }
  ASSERT_TRUE(unset_variable("FLAGS_free_idle_chunk"));
}

TEST(configured, throws_if_the_provider_lacks_functions_that_the_settings_need) {
  static_assert(!virtual_memory_provider<without_ranges> && event_provider<without_ranges>);
  simulated_device device;
  using chosen_without_ranges = configured<pytorch_family, plain::rebind_provider<without_ranges>>;
  chosen_without_ranges pool({}, without_ranges(device));
  pool.deallocate(pool.allocate(1));
  EXPECT_THROW((chosen_without_ranges({.expandable_segments = true}, without_ranges(device))),
               config::bad_setting);
}

TEST(configured, serves_threads) {
  configured<pytorch_family, locked<plain>> shared({.expandable_segments = true});
  EXPECT_FALSE(shared.change("expandable_segments:True,max_split_size_mb:64"));
  shared.visit([](auto& pool) {
    pool.visit_policies([](auto& s) {
      if constexpr (requires { s.split.max; }) {
        EXPECT_EQ(s.split.max.get(), 64_MiB);
      }
    });
  });
  configured<pytorch_family, per_stream<plain>> arenas({});
  void* const p = arenas.allocate(5_MiB, stream_id{1});
  EXPECT_TRUE(arenas.record_stream(p, stream_id{2}));
  EXPECT_TRUE(arenas.try_deallocate(p));
  EXPECT_FALSE(arenas.try_deallocate(p));
}

struct last_event {
  allocator_event::action what{};
  void on(const allocator_event& event) noexcept { what = event.what; }
};
TEST(configured, offers_the_extensions_of_its_allocator) {
  using watch = extension::observer<last_event>;
  using allocator =
      caching_allocator<pytorch<>, simulated_device, extension::private_pools, extension::sleep_mode, watch>;
  using shared_type = configured<pytorch_family, locked<allocator>>;
  static_assert(shared_type::has<extension::private_pools> && !shared_type::has<extension::quotas>);
  static_assert(shared_type::has_ranges && !plain::has_ranges);
  for (const bool expandable : {false, true}) {
    shared_type shared({.expandable_segments = expandable}, {}, watch{{allocator_event::action::oom}});
    const auto last = [&shared] {
      return shared.get<watch>().with([](const auto& seen) { return seen.what; });
    };
    EXPECT_EQ(last(), allocator_event::action::oom);
    const extension::private_pool pool(shared);
    {
      const extension::pool_scope scope(pool, extension::scope_kind::capture);
      (void)shared.allocate(5_MiB);
    }
    EXPECT_EQ(last(), allocator_event::action::alloc);
    EXPECT_EQ(shared.get<extension::private_pools>().usage_of(pool.id()).reserved, 20_MiB);
    auto memory = shared.get<extension::sleep_mode>();
    const extension::sleep_result slept = memory.sleep(extension::sleep_contents::discard);
    EXPECT_EQ(static_cast<bool>(slept), expandable);
    EXPECT_EQ(memory.is_asleep(pool.id()), expandable);
    if (!expandable) {
      EXPECT_STREQ(slept.why, "sleep needs a recipe that maps memory into ranges, such as stitched");
    }
    EXPECT_EQ(static_cast<bool>(memory.wake()), expandable);
    EXPECT_STREQ(shared.audit(), nullptr);
  }
}

/// The addresses that an allocator gives to a random program.
template <typename Pool>
std::vector<void*> addresses_of(Pool& pool) {
  std::vector<void*> given, live;
  std::mt19937 random(11);
  for (int i = 0; i < 3000; ++i) {
    if (live.size() > 40 || (random() % 3 == 0 && !live.empty())) {
      const std::size_t at = random() % live.size();
      pool.deallocate(live[at]);
      live[at] = live.back();
      live.pop_back();
    } else {
      live.push_back(pool.try_allocate(std::size_t{1} << (random() % 27), stream_id{random() % 2}));
      given.push_back(live.back());
      if (live.back() == nullptr) live.pop_back();
    }
  }
  for (void* p : live) pool.deallocate(p);
  return given;
}
simulated_device small_device() { return simulated_device{simulated_device::options{.capacity = 600_MiB}}; }

TEST(configured, decides_as_the_string_and_as_the_recipe_written_by_hand) {
  using hand = with<pytorch_family::native, split_below<32_MiB>, evict_idle_above<percent(60), true>>;
  caching_allocator<hand, simulated_device> by_hand{small_device()};
  caching_allocator<pytorch<"max_split_size_mb:32,garbage_collection_threshold:0.6">, simulated_device>
      by_string{small_device()};
  chosen by_settings({.max_split_size = 32_MiB, .garbage_collection_threshold = percent(60)}, small_device());
  ASSERT_TRUE(set_memory_fraction(by_hand, 1) && set_memory_fraction(by_string, 1) &&
              set_memory_fraction(by_settings, 1));
  const std::vector<void*> expected = addresses_of(by_hand);
  EXPECT_EQ(addresses_of(by_string), expected);
  EXPECT_EQ(addresses_of(by_settings), expected);
  caching_allocator<pytorch<>, simulated_device> otherwise{small_device()};
  EXPECT_NE(addresses_of(otherwise), expected);
}

// Like PyTorch's _set_allocator_settings, which does not touch the fraction that the program set.
TEST(configured, keeps_what_the_program_set_at_run_time) {
  using segments = configured<pytorch_family, caching_allocator<pytorch<>, simulated_device>>;
  segments pool({.memory_fraction = percent(50)}, small_device());
  const std::size_t capacity = pool.visit_provider([](auto& d) { return d.capacity(); });
  const auto limit = [&] { return pool.current_usage().limit; };
  ASSERT_TRUE(set_memory_fraction(pool, 0.25));
  EXPECT_FALSE(pool.change("per_process_memory_fraction:0.5,max_split_size_mb:128"));
  EXPECT_EQ(limit(), capacity / 2) << "the text names the fraction";
  ASSERT_TRUE(set_memory_fraction(pool, 0.25));
  EXPECT_FALSE(pool.change({.max_split_size = 256_MiB, .memory_fraction = percent(50)}));
  EXPECT_EQ(limit(), capacity / 4);
  EXPECT_FALSE(pool.change({.max_split_size = 256_MiB, .memory_fraction = percent(100)}));
  EXPECT_EQ(limit(), capacity) << "the settings change the fraction";
  ASSERT_TRUE(set_memory_fraction(pool, 0.25));
  EXPECT_FALSE(pool.change("max_split_size_mb:128,large_segment_size_mb:40"));
  EXPECT_EQ(limit(), capacity / 4) << "another number of the growth policy changes";
  EXPECT_EQ(pool.try_allocate(capacity / 2), nullptr);
  EXPECT_FALSE(pool.change("per_process_memory_fraction:1.0"));
  EXPECT_EQ(limit(), capacity) << "the text names the default";

  pool.visit_policies([](auto& s) {
    if constexpr (requires { s.eviction.threshold = percent(60); }) s.eviction.threshold = percent(60);
  });
  const auto threshold = [&] {
    fraction found{};
    pool.visit_policies([&found](auto& s) {
      if constexpr (requires { found = s.eviction.threshold; }) found = s.eviction.threshold;
    });
    return found;
  };
  EXPECT_FALSE(pool.change("max_split_size_mb:64"));
  EXPECT_EQ(threshold(), percent(60));
  EXPECT_FALSE(pool.change("garbage_collection_threshold:0.8"));
  EXPECT_EQ(threshold(), percent(80));
  EXPECT_FALSE(pool.change("max_split_size_mb:64"));
  EXPECT_EQ(threshold(), fraction{}) << "a setting returns to its default";
}

TEST(configured, has_the_statistics_of_its_allocator) {
  configured<pytorch_family, plain> pool({});
  const void* const p = pool.allocate(5_MiB);
  EXPECT_EQ(pool.try_allocate(1_GiB << 20), nullptr);
  const auto found = pool.statistics();
  EXPECT_EQ(found.num_ooms, 1u);
  EXPECT_EQ(found.num_device_alloc, 1u);
  EXPECT_EQ(found.pool[1].allocation.current, 1);
  EXPECT_EQ(found.all.allocation.current, 1);
  EXPECT_NE(p, nullptr);
  configured<pytorch_family, plain> of_one_pool({.async_backend = true});
  (void)of_one_pool.allocate(5_MiB);
  EXPECT_EQ(of_one_pool.statistics().pool[0].allocation.current, 1);
  EXPECT_EQ(of_one_pool.statistics().pool[1].allocation.current, 0);
}

TEST(configured, goes_with_what_serves_other_allocators) {
  configured<paddle_family, caching_allocator<paddle<>, simulated_device>> pool(
      {.fast_eager_deletion = false});
  void* donor = pool.allocate(10_MiB);
  void* const input = donor;
  void* const output = allocate_in_place(pool, donor, 10_MiB);
  EXPECT_EQ(output, input);
  EXPECT_EQ(donor, nullptr);
  ASSERT_TRUE(set_memory_fraction(pool, 0));
  EXPECT_EQ(pool.try_allocate(20_MiB), nullptr);
  ASSERT_TRUE(set_memory_fraction(pool, 1));
  pool.reset_peak_statistics();
  {
    deferred_free_queue garbage(pool, {.threshold = pool.settings().garbage_threshold,
                                       .waits = !pool.settings().fast_eager_deletion});
    garbage.push(output, 10_MiB);
  }
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(preset, keeps_its_numbers_under_policies_put_over_it) {
  using base = torch_npu<"max_split_size_mb:32,garbage_collection_threshold:0.6">;
  constexpr policies<with<with<base, reuse_on_same_stream>, prefer_pages<page_preference::normal_only>>> kept;
  static_assert(kept.split == policies<base>{}.split && kept.eviction == policies<base>{}.eviction);
  constexpr policies<with<base, split_below<>>> replaced;
  static_assert(replaced.split == split_below<>{} && replaced.eviction == policies<base>{}.eviction);
  caching_allocator<with<base, prefer_pages<page_preference::normal_only>>, simulated_device> pool;
  pool.deallocate(pool.allocate(100_MiB));
  void* const p = pool.allocate(5_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 122_MiB);  // the oversize block was not split
  pool.deallocate(p);
}

TEST(preset, sizes_at_their_bounds_are_refused_by_the_device_and_by_nobody_else) {
  const auto fails = []<typename Recipe>() {
    caching_allocator<Recipe, simulated_device> pool;
    return pool.try_allocate(3_MiB) == nullptr && pool.audit() == nullptr;
  };
  EXPECT_TRUE(fails.template operator()<torch_npu<"large_segment_size_mb:1099511627775">>());
  EXPECT_TRUE((fails.template
               operator()<torch_npu<"expandable_segments:True,large_segment_size_mb:1099511627775">>()));
  EXPECT_TRUE(fails.template operator()<pytorch<"large_segment_size_mb:1099511627775">>());
  EXPECT_TRUE(fails.template operator()<paddle<"FLAGS_auto_growth_chunk_size_in_mb=1099511627775">>());
  EXPECT_TRUE(
      (fails.template operator()<
          paddle<"FLAGS_allocator_strategy=naive_best_fit,FLAGS_initial_gpu_memory_in_mb=1099511627775">>()));
}

TEST(preset, a_reserve_of_all_is_the_device_and_not_more) {
  using all = pytorch<"expandable_segments:True,expandable_segments_reserve:1.0">;
  static_assert(policies<all>{}.growth.range_size(80_GiB) == 80_GiB);
  static_assert(policies<pytorch_family::expandable>{}.growth.range_size(80_GiB) == 90_GiB);
}

TEST(configured, explains_a_failure_as_the_recipe_that_was_chosen) {
  for (const bool expandable : {false, true}) {
    chosen pool({.expandable_segments = expandable},
                simulated_device{simulated_device::options{.capacity = 60_MiB}});
    pool.deallocate(pool.allocate(50_MiB));
    (void)pool.allocate(5_MiB, stream_id{1});
    const oom_report told = explain(pool, 56_MiB, stream_id{2});
    EXPECT_EQ(told.stream, stream_id{2});
    EXPECT_EQ(told.has_segments, !expandable);
    EXPECT_THROW((void)pool.allocate(56_MiB, stream_id{2}), out_of_memory);
  }
}

}  // namespace
