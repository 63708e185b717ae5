// SPDX-License-Identifier: Apache-2.0
// The code before the second group of includes sees only the declarations.
#include <cstddef>
#include <new>
#include <type_traits>
#include <vector>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_device.hpp>
#include <tessera/extension/count_totals.hpp>
#include <tessera/fwd.hpp>
#include <tessera/interop/ownership.hpp>
#include <tessera/observe/history.hpp>
#include <tessera/tessera.hpp>

namespace {

struct host_memory {
  struct event {};
  void* acquire(std::size_t bytes) noexcept {
    return ::operator new(bytes, std::align_val_t{4096}, std::nothrow);
  }
  bool release(void* p, std::size_t) noexcept {
    ::operator delete(p, std::align_val_t{4096});
    return true;
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return std::size_t{1} << 30; }
  [[nodiscard]] std::size_t granularity() const noexcept { return 4096; }
  bool record(tessera::stream_id, event&) noexcept { return true; }
  bool query(event&) noexcept { return true; }
  bool wait(event&) noexcept { return true; }
  void discard(event&) noexcept {}
};

using tessera::recipe::passthrough;
using plain = tessera::caching_allocator<passthrough, host_memory>;
using with_mutex = tessera::concurrent::locked<tessera::caching_allocator<passthrough, host_memory>>;
using for_devices = tessera::concurrent::per_device<
    tessera::concurrent::locked<tessera::caching_allocator<passthrough, host_memory>>>;
std::size_t live_in(const plain& pool);
std::size_t live_in(const with_mutex& pool);
std::size_t device_of(const for_devices& pools, const void* p);
tessera::usage usage_in(const plain& pool);
template <typename Pool>
tessera::interop::unique_block<Pool> block_of(Pool& pool, std::size_t bytes);
using events = tessera::observe::history<>;
using totals_only = tessera::caching_allocator<passthrough, host_memory, tessera::extension::count_totals>;
std::size_t live_in(const totals_only& pool);

}  // namespace

#include <gtest/gtest.h>

namespace {

std::size_t live_in(const plain& pool) { return pool.current_usage().allocated; }
std::size_t live_in(const with_mutex& pool) { return pool.current_usage().allocated; }
std::size_t live_in(const totals_only& pool) { return pool.current_usage().allocated; }
std::size_t device_of(const for_devices& pools, const void* p) { return pools.device_of(p); }
tessera::usage usage_in(const plain& pool) { return pool.current_usage(); }
template <typename Pool>
tessera::interop::unique_block<Pool> block_of(Pool& pool, std::size_t bytes) {
  return tessera::interop::make_block(pool, bytes);
}

TEST(fwd, declares_what_the_headers_define) {
  plain pool;
  void* const p = pool.allocate(5000);
  EXPECT_EQ(live_in(pool), usage_in(pool).allocated);
  EXPECT_GE(live_in(pool), 5000u);
  pool.deallocate(p);

  with_mutex shared;
  {
    const auto block = block_of(shared, 5000);
    EXPECT_GE(live_in(shared), 5000u);
  }
  EXPECT_EQ(live_in(shared), 0u);
  EXPECT_EQ(live_in(totals_only()), 0u);

  for_devices pools{std::vector<host_memory>(2)};
  void* const on_second = pools.allocate(5000, 1);
  EXPECT_EQ(device_of(pools, on_second), 1u);
  pools.deallocate(on_second);
  static_assert(std::is_same_v<events, tessera::observe::history<tessera::detail::wall_time>>);
}

}  // namespace
