// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#if !defined(__linux__) || !__has_include(<dlfcn.h>)
#error "tessera/provider/cuda_driver.hpp is for Linux: it loads CUDA's driver with dlopen"
#endif
#include <dlfcn.h>

#include <tessera/core/error.hpp>

/// The types and constants of cuda.h on 64-bit Linux.
namespace tessera::inline v0_1::detail::cuda {

using result = int;                           // CUresult
using device_number = int;                    // CUdevice
using device_address = unsigned long long;    // CUdeviceptr
using memory_handle = unsigned long long;     // CUmemGenericAllocationHandle
using context_handle = struct context_type*;  // CUcontext
using stream_handle = struct stream_type*;    // CUstream
using event_handle = struct event_type*;      // CUevent

inline constexpr result success = 0, invalid_value = 1, out_of_memory = 2, no_device = 100,
                        invalid_context = 201, invalid_handle = 400, not_permitted = 800, not_ready = 600,
                        not_supported = 801;
// Of CUdevice_attribute: VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
// GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED and HANDLE_TYPE_FABRIC_SUPPORTED.
inline constexpr int has_virtual_memory = 102, has_file_handles = 103, has_rdma = 110,
                     has_fabric_handles = 128;
inline constexpr int file_handle = 1, fabric_handle = 8;  // of CUmemAllocationHandleType
inline constexpr unsigned event_without_timing = 2;       // CU_EVENT_DISABLE_TIMING
inline constexpr int location_is_device = 1;              // CU_MEM_LOCATION_TYPE_DEVICE
inline constexpr int pinned_memory = 1;                   // CU_MEM_ALLOCATION_TYPE_PINNED
inline constexpr int min_granularity = 0;                 // CU_MEM_ALLOC_GRANULARITY_MINIMUM
inline constexpr int read_and_write = 3;                  // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
inline constexpr int relaxed_capture = 2;                 // CU_STREAM_CAPTURE_MODE_RELAXED

struct memory_location {  // CUmemLocation
  int type;
  int id;
};
struct memory_properties {  // CUmemAllocationProp
  int type;
  int handle_types;
  memory_location location;
  void* win32_metadata;
  struct {
    unsigned char compression;
    unsigned char direct_rdma;
    unsigned short usage;
    unsigned char reserved[4];
  } flags;
};
struct memory_access {  // CUmemAccessDesc
  memory_location location;
  int flags;
};
static_assert(sizeof(void*) == 8 && sizeof(memory_location) == 8 && sizeof(memory_access) == 12);
static_assert(sizeof(memory_properties) == 32 && offsetof(memory_properties, location) == 8 &&
              offsetof(memory_properties, win32_metadata) == 16 && offsetof(memory_properties, flags) == 24);

}  // namespace tessera::inline v0_1::detail::cuda

namespace tessera::inline v0_1::provider {

/// Thrown if CUDA's driver cannot be loaded, or if it refuses a call that has no other way to fail.
class cuda_driver_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace tessera::inline v0_1::provider

namespace tessera::inline v0_1::detail::cuda {

[[noreturn]] inline void fail(const std::string& what) { raise(provider::cuda_driver_error(what)); }

/// A loaded library.
class library {
 public:
  explicit library(const char* name) : handle_(::dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) fail(std::string("the CUDA driver cannot be loaded: ") + ::dlerror());
  }
  library(const library&) = delete;
  library& operator=(const library&) = delete;
  ~library() { ::dlclose(handle_); }
  [[nodiscard]] void* find(const char* name) const noexcept { return ::dlsym(handle_, name); }

 private:
  void* handle_;
};

/// The functions of CUDA's driver that a provider needs, and the library that has them.
class calls {
  // The functions below are found in it.
  library library_;
  std::string name_;

 public:
  ///   Throws:  cuda_driver_error if the library is missing, lacks a function or finds no device
  explicit calls(const char* name) : library_(name), name_(name) { require_success(init(0), "cuInit"); }
  calls(const calls&) = delete;
  calls& operator=(const calls&) = delete;

  /// Describes a result, for example "CUDA_ERROR_OUT_OF_MEMORY: out of memory".
  [[nodiscard]] std::string describe(result r) const {
    const char* name = nullptr;
    const char* text = nullptr;
    if (get_error_name(r, &name) != success || name == nullptr) return "error " + std::to_string(r);
    if (get_error_string(r, &text) != success || text == nullptr) return name;
    return std::string(name) + ": " + text;
  }
  ///   Throws:  cuda_driver_error if a call failed
  void require_success(result r, const char* call) const {
    if (r != success) fail(std::string(call) + ": " + describe(r));
  }

  result (*init)(unsigned flags) = find("cuInit");
  result (*get_error_name)(result, const char**) = find("cuGetErrorName");
  result (*get_error_string)(result, const char**) = find("cuGetErrorString");

  result (*device_get_count)(int*) = find("cuDeviceGetCount");
  result (*device_get)(device_number*, int number) = find("cuDeviceGet");
  result (*device_get_attribute)(int*, int attribute, device_number) = find("cuDeviceGetAttribute");
  result (*device_total_memory)(std::size_t*, device_number) = find("cuDeviceTotalMem_v2");
  result (*primary_context_retain)(context_handle*, device_number) = find("cuDevicePrimaryCtxRetain");
  result (*primary_context_release)(device_number) = find("cuDevicePrimaryCtxRelease_v2");
  result (*context_get_current)(context_handle*) = find("cuCtxGetCurrent");
  result (*context_set_current)(context_handle) = find("cuCtxSetCurrent");
  result (*context_synchronize)() = find("cuCtxSynchronize");

  result (*memory_allocate)(device_address*, std::size_t) = find("cuMemAlloc_v2");
  result (*memory_free)(device_address) = find("cuMemFree_v2");
  result (*memory_get_info)(std::size_t* free, std::size_t* total) = find("cuMemGetInfo_v2");

  result (*event_create)(event_handle*, unsigned flags) = find("cuEventCreate");
  result (*event_destroy)(event_handle) = find("cuEventDestroy_v2");
  result (*event_record)(event_handle, stream_handle) = find("cuEventRecord");
  result (*event_query)(event_handle) = find("cuEventQuery");
  result (*event_synchronize)(event_handle) = find("cuEventSynchronize");
  result (*stream_synchronize)(stream_handle) = find("cuStreamSynchronize");
  result (*stream_wait_event)(stream_handle, event_handle, unsigned flags) = find("cuStreamWaitEvent");

  result (*get_granularity)(std::size_t*, const memory_properties*,
                            int which) = find("cuMemGetAllocationGranularity");
  result (*address_reserve)(device_address*, std::size_t, std::size_t alignment, device_address wanted,
                            unsigned long long flags) = find("cuMemAddressReserve");
  result (*address_free)(device_address, std::size_t) = find("cuMemAddressFree");
  result (*memory_create)(memory_handle*, std::size_t, const memory_properties*,
                          unsigned long long flags) = find("cuMemCreate");
  result (*memory_release)(memory_handle) = find("cuMemRelease");
  result (*memory_map)(device_address, std::size_t, std::size_t offset, memory_handle,
                       unsigned long long flags) = find("cuMemMap");
  result (*memory_unmap)(device_address, std::size_t) = find("cuMemUnmap");
  result (*memory_set_access)(device_address, std::size_t, const memory_access*,
                              std::size_t count) = find("cuMemSetAccess");
  /// Null if the driver lacks it.
  result (*stream_get_flags)(stream_handle, unsigned* flags) = find_either("cuStreamGetFlags", nullptr);
  /// Null if neither the driver nor a loaded CUDA runtime has this function.
  result (*exchange_capture_mode)(int* mode) = find_either("cuThreadExchangeStreamCaptureMode",
                                                           "cudaThreadExchangeStreamCaptureMode");

  // If the driver lacks the next functions, a loaded CUDA runtime serves those of copies and of host memory.
  [[nodiscard]] result copy_to_host(void* to, device_address from, std::size_t bytes,
                                    stream_handle s) const noexcept {
    if (memory_copy_to_host_ != nullptr) return memory_copy_to_host_(to, from, bytes, s);
    return copy_by_runtime(to, reinterpret_cast<const void*>(static_cast<std::uintptr_t>(from)), bytes, 2, s);
  }
  [[nodiscard]] result copy_to_device(device_address to, const void* from, std::size_t bytes,
                                      stream_handle s) const noexcept {
    if (memory_copy_to_device_ != nullptr) return memory_copy_to_device_(to, from, bytes, s);
    return copy_by_runtime(reinterpret_cast<void*>(static_cast<std::uintptr_t>(to)), from, bytes, 1, s);
  }
  [[nodiscard]] bool can_export() const noexcept { return memory_export_ != nullptr; }
  [[nodiscard]] result export_file(int& made, memory_handle memory) const noexcept {
    return memory_export_ != nullptr ? memory_export_(&made, memory, file_handle, 0) : not_supported;
  }
  [[nodiscard]] result import_file(memory_handle& made, int file) const noexcept {
    // The driver takes a descriptor in the place of a pointer.
    void* const from = reinterpret_cast<void*>(static_cast<std::uintptr_t>(file));
    return memory_import_ != nullptr ? memory_import_(&made, from, file_handle) : not_supported;
  }
  /// A handle of a fabric has 64 bytes.
  [[nodiscard]] result export_fabric(void* made, memory_handle memory) const noexcept {
    return memory_export_ != nullptr ? memory_export_(made, memory, fabric_handle, 0) : not_supported;
  }
  [[nodiscard]] result import_fabric(memory_handle& made, void* from) const noexcept {
    return memory_import_ != nullptr ? memory_import_(&made, from, fabric_handle) : not_supported;
  }
  [[nodiscard]] result register_host(void* p, std::size_t bytes) const noexcept {
    return host_register_ != nullptr ? host_register_(p, bytes, 0) : not_supported;
  }
  [[nodiscard]] result unregister_host(void* p) const noexcept {
    return host_unregister_ != nullptr ? host_unregister_(p) : not_supported;
  }

 private:
  [[nodiscard]] result copy_by_runtime(void* to, const void* from, std::size_t bytes, int kind,
                                       stream_handle s) const noexcept {
    return runtime_copy_ != nullptr ? runtime_copy_(to, from, bytes, kind, s) : not_supported;
  }
  /// A function that was found, of whichever type.
  struct found {
    void* address;
    template <typename Function>
    operator Function*() const noexcept {
      return reinterpret_cast<Function*>(address);
    }
  };
  [[nodiscard]] found find(const char* name) const {
    void* const address = library_.find(name);
    if (address == nullptr) fail("the CUDA driver " + name_ + " has no function " + name);
    return {address};
  }
  /// Finds a function in the driver or, by its own name there, in a loaded CUDA runtime; null if neither has it.
  [[nodiscard]] found find_either(const char* in_driver, const char* in_runtime) const noexcept {
    void* const address = in_driver != nullptr ? library_.find(in_driver) : nullptr;
    return {address == nullptr && in_runtime != nullptr ? ::dlsym(RTLD_DEFAULT, in_runtime) : address};
  }

  // Null if the driver lacks them.
  result (*memory_export_)(void* made, memory_handle, int type,
                           unsigned long long flags) = find_either("cuMemExportToShareableHandle", nullptr);
  result (*memory_import_)(memory_handle*, void* from,
                           int type) = find_either("cuMemImportFromShareableHandle", nullptr);
  result (*memory_copy_to_host_)(void*, device_address, std::size_t,
                                 stream_handle) = find_either("cuMemcpyDtoHAsync_v2", nullptr);
  result (*memory_copy_to_device_)(device_address, const void*, std::size_t,
                                   stream_handle) = find_either("cuMemcpyHtoDAsync_v2", nullptr);
  result (*runtime_copy_)(void*, const void*, std::size_t, int kind,
                          stream_handle) = find_either(nullptr, "cudaMemcpyAsync");
  result (*host_register_)(void*, std::size_t, unsigned flags) = find_either("cuMemHostRegister_v2",
                                                                             "cudaHostRegister");
  result (*host_unregister_)(void*) = find_either("cuMemHostUnregister", "cudaHostUnregister");
};

/// Holds a device, its primary context, which CUDA's runtime also uses, and the latest error.
class primary_context {
 public:
  ///   Throws:  cuda_driver_error if there is no such device or it cannot be used
  primary_context(std::shared_ptr<const cuda::calls> functions, int number)
      : calls_(std::move(functions)), device_(number) {
    require_success(calls_->device_get(&device_, number), "cuDeviceGet");
    require_success(calls_->primary_context_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
  }
  primary_context(const primary_context&) = delete;
  primary_context& operator=(const primary_context&) = delete;
  ~primary_context() { (void)calls_->primary_context_release(device_); }

  [[nodiscard]] const cuda::calls& calls() const noexcept { return *calls_; }
  [[nodiscard]] device_number device() const noexcept { return device_; }
  [[nodiscard]] context_handle handle() const noexcept { return context_; }

  ///   Throws:  cuda_driver_error, which names the device, if a call failed
  void require_success(result r, const char* call) const {
    if (r != success) fail("GPU " + std::to_string(device_) + ": " + call + ": " + calls_->describe(r));
  }
  /// Returns whether a call succeeded, and records its error if not.
  bool succeeded(const char* call, result r) const noexcept {
    if (r == success) return true;
    const std::lock_guard lock(mutex_);
    failed_call_ = call;
    rule_ = nullptr;
    error_ = r;
    return false;
  }
  /// Records that a call breaks a rule of tessera.
  void refuse(const char* call, const char* rule) const noexcept {
    const std::lock_guard lock(mutex_);
    failed_call_ = call;
    rule_ = rule;
  }
  /// The latest error, for example "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY: out of memory"; empty if no call failed.
  [[nodiscard]] std::string last_error() const {
    const std::lock_guard lock(mutex_);
    if (failed_call_ == nullptr) return {};
    return std::string(failed_call_) + ": " + (rule_ != nullptr ? rule_ : calls_->describe(error_));
  }

 private:
  std::shared_ptr<const cuda::calls> calls_;
  device_number device_;
  context_handle context_ = nullptr;
  mutable std::mutex mutex_;
  mutable const char* failed_call_ = nullptr;
  mutable const char* rule_ = nullptr;
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
  const cuda::calls& calls_;
  context_handle previous_ = nullptr;
  bool is_current_ = false;
  bool changed_ = false;
};

/// Lets the calling thread make calls that a capture of a graph forbids, such as cuMemAlloc. The destructor restores the
/// thread's mode. The calls must not depend on the work of captured streams.
class relaxed_capture_guard {
 public:
  explicit relaxed_capture_guard(const cuda::calls& calls) noexcept : calls_(calls) { exchange(); }
  relaxed_capture_guard(const relaxed_capture_guard&) = delete;
  relaxed_capture_guard& operator=(const relaxed_capture_guard&) = delete;
  ~relaxed_capture_guard() { exchange(); }

 private:
  void exchange() noexcept {
    if (calls_.exchange_capture_mode != nullptr) (void)calls_.exchange_capture_mode(&mode_);
  }

  const cuda::calls& calls_;
  int mode_ = relaxed_capture;
};

[[nodiscard]] inline stream_handle handle_of(stream_id stream) noexcept {
  return reinterpret_cast<stream_handle>(static_cast<std::uintptr_t>(stream.handle));
}

/// The events and the streams of a device, for its positions, too.
class stream_events {
 public:
  explicit stream_events(const primary_context& in) noexcept : context_(in) {}

  /// Records an event after the work submitted to a stream. Returns false, without an event, if that fails.
  [[nodiscard]] bool mark(stream_id stream, event_handle& event) const noexcept {
    const context_guard here(context_);
    if (!here ||
        !context_.succeeded("cuEventCreate", context_.calls().event_create(&event, event_without_timing)))
      return false;
    if (context_.succeeded("cuEventRecord", context_.calls().event_record(event, handle_of(stream))))
      return true;
    destroy(event);
    event = nullptr;
    return false;
  }
  void destroy(event_handle at) const noexcept {
    (void)context_.succeeded("cuEventDestroy", context_.calls().event_destroy(at));
  }
  /// Whether the work before an event is complete.
  [[nodiscard]] bool is_complete(event_handle at) const noexcept {
    const result r = context_.calls().event_query(at);
    return r != not_ready && context_.succeeded("cuEventQuery", r);
  }
  /// Makes further work of a stream wait for an event.
  [[nodiscard]] bool await(stream_id stream, event_handle at) const noexcept {
    const context_guard here(context_);
    return here && context_.succeeded("cuStreamWaitEvent",
                                      context_.calls().stream_wait_event(handle_of(stream), at, 0));
  }
  /// Whether a stream exists. One that ended may have left work, so this then waits for the device.
  [[nodiscard]] bool exists(stream_id stream) const noexcept {
    const cuda::calls& cu = context_.calls();
    unsigned flags = 0;
    const context_guard here(context_);
    return !here || cu.stream_get_flags == nullptr ||
           cu.stream_get_flags(handle_of(stream), &flags) != invalid_handle ||
           !context_.succeeded("cuCtxSynchronize", cu.context_synchronize());
  }

 private:
  const primary_context& context_;
};

}  // namespace tessera::inline v0_1::detail::cuda

namespace tessera::inline v0_1::provider {

/// CUDA's driver, which its constructor loads. So the build needs no CUDA package. Copies share the driver, which stays
/// loaded while one of them or a cuda_device lives.
class cuda_driver {
 public:
  ///   Throws:  cuda_driver_error if the library is missing, lacks a function or finds no device
  explicit cuda_driver(const char* library = "libcuda.so.1")
      : calls_(std::make_shared<const detail::cuda::calls>(library)) {}

  /// The number of GPUs.
  ///   Throws:  cuda_driver_error
  [[nodiscard]] int devices() const {
    int count = 0;
    calls_->require_success(calls_->device_get_count(&count), "cuDeviceGetCount");
    return count;
  }
  /// The functions of the driver, for tessera's own headers.
  [[nodiscard]] const std::shared_ptr<const detail::cuda::calls>& calls() const noexcept { return calls_; }

 private:
  std::shared_ptr<const detail::cuda::calls> calls_;
};

}  // namespace tessera::inline v0_1::provider
