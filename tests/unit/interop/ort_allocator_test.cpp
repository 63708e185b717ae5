// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/interop/onnxruntime.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

namespace {

// The parts of ONNX Runtime's C interface that an allocator uses, as its documentation specifies them.
struct OrtStatus;
struct OrtMemoryInfo {
  int device;
};
struct OrtSyncStream {
  void* handle;
};
struct OrtKeyValuePairs {
  std::map<std::string, std::string> values;
};
struct OrtApi {
  void (*CreateKeyValuePairs)(OrtKeyValuePairs** out) noexcept;
  void (*AddKeyValuePair)(OrtKeyValuePairs* to, const char* key, const char* value) noexcept;
  void* (*SyncStream_GetHandle)(OrtSyncStream* stream) noexcept;
};
/// Version 1.17 and older.
struct old_allocator {
  std::uint32_t version;
  void* (*Alloc)(old_allocator*, std::size_t);
  void (*Free)(old_allocator*, void*);
  const OrtMemoryInfo* (*Info)(const old_allocator*);
};
/// A version with all members.
struct OrtAllocator {
  std::uint32_t version;
  void* (*Alloc)(OrtAllocator*, std::size_t);
  void (*Free)(OrtAllocator*, void*);
  const OrtMemoryInfo* (*Info)(const OrtAllocator*);
  void* (*Reserve)(OrtAllocator*, std::size_t);
  OrtStatus* (*GetStats)(const OrtAllocator*, OrtKeyValuePairs**) noexcept;
  void* (*AllocOnStream)(OrtAllocator*, std::size_t, OrtSyncStream*);
  OrtStatus* (*Shrink)(OrtAllocator*) noexcept;
};
constexpr OrtApi api = {
    .CreateKeyValuePairs = [](OrtKeyValuePairs** out) noexcept { *out = new OrtKeyValuePairs; },
    .AddKeyValuePair = [](OrtKeyValuePairs* to, const char* key,
                          const char* value) noexcept { to->values[key] = value; },
    .SyncStream_GetHandle = [](OrtSyncStream* stream) noexcept { return stream->handle; },
};

using namespace tessera::literals;
using allocator_type = tessera::concurrent::locked<
    tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>;

struct ort_allocator : testing::Test {
  allocator_type allocator{tessera::provider::simulated_device({.capacity = 64_MiB})};
  OrtMemoryInfo info{3};
  tessera::interop::ort_allocator<OrtAllocator, OrtApi, allocator_type> memory{allocator, api, 24, &info};
  OrtAllocator* const base = &memory;

  std::map<std::string, std::string> stats() {
    OrtKeyValuePairs* pairs = nullptr;
    EXPECT_EQ(base->GetStats(base, &pairs), nullptr);
    const auto values = pairs->values;
    delete pairs;
    return values;
  }
  void TearDown() override {
    EXPECT_EQ(allocator.current_usage().allocated, 0u);
    EXPECT_STREQ(allocator.audit(), nullptr);
  }
};

TEST_F(ort_allocator, serves_and_describes_itself) {
  EXPECT_EQ(base->version, 24u);
  EXPECT_EQ(base->Info(base), &info);
  void *const p = base->Alloc(base, 1000), *const q = base->Reserve(base, 2000);
  EXPECT_NE(p, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(q) % 256, 0u);
  EXPECT_EQ(allocator.current_usage().requested, 3000u);
  base->Free(base, p);
  base->Free(base, q);
  base->Free(base, nullptr);
}

TEST_F(ort_allocator, returns_null_for_0_bytes_and_when_memory_is_full) {
  EXPECT_EQ(base->Alloc(base, 0), nullptr);
  EXPECT_EQ(base->Alloc(base, 65_MiB), nullptr);
  EXPECT_EQ(base->Reserve(base, SIZE_MAX), nullptr);
  EXPECT_EQ(base->AllocOnStream(base, 65_MiB, nullptr), nullptr);
  EXPECT_EQ(stats()["NumAllocs"], "0");
  EXPECT_EQ(stats()["NumReserves"], "0");
}

TEST_F(ort_allocator, reports_its_statistics) {
  void *const p = base->Alloc(base, 1_MiB), *const q = base->Reserve(base, 2_MiB);
  base->Free(base, q);
  auto found = stats();
  EXPECT_EQ(found["InUse"], std::to_string(1_MiB));
  EXPECT_EQ(found["MaxInUse"], std::to_string(3_MiB));
  EXPECT_EQ(found["TotalAllocated"], std::to_string(allocator.current_usage().reserved));
  EXPECT_EQ(found["NumAllocs"], "2");
  EXPECT_EQ(found["NumReserves"], "1");
  EXPECT_EQ(found["Limit"], "-1");
  EXPECT_NE(found["NumArenaExtensions"], "0");
  EXPECT_EQ(found["NumArenaShrinkages"], "0");
  base->Free(base, p);
  EXPECT_EQ(base->Shrink(base), nullptr);
  EXPECT_EQ(allocator.current_usage().reserved, 0u);
  EXPECT_EQ(stats()["NumArenaShrinkages"], stats()["NumArenaExtensions"]);
  allocator.visit_policies([](auto& settings) { settings.growth.limit = tessera::memory_limit{5_MiB}; });
  EXPECT_EQ(stats()["Limit"], std::to_string(5_MiB));
}

TEST_F(ort_allocator, keeps_memory_on_its_stream) {
  OrtSyncStream one{reinterpret_cast<void*>(0x1000)}, two{reinterpret_cast<void*>(0x2000)};
  void* const p = base->AllocOnStream(base, 1000, &one);
  base->Free(base, p);
  void *const other = base->AllocOnStream(base, 1000, &two), *const none = base->Alloc(base, 1000);
  EXPECT_NE(other, p);
  EXPECT_NE(none, p);
  void* const again = base->AllocOnStream(base, 1000, &one);
  EXPECT_EQ(again, p);
  for (void* const block : {other, none, again}) base->Free(base, block);
}

TEST_F(ort_allocator, aborts_if_memory_is_freed_twice) {
  void* const p = base->Alloc(base, 1000);
  base->Free(base, p);
  EXPECT_DEATH(base->Free(base, p), "tessera: deallocate");
}

TEST_F(ort_allocator, serves_threads) {
  std::vector<std::thread> running;
  for (int t = 0; t < 3; ++t)
    running.emplace_back([this] {
      for (std::size_t i = 1; i <= 300; ++i) base->Free(base, base->Reserve(base, i));
    });
  for (std::thread& t : running) t.join();
  EXPECT_EQ(stats()["NumReserves"], "900");
}

TEST(ort_allocator_of_an_old_version, has_the_first_members) {
  tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> allocator;
  tessera::interop::ort_allocator<old_allocator, OrtApi, decltype(allocator)> memory(allocator, api, 12,
                                                                                     nullptr);
  old_allocator* const base = &memory;
  base->Free(base, base->Alloc(base, 100));
  EXPECT_EQ(base->version, 12u);
  EXPECT_EQ(allocator.statistics().all.allocation.freed, 1);
}

}  // namespace
