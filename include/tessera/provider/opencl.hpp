// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>

#if __has_include(<CL/cl.h>)
// Shared virtual memory exists since OpenCL 2.0.
#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 200
#endif
#include <CL/cl.h>
#endif

#include <tessera/core/bytes.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/types.hpp>
#include <tessera/provider/capabilities.hpp>
#include <tessera/provider/latest_refusals.hpp>
#include <tessera/provider/marked_positions.hpp>
#include <tessera/provider/provider.hpp>

/// Memory of OpenCL 2.0 and later: opencl_device. Without OpenCL's headers, this header declares only names.

namespace tessera::inline v0_1::provider {

/// How the host accesses shared virtual memory: after clEnqueueSVMMap, or directly.
enum class opencl_grain : bool { coarse, fine };

}  // namespace tessera::inline v0_1::provider

#if defined(CL_VERSION_2_0)

namespace tessera::inline v0_1::provider {

/// A call of OpenCL failed, or a queue cannot be a stream.
struct opencl_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace tessera::inline v0_1::provider

namespace tessera::inline v0_1::detail::opencl {

/// The latest error of the calls of a provider. Thread-safe.
class call_errors {
 public:
  /// Returns whether a call succeeded, and keeps its error if not.
  bool succeeded(const char* call, cl_int code) noexcept {
    if (code != CL_SUCCESS) add(call, code);
    return code == CL_SUCCESS;
  }
  /// Keeps an error. Without a code, the text says all.
  void add(const char* text, cl_int code = CL_SUCCESS) noexcept {
    const std::lock_guard lock(mutex_);
    text_ = text;
    code_ = code;
  }
  ///   Throws:  opencl_error if a call failed
  void throw_unless(const char* call, cl_int code) {
    if (!succeeded(call, code)) raise(provider::opencl_error(text()));
  }
  ///   Throws:  opencl_error
  [[noreturn]] void refuse(const char* why) {
    add(why);
    raise(provider::opencl_error(why));
  }
  /// For example "clFlush: CL_OUT_OF_RESOURCES (-5)"; empty if no call failed.
  [[nodiscard]] std::string text() const {
    const std::lock_guard lock(mutex_);
    if (code_ == CL_SUCCESS) return text_;
    return std::string(text_) + ": " + name_of(code_) + " (" + std::to_string(code_) + ")";
  }

 private:
  [[nodiscard]] static const char* name_of(cl_int code) noexcept {
    switch (code) {
      case CL_DEVICE_NOT_AVAILABLE: return "CL_DEVICE_NOT_AVAILABLE";
      case CL_MEM_OBJECT_ALLOCATION_FAILURE: return "CL_MEM_OBJECT_ALLOCATION_FAILURE";
      case CL_OUT_OF_RESOURCES: return "CL_OUT_OF_RESOURCES";
      case CL_OUT_OF_HOST_MEMORY: return "CL_OUT_OF_HOST_MEMORY";
      case CL_MEM_COPY_OVERLAP: return "CL_MEM_COPY_OVERLAP";
      case CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST:
        return "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST";
      case CL_INVALID_VALUE: return "CL_INVALID_VALUE";
      case CL_INVALID_DEVICE: return "CL_INVALID_DEVICE";
      case CL_INVALID_CONTEXT: return "CL_INVALID_CONTEXT";
      case CL_INVALID_COMMAND_QUEUE: return "CL_INVALID_COMMAND_QUEUE";
      case CL_INVALID_EVENT: return "CL_INVALID_EVENT";
      case CL_INVALID_OPERATION: return "CL_INVALID_OPERATION";
      default: return "error";
    }
  }

  mutable std::mutex mutex_;
  const char* text_ = "";
  cl_int code_ = CL_SUCCESS;
};

struct releaser {
  void operator()(cl_context held) const noexcept { (void)clReleaseContext(held); }
  void operator()(cl_command_queue held) const noexcept { (void)clReleaseCommandQueue(held); }
};
/// Owns a reference to an object of OpenCL.
template <typename Handle>
using owned = std::unique_ptr<std::remove_pointer_t<Handle>, releaser>;

/// Adds a reference. The result is empty if that fails.
[[nodiscard]] inline owned<cl_command_queue> retain(call_errors& errors, cl_command_queue queue) noexcept {
  const bool works = errors.succeeded("clRetainCommandQueue", clRetainCommandQueue(queue));
  return owned<cl_command_queue>(works ? queue : nullptr);
}
[[nodiscard]] inline owned<cl_context> retain(call_errors& errors, cl_context context) noexcept {
  const bool works = errors.succeeded("clRetainContext", clRetainContext(context));
  return owned<cl_context>(works ? context : nullptr);
}

}  // namespace tessera::inline v0_1::detail::opencl

namespace tessera::inline v0_1::detail::opencl {

/// The queues that a device knows as streams, with events and positions on them. Thread-safe. OpenCL does not number the work
/// of a queue, so a position is a marker.
class command_queues {
 public:
  struct event {
    cl_event handle = nullptr;
    stream_id stream{};
    std::uint64_t position = 0;
  };

  command_queues(call_errors& errors, cl_command_queue default_queue) : errors_(errors) {
    add({}, default_queue);
  }
  command_queues(const command_queues&) = delete;
  command_queues& operator=(const command_queues&) = delete;

  void add(stream_id stream, cl_command_queue handle) {
    const std::lock_guard lock(mutex_);
    const auto [at, is_new] = queues_.try_emplace(stream);
    if (!is_new) return;
    at->second = retain(errors_, handle);
    if (at->second != nullptr) return;
    queues_.erase(at);
    raise(provider::opencl_error(errors_.text()));
  }
  /// Finishes the work of a queue and forgets it.
  bool remove(stream_id stream) noexcept {
    if (stream == stream_id{} || !exists(stream) || !finish(stream)) return false;
    const std::lock_guard lock(mutex_);
    return queues_.erase(stream) == 1;
  }
  [[nodiscard]] bool exists(stream_id stream) const noexcept {
    const std::lock_guard lock(mutex_);
    return queues_.contains(stream);
  }
  [[nodiscard]] bool expects(stream_id stream) noexcept {
    const std::lock_guard lock(mutex_);
    return find(stream) != nullptr;
  }

  bool record(stream_id stream, event& made) noexcept {
    cl_event handle = nullptr;
    if (!mark(stream, handle)) return false;
    made = {handle, stream, positions_.take_next()};
    return true;
  }
  [[nodiscard]] bool query(const event& of) noexcept {
    return is_complete(of.handle) || !exists(of.stream) || positions_.was_done(of.stream, of.position);
  }
  /// Waits for the whole queue if work failed, because a failed marker does not wait for the work before it.
  bool wait(const event& of) noexcept {
    return errors_.succeeded("clWaitForEvents", clWaitForEvents(1, &of.handle)) || finish(of.stream);
  }

  [[nodiscard]] std::uint64_t position(stream_id stream) noexcept {
    return expects(stream) ? positions_.position(stream) : 0;
  }
  [[nodiscard]] bool is_done(stream_id stream, std::uint64_t at) noexcept {
    return !exists(stream) || positions_.is_done(stream, at);
  }
  [[nodiscard]] bool is_ordered_after(stream_id stream, stream_id of, std::uint64_t at) const noexcept {
    return !exists(of) || positions_.is_ordered_after(stream, of, at);
  }
  bool make_wait(stream_id stream, stream_id of, std::uint64_t at) noexcept {
    return expects(stream) && (!exists(of) || positions_.make_wait(stream, of, at));
  }

  bool copy(void* to, const void* from, std::size_t bytes, stream_id stream) noexcept {
    const std::lock_guard lock(mutex_);
    cl_command_queue queue = find(stream);
    return queue != nullptr &&
           errors_.succeeded("clEnqueueSVMMemcpy",
                             clEnqueueSVMMemcpy(queue, CL_FALSE, to, from, bytes, 0, nullptr, nullptr));
  }

  // For the positions.
  /// Enqueues a marker. It flushes the queue, because otherwise the work before the marker might never begin.
  [[nodiscard]] bool mark(stream_id stream, cl_event& made) noexcept {
    const std::lock_guard lock(mutex_);
    cl_command_queue queue = find(stream);
    cl_event handle = nullptr;
    if (queue == nullptr || !errors_.succeeded("clEnqueueMarkerWithWaitList",
                                               clEnqueueMarkerWithWaitList(queue, 0, nullptr, &handle)))
      return false;
    if (errors_.succeeded("clFlush", clFlush(queue))) {
      made = handle;
      return true;
    }
    destroy(handle);
    return false;
  }
  [[nodiscard]] bool is_complete(cl_event handle) noexcept {
    cl_int status = CL_QUEUED;
    return errors_.succeeded("clGetEventInfo", clGetEventInfo(handle, CL_EVENT_COMMAND_EXECUTION_STATUS,
                                                              sizeof status, &status, nullptr)) &&
           (status >= CL_COMPLETE || errors_.succeeded("the work before an event", status)) &&
           status == CL_COMPLETE;
  }
  void destroy(cl_event handle) noexcept {
    if (handle != nullptr) (void)errors_.succeeded("clReleaseEvent", clReleaseEvent(handle));
  }
  [[nodiscard]] bool await(stream_id stream, cl_event until) noexcept {
    const std::lock_guard lock(mutex_);
    cl_command_queue queue = find(stream);
    return queue != nullptr && errors_.succeeded("clEnqueueBarrierWithWaitList",
                                                 clEnqueueBarrierWithWaitList(queue, 1, &until, nullptr));
  }

 private:
  /// The queue of a stream; null, and an error, if there is none.
  [[nodiscard]] cl_command_queue find(stream_id stream) noexcept {
    const auto found = queues_.find(stream);
    if (found != queues_.end()) return found->second.get();
    errors_.add("a queue was not added to the device");
    return nullptr;
  }
  /// Waits until all work of a queue has ended, even if it failed. A queue that was removed has no work.
  bool finish(stream_id stream) noexcept {
    const std::uint64_t until = positions_.latest();
    owned<cl_command_queue> used;
    {
      const std::lock_guard lock(mutex_);
      const auto found = queues_.find(stream);
      if (found == queues_.end()) return true;
      used = retain(errors_, found->second.get());
    }
    if (used == nullptr || !errors_.succeeded("clFinish", clFinish(used.get()))) return false;
    positions_.note_done(stream, until);
    return true;
  }

  call_errors& errors_;
  mutable std::mutex mutex_;  // of the queues
  std::map<stream_id, owned<cl_command_queue>> queues_;
  marked_positions<command_queues, cl_event> positions_{*this};
};

}  // namespace tessera::inline v0_1::detail::opencl

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
  [[nodiscard]] bool has_stream(stream_id stream) const noexcept { return state_->queues.exists(stream); }
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
      s.refuse_memory("clSVMAlloc returned null", refusal("clSVMAlloc returned null"));
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
    state_->queues.destroy(mark.handle);
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

  struct segment {
    std::size_t bytes;
  };
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
      if (bytes > max_segment)
        return refuse_memory(
            "a segment has more bytes than CL_DEVICE_MAX_MEM_ALLOC_SIZE",
            refusal::format("a segment of %zu bytes exceeds CL_DEVICE_MAX_MEM_ALLOC_SIZE, %zu", bytes,
                            max_segment));
      const std::lock_guard lock(mutex);
      if (bytes > capacity - taken)
        return refuse_memory(
            "the segments would exceed CL_DEVICE_GLOBAL_MEM_SIZE",
            refusal::format("the segments would exceed CL_DEVICE_GLOBAL_MEM_SIZE, %zu", capacity));
      taken += bytes;
      return true;
    }
    /// Keeps an error, and why a call for memory failed. Returns false.
    bool refuse_memory(const char* error, const refusal& why) noexcept {
      errors.add(error);
      refused.note(why);
      return false;
    }
    void uncount(std::size_t bytes) noexcept {
      const std::lock_guard lock(mutex);
      taken -= bytes;
    }
    [[nodiscard]] bool add(void* p, std::size_t bytes) noexcept {
      const std::lock_guard lock(mutex);
      return segments.insert(p, {bytes}) ||
             refuse_memory("host memory ran out", refusal("host memory ran out"));
    }
    [[nodiscard]] bool remove(void* p, std::size_t bytes) noexcept {
      const std::lock_guard lock(mutex);
      const segment* const found = segments.find(p);
      if (found == nullptr || found->bytes != bytes) {
        errors.add("release: this is no segment of the device");
        return false;
      }
      (void)segments.extract(p);
      return true;
    }
    /// Whether a segment contains all these bytes.
    [[nodiscard]] bool has(const void* p, std::size_t bytes) noexcept {
      const std::lock_guard lock(mutex);
      if (segments.around(p, bytes) != nullptr) return true;
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
    detail::range_map<segment> segments;
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
