// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>
#include <tessera/core/fraction.hpp>

namespace tessera::config {

/// What Paddle's FLAGS_* say of its allocators; sizes in bytes.
struct paddle_settings {
  bool naive_best_fit = false;  ///< allocator_strategy; else auto_growth
  fraction fraction_of_gpu_memory = percent(92);
  std::size_t initial_gpu_memory = 0;         ///< 0: by the fraction
  std::size_t reallocate_gpu_memory = 0;      ///< 0: by the fraction
  std::size_t gpu_memory_limit = 0;           ///< 0: none
  std::uint64_t retry_milliseconds = 10'000;  ///< gpu_allocator_retry_time
  std::size_t auto_growth_chunk_size = 0;     ///< 0: what a request needs
  bool free_idle_chunk = false;
  bool free_when_no_cache_hit = false;
  std::size_t small_pool_size = 0;        ///< 0: one pool
  std::size_t small_pool_chunk_size = 0;  ///< small_pool_auto_growth_chunk_size_in_mb
  std::size_t large_pool_chunk_size = 0;  ///< large_pool_auto_growth_chunk_size_in_mb
  std::size_t garbage_threshold = 0;  ///< eager_delete_tensor_gb; `unlimited` where that is negative: never
  fraction memory_fraction_of_eager_deletion = percent(100);
  bool fast_eager_deletion = true;
  bool operator==(const paddle_settings&) const = default;
};

}  // namespace tessera::config
