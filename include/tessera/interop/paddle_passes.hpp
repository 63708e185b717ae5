// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <utility>

#include <tessera/core/types.hpp>

/// The decisions of Paddle's memory passes, and allocation in place.
///
/// Paddle's flags are arguments of a provider adaptor and of front ends:
///
///     #include <tessera/provider/limiting.hpp>
///     #include <tessera/concurrent/deferred_free_queue.hpp>
///     #include <tessera/concurrent/locked.hpp>
///     #include <tessera/concurrent/waiting.hpp>
///     using namespace tessera;
///     using device = provider::limiting<provider::simulated_device>;
///     using recipe_type = recipe::paddle<>;
///     const config::paddle::settings flags{.gpu_memory_limit = 8_GiB, .retry_milliseconds = 200};
///     using shared = concurrent::locked<caching_allocator<recipe_type, device>>;
///     concurrent::waiting<shared> allocator(std::chrono::milliseconds(flags.retry_milliseconds),
///                                           device({}, flags.limit()), recipe_type::configured(flags));
///     concurrent::deferred_free_queue garbage(
///         allocator, {.threshold = flags.garbage_threshold, .waits = !flags.fast_eager_deletion});

namespace tessera::inline v0_1::interop {

/// The decisions of two passes of Paddle over a graph: which variables to free early, and which inputs an
/// output may overwrite.
struct paddle_passes {
  /// A variable whose memory may be freed after its last use.
  struct variable {
    std::int64_t bytes = 0;     ///< negative if a dimension is unknown; the magnitude counts
    bool is_collected = false;  ///< whether choose_collected chose it to be freed after its last use
  };

  /// Chooses the variables of one device to free after their last use: the largest, until they hold a
  /// fraction of all bytes. A fraction of 1 chooses all. A fraction that amounts to less than a byte chooses
  /// none. Among equal sizes, earlier variables come first.
  ///   Returns:  the number of chosen variables
  ///   Cost:     linear, 65 passes
  ///   Source:   Paddle's memory_fraction_of_eager_deletion, for dense tensors; other variables are always
  ///             freed
  static constexpr std::size_t choose_collected(std::span<variable> all, fraction share) noexcept {
    const auto magnitude = [](const variable& v) {
      const auto bits = static_cast<std::uint64_t>(v.bytes);
      return static_cast<std::size_t>(v.bytes < 0 ? ~bits + 1 : bits);
    };
    const auto sum_from = [&](std::size_t min_size) {
      std::size_t sum = 0;
      for (const variable& v : all) {
        if (magnitude(v) >= min_size) sum = detail::saturating_add(sum, magnitude(v));
      }
      return sum;
    };
    const bool takes_all = share.billionths >= percent(100).billionths;
    const std::size_t target = share.of(sum_from(0));
    // The largest size such that variables of that size and above hold the target.
    std::size_t min_size = 0;
    for (std::size_t bit = std::size_t{1} << 63; bit > 0; bit /= 2) {
      if (sum_from(min_size + bit) >= target) min_size += bit;
    }
    std::size_t collected = sum_from(min_size + 1);
    std::size_t count = 0;
    for (variable& v : all) {
      const bool is_last = magnitude(v) == min_size && collected < target;
      if (is_last) collected = detail::saturating_add(collected, min_size);
      v.is_collected = takes_all || (target > 0 && (magnitude(v) > min_size || is_last));
      count += v.is_collected;
    }
    return count;
  }

  /// An input of an operation whose memory an output might reuse.
  struct input {
    std::size_t last_readers = 1;  ///< how many operations may read it last
    std::size_t uses = 1;          ///< how often this operation names it, as input or output
    bool is_empty = false;         ///< whether it has the name that stands for no variable
    bool is_dense = true;          ///< whether it is a dense tensor; others are not reused
    bool is_persistable = false;   ///< whether it outlives the run, as parameters do
    bool is_pinned = false;        ///< whether the graph pins it, so that no pass gives its memory away
    bool is_reused = false;        ///< by another output
    bool is_fetched = false;       ///< by the user, after the run
  };
  /// An output of an operation that might reuse the memory of an input.
  struct output {
    std::size_t uses = 1;           ///< how often this operation names it, as output or input
    bool is_first_version = true;   ///< no earlier variable has its name
    bool is_same_variable = false;  ///< whether it is the input itself, by name
    bool is_empty = false;          ///< whether it has the name that stands for no variable
    bool is_dense = true;           ///< whether it is a dense tensor; others reuse nothing
    bool is_persistable = false;    ///< whether it outlives the run, as parameters do
    bool is_pinned = false;         ///< whether the graph pins it, so that it keeps memory of its own
    bool has_memory = false;        ///< from another input
  };

  /// Which passes run.
  ///   Source:  Paddle's BuildStrategy; in place is on by default since 1.6
  struct build_strategy {
    bool enable_inplace = true;  ///< whether outputs reuse the memory of inputs
  };

  /// Whether an output may overwrite an input. Does not check whether it fits.
  ///   Source:  Paddle's in-place pass
  [[nodiscard]] static constexpr bool may_reuse(const input& in, const output& out) noexcept {
    const bool input_allows = in.last_readers == 1 && in.uses == 1 && !in.is_empty && in.is_dense &&
                              !in.is_persistable && !in.is_pinned && !in.is_reused && !in.is_fetched;
    const bool output_allows = out.uses == 1 && out.is_first_version && !out.is_same_variable &&
                               !out.is_empty && out.is_dense && !out.is_persistable && !out.is_pinned &&
                               !out.has_memory;
    return input_allows && output_allows;
  }
};

/// Allocates `bytes` in the block of `donor` if a request of this size would fit a free block like it
/// exactly. Otherwise allocates, then deallocates the donor. `donor` is null afterwards. Choose it for an
/// input that paddle_passes::may_reuse permits.
///
///     void* input = allocator.allocate(30_MiB);
///     void* output = tessera::interop::allocate_in_place(allocator, input, 30_MiB);  // the same address; input is null
///     allocator.deallocate(output);
///
///   Requires:  `donor` is the address of a live block of `allocator`, or null
///   Requires:  work that uses the donor precedes the output's work on `stream`
///   Throws:    the exceptions of allocate; `donor` is then unchanged
template <typename Allocator>
[[nodiscard]] void* allocate_in_place(Allocator& allocator, void*& donor, std::size_t bytes,
                                      stream_id stream = {}) {
  if (donor != nullptr && allocator.reuse_in_place(donor, bytes, stream))
    return std::exchange(donor, nullptr);
  void* const output = allocator.allocate(bytes, stream);
  if (output != nullptr && output == donor)
    detail::fatal("allocate_in_place: the donor is not a live block", donor);
  allocator.deallocate(std::exchange(donor, nullptr));
  return output;
}

/// Allocates an output of an operation as the in-place pass decides: in the memory of an input if the strategy has the pass on
/// and paddle_passes::may_reuse permits it, else apart from it.
///
///     using passes = tessera::interop::paddle_passes;
///     void* input = allocator.allocate(30_MiB);
///     void* output = tessera::interop::allocate_output(allocator, input, passes::input{}, 30_MiB, passes::output{});
///     // In place by default: input is null. With passes::build_strategy{.enable_inplace = false}, it stays.
///     allocator.deallocate(input);
///     allocator.deallocate(output);
///
///   Requires:  as allocate_in_place. `donor` holds the input, and stays live if the output does not take its memory over
///   Throws:    the exceptions of allocate; `donor` is then unchanged
template <typename Allocator>
[[nodiscard]] void* allocate_output(Allocator& allocator, void*& donor, const paddle_passes::input& in,
                                    std::size_t bytes, const paddle_passes::output& out,
                                    stream_id stream = {}, paddle_passes::build_strategy strategy = {}) {
  if (strategy.enable_inplace && paddle_passes::may_reuse(in, out))
    return allocate_in_place(allocator, donor, bytes, stream);
  return allocator.allocate(bytes, stream);
}

}  // namespace tessera::inline v0_1::interop
