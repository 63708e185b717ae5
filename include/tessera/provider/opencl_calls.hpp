// SPDX-License-Identifier: Apache-2.0
#pragma once

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

#include <tessera/core/error.hpp>

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

#endif
