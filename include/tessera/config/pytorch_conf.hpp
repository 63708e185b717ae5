// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include <tessera/config/grammar.hpp>
#include <tessera/config/parse.hpp>

namespace tessera::inline v0_1::config {

/// The settings of a PYTORCH_CUDA_ALLOC_CONF. Sizes are in bytes.
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

/// The grammar of PYTORCH_CUDA_ALLOC_CONF.
///   Source:  PyTorch of mid-2026: c10's AllocatorConfig and CUDAAllocatorConfig
struct pytorch : detail::torch_syntax {
  using settings = pytorch_settings;
  static constexpr std::string_view name = "pytorch";
  static constexpr std::array<const char*, 3> variables{"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF",
                                                        "PYTORCH_ALLOC_CONF"};

  ///@{
  /// Short names for the table of keys.
  using s = settings;
  using format = detail::value_format;
  using key = detail::key_definition<s, divisions, memory_limit>;
  ///@}
  static constexpr std::array<key, 22> keys{{
      {"backend", &s::async_backend, format::choice, "native, cudaMallocAsync|hipMallocAsync", "native",
       "selects PyTorch's allocator or the driver's pools; the driver's pools only honor "
       "per_process_memory_fraction",
       0, 0, "must be native or cudaMallocAsync"},
      {"max_split_size_mb", &s::max_split_size, format::mebibytes, "integer, at least large_segment_size_mb",
       "unlimited",
       "blocks of at least this size serve only requests of a similar size, and are split only with "
       "expandable_segments",
       0, ~0ull, at_least_large},
      {"max_non_split_rounding_mb", &s::max_non_split_rounding, format::mebibytes,
       "integer, at least large_segment_size_mb", "large_segment_size_mb",
       "the maximum by which an oversize block may exceed the request that it serves", 0, ~0ull,
       at_least_large},
      key::size("large_segment_size_mb", &s::large_segment_size,
                "size of segments for blocks of 1 to 10 MiB, and of pages of expandable segments for blocks "
                "above 1 MiB",
                "integer, more than 10", "20", 11, "must be greater than 10 and less than 2^40"),
      {"garbage_collection_threshold", &s::garbage_collection_threshold, format::decimal,
       "between 0 and 1, both excluded", "off",
       "if a memory fraction is set and more than this fraction of it is reserved, growth first releases "
       "idle segments of at least average age; expandable segments are not released",
       1, 999'999'999, "must be greater than 0 and less than 1", &s::expandable_segments},
      {"roundup_power2_divisions", &s::roundup, format::divisions,
       "a power of two, or [size in MiB:divisions, ..., >:divisions]", "off",
       "number of block sizes between two powers of two; in a list, the first entry also covers all smaller "
       "sizes, > covers all above the entry before it, and other sizes are not divided"},
      key::flag("expandable_segments", &s::expandable_segments,
                "maps pages into address ranges, so that blocks of all sizes share them"),
      {"expandable_segments_reserve", &s::expandable_segments_reserve, format::fraction_or_gibibytes,
       "a fraction of the device, or GiB with a G", "9/8 of the device",
       "with expandable_segments, size of one address range"},
      {"expandable_segments_reserve_by_class", nullptr, format::ignored_list, "[class:reserve, ...]", "[]",
       "none: streams have no classes"},
      key::ratio("per_process_memory_fraction", &s::memory_fraction, "1.0",
                 "the fraction of the device that may be reserved"),
      key::flag("throw_on_cudamalloc_oom", &s::throw_on_oom,
                "a request over the limit fails at once; idle memory is not released first"),
      key::flag("release_lock_on_cudamalloc", &s::release_lock,
                "none: locked and per_stream unlock their mutex while a segment is acquired"),
      key::flag("release_lock_on_hipmalloc", &s::release_lock, "none: as release_lock_on_cudamalloc"),
      key::flag("graph_capture_record_stream_reuse", &s::graph_capture_record_stream_reuse,
                "none: the work in a graph is not seen, so blocks that several streams use stay pending "
                "until the capture ends"),
      key::flag("pinned_use_background_threads", &s::pinned_use_background_threads,
                "configured_pinned: a thread polls events, so that requests need not"),
      key::flag("pinned_use_cuda_host_register", &s::pinned_use_host_register,
                "configured_pinned: segments are ordinary memory that is registered with the device"),
      key::flag("pinned_use_hip_host_register", &s::pinned_use_host_register,
                "configured_pinned: as pinned_use_cuda_host_register"),
      {"pinned_num_register_threads", &s::pinned_num_register_threads, format::power_of_two,
       "a power of two, at most 128", "1", "none: the system touches pages when it locks them", 1, 128,
       "must be a power of two of at most 128"},
      {"pinned_max_round_threshold_mb", &s::pinned_max_round_threshold, format::mebibytes, "integer",
       "unlimited", "pytorch_pinned: requests above this size are not rounded up to a power of two"},
      {"pinned_max_cached_size_mb", &s::pinned_max_cached_size, format::mebibytes, "integer", "unlimited",
       "pytorch_pinned: blocks above this size are released when they are freed"},
      key::size("pinned_reserve_segment_size_mb", &s::pinned_reserve_segment_size,
                "configured_pinned: bytes that the first request reserves; later requests split them",
                "integer, more than 0", "off", 1, "must be greater than 0 and less than 2^40"),
      key::flag("pinned_free_catch_all", &s::pinned_free_catch_all, "none: deallocation never throws"),
  }};
  static constexpr std::array<detail::exclusion, 0> exclusions{};
};

/// The grammar of PyTorch 2.14, which has no key for the size of an address range.
///   Source:  CUDAAllocatorConfig.h of PyTorch 2.14
struct pytorch_2_14 : pytorch {
  static constexpr std::string_view name = "pytorch_2_14";
  static constexpr auto keys = [] {
    auto all = pytorch::keys;
    for (auto& key : all) {
      if (key.name.starts_with("expandable_segments_reserve")) key.name = {};
    }
    return all;
  }();
};

}  // namespace tessera::inline v0_1::config
