// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/interop/pluggable.hpp>
#include <tessera/interop/torch_statistics.hpp>

/// The functions of C by which PyTorch and torch_npu take an allocator out of a shared object, from one definition of it.
/// What is to be written is
///
///     #include <tessera/concurrent/per_stream.hpp>
///     #include <tessera/provider/host_pinned.hpp>
///     namespace {
///     struct on_host {
///       static tessera::host_pinned make_device(int) { return tessera::host_pinned{}; }
///       static auto make_allocator(auto device) {
///         return tessera::per_stream<tessera::pytorch<>, decltype(device)>(std::move(device));
///       }
///     };
///     }  // namespace
///     TESSERA_TORCH_FUNCTIONS(demo, on_host);
///
/// in one file, which is built into a library of which no other one uses a part and that stays when it is closed: -shared
/// -fPIC -fvisibility=hidden -Wl,-Bsymbolic,-z,nodelete. CUDAPluggableAllocator("libdemo.so", "demo_alloc", "demo_free")
/// takes it; the other functions are set on its allocator(). Two such libraries in one program share no state.
///
/// Memory pools are not kept apart, which graphs need. Where alloc throws, PREFIX_begin_allocate_to_pool does so too, and
/// whoever sets it has PyTorch refuse what else would go wrong unseen.
namespace tessera {

/// Never ends, as a host gives tensors back until the very end of the program, when devices may be gone already.
template <typename T>
union immortal {
  T value;
  immortal() : value() {}
  ~immortal() {}
};

/// As PyTorch's std::pair of two numbers, a memory pool's name comes in two registers.
struct torch_pool_id {
  std::uint64_t first, second;
};

}  // namespace tessera

// What follows names functions as C does, which no template can. A stream is a pointer in both systems, and a size the
// size_t that they call with, whatever their documents write.

/// Defines PREFIX_alloc, _free, _init, _reset, _memory_fraction, _base_alloc, _record_stream and _begin_allocate_to_pool,
/// as PyTorch's CUDAPluggableAllocator takes them, and for whoever loads the library _statistics, _reset_peak_statistics,
/// _reset_accumulated_statistics and _last_error: the functions of a pluggable<definition> of its own.
#define TESSERA_TORCH_FUNCTIONS(prefix, definition)                          \
  TESSERA_PLUGGABLE_FUNCTIONS(prefix, definition)                            \
  TESSERA_C_FUNCTION(void) prefix##_reset() { prefix##_instance().reset(); } \
  TESSERA_C_FUNCTION(void) prefix##_record_stream(void* p, void* stream) {   \
    prefix##_instance().record_stream(p, stream);                            \
  }                                                                          \
  TESSERA_C_FUNCTION(void) prefix##_reset_peak_statistics(int device) {      \
    prefix##_instance().reset_peak_statistics(device);                       \
  }                                                                          \
  static_assert(true)

/// The same for torch_npu's NPUPluggableAllocator, and _erase_stream, _get_device_stats and _reset_peak_status. How it
/// names a stream in _record_stream and _erase_stream depends on its version: `stream_type` is void* where that is an
/// aclrtStream, else c10_npu::NPUStream. `stats_type` is c10_npu::NPUCachingAllocator::DeviceStats, or where its header
/// is not at hand tessera::npu_device_stats. _erase_stream does nothing: what was recorded is waited for, which is safe.
#define TESSERA_TORCH_NPU_FUNCTIONS(prefix, definition, stream_type, stats_type)                         \
  TESSERA_PLUGGABLE_FUNCTIONS(prefix, definition)                                                        \
  TESSERA_C_FUNCTION(void) prefix##_reset(bool) { prefix##_instance().reset(); }                         \
  TESSERA_C_FUNCTION(void) prefix##_record_stream(void* p, stream_type stream) {                         \
    prefix##_instance().record_stream(p, static_cast<void*>(stream));                                    \
  }                                                                                                      \
  TESSERA_C_FUNCTION(void) prefix##_erase_stream(void*, stream_type) {}                                  \
  TESSERA_C_FUNCTION(void) prefix##_reset_peak_status(int device) {                                      \
    prefix##_instance().reset_peak_statistics(device);                                                   \
  }                                                                                                      \
  [[gnu::visibility("default")]] stats_type prefix##_get_device_stats(int) __asm__(#prefix               \
                                                                                   "_get_device_stats"); \
  stats_type prefix##_get_device_stats(int device) {                                                     \
    return prefix##_instance().device_stats<stats_type>(device);                                         \
  }                                                                                                      \
  static_assert(true)

#define TESSERA_C_FUNCTION(type) extern "C" [[gnu::visibility("default")]] type
#define TESSERA_PLUGGABLE_FUNCTIONS(prefix, definition)                                                \
  namespace {                                                                                          \
  tessera::pluggable<definition>& prefix##_instance() noexcept {                                       \
    static tessera::immortal<tessera::pluggable<definition>> only;                                     \
    return only.value;                                                                                 \
  }                                                                                                    \
  }                                                                                                    \
  TESSERA_C_FUNCTION(void*) prefix##_alloc(std::size_t bytes, int device, void* stream) {              \
    return prefix##_instance().alloc(bytes, device, stream);                                           \
  }                                                                                                    \
  TESSERA_C_FUNCTION(void) prefix##_free(void* p, std::size_t bytes, int device, void* stream) {       \
    prefix##_instance().free(p, bytes, device, stream);                                                \
  }                                                                                                    \
  TESSERA_C_FUNCTION(void) prefix##_init(int device_count) { prefix##_instance().init(device_count); } \
  TESSERA_C_FUNCTION(void) prefix##_memory_fraction(double share, int device) {                        \
    prefix##_instance().memory_fraction(share, device);                                                \
  }                                                                                                    \
  TESSERA_C_FUNCTION(void*) prefix##_base_alloc(void* p, std::size_t* bytes) {                         \
    return prefix##_instance().base_alloc(p, bytes);                                                   \
  }                                                                                                    \
  TESSERA_C_FUNCTION(void) prefix##_begin_allocate_to_pool(int, tessera::torch_pool_id, void*) {       \
    prefix##_instance().begin_allocate_to_pool();                                                      \
  }                                                                                                    \
  TESSERA_C_FUNCTION(std::size_t) prefix##_statistics(int device, char* out, std::size_t room) {       \
    return prefix##_instance().statistics(device, out, room);                                          \
  }                                                                                                    \
  TESSERA_C_FUNCTION(void) prefix##_reset_accumulated_statistics(int device) {                         \
    prefix##_instance().reset_accumulated_statistics(device);                                          \
  }                                                                                                    \
  TESSERA_C_FUNCTION(std::size_t) prefix##_last_error(char* out, std::size_t room) {                   \
    return prefix##_instance().last_error(out, room);                                                  \
  }
