// SPDX-License-Identifier: Apache-2.0
// The provider over OpenCL: the laws, the model with several recipes, and any failing call of OpenCL. The functions below
// replace those of OpenCL in this program. They count objects, and fail on request. Without an OpenCL device, the tests skip.
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <tessera/concurrent/locked.hpp>
#include <tessera/interop/aligned_request.hpp>
#include <tessera/law/provider_contents.hpp>
#include <tessera/law/provider_laws.hpp>
#include <tessera/observe/explain.hpp>
#include <tessera/policy/reuse_across_streams.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/opencl.hpp>
#include <tessera/tessera.hpp>

#include "first_broken_rule.hpp"
#include "model.hpp"
#include "opencl/pool.hpp"
#include "stands.hpp"
#include "subject_of.hpp"

namespace {

/// References and segments that the program holds, and the calls that fail.
struct watch {
  std::atomic<long> events{0}, queues{0}, contexts{0}, segments{0};
  std::atomic<std::uint64_t> made{0};         // calls that can fail
  std::atomic<std::uint64_t> made_before{0};  // until the latest fail()
  std::atomic<std::uint64_t> flushed{0};
  std::atomic<std::uint64_t> first_failing{0}, last_failing{0}, every_failing{0};
  std::atomic<bool> work_fails{false};  // every event reports that its work failed

  void fail(std::uint64_t first, std::uint64_t last, std::uint64_t every = 0) {
    made_before = made.exchange(0);
    first_failing = first;
    last_failing = last;
    every_failing = every;
  }
  void fail_nothing() { fail(0, 0); }
  [[nodiscard]] bool fails() {
    const std::uint64_t number = ++made;
    const std::uint64_t every = every_failing;
    return (first_failing <= number && number <= last_failing) || (every != 0 && number % every == 0);
  }
  [[nodiscard]] std::array<long, 4> held() const { return {events, queues, contexts, segments}; }
};
watch watched;

/// The function of OpenCL that a function of this program replaces.
template <typename F>
F real(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}
#define REAL(name) real<decltype(&name)>(#name)

cl_int counted(cl_int code, std::atomic<long>& count, int change) {
  if (code == CL_SUCCESS) count += change;
  return code;
}

}  // namespace

extern "C" {
CL_API_ENTRY void* CL_API_CALL clSVMAlloc(cl_context in, cl_svm_mem_flags flags, size_t bytes, cl_uint to) {
  void* const p = watched.fails() ? nullptr : REAL(clSVMAlloc)(in, flags, bytes, to);
  if (p != nullptr) ++watched.segments;
  return p;
}
CL_API_ENTRY void CL_API_CALL clSVMFree(cl_context in, void* p) {
  --watched.segments;
  REAL(clSVMFree)(in, p);
}
CL_API_ENTRY cl_int CL_API_CALL clEnqueueMarkerWithWaitList(cl_command_queue queue, cl_uint count,
                                                            const cl_event* list, cl_event* made) {
  if (watched.fails()) return CL_OUT_OF_RESOURCES;
  return counted(REAL(clEnqueueMarkerWithWaitList)(queue, count, list, made), watched.events, 1);
}
CL_API_ENTRY cl_int CL_API_CALL clEnqueueBarrierWithWaitList(cl_command_queue queue, cl_uint count,
                                                             const cl_event* list, cl_event* made) {
  return watched.fails() ? CL_OUT_OF_RESOURCES : REAL(clEnqueueBarrierWithWaitList)(queue, count, list, made);
}
CL_API_ENTRY cl_int CL_API_CALL clEnqueueSVMMemcpy(cl_command_queue queue, cl_bool waits, void* to,
                                                   const void* from, size_t bytes, cl_uint count,
                                                   const cl_event* list, cl_event* made) {
  return watched.fails() ? CL_OUT_OF_RESOURCES
                         : REAL(clEnqueueSVMMemcpy)(queue, waits, to, from, bytes, count, list, made);
}
CL_API_ENTRY cl_int CL_API_CALL clFlush(cl_command_queue queue) {
  ++watched.flushed;
  return watched.fails() ? CL_OUT_OF_RESOURCES : REAL(clFlush)(queue);
}
CL_API_ENTRY cl_int CL_API_CALL clFinish(cl_command_queue queue) {
  return watched.fails() ? CL_OUT_OF_RESOURCES : REAL(clFinish)(queue);
}
CL_API_ENTRY cl_int CL_API_CALL clWaitForEvents(cl_uint count, const cl_event* list) {
  if (watched.work_fails) return CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
  return watched.fails() ? CL_OUT_OF_RESOURCES : REAL(clWaitForEvents)(count, list);
}
CL_API_ENTRY cl_int CL_API_CALL clGetEventInfo(cl_event of, cl_event_info name, size_t bytes, void* value,
                                               size_t* size) {
  if (watched.fails()) return CL_OUT_OF_RESOURCES;
  if (!watched.work_fails) return REAL(clGetEventInfo)(of, name, bytes, value, size);
  *static_cast<cl_int*>(value) = CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST;
  return CL_SUCCESS;
}
CL_API_ENTRY cl_int CL_API_CALL clGetDeviceInfo(cl_device_id of, cl_device_info name, size_t bytes,
                                                void* value, size_t* size) {
  return watched.fails() ? CL_OUT_OF_RESOURCES : REAL(clGetDeviceInfo)(of, name, bytes, value, size);
}
CL_API_ENTRY cl_int CL_API_CALL clGetCommandQueueInfo(cl_command_queue of, cl_command_queue_info name,
                                                      size_t bytes, void* value, size_t* size) {
  return watched.fails() ? CL_OUT_OF_RESOURCES : REAL(clGetCommandQueueInfo)(of, name, bytes, value, size);
}
CL_API_ENTRY cl_int CL_API_CALL clRetainCommandQueue(cl_command_queue queue) {
  if (watched.fails()) return CL_OUT_OF_RESOURCES;
  return counted(REAL(clRetainCommandQueue)(queue), watched.queues, 1);
}
CL_API_ENTRY cl_int CL_API_CALL clRetainContext(cl_context context) {
  if (watched.fails()) return CL_OUT_OF_RESOURCES;
  return counted(REAL(clRetainContext)(context), watched.contexts, 1);
}
// These calls do not fail. Otherwise the test could not release the object.
CL_API_ENTRY cl_int CL_API_CALL clReleaseEvent(cl_event event) {
  return counted(REAL(clReleaseEvent)(event), watched.events, -1);
}
CL_API_ENTRY cl_int CL_API_CALL clReleaseCommandQueue(cl_command_queue queue) {
  return counted(REAL(clReleaseCommandQueue)(queue), watched.queues, -1);
}
CL_API_ENTRY cl_int CL_API_CALL clReleaseContext(cl_context context) {
  return counted(REAL(clReleaseContext)(context), watched.contexts, -1);
}
}

namespace {

using namespace tessera;
using provider::opencl_error;
using device_type = provider::opencl_device<>;
using host_visible_device = provider::opencl_device<provider::opencl_grain::fine>;

/// A context and queues on the first device, made once. They count as references that the program holds.
class platform {
 public:
  /// Null if there is no device.
  static const platform* found() {
    static const platform only;
    return only.device != nullptr ? &only : nullptr;
  }
  [[nodiscard]] cl_command_queue create_queue(cl_command_queue_properties how = 0) const {
    const cl_queue_properties properties[] = {CL_QUEUE_PROPERTIES, how, 0};
    cl_command_queue const queue = clCreateCommandQueueWithProperties(context, device, properties, nullptr);
    if (queue != nullptr) ++watched.queues;
    return queue;
  }
  [[nodiscard]] cl_event create_user_event() const {
    cl_event const event = clCreateUserEvent(context, nullptr);
    if (event != nullptr) ++watched.events;
    return event;
  }

  cl_device_id device = nullptr;
  cl_context context = nullptr;
  std::array<cl_command_queue, 3> queues{};

 private:
  platform() {
    cl_platform_id platforms[8]{};
    cl_uint count = 0;
    if (clGetPlatformIDs(8, platforms, &count) != CL_SUCCESS) return;
    for (cl_uint i = 0; i < count && i < 8 && device == nullptr; ++i)
      (void)clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 1, &device, nullptr);
    if (device == nullptr) return;
    context = clCreateContext(nullptr, 1, &device, nullptr, nullptr, nullptr);
    for (cl_command_queue& queue : queues) queue = create_queue();
  }
  ~platform() {
    if (device == nullptr) return;
    for (cl_command_queue queue : queues) (void)clReleaseCommandQueue(queue);
    (void)REAL(clReleaseContext)(context);
  }
};

/// Holds a queue back until open().
class gate {
 public:
  explicit gate(const platform& on, cl_command_queue queue) : event_(on.create_user_event()) {
    (void)REAL(clEnqueueBarrierWithWaitList)(queue, 1, &event_, nullptr);
  }
  gate(gate&& from) noexcept : event_(std::exchange(from.event_, nullptr)) {}
  gate& operator=(gate&&) = delete;
  ~gate() { open(); }
  void open() {
    if (event_ == nullptr) return;
    (void)clSetUserEventStatus(event_, CL_COMPLETE);
    (void)clReleaseEvent(std::exchange(event_, nullptr));
  }

 private:
  cl_event event_;
};

/// Skips without a device. At the end, no object is left.
class opencl_provider : public testing::Test {
 protected:
  void SetUp() override {
    on = platform::found();
    if (on == nullptr) GTEST_SKIP() << "there is no OpenCL device";
    before_ = watched.held();
  }
  void TearDown() override {
    if (on == nullptr) return;
    watched.fail_nothing();
    EXPECT_EQ(watched.held(), before_) << "references of events, queues, contexts; segments";
  }
  [[nodiscard]] cl_command_queue queue(std::size_t i) const { return on->queues[i]; }

  const platform* on = nullptr;

 private:
  std::array<long, 4> before_{};
};

template <typename Device>
class opencl_devices : public opencl_provider {};
using devices = testing::Types<device_type, host_visible_device>;
TYPED_TEST_SUITE(opencl_devices, devices);

TYPED_TEST(opencl_devices, obey_the_laws) {
  TypeParam device(this->queue(0));
  const stream_id other = device.add_queue(this->queue(1));
  law::provider_check_result found = law::provider(device, 16_MiB, other);
  law::detail::ordering(found, device, {}, other);
  EXPECT_STREQ(found.broken, nullptr) << device.last_error();
}

TYPED_TEST(opencl_devices, obey_the_laws_while_work_runs) {
  TypeParam device(this->queue(0));
  const stream_id other = device.add_queue(this->queue(1));
  for (const stream_id stream : {stream_id{}, other}) {
    std::atomic<bool> ended{true};
    std::thread ending;
    const auto begin = [&] {
      ended = false;
      ending = std::thread([&ended, held = gate(*this->on, this->queue(stream == other ? 1 : 0))]() mutable {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        ended = true;
        held.open();
      });
    };
    EXPECT_STREQ(law::work(device, stream, begin, [&] { return ended.load(); }).broken, nullptr);
    ending.join();
  }
}

TEST_F(opencl_provider, of_fine_grained_memory_is_host_visible) {
  host_visible_device device(queue(0));
  EXPECT_STREQ(law::host_visible(device).broken, nullptr) << device.last_error();
}

TEST_F(opencl_provider, refuses_what_is_not_its_own) {
  device_type device(queue(0)), other(queue(0));
  const std::size_t bytes = 1_MiB;
  void* const p = device.acquire(bytes);
  ASSERT_NE(p, nullptr);
  EXPECT_FALSE(other.release(p, bytes));
  EXPECT_FALSE(device.release(p, bytes / 2));
  EXPECT_FALSE(device.release(static_cast<std::byte*>(p) + bytes / 2, bytes / 2));
  EXPECT_EQ(device.last_error(), "release: this is no segment of the device");
  std::vector<std::byte> host(bytes);
  EXPECT_FALSE(device.copy_to_host(host.data(), static_cast<std::byte*>(p) + 1, bytes, {}));
  EXPECT_FALSE(other.copy_to_device(p, host.data(), bytes, {}));
  EXPECT_EQ(other.last_error(), "a copy is outside the segments of the device");
  EXPECT_TRUE(device.release(p, bytes));
  EXPECT_FALSE(device.release(p, bytes));

  device_type::event mark;
  const stream_id unknown(queue(1));
  EXPECT_FALSE(device.has_stream(unknown));
  EXPECT_FALSE(device.record(unknown, mark));
  EXPECT_FALSE(device.make_wait(unknown, {}, 1));
  EXPECT_EQ(device.last_error(), "a queue was not added to the device");
  EXPECT_TRUE(device.make_wait({}, unknown, 1) && device.is_done(unknown, 1) &&
              device.is_ordered_after({}, unknown, 1))
      << "a stream that does not exist has no work";
}

TEST_F(opencl_provider, gives_no_memory_to_a_queue_that_was_not_added) {
  device_type device(queue(0));
  opencl::pool<> pool(device);
  const stream_id unknown(queue(1));
  EXPECT_EQ(pool.try_allocate(1_MiB, unknown), nullptr);
  EXPECT_EQ(device.last_error(), "a queue was not added to the device");
  EXPECT_EQ(tessera::interop::aligned_request(1_MiB, 4096).try_allocate(pool, unknown), nullptr);
  EXPECT_FALSE(pool.allocate_by_handle(1_MiB, unknown));
  EXPECT_THROW((void)pool.allocate(1_MiB, unknown), out_of_memory);
  EXPECT_EQ(pool.current_usage().reserved, 0u);

  ASSERT_EQ(device.add_queue(queue(1)), unknown);
  void* const p = pool.allocate(1_MiB, unknown);
  void* const aligned = tessera::interop::aligned_request(1_MiB, 4096).allocate(pool, unknown);
  EXPECT_TRUE(pool.record_stream(p, {}));
  pool.deallocate(p);
  tessera::interop::aligned_request(1_MiB, 4096).deallocate(pool, aligned);
  ASSERT_TRUE(device.remove_queue(unknown));
  EXPECT_EQ(pool.try_allocate(1_MiB, unknown), nullptr) << "its cached block would serve no stream";
  EXPECT_STREQ(pool.audit(), nullptr);
}

TEST_F(opencl_provider, refuses_queues_that_are_no_streams) {
  device_type device(queue(0));
  EXPECT_EQ(device.add_queue(queue(0)), stream_id{});
  EXPECT_FALSE(device.remove_queue({}));
  if (cl_command_queue const out_of_order = on->create_queue(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE)) {
    EXPECT_THROW((void)device.add_queue(out_of_order), opencl_error);
    EXPECT_THROW(device_type{out_of_order}, opencl_error);
    (void)clReleaseCommandQueue(out_of_order);
  }
  cl_context const context = clCreateContext(nullptr, 1, &on->device, nullptr, nullptr, nullptr);
  cl_command_queue const foreign = clCreateCommandQueueWithProperties(context, on->device, nullptr, nullptr);
  EXPECT_THROW((void)device.add_queue(foreign), opencl_error);
  (void)REAL(clReleaseCommandQueue)(foreign);
  (void)REAL(clReleaseContext)(context);
}

TEST_F(opencl_provider, counts_its_memory) {
  device_type device(queue(0));
  cl_ulong most = 0, all = 0;
  (void)clGetDeviceInfo(on->device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof most, &most, nullptr);
  (void)clGetDeviceInfo(on->device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof all, &all, nullptr);
  EXPECT_EQ(device.capacity(), all);
  const std::size_t step = device.granularity();
  EXPECT_EQ(device.acquire(static_cast<std::size_t>(most) / step * step + step), nullptr);
  EXPECT_EQ(device.last_error(), most < all ? "a segment has more bytes than CL_DEVICE_MAX_MEM_ALLOC_SIZE"
                                            : "the segments would exceed CL_DEVICE_GLOBAL_MEM_SIZE");
  const std::string refused = device.take_refusal().text();
  EXPECT_NE(refused.find(most < all ? "CL_DEVICE_MAX_MEM_ALLOC_SIZE, " + std::to_string(most)
                                    : "CL_DEVICE_GLOBAL_MEM_SIZE, " + std::to_string(all)),
            std::string::npos)
      << refused;
  EXPECT_FALSE(device.take_refusal());
  // The memory is not touched, so the system does not back it.
  std::vector<void*> segments;
  const std::size_t bytes = static_cast<std::size_t>(most) / 2 / step * step;
  for (std::size_t taken = 0; taken + bytes <= all; taken += bytes) {
    EXPECT_EQ(device.available(), all - taken);
    void* const p = device.acquire(bytes);
    if (p == nullptr) break;  // the device has less than it said
    segments.push_back(p);
  }
  EXPECT_EQ(device.acquire(bytes), nullptr);
  for (void* const p : segments) EXPECT_TRUE(device.release(p, bytes));
  EXPECT_EQ(device.available(), all);
}

TEST_F(opencl_provider, says_why_it_refused_memory) {
  cl_ulong most = 0;
  (void)clGetDeviceInfo(on->device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof most, &most, nullptr);
  concurrent::locked<caching_allocator<recipe::pytorch<>, device_type>> memory(device_type(queue(0)));
  const auto bytes = static_cast<std::size_t>(most) + 20_MiB;
  EXPECT_EQ(memory.try_allocate(bytes), nullptr);
  const std::string text = observe::explain(memory, bytes).text().c_str();
  EXPECT_NE(text.find("\n  the provider says: "), std::string::npos) << text;
  EXPECT_NE(text.find("CL_DEVICE_"), std::string::npos) << text;
}

TEST_F(opencl_provider, forgets_a_queue_only_when_its_work_is_done) {
  device_type device(queue(0));
  cl_command_queue const own = on->create_queue();
  const stream_id stream = device.add_queue(own);
  auto held = std::make_unique<gate>(*on, own);
  const std::uint64_t position = device.position(stream);
  device_type::event mark;
  ASSERT_TRUE(device.record(stream, mark));
  EXPECT_FALSE(device.is_done(stream, position) || device.query(mark));
  watched.fail(1, 1);
  EXPECT_FALSE(device.remove_queue(stream)) << "it cannot be known whether the work is done";
  watched.fail_nothing();
  EXPECT_TRUE(device.has_stream(stream));
  std::atomic<bool> opened{false};
  std::thread opening([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    opened = true;
    held.reset();
  });
  EXPECT_TRUE(device.remove_queue(stream));
  EXPECT_TRUE(opened);
  opening.join();
  EXPECT_FALSE(device.has_stream(stream));
  EXPECT_TRUE(device.is_done(stream, position) && device.query(mark));
  EXPECT_EQ(device.add_queue(own), stream);
  EXPECT_GT(device.position(stream), position) << "positions are not used twice";
  device.discard(mark);
  EXPECT_TRUE(device.remove_queue(stream));
  (void)clReleaseCommandQueue(own);
}

TEST_F(opencl_provider, keeps_few_markers_of_a_queue_that_does_not_advance) {
  device_type device(queue(0));
  const stream_id waiting = device.add_queue(queue(1));
  const long before = watched.events;
  std::vector<std::uint64_t> positions;
  {
    const gate held(*on, queue(0));
    for (int i = 0; i < 1000; ++i) positions.push_back(device.position({}));
    EXPECT_LE(watched.events - before, 65);
    for (const std::uint64_t at : positions) EXPECT_FALSE(device.is_done({}, at));
    ASSERT_TRUE(device.make_wait(waiting, {}, positions[3])) << device.last_error();
    EXPECT_FALSE(device.is_done(waiting, device.position(waiting)));
  }
  (void)clFinish(queue(1));
  EXPECT_TRUE(device.is_done({}, positions[3]));
  const std::uint64_t behind = device.position(waiting);
  (void)clFinish(queue(1));
  EXPECT_TRUE(device.is_done(waiting, behind));
  (void)clFinish(queue(0));
  for (const std::uint64_t at : positions) EXPECT_TRUE(device.is_done({}, at));
}

TEST_F(opencl_provider, keeps_the_work_of_a_queue_that_is_added_again) {
  device_type device(queue(0));
  const stream_id other = device.add_queue(queue(1));
  {
    const gate held(*on, queue(1));
    const std::uint64_t at = device.position(other);
    EXPECT_EQ(device.add_queue(queue(1)), other);
    EXPECT_FALSE(device.is_done(other, at));
  }
  (void)clFinish(queue(1));
}

TEST_F(opencl_provider, reports_no_work_early_if_markers_are_dropped) {
  device_type device(queue(0));
  gate first(*on, queue(0));
  for (int i = 0; i < 60; ++i) (void)device.position({});
  device_type::event before;
  ASSERT_TRUE(device.record({}, before));
  gate second(*on, queue(0));
  std::vector<std::uint64_t> behind;
  for (int i = 0; i < 30; ++i) behind.push_back(device.position({}));
  first.open();
  EXPECT_TRUE(device.wait(before));
  device.discard(before);
  for (const std::uint64_t at : behind) EXPECT_FALSE(device.is_done({}, at));
  second.open();
  (void)clFinish(queue(0));
  for (const std::uint64_t at : behind) EXPECT_TRUE(device.is_done({}, at));
}

// PoCL runs work without a flush, but OpenCL does not promise that.
TEST_F(opencl_provider, flushes_the_work_before_each_marker) {
  device_type device(queue(0));
  const stream_id other = device.add_queue(queue(1));
  device_type::event mark;
  const std::uint64_t before = watched.flushed;
  ASSERT_TRUE(device.record({}, mark));
  EXPECT_EQ(watched.flushed, before + 1);
  const std::uint64_t position = device.position({});
  EXPECT_EQ(watched.flushed, before + 2);
  ASSERT_TRUE(device.make_wait(other, {}, position));
  EXPECT_EQ(watched.flushed, before + 3);
  device.discard(mark);
}

TEST_F(opencl_provider, waits_for_the_whole_queue_if_work_failed) {
  device_type device(queue(0));
  device_type::event mark;
  const std::uint64_t position = device.position({});
  ASSERT_TRUE(device.record({}, mark));
  (void)clFinish(queue(0));
  watched.work_fails = true;
  EXPECT_FALSE(device.query(mark) || device.is_done({}, position));
  EXPECT_EQ(device.last_error(),
            "the work before an event: CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST (-14)");
  EXPECT_TRUE(device.wait(mark));
  EXPECT_TRUE(device.query(mark) && device.is_done({}, position));
  watched.work_fails = false;
  device.discard(mark);
}

// Each call of a constructor and of add_queue fails.
TEST_F(opencl_provider, that_is_not_constructed_holds_nothing) {
  const std::array<long, 4> before = watched.held();
  std::uint64_t failed = 0;
  for (bool works = false; !works; ++failed) {
    watched.fail(failed + 1, failed + 1);
    try {
      device_type device(queue(0));
      const stream_id stream = device.add_queue(queue(1));
      works = device.has_stream(stream);
    } catch (const opencl_error& error) {
      EXPECT_NE(std::string(error.what()).find("CL_OUT_OF_RESOURCES (-5)"), std::string::npos)
          << error.what();
    }
    ASSERT_EQ(watched.held(), before) << "with call " << failed + 1 << " failing";
  }
  EXPECT_GT(failed, 10u);
}

/// A device whose queues the model can hold back. A wait opens them, and they are held back again after it.
template <typename Device>
class gated_device : public Device {
 public:
  using Device::acquire;
  using Device::Device;
  using typename Device::event;
  /// The stands of the model want it.
  [[nodiscard]] void* acquire(std::size_t bytes, page_kind kind) noexcept {
    return kind == page_kind::normal ? Device::acquire(bytes) : nullptr;
  }
  void hold(bool held) {
    held_ = held;
    if (held && !gates_.empty()) return;
    gates_.clear();
    if (!held) {
      for (cl_command_queue queue : platform::found()->queues) (void)REAL(clFinish)(queue);
      return;
    }
    for (cl_command_queue queue : platform::found()->queues) gates_.emplace_back(*platform::found(), queue);
  }
  bool wait(event& mark) noexcept {
    ++waits_;
    gates_.clear();
    const bool done = Device::wait(mark);
    if (held_) hold(true);
    return done;
  }
  bool make_wait(stream_id stream, stream_id of, std::uint64_t at) noexcept {
    ++waits_;
    return Device::make_wait(stream, of, at);
  }
  [[nodiscard]] std::uint64_t waits() const { return waits_; }

 private:
  bool held_ = false;
  std::uint64_t waits_ = 0;
  std::vector<gate> gates_;
};

/// The streams of the queues, in the same order.
std::vector<stream_id> streams() {
  std::vector<stream_id> all{stream_id{}};
  for (std::size_t i = 1; platform::found() != nullptr && i < platform::found()->queues.size(); ++i)
    all.push_back(stream_id(platform::found()->queues[i]));
  return all;
}

template <typename Device>
class opencl_stand final : public conformance::stand {
 public:
  opencl_stand() {
    for (std::size_t i = 1; i < platform::found()->queues.size(); ++i)
      (void)device.add_queue(platform::found()->queues[i]);
  }
  void hold_events(bool held) override { device.hold(held); }
  std::uint64_t waits() override { return device.waits(); }
  std::string left() override {
    return device.available() != device.capacity() ? "the device still holds memory" : "";
  }
  conformance::any_device::calls& any() override { return any_; }

  gated_device<Device> device{platform::found()->queues[0]};

 private:
  conformance::calls_of<provider::provider_ref<gated_device<Device>>> any_{device};
};

template <typename Recipe>
class opencl_allocators : public opencl_provider {};
using recipes =
    testing::Types<recipe::pytorch<>, recipe::pytorch<"max_split_size_mb:32">, recipe::cuda_async,
                   recipe::with<recipe::cuda_async, policy::reuse_across_streams<false, true, false>>,
                   recipe::power_of_two, recipe::passthrough>;
TYPED_TEST_SUITE(opencl_allocators, recipes);

/// Random programs, whose events are held at times. Blocks are written and read if the host can do so.
template <typename Recipe, typename Device>
std::string broken_by_a_program(std::size_t operations) {
  using stand = opencl_stand<Device>;
  using pool = caching_allocator<Recipe, provider::provider_ref<gated_device<Device>>>;
  conformance::extra_rules kept = conformance::rules_of<Recipe>();
  kept.host_visible = detail::is_host_visible<Device>;
  const auto make = []() -> std::unique_ptr<conformance::subject> {
    auto on = std::make_unique<stand>();
    auto& device = on->device;
    return std::make_unique<conformance::subject_of<pool>>(
        std::move(on), [&device] { return std::make_unique<pool>(provider::provider_ref(device)); });
  };
  return conformance::first_broken_rule({.name = "opencl",
                                         .make = make,
                                         .kept = kept,
                                         .used = {.seed = conformance::seed_asked_for(11),
                                                  .largest = 4_MiB,
                                                  .most_live = 60,
                                                  .streams = streams(),
                                                  .settings = conformance::tunings,
                                                  .pools = 2}},
                                        operations);
}

TYPED_TEST(opencl_allocators, obey_the_model) {
  const std::size_t operations = conformance::is_slow() ? 2'000 : 10'000;
  EXPECT_EQ((broken_by_a_program<TypeParam, device_type>(operations)), "");
  EXPECT_EQ((broken_by_a_program<TypeParam, host_visible_device>(operations)), "");
}

/// Runs a program while calls fail, and sets `made` to the number of its calls. Once calls work again, all memory goes back.
/// Returns what is wrong.
template <typename Recipe>
std::string consequences(const platform& on, std::uint64_t first, std::uint64_t last, std::uint64_t every,
                         std::uint64_t& made) {
  device_type device(on.queues[0]);
  for (std::size_t i = 1; i < on.queues.size(); ++i) (void)device.add_queue(on.queues[i]);
  caching_allocator<Recipe, provider::provider_ref<device_type>> pool{provider::provider_ref(device)};
  watched.fail(first, last, every);
  const auto heal = [] { watched.fail_nothing(); };
  const std::string broken = conformance::first_broken_rule(pool, {3, 800, 4_MiB, 40, 7, heal}, streams());
  made = watched.made_before;
  if (!broken.empty()) return broken;
  pool.trim();
  if (pool.audit() != nullptr) return pool.audit();
  return pool.current_usage().reserved != 0 || device.available() != device.capacity() ? "memory is kept"
                                                                                       : "";
}

TYPED_TEST(opencl_allocators, survive_any_failing_call) {
  constexpr std::uint64_t always = ~std::uint64_t{0};
  const std::uint64_t step = conformance::is_slow() ? 9 : 1;
  std::uint64_t made = 0, k = 1;
  for (; k == 1 || (made >= k - step && k <= 100); k += step) {
    ASSERT_EQ(consequences<TypeParam>(*this->on, k, k, 0, made), "") << "with call " << k << " failing";
  }
  EXPECT_GT(k, 60u) << "few calls can fail";
  for (k = 1; k <= 60; k += 10)
    ASSERT_EQ(consequences<TypeParam>(*this->on, k, always, 0, made), "") << "from call " << k << " on";
  for (k = 2; k <= 20; ++k)
    ASSERT_EQ(consequences<TypeParam>(*this->on, 1, 0, k, made), "") << "with every call " << k << " failing";
}

TEST_F(opencl_provider, serves_several_threads) {
  device_type device(queue(0));
  for (std::size_t i = 1; i < on->queues.size(); ++i) (void)device.add_queue(queue(i));
  concurrent::locked<caching_allocator<recipe::cuda_async, provider::provider_ref<device_type>>> pool{
      provider::provider_ref(device)};
  std::vector<std::thread> threads;
  const std::vector<stream_id> all = streams();
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 300; ++i) {
        void* const p = pool.allocate((i % 5 + 1) * 300_KiB, all[(i + t) % all.size()]);
        if (i % 3 == 0 && !pool.record_stream(p, all[i % all.size()])) ADD_FAILURE() << device.last_error();
        pool.deallocate(p);
        if (i % 100 == 99) pool.trim();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  pool.trim();
  EXPECT_STREQ(pool.audit(), nullptr);
  EXPECT_EQ(device.available(), device.capacity());
}

}  // namespace
