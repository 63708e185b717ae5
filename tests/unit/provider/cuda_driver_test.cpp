// SPDX-License-Identifier: Apache-2.0
// The provider over CUDA's driver, with a library in place of the driver. The library has no device and
// checks all calls.
#include <tessera/provider/cuda_driver.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/extension/private_pools.hpp>
#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/tessera.hpp>

#include "fake_cuda.hpp"

namespace {

using namespace tessera;

constexpr stream_id a{0x1000}, b{0x2000};

template <typename F>
std::string thrown_by(F f) {
  try {
    f();
  } catch (const cuda_driver_error& error) {
    return error.what();
  }
  return "nothing";
}

class cuda_driver_test : public with_fake_cuda {};

TEST_F(cuda_driver_test, reports_which_library_is_missing) {
  const std::string text = thrown_by([] { const cuda_driver none("libno_such_driver.so.1"); });
  EXPECT_NE(text.find("the CUDA driver cannot be loaded: libno_such_driver.so.1: "), std::string::npos)
      << text;
}
TEST_F(cuda_driver_test, reports_which_function_is_missing) {
  EXPECT_EQ(thrown_by([] { const cuda_driver none("libm.so.6"); }),
            "the CUDA driver libm.so.6 has no function cuInit");
}
TEST_F(cuda_driver_test, reports_that_there_is_no_device) {
  begin(0);
  EXPECT_EQ(thrown_by([] { (void)load(); }),
            "cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected");
  begin(1);
  EXPECT_EQ(load().devices(), 1);
  EXPECT_EQ(thrown_by([] { const cuda_device none(load(), 1); }),
            "GPU 1: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE");
  EXPECT_EQ(load().calls()->describe(12345), "error 12345");
}
TEST_F(cuda_driver_test, gives_a_context_back_that_it_could_not_use) {
  const auto through = load();
  cuda.fail(1, 1, detail::cuda::out_of_memory);
  EXPECT_EQ(thrown_by([&] { const cuda_device none(through, 0); }),
            "GPU 0: cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory");
  EXPECT_EQ(cuda.outstanding(), 0u);
}

TEST_F(cuda_driver_test, keeps_the_laws_of_providers) {
  for (const int number : {0, 1}) {
    cuda_device device(load(), number);
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
  cuda_device device(load(), 1);
  law::provider_check_result found = law::provider(device);
  law::detail::ordering(found, device, a, b);
  EXPECT_STREQ(found.broken, nullptr) << device.last_error();
}

TEST_F(cuda_driver_test, serves_segments_on_a_device_without_virtual_memory) {
  begin(1, 64_MiB, false);
  cuda_device device(load(), 0);
  law::provider_check_result found;
  law::detail::memory(found, device);
  law::detail::events(found, device);
  EXPECT_STREQ(found.broken, nullptr);
  cuda_device::physical memory;
  EXPECT_FALSE(device.create(2_MiB, page_kind::normal, memory));
  EXPECT_EQ(device.last_error(), "cuMemCreate: CUDA_ERROR_NOT_SUPPORTED");
}

TEST_F(cuda_driver_test, reports_what_failed) {
  cuda_device device(load(), 0);
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

// The driver 580 does all of this on an H200, or does it if another range follows.
TEST_F(cuda_driver_test, refuses_what_the_driver_allows) {
  cuda_device device(load(), 0);
  cuda_device::physical memory;
  void* const range = device.reserve(4_MiB, 2_MiB);
  ASSERT_TRUE(device.create(4_MiB, page_kind::normal, memory));
  void* const middle = static_cast<std::byte*>(range) + 2_MiB;
  EXPECT_FALSE(device.map(middle, 4_MiB, memory));
  EXPECT_EQ(device.last_error(), "map: the range ends before the memory does");
  EXPECT_FALSE(device.map(middle, 2_MiB, memory));
  EXPECT_EQ(device.last_error(), "map: the memory has another size");
  EXPECT_FALSE(device.unmap(range, 4_MiB));
  EXPECT_EQ(device.last_error(), "unmap: no mapping begins here");
  ASSERT_TRUE(device.map(range, 4_MiB, memory));
  EXPECT_FALSE(device.map(range, 4_MiB, memory));
  EXPECT_EQ(device.last_error(), "map: memory is mapped here already");
  EXPECT_FALSE(device.unmap(range, 2_MiB));
  EXPECT_FALSE(device.unreserve(range, 4_MiB));
  EXPECT_EQ(device.last_error(), "unreserve: memory is mapped in the range");
  EXPECT_TRUE(device.unmap(range, 4_MiB) && device.destroy(memory));
  EXPECT_FALSE(device.unreserve(range, 2_MiB));
  EXPECT_EQ(device.last_error(), "unreserve: the range has another size");
  EXPECT_TRUE(device.unreserve(range, 4_MiB));
  EXPECT_EQ(cuda.used(0), 0u);
}
// A call of the driver that fails changes no table: the next one works.
TEST_F(cuda_driver_test, keeps_its_tables_when_the_driver_fails) {
  cuda_device device(load(), 0);
  cuda_device::physical memory;
  void* const range = device.reserve(2_MiB, 2_MiB);
  ASSERT_TRUE(device.create(2_MiB, page_kind::normal, memory));
  const auto fails_once = [this](auto call) {
    cuda.fail(1, 1, detail::cuda::out_of_memory);
    const bool refused = !call();
    cuda.fail(0, 0, 0);
    return refused && call();
  };
  EXPECT_TRUE(fails_once([&] { return device.map(range, 2_MiB, memory); }));
  EXPECT_TRUE(fails_once([&] { return device.unmap(range, 2_MiB); }));
  EXPECT_TRUE(device.destroy(memory));
  EXPECT_TRUE(fails_once([&] { return device.unreserve(range, 2_MiB); }));
}

TEST_F(cuda_driver_test, says_why_it_refused_memory) {
  locked<caching_allocator<pytorch<>, cuda_device, extension::private_pools>> memory(cuda_device(load(), 0));
  EXPECT_EQ(memory.try_allocate(1_GiB), nullptr);
  EXPECT_STREQ(memory.make_out_of_memory(1_GiB).why(), "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY: out of memory");
  cuda_device device(load(), 0);
  cuda.fail(1, 100, 700);
  EXPECT_EQ(device.available(), 0u) << "this is no refusal of memory";
  EXPECT_FALSE(device.take_refusal());
}

TEST_F(cuda_driver_test, leaves_a_thread_in_its_context) {
  cuda_device first(load(), 0), second(load(), 1);
  void* const own = cuda.other_context(1);
  for (void* const before : {static_cast<void*>(nullptr), own, cuda.other_context(0)}) {
    EXPECT_EQ(cuda.set_current(before), 0);
    void* const p = first.acquire(1_MiB);
    void* const q = second.acquire(2_MiB);
    EXPECT_EQ(cuda.current(), before);
    EXPECT_EQ(cuda.used(0), 1_MiB);
    EXPECT_EQ(cuda.used(1), 2_MiB);
    cuda_device::event mark;
    EXPECT_TRUE(second.record(a, mark) && second.wait(mark));
    second.discard(mark);
    EXPECT_TRUE(first.release(p, 1_MiB) && second.release(q, 2_MiB));
    EXPECT_EQ(cuda.current(), before);
  }
  EXPECT_EQ(cuda.set_current(nullptr), 0);
}
TEST_F(cuda_driver_test, does_nothing_in_another_context) {
  cuda_device device(load(), 0);
  for (const unsigned long long call : {1u, 2u}) {  // to get the context, and to change it
    cuda.fail(call, call, detail::cuda::invalid_context);
    EXPECT_EQ(device.acquire(1_MiB), nullptr);
    cuda.fail(call, call, detail::cuda::invalid_context);
    cuda_device::event mark;
    EXPECT_FALSE(device.record(a, mark));
    EXPECT_EQ(mark.handle, nullptr);
  }
  EXPECT_EQ(cuda.used(0), 0u);
}

TEST_F(cuda_driver_test, waits_for_all_work_if_a_stream_has_ended) {
  cuda_device device(load(), 0);
  cuda.hold(1);
  cuda.submit(0, handle_of(a));
  cuda.submit(0, handle_of(b));
  cuda_device::event mark;
  ASSERT_TRUE(device.record(b, mark));
  cuda.end_stream(0, handle_of(a));
  EXPECT_FALSE(device.query(mark));
  EXPECT_TRUE(device.synchronize(a));
  EXPECT_EQ(cuda.count("cuCtxSynchronize"), 1);
  EXPECT_TRUE(device.query(mark));
  device.discard(mark);
  cuda_device::event none;
  EXPECT_FALSE(device.record(a, none));
  EXPECT_EQ(device.last_error(), "cuEventRecord: CUDA_ERROR_INVALID_HANDLE");
}

TEST_F(cuda_driver_test, knows_which_streams_ended) {
  cuda_device device(load(), 0);
  EXPECT_TRUE(device.has_stream({}) && device.has_stream(a));
  EXPECT_EQ(cuda.count("cuCtxSynchronize"), 0);
  cuda.hold(1);
  cuda.submit(0, handle_of(a));
  cuda_device::event mark;
  ASSERT_TRUE(device.record(a, mark));
  const std::uint64_t before = device.position(a);
  cuda.end_stream(0, handle_of(a));
  EXPECT_FALSE(device.is_done(a, before)) << "its work goes on";
  EXPECT_FALSE(device.has_stream(a));
  EXPECT_TRUE(device.query(mark)) << "work of a stream that does not exist is done";
  EXPECT_TRUE(device.is_done(a, device.position(a)));
  law::provider_check_result found;
  law::detail::missing_stream(found, device, a);
  EXPECT_STREQ(found.broken, nullptr);
  device.discard(mark);
  cuda.fail(1, 100, 700);
  EXPECT_TRUE(device.has_stream(a)) << "an error is no answer";
}

template <typename Recipe>
void outlive_a_recorded_stream(const cuda_driver& driver, const fake_cuda& cuda) {
  caching_allocator<Recipe, cuda_device> pool{cuda_device(driver, 0)};
  const stream_id ending{0x3000 + cuda.calls()};  // never used before
  void* const p = pool.allocate(100_MiB, a);
  EXPECT_TRUE(pool.record_stream(p, ending));
  cuda.end_stream(0, handle_of(ending));
  pool.deallocate(p);
  pool.trim();
  EXPECT_EQ(pool.current_usage().pending(), 0u);
  EXPECT_EQ(pool.current_usage().reserved, 0u);
  void* const q = pool.allocate(200_MiB, b);  // of 256 MiB
  EXPECT_FALSE(pool.record_stream(q, ending));
  pool.deallocate(q);
}
TEST_F(cuda_driver_test, keeps_no_block_for_a_stream_that_ended) {
  outlive_a_recorded_stream<pytorch<>>(load(), cuda);
  outlive_a_recorded_stream<cuda_async>(load(), cuda);
  outlive_a_recorded_stream<pinned_packed>(load(), cuda);
}

TEST_F(cuda_driver_test, orders_streams_by_waits) {
  cuda_device device(load(), 0);
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
  cuda_device device(load(), 0);
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
  cuda_device device(load(), 0);
  cuda.hold(1);
  cuda.submit(0, handle_of(a));
  cuda_device::event mark;
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
  cuda_device device(load(), 0);
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
  cuda_device device(load(), 0);
  cuda.fail(1, 1000, 700);
  const std::uint64_t unmarked = device.position(a);
  EXPECT_FALSE(device.is_done(a, unmarked));
  EXPECT_FALSE(device.make_wait(b, a, unmarked));
  cuda.fail(0, 0, 0);
  EXPECT_FALSE(device.is_done(a, unmarked));
  EXPECT_GT(device.position(a), unmarked);
  EXPECT_TRUE(device.is_done(a, unmarked));
}

/// Creates and destroys a chunk. Returns its handle types, and 256 more if network devices may access it.
int create_chunk(cuda_device& device, const fake_cuda& cuda) {
  cuda_device::physical memory;
  EXPECT_TRUE(device.create(2_MiB, page_kind::normal, memory)) << device.last_error();
  EXPECT_TRUE(device.destroy(memory));
  return cuda.latest_chunk();
}
TEST_F(cuda_driver_test, asks_for_chunks_that_can_do_what_the_device_offers) {
  EXPECT_EQ(cuda_device(load()).chunk_abilities(), chunk_traits{.exports_file = true});
  {
    cuda.offer(0, 0);
    cuda_device device(load());
    const chunk_traits all{.exports_file = true, .exports_fabric = true, .rdma = true};
    EXPECT_EQ(device.chunk_abilities(), all);
    EXPECT_EQ(create_chunk(device, cuda), 1 + 8 + 256);
    EXPECT_EQ(device.chunk_abilities(), all);
    EXPECT_EQ(cuda.count("cuMemCreate"), 1);
    EXPECT_EQ(provider_ref(device).chunk_abilities(), all);
  }
  begin(1, 64_MiB, false);
  EXPECT_EQ(cuda_device(load()).chunk_abilities(), chunk_traits{}) << "it has no chunks";
}
TEST_F(cuda_driver_test, remembers_what_the_system_refuses) {
  struct step {
    int refused_types, refuses_rdma;
    chunk_traits left;
    int chunk, calls;
  };
  for (const step& s : {step{8, 0, {.exports_file = true, .rdma = true}, 1 + 256, 2},
                        step{8, 1, {.exports_file = true}, 1, 3}, step{1 + 8, 1, {}, 0, 4}}) {
    begin();
    cuda.offer(s.refused_types, s.refuses_rdma);
    cuda_device device(load());
    EXPECT_EQ(create_chunk(device, cuda), s.chunk);
    EXPECT_EQ(device.chunk_abilities(), s.left);
    EXPECT_EQ(cuda.count("cuMemCreate"), s.calls) << "one step at a time";
    EXPECT_EQ(create_chunk(device, cuda), s.chunk);
    EXPECT_EQ(cuda.count("cuMemCreate"), s.calls + 1) << "it asks once for what is refused";
    EXPECT_FALSE(device.take_refusal()) << "it got memory";
  }
}
TEST_F(cuda_driver_test, loses_no_ability_when_memory_is_exhausted) {
  cuda.offer(0, 0);
  cuda_device device(load());
  cuda_device::physical memory;
  EXPECT_FALSE(device.create(1_GiB, page_kind::normal, memory));
  EXPECT_EQ(cuda.count("cuMemCreate"), 1);
  cuda.fail(3, 100, detail::cuda::not_permitted);  // the first two calls are for the context
  EXPECT_FALSE(device.create(2_MiB, page_kind::normal, memory));
  cuda.fail(0, 0, 0);
  EXPECT_TRUE(device.chunk_abilities().exports_fabric) << "less would not have worked either";
  EXPECT_EQ(create_chunk(device, cuda), 1 + 8 + 256);
}

}  // namespace
