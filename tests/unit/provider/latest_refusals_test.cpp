// SPDX-License-Identifier: Apache-2.0
// The reasons of a provider reach the reports of every allocator over every adaptor.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/background_reclaiming.hpp>
#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/concurrent/waiting.hpp>
#include <tessera/configured.hpp>
#include <tessera/debug/checked_provider.hpp>
#include <tessera/debug/guarded.hpp>
#include <tessera/debug/leak_checked.hpp>
#include <tessera/debug/tagged.hpp>
#include <tessera/extension/sleep_mode.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/host_registering.hpp>
#include <tessera/provider/latest_refusals.hpp>
#include <tessera/provider/limiting.hpp>
#include <tessera/provider/preallocating.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/provider/timed.hpp>
#include <tessera/tessera.hpp>
#include <tessera/trace/captured.hpp>

#include "extensions.hpp"

namespace {

using namespace tessera;

/// A device with a largest segment, as OpenCL has.
class choosy : public simulated_device {
 public:
  explicit choosy(std::size_t max_segment = 1_GiB) : max_segment_(max_segment) {}
  void* acquire(std::size_t bytes, page_kind kind = page_kind::normal) noexcept {
    if (bytes <= max_segment_) return simulated_device::acquire(bytes, kind);
    refused_ = refusal::format("no segment of %zu bytes", bytes);
    return nullptr;
  }
  bool create(std::size_t bytes, page_kind kind, physical& made) noexcept {
    if (bytes <= max_segment_) return simulated_device::create(bytes, kind, made);
    refused_ = refusal::format("no memory of %zu bytes", bytes);
    return false;
  }
  refusal take_refusal() noexcept {
    const refusal why = refused_;
    refused_ = {};
    return why;
  }

 private:
  std::size_t max_segment_;
  refusal refused_;
};
static_assert(detail::explaining_provider<choosy>);

/// The same for several threads.
class choosy_for_threads {
 public:
  static constexpr bool is_thread_safe = true;
  using event = simulated_device::event;
  static void* acquire(std::size_t bytes) noexcept {
    refused().note(refusal::format("no segment of %zu bytes", bytes));
    return nullptr;
  }
  static bool release(void*, std::size_t) noexcept { return false; }
  static std::size_t capacity() noexcept { return 1024_GiB; }
  static std::size_t granularity() noexcept { return 512; }
  static bool record(stream_id, event&) noexcept { return false; }
  static bool query(event&) noexcept { return true; }
  static bool wait(event&) noexcept { return true; }
  static void discard(event&) noexcept {}
  static refusal take_refusal() noexcept { return refused().take(); }

 private:
  static latest_refusals& refused() {
    static latest_refusals all;
    return all;
  }
};

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// Makes a request of 2 GiB, which the device refuses, and expects its reason in the exception and in the report.
template <typename Allocator>
void expect_reason(Allocator& memory, std::string_view reason) {
  try {
    (void)memory.allocate(2_GiB, stream_id{3});
    ADD_FAILURE() << "the request succeeded";
  } catch (const out_of_memory& error) {
    EXPECT_EQ(error.why(), reason);
    EXPECT_TRUE(has(error.what(), reason)) << error.what();
  }
  const oom_report report = explain(memory, 2_GiB, stream_id{3});
  EXPECT_EQ(report.refused.text(), reason);
  EXPECT_TRUE(has(report.text().c_str(), reason)) << report.text().c_str();
}
constexpr std::string_view of_choosy = "no segment of 2147483648 bytes";

template <typename Allocator>
void expect_reason_of_choosy() {
  Allocator memory{choosy()};
  expect_reason(memory, of_choosy);
}

TEST(refusal, reaches_the_reports_of_each_front_end) {
  expect_reason_of_choosy<caching_allocator<pytorch<>, choosy, extension::sleep_mode>>();
  expect_reason_of_choosy<locked<caching_allocator<pytorch<>, choosy, extension::sleep_mode>>>();
  expect_reason_of_choosy<per_stream<caching_allocator<pytorch<>, choosy, extension::sleep_mode>>>();
  expect_reason_of_choosy<
      background_reclaiming<caching_allocator<pytorch<>, choosy, extension::sleep_mode>>>();
  expect_reason_of_choosy<tagged<locked<caching_allocator<pytorch<>, choosy, extension::sleep_mode>>>>();
  expect_reason_of_choosy<
      leak_checked<locked<caching_allocator<pytorch<>, choosy, extension::sleep_mode>>>>();
  expect_reason_of_choosy<
      trace::captured<tagged<per_stream<caching_allocator<pytorch<>, choosy, extension::sleep_mode>>>>>();
  using waiting_type = waiting<locked<caching_allocator<pytorch<>, choosy, extension::sleep_mode>>>;
  waiting_type patient(std::chrono::milliseconds(1), choosy());
  expect_reason(patient, of_choosy);
  configured<pytorch_family, caching_allocator<pytorch<>, choosy, extension::sleep_mode>> chosen({});
  expect_reason(chosen, of_choosy);
  std::vector<choosy> devices(2);
  per_device<locked<caching_allocator<pytorch<>, choosy, extension::sleep_mode>>> all(std::move(devices));
  expect_reason(all.front(1), of_choosy);
}

TEST(refusal, reaches_the_reports_of_ranges) {
  caching_allocator<pytorch<"expandable_segments:True">, choosy, extension::sleep_mode> pages{choosy(1_MiB)};
  expect_reason(pages, "no memory of 20971520 bytes");
}

TEST(refusal, passes_through_the_adaptors) {
  choosy device;
  caching_allocator<pytorch<>, provider_ref<choosy>, extension::sleep_mode> by_reference{
      provider_ref(device)};
  expect_reason(by_reference, of_choosy);
  call_times times;
  locked<caching_allocator<pytorch<>, timed<choosy>, extension::sleep_mode>> measured{
      timed<choosy>(device, times)};
  expect_reason(measured, of_choosy);
  caching_allocator<pytorch<>, checked_provider<choosy>, extension::sleep_mode> checked{
      checked_provider(choosy())};
  expect_reason(checked, of_choosy);
  per_stream<caching_allocator<pytorch<>, limiting<choosy>, extension::sleep_mode>> limited{
      limiting(choosy(), 10_GiB)};
  expect_reason(limited, of_choosy);
  preallocating<choosy>::region region(device, 1_GiB);
  locked<caching_allocator<pytorch<>, preallocating<choosy>, extension::sleep_mode>> preallocated{
      preallocating<choosy>(region)};
  expect_reason(preallocated, of_choosy);
}

TEST(refusal, limiting_says_its_limit) {
  constexpr std::string_view reason =
      "the provider's limit is 1.00 GiB, 20.00 MiB are taken, and 2.00 GiB are needed";
  locked<caching_allocator<pytorch<>, limiting<simulated_device>, extension::sleep_mode>> memory{
      limiting(simulated_device(), 1_GiB)};
  void* const live = memory.allocate(5_MiB);
  expect_reason(memory, reason);
  memory.deallocate(live);
  limiting<limiting<choosy>> nested(limiting(choosy(), 1_GiB), 10_GiB);
  EXPECT_EQ(nested.acquire(2_GiB), nullptr);
  EXPECT_STREQ(nested.take_refusal().text(),
               "the provider's limit is 1.00 GiB, 0 B are taken, and 2.00 GiB are needed");
  EXPECT_FALSE(nested.take_refusal());
}

TEST(refusal, the_later_of_limit_and_device_counts) {
  limiting<choosy> device(choosy(), 3_GiB);
  EXPECT_EQ(device.acquire(4_GiB), nullptr);  // by the limit
  EXPECT_EQ(device.acquire(2_GiB), nullptr);  // by the device
  EXPECT_STREQ(device.take_refusal().text(), of_choosy.data());
}

TEST(refusal, is_not_said_of_another_request) {
  caching_allocator<pytorch<>, choosy, extension::sleep_mode> memory;
  expect_reason(memory, of_choosy);
  EXPECT_STREQ(memory.make_out_of_memory(3_GiB, stream_id{3}).why(), "");
  EXPECT_STREQ(memory.make_out_of_memory(2_GiB, stream_id{4}).why(), "");
  // The limit of the allocator refuses the same request without asking the device.
  memory.policies().growth.limit = memory_limit(1_GiB);
  EXPECT_EQ(memory.try_allocate(2_GiB, stream_id{3}), nullptr);
  EXPECT_STREQ(memory.make_out_of_memory(2_GiB, stream_id{3}).why(), "");
  EXPECT_FALSE(explain(memory, 2_GiB, stream_id{3}).refused);
  // A request that succeeds after a refusal leaves no reason for the next one.
  memory.policies().growth.limit = {};
  (void)memory.provider().acquire(2_GiB);
  memory.policies().growth.limit = memory_limit(1_GiB);
  EXPECT_EQ(memory.try_allocate(2_GiB, stream_id{3}), nullptr);
  EXPECT_STREQ(memory.make_out_of_memory(2_GiB, stream_id{3}).why(), "");
}

/// Threads make requests of different sizes, and each gets the reason of its own.
template <typename Allocator, typename Provider>
void expect_own_reasons(Provider device) {
  Allocator memory{std::move(device)};
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (std::size_t number = 1; number <= 4; ++number) {
    threads.emplace_back([&memory, &wrong, number] {
      const std::size_t bytes = number * 2_GiB;
      const std::string expected = "no segment of " + std::to_string(bytes) + " bytes";
      for (int i = 0; i < 200; ++i) {
        try {
          (void)memory.allocate(bytes, stream_id{number});
          ++wrong;
        } catch (const out_of_memory& error) {
          if (error.why() != expected) ++wrong;
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(refusal, is_not_said_of_the_same_request_to_a_pool_that_sleeps) {
  caching_allocator<pytorch<"expandable_segments:True">, choosy, extension::sleep_mode> pages{choosy(1_MiB)};
  EXPECT_EQ(pages.try_allocate(2_GiB), nullptr);
  EXPECT_STREQ(pages.make_out_of_memory(2_GiB).why(), "no memory of 20971520 bytes");
  ASSERT_TRUE(sleep_mode_of(pages).sleep(extension::sleep_contents::discard));
  EXPECT_EQ(pages.try_allocate(2_GiB), nullptr);
  EXPECT_STREQ(pages.make_out_of_memory(2_GiB).why(), "the pool that serves them sleeps, so wake it first");
}

TEST(refusal, each_thread_gets_its_own) {
  expect_own_reasons<locked<caching_allocator<pytorch<>, choosy, extension::sleep_mode>>>(choosy());
  expect_own_reasons<per_stream<caching_allocator<pytorch<>, choosy, extension::sleep_mode>>>(choosy());
  expect_own_reasons<locked<caching_allocator<pytorch<>, choosy_for_threads, extension::sleep_mode>>>(
      choosy_for_threads());
}

TEST(refusal, simulated_device_says_what_the_numbers_do_not_show) {
  caching_allocator<pytorch<>, simulated_device, extension::sleep_mode> full{
      simulated_device(simulated_device::options{.capacity = 1_GiB})};
  expect_reason(full, "");
  caching_allocator<pytorch<>, simulated_device, extension::sleep_mode> fails;
  fails.provider().fail_every(1);
  expect_reason(fails, "acquire, 2147483648 bytes: the call is made to fail");
}

TEST(refusal, host_pinned_says_its_rule) {
  locked<caching_allocator<pytorch_pinned<>, host_pinned, extension::sleep_mode>> memory{
      host_pinned({.capacity = 1_GiB, .pin = host_pinned::pinning::never})};
  expect_reason(memory, "acquire: the capacity of this provider is reached");
  host_pinned source({.capacity = 1_GiB, .pin = host_pinned::pinning::never}), device;
  using provider = host_registering<host_pinned, host_pinned>;
  caching_allocator<pytorch_pinned<>, provider, extension::sleep_mode> registered{provider(source, device)};
  expect_reason(registered, "acquire: the capacity of this provider is reached");
  guarded<caching_allocator<pytorch_pinned<>, host_pinned, extension::sleep_mode>> watched(
      host_pinned({.pin = host_pinned::pinning::never}), {}, {.max_mappings = 1});
  expect_reason(
      watched,
      "guarded: more blocks would take mappings that the process must spare; the system administrator "
      "raises /proc/sys/vm/max_map_count, or the program guarded::options::max_mappings");
}

TEST(refusal, costs_nothing_without_reasons) {
  struct silent : private simulated_device {
    using simulated_device::acquire, simulated_device::release, simulated_device::capacity,
        simulated_device::granularity;
  };
  static_assert(device_provider<silent> && !detail::explaining_provider<silent>);
  static_assert(std::is_empty_v<detail::latest_failure<silent, false>>);
  static_assert(!detail::explaining_provider<detail::serialized_provider<silent>>);
  static_assert(std::is_empty_v<decltype(detail::serialized_calls<silent>::refusals)>);
}

TEST(latest_refusals, keeps_one_for_each_of_eight_threads) {
  latest_refusals refused;
  EXPECT_FALSE(refused.take());
  refused.note(refusal("first"));
  refused.note(refusal("second"));
  std::thread([&refused] {
    EXPECT_FALSE(refused.take());
    refused.note(refusal("of another thread"));
  }).join();
  EXPECT_STREQ(refused.take().text(), "second");
  EXPECT_FALSE(refused.take());
  refused.note(refusal("third"));
  std::vector<std::thread> others;
  std::atomic<int> noted = 0;
  for (int i = 0; i < 8; ++i) {
    others.emplace_back([&] {
      refused.note(refusal("newer"));
      ++noted;
      while (noted < 8) std::this_thread::yield();  // so that all threads have ids of their own
    });
  }
  for (std::thread& t : others) t.join();
  EXPECT_FALSE(refused.take());
}

TEST(refusal, drops_what_is_too_long) {
  const std::string text(1000, 'x');
  EXPECT_EQ(refusal(text.c_str()).text(), std::string(refusal::capacity, 'x'));
  EXPECT_EQ(refusal::format("%s", text.c_str()).text(), std::string(refusal::capacity, 'x'));
  EXPECT_FALSE(refusal());
  EXPECT_TRUE(refusal("x"));
}

}  // namespace
