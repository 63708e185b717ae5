// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/interop/arrow.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

#include "host_pools.hpp"

namespace {

/// The parts of Arrow that a pool uses, as its documentation specifies them.
namespace arrow {

class Status {
 public:
  enum code { ok, invalid, out_of_memory };
  static Status OK() { return {ok, ""}; }
  template <typename... Args>
  static Status Invalid(Args&&... args) {
    return {invalid, joined(args...)};
  }
  template <typename... Args>
  static Status OutOfMemory(Args&&... args) {
    return {out_of_memory, joined(args...)};
  }
  Status(code of, std::string text) : of_(of), text_(std::move(text)) {}
  [[nodiscard]] code is() const { return of_; }
  [[nodiscard]] const std::string& message() const { return text_; }

 private:
  template <typename... Args>
  static std::string joined(Args&... args) {
    std::ostringstream text;
    (text << ... << args);
    return text.str();
  }
  code of_;
  std::string text_;
};

class MemoryPool {
 public:
  virtual ~MemoryPool() = default;
  Status Allocate(std::int64_t size, std::uint8_t** out) { return Allocate(size, 64, out); }
  virtual Status Allocate(std::int64_t size, std::int64_t alignment, std::uint8_t** out) = 0;
  virtual Status Reallocate(std::int64_t old_size, std::int64_t new_size, std::int64_t alignment,
                            std::uint8_t** p) = 0;
  Status Reallocate(std::int64_t old_size, std::int64_t new_size, std::uint8_t** p) {
    return Reallocate(old_size, new_size, 64, p);
  }
  virtual void Free(std::uint8_t* p, std::int64_t size, std::int64_t alignment) = 0;
  void Free(std::uint8_t* p, std::int64_t size) { Free(p, size, 64); }
  virtual void ReleaseUnused() {}
  [[nodiscard]] virtual std::int64_t bytes_allocated() const = 0;
  [[nodiscard]] virtual std::int64_t max_memory() const = 0;
  [[nodiscard]] virtual std::int64_t total_bytes_allocated() const = 0;
  [[nodiscard]] virtual std::int64_t num_allocations() const = 0;
  [[nodiscard]] virtual std::string backend_name() const = 0;
};

}  // namespace arrow

using namespace tessera::literals;
using allocator_type = tessera::concurrent::locked<
    tessera::caching_allocator<shape_tests::packed_tightly, tessera::provider::host_pinned>>;
using pool_type = tessera::interop::arrow_pool<arrow::MemoryPool, allocator_type>;
using code = arrow::Status::code;

struct arrow_pool : testing::Test {
  allocator_type allocator{shape_tests::host_memory(8_MiB)};
  pool_type memory{allocator};
  arrow::MemoryPool& pool = memory;

  std::uint8_t* take(std::int64_t bytes, std::int64_t alignment = 64) {
    std::uint8_t* p = nullptr;
    EXPECT_EQ(pool.Allocate(bytes, alignment, &p).is(), code::ok);
    EXPECT_TRUE(shape_tests::is_aligned(p, static_cast<std::size_t>(alignment)));
    return p;
  }
  void TearDown() override {
    EXPECT_EQ(pool.bytes_allocated(), 0);
    EXPECT_EQ(allocator.current_usage().allocated, 0u);
    EXPECT_STREQ(allocator.audit(), nullptr);
  }
};

TEST_F(arrow_pool, serves_any_alignment) {
  for (std::int64_t alignment = 64; alignment <= 65536; alignment *= 4) {
    std::uint8_t* const p = take(100, alignment);
    std::memset(p, 1, 100);
    pool.Free(p, 100, alignment);
  }
}

TEST_F(arrow_pool, needs_no_memory_for_0_bytes) {
  std::uint8_t *none = take(0), *aligned = take(0, 4096);
  EXPECT_NE(none, nullptr);
  EXPECT_EQ(allocator.current_usage().allocated, 0u);
  ASSERT_EQ(pool.Reallocate(0, 0, &none).is(), code::ok);
  ASSERT_EQ(pool.Reallocate(0, 10, &none).is(), code::ok);
  none[9] = 1;
  ASSERT_EQ(pool.Reallocate(10, 0, &none).is(), code::ok);
  EXPECT_NE(none, nullptr);
  EXPECT_EQ(allocator.current_usage().allocated, 0u);
  pool.Free(none, 0);
  pool.Free(aligned, 0, 4096);
}

TEST_F(arrow_pool, keeps_data_when_it_grows_and_shrinks) {
  std::uint8_t* p = take(1000);
  for (std::size_t i = 0; i < 1000; ++i) p[i] = static_cast<std::uint8_t>(i);
  for (const auto& [from, to] : {std::pair{1000, 100'000}, {100'000, 500}}) {
    ASSERT_EQ(pool.Reallocate(from, to, &p).is(), code::ok);
    for (std::size_t i = 0; i < 500; ++i) ASSERT_EQ(p[i], static_cast<std::uint8_t>(i));
  }
  pool.Free(p, 500);
}

TEST_F(arrow_pool, counts_requested_bytes) {
  std::uint8_t *a = take(100), *b = take(50);
  EXPECT_EQ(pool.bytes_allocated(), 150);
  ASSERT_EQ(pool.Reallocate(100, 300, &a).is(), code::ok);
  ASSERT_EQ(pool.Reallocate(50, 20, &b).is(), code::ok);
  EXPECT_EQ(pool.bytes_allocated(), 320);
  EXPECT_EQ(pool.max_memory(), 350);
  EXPECT_EQ(pool.total_bytes_allocated(), 350);
  EXPECT_EQ(pool.num_allocations(), 3);
  EXPECT_EQ(pool.backend_name(), "tessera");
  pool.Free(a, 300);
  pool.Free(b, 20);
}

TEST_F(arrow_pool, returns_a_status_when_memory_is_full) {
  std::uint8_t *p = take(1000), *const before = p, *untouched = nullptr;
  p[999] = 42;
  const arrow::Status full = pool.Allocate(16 << 20, &untouched);
  EXPECT_EQ(full.is(), code::out_of_memory);
  EXPECT_NE(full.message().find("16777216 bytes requested"), std::string::npos) << full.message();
  EXPECT_EQ(untouched, nullptr);
  EXPECT_EQ(pool.Reallocate(1000, INT64_MAX, &p).is(), code::out_of_memory);
  EXPECT_EQ(pool.Allocate(-1, &untouched).is(), code::invalid);
  EXPECT_EQ(pool.Reallocate(1000, -1, &p).is(), code::invalid);
  for (const std::int64_t alignment : {-64, 0, 3}) {
    EXPECT_EQ(pool.Allocate(1, alignment, &untouched).is(), code::invalid);
    EXPECT_EQ(pool.Reallocate(1000, 2000, alignment, &p).is(), code::invalid);
  }
  EXPECT_EQ(p, before);
  EXPECT_EQ(p[999], 42);
  EXPECT_EQ(pool.num_allocations(), 1);
  pool.Free(p, 1000);
}

TEST_F(arrow_pool, aborts_if_memory_is_freed_wrongly) {
  std::uint8_t* p = take(1000);
  EXPECT_DEATH(pool.Free(p, 2000), "tessera: deallocate");
  EXPECT_DEATH(pool.Free(p + 64, 1000), "tessera: deallocate");
  EXPECT_DEATH((void)pool.Reallocate(500, 1000, &p), "tessera: deallocate");
  pool.Free(p, 1000);
}

TEST_F(arrow_pool, releases_what_is_unused) {
  pool.Free(take(1 << 20), 1 << 20);
  EXPECT_GT(allocator.current_usage().reserved, 0u);
  pool.ReleaseUnused();
  EXPECT_EQ(allocator.current_usage().reserved, 0u);
}

TEST_F(arrow_pool, serves_threads) {
  std::vector<std::thread> running;
  for (int t = 0; t < 3; ++t)
    running.emplace_back([this] {
      for (std::int64_t i = 1; i <= 300; ++i) {
        std::uint8_t* p = take(i);
        ASSERT_EQ(pool.Reallocate(i, 2 * i, &p).is(), code::ok);
        pool.Free(p, 2 * i);
      }
    });
  for (std::thread& t : running) t.join();
  EXPECT_EQ(pool.num_allocations(), 3 * 600);
  EXPECT_EQ(pool.total_bytes_allocated(), 3 * 300 * 301);
  EXPECT_LE(pool.max_memory(), 3 * 600);
}

TEST(arrow_pool_of_a_handle, owns_the_allocator) {
  auto shared = tessera::interop::shared_allocator<allocator_type>::make(shape_tests::host_memory());
  tessera::interop::arrow_pool<arrow::MemoryPool, decltype(shared)> memory(shared);
  shared = {};
  std::uint8_t* p = nullptr;
  ASSERT_EQ(memory.Allocate(10, &p).is(), code::ok);
  memory.Free(p, 10);
}

}  // namespace
