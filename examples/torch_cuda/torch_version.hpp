// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// PyTorch for CUDA has the driver calls that expandable segments need; its headers ask for the macro.
#define PYTORCH_C10_DRIVER_API_SUPPORTED
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/api/include/torch/version.h>

#include <tessera/extension/private_pools.hpp>
#include <tessera/recipe/pytorch_2_11.hpp>
#include <tessera/recipe/pytorch_2_14.hpp>
#include <tessera/recipe/pytorch_family.hpp>

/// What differs between the versions of PyTorch. Only this file and the class cuda_allocator ask for the version.

#if TORCH_VERSION_MAJOR != 2 || \
    (TORCH_VERSION_MINOR != 6 && TORCH_VERSION_MINOR != 11 && TORCH_VERSION_MINOR < 14)
#error \
    "examples/torch_cuda implements the interfaces of PyTorch 2.6, 2.11 and 2.14; the headers are those of another version"
#endif
/// Whether PyTorch is of this version or newer.
#define TESSERA_TORCH_2_11 (TORCH_VERSION_MINOR >= 11)
#define TESSERA_TORCH_2_14 (TORCH_VERSION_MINOR >= 14)

namespace torch_cuda {

/// The names of PyTorch's allocator, from both namespaces that have some.
namespace torch {
using namespace c10::cuda::CUDACachingAllocator;  // NOLINT
using namespace c10::CachingDeviceAllocator;      // NOLINT
}  // namespace torch

using stack = std::shared_ptr<c10::GatheredContext>;
using pool_name = decltype(torch::SegmentInfo::owner_private_pool_id);
/// The name of all pools together, in calls that take the name of one.
inline constexpr pool_name all_pools{0, 0};
/// The allocator that gives a private pool its segments, or null.
using segment_source = std::shared_ptr<torch::CUDAAllocator>;

#if TESSERA_TORCH_2_11

using recipes_of_torch = std::conditional_t<TESSERA_TORCH_2_14, tessera::recipe::pytorch_2_14_family,
                                            tessera::recipe::pytorch_2_11_family>;

/// The settings that PyTorch follows while the program runs.
struct torch_settings {
  using source = c10::CachingAllocator::AcceleratorAllocatorConfig;
  static constexpr std::size_t numbers_count = 5;
  [[nodiscard]] static std::array<std::size_t, numbers_count> numbers() {
    std::size_t fails_fast = 0;
#if TESSERA_TORCH_2_14
    fails_fast = torch::CUDAAllocatorConfig::throw_on_cudamalloc_oom();
#endif
    return {source::max_split_size(), source::max_non_split_rounding_size(),
            torch::CUDAAllocatorConfig::expandable_segments(), source::large_segment_size(), fails_fast};
  }
  [[nodiscard]] static double threshold() { return source::garbage_collection_threshold(); }
  [[nodiscard]] static std::size_t divisions(std::size_t bytes) {
    return source::roundup_power2_divisions(bytes);
  }
  [[nodiscard]] static std::string text() { return source::last_allocator_settings(); }
  /// The memory fraction that a device begins with.
  [[nodiscard]] static double fraction() { return torch::CUDAAllocatorConfig::per_process_memory_fraction(); }
  /// A fraction of 1 limits nothing.
  static constexpr bool whole_device_is_limit = false;

  [[nodiscard]] static torch::AllocatorConfigInfo info() {
    using cuda = torch::CUDAAllocatorConfig;
    return {source::garbage_collection_threshold(),
            source::max_split_size(),
            cuda::pinned_num_register_threads(),
            cuda::expandable_segments(),
            cuda::release_lock_on_cudamalloc(),
            cuda::pinned_use_cuda_host_register(),
            cuda::graph_capture_record_stream_reuse(),
            source::last_allocator_settings(),
            source::roundup_power2_divisions(),
#if TESSERA_TORCH_2_14
            source::pinned_max_round_threshold(),
            source::pinned_max_cached_size()
#endif
    };
  }
};

/// The words that PyTorch adds to the trace entries of the calling thread.
struct entry_words {
  std::vector<std::string> compiled;  ///< what is compiled now, the innermost last
  std::string user;
  [[nodiscard]] static entry_words& of_thread() {
    static thread_local entry_words words;
    return words;
  }
};
[[nodiscard]] inline torch::TraceEntry make_entry(torch::TraceEntry::Action what, c10::DeviceIndex device,
                                                  std::uintptr_t address, std::size_t bytes,
                                                  cudaStream_t stream, pool_name pool, const stack& with) {
  const entry_words& words = entry_words::of_thread();
  return {what,
          device,
          address,
          bytes,
          stream,
          pool,
          c10::getApproximateTime(),
          with,
          words.compiled.empty() ? "N/A" : words.compiled.back(),
          words.user};
}

/// The allocator that gives the calling thread its segments; null for the driver. A request for a private pool with such
/// an allocator sets it while it runs.
[[nodiscard]] inline torch::CUDAAllocator*& current_source() noexcept {
  static thread_local torch::CUDAAllocator* source = nullptr;
  return source;
}
/// Sets the allocator that gives segments during the lifetime of the object.
class segments_from {
 public:
  explicit segments_from(segment_source source) noexcept : source_(std::move(source)) {
    if (source_ != nullptr) current_source() = source_.get();
  }
  segments_from(const segments_from&) = delete;
  segments_from& operator=(const segments_from&) = delete;
  ~segments_from() {
    if (source_ != nullptr) current_source() = nullptr;
  }

 private:
  segment_source source_;
};
/// PyTorch 2.14 marks captures by calls of their own, so requests for a private pool change nothing else. Before, a graph may
/// be captured while requests go to one.
inline constexpr auto scopes =
    TESSERA_TORCH_2_14 ? tessera::extension::scope_kind::plain : tessera::extension::scope_kind::capture;

#else

using recipes_of_torch = tessera::recipe::pytorch_family;

/// The settings that PyTorch follows while the program runs.
struct torch_settings {
  using source = torch::CUDAAllocatorConfig;
  static constexpr std::size_t numbers_count = 3;
  [[nodiscard]] static std::array<std::size_t, numbers_count> numbers() {
    return {source::max_split_size(), source::max_non_split_rounding_size(), source::expandable_segments()};
  }
  [[nodiscard]] static double threshold() { return source::garbage_collection_threshold(); }
  [[nodiscard]] static std::size_t divisions(std::size_t bytes) {
    return source::roundup_power2_divisions(bytes);
  }
  [[nodiscard]] static std::string text() { return source::last_allocator_settings(); }
  /// The memory fraction that a device begins with.
  [[nodiscard]] static constexpr double fraction() { return 1; }
  /// A fraction of 1 limits to the capacity.
  static constexpr bool whole_device_is_limit = true;

  [[nodiscard]] static torch::AllocatorConfigInfo info() {
    return {source::garbage_collection_threshold(), source::max_split_size(),
            source::pinned_num_register_threads(),  source::expandable_segments(),
            source::release_lock_on_cudamalloc(),   source::pinned_use_cuda_host_register(),
            source::last_allocator_settings(),      source::roundup_power2_divisions()};
  }
};

[[nodiscard]] inline torch::TraceEntry make_entry(torch::TraceEntry::Action what, c10::DeviceIndex device,
                                                  std::uintptr_t address, std::size_t bytes,
                                                  cudaStream_t stream, pool_name, const stack& with) {
  return {what, device, address, bytes, stream, c10::getApproximateTime(), with};
}

/// The private pool that the calling thread uses, by torch.cuda.use_mem_pool; all_pools if there is none.
[[nodiscard]] inline pool_name active_pool() {
  c10::cuda::MemPool* const active = c10::cuda::MemPoolContext::getActiveMemPool();
  return active != nullptr ? active->id() : all_pools;
}
/// The allocator that gives the calling thread its segments; null for the driver.
[[nodiscard]] inline torch::CUDAAllocator* current_source() noexcept {
  c10::cuda::MemPool* const active = c10::cuda::MemPoolContext::getActiveMemPool();
  return active != nullptr ? active->allocator() : nullptr;
}
/// PyTorch itself knows the allocator.
struct segments_from {
  explicit segments_from(const segment_source&) noexcept {}
};
/// While requests go to a private pool, a graph may be captured.
inline constexpr auto scopes = tessera::extension::scope_kind::capture;

#endif

}  // namespace torch_cuda
