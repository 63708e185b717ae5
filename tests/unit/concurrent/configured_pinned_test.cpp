// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/configured_pinned.hpp>
#include <tessera/config/grammar.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "../environment.hpp"

namespace {

using namespace tessera;
using cuda = pytorch_family::pinned_family;
using npu = torch_npu_family::pinned_family;

template <typename Family>
typename Family::settings settings_of(std::string_view text) {
  const auto read = config::parse<typename Family::grammar>(text);
  EXPECT_EQ(read.index(), 0u) << text;
  return std::get<0>(read);
}
host_pinned unlocked() { return host_pinned({.capacity = 256_MiB, .pin = host_pinned::pinning::never}); }
template <typename Pool>
bool has_worker(Pool& pool) {
  return pool.visit([](auto& in) { return in.has_worker(); });
}

template <typename Family>
class pinned_host_of : public testing::Test {};
using families = testing::Types<cuda, npu>;
TYPED_TEST_SUITE(pinned_host_of, families);

TYPED_TEST(pinned_host_of, rounds_and_keeps_blocks_up_to_the_sizes_that_are_set) {
  configured_pinned<TypeParam, simulated_device> plain({}, simulated_device{});
  plain.deallocate(plain.allocate(80_MiB));
  EXPECT_EQ(plain.current_usage().reserved, 128_MiB);
  configured_pinned<TypeParam, simulated_device> pool(
      settings_of<TypeParam>("pinned_max_round_threshold_mb:64,pinned_max_cached_size_mb:100"),
      simulated_device{});
  pool.deallocate(pool.allocate(80_MiB), 80_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 80_MiB);
  void* const large = pool.allocate(101_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 181_MiB);
  EXPECT_TRUE(pool.try_deallocate(large));
  EXPECT_FALSE(pool.try_deallocate(large));
  EXPECT_EQ(pool.current_usage().reserved, 80_MiB);
  EXPECT_STREQ(pool.audit(), nullptr);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_EQ(pool.try_allocate(100_GiB), nullptr);
  EXPECT_THROW((void)pool.allocate(100_GiB), out_of_memory);
}

TYPED_TEST(pinned_host_of, cuts_segments_off_a_large_one) {
  configured_pinned<TypeParam, simulated_device> pool(
      settings_of<TypeParam>("pinned_reserve_segment_size_mb:16"), simulated_device{});
  const auto taken = [&] {
    return pool.with_host(
        [](simulated_device& host) { return std::pair{std::uint64_t{host.calls().acquire}, host.used()}; });
  };
  EXPECT_EQ(taken(), (std::pair{std::uint64_t{0}, std::size_t{0}}));
  for (int i = 0; i < 4; ++i) EXPECT_NE(pool.allocate(3_MiB), nullptr);
  EXPECT_EQ(taken(), (std::pair{std::uint64_t{1}, std::size_t{16_MiB}}));
  EXPECT_NE(pool.allocate(3_MiB), nullptr);
  EXPECT_EQ(taken(), (std::pair{std::uint64_t{2}, std::size_t{20_MiB}}));
  EXPECT_EQ(pool.statistics().num_host_alloc, 5u);
}

TYPED_TEST(pinned_host_of, holds_a_block_back_for_the_streams_that_were_recorded) {
  configured_pinned<TypeParam, simulated_device> pool({}, simulated_device{});
  void* const p = pool.allocate(1_MiB);
  EXPECT_TRUE(pool.record_stream(p, stream_id{1}));
  pool.with_host([](simulated_device& host) { host.submit(stream_id{1}, 1'000'000'000); });
  pool.deallocate(p);
  EXPECT_FALSE(has_worker(pool));
  EXPECT_EQ(pool.current_usage().pending(), 1_MiB);
  EXPECT_EQ(pool.statistics().active_requests, (counter{1, 1, 1, 0}));
  pool.with_host([](simulated_device& host) { host.advance(1'000'000'000); });
  EXPECT_EQ(pool.allocate(1_MiB), p);
  EXPECT_EQ(pool.statistics().active_requests, (counter{1, 1, 2, 1}));
}

TYPED_TEST(pinned_host_of, has_a_thread_for_events_if_configured) {
  for (const char* text : {"pinned_use_background_threads:False", "pinned_use_background_threads:True"}) {
    const auto settings = settings_of<TypeParam>(text);
    configured_pinned<TypeParam, host_pinned> pool(settings, unlocked());
    void* const p = pool.allocate(64_KiB);
    ASSERT_TRUE(pool.record_stream(p, stream_id{}));
    pool.deallocate(p);
    EXPECT_EQ(has_worker(pool), settings.pinned_use_background_threads);
    if (!settings.pinned_use_background_threads) pool.trim();
    while (pool.current_usage().pending() > 0) std::this_thread::yield();
  }
}

template <typename Family>
constexpr const char* registers =
    std::is_same_v<Family, cuda>
        ? "pinned_reserve_segment_size_mb:1,pinned_use_hip_host_register:True,"
          "pinned_use_background_threads:True"
        : "pinned_reserve_segment_size_mb:1,pinned_mem_register:True,pinned_use_background_threads:True";

TYPED_TEST(pinned_host_of, registers_what_it_takes_with_the_device_if_told_to) {
  host_pinned device({.pin = host_pinned::pinning::where_allowed});
  for (const bool is_told : {false, true}) {
    const auto settings = settings_of<TypeParam>(is_told ? registers<TypeParam> : "");
    {
      configured_pinned<TypeParam, host_pinned, host_pinned> pool(settings, unlocked(), device);
      EXPECT_EQ(pool.settings(), settings);
      for (int i = 0; i < 4; ++i) EXPECT_NE(pool.allocate(256_KiB), nullptr);
      EXPECT_EQ(device.held().registered, is_told ? 1_MiB : 0);
      EXPECT_NE(pool.allocate(256_KiB), nullptr);
      EXPECT_EQ(device.held().registered, is_told ? 1_MiB + 256_KiB : 0);
      EXPECT_EQ(pool.with_host([](host_pinned& host) { return host.used(); }), 1_MiB + 256_KiB);
    }
    EXPECT_EQ(device.held().registered, 0u);
  }
}

TYPED_TEST(pinned_host_of, waits_for_the_streams_of_the_device_that_memory_is_registered_with) {
  host_pinned device({.pin = host_pinned::pinning::where_allowed});
  const stream_id copies = device.create_stream();
  configured_pinned<TypeParam, host_pinned, host_pinned> pool(settings_of<TypeParam>(registers<TypeParam>),
                                                              unlocked(), device);
  auto* const p = static_cast<unsigned char*>(pool.allocate(64_KiB));
  std::memset(p, 1, 64_KiB);
  std::atomic<bool> may_read = false;
  unsigned char read = 0;
  ASSERT_TRUE(pool.record_stream(p, copies));
  device.submit(copies, [&] {
    while (!may_read) std::this_thread::yield();
    read = p[64_KiB - 1];
  });
  pool.deallocate(p);
  void* const next = pool.allocate(64_KiB);
  EXPECT_NE(next, p);
  std::memset(next, 2, 64_KiB);
  may_read = true;
  while (pool.current_usage().pending() > 0) std::this_thread::yield();
  EXPECT_EQ(read, 1);
  EXPECT_EQ(pool.allocate(64_KiB), p);
}

TYPED_TEST(pinned_host_of, refuses_to_register_without_a_device) {
  try {
    configured_pinned<TypeParam, host_pinned> pool(settings_of<TypeParam>(registers<TypeParam>), unlocked());
    ADD_FAILURE();
  } catch (const config::bad_setting& error) {
    EXPECT_NE(std::string_view(error.what())
                  .find("register True: excluded by the provider: there is no device to register with"),
              std::string_view::npos)
        << error.what();
  }
}

TYPED_TEST(pinned_host_of, changes_the_numbers_that_its_recipe_reads_and_nothing_else) {
  configured_pinned<TypeParam, simulated_device> pool({}, simulated_device{});
  EXPECT_FALSE(pool.change(settings_of<TypeParam>("pinned_max_cached_size_mb:32")));
  pool.deallocate(pool.allocate(64_MiB));
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  const auto refused = pool.change(settings_of<TypeParam>("pinned_use_background_threads:True"));
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->key, "pinned_use_background_threads");
  EXPECT_EQ(pool.settings(), settings_of<TypeParam>("pinned_max_cached_size_mb:32"));
}

TYPED_TEST(pinned_host_of, says_which_setting_has_no_effect) {
  auto settings =
      settings_of<TypeParam>("pinned_use_background_threads:True,pinned_reserve_segment_size_mb:1");
  const configured_pinned<TypeParam, simulated_device> pool(settings, simulated_device{});
  EXPECT_FALSE(pool.setting_without_effect());
  settings.max_split_size = 64_MiB;
  const configured_pinned<TypeParam, simulated_device> other(settings, simulated_device{});
  ASSERT_TRUE(other.setting_without_effect());
  EXPECT_EQ(other.setting_without_effect()->key, "max_split_size_mb");
  configured_pinned<TypeParam, simulated_device> small(
      settings_of<TypeParam>("pinned_reserve_segment_size_mb:16"), simulated_device({.capacity = 8_MiB}));
  EXPECT_FALSE(small.setting_without_effect());
  EXPECT_NE(small.allocate(1_MiB), nullptr);
  ASSERT_TRUE(small.setting_without_effect());
  EXPECT_EQ(small.setting_without_effect()->key, "pinned_reserve_segment_size_mb");
}

TYPED_TEST(pinned_host_of, reads_the_environment_of_its_system) {
  const char* const variable = TypeParam::grammar::variables[0];
  ASSERT_TRUE(set_variable(variable, "pinned_reserve_segment_size_mb:2"));
  auto pool = configured_pinned<TypeParam, simulated_device>::from_environment(simulated_device{});
  EXPECT_EQ(pool.settings().pinned_reserve_segment_size, 2_MiB);
  ASSERT_TRUE(set_variable(variable, "pinned_reserve_segment_size_mb:none"));
  using pool_type = configured_pinned<TypeParam, simulated_device>;
  EXPECT_THROW((void)pool_type::from_environment(simulated_device{}), config::bad_setting);
  ASSERT_TRUE(unset_variable(variable));
}

constexpr config::torch_npu::settings in_ranges{.pin_memory_expandable_segments = true,
                                                .pinned_reserve_segment_size = 16_MiB};

TEST(configured_pinned, maps_pages_and_preallocates_nothing_if_segments_are_expandable) {
  configured_pinned<npu, simulated_device> pool(in_ranges, simulated_device{});
  void* const p = pool.allocate(64_MiB);
  EXPECT_EQ(pool.current_usage().reserved, 80_MiB);
  pool.with_host([](simulated_device& host) {
    EXPECT_EQ(host.used(), 80_MiB);
    EXPECT_EQ(host.calls().acquire, 0u);
  });
  host_statistics expected;
  expected.allocated_bytes = {80 << 20, 80 << 20, 80 << 20, 0};
  expected.active_bytes = {(64 << 20) + 512, (64 << 20) + 512, (64 << 20) + 512, 0};
  EXPECT_EQ(pool.statistics(), expected);
  pool.deallocate(p);
}

struct without_ranges : provider_adaptor<host_pinned> {
  using provider_adaptor::provider_adaptor;
  static constexpr bool is_thread_safe = true;
  void* reserve(std::size_t, std::size_t) noexcept = delete;
};
TEST(configured_pinned, refuses_expandable_segments_without_virtual_memory_or_with_registration) {
  host_pinned host = unlocked(), device = unlocked();
  configured_pinned<npu, without_ranges> pool({}, without_ranges(host));
  pool.deallocate(pool.allocate(1));
  EXPECT_THROW((configured_pinned<npu, without_ranges>(in_ranges, without_ranges(host))),
               config::bad_setting);
  config::torch_npu::settings both = in_ranges;
  both.pinned_mem_register = true;
  EXPECT_THROW((configured_pinned<npu, host_pinned, host_pinned>(both, unlocked(), device)),
               config::bad_setting);
}

/// Threads write data that streams read later.
template <typename Pool>
void stress(Pool& pool, host_pinned& device) {
  std::atomic<int> overwritten = 0;
  std::vector<std::thread> threads;
  for (unsigned char mine = 1; mine <= 4; ++mine) {
    threads.emplace_back([&, mine] {
      const stream_id stream = device.create_stream();
      for (std::size_t round = 0; round < 300; ++round) {
        const std::size_t bytes = 4_KiB << round % 4;
        auto* const p = static_cast<unsigned char*>(pool.allocate(bytes));
        std::memset(p, mine, bytes);
        if (round % 3 != 0) {
          (void)pool.record_stream(p, stream);
          device.submit(stream, [p, bytes, mine, &overwritten] {
            for (std::size_t i = 0; i < bytes; i += 512) overwritten += p[i] != mine;
          });
        }
        pool.deallocate(p);
      }
      device.synchronize(stream);
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(overwritten, 0);
  EXPECT_STREQ(pool.audit(), nullptr);
  EXPECT_TRUE(has_worker(pool));
  // The allocator is destroyed while blocks may still be pending.
}
TYPED_TEST(pinned_host_of, gives_no_block_away_that_a_stream_still_reads) {
  host_pinned device({.pin = host_pinned::pinning::where_allowed});
  {
    configured_pinned<TypeParam, host_pinned, host_pinned> pool(settings_of<TypeParam>(registers<TypeParam>),
                                                                unlocked(), device);
    stress(pool, device);
  }
  EXPECT_EQ(device.held().registered, 0u);
}
#if !defined(_WIN32)  // where host_pinned has no virtual memory
TEST(configured_pinned, reuses_no_block_that_a_stream_still_reads_with_expandable_segments) {
  config::torch_npu::settings settings = in_ranges;
  settings.pinned_use_background_threads = true;
  configured_pinned<npu, host_pinned> pool(settings, unlocked());
  stress(pool, *pool.with_host([](host_pinned& host) { return &host; }));
}
#endif

}  // namespace
