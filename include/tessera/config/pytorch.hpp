// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include <tessera/config/dialect.hpp>
#include <tessera/config/key.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/divisions.hpp>
#include <tessera/core/fraction.hpp>
#include <tessera/core/memory_limit.hpp>

namespace tessera::config {

/// What a PYTORCH_CUDA_ALLOC_CONF says; sizes in bytes.
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

/// The keys of PYTORCH_CUDA_ALLOC_CONF, in the order of their table.
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

/// The dialect of PYTORCH_CUDA_ALLOC_CONF.
///   Source:  PyTorch of mid-2026: c10's AllocatorConfig and CUDAAllocatorConfig
struct pytorch : torch_syntax<pytorch_key> {
  using settings = pytorch_settings;
  static constexpr std::string_view name = "pytorch";
  static constexpr std::array<const char*, 2> variables{"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"};

  using s = pytorch_settings;
  static constexpr std::array<key<s, divisions, memory_limit>, 22> keys{{
      {"backend", &s::async_backend, form::words, "native, cudaMallocAsync|hipMallocAsync", "native",
       "which allocator decides: PyTorch's own, or pools of the driver, to which of the other keys only "
       "per_process_memory_fraction says something",
       0, 0, "must be native or cudaMallocAsync"},
      {"max_split_size_mb", &s::max_split_size, form::mebibytes, "whole, at least large_segment_size_mb",
       "unlimited",
       "blocks of this size and more are never cut, and serve only requests of about their size"},
      {"max_non_split_rounding_mb", &s::max_non_split_rounding, form::mebibytes,
       "whole, at least large_segment_size_mb", "large_segment_size_mb",
       "how much larger than a request an oversize block that serves it may be"},
      {"large_segment_size_mb", &s::large_segment_size, form::mebibytes, "whole, more than 10", "20",
       "segments for blocks of 1 to 10 MiB, and pages of expandable segments for blocks above 1 MiB", 11,
       max_mebibytes, "must be greater than 10 and less than 2^40"},
      {"garbage_collection_threshold", &s::garbage_collection_threshold, form::decimal,
       "between 0 and 1, both excluded", "off",
       "once a memory fraction was set and more than this share of it is reserved, growth first gives back "
       "idle segments at least as old as the average; none of expandable segments",
       1, 999'999'999, "must be greater than 0 and less than 1"},
      {"roundup_power2_divisions", &s::roundup, form::divisions,
       "a power of two, or [size in MiB:divisions, ..., >:divisions]", "off",
       "into how many sizes the range between two powers of two is divided; in a list, the first size also "
       "stands for all smaller ones, > for all above the one before it, and other sizes are not divided"},
      {"expandable_segments", &s::expandable_segments, form::words, "False, True", "False",
       "pages are mapped into ranges of addresses, so that blocks of all sizes share them", 0, 0,
       true_or_false},
      {"expandable_segments_reserve", &s::expandable_segments_reserve, form::share_or_gibibytes,
       "a share of the device, or GiB with a G", "9/8 of the device", "addresses reserved for one range"},
      {"expandable_segments_reserve_by_class", nullptr, form::list, "[class:reserve, ...]", "[]",
       "none: streams have no classes here"},
      {"per_process_memory_fraction", &s::memory_fraction, form::decimal, "0 to 1", "1.0",
       "the share of the device that may be reserved", 0, 1'000'000'000, "must be from 0 to 1"},
      {"throw_on_cudamalloc_oom", &s::throw_on_oom, form::words, "False, True", "False",
       "a request over the limit fails at once, without giving idle memory back first", 0, 0, true_or_false},
      {"release_lock_on_cudamalloc", &s::release_lock, form::words, "False, True", "False",
       "none: locked and per_stream hold no lock while the device is asked", 0, 0, true_or_false},
      {"release_lock_on_hipmalloc", &s::release_lock, form::words, "False, True", "False",
       "as release_lock_on_cudamalloc", 0, 0, true_or_false},
      {"graph_capture_record_stream_reuse", &s::graph_capture_record_stream_reuse, form::words, "False, True",
       "False", "none: there is no capture of graphs", 0, 0, true_or_false},
      {"pinned_use_background_threads", &s::pinned_use_background_threads, form::words, "False, True",
       "False", "by pinned_host: a thread looks after events, so that requests need not", 0, 0,
       true_or_false},
      {"pinned_use_cuda_host_register", &s::pinned_use_host_register, form::words, "False, True", "False",
       "by pinned_host: segments are ordinary memory that is registered with the device", 0, 0,
       true_or_false},
      {"pinned_use_hip_host_register", &s::pinned_use_host_register, form::words, "False, True", "False",
       "as pinned_use_cuda_host_register", 0, 0, true_or_false},
      {"pinned_num_register_threads", &s::pinned_num_register_threads, form::power_of_two,
       "a power of two, at most 128", "1", "none: the system touches pages when it locks them", 1, 128,
       "must be a power of two of at most 128"},
      {"pinned_max_round_threshold_mb", &s::pinned_max_round_threshold, form::mebibytes, "whole", "unlimited",
       "pinned requests above it are not rounded up to a power of two"},
      {"pinned_max_cached_size_mb", &s::pinned_max_cached_size, form::mebibytes, "whole", "unlimited",
       "pinned blocks above it go back to the system when they are freed"},
      {"pinned_reserve_segment_size_mb", &s::pinned_reserve_segment_size, form::mebibytes,
       "whole, more than 0", "off", "by pinned_host: memory that is taken at the first request and cut up", 1,
       max_mebibytes, "must be greater than 0 and less than 2^40"},
      {"pinned_free_catch_all", &s::pinned_free_catch_all, form::words, "False, True", "False",
       "none: nothing here throws when it frees", 0, 0, true_or_false},
  }};
  static constexpr std::array<exclusion<key_name>, 0> exclusions{};
};

/// The dialect of PyTorch 2.14, which has no key for what a range reserves.
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
