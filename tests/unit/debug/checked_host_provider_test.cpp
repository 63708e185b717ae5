// SPDX-License-Identifier: Apache-2.0
// Contract violations about host-visible memory, and about streams that are threads: the rule of the law, and
// the message of the checked provider.
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/debug/checked_provider.hpp>
#include <tessera/law/provider_contents.hpp>
#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

#include "../../conformance/first_broken_rule.hpp"
#include "../concurrent/stress.hpp"

namespace {

using namespace tessera;
using conformance::first_broken_rule;
using conformance::plan;

enum class violation : unsigned char {
  none,
  segment_is_short,
  segments_share_memory,
  maps_elsewhere,
  maps_with_no_access,
  memory_forgets,
  event_is_ready_early,
  wait_returns_early,
  synchronize_returns_early,
  registers_twice,
};

struct violating_device : host_pinned {
  explicit violating_device(violation plant = violation::none)
      : host_pinned(options{.capacity = 64_MiB, .pin = pinning::never}), planted(plant) {}
  violation planted;
  detail::host_descriptor shared{};  // the memory that all segments share

  static void* at(void* p, std::size_t offset) { return static_cast<char*>(p) + offset; }

  void* acquire(std::size_t bytes, page_kind kind = page_kind::normal) noexcept {
    void* const given = host_pinned::acquire(bytes, kind);
    if (given == nullptr) return nullptr;
    if (planted == violation::segment_is_short) (void)::mprotect(at(given, bytes / 2), bytes / 2, PROT_NONE);
    if (planted == violation::segments_share_memory && kind == page_kind::normal) {
      if (!shared) (void)detail::host_make_file(32_MiB, kind, shared);
      (void)::mmap(given, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, shared.get(), 0);
    }
    return given;
  }
  bool map(void* p, std::size_t bytes, const physical& memory) noexcept {
    if (planted == violation::maps_elsewhere) return host_pinned::map(at(p, bytes), bytes, memory);
    if (!host_pinned::map(p, bytes, memory)) return false;
    if (planted == violation::maps_with_no_access) (void)::mprotect(p, bytes, PROT_NONE);
    if (planted == violation::memory_forgets)
      (void)::mmap(p, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return true;
  }
  bool query(event& mark) noexcept {
    return planted == violation::event_is_ready_early || host_pinned::query(mark);
  }
  bool wait(event& mark) noexcept {
    return planted == violation::wait_returns_early || host_pinned::wait(mark);
  }
  bool synchronize(stream_id stream) noexcept {
    return planted == violation::synchronize_returns_early || host_pinned::synchronize(stream);
  }
  bool register_memory(void* p, std::size_t bytes) noexcept {
    return host_pinned::register_memory(p, bytes) || planted == violation::registers_twice;
  }
};
using checked = checked_provider<violating_device>;
static_assert(detail::is_host_visible<checked> && detail::is_thread_safe<checked> &&
              ordering_provider<checked> && sharing_provider<checked> && registering_provider<checked>);

template <typename D>
const char* broken_law(D& device, host_pinned& with_streams) {
  if (const auto found = law::host_visible(device); !found) return found.broken;
  std::atomic<bool> over{true};
  const auto begin = [&] {
    over = false;
    with_streams.submit({}, [&over] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      over = true;
    });
  };
  law::provider_check_result found = law::work(device, {}, begin, [&over] { return over.load(); });
  (void)with_streams.host_pinned::synchronize({});
  law::detail::registering(found, device);
  return found.broken;
}
const char* broken_law(violation planted) {
  violating_device device(planted);
  return broken_law(device, device);
}

template <typename Recipe>
void use(checked& device) {
  caching_allocator<Recipe, provider_ref<checked>> pool{provider_ref(device)};
  void* const one = pool.try_allocate(100'000);
  void* const two = pool.try_allocate(3_MiB);
  pool.deallocate(one);
  pool.deallocate(two);
  pool.trim();
}

void misuse(violation planted) {
  checked device{violating_device(planted)};
  use<pytorch<>>(device);
  use<pytorch_family::expandable>(device);
  use<stitched>(device);
  checked::event mark{};
  const auto work = [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
  device.inner().submit({}, work);
  (void)device.record({}, mark);
  if (planted == violation::synchronize_returns_early) (void)device.synchronize({});
  if (planted != violation::wait_returns_early) (void)device.query(mark);
  (void)device.wait(mark);
  void* const page = ::mmap(nullptr, 64_KiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  (void)device.register_memory(page, 64_KiB);
  (void)device.register_memory(page, 64_KiB);
  (void)device.unregister_memory(page);
  ::munmap(page, 64_KiB);
}

struct row {
  violation planted;
  const char* law;
  const char* call;  // in the message that ends the program; null if only the contents would show it
  const char* other_rule = nullptr;  // of that message, if it is not the law's
};
const row rows[] = {
    {violation::segment_is_short, "the host can read a segment from end to end", "acquire"},
    {violation::segments_share_memory, "a host write changes one segment, which keeps it", nullptr},
    {violation::maps_elsewhere, "grant accepts a mapping", "map",
     "the host can read a mapping from end to end"},
    {violation::maps_with_no_access, "the host can read a mapping from end to end", "map"},
    {violation::memory_forgets, "memory keeps its contents when it is mapped elsewhere", nullptr},
    {violation::event_is_ready_early, "no event is ready before its work is done", "query"},
    {violation::wait_returns_early, "wait returns after the work is done", "wait"},
    {violation::synchronize_returns_early, "synchronize returns after the work is done", "synchronize"},
    {violation::registers_twice, "register_memory refuses registered memory", "register_memory"},
};

TEST(checked_host_provider, reports_nothing_about_a_correct_host) {
  EXPECT_STREQ(broken_law(violation::none), nullptr);
  violating_device device;
  checked over{std::move(device)};
  EXPECT_STREQ(broken_law(over, over.inner()), nullptr);
  EXPECT_STREQ(law::provider(over).broken, nullptr) << over.inner().last_error();
  misuse(violation::none);
}

TEST(checked_host_provider, each_lie_is_found_by_a_law) {
  for (const row& r : rows)
    EXPECT_STREQ(broken_law(r.planted), r.law) << "lie " << static_cast<int>(r.planted);
}

/// Each kind of growth, and blocks that change streams.
template <typename Recipe>
class checked_host : public testing::Test {};
using kinds = testing::Types<pinned_packed, torch_npu_family::pinned_expandable, stitched, cuda_async>;
TYPED_TEST_SUITE(checked_host, kinds);

TYPED_TEST(checked_host, reports_nothing) {
  using device = checked_provider<host_pinned>;
  caching_allocator<TypeParam, device> pool{
      device(host_pinned({.capacity = 400_MiB, .pin = host_pinned::pinning::never}))};
  const stream_id side = pool.provider().inner().create_stream();
  ASSERT_EQ(first_broken_rule(pool, plan{7, 3'000, 4_MiB, 60, 97}, {stream_id{0}, side}), "");
}

TEST(checked_host_provider, serves_threads) {
  using host = checked_provider<host_pinned>;
  const auto device = [] {
    return host(host_pinned({.capacity = 256_MiB, .pin = host_pinned::pinning::never}));
  };
  locked<caching_allocator<pytorch<>, host>> one{device()};
  adaptor_tests::run_threads(one, 4, 1'500, 1_MiB);
  per_stream<caching_allocator<pytorch<>, host>> arenas{device()};
  adaptor_tests::run_threads(arenas, 4, 1'500, 1_MiB);
}

TEST(checked_host_provider, lets_a_stream_wait_for_one_that_has_ended) {
  checked device{violating_device()};
  const stream_id ended = device.inner().create_stream();
  device.inner().submit(ended, [] {});
  const std::uint64_t position = device.position(ended);
  ASSERT_TRUE(device.inner().destroy_stream(ended));
  EXPECT_TRUE(device.make_wait({}, ended, position));
}

/// Threads use a range, physical memory, a segment, user memory and a stream, repeatedly. The system gives
/// each thread the addresses that another one has just returned.
TEST(checked_host_provider, reports_nothing_if_threads_share_it) {
  checked device{violating_device()};
  alignas(64_KiB) static std::array<char, 64_KiB> users;
  std::atomic<std::uint64_t> latest{0};
  std::atomic<int> rounds{0};
  const auto work = [&] {
    const std::size_t bytes = device.page_size(page_kind::normal);
    const stream_id own = device.inner().create_stream();
    for (int i = 0; i < 150; ++i) {
      checked::physical memory{};
      void* const range = device.reserve(2 * bytes, bytes);
      const bool made = device.create(bytes, page_kind::normal, memory) && device.map(range, bytes, memory);
      if (made) *static_cast<volatile char*>(range) = 1;
      const bool mine = device.register_memory(users.data(), users.size());
      void* const segment = device.acquire(device.granularity());
      checked::event mark{};
      device.inner().submit(own, [] {});
      const stream_id other{latest.exchange(own.handle)};
      const bool in_order = device.make_wait(own, other, device.position(other)) && device.record(own, mark);
      (void)device.query(mark);
      if (made && in_order && segment != nullptr && device.wait(mark) && device.query(mark)) ++rounds;
      (void)device.release(segment, device.granularity());
      EXPECT_TRUE(!mine || device.unregister_memory(users.data()));
      EXPECT_TRUE(device.unmap(range, bytes) && device.destroy(memory) && device.unreserve(range, 2 * bytes));
    }
    EXPECT_TRUE(device.synchronize(own) && device.inner().destroy_stream(own));
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back(work);
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(rounds, 4 * 150);
}

TEST(checked_host_provider_death_test, each_violation_aborts) {
  for (const row& r : rows) {
    if (r.call == nullptr) {
      misuse(r.planted);
      continue;
    }
    const std::string rule = r.other_rule != nullptr ? r.other_rule : r.law;
    EXPECT_DEATH(misuse(r.planted), std::string("tessera: checked_provider: ") + r.call + ": " + rule)
        << "lie " << static_cast<int>(r.planted);
  }
}

}  // namespace
