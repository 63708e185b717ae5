// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>

#include <dlfcn.h>

/// The functions of CUDA's driver that an allocator needs, loaded at run time, so that the build needs no CUDA package. Types
/// and constants are those of cuda.h on 64-bit Linux.
namespace cuda_driver {

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
inline constexpr int has_file_handles =
    103;                               // CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
inline constexpr int file_handle = 1;  // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
inline constexpr int has_virtual_memory = 102;  // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
inline constexpr unsigned event_without_timing = 2;  // CU_EVENT_DISABLE_TIMING
inline constexpr int location_is_device = 1;         // CU_MEM_LOCATION_TYPE_DEVICE
inline constexpr int pinned_memory = 1;              // CU_MEM_ALLOCATION_TYPE_PINNED
inline constexpr int min_granularity = 0;            // CU_MEM_ALLOC_GRANULARITY_MINIMUM
inline constexpr int read_and_write = 3;             // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
inline constexpr int relaxed_capture = 2;            // CU_STREAM_CAPTURE_MODE_RELAXED

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

/// Thrown if a call fails or the driver cannot be loaded.
class driver_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Keeps the driver loaded and has pointers to its functions.
class driver {
 public:
  ///   Throws:  driver_error if the library is missing, lacks a function or finds no device
  explicit driver(const char* library = "libcuda.so.1")
      : name_(library), library_(dlopen(library, RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr)
      throw driver_error(std::string("the CUDA driver cannot be loaded: ") + dlerror());
    try {
      find_all();
      check(init(0), "cuInit");
    } catch (...) {
      dlclose(library_);
      throw;
    }
  }
  driver(const driver&) = delete;
  driver& operator=(const driver&) = delete;
  ~driver() { dlclose(library_); }

  [[nodiscard]] int devices() const {
    int count = 0;
    check(device_get_count(&count), "cuDeviceGetCount");
    return count;
  }
  /// Describes a result, for example "CUDA_ERROR_OUT_OF_MEMORY: out of memory".
  [[nodiscard]] std::string describe(result r) const {
    const char* name = nullptr;
    const char* text = nullptr;
    if (get_error_name(r, &name) != success || name == nullptr) return "error " + std::to_string(r);
    if (get_error_string(r, &text) != success || text == nullptr) return name;
    return std::string(name) + ": " + text;
  }
  void check(result r, const char* call) const {
    if (r != success) throw driver_error(std::string(call) + ": " + describe(r));
  }

  result (*init)(unsigned flags) = nullptr;
  result (*get_error_name)(result, const char**) = nullptr;
  result (*get_error_string)(result, const char**) = nullptr;

  result (*device_get_count)(int*) = nullptr;
  result (*device_get)(device_number*, int number) = nullptr;
  result (*device_get_attribute)(int*, int attribute, device_number) = nullptr;
  result (*device_total_memory)(std::size_t*, device_number) = nullptr;
  result (*primary_context_retain)(context_handle*, device_number) = nullptr;
  result (*primary_context_release)(device_number) = nullptr;
  result (*context_get_current)(context_handle*) = nullptr;
  result (*context_set_current)(context_handle) = nullptr;
  result (*context_synchronize)() = nullptr;

  result (*memory_allocate)(device_address*, std::size_t) = nullptr;
  result (*memory_free)(device_address) = nullptr;
  result (*memory_get_info)(std::size_t* free, std::size_t* total) = nullptr;

  result (*event_create)(event_handle*, unsigned flags) = nullptr;
  result (*event_destroy)(event_handle) = nullptr;
  result (*event_record)(event_handle, stream_handle) = nullptr;
  result (*event_query)(event_handle) = nullptr;
  result (*event_synchronize)(event_handle) = nullptr;
  result (*stream_synchronize)(stream_handle) = nullptr;
  result (*stream_wait_event)(stream_handle, event_handle, unsigned flags) = nullptr;

  result (*get_granularity)(std::size_t*, const memory_properties*, int which) = nullptr;
  result (*address_reserve)(device_address*, std::size_t, std::size_t alignment, device_address wanted,
                            unsigned long long flags) = nullptr;
  result (*address_free)(device_address, std::size_t) = nullptr;
  result (*memory_create)(memory_handle*, std::size_t, const memory_properties*,
                          unsigned long long flags) = nullptr;
  result (*memory_release)(memory_handle) = nullptr;
  result (*memory_map)(device_address, std::size_t, std::size_t offset, memory_handle,
                       unsigned long long flags) = nullptr;
  result (*memory_unmap)(device_address, std::size_t) = nullptr;
  result (*memory_set_access)(device_address, std::size_t, const memory_access*, std::size_t count) = nullptr;
  /// Null if the driver lacks them.
  result (*memory_export)(void* made, memory_handle, int type, unsigned long long flags) = nullptr;
  result (*memory_import)(memory_handle*, void* from, int type) = nullptr;

  /// Null if neither the driver nor a loaded CUDA runtime has this function.
  result (*exchange_capture_mode)(int* mode) = nullptr;

  // If the driver lacks these functions, a loaded CUDA runtime serves.
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
  [[nodiscard]] result register_host(void* p, std::size_t bytes) const noexcept {
    return host_register_ != nullptr ? host_register_(p, bytes, 0) : not_supported;
  }
  [[nodiscard]] result unregister_host(void* p) const noexcept {
    return host_unregister_ != nullptr ? host_unregister_(p) : not_supported;
  }

 private:
  static constexpr result not_supported = static_cast<result>(801);
  [[nodiscard]] result copy_by_runtime(void* to, const void* from, std::size_t bytes, int kind,
                                       stream_handle s) const noexcept {
    return runtime_copy_ != nullptr ? runtime_copy_(to, from, bytes, kind, s) : not_supported;
  }
  /// Finds a function in the driver or, by its own name there, in a loaded CUDA runtime.
  template <typename Function>
  void find_either(Function*& function, const char* in_driver, const char* in_runtime) {
    void* found = in_driver != nullptr ? dlsym(library_, in_driver) : nullptr;
    if (found == nullptr && in_runtime != nullptr) found = dlsym(RTLD_DEFAULT, in_runtime);
    function = reinterpret_cast<Function*>(found);
  }

  template <typename Function>
  void find(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (function == nullptr) throw driver_error("the CUDA driver " + name_ + " has no function " + name);
  }
  void find_all() {
    find(init, "cuInit");
    find(get_error_name, "cuGetErrorName");
    find(get_error_string, "cuGetErrorString");
    find(device_get_count, "cuDeviceGetCount");
    find(device_get, "cuDeviceGet");
    find(device_get_attribute, "cuDeviceGetAttribute");
    find(device_total_memory, "cuDeviceTotalMem_v2");
    find(primary_context_retain, "cuDevicePrimaryCtxRetain");
    find(primary_context_release, "cuDevicePrimaryCtxRelease_v2");
    find(context_get_current, "cuCtxGetCurrent");
    find(context_set_current, "cuCtxSetCurrent");
    find(context_synchronize, "cuCtxSynchronize");
    find(memory_allocate, "cuMemAlloc_v2");
    find(memory_free, "cuMemFree_v2");
    find(memory_get_info, "cuMemGetInfo_v2");
    find(event_create, "cuEventCreate");
    find(event_destroy, "cuEventDestroy_v2");
    find(event_record, "cuEventRecord");
    find(event_query, "cuEventQuery");
    find(event_synchronize, "cuEventSynchronize");
    find(stream_synchronize, "cuStreamSynchronize");
    find(stream_wait_event, "cuStreamWaitEvent");
    find(get_granularity, "cuMemGetAllocationGranularity");
    find(address_reserve, "cuMemAddressReserve");
    find(address_free, "cuMemAddressFree");
    find(memory_create, "cuMemCreate");
    find(memory_release, "cuMemRelease");
    find(memory_map, "cuMemMap");
    find(memory_unmap, "cuMemUnmap");
    find(memory_set_access, "cuMemSetAccess");
    find_either(memory_export, "cuMemExportToShareableHandle", nullptr);
    find_either(memory_import, "cuMemImportFromShareableHandle", nullptr);
    find_either(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode",
                "cudaThreadExchangeStreamCaptureMode");
    find_either(memory_copy_to_host_, "cuMemcpyDtoHAsync_v2", nullptr);
    find_either(memory_copy_to_device_, "cuMemcpyHtoDAsync_v2", nullptr);
    find_either(runtime_copy_, nullptr, "cudaMemcpyAsync");
    find_either(host_register_, "cuMemHostRegister_v2", "cudaHostRegister");
    find_either(host_unregister_, "cuMemHostUnregister", "cudaHostUnregister");
  }

  result (*memory_copy_to_host_)(void*, device_address, std::size_t, stream_handle) = nullptr;
  result (*memory_copy_to_device_)(device_address, const void*, std::size_t, stream_handle) = nullptr;
  result (*runtime_copy_)(void*, const void*, std::size_t, int kind, stream_handle) = nullptr;
  result (*host_register_)(void*, std::size_t, unsigned flags) = nullptr;
  result (*host_unregister_)(void*) = nullptr;
  std::string name_;
  void* library_;
};

}  // namespace cuda_driver
