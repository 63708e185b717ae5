// SPDX-License-Identifier: Apache-2.0
// The provider over CUDA's driver, with a library in place of the driver. The library has no device and
// checks all calls.
#include "cuda_driver/device.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/law/provider_laws.hpp>
#include <tessera/tessera.hpp>

#include "fake_cuda.hpp"

namespace {

using namespace tessera;
using cuda_driver::driver;
using cuda_driver::driver_error;
using cuda_driver::gpu;

constexpr stream_id a{0x1000}, b{0x2000};

template <typename F>
std::string thrown_by(F f) {
  try {
    f();
  } catch (const driver_error& error) {
    return error.what();
  }
  return "nothing";
}

class cuda_driver_test : public with_fake_cuda {};

TEST_F(cuda_driver_test, reports_which_library_is_missing) {
  const std::string text = thrown_by([] { const driver none("libno_such_driver.so.1"); });
  EXPECT_NE(text.find("the CUDA driver cannot be loaded: libno_such_driver.so.1: "), std::string::npos)
      << text;
}
TEST_F(cuda_driver_test, reports_which_function_is_missing) {
  const std::string other = loaded_library::path_of("pinned");
  EXPECT_EQ(thrown_by([&] { const driver none(other.c_str()); }),
            "the CUDA driver " + other + " has no function cuInit");
}
TEST_F(cuda_driver_test, reports_that_there_is_no_device) {
  begin(0);
  EXPECT_EQ(thrown_by([] { (void)load(); }),
            "cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected");
  begin(1);
  EXPECT_EQ(load()->devices(), 1);
  EXPECT_EQ(thrown_by([] { const gpu none(load(), 1); }), "GPU 1: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE");
  EXPECT_EQ(load()->describe(12345), "error 12345");
}
TEST_F(cuda_driver_test, gives_a_context_back_that_it_could_not_use) {
  const auto through = load();
  cuda.fail(1, 1, cuda_driver::out_of_memory);
  EXPECT_EQ(thrown_by([&] { const gpu none(through, 0); }),
            "GPU 0: cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory");
  EXPECT_EQ(cuda.outstanding(), 0u);
}

TEST_F(cuda_driver_test, keeps_the_laws_of_providers) {
  for (const int number : {0, 1}) {
    gpu device(load(), number);
    EXPECT_EQ(device.capacity(), 256_MiB);
    law::provider_check_result found = law::provider(device);
    law::detail::ordering(found, device, a, b);
    law::detail::ordering(found, device, b, {});
    EXPECT_STREQ(found.broken, nullptr) << device.last_error();
    EXPECT_EQ(device.available(), 256_MiB);
    EXPECT_EQ(cuda.used(number), 0u);
  }
}
TEST_F(cuda_driver_test, keeps_the_laws_with_work_under_way) {
  cuda.hold(1);
  for (const stream_id s : {stream_id{}, a, b}) cuda.submit(1, handle_of(s));
  gpu device(load(), 1);
  law::provider_check_result found = law::provider(device);
  law::detail::ordering(found, device, a, b);
  EXPECT_STREQ(found.broken, nullptr) << device.last_error();
}

TEST_F(cuda_driver_test, serves_segments_on_a_device_without_virtual_memory) {
  begin(1, 64_MiB, false);
  gpu device(load(), 0);
  law::provider_check_result found;
  law::detail::memory(found, device);
  law::detail::events(found, device);
  EXPECT_STREQ(found.broken, nullptr);
  gpu::physical memory;
  EXPECT_FALSE(device.create(2_MiB, page_kind::normal, memory));
  EXPECT_EQ(device.last_error(), "cuMemCreate: CUDA_ERROR_NOT_SUPPORTED");
}

TEST_F(cuda_driver_test, reports_what_failed) {
  gpu device(load(), 0);
  EXPECT_EQ(device.last_error(), "");
  EXPECT_EQ(device.acquire(1_GiB), nullptr);
  EXPECT_EQ(device.last_error(), "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY: out of memory");
  for (const page_kind kind :
       {page_kind::huge_1g, page_kind{.read_only = true}, page_kind{.speed = page_kind::bandwidth::high}})
    EXPECT_EQ(device.acquire(1_MiB, kind), nullptr);
  cuda.fail(1, 100, 700);
  EXPECT_EQ(device.available(), 0u);
  EXPECT_EQ(device.last_error(), "cuCtxGetCurrent: error 700");
}

TEST_F(cuda_driver_test, says_why_it_refused_memory) {
  locked<caching_allocator<pytorch<>, gpu, extension::private_pools>> memory(gpu(load(), 0));
  EXPECT_EQ(memory.try_allocate(1_GiB), nullptr);
  EXPECT_STREQ(memory.make_out_of_memory(1_GiB).why(), "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY: out of memory");
  gpu device(load(), 0);
  cuda.fail(1, 100, 700);
  EXPECT_EQ(device.available(), 0u) << "this is no refusal of memory";
  EXPECT_FALSE(device.take_refusal());
}

TEST_F(cuda_driver_test, leaves_a_thread_in_its_context) {
  gpu first(load(), 0), second(load(), 1);
  void* const own = cuda.other_context(1);
  for (void* const before : {static_cast<void*>(nullptr), own, cuda.other_context(0)}) {
    EXPECT_EQ(cuda.set_current(before), 0);
    void* const p = first.acquire(1_MiB);
    void* const q = second.acquire(2_MiB);
    EXPECT_EQ(cuda.current(), before);
    EXPECT_EQ(cuda.used(0), 1_MiB);
    EXPECT_EQ(cuda.used(1), 2_MiB);
    gpu::event mark;
    EXPECT_TRUE(second.record(a, mark) && second.wait(mark));
    second.discard(mark);
    EXPECT_TRUE(first.release(p, 1_MiB) && second.release(q, 2_MiB));
    EXPECT_EQ(cuda.current(), before);
  }
  EXPECT_EQ(cuda.set_current(nullptr), 0);
}
TEST_F(cuda_driver_test, does_nothing_in_another_context) {
  gpu device(load(), 0);
  for (const unsigned long long call : {1u, 2u}) {  // to get the context, and to change it
    cuda.fail(call, call, cuda_driver::invalid_context);
    EXPECT_EQ(device.acquire(1_MiB), nullptr);
    cuda.fail(call, call, cuda_driver::invalid_context);
    gpu::event mark;
    EXPECT_FALSE(device.record(a, mark));
    EXPECT_EQ(mark.handle, nullptr);
  }
  EXPECT_EQ(cuda.used(0), 0u);
}

TEST_F(cuda_driver_test, waits_for_all_work_if_a_stream_has_ended) {
  gpu device(load(), 0);
  cuda.hold(1);
  cuda.submit(0, handle_of(a));
  cuda.submit(0, handle_of(b));
  gpu::event mark;
  ASSERT_TRUE(device.record(b, mark));
  cuda.end_stream(0, handle_of(a));
  EXPECT_FALSE(device.query(mark));
  EXPECT_TRUE(device.synchronize(a));
  EXPECT_EQ(cuda.count("cuCtxSynchronize"), 1);
  EXPECT_TRUE(device.query(mark));
  device.discard(mark);
  gpu::event none;
  EXPECT_FALSE(device.record(a, none));
  EXPECT_EQ(device.last_error(), "cuEventRecord: CUDA_ERROR_INVALID_HANDLE");
}

TEST_F(cuda_driver_test, orders_streams_by_waits) {
  gpu device(load(), 0);
  cuda.hold(1);
  cuda.submit(0, handle_of(a));
  const std::uint64_t first = device.position(a);
  cuda.submit(0, handle_of(a));
  const std::uint64_t second = device.position(a);
  EXPECT_LT(first, second);
  EXPECT_FALSE(device.is_done(a, first));
  EXPECT_FALSE(device.is_ordered_after(b, a, first));
  EXPECT_TRUE(device.make_wait(b, a, first));
  EXPECT_EQ(cuda.count("cuStreamWaitEvent"), 1);
  EXPECT_TRUE(device.is_ordered_after(b, a, first));
  EXPECT_FALSE(device.is_ordered_after(b, a, second));
  const std::uint64_t behind = device.position(b);
  EXPECT_FALSE(device.is_done(b, behind));
  cuda.finish(0, handle_of(a));
  EXPECT_TRUE(device.is_done(a, second));
  EXPECT_TRUE(device.is_done(b, behind));
  EXPECT_TRUE(device.make_wait(b, a, second)) << "what is done needs no wait";
  EXPECT_EQ(cuda.count("cuStreamWaitEvent"), 1);
  EXPECT_TRUE(device.is_ordered_after(b, a, second));
}
TEST_F(cuda_driver_test, waits_for_no_less_than_it_was_told) {
  gpu device(load(), 0);
  cuda.hold(1);
  cuda.submit(0, handle_of(a));
  const std::uint64_t first = device.position(a);
  cuda.submit(0, handle_of(a));
  const std::uint64_t second = device.position(a);
  EXPECT_TRUE(device.make_wait(b, a, second));
  const std::uint64_t behind = device.position(b);
  cuda.finish_one(0, handle_of(a));
  EXPECT_TRUE(device.is_done(a, first));
  EXPECT_FALSE(device.is_done(a, second));
  EXPECT_FALSE(device.is_done(b, behind));
  cuda.finish_one(0, handle_of(a));
  EXPECT_TRUE(device.is_done(b, behind));
}
TEST_F(cuda_driver_test, takes_no_error_for_an_answer) {
  gpu device(load(), 0);
  cuda.hold(1);
  cuda.submit(0, handle_of(a));
  gpu::event mark;
  ASSERT_TRUE(device.record(a, mark));
  const std::uint64_t at = device.position(a);
  cuda.fail(1, 100, 700);
  EXPECT_FALSE(device.query(mark));
  EXPECT_FALSE(device.is_done(a, at));
  EXPECT_FALSE(device.wait(mark));
  EXPECT_FALSE(device.synchronize(a));
  cuda.fail(0, 0, 0);
  EXPECT_FALSE(device.query(mark));
  cuda.finish(0, handle_of(a));
  EXPECT_TRUE(device.query(mark));
  EXPECT_TRUE(device.is_done(a, at));
  device.discard(mark);
}
TEST_F(cuda_driver_test, keeps_few_positions_of_a_slow_stream) {
  gpu device(load(), 0);
  cuda.hold(1);
  std::vector<std::uint64_t> at;
  const std::size_t before = cuda.outstanding();
  for (int i = 0; i < 500; ++i) {
    cuda.submit(0, handle_of(a));
    at.push_back(device.position(a));
    EXPECT_LE(cuda.outstanding() - before, 65u);
  }
  EXPECT_FALSE(device.is_done(a, at[0]));
  EXPECT_TRUE(device.make_wait(b, a, at[250]));
  EXPECT_TRUE(device.is_ordered_after(b, a, at[250]));
  cuda.finish(0, handle_of(a));
  EXPECT_TRUE(device.is_done(a, at[499]));
  EXPECT_EQ(cuda.outstanding(), before + 1) << "but the wait's";
}
TEST_F(cuda_driver_test, a_position_that_cannot_be_marked_is_done_with_a_later_one) {
  gpu device(load(), 0);
  cuda.fail(1, 1000, 700);
  const std::uint64_t unmarked = device.position(a);
  EXPECT_FALSE(device.is_done(a, unmarked));
  EXPECT_FALSE(device.make_wait(b, a, unmarked));
  cuda.fail(0, 0, 0);
  EXPECT_FALSE(device.is_done(a, unmarked));
  EXPECT_GT(device.position(a), unmarked);
  EXPECT_TRUE(device.is_done(a, unmarked));
}

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
