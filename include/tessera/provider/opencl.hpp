// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <tessera/core/bytes.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/types.hpp>
#include <tessera/provider/capabilities.hpp>
#include <tessera/provider/latest_refusals.hpp>
#include <tessera/provider/opencl_calls.hpp>
#include <tessera/provider/opencl_queues.hpp>
#include <tessera/provider/provider.hpp>

/// Memory of OpenCL 2.0 and later: opencl_device. Without OpenCL's headers, this header declares only names.

namespace tessera::inline v0_1::provider {

/// How the host accesses shared virtual memory: after clEnqueueSVMMap, or directly.
enum class opencl_grain : bool { coarse, fine };

}  // namespace tessera::inline v0_1::provider

#if defined(CL_VERSION_2_0)

namespace tessera::inline v0_1::provider {

/// Provides shared virtual memory of an OpenCL device. A kernel gets a block by clSetKernelArgSVMPointer. Each stream is
/// an in-order command queue, which the program makes and adds. Link the program with the OpenCL library.
///
/// The host must map a block of coarse-grained memory before it reads or writes it. It accesses fine-grained memory
/// directly, but not every device has such memory. It is thread-safe.
template <opencl_grain Grain = opencl_grain::coarse>
class opencl_device {
 public:
  static constexpr bool is_thread_safe = true;
  static constexpr bool is_host_visible = Grain == opencl_grain::fine;
  static constexpr bool release_waits = false;  // clSVMFree does not
  static constexpr bool completion_may_lag =
      true;  // if a call fails, or 64 positions of a queue are not complete
  using event = detail::opencl::command_queues::event;

  /// The default stream is `default_queue`. Its context and device are used.
  ///   Throws:  opencl_error if the queue runs work out of order, or the device has no such memory
  explicit opencl_device(cl_command_queue default_queue) : state_(std::make_unique<state>(default_queue)) {}

  /// Makes a queue a stream. Its handle is the number of the stream, and the provider keeps a reference. A queue that is a stream
  /// already stays as it is.
  ///   Throws:  opencl_error if it runs work out of order, or belongs to another device or context
  stream_id add_queue(cl_command_queue queue) {
    state_->check_queue(queue);
    if (queue == state_->default_queue) return {};
    const stream_id stream(queue);
    state_->queues.add(stream, queue);
    return stream;
  }
  /// Waits for the work of a stream and gives up the queue. Returns false for the default stream, or if waiting fails.
  ///   Requires:  no other call uses the stream
  bool remove_queue(stream_id stream) noexcept { return state_->queues.remove(stream); }
  [[nodiscard]] bool has_stream(stream_id stream) const noexcept { return state_->queues.has(stream); }
  /// As has_stream. Without the stream, last_error() says so.
  [[nodiscard]] bool expects(stream_id stream) noexcept { return state_->queues.expects(stream); }

  [[nodiscard]] std::size_t capacity() const noexcept { return state_->capacity; }
  /// clSVMAlloc aligns to the largest type of OpenCL C, long16, and to no more.
  [[nodiscard]] std::size_t granularity() const noexcept { return sizeof(cl_long16); }
  /// OpenCL does not tell what other programs use, so this is the capacity minus the segments of this provider.
  [[nodiscard]] std::size_t available() const noexcept {
    const std::lock_guard lock(state_->mutex);
    return state_->capacity - state_->taken;
  }

  [[nodiscard]] void* acquire(std::size_t bytes) noexcept {
    state& s = *state_;
    if (!s.count(bytes)) return nullptr;
    void* const p = clSVMAlloc(s.context.get(), flags, bytes, 0);
    if (p == nullptr) {
      s.errors.add("clSVMAlloc returned null");
      s.refused.note(refusal("clSVMAlloc returned null"));
    } else if (s.add(p, bytes)) {
      return p;
    } else {
      clSVMFree(s.context.get(), p);
    }
    s.uncount(bytes);
    return nullptr;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    state& s = *state_;
    if (!s.remove(p, bytes)) return false;
    clSVMFree(s.context.get(), p);
    s.uncount(bytes);
    return true;
  }

  bool record(stream_id stream, event& mark) noexcept { return state_->queues.record(stream, mark); }
  [[nodiscard]] bool query(event& mark) noexcept { return state_->queues.query(mark); }
  bool wait(event& mark) noexcept { return state_->queues.wait(mark); }
  void discard(event& mark) noexcept {
    state_->queues.release(mark.handle);
    mark = {};
  }

  /// Enqueues a marker, because OpenCL does not number the work of a queue.
  [[nodiscard]] std::uint64_t position(stream_id stream) noexcept { return state_->queues.position(stream); }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t at) noexcept {
    return state_->queues.is_done(stream, at);
  }
  /// Knows only the waits that make_wait enqueued.
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id of, std::uint64_t at) const noexcept {
    return state_->queues.is_ordered_after(stream, of, at);
  }
  bool make_wait(stream_id stream, stream_id of, std::uint64_t at) noexcept {
    return state_->queues.make_wait(stream, of, at);
  }

  bool copy_to_host(void* to, const void* from, std::size_t bytes, stream_id stream) noexcept {
    return state_->has(from, bytes) && state_->queues.copy(to, from, bytes, stream);
  }
  bool copy_to_device(void* to, const void* from, std::size_t bytes, stream_id stream) noexcept {
    return state_->has(to, bytes) && state_->queues.copy(to, from, bytes, stream);
  }

  /// The latest error; empty if no call failed.
  [[nodiscard]] std::string last_error() const { return state_->errors.text(); }
  refusal take_refusal() noexcept { return state_->refused.take(); }

 private:
  static constexpr cl_svm_mem_flags flags =
      CL_MEM_READ_WRITE | (Grain == opencl_grain::fine ? CL_MEM_SVM_FINE_GRAIN_BUFFER : 0);

  struct state {
    explicit state(cl_command_queue queue)
        : default_queue(queue),
          device(of_queue<cl_device_id>(queue, CL_QUEUE_DEVICE)),
          context(retain(errors, of_queue<cl_context>(queue, CL_QUEUE_CONTEXT))) {
      if (context == nullptr) detail::raise(opencl_error(errors.text()));
      check_queue(queue);
      const auto kinds = of_device<cl_device_svm_capabilities>(CL_DEVICE_SVM_CAPABILITIES);
      constexpr auto needed =
          Grain == opencl_grain::fine ? CL_DEVICE_SVM_FINE_GRAIN_BUFFER : CL_DEVICE_SVM_COARSE_GRAIN_BUFFER;
      if ((kinds & needed) == 0) errors.refuse("the device has no shared virtual memory of this kind");
      capacity = static_cast<std::size_t>(of_device<cl_ulong>(CL_DEVICE_GLOBAL_MEM_SIZE));
      max_segment = static_cast<std::size_t>(of_device<cl_ulong>(CL_DEVICE_MAX_MEM_ALLOC_SIZE));
    }

    template <typename T>
    [[nodiscard]] T of_queue(cl_command_queue queue, cl_command_queue_info name) {
      T value{};
      errors.throw_unless("clGetCommandQueueInfo",
                          clGetCommandQueueInfo(queue, name, sizeof value, &value, nullptr));
      return value;
    }
    template <typename T>
    [[nodiscard]] T of_device(cl_device_info name) {
      T value{};
      errors.throw_unless("clGetDeviceInfo", clGetDeviceInfo(device, name, sizeof value, &value, nullptr));
      return value;
    }
    void check_queue(cl_command_queue queue) {
      if (of_queue<cl_context>(queue, CL_QUEUE_CONTEXT) != context.get() ||
          of_queue<cl_device_id>(queue, CL_QUEUE_DEVICE) != device)
        errors.refuse("the queue belongs to another context or device");
      const auto how = of_queue<cl_command_queue_properties>(queue, CL_QUEUE_PROPERTIES);
      if ((how & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) != 0)
        errors.refuse("the queue runs work out of order; the work of a stream runs in order");
    }

    /// Counts a segment, if the device may have it.
    [[nodiscard]] bool count(std::size_t bytes) noexcept {
      if (bytes > max_segment) {
        errors.add("a segment has more bytes than CL_DEVICE_MAX_MEM_ALLOC_SIZE");
        refused.note(refusal::format("a segment of %zu bytes exceeds CL_DEVICE_MAX_MEM_ALLOC_SIZE, %zu",
                                     bytes, max_segment));
        return false;
      }
      const std::lock_guard lock(mutex);
      const bool fits = bytes <= capacity - taken;
      if (fits) {
        taken += bytes;
      } else {
        errors.add("the segments would exceed CL_DEVICE_GLOBAL_MEM_SIZE");
        refused.note(refusal::format("the segments would exceed CL_DEVICE_GLOBAL_MEM_SIZE, %zu", capacity));
      }
      return fits;
    }
    void uncount(std::size_t bytes) noexcept {
      const std::lock_guard lock(mutex);
      taken -= bytes;
    }
    [[nodiscard]] bool add(void* p, std::size_t bytes) noexcept {
      const std::lock_guard lock(mutex);
      if (detail::try_run([&] { segments.emplace(reinterpret_cast<std::uintptr_t>(p), bytes); })) return true;
      errors.add("host memory ran out");
      refused.note(refusal("host memory ran out"));
      return false;
    }
    [[nodiscard]] bool remove(void* p, std::size_t bytes) noexcept {
      const std::lock_guard lock(mutex);
      const auto found = segments.find(reinterpret_cast<std::uintptr_t>(p));
      const bool is_whole = found != segments.end() && found->second == bytes;
      if (is_whole) {
        segments.erase(found);
      } else {
        errors.add("release: this is no segment of the device");
      }
      return is_whole;
    }
    /// Whether a segment contains all these bytes.
    [[nodiscard]] bool has(const void* p, std::size_t bytes) noexcept {
      const std::lock_guard lock(mutex);
      const auto at = reinterpret_cast<std::uintptr_t>(p);
      auto found = segments.upper_bound(at);
      if (found != segments.begin()) {
        --found;
        const std::size_t offset = at - found->first;
        if (offset <= found->second && bytes <= found->second - offset) return true;
      }
      errors.add("a copy is outside the segments of the device");
      return false;
    }

    detail::opencl::call_errors errors;
    latest_refusals refused;
    cl_command_queue default_queue;
    cl_device_id device;
    detail::opencl::owned<cl_context> context;
    detail::opencl::command_queues queues{errors, default_queue};
    std::mutex mutex;  // protects the members below
    std::map<std::uintptr_t, std::size_t> segments;
    std::size_t taken = 0;
    std::size_t capacity = 0, max_segment = 0;
  };

  std::unique_ptr<state> state_;
};
static_assert(ordering_provider<opencl_device<>> && copying_provider<opencl_device<>> &&
              ordering_provider<opencl_device<opencl_grain::fine>>);

}  // namespace tessera::inline v0_1::provider

#else

namespace tessera::inline v0_1::provider {

/// OpenCL's headers, of version 2.0 or later, are not in the include path.
template <opencl_grain Grain = opencl_grain::coarse>
class opencl_device;
/// OpenCL's headers, of version 2.0 or later, are not in the include path.
struct opencl_error;

}  // namespace tessera::inline v0_1::provider

#endif
