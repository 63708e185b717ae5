// SPDX-License-Identifier: Apache-2.0
// The library of examples/cuda_driver for PyTorch, with a library in place of CUDA's driver.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <tessera/core/bytes.hpp>

#include "../provider/fake_cuda.hpp"
#include "loaded_library.hpp"

namespace {

using namespace tessera;

constexpr stream_id a{0x1000}, b{0x2000};

/// examples/cuda_driver/cuda_pytorch.cpp, which finds the driver by its name if it is already loaded.
class cuda_pytorch_library : public with_fake_cuda {
 protected:
  /// Loads it as a program does that has not loaded it yet.
  torch_functions load_anew() const {
    const loaded_library library(loaded_library::copy_of("cuda_pytorch"));
    return {library, "tessera"};
  }
  /// Contexts stay, like the library.
  void end_with_contexts(std::size_t count) {
    EXPECT_EQ(cuda.used(0) + cuda.used(1), 0u);
    EXPECT_EQ(cuda.outstanding(), count);
    EXPECT_STREQ(cuda.misuse(), "");
    begin();
  }
};
TEST_F(cuda_pytorch_library, serves_pytorch) {
  const torch_functions torch = load_anew();
  torch.init(0);
  EXPECT_EQ(cuda.outstanding(), 0u) << "no device is touched before it is asked for memory";
  void* const p = torch.alloc(3_MiB, 1, handle_of(a));
  ASSERT_NE(p, nullptr);
  EXPECT_TRUE(cuda.is_usable(1, p, 3_MiB));
  EXPECT_EQ(cuda.used(1), 20_MiB);
  EXPECT_EQ(cuda.used(0), 0u);
  EXPECT_EQ(torch.count("reserved_bytes.all.current", 1), 20 << 20);
  EXPECT_EQ(torch.count("reserved_bytes.all.current", 0), -1);

  cuda.hold(1);
  cuda.submit(1, handle_of(b));
  torch.record_stream(p, handle_of(b));
  torch.free(p, 3_MiB, 1, handle_of(a));
  void* const q = torch.alloc(3_MiB, 1, handle_of(a));
  EXPECT_NE(q, p);
  cuda.finish(1, handle_of(b));
  std::size_t bytes = 0;
  EXPECT_EQ(torch.base_alloc(q, &bytes), p);
  EXPECT_EQ(bytes, 20_MiB);
  torch.free(q, 3_MiB, 1, handle_of(a));

  testing::internal::CaptureStderr();
  try {
    (void)torch.alloc(1_GiB, 0, nullptr);
    ADD_FAILURE() << "1 GiB of 256 MiB";
  } catch (const std::bad_alloc& error) {
    EXPECT_NE(std::string(error.what()).find("out of memory"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("on stream 0 of device 0"), std::string::npos) << error.what();
    EXPECT_EQ(torch.error().find("device 0: tessera: out of memory"), 0u) << torch.error();
    EXPECT_NE(torch.error().find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos) << torch.error();
  }
  try {
    (void)torch.alloc(1, 2, nullptr);
    ADD_FAILURE() << "a third device of two";
  } catch (const std::exception& error) {
    EXPECT_STREQ(error.what(), "GPU 2: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE");
  }
  (void)testing::internal::GetCapturedStderr();
  torch.memory_fraction(0.5, 0);
  torch.reset();
  end_with_contexts(2);
}
TEST_F(cuda_pytorch_library, keeps_the_memory_of_a_graph_apart) {
  const loaded_library library(loaded_library::copy_of("cuda_pytorch"));
  const torch_functions torch{library, "tessera"};
  // As PyTorch calls them.
  using pool_id = std::pair<unsigned long long, unsigned long long>;
  using begin_signature = void(int, pool_id, std::function<bool(void*)>);
  const auto begin = library.find<begin_signature>("tessera_begin_allocate_to_pool");
  const auto end = library.find<void(int, pool_id)>("tessera_end_allocate_to_pool");
  const auto release = library.find<void(int, pool_id)>("tessera_release_pool");
  void* captured = nullptr;
  begin(0, {1, 2}, [&captured](void* stream) { return (captured = stream) == handle_of(a); });
  void* const p = torch.alloc(3_MiB, 0, handle_of(a));
  EXPECT_EQ(captured, handle_of(a));
  end(0, {1, 2});
  torch.free(p, 3_MiB, 0, handle_of(a));
  void* const q = torch.alloc(3_MiB, 0, handle_of(a));
  EXPECT_NE(q, p);
  torch.free(q, 3_MiB, 0, handle_of(a));
  torch.reset();
  EXPECT_EQ(cuda.used(0), 20_MiB);
  release(0, {1, 2});
  torch.reset();
  EXPECT_EQ(cuda.used(0), 0u);
  testing::internal::CaptureStderr();
  EXPECT_THROW(end(0, {1, 2}), std::runtime_error);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("no scope of the pool is open"), std::string::npos);
  end_with_contexts(1);
}
/// The latest call of the observer below.
struct failure {
  int device = -1;
  std::uint64_t requested = 0, limit = 0, available = 0;
};
failure latest_failure;

TEST_F(cuda_pytorch_library, keeps_a_history_and_reports_failures) {
  const loaded_library library(loaded_library::copy_of("cuda_pytorch"));
  const torch_functions torch{library, "tessera"};
  const auto take_snapshot = library.find<std::size_t(int, char*, std::size_t)>("tessera_snapshot");
  const auto record_history = library.find<void(std::size_t)>("tessera_record_history");
  const auto observe = library.find<void(void (*)(int, std::uint64_t, std::uint64_t, std::uint64_t))>(
      "tessera_observe_out_of_memory");
  const auto has_event = [&](const char* action) {
    std::string bytes(take_snapshot(0, nullptr, 0) + 1000, '\0');
    bytes.resize(take_snapshot(0, bytes.data(), bytes.size()));
    return bytes.find(action) != std::string::npos;
  };
  EXPECT_FALSE(has_event("segments")) << "the device is unused";
  void* const p = torch.alloc(3_MiB, 0, nullptr);
  EXPECT_TRUE(has_event("active_allocated"));
  EXPECT_FALSE(has_event("segment_alloc")) << "there is no history yet";
  record_history(100);
  torch.free(p, 3_MiB, 0, nullptr);
  EXPECT_TRUE(has_event("free_completed"));
  record_history(100);
  void* const q = torch.alloc(30_MiB, 0, nullptr);
  EXPECT_TRUE(has_event("segment_alloc"));
  EXPECT_FALSE(has_event("free_completed")) << "the history is new";
  record_history(0);
  torch.free(q, 30_MiB, 0, nullptr);
  EXPECT_FALSE(has_event("free_completed"));

  latest_failure = {};
  observe([](int device, std::uint64_t requested, std::uint64_t limit, std::uint64_t available) {
    latest_failure = {device, requested, limit, available};
  });
  testing::internal::CaptureStderr();
  torch.memory_fraction(0.5, 0);
  EXPECT_THROW((void)torch.alloc(1_GiB, 0, nullptr), std::bad_alloc);
  EXPECT_EQ(latest_failure.device, 0);
  EXPECT_EQ(latest_failure.requested, 1_GiB);
  EXPECT_EQ(latest_failure.limit, 128_MiB);
  EXPECT_EQ(latest_failure.available, 256_MiB);
  latest_failure = {};
  observe(nullptr);
  EXPECT_THROW((void)torch.alloc(1_GiB, 0, nullptr), std::bad_alloc);
  EXPECT_EQ(latest_failure.device, -1);
  (void)testing::internal::GetCapturedStderr();
  torch.reset();
  end_with_contexts(1);
}
TEST_F(cuda_pytorch_library, decides_as_its_settings_say) {
  const torch_functions torch = load_anew();
  testing::internal::CaptureStderr();
  ASSERT_EQ(setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:Perhaps", 1), 0);
  try {
    (void)torch.alloc(1, 0, nullptr);
    ADD_FAILURE() << "a setting that is none";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("expandable_segments"), std::string::npos) << error.what();
  }
  (void)testing::internal::GetCapturedStderr();
  ASSERT_EQ(setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", 1), 0);
  void* const p = torch.alloc(3_MiB, 0, nullptr);
  ASSERT_EQ(unsetenv("PYTORCH_CUDA_ALLOC_CONF"), 0);
  EXPECT_TRUE(cuda.is_usable(0, p, 3_MiB));
  EXPECT_EQ(cuda.count("cuMemAlloc"), 0);
  EXPECT_EQ(cuda.count("cuMemMap"), 1);
  torch.free(p, 3_MiB, 0, nullptr);
  torch.reset();
  end_with_contexts(1);
}

TEST_F(cuda_pytorch_library, passes_each_request_to_the_driver_if_caching_is_off) {
  ASSERT_EQ(setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "", 1), 0);
  const torch_functions torch = load_anew();
  void* const p = torch.alloc(1000, 0, handle_of(a));
  ASSERT_EQ(unsetenv("PYTORCH_NO_CUDA_MEMORY_CACHING"), 0);
  void* const q = torch.alloc(3_MiB, 0, handle_of(a));
  EXPECT_TRUE(cuda.is_usable(0, q, 3_MiB));
  EXPECT_EQ(cuda.used(0), 3_MiB + 1000) << "the sizes are not rounded";
  EXPECT_EQ(cuda.count("cuMemAlloc"), 2);
  cuda.hold(1);
  cuda.submit(0, handle_of(b));
  torch.record_stream(p, handle_of(b));
  torch.free(p, 1000, 0, handle_of(a));
  EXPECT_EQ(cuda.count("cuMemFree"), 1) << "the driver waits for the streams";
  torch.reset();
  EXPECT_EQ(cuda.count("cuMemFree"), 1);
  EXPECT_EQ(torch.count("reserved_bytes.all.peak"), 0) << "PyTorch counts only what is cached";
  EXPECT_EQ(torch.count("device_calls.acquire.count"), 2);
  EXPECT_EQ(torch.count("device_calls.release.count"), 1);
  testing::internal::CaptureStderr();
  EXPECT_THROW((void)torch.alloc(1_GiB, 0, nullptr), std::bad_alloc);
  (void)testing::internal::GetCapturedStderr();
  torch.free(q, 3_MiB, 0, handle_of(a));
  end_with_contexts(1);
}

}  // namespace
