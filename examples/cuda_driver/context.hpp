// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "driver.hpp"

namespace cuda_driver {

/// Holds a device, its primary context, which CUDA's runtime also uses, and the latest error.
class primary_context {
 public:
  ///   Throws:  driver_error if there is no such device or it cannot be used
  primary_context(std::shared_ptr<const driver> library, int number) : calls_(std::move(library)) {
    calls_->check(calls_->device_get(&device_, number), "cuDeviceGet");
    calls_->check(calls_->primary_context_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
  }
  primary_context(const primary_context&) = delete;
  primary_context& operator=(const primary_context&) = delete;
  ~primary_context() { (void)calls_->primary_context_release(device_); }

  [[nodiscard]] const driver& calls() const noexcept { return *calls_; }
  [[nodiscard]] device_number device() const noexcept { return device_; }
  [[nodiscard]] context_handle handle() const noexcept { return context_; }

  /// Returns whether a call succeeded, and records its error if not.
  bool succeeded(const char* call, result r) const noexcept {
    if (r == success) return true;
    const std::lock_guard lock(mutex_);
    failed_call_ = call;
    error_ = r;
    return false;
  }
  /// The latest error, for example "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY: out of memory"; empty if no call failed.
  [[nodiscard]] std::string last_error() const {
    const std::lock_guard lock(mutex_);
    return failed_call_ != nullptr ? std::string(failed_call_) + ": " + calls_->describe(error_)
                                   : std::string();
  }

 private:
  std::shared_ptr<const driver> calls_;
  device_number device_ = 0;
  context_handle context_ = nullptr;
  mutable std::mutex mutex_;
  mutable const char* failed_call_ = nullptr;
  mutable result error_ = success;
};

/// Makes a context current in the calling thread, and restores the previous one in its destructor. It is false if that fails;
/// the caller must then not call the driver.
class context_guard {
 public:
  explicit context_guard(const primary_context& context) noexcept : calls_(context.calls()) {
    if (!context.succeeded("cuCtxGetCurrent", calls_.context_get_current(&previous_))) return;
    is_current_ = previous_ == context.handle();
    if (is_current_) return;
    changed_ = is_current_ =
        context.succeeded("cuCtxSetCurrent", calls_.context_set_current(context.handle()));
  }
  context_guard(const context_guard&) = delete;
  context_guard& operator=(const context_guard&) = delete;
  ~context_guard() {
    if (changed_) (void)calls_.context_set_current(previous_);
  }
  [[nodiscard]] explicit operator bool() const noexcept { return is_current_; }

 private:
  const driver& calls_;
  context_handle previous_ = nullptr;
  bool is_current_ = false;
  bool changed_ = false;
};

/// Lets the calling thread make calls that a capture of a graph forbids, such as cuMemAlloc. The destructor restores the
/// thread's mode. The calls must not depend on the work of captured streams.
class relaxed_capture_guard {
 public:
  explicit relaxed_capture_guard(const driver& calls) noexcept : calls_(calls) { exchange(); }
  relaxed_capture_guard(const relaxed_capture_guard&) = delete;
  relaxed_capture_guard& operator=(const relaxed_capture_guard&) = delete;
  ~relaxed_capture_guard() { exchange(); }

 private:
  void exchange() noexcept {
    if (calls_.exchange_capture_mode != nullptr) (void)calls_.exchange_capture_mode(&mode_);
  }

  const driver& calls_;
  int mode_ = relaxed_capture;
};

}  // namespace cuda_driver
