// SPDX-License-Identifier: Apache-2.0
// One queue fills blocks, another queue reads them, and the kernels of the two overlap. The allocator must not reuse a block
// before the second queue has read it: record_stream tells it who reads. The program checks every result.
//
// With the argument `without-streams`, the recipe ignores streams. Blocks are then overwritten too early, and the check fails.
// Exits with 77 if there is no OpenCL device.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <tessera/provider/opencl.hpp>
#include <tessera/tessera.hpp>

#include "pool.hpp"

using namespace tessera::literals;
using tessera::provider::opencl_error;
using device_type = tessera::provider::opencl_device<>;

constexpr const char* source = R"(
kernel void fill(global uint* out, uint first) { out[get_global_id(0)] = first + (uint)get_global_id(0); }
kernel void twice(global const uint* in, global uint* out) { out[get_global_id(0)] = 2 * in[get_global_id(0)]; }
)";
constexpr std::size_t numbers = 1 << 18, block_bytes = numbers * sizeof(std::uint32_t);
constexpr std::uint32_t rounds = 16;

void check(const char* call, cl_int code) {
  if (code != CL_SUCCESS) throw opencl_error(std::string(call) + " failed with " + std::to_string(code));
}

struct releaser {
  void operator()(cl_context held) const { (void)clReleaseContext(held); }
  void operator()(cl_command_queue held) const { (void)clReleaseCommandQueue(held); }
  void operator()(cl_program held) const { (void)clReleaseProgram(held); }
  void operator()(cl_kernel held) const { (void)clReleaseKernel(held); }
  void operator()(cl_event held) const { (void)clReleaseEvent(held); }
};
template <typename Handle>
using owned = std::unique_ptr<std::remove_pointer_t<Handle>, releaser>;

/// The objects that every OpenCL program makes, for the first device that exists.
struct opencl_objects {
  cl_device_id device = nullptr;
  owned<cl_context> context;
  owned<cl_command_queue> filling, reading;
  owned<cl_program> program;
  owned<cl_kernel> fill, twice;

  /// Returns whether there is a device.
  bool find_device() {
    cl_platform_id platforms[8]{};
    cl_uint count = 0;
    if (clGetPlatformIDs(8, platforms, &count) != CL_SUCCESS) return false;
    for (cl_uint i = 0; i < std::min<cl_uint>(count, 8); ++i) {
      if (clGetDeviceIDs(platforms[i], CL_DEVICE_TYPE_ALL, 1, &device, nullptr) == CL_SUCCESS) return true;
    }
    return false;
  }
  void create() {
    cl_int code = CL_SUCCESS;
    context.reset(clCreateContext(nullptr, 1, &device, nullptr, nullptr, &code));
    check("clCreateContext", code);
    const cl_queue_properties timed[] = {CL_QUEUE_PROPERTIES, CL_QUEUE_PROFILING_ENABLE, 0};
    for (auto* const queue : {&filling, &reading}) {
      queue->reset(clCreateCommandQueueWithProperties(context.get(), device, timed, &code));
      check("clCreateCommandQueueWithProperties", code);
    }
    const char* text = source;
    program.reset(clCreateProgramWithSource(context.get(), 1, &text, nullptr, &code));
    check("clCreateProgramWithSource", code);
    check("clBuildProgram", clBuildProgram(program.get(), 1, &device, "", nullptr, nullptr));
    fill.reset(clCreateKernel(program.get(), "fill", &code));
    check("clCreateKernel", code);
    twice.reset(clCreateKernel(program.get(), "twice", &code));
    check("clCreateKernel", code);
  }
};

/// Runs a kernel whose arguments are set. Returns its event.
owned<cl_event> run(cl_command_queue queue, cl_kernel kernel) {
  cl_event event = nullptr;
  check("clEnqueueNDRangeKernel",
        clEnqueueNDRangeKernel(queue, kernel, 1, nullptr, &numbers, nullptr, 0, nullptr, &event));
  check("clFlush", clFlush(queue));
  return owned<cl_event>(event);
}
/// The time at which a kernel began or ended, in nanoseconds.
cl_ulong time_of(const owned<cl_event>& kernel, cl_profiling_info what) {
  cl_ulong ns = 0;
  check("clGetEventProfilingInfo", clGetEventProfilingInfo(kernel.get(), what, sizeof ns, &ns, nullptr));
  return ns;
}

/// Holds a queue back until open().
class gate {
 public:
  gate(cl_context context, cl_command_queue queue, bool holds) {
    if (!holds) return;
    cl_int code = CL_SUCCESS;
    event_.reset(clCreateUserEvent(context, &code));
    check("clCreateUserEvent", code);
    cl_event const opened = event_.get();
    check("clEnqueueBarrierWithWaitList", clEnqueueBarrierWithWaitList(queue, 1, &opened, nullptr));
  }
  ~gate() { open(); }  // the allocator would wait for a queue that is held back
  void open() {
    if (event_ != nullptr) (void)clSetUserEventStatus(event_.get(), CL_COMPLETE);
    event_.reset();
  }

 private:
  owned<cl_event> event_;
};

struct outcome {
  std::size_t wrong = 0;       // results
  std::size_t overlapped = 0;  // kernels of the second queue that ran while a kernel of the first ran
  std::size_t reserved = 0;    // bytes
};

/// Copies the results to the host and returns how many are wrong.
std::size_t wrong_among(const std::vector<void*>& results, const opencl_objects& on, device_type& device,
                        tessera::stream_id reading) {
  std::size_t wrong = 0;
  std::vector<std::uint32_t> host(numbers);
  for (std::uint32_t round = 0; round < results.size(); ++round) {
    if (!device.copy_to_host(host.data(), results[round], block_bytes, reading))
      throw opencl_error(device.last_error());
    check("clFinish", clFinish(on.reading.get()));
    bool is_right = true;
    for (std::uint32_t i = 0; i < numbers; ++i) is_right = is_right && host[i] == 2 * (round + i);
    if (!is_right) ++wrong;
  }
  return wrong;
}
/// Returns how many kernels ran while one of the others ran.
std::size_t overlapping(const std::vector<owned<cl_event>>& others,
                        const std::vector<owned<cl_event>>& kernels) {
  const auto overlaps = [&others](const owned<cl_event>& kernel) {
    const cl_ulong begin = time_of(kernel, CL_PROFILING_COMMAND_START);
    const cl_ulong end = time_of(kernel, CL_PROFILING_COMMAND_END);
    return std::any_of(others.begin(), others.end(), [begin, end](const auto& other) {
      return time_of(other, CL_PROFILING_COMMAND_START) < end &&
             begin < time_of(other, CL_PROFILING_COMMAND_END);
    });
  };
  return static_cast<std::size_t>(std::count_if(kernels.begin(), kernels.end(), overlaps));
}

/// Fills blocks on one queue and reads them on the other. With `holds`, the second queue begins when the first has finished.
/// A block that is reused too early is then overwritten before it is read.
template <typename Recipe>
outcome fill_and_read(const opencl_objects& on, device_type& device, tessera::stream_id reading, bool holds) {
  constexpr tessera::stream_id filling{};
  opencl::pool<Recipe> pool(device);
  gate held(on.context.get(), on.reading.get(), holds);
  std::vector<void*> results(rounds);
  for (void*& result : results) result = pool.allocate(block_bytes, reading);
  std::vector<owned<cl_event>> filled, read;
  for (std::uint32_t round = 0; round < rounds; ++round) {
    void* const block = pool.allocate(block_bytes, filling);
    check("clSetKernelArgSVMPointer", clSetKernelArgSVMPointer(on.fill.get(), 0, block));
    check("clSetKernelArg", clSetKernelArg(on.fill.get(), 1, sizeof round, &round));
    filled.push_back(run(on.filling.get(), on.fill.get()));

    cl_event const waits_for = filled.back().get();
    check("clEnqueueBarrierWithWaitList",
          clEnqueueBarrierWithWaitList(on.reading.get(), 1, &waits_for, nullptr));
    check("clSetKernelArgSVMPointer", clSetKernelArgSVMPointer(on.twice.get(), 0, block));
    check("clSetKernelArgSVMPointer", clSetKernelArgSVMPointer(on.twice.get(), 1, results[round]));
    read.push_back(run(on.reading.get(), on.twice.get()));

    if (!pool.record_stream(block, reading)) throw opencl_error(device.last_error());
    pool.deallocate(block);  // the host does not wait for either kernel
  }
  check("clFinish", clFinish(on.filling.get()));
  held.open();
  check("clFinish", clFinish(on.reading.get()));

  const outcome found{.wrong = wrong_among(results, on, device, reading),
                      .overlapped = overlapping(filled, read),
                      .reserved = pool.current_usage().reserved};
  for (void* const result : results) pool.deallocate(result);
  return found;
}

/// Returns whether all results are right.
template <typename Recipe>
bool runs_correctly(const opencl_objects& on, device_type& device, tessera::stream_id reading) {
  bool good = true;
  for (const bool holds : {false, true}) {
    const outcome found = fill_and_read<Recipe>(on, device, reading, holds);
    std::printf("%s: %zu of %u results are wrong; %zu kernels overlapped; %zu MiB reserved\n",
                holds ? "the second queue is held back" : "both queues run", found.wrong, rounds,
                found.overlapped, found.reserved >> 20);
    good = good && found.wrong == 0;
  }
  return good;
}

int main(int count, char** arguments) {
  opencl_objects on;
  if (!on.find_device()) {
    std::puts("there is no OpenCL device");
    return 77;
  }
  try {
    on.create();
    device_type device(on.filling.get());
    const tessera::stream_id reading = device.add_queue(on.reading.get());
    const bool ignores_streams = count > 1 && std::string_view(arguments[1]) == "without-streams";
    using without_streams =
        tessera::recipe::with<tessera::recipe::pytorch<>, tessera::policy::reuse_immediately>;
    const bool good = ignores_streams ? runs_correctly<without_streams>(on, device, reading)
                                      : runs_correctly<tessera::recipe::pytorch<>>(on, device, reading);
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
