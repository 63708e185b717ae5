// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include <tessera/config/grammar.hpp>
#include <tessera/config/parse.hpp>

namespace tessera::inline v0_1::config {

/// The settings of a PYTORCH_NPU_ALLOC_CONF. Sizes are in bytes.
struct torch_npu_settings {
  std::size_t max_split_size = unlimited;
  std::size_t max_non_split_rounding = 20_MiB;
  std::size_t large_segment_size = 20_MiB;
  fraction garbage_collection_threshold{};
  divisions roundup{};
  bool expandable_segments = false;
  std::size_t base_addr_aligned = 16_KiB;
  bool huge_1g_pages = false;  ///< page_size:1g
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

/// The grammar of PYTORCH_NPU_ALLOC_CONF.
///
/// torch_npu's document says that page_size excludes all other keys. It also defines page_size together with
/// expandable_segments and segment_size_mb. tessera allows page_size with these two keys, with base_addr_aligned_kb, which
/// depends on them, and with the keys that the document does not have.
///   Source:  torch_npu's document for the first ten keys, its code for the others
struct torch_npu : detail::torch_syntax {
  using settings = torch_npu_settings;
  static constexpr std::string_view name = "torch_npu";
  static constexpr std::array<const char*, 1> variables{"PYTORCH_NPU_ALLOC_CONF"};

  ///@{
  /// Short names for the table of keys.
  using s = settings;
  using format = detail::value_format;
  using key = detail::key_definition<s, divisions>;
  ///@}
  static constexpr std::array<key, 19> keys{{
      {"max_split_size_mb", &s::max_split_size, format::mebibytes,
       "integer, more than 20, at least large_segment_size_mb", "unlimited",
       "blocks of at least this size are never split, and serve only requests of a similar size", 21, ~0ull,
       "must be greater than 20"},
      {"garbage_collection_threshold", &s::garbage_collection_threshold, format::decimal,
       "between 0 and 1, both excluded", "off",
       "if a memory fraction is set and more than this fraction of it is reserved, growth first releases "
       "idle segments of at least average age",
       1, 999'999'999, "must be greater than 0 and less than 1"},
      key::flag("expandable_segments", &s::expandable_segments,
                "maps pages into address ranges, so that blocks of all sizes share them"),
      {"base_addr_aligned_kb", &s::base_addr_aligned, format::kibibytes, "integer, 0 to 16", "16",
       "with expandable_segments, alignment of blocks of at least 2 MiB where there is room; 0 for 512 bytes",
       0, 16, "must be from 0 to 16"},
      {"page_size", &s::huge_1g_pages, format::single_choice, "1g", "2 MiB",
       "segments for blocks above 1 MiB consist of 1 GiB pages; overrides segment_size_mb and "
       "large_segment_size_mb",
       0, 0, "must be 1g"},
      {"segment_size_mb", &s::segment_size, format::mebibytes, "integer, 20 to 512", "20",
       "with expandable_segments, the bytes mapped at once for blocks above 1 MiB", 20, 512,
       "must be from 20 to 512"},
      {"roundup_power2_divisions", &s::roundup, format::divisions_or_zero,
       "0, a power of two, or [size in MiB:divisions, ..., >:divisions]", "off",
       "number of block sizes between two powers of two; in a list, the first entry also covers all smaller "
       "sizes, > covers all above the entry before it, and other sizes are not divided"},
      key::flag("pinned_use_background_threads", &s::pinned_use_background_threads,
                "configured_pinned: a thread polls events, so that requests need not"),
      key::flag("pin_memory_expandable_segments", &s::pin_memory_expandable_segments,
                "torch_npu_pinned: memory is mapped in pages of 20 MiB, and statistics omit its blocks"),
      key::flag("pinned_mem_register", &s::pinned_mem_register,
                "configured_pinned: segments are registered with the device"),
      {"max_non_split_rounding_mb", &s::max_non_split_rounding, format::mebibytes,
       "integer, at least large_segment_size_mb", "large_segment_size_mb",
       "the maximum by which an oversize block may exceed the request that it serves", 0, ~0ull,
       at_least_large},
      key::size("large_segment_size_mb", &s::large_segment_size,
                "size of segments for blocks of 1 to 10 MiB; if not 20, also of pages of expandable segments "
                "for blocks above 1 MiB, which overrides segment_size_mb",
                "integer, more than 10", "20", 11, "must be greater than 10 and less than 2^40"),
      key::ratio("per_process_memory_fraction", &s::memory_fraction, "1.0",
                 "the fraction of the device that may be reserved"),
      key::flag("throw_on_npumalloc_oom", &s::throw_on_oom,
                "a request over the limit fails at once; idle memory is not released first"),
      key::flag("release_lock_on_npumalloc", &s::release_lock,
                "none: locked and per_stream unlock their mutex while a segment is acquired"),
      key::flag("multi_stream_lazy_reclaim", &s::multi_stream_lazy_reclaim,
                "a request polls events only if more than 512 events are pending or nothing fits"),
      {"pinned_max_round_threshold_mb", &s::pinned_max_round_threshold, format::mebibytes, "integer",
       "unlimited",
       "torch_npu_pinned: without pin_memory_expandable_segments, requests above this size are not rounded "
       "up to a power of two"},
      {"pinned_max_cached_size_mb", &s::pinned_max_cached_size, format::mebibytes, "integer", "unlimited",
       "torch_npu_pinned: without pin_memory_expandable_segments, blocks above this size are released when "
       "they are freed"},
      key::size("pinned_reserve_segment_size_mb", &s::pinned_reserve_segment_size,
                "configured_pinned: bytes that the first request reserves; later requests split them"),
  }};

  ///@{
  /// The rule of the error if two keys conflict.
  static constexpr std::string_view expandable_rule =
      "max_split_size_mb and garbage_collection_threshold require expandable_segments:False";
  static constexpr std::string_view page_size_rule =
      "page_size allows only expandable_segments, base_addr_aligned_kb, segment_size_mb, "
      "large_segment_size_mb, "
      "max_non_split_rounding_mb, per_process_memory_fraction, throw_on_npumalloc_oom, "
      "release_lock_on_npumalloc, "
      "multi_stream_lazy_reclaim, pinned_max_round_threshold_mb, pinned_max_cached_size_mb and "
      "pinned_reserve_segment_size_mb beside it";
  static constexpr std::string_view pinned_rule =
      "pinned_mem_register and pin_memory_expandable_segments exclude each other";
  ///@}
  static constexpr std::array<detail::exclusion, 9> exclusions{
      {{"expandable_segments", "max_split_size_mb", expandable_rule},
       {"expandable_segments", "garbage_collection_threshold", expandable_rule},
       {"pin_memory_expandable_segments", "pinned_mem_register", pinned_rule},
       {"page_size", "max_split_size_mb", page_size_rule},
       {"page_size", "garbage_collection_threshold", page_size_rule},
       {"page_size", "roundup_power2_divisions", page_size_rule},
       {"page_size", "pinned_use_background_threads", page_size_rule},
       {"page_size", "pin_memory_expandable_segments", page_size_rule},
       {"page_size", "pinned_mem_register", page_size_rule}}};
};

}  // namespace tessera::inline v0_1::config
