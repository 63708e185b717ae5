// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

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
  bool giant_pages = false;      ///< page_size:1g
  std::size_t segment_size = 0;  ///< 0 where it is not said
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

}  // namespace tessera::config
