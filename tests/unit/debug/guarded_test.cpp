// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/per_device.hpp>
#include <tessera/debug/guarded.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/interop/paddle_passes.hpp>
#include <tessera/interop/std_allocators.hpp>
#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

#include "../interop/host_pools.hpp"

namespace {

using namespace tessera;
using shape_tests::host_memory;

using pool_type = guarded<caching_allocator<pytorch_pinned<>, host_pinned>>;
using streamed = guarded<caching_allocator<pytorch<>, host_pinned>>;

unsigned char* bytes_of(void* p) { return static_cast<unsigned char*>(p); }
/// An access that no compiler removes or warns of.
void write_at(void* p, std::ptrdiff_t offset) {
  reinterpret_cast<volatile unsigned char*>(reinterpret_cast<std::intptr_t>(p) + offset)[0] = 1;
}

TEST(guarded_host_pinned, gives_blocks_at_the_end_of_pages_of_their_own_filled_with_a_pattern) {
  pool_type pool(host_memory());
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{64}, std::size_t{1000}, 4_KiB, 4_KiB + 1, 1_MiB}) {
    auto* const p = bytes_of(pool.allocate(bytes));
    EXPECT_EQ((reinterpret_cast<std::uintptr_t>(p) + align_up(bytes, min_alignment)) % 4_KiB, 0u) << bytes;
    EXPECT_TRUE(std::all_of(p, p + bytes, [](unsigned char b) { return b == detail::guard_shadow::fresh; }))
        << bytes;
    std::fill(p, p + bytes, static_cast<unsigned char>(7));
    pool.deallocate(p, bytes);
  }
  EXPECT_STREQ(pool.audit(), nullptr);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TEST(guarded_host_pinned, returns_nothing_for_0_bytes_and_throws_above_the_maximum) {
  pool_type pool(host_memory());
  EXPECT_EQ(pool.allocate(0), nullptr);
  EXPECT_FALSE(pool.allocate_by_handle(0));
  EXPECT_EQ(pool.try_allocate(max_request + 1), nullptr);
  EXPECT_EQ(pool.try_allocate(unlimited), nullptr);
  EXPECT_THROW((void)pool.allocate(max_request + 1), out_of_memory);
  pool.deallocate(nullptr);
  pool.deallocate(nullptr, 5);
  EXPECT_FALSE(pool.try_deallocate(nullptr));
}

TEST(guarded_host_pinned, holds_addresses_but_no_memory_in_a_bounded_quarantine) {
  host_pinned device = host_memory(1_MiB);
  guarded<caching_allocator<pytorch_pinned<>, provider_ref<host_pinned>>> pool{
      provider_ref(device), {}, {.quarantine = 120_KiB}};
  for (int i = 0; i < 1000; ++i) pool.deallocate(pool.allocate(1000));
  EXPECT_EQ(device.held().created, 0u);
  EXPECT_EQ(device.held().mapped, 0u);
  EXPECT_EQ(device.held().reserved, 120_KiB);  // ten blocks of a page between two
  EXPECT_EQ(pool.shadow().quarantined(), 120_KiB);
  pool.drop_quarantine();
  EXPECT_EQ(device.held(), host_pinned::holdings{});
}

TEST(guarded_host_pinned, gives_everything_back_when_it_ends_live_blocks_included) {
  host_pinned device = host_memory(1_MiB);
  {
    guarded<caching_allocator<pytorch_pinned<>, provider_ref<host_pinned>>> pool{provider_ref(device)};
    pool.deallocate(pool.allocate(1000));
    (void)pool.allocate(5000);
    (void)pool.allocate_by_handle(5000);
    EXPECT_EQ(device.held().created, 16_KiB);
  }
  EXPECT_EQ(device.held(), host_pinned::holdings{});
}

TEST(guarded_host_pinned, never_reuses_the_addresses_of_a_quarantined_block) {
  pool_type pool(host_memory());
  std::vector<void*> seen;
  for (int i = 0; i < 100; ++i) {
    void* const p = pool.allocate(1000);
    EXPECT_EQ(std::count(seen.begin(), seen.end(), p), 0);
    seen.push_back(p);
    pool.deallocate(p);
  }
}

TEST(guarded_host_pinned, keeps_to_the_limit_of_growth_and_to_the_capacity) {
  policies<pytorch<>> chosen;
  chosen.growth.limit = 64_KiB;
  streamed pool(host_memory(1_MiB), chosen);
  EXPECT_EQ(pool.try_allocate(65_KiB), nullptr);
  void* const p = pool.allocate(64_KiB);
  EXPECT_EQ(pool.try_allocate(1), nullptr);
  pool.deallocate(p);
  streamed full(host_memory(64_KiB));
  EXPECT_THROW((void)full.allocate(65_KiB), out_of_memory);
  EXPECT_STREQ(full.audit(), nullptr);
}

TEST(guarded_host_pinned, waits_for_the_streams_of_a_block_without_blocking_others) {
  streamed pool(host_memory());
  const stream_id own = pool.visit_provider([](host_pinned& d) { return d.create_stream(); });
  const stream_id other = pool.visit_provider([](host_pinned& d) { return d.create_stream(); });
  for (const stream_id busy : {own, other}) {
    auto* const p = bytes_of(pool.allocate(1000, own));
    EXPECT_TRUE(pool.record_stream(p, other));
    std::atomic<bool> go{false};
    pool.visit_provider([&](host_pinned& d) {
      d.submit(busy, [&go, p] {
        while (!go) std::this_thread::yield();
        p[0] = 1;  // faults if its memory is unmapped
      });
    });
    pool.deallocate(p);
    EXPECT_EQ(pool.current_usage().pending(), 1024u);
    go = true;
    pool.visit_provider([&](host_pinned& d) { d.synchronize(busy); });
    EXPECT_TRUE(pool.process_events());
    EXPECT_EQ(pool.current_usage().reserved, 0u);
  }
}

TEST(guarded_host_pinned, gives_and_takes_handles) {
  pool_type pool(host_memory());
  const block_handle h = pool.allocate_by_handle(1000);
  (void)pool.record_stream(h, stream_id{});
  EXPECT_EQ(bytes_of(h.data())[999], detail::guard_shadow::fresh);
  pool.deallocate(h);
  pool.trim();
  EXPECT_EQ(pool.current_usage().reserved, 0u);
}

TEST(guarded_host_pinned, passes_no_block_on) {
  pool_type pool(host_memory());
  void* input = pool.allocate(1000);
  void* const was = input;
  void* const output = allocate_in_place(pool, input, 1000);
  EXPECT_NE(output, was);
  pool.deallocate(output);
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(guarded_host_pinned, serves_the_shapes_of_other_libraries) {
  pool_type pool(host_memory());
  {
    pmr_resource memory(pool);
    std::pmr::vector<int> numbers(1000, 1, &memory);
    EXPECT_EQ(std::accumulate(numbers.begin(), numbers.end(), 0), 1000);
    void* const aligned = memory.allocate(100, 1024);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(aligned) % 1024, 0u);
    memory.deallocate(aligned, 100, 1024);
    using floats = typed_allocator<float, pool_type>;
    std::vector<float, floats> row(1000, floats(pool));
    const unique_block block = make_block(pool, 100);
    EXPECT_EQ(pool.current_usage().allocated, 4032u + 4032u + 128u);
  }
  EXPECT_EQ(pool.current_usage().allocated, 0u);
}

TEST(guarded_host_pinned, stands_before_each_of_several_devices) {
  std::vector<host_pinned> devices;
  for (int i = 0; i < 2; ++i) devices.push_back(host_memory());
  per_device<pool_type> all(std::move(devices));
  void* const here = all.allocate(1000, 0);
  void* const there = all.allocate(1000, 1);
  EXPECT_EQ(all.device_of(here), 0u);
  EXPECT_EQ(all.device_of(there), 1u);
  all.deallocate(there), all.deallocate(here);
  EXPECT_STREQ(all.audit(), nullptr);
}

TEST(guarded_host_pinned, is_a_provider_that_keeps_to_the_law) {
  host_pinned device = host_memory();
  {
    detail::guard_memory<host_pinned> memory(device, {});
    detail::guard_pages<host_pinned> pages(memory);
    EXPECT_STREQ(law::provider(pages).broken, nullptr);
    EXPECT_FALSE(pages.release(&device, 64));
    void* const p = pages.acquire(64);
    EXPECT_FALSE(pages.release(p, 128));
    EXPECT_FALSE(pages.release(bytes_of(p) - 64, 64));
    EXPECT_TRUE(pages.release(p, 64));
    EXPECT_FALSE(pages.release(p, 64));
  }
  EXPECT_EQ(device.held(), host_pinned::holdings{});
}

TEST(guarded_host_pinned, threads_free_each_other_s_blocks) {
  pool_type pool(host_memory(), {}, {.quarantine = 1_MiB});
  std::array<std::atomic<void*>, 4> shared{};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 200; ++i) {
        auto* const p = bytes_of(pool.allocate(1 + 37 * i));
        p[0] = p[37 * i] = static_cast<unsigned char>(t);
        pool.deallocate(shared[(t + i) % 4].exchange(p));
        if (i % 50 == 0) pool.label("round"), pool.abort_if_damaged();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (auto& p : shared) pool.deallocate(p.load());
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  EXPECT_STREQ(pool.audit(), nullptr);
}

/// Every k-th call that can fail fails.
class failing : public provider_adaptor<host_pinned> {
 public:
  using provider_adaptor<host_pinned>::provider_adaptor;
  static inline std::size_t every = 0, calls = 0, failed = 0;

  void* reserve(std::size_t bytes, std::size_t at) noexcept {
    return fails() ? nullptr : inner().reserve(bytes, at);
  }
  bool unreserve(void* p, std::size_t bytes) noexcept { return !fails() && inner().unreserve(p, bytes); }
  bool create(std::size_t bytes, page_kind kind, physical& made) noexcept {
    return !fails() && inner().create(bytes, kind, made);
  }
  bool destroy(const physical& made) noexcept { return !fails() && inner().destroy(made); }
  bool map(void* p, std::size_t bytes, const physical& made) noexcept {
    return !fails() && inner().map(p, bytes, made);
  }
  bool unmap(void* p, std::size_t bytes) noexcept { return !fails() && inner().unmap(p, bytes); }

 private:
  static bool fails() noexcept { return every != 0 && ++calls % every == 0 && ++failed > 0; }
};

TEST(guarded_host_pinned, loses_nothing_when_the_device_fails) {
  for (const bool frees_pages : {true, false}) {
    for (const std::size_t every :
         {std::size_t{3}, std::size_t{4}, std::size_t{5}, std::size_t{7}, std::size_t{11}}) {
      SCOPED_TRACE(every);
      host_pinned device = host_memory(1_MiB);
      failing::every = every;
      failing::failed = 0;
      {
        guarded<caching_allocator<pytorch_pinned<>, failing>> pool{
            failing(device), {}, {.quarantine = 60_KiB, .frees_pages = frees_pages}};
        std::vector<void*> live;
        for (int i = 0; i < 60; ++i) {
          void* const p = pool.try_allocate(1000);
          if (p != nullptr) live.push_back(p);
          if (i % 3 == 2 && !live.empty()) pool.deallocate(live.back()), live.pop_back();
          ASSERT_STREQ(pool.audit(), nullptr);
          pool.abort_if_damaged();
        }
        EXPECT_GT(failing::failed, 5u);
        for (void* p : live) pool.deallocate(p);
        failing::every = 0;
        pool.trim();
        EXPECT_EQ(pool.current_usage().reserved, 0u);
      }
      EXPECT_EQ(device.held(), host_pinned::holdings{});
    }
  }
}

// Errors that are detected when a block is freed. A forked process shares the memory, so each process has
// blocks of its own.
TEST(guarded_death, names_writes_past_the_end_and_before_the_begin) {
  pool_type pool(host_memory());
  pool.label("batch");
  const auto written = [&pool](std::ptrdiff_t offset) {
    void* const p = pool.allocate(1000);
    write_at(p, offset);
    return p;
  };
  EXPECT_DEATH(
      pool.deallocate(written(1000)),
      "deallocate: an overrun: a byte was written 1 byte past the end of a live block of 1000 bytes at "
      "0x[0-9a-f]+, stream 0, label 'batch'");
  EXPECT_DEATH((void)pool.try_deallocate(written(1023)), "an overrun: .* 24 bytes past the end of");
  EXPECT_DEATH(pool.deallocate(written(-3), 1000),
               "an underrun: .* 3 bytes before the beginning of .* 'batch'");
  EXPECT_DEATH((write_at(written(-3), -900), pool.abort_if_damaged()),
               "check: an underrun: .* 3 bytes before the beginning of");
  EXPECT_DEATH((written(1001), pool.~pool_type()),
               "at the end of the allocator: an overrun: .* 2 bytes past");
  EXPECT_DEATH(
      {
        const block_handle h = pool.allocate_by_handle(10);
        write_at(h.data(), 10);
        pool.deallocate(h);
      },
      "an overrun: .* 1 byte past the end of a live block of 10");
  pool.abort_if_damaged();
}

TEST(guarded_death, names_double_and_foreign_frees) {
  pool_type pool(host_memory()), other(host_memory());
  pool.label("batch");
  void* const p = pool.allocate(1000);
  pool.label("");
  EXPECT_STREQ(pool.label_of(bytes_of(p) + 5), "batch");
  EXPECT_DEATH(
      pool.deallocate(bytes_of(p) + 64),
      "not the address of a live block, but 64 bytes into a live block of 1000 bytes at 0x.*, label 'batch'");
  EXPECT_DEATH(pool.deallocate(p, 999),
               "not the requested size: 999 bytes were passed for a live block of 1000 bytes");
  EXPECT_FALSE(pool.try_deallocate(bytes_of(p) + 64));
  pool.deallocate(p);
  EXPECT_DEATH(pool.deallocate(p), "a double free of a freed block of 1000 bytes at 0x.*, label 'batch'");
  EXPECT_DEATH(pool.deallocate(p, 1000), "a double free of a freed block of 1000 bytes");
  EXPECT_DEATH(pool.deallocate(bytes_of(p) + 64), "64 bytes into a freed block of 1000 bytes");
  EXPECT_FALSE(pool.try_deallocate(p));
  EXPECT_FALSE(pool.try_record_stream(p, stream_id{}));
  void* const foreign = other.allocate(1000);
  EXPECT_DEATH(pool.deallocate(foreign), "not the address of a live block, nor of any other");
  EXPECT_FALSE(pool.try_deallocate(foreign));
  EXPECT_DEATH(pool.deallocate(&pool), "not the address of a live block, nor of any other");
  const block_handle h = pool.allocate_by_handle(1000);
  EXPECT_DEATH((pool.deallocate(h), pool.deallocate(h)), "a double free of a freed block of 1000 bytes");
}

TEST(guarded_death, finds_a_write_after_the_free_in_memory_that_stays) {
  pool_type pool(host_memory(), {}, {.frees_pages = false});
  pool.label("batch");
  const auto freed = [&pool] {
    auto* const p = bytes_of(pool.allocate(1000));
    pool.deallocate(p);
    return p;
  };
  auto* const p = freed();
  EXPECT_TRUE(std::all_of(p, p + 1000, [](unsigned char b) { return b == detail::guard_shadow::stale; }));
  EXPECT_DEATH(
      (write_at(freed(), 7), pool.drop_quarantine()),
      "out of quarantine: a use after free: a byte was written 7 bytes into a freed block of 1000 bytes at "
      "0x.*, label 'batch'");
  EXPECT_DEATH((write_at(freed(), -1), pool.~pool_type()),
               "a use after free: .* 1 byte before the beginning of a freed block");
  pool.drop_quarantine();
}

TEST(guarded_host_pinned, gives_memory_in_quarantine_back_before_it_fails) {
  host_pinned device = host_memory(64_KiB);
  guarded<caching_allocator<pytorch_pinned<>, provider_ref<host_pinned>>> pool{
      provider_ref(device), {}, {.frees_pages = false}};
  for (int i = 0; i < 100; ++i) pool.deallocate(pool.allocate(16_KiB));
  EXPECT_EQ(device.held().created, 64_KiB);
  pool.drop_quarantine();
  EXPECT_EQ(device.held(), host_pinned::holdings{});
}

TEST(guarded_host_pinned, spares_mappings_so_that_frees_go_on_and_then_serves_again) {
  for (const bool frees_pages : {true, false}) {
    host_pinned device = host_memory();
    {
      guarded<caching_allocator<pytorch_pinned<>, provider_ref<host_pinned>>> pool{
          provider_ref(device), {}, {.frees_pages = frees_pages, .max_mappings = 300}};
      EXPECT_EQ(pool.last_error(), "");
      for (int round = 0; round < 3; ++round) {
        std::vector<void*> live;
        while (void* const p = pool.try_allocate(100)) live.push_back(p);
        EXPECT_EQ(live.size(), 100u);  // of three each; the quarantined blocks were released
        EXPECT_NE(pool.last_error().find("/proc/sys/vm/max_map_count"), std::string::npos);
        EXPECT_EQ(pool.shadow().mappings(), 300u);
        for (void* p : live) pool.deallocate(p);
        EXPECT_EQ(pool.current_usage().reserved, 0u);
        EXPECT_EQ(pool.shadow().quarantined(), 100 * 12_KiB);
        EXPECT_EQ(pool.shadow().mappings(), frees_pages ? 100u : 300u);
        EXPECT_STREQ(pool.audit(), nullptr);
      }
      pool.drop_quarantine();
      EXPECT_EQ(pool.shadow().mappings(), 0u);
    }
    EXPECT_EQ(device.held(), host_pinned::holdings{});
  }
}

TEST(guarded_host_pinned, reports_refused_calls_if_mappings_remain) {
  pool_type pool(host_memory(64_KiB));
  EXPECT_EQ(pool.try_allocate(128_KiB), nullptr);
  EXPECT_NE(pool.last_error().find("capacity"), std::string::npos) << pool.last_error();
}

/// A device that does not unmap for a while, and counts these calls.
class stubborn : public provider_adaptor<host_pinned> {
 public:
  using provider_adaptor<host_pinned>::provider_adaptor;
  static inline bool refuses = false;
  static inline std::size_t asked = 0;
  bool unmap(void* p, std::size_t bytes) noexcept { return ++asked, !refuses && inner().unmap(p, bytes); }
};
TEST(guarded_host_pinned, frees_that_the_device_cannot_carry_out_are_not_all_tried_again_at_each) {
  host_pinned device = host_memory();
  {
    guarded<caching_allocator<pytorch_pinned<>, stubborn>> pool{
        stubborn(device), {}, {.quarantine = 120_KiB}};
    std::vector<void*> live;
    for (int i = 0; i < 200; ++i) live.push_back(pool.allocate(100));
    stubborn::refuses = true, stubborn::asked = 0;
    for (void* p : live) pool.deallocate(p);
    EXPECT_LE(stubborn::asked, 400u);
    EXPECT_EQ(pool.current_usage().reserved, 0u);
    EXPECT_EQ(device.held().mapped, 200 * 4_KiB);
    EXPECT_DEATH(pool.deallocate(live[0]), "a double free of a freed block of 100 bytes");
    stubborn::refuses = false;
    pool.deallocate(pool.allocate(100));
    EXPECT_EQ(pool.shadow().quarantined(), 120_KiB);
    EXPECT_EQ(device.held().mapped, 9 * 4_KiB);
    pool.drop_quarantine();
    EXPECT_EQ(device.held().mapped, 0u);
  }
  EXPECT_EQ(device.held(), host_pinned::holdings{});
}

// Errors that are detected at the access.
TEST(guarded_death, reports_the_access_by_name) {
  pool_type pool(host_memory());
  const fault_reports reports(pool);
  pool.label("batch");
  void* const p = pool.allocate(1000);
  EXPECT_DEATH(write_at(p, 1024),
               "guarded: an access at 0x[0-9a-f]+, 25 bytes past the end of a live block of 1000 bytes at "
               "0x[0-9a-f]+, "
               "stream 0, label 'batch'");
  const auto before = static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(p) % 4_KiB) + 1;
  EXPECT_DEATH(write_at(p, -before),
               std::to_string(before) + " bytes before the beginning of a live block of 1000 bytes");
  pool.deallocate(p);
  EXPECT_DEATH(write_at(p, 10), "10 bytes into a freed block of 1000 bytes at 0x.*, label 'batch'");
  EXPECT_DEATH((void)std::to_string(bytes_of(p)[999]), "999 bytes into a freed block");
}

std::sig_atomic_t volatile handled = 0;
sigjmp_buf back;
void handle_before(int) {
  handled = handled + 1;
  siglongjmp(back, 1);
}

/// The message if `offset` bytes from p are written.
std::string said_at(void* p, std::ptrdiff_t offset) {
  testing::internal::CaptureStderr();
  if (sigsetjmp(back, 1) == 0) write_at(p, offset);
  return testing::internal::GetCapturedStderr();
}

TEST(guarded_host_pinned, hands_a_fault_on_to_the_handler_before_it_and_puts_that_back) {
  struct sigaction mine{}, found{}, original{};
  mine.sa_handler = &handle_before;
  ::sigaction(SIGSEGV, &mine, &original);
  handled = 0;
  {
    pool_type pool(host_memory()), other(host_memory());
    void* const p = pool.allocate(64);
    {
      const fault_reports one(other), two(pool);
      EXPECT_NE(said_at(p, 64).find("guarded: an access at"), std::string::npos);
      EXPECT_EQ(said_at(nullptr, 16), "");  // close to no block
      std::string said_in_thread;
      std::thread([&] { said_in_thread = said_at(p, 64); }).join();
      EXPECT_NE(said_in_thread.find("1 byte past the end of a live block of 64 bytes"), std::string::npos);
      EXPECT_EQ(handled, 3);
    }
    ::sigaction(SIGSEGV, nullptr, &found);
    EXPECT_EQ(found.sa_handler, &handle_before);
    EXPECT_EQ(said_at(p, 64), "");  // without any report
    EXPECT_EQ(handled, 4);
    pool.deallocate(p);
  }
  ::sigaction(SIGSEGV, &original, nullptr);
}

}  // namespace
