// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <tessera/config/dialect.hpp>
#include <tessera/config/key.hpp>
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

/// Paddle's flags, in the order of their table.
enum class paddle_key : unsigned char {
  FLAGS_allocator_strategy,
  FLAGS_fraction_of_gpu_memory_to_use,
  FLAGS_initial_gpu_memory_in_mb,
  FLAGS_reallocate_gpu_memory_in_mb,
  FLAGS_gpu_memory_limit_mb,
  FLAGS_gpu_allocator_retry_time,
  FLAGS_auto_growth_chunk_size_in_mb,
  FLAGS_free_idle_chunk,
  FLAGS_free_when_no_cache_hit,
  FLAGS_small_pool_size_in_mb,
  FLAGS_small_pool_auto_growth_chunk_size_in_mb,
  FLAGS_large_pool_auto_growth_chunk_size_in_mb,
  FLAGS_eager_delete_tensor_gb,
  FLAGS_memory_fraction_of_eager_deletion,
  FLAGS_fast_eager_deletion_mode
};

/// The dialect of Paddle's flags, as `FLAGS_name=value`, parted by commas; in the environment each has its own variable.
///   Source:  Paddle's document on memory allocation; its flags.cc for what that leaves out
struct paddle {
  using settings = paddle_settings;
  using key_name = paddle_key;
  static constexpr std::string_view name = "paddle";
  static constexpr std::array<const char*, 0> variables{};  // each key is one
  static constexpr std::string_view delimiters = ",=";
  static constexpr std::string_view assign = "=";
  static constexpr std::string_view assign_rule = "a '=' must follow the flag";

  static constexpr std::string_view flags = "False|false|0, True|true|1";
  static constexpr std::string_view flag_rule = "must be True or False";
  static constexpr std::string_view share_rule = "must be from 0 to 1";
  using s = paddle_settings;
  static constexpr std::array<key<s>, 15> keys{{
      {"FLAGS_allocator_strategy", &s::naive_best_fit, form::words, "auto_growth, naive_best_fit",
       "auto_growth",
       "whether memory is taken as it is needed, or a large chunk in advance; Paddle's thread_local is not "
       "there",
       0, 0, "must be auto_growth or naive_best_fit"},
      {"FLAGS_fraction_of_gpu_memory_to_use", &s::fraction_of_gpu_memory, form::decimal, "0 to 1", "0.92",
       "naive_best_fit: the share of the memory available that a chunk takes; 0 asks the device for each "
       "request",
       0, 1'000'000'000, share_rule},
      {"FLAGS_initial_gpu_memory_in_mb", &s::initial_gpu_memory, form::mebibytes, "whole", "0",
       "naive_best_fit: the first chunk; 0 for the fraction", 0, max_mebibytes, below_2_to_40},
      {"FLAGS_reallocate_gpu_memory_in_mb", &s::reallocate_gpu_memory, form::mebibytes, "whole", "0",
       "naive_best_fit: further chunks; 0 for the fraction", 0, max_mebibytes, below_2_to_40},
      {"FLAGS_gpu_memory_limit_mb", &s::gpu_memory_limit, form::mebibytes, "whole", "0",
       "the most that may be reserved, by limited for all allocators of a device; 0 for no limit"},
      {"FLAGS_gpu_allocator_retry_time", &s::retry_milliseconds, form::whole, "whole, milliseconds", "10000",
       "by retrying: how long a request waits for others to free what it needs; 0 for not at all", 0,
       (std::uint64_t{1} << 53) - 1, "must be less than 2^53"},
      {"FLAGS_auto_growth_chunk_size_in_mb", &s::auto_growth_chunk_size, form::mebibytes, "whole", "0",
       "auto_growth: where there is one pool, the least that is taken from the device at once; 0 for what a "
       "request needs",
       0, max_mebibytes, below_2_to_40},
      {"FLAGS_free_idle_chunk", &s::free_idle_chunk, form::words, flags, "False",
       "auto_growth: idle chunks go back at each free", 0, 0, flag_rule},
      {"FLAGS_free_when_no_cache_hit", &s::free_when_no_cache_hit, form::words, flags, "False",
       "auto_growth: idle chunks go back before a new one is taken", 0, 0, flag_rule},
      {"FLAGS_small_pool_size_in_mb", &s::small_pool_size, form::mebibytes, "whole", "0",
       "auto_growth: blocks of up to this size have a pool of their own; 0 for one pool"},
      {"FLAGS_small_pool_auto_growth_chunk_size_in_mb", &s::small_pool_chunk_size, form::mebibytes, "whole",
       "0", "auto_growth: the chunk of that pool; 0 for what a request needs", 0, max_mebibytes,
       below_2_to_40},
      {"FLAGS_large_pool_auto_growth_chunk_size_in_mb", &s::large_pool_chunk_size, form::mebibytes, "whole",
       "0", "auto_growth: the chunk of the other pool; 0 for what a request needs", 0, max_mebibytes,
       below_2_to_40},
      {"FLAGS_eager_delete_tensor_gb", &s::garbage_threshold, form::gibibytes_or_less, "a number of GiB", "0",
       "by collector: garbage is kept until there is so much; 0 frees at once, below 0 never", 0,
       (std::uint64_t{1'000'000'000} << 30) - 1, "must be less than 2^30"},
      {"FLAGS_memory_fraction_of_eager_deletion", &s::memory_fraction_of_eager_deletion, form::decimal,
       "0 to 1", "1.0",
       "by choose_collected: the share of all bytes that is collected, largest variables first", 0,
       1'000'000'000, share_rule},
      {"FLAGS_fast_eager_deletion_mode", &s::fast_eager_deletion, form::words, flags, "True",
       "by collector: garbage is freed without waiting for the stream that uses it", 0, 0, flag_rule},
  }};
  static constexpr std::array<exclusion<key_name>, 0> exclusions{};
  static constexpr std::array<min_size<key_name>, 0> least_sizes{};
  static constexpr void settle(settings&, auto) noexcept {}
};

}  // namespace tessera::config
