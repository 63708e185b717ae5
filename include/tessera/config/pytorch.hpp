// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include <tessera/config/grammar.hpp>
#include <tessera/config/parse.hpp>
#include <tessera/core/bytes.hpp>

namespace tessera::config {

/// The settings of PYTORCH_CUDA_ALLOC_CONF. Sizes are in bytes.
struct pytorch_settings {
  std::size_t max_split_size = unlimited;
  std::size_t max_non_split_rounding = 20_MiB;
  std::size_t large_segment_size = 20_MiB;
  fraction garbage_collection_threshold{};
  divisions roundup{};
  bool expandable_segments = false;
  memory_limit expandable_segments_reserve{fraction{1'125'000'000}};
  bool async_backend = false;  ///< backend:cudaMallocAsync
  fraction memory_fraction = percent(100);
  bool throw_on_oom = false;
  bool release_lock = false;
  bool graph_capture_record_stream_reuse = false;
  bool pinned_use_background_threads = false;
  bool pinned_use_host_register = false;
  bool pinned_free_catch_all = false;
  std::size_t pinned_num_register_threads = 1;
  std::size_t pinned_max_round_threshold = unlimited;
  std::size_t pinned_max_cached_size = unlimited;
  std::size_t pinned_reserve_segment_size = 0;
  bool operator==(const pytorch_settings&) const = default;
};

/// The keys of PYTORCH_CUDA_ALLOC_CONF, in the order of the table below.
enum class pytorch_key : unsigned char {
  backend,
  max_split_size_mb,
  max_non_split_rounding_mb,
  large_segment_size_mb,
  garbage_collection_threshold,
  roundup_power2_divisions,
  expandable_segments,
  expandable_segments_reserve,
  expandable_segments_reserve_by_class,
  per_process_memory_fraction,
  throw_on_cudamalloc_oom,
  release_lock_on_cudamalloc,
  release_lock_on_hipmalloc,
  graph_capture_record_stream_reuse,
  pinned_use_background_threads,
  pinned_use_cuda_host_register,
  pinned_use_hip_host_register,
  pinned_num_register_threads,
  pinned_max_round_threshold_mb,
  pinned_max_cached_size_mb,
  pinned_reserve_segment_size_mb,
  pinned_free_catch_all
};

/// The grammar of PYTORCH_CUDA_ALLOC_CONF.
///   Source:  PyTorch of mid-2026: c10's AllocatorConfig and CUDAAllocatorConfig
struct pytorch : detail::torch_syntax<pytorch_key> {
  using settings = pytorch_settings;
  static constexpr std::string_view name = "pytorch";
  static constexpr std::array<const char*, 2> variables{"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"};

  using s = pytorch_settings;
  using format = detail::value_format;
  static constexpr std::array<detail::key_definition<s, divisions, memory_limit>, 22> keys{{
      {"backend", &s::async_backend, format::choice, "native, cudaMallocAsync|hipMallocAsync", "native",
       "selects PyTorch's allocator or the driver's pools; the driver's pools only honor "
       "per_process_memory_fraction",
       0, 0, "must be native or cudaMallocAsync"},
      {"max_split_size_mb", &s::max_split_size, format::mebibytes, "integer, at least large_segment_size_mb",
       "unlimited",
       "blocks of at least this size are never split, and serve only requests of a similar size"},
      {"max_non_split_rounding_mb", &s::max_non_split_rounding, format::mebibytes,
       "integer, at least large_segment_size_mb", "large_segment_size_mb",
       "the maximum by which an oversize block may exceed the request that it serves"},
      {"large_segment_size_mb", &s::large_segment_size, format::mebibytes, "integer, more than 10", "20",
       "size of segments for blocks of 1 to 10 MiB, and of pages of expandable segments for blocks above 1 "
       "MiB",
       11, detail::max_mebibytes, "must be greater than 10 and less than 2^40"},
      {"garbage_collection_threshold", &s::garbage_collection_threshold, format::decimal,
       "between 0 and 1, both excluded", "off",
       "if a memory fraction is set and more than this fraction of it is reserved, growth first releases "
       "idle "
       "segments of at least average age; expandable segments are not released",
       1, 999'999'999, "must be greater than 0 and less than 1"},
      {"roundup_power2_divisions", &s::roundup, format::divisions,
       "a power of two, or [size in MiB:divisions, ..., >:divisions]", "off",
       "number of block sizes between two powers of two; in a list, the first entry also covers all smaller "
       "sizes, > covers all above the entry before it, and other sizes are not divided"},
      {"expandable_segments", &s::expandable_segments, format::choice, "False, True", "False",
       "maps pages into address ranges, so that blocks of all sizes share them", 0, 0, true_or_false},
      {"expandable_segments_reserve", &s::expandable_segments_reserve, format::fraction_or_gibibytes,
       "a fraction of the device, or GiB with a G", "9/8 of the device", "size of one address range"},
      {"expandable_segments_reserve_by_class", nullptr, format::ignored_list, "[class:reserve, ...]", "[]",
       "none: streams have no classes"},
      {"per_process_memory_fraction", &s::memory_fraction, format::decimal, "0 to 1", "1.0",
       "the fraction of the device that may be reserved", 0, 1'000'000'000, "must be from 0 to 1"},
      {"throw_on_cudamalloc_oom", &s::throw_on_oom, format::choice, "False, True", "False",
       "a request over the limit fails at once; idle memory is not released first", 0, 0, true_or_false},
      {"release_lock_on_cudamalloc", &s::release_lock, format::choice, "False, True", "False",
       "none: locked and per_stream never hold a lock during a device call", 0, 0, true_or_false},
      {"release_lock_on_hipmalloc", &s::release_lock, format::choice, "False, True", "False",
       "as release_lock_on_cudamalloc", 0, 0, true_or_false},
      {"graph_capture_record_stream_reuse", &s::graph_capture_record_stream_reuse, format::choice,
       "False, True", "False", "none: graph capture is not supported", 0, 0, true_or_false},
      {"pinned_use_background_threads", &s::pinned_use_background_threads, format::choice, "False, True",
       "False", "pinned_host: a thread polls events, so that requests need not", 0, 0, true_or_false},
      {"pinned_use_cuda_host_register", &s::pinned_use_host_register, format::choice, "False, True", "False",
       "pinned_host: segments are ordinary memory that is registered with the device", 0, 0, true_or_false},
      {"pinned_use_hip_host_register", &s::pinned_use_host_register, format::choice, "False, True", "False",
       "as pinned_use_cuda_host_register", 0, 0, true_or_false},
      {"pinned_num_register_threads", &s::pinned_num_register_threads, format::power_of_two,
       "a power of two, at most 128", "1", "none: the system touches pages when it locks them", 1, 128,
       "must be a power of two of at most 128"},
      {"pinned_max_round_threshold_mb", &s::pinned_max_round_threshold, format::mebibytes, "integer",
       "unlimited", "pinned requests above this size are not rounded up to a power of two"},
      {"pinned_max_cached_size_mb", &s::pinned_max_cached_size, format::mebibytes, "integer", "unlimited",
       "pinned blocks above this size are released when they are freed"},
      {"pinned_reserve_segment_size_mb", &s::pinned_reserve_segment_size, format::mebibytes,
       "integer, more than 0", "off",
       "pinned_host: bytes that the first request reserves; later requests split them", 1,
       detail::max_mebibytes, "must be greater than 0 and less than 2^40"},
      {"pinned_free_catch_all", &s::pinned_free_catch_all, format::choice, "False, True", "False",
       "none: deallocation never throws", 0, 0, true_or_false},
  }};
  static constexpr std::array<detail::exclusion<key_name>, 0> exclusions{};
};

/// The grammar of PyTorch 2.14, which has no key for the size of an address range.
///   Source:  CUDAAllocatorConfig.h of PyTorch 2.14
struct pytorch_2_14 : pytorch {
  static constexpr std::string_view name = "pytorch_2_14";
  static constexpr auto keys = [] {
    auto all = pytorch::keys;
    for (const key_name absent :
         {key_name::expandable_segments_reserve, key_name::expandable_segments_reserve_by_class})
      all[static_cast<std::size_t>(absent)].name = {};
    return all;
  }();
};

}  // namespace tessera::config
