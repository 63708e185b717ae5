// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "driver.hpp"

namespace cuda_driver {

/// A device and its primary context, which CUDA's runtime works in too, and what went wrong there.
class primary_context {
 public:
  ///   Throws:  driver_error where there is no such device, or it cannot be used
  primary_context(std::shared_ptr<const driver> through, int number) : calls_(std::move(through)) {
    calls_->check(calls_->device_get(&device_, number), "cuDeviceGet");
    calls_->check(calls_->primary_context_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
  }
  primary_context(const primary_context&) = delete;
  primary_context& operator=(const primary_context&) = delete;
  ~primary_context() { (void)calls_->primary_context_release(device_); }

  [[nodiscard]] const driver& calls() const noexcept { return *calls_; }
  [[nodiscard]] device_number device() const noexcept { return device_; }
  [[nodiscard]] context_handle handle() const noexcept { return context_; }

  /// Whether a call worked; else remembers it, in words only when they are asked for.
  bool worked(const char* call, result r) const noexcept {
    if (r == success) return true;
    const std::lock_guard lock(mutex_);
    failed_ = call;
    why_ = r;
    return false;
  }
  /// Why the latest call failed that did, as "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY: out of memory"; empty if none has.
  [[nodiscard]] std::string last_error() const {
    const std::lock_guard lock(mutex_);
    return failed_ != nullptr ? std::string(failed_) + ": " + calls_->words(why_) : std::string();
  }

 private:
  std::shared_ptr<const driver> calls_;
  device_number device_ = 0;
  context_handle context_ = nullptr;
  mutable std::mutex mutex_;
  mutable const char* failed_ = nullptr;
  mutable result why_ = success;
};

/// Has the calling thread work in a context as long as it lives, and then in the one before; false where it cannot, and
/// then nothing may be called that would happen in another one.
class in_context {
 public:
  explicit in_context(const primary_context& wanted) noexcept : calls_(wanted.calls()) {
    if (!wanted.worked("cuCtxGetCurrent", calls_.context_get_current(&before_))) return;
    is_there_ = before_ == wanted.handle();
    if (is_there_) return;
    changed_ = is_there_ = wanted.worked("cuCtxSetCurrent", calls_.context_set_current(wanted.handle()));
  }
  in_context(const in_context&) = delete;
  in_context& operator=(const in_context&) = delete;
  ~in_context() {
    if (changed_) (void)calls_.context_set_current(before_);
  }
  [[nodiscard]] explicit operator bool() const noexcept { return is_there_; }

 private:
  const driver& calls_;
  context_handle before_ = nullptr;
  bool is_there_ = false;
  bool changed_ = false;
};

}  // namespace cuda_driver
