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

namespace tessera::config {

/// What a PYTORCH_NPU_ALLOC_CONF says; sizes in bytes.
struct torch_npu_settings {
  std::size_t max_split_size = unlimited;
  std::size_t max_non_split_rounding = 20_MiB;
  std::size_t large_segment_size = 20_MiB;
  fraction garbage_collection_threshold{};
  divisions roundup{};
  bool expandable_segments = false;
  std::size_t base_addr_aligned = 16_KiB;
  bool giant_pages = false;  ///< page_size:1g
  std::size_t segment_size = 20_MiB;
  bool multi_stream_lazy_reclaim = false;
  fraction memory_fraction = percent(100);
  bool throw_on_oom = false;
  bool release_lock = false;
  bool pinned_use_background_threads = false;
  bool pin_memory_expandable_segments = false;
  bool pinned_mem_register = false;
  std::size_t pinned_max_round_threshold = unlimited;
  std::size_t pinned_max_cached_size = unlimited;
  std::size_t pinned_reserve_segment_size = 0;
  bool operator==(const torch_npu_settings&) const = default;
};

/// The keys of PYTORCH_NPU_ALLOC_CONF, in the order of their table.
enum class torch_npu_key : unsigned char {
  max_split_size_mb,
  garbage_collection_threshold,
  expandable_segments,
  base_addr_aligned_kb,
  page_size,
  segment_size_mb,
  roundup_power2_divisions,
  pinned_use_background_threads,
  pin_memory_expandable_segments,
  pinned_mem_register,
  max_non_split_rounding_mb,
  large_segment_size_mb,
  per_process_memory_fraction,
  throw_on_npumalloc_oom,
  release_lock_on_npumalloc,
  multi_stream_lazy_reclaim,
  pinned_max_round_threshold_mb,
  pinned_max_cached_size_mb,
  pinned_reserve_segment_size_mb
};

/// The dialect of PYTORCH_NPU_ALLOC_CONF.
///
/// Its document says that page_size goes with nothing else, and also what it means together with expandable_segments and
/// segment_size_mb: so it goes with these and with base_addr_aligned_kb, which belongs to them, and with nothing else.
///   Source:  torch_npu's document for the first ten keys, its code for the others
struct torch_npu : torch_syntax<torch_npu_key> {
  using settings = torch_npu_settings;
  static constexpr std::string_view name = "torch_npu";
  static constexpr std::array<const char*, 1> variables{"PYTORCH_NPU_ALLOC_CONF"};

  using s = torch_npu_settings;
  static constexpr std::array<key<s, divisions>, 19> keys{{
      {"max_split_size_mb", &s::max_split_size, form::mebibytes,
       "whole, more than 20, at least large_segment_size_mb", "unlimited",
       "blocks of this size and more are never cut, and serve only requests of about their size", 21, ~0ull,
       "must be greater than 20"},
      {"garbage_collection_threshold", &s::garbage_collection_threshold, form::decimal,
       "between 0 and 1, both excluded", "off",
       "once a memory fraction was set and more than this share of it is reserved, growth first gives back "
       "idle segments at least as old as the average",
       1, 999'999'999, "must be greater than 0 and less than 1"},
      {"expandable_segments", &s::expandable_segments, form::words, "False, True", "False",
       "pages are mapped into ranges of addresses, so that blocks of all sizes share them", 0, 0,
       true_or_false},
      {"base_addr_aligned_kb", &s::base_addr_aligned, form::kibibytes, "whole, 0 to 16", "16",
       "with expandable_segments, blocks of 2 MiB and more begin at a multiple of it where there is room; "
       "0 for 512 bytes",
       0, 16, "must be from 0 to 16"},
      {"page_size", &s::giant_pages, form::only_word, "1g", "2 MiB",
       "segments for blocks above 1 MiB are made of 1 GiB pages; it wins over segment_size_mb and "
       "large_segment_size_mb",
       0, 0, "must be 1g"},
      {"segment_size_mb", &s::segment_size, form::mebibytes, "whole, 20 to 512", "20",
       "with expandable_segments, what is mapped at once for blocks above 1 MiB", 20, 512,
       "must be from 20 to 512"},
      {"roundup_power2_divisions", &s::roundup, form::divisions_or_zero,
       "0, a power of two, or [size in MiB:divisions, ..., >:divisions]", "off",
       "into how many sizes the range between two powers of two is divided; in a list, the first size also "
       "stands for all smaller ones, > for all above the one before it, and other sizes are not divided"},
      {"pinned_use_background_threads", &s::pinned_use_background_threads, form::words, "False, True",
       "False", "by pinned_host: a thread looks after events, so that requests need not", 0, 0,
       true_or_false},
      {"pin_memory_expandable_segments", &s::pin_memory_expandable_segments, form::words, "False, True",
       "False", "pinned memory is mapped in pages of 20 MiB, and statistics do not count its blocks", 0, 0,
       true_or_false},
      {"pinned_mem_register", &s::pinned_mem_register, form::words, "False, True", "False",
       "by pinned_host: segments are registered with the device", 0, 0, true_or_false},
      {"max_non_split_rounding_mb", &s::max_non_split_rounding, form::mebibytes,
       "whole, at least large_segment_size_mb", "large_segment_size_mb",
       "how much larger than a request an oversize block that serves it may be"},
      {"large_segment_size_mb", &s::large_segment_size, form::mebibytes, "whole, more than 10", "20",
       "segments for blocks of 1 to 10 MiB, and pages of expandable segments for blocks above 1 MiB, where "
       "it is "
       "other than 20 and so wins over segment_size_mb",
       11, max_mebibytes, "must be greater than 10 and less than 2^40"},
      {"per_process_memory_fraction", &s::memory_fraction, form::decimal, "0 to 1", "1.0",
       "the share of the device that may be reserved", 0, 1'000'000'000, "must be from 0 to 1"},
      {"throw_on_npumalloc_oom", &s::throw_on_oom, form::words, "False, True", "False",
       "a request over the limit fails at once, without giving idle memory back first", 0, 0, true_or_false},
      {"release_lock_on_npumalloc", &s::release_lock, form::words, "False, True", "False",
       "none: locked and per_stream hold no lock while the device is asked", 0, 0, true_or_false},
      {"multi_stream_lazy_reclaim", &s::multi_stream_lazy_reclaim, form::words, "False, True", "False",
       "a request looks at events only where more than 512 wait, or where nothing fits", 0, 0, true_or_false},
      {"pinned_max_round_threshold_mb", &s::pinned_max_round_threshold, form::mebibytes, "whole", "unlimited",
       "pinned requests above it are not rounded up to a power of two"},
      {"pinned_max_cached_size_mb", &s::pinned_max_cached_size, form::mebibytes, "whole", "unlimited",
       "pinned blocks above it go back to the system when they are freed"},
      {"pinned_reserve_segment_size_mb", &s::pinned_reserve_segment_size, form::mebibytes, "whole", "0",
       "by pinned_host: memory that is taken at the first request and cut up", 0, max_mebibytes,
       below_2_to_40},
  }};

  static constexpr std::string_view expandable_rule =
      "max_split_size_mb and garbage_collection_threshold go only with expandable_segments:False";
  static constexpr std::string_view pages_rule =
      "page_size goes with no other feature but expandable_segments, segment_size_mb, base_addr_aligned_kb";
  static constexpr std::string_view pinned_rule =
      "pinned_mem_register does not go with pin_memory_expandable_segments";
  static constexpr std::array<exclusion<key_name>, 9> exclusions{
      {{key_name::expandable_segments, key_name::max_split_size_mb, expandable_rule},
       {key_name::expandable_segments, key_name::garbage_collection_threshold, expandable_rule},
       {key_name::pin_memory_expandable_segments, key_name::pinned_mem_register, pinned_rule},
       {key_name::page_size, key_name::max_split_size_mb, pages_rule},
       {key_name::page_size, key_name::garbage_collection_threshold, pages_rule},
       {key_name::page_size, key_name::roundup_power2_divisions, pages_rule},
       {key_name::page_size, key_name::pinned_use_background_threads, pages_rule},
       {key_name::page_size, key_name::pin_memory_expandable_segments, pages_rule},
       {key_name::page_size, key_name::pinned_mem_register, pages_rule}}};
};

}  // namespace tessera::config
