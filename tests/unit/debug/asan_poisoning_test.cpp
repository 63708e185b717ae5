// SPDX-License-Identifier: Apache-2.0
// Which bytes AddressSanitizer takes for poisoned. In a build without it, only that the extension changes nothing.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <semaphore>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/debug/asan_poisoning.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/tessera.hpp>

namespace {

using namespace tessera;
using debug::asan_poisoning;

constexpr bool is_built_with_it = asan_poisoning::is_active;

bool is_poisoned([[maybe_unused]] const void* p) {
#if defined(__SANITIZE_ADDRESS__) || defined(__clang__)
  if constexpr (is_built_with_it) return __asan_address_is_poisoned(p) != 0;
#endif
  return false;
}

struct host {
  host_pinned device{{.capacity = 64_MiB, .pin = host_pinned::pinning::where_allowed}};
};
template <typename Recipe, typename... Extension>
using allocator_of = caching_allocator<Recipe, provider_ref<host_pinned>, asan_poisoning, Extension...>;

template <typename Allocator>
struct asan_poisoning_of : testing::Test {
  host at;
};
using allocators =
    testing::Types<allocator_of<pytorch<>>, allocator_of<pytorch_family::expandable>, allocator_of<stitched>,
                   locked<allocator_of<pinned_packed>>, per_stream<allocator_of<pytorch<>>>>;
TYPED_TEST_SUITE(asan_poisoning_of, allocators);

TYPED_TEST(asan_poisoning_of, lets_the_host_use_the_bytes_of_live_requests_only) {
  TypeParam memory{provider_ref(this->at.device)};
  char* const p = static_cast<char*>(memory.allocate(1000));
  EXPECT_FALSE(is_poisoned(p) || is_poisoned(p + 999));
  EXPECT_EQ(is_poisoned(p + 1000), is_built_with_it) << "behind the request";
  std::memset(p, 1, 1000);
  memory.deallocate(p);
  EXPECT_EQ(is_poisoned(p), is_built_with_it) << "freed";
  char* const again = static_cast<char*>(memory.allocate(600));
  EXPECT_EQ(again, p);
  EXPECT_FALSE(is_poisoned(p + 599));
  EXPECT_EQ(is_poisoned(p + 600), is_built_with_it) << "a shorter request has the block";
  memory.deallocate(again);
  EXPECT_STREQ(memory.audit(), nullptr);
}

TYPED_TEST(asan_poisoning_of, leaves_no_poison_where_memory_went_back) {
  char* p = nullptr;
  {
    TypeParam memory{provider_ref(this->at.device)};
    p = static_cast<char*>(memory.allocate(3_MiB));
    memory.deallocate(p);
    EXPECT_EQ(is_poisoned(p), is_built_with_it);
    memory.trim();
    EXPECT_FALSE(is_poisoned(p)) << "after a trim";
    p = static_cast<char*>(memory.allocate(3_MiB));
    memory.deallocate(p);
  }
  EXPECT_FALSE(is_poisoned(p)) << "after the allocator ended";
}

TYPED_TEST(asan_poisoning_of, waits_for_the_work_of_recorded_streams) {
  const stream_id work = this->at.device.create_stream();
  TypeParam memory{provider_ref(this->at.device)};
  char* const p = static_cast<char*>(memory.allocate(4096));
  std::binary_semaphore gate(0);
  this->at.device.submit(work, [&gate] { gate.acquire(); });
  ASSERT_TRUE(memory.record_stream(p, work));
  memory.deallocate(p);
  EXPECT_FALSE(is_poisoned(p)) << "the work may still use it";
  gate.release();
  (void)this->at.device.synchronize(work);
  memory.deallocate(memory.allocate(4096));  // polls the event
  EXPECT_EQ(is_poisoned(p), is_built_with_it);
}

TEST(asan_poisoning, reports_the_use_of_a_freed_block) {
  if (!is_built_with_it) GTEST_SKIP() << "this program is built without AddressSanitizer";
  host at;
  allocator_of<pytorch<>> memory{provider_ref(at.device)};
  volatile char* const p = static_cast<char*>(memory.allocate(1000));
  EXPECT_DEATH(p[1000] = 1, "use-after-poison");
  memory.deallocate(const_cast<char*>(p));
  EXPECT_DEATH(p[0] = 1, "use-after-poison");
}

}  // namespace
