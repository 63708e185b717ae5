// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include <tessera/config/grammar.hpp>
#include <tessera/config/parse.hpp>

namespace tessera::inline v0_1::config {

/// The grammar of Paddle's flags: `FLAGS_name=value`, separated by commas. In the environment, each flag is a
/// variable.
///   Source:  Paddle's document on memory allocation, and its flags.cc; pull requests 76222 and 76523 for
///            use_multi_scale_virtual_memory_auto_growth, 76430 and api_gen_utils.cc for enable_compact_mem
struct paddle {
  /// The settings of the flags for allocators. Sizes are in bytes.
  struct settings {
    bool naive_best_fit = false;  ///< allocator_strategy; otherwise auto_growth
    fraction fraction_of_gpu_memory = percent(92);
    std::size_t initial_gpu_memory = 0;       ///< 0: by fraction_of_gpu_memory
    std::size_t reallocate_gpu_memory = 0;    ///< 0: by fraction_of_gpu_memory
    std::size_t gpu_memory_limit = 0;         ///< 0: no limit
    std::size_t retry_milliseconds = 10'000;  ///< gpu_allocator_retry_time
    std::size_t auto_growth_chunk_size = 0;   ///< 0: the size of the request
    bool free_idle_chunk = false;
    bool free_when_no_cache_hit = false;
    bool virtual_memory = false;     ///< use_virtual_memory_auto_growth
    bool multi_scale = false;        ///< use_multi_scale_virtual_memory_auto_growth
    bool virtual_memory_v2 = false;  ///< use_vmm_auto_growth_best_fit_allocator_v2
    bool vmm_v2_remap_on_oom = true;
    std::size_t small_pool_size = 0;           ///< 0: one pool
    std::size_t small_pool_chunk_size = 0;     ///< small_pool_auto_growth_chunk_size_in_mb
    std::size_t large_pool_chunk_size = 0;     ///< large_pool_auto_growth_chunk_size_in_mb
    std::size_t vmm_small_pool_size = 1_MiB;   ///< 0: one pool; with virtual_memory_v2, 2 MiB
    std::size_t vmm_v2_handle_size = 16_MiB;   ///< vmm_v2_large_pool_handle_size_in_mb
    bool enable_compact_mem = false;           ///< always false, because live blocks do not move
    std::size_t max_reserved_threshold = 70;   ///< in GiB; without effect, as without enable_compact_mem
    std::size_t cur_allocated_threshold = 55;  ///< in GiB; without effect
    bool try_allocate = false;                 ///< without effect
    std::size_t garbage_threshold = 0;  ///< eager_delete_tensor_gb; `unlimited` if negative: never freed
    fraction memory_fraction_of_eager_deletion = percent(100);
    bool fast_eager_deletion = true;

    /// Whether a flag chooses the first allocator with virtual memory, which Paddle prefers to the second.
    [[nodiscard]] constexpr bool chooses_virtual_memory_v1() const noexcept {
      return virtual_memory || multi_scale;
    }
    /// gpu_memory_limit for `limiting`.
    [[nodiscard]] constexpr std::size_t limit() const noexcept {
      return gpu_memory_limit > 0 ? gpu_memory_limit : unlimited;
    }
    bool operator==(const settings&) const = default;
  };
  static constexpr std::string_view name = "paddle";
  static constexpr std::array<const char*, 0> variables{};  // each key is a variable
  static constexpr std::string_view delimiters = ",=";
  static constexpr std::string_view assign = "=";
  static constexpr std::string_view assign_rule = "a '=' must follow the flag";

  ///@{
  /// A flag that is on or off: its values, and the rule of the error for any other.
  static constexpr std::string_view true_or_false = "False|false|0, True|true|1";
  static constexpr std::string_view not_bool = "must be True, true, 1, False, false or 0";
  ///@}
  /// The rule of the error for a flag that Paddle knows and no recipe can follow.
  static constexpr std::string_view moves_live_blocks =
      "must be False: True is not supported, because Paddle then moves live blocks";
  ///@{
  /// Short names for the table of keys.
  using s = settings;
  using format = detail::value_format;
  using key = detail::key_definition<s>;
  ///@}
  static constexpr std::array<key, 25> keys{{
      {"FLAGS_allocator_strategy", &s::naive_best_fit, format::choice, "auto_growth, naive_best_fit",
       "auto_growth",
       "auto_growth reserves memory on demand, naive_best_fit a large chunk in advance; Paddle's "
       "thread_local is not supported",
       0, 0, "must be auto_growth or naive_best_fit"},
      key::ratio("FLAGS_fraction_of_gpu_memory_to_use", &s::fraction_of_gpu_memory, "0.92",
                 "naive_best_fit: chunk size as a fraction of the available memory; 0 allocates each request "
                 "from the device"),
      key::size("FLAGS_initial_gpu_memory_in_mb", &s::initial_gpu_memory,
                "naive_best_fit: size of the first chunk; 0 for the fraction"),
      key::size("FLAGS_reallocate_gpu_memory_in_mb", &s::reallocate_gpu_memory,
                "naive_best_fit: size of further chunks; 0 for the fraction"),
      {"FLAGS_gpu_memory_limit_mb", &s::gpu_memory_limit, format::mebibytes, "integer", "0",
       "limiting: maximum bytes that all allocators of a device may reserve; 0 for no limit"},
      {"FLAGS_gpu_allocator_retry_time", &s::retry_milliseconds, format::integer, "integer, milliseconds",
       "10000", "waiting: how long a request waits for other threads to free memory; 0 for no wait", 0,
       (std::uint64_t{1} << 53) - 1, "must be from 0 to 2^53 - 1"},
      key::size("FLAGS_auto_growth_chunk_size_in_mb", &s::auto_growth_chunk_size,
                "auto_growth with one pool: minimum chunk size; 0 for the size of the request"),
      key::flag("FLAGS_free_idle_chunk", &s::free_idle_chunk, "auto_growth: each free releases idle chunks",
                true_or_false, "False", not_bool),
      key::flag("FLAGS_free_when_no_cache_hit", &s::free_when_no_cache_hit,
                "auto_growth: idle chunks are released before a new chunk is reserved", true_or_false,
                "False", not_bool),
      {"FLAGS_small_pool_size_in_mb", &s::small_pool_size, format::mebibytes, "integer", "0",
       "auto_growth: maximum size of a block in the small pool; 0 for one pool"},
      key::size("FLAGS_small_pool_auto_growth_chunk_size_in_mb", &s::small_pool_chunk_size,
                "auto_growth: chunk size of the small pool; 0 for the size of the request"),
      key::size("FLAGS_large_pool_auto_growth_chunk_size_in_mb", &s::large_pool_chunk_size,
                "auto_growth: chunk size of the large pool; 0 for the size of the request"),
      key::flag("FLAGS_use_virtual_memory_auto_growth", &s::virtual_memory,
                "auto_growth: maps memory at the end of a range of addresses, in one chunk at a time",
                true_or_false, "False", not_bool),
      key::flag(
          "FLAGS_use_multi_scale_virtual_memory_auto_growth", &s::multi_scale,
          "auto_growth: as use_virtual_memory_auto_growth, whose two pools Paddle first had under this flag; "
          "a block of vmm_small_pool_size_in_mb is small",
          true_or_false, "False", not_bool),
      key::flag(
          "FLAGS_use_vmm_auto_growth_best_fit_allocator_v2", &s::virtual_memory_v2,
          "auto_growth: maps chunks of one size at the end of a range of addresses; Paddle's default is "
          "True since August 2026. Without effect with the two flags above",
          true_or_false, "False", not_bool),
      key::size(
          "FLAGS_vmm_small_pool_size_in_mb", &s::vmm_small_pool_size,
          "virtual memory: blocks below this size are in the small pool; 0 for one pool, in v2 for 2 MiB. "
          "With use_multi_scale_virtual_memory_auto_growth, the default is 0",
          "integer", "1"),
      key::size("FLAGS_vmm_v2_large_pool_handle_size_in_mb", &s::vmm_v2_handle_size,
                "virtual memory, v2: chunk size of the large pool; the small pool has 2 MiB",
                "integer of at least 1", "16", 1, "must be from 1 to 2^40 - 1"),
      key::flag("FLAGS_vmm_v2_remap_on_oom", &s::vmm_v2_remap_on_oom,
                "virtual memory, v2: idle chunks of the large pool move if the device refuses memory",
                true_or_false, "True", not_bool),
      key::flag("FLAGS_enable_compact_mem", &s::enable_compact_mem,
                "none: only False is accepted. In Paddle, True moves live blocks of "
                "use_virtual_memory_auto_growth; here, their addresses never change",
                "False|false|0", "False", moves_live_blocks),
      {"FLAGS_max_reserved_threshold_in_gb", &s::max_reserved_threshold, format::integer, "integer, GiB",
       "70", "none: Paddle reads it only with enable_compact_mem", 0, (std::uint64_t{1} << 63) - 1,
       "must be from 0 to 2^63 - 1"},
      {"FLAGS_cur_allocated_threshold_in_gb", &s::cur_allocated_threshold, format::integer, "integer, GiB",
       "55", "none: as max_reserved_threshold_in_gb", 0, (std::uint64_t{1} << 63) - 1,
       "must be from 0 to 2^63 - 1"},
      key::flag("FLAGS_try_allocate", &s::try_allocate, "none: as max_reserved_threshold_in_gb",
                true_or_false, "False", not_bool),
      {"FLAGS_eager_delete_tensor_gb", &s::garbage_threshold, format::gibibytes_or_never, "a number of GiB",
       "0",
       "deferred_free_queue: size at which collected memory is freed; 0 frees at once, a negative number "
       "never",
       0, (std::uint64_t{1'000'000'000} << 30) - 1, "must be less than 2^30"},
      key::ratio("FLAGS_memory_fraction_of_eager_deletion", &s::memory_fraction_of_eager_deletion, "1.0",
                 "choose_collected: the fraction of all bytes that is collected, largest variables first"),
      key::flag("FLAGS_fast_eager_deletion_mode", &s::fast_eager_deletion,
                "deferred_free_queue: memory is freed without waiting for the stream that uses it",
                true_or_false, "True", not_bool),
  }};
  /// The rule of the error if two flags conflict.
  static constexpr std::string_view needs_auto_growth = "virtual memory needs allocator_strategy=auto_growth";
  static constexpr std::array<detail::exclusion, 3> exclusions{
      {{"FLAGS_use_virtual_memory_auto_growth", "FLAGS_allocator_strategy", needs_auto_growth},
       {"FLAGS_use_multi_scale_virtual_memory_auto_growth", "FLAGS_allocator_strategy", needs_auto_growth},
       {"FLAGS_use_vmm_auto_growth_best_fit_allocator_v2", "FLAGS_allocator_strategy", needs_auto_growth}}};
  static constexpr std::array<detail::min_size, 0> min_sizes{};
  /// Sets the size of the small pool to what it was by default in the versions with the other flag.
  static constexpr void set_dependent_defaults(settings& read, auto is_written) noexcept {
    if (read.multi_scale && !is_written("FLAGS_vmm_small_pool_size_in_mb")) read.vmm_small_pool_size = 0;
  }
};

}  // namespace tessera::inline v0_1::config
