// SPDX-License-Identifier: Apache-2.0
// A provider adaptor has exactly the capabilities of its provider, passes each call to its hook, and takes a
// few lines to write.
#include <tessera/provider/adaptor.hpp>

#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace tessera::inline v0_1 {
namespace {

using namespace literals;

struct least_provider {
  void* acquire(std::size_t) noexcept { return nullptr; }
  bool release(void*, std::size_t) noexcept { return true; }
  [[nodiscard]] std::size_t capacity() const noexcept { return 1_GiB; }
  [[nodiscard]] std::size_t granularity() const noexcept { return 512; }
};
template <typename D>
constexpr unsigned capabilities =
    (event_provider<D> ? 1u : 0) | (ordering_provider<D> ? 2u : 0) |
    (detail::stream_listing_provider<D> ? 4u : 0) | (detail::limited_provider<D> ? 8u : 0) |
    (detail::reclaiming_provider<D> ? 16u : 0) | (detail::measured_provider<D> ? 32u : 0) |
    (paged_provider<D> ? 64u : 0) | (virtual_memory_provider<D> ? 128u : 0) |
    (sharing_provider<D> ? 256u : 0) | (registering_provider<D> ? 512u : 0) |
    (copying_provider<D> ? 1024u : 0);
template <typename D>
constexpr bool keeps_capabilities =
    capabilities<provider_adaptor<D>> == capabilities<D> &&
    detail::is_host_visible<provider_adaptor<D>> == detail::is_host_visible<D> &&
    detail::release_waits<provider_adaptor<D>> == detail::release_waits<D> &&
    detail::copies_page_locked<provider_adaptor<D>> == detail::copies_page_locked<D> &&
    !detail::is_thread_safe<provider_adaptor<D>>;
static_assert(device_provider<provider_adaptor<least_provider>>);
static_assert(keeps_capabilities<least_provider> && capabilities<least_provider> == 0);
static_assert(keeps_capabilities<simulated_device> && keeps_capabilities<simulated_npu>);
static_assert(keeps_capabilities<host_pinned> && capabilities<host_pinned> != capabilities<simulated_device>);
static_assert(keeps_capabilities<limiting<simulated_device>> &&
              detail::limited_provider<limiting<simulated_device>>);

/// Logs each call, and makes every n-th call fail that can.
struct log_and_fail {
  std::vector<std::string>* log;
  unsigned period;
  unsigned count = 0;

  template <typename F>
  auto operator()(provider_call call, F f) {
    log->emplace_back(call.name());
    if (call.may_fail() && ++count % period == 0) return decltype(f()){};
    return f();
  }
};
using failing_device = provider_adaptor<simulated_device, log_and_fail>;

TEST(provider_adaptor, shows_its_hook_each_call_and_lets_it_fail) {
  simulated_device device;
  std::vector<std::string> log;
  failing_device adaptor(device, {&log, 2});
  void* const p = adaptor.acquire(2_MiB);
  ASSERT_NE(p, nullptr);
  EXPECT_EQ(adaptor.acquire(2_MiB), nullptr);
  EXPECT_TRUE(adaptor.release(p, 2_MiB));
  failing_device::event mark;
  EXPECT_FALSE(adaptor.record({}, mark));
  EXPECT_TRUE(adaptor.record({}, mark));
  EXPECT_FALSE(adaptor.synchronize({}));
  EXPECT_TRUE(adaptor.query(mark));
  adaptor.discard(mark);
  EXPECT_EQ(log, (std::vector<std::string>{"acquire", "acquire", "release", "record", "record", "synchronize",
                                           "query", "discard"}));
  EXPECT_EQ(device.calls().acquire, 1u);
  EXPECT_EQ(device.calls().discard, 1u);
}

TEST(provider_adaptor, carries_an_allocator_that_recovers_from_its_failures) {
  simulated_device device;
  std::vector<std::string> log;
  {
    caching_allocator<pytorch<"expandable_segments:True">, failing_device> pool{
        failing_device(device, {&log, 5})};
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < 40; ++i) {
      if (void* const p = pool.try_allocate(i * 1_MiB + 1, stream_id{i % 3})) blocks.push_back(p);
    }
    EXPECT_GT(blocks.size(), 10u);
    for (void* const p : blocks) pool.deallocate(p);
    EXPECT_EQ(pool.audit(), nullptr);
  }
  EXPECT_GT(log.size(), 40u);
}

TEST(provider_adaptor, names_each_call) {
  EXPECT_STREQ(provider_call(provider_call::acquire).name(), "acquire");
  EXPECT_STREQ(provider_call(provider_call::synchronize).name(), "synchronize");
  EXPECT_STREQ(provider_call(provider_call::unregister_memory).name(), "unregister_memory");
  EXPECT_STREQ(provider_call(provider_call::is_ordered_after).name(), "is_ordered_after");
  EXPECT_TRUE(provider_call(provider_call::synchronize).may_take_long() &&
              !provider_call(provider_call::make_wait).may_take_long());
  EXPECT_STREQ(provider_call(provider_call::copy_to_device).name(), "copy_to_device");
  EXPECT_TRUE(provider_call(provider_call::copy_to_device).may_fail() &&
              !provider_call(provider_call::query).may_fail());
}

}  // namespace
}  // namespace tessera::inline v0_1
