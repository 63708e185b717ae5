// SPDX-License-Identifier: Apache-2.0
// Programs load a library and know only the names and types of its functions.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>

#include "loaded_library.hpp"

namespace {

using namespace tessera::literals;

/// examples/08_pluggable, whose streams are real.
struct pinned_library : loaded_library, torch_functions {
  pinned_library()
      : loaded_library(path_of("pinned")),
        torch_functions(*this, "pinned"),
        create_stream(find<void*(int)>("pinned_create_stream")),
        destroy_stream(find<void(int, void*)>("pinned_destroy_stream")),
        submit(find<void(int, void*, void (*)(void*), void*)>("pinned_submit")),
        synchronize(find<void(int, void*)>("pinned_synchronize")) {}
  void* (*create_stream)(int);
  void (*destroy_stream)(int, void*);
  void (*submit)(int, void*, void (*)(void*), void*);
  void (*synchronize)(int, void*);
};

char* at(void* p) { return static_cast<char*>(p); }

TEST(pluggable_library, serves_two_devices) {
  const pinned_library library;
  library.init(0);
  void* const p = library.alloc(3_MiB, 0, nullptr);
  void* const q = library.alloc(1000, 1, nullptr);
  std::memset(p, 1, 3_MiB);
  std::memset(q, 2, 1000);
  EXPECT_EQ(library.count("requested_bytes.all.current", 0), 3 << 20);
  EXPECT_EQ(library.count("requested_bytes.all.current", 1), 1000);
  EXPECT_EQ(library.count("allocated_bytes.small_pool.current", 1), 1024);
  std::size_t bytes = 0;
  EXPECT_EQ(library.base_alloc(at(p) + 2_MiB, &bytes), p);
  EXPECT_EQ(bytes, 20_MiB);
  EXPECT_EQ(library.base_alloc(at(q) + 999, &bytes), q);
  EXPECT_EQ(bytes, 2_MiB);
  library.free(p, 3_MiB, 0, nullptr);
  EXPECT_EQ(library.alloc(3_MiB, 0, nullptr), p);
  library.free(p, 3_MiB, 0, nullptr);
  library.free(q, 1000, 1, nullptr);
  library.free(library.alloc(0, 1, nullptr), 0, 1, nullptr);
  library.reset();
  EXPECT_EQ(library.count("reserved_bytes.all.current", 0), 0);
  EXPECT_EQ(library.count("reserved_bytes.all.current", 1), 0);
  EXPECT_GE(library.count("num_device_free", 1), 1);
  EXPECT_EQ(library.count("reserved_bytes.all.current", 2), -1);
  library.reset_peak_statistics(0);
  library.reset_accumulated_statistics(0);
  EXPECT_EQ(library.count("reserved_bytes.all.peak", 0), 0);
  EXPECT_EQ(library.count("allocation.all.allocated", 0), 0);
}

TEST(pluggable_library, reports_why_it_returns_null) {
  const pinned_library library;
  testing::internal::CaptureStderr();
  EXPECT_EQ(library.alloc(257_MiB, 0, nullptr), nullptr);
  EXPECT_NE(library.error().find("out of memory"), std::string::npos) << library.error();
  EXPECT_EQ(library.alloc(1, 2, nullptr), nullptr);
  EXPECT_NE(library.error().find("there are the devices 0 and 1"), std::string::npos) << library.error();
  EXPECT_EQ(library.alloc(1, -1, nullptr), nullptr);
  EXPECT_EQ(library.error(), "there is no device -1");
  library.memory_fraction(0.125, 1);  // 32 MiB
  EXPECT_EQ(library.alloc(40_MiB, 1, nullptr), nullptr);
  void* const p = library.alloc(24_MiB, 1, nullptr);
  EXPECT_NE(p, nullptr);
  library.free(p, 24_MiB, 1, nullptr);
  library.memory_fraction(2, 1);
  EXPECT_NE(library.error().find("not from 0 to 1"), std::string::npos) << library.error();
  library.memory_fraction(1, 1);
  library.free(library.alloc(40_MiB, 1, nullptr), 40_MiB, 1, nullptr);
  library.reset();
  (void)testing::internal::GetCapturedStderr();
}

/// Makes the work of a stream wait.
void wait_for_it(void* gate) {
  while (!static_cast<std::atomic<bool>*>(gate)->load()) std::this_thread::yield();
}
TEST(pluggable_library, holds_what_another_stream_works_on) {
  const pinned_library library;
  void* const side = library.create_stream(0);
  std::atomic<bool> open = false;
  void* const p = library.alloc(5_MiB, 0, nullptr);
  library.submit(0, side, wait_for_it, &open);
  library.record_stream(p, side);
  library.record_stream(&open, side);  // is not from there
  library.free(p, 5_MiB, 0, nullptr);
  void* const q = library.alloc(5_MiB, 0, nullptr);
  EXPECT_NE(q, p);
  library.free(q, 5_MiB, 0, nullptr);
  open = true;
  library.synchronize(0, side);
  void* const again = library.alloc(5_MiB, 0, nullptr);
  EXPECT_EQ(again, p);
  library.free(again, 5_MiB, 0, nullptr);
  library.destroy_stream(0, side);
  library.reset();
  EXPECT_EQ(library.count("reserved_bytes.all.current"), 0);
}

TEST(pluggable_library_death, ends_a_program_that_frees_on_the_wrong_device) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const pinned_library library;
  void* const p = library.alloc(1000, 0, nullptr);
  EXPECT_DEATH(library.free(p, 1000, 1, nullptr), "free: the block is on another device");
  library.free(p, 1000, 0, nullptr);
}

/// The data that a thread's stream writes to its tensor and checks later.
struct tensor {
  std::uint64_t* words;
  std::size_t bytes;
  std::uint64_t mark;
  std::atomic<int>* wrong;
};
void fill(void* with) {
  const tensor& t = *static_cast<tensor*>(with);
  for (std::size_t i = 0; i < t.bytes / 8; i += 97) t.words[i] = t.mark;
}
void check(void* with) {
  const tensor& t = *static_cast<tensor*>(with);
  for (std::size_t i = 0; i < t.bytes / 8; i += 97) *t.wrong += t.words[i] != t.mark;
}
TEST(pluggable_library_threads, work_on_streams_of_two_devices) {
  const pinned_library library;
  constexpr std::size_t rounds = 120;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const int device = static_cast<int>(t % 2);
      void* const own = library.create_stream(device);
      void* const other = library.create_stream(device);
      std::vector<tensor> used(rounds);  // by work that is running
      for (std::size_t i = 0; i < rounds; ++i) {
        tensor& made = used[i];
        made.bytes = 8 * (1 + i * 997 % 200'000);
        made.mark = t << 32 | i;
        made.wrong = &wrong;
        made.words = static_cast<std::uint64_t*>(library.alloc(made.bytes, device, own));
        ASSERT_NE(made.words, nullptr) << library.error();
        library.submit(device, own, fill, &made);
        library.submit(device, own, check, &made);
        if (i % 3 == 0) {
          library.synchronize(device, own);  // for the work that wrote it
          library.submit(device, other, check, &made);
          library.record_stream(made.words, other);
        }
        library.free(made.words, made.bytes, device, own);
        if (i % 40 == 39) library.reset();
      }
      library.synchronize(device, own);
      library.synchronize(device, other);
      library.reset();
      library.destroy_stream(device, other);
      library.destroy_stream(device, own);
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  library.reset();
  for (const int device : {0, 1}) {
    EXPECT_EQ(library.count("allocation.all.current", device), 0);
    EXPECT_EQ(library.count("reserved_bytes.all.current", device), 0);
  }
}

TEST(pluggable_library, is_the_same_each_time_it_is_loaded) {
  const pinned_library first;
  void* const p = first.alloc(3_MiB, 0, nullptr);
  const pinned_library second;
  EXPECT_EQ(second.handle(), first.handle());
  EXPECT_EQ(second.count("requested_bytes.all.current"), 3 << 20);
  // A host that closes the library may still hold tensors.
  EXPECT_EQ(dlclose(first.handle()), 0);
  EXPECT_EQ(dlclose(second.handle()), 0);
  std::memset(p, 1, 3_MiB);
  const pinned_library third;
  EXPECT_EQ(third.count("requested_bytes.all.current"), 3 << 20);
  third.free(p, 3_MiB, 0, nullptr);
  third.reset();
  EXPECT_EQ(third.count("reserved_bytes.all.current"), 0);
}

/// Two libraries with the same names, and a copy of each. Each keeps its behaviour whatever else is loaded.
void share_nothing(int mode) {
  const auto load = [mode](const char* library) {
    return torch_functions(loaded_library(loaded_library::copy_of(library), mode), "same");
  };
  const torch_functions caching = load("one"), direct = load("two");
  const torch_functions caching_too = load("one"), direct_too = load("two");

  // Simulated devices give all four the same addresses. Each library must recognize its own.
  void* const p = caching.alloc(1000, 0, nullptr);
  void* const q = direct.alloc(1000, 0, nullptr);
  EXPECT_EQ(caching.count("reserved_bytes.all.current"), 2 << 20);
  EXPECT_EQ(direct.count("reserved_bytes.all.current"), 1024);
  EXPECT_EQ(caching_too.count("reserved_bytes.all.current"), -1);
  EXPECT_EQ(direct_too.count("reserved_bytes.all.current"), -1);
  caching.free(p, 1000, 0, nullptr);
  direct.free(q, 1000, 0, nullptr);
  EXPECT_EQ(caching.count("reserved_bytes.all.current"), 2 << 20);
  EXPECT_EQ(direct.count("reserved_bytes.all.current"), 0);

  testing::internal::CaptureStderr();
  EXPECT_EQ(direct_too.alloc(33_MiB, 0, nullptr), nullptr);
  (void)testing::internal::GetCapturedStderr();
  EXPECT_NE(direct_too.error(), "");
  EXPECT_EQ(direct.error(), "");
  EXPECT_EQ(caching.error(), "");
  EXPECT_NE(caching_too.alloc(33_MiB, 0, nullptr), nullptr);
  EXPECT_EQ(caching_too.error(), "");
}
TEST(pluggable_library, shares_nothing_with_others) { share_nothing(RTLD_LOCAL); }
TEST(pluggable_library, shares_nothing_with_others_that_all_can_see) { share_nothing(RTLD_GLOBAL); }

}  // namespace
