// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include <tessera/concurrent/deferred_free_queue.hpp>
#include <tessera/config/paddle.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>

/// What Paddle's flags say to the adaptors. That of choose_collected is memory_fraction_of_eager_deletion as it is.
///
///     #include <tessera/provider/limiting.hpp>
///     #include <tessera/concurrent/locked.hpp>
///     #include <tessera/concurrent/waiting.hpp>
///     using namespace tessera;
///     using device = limiting<simulated_device>;
///     const config::paddle_settings said{.gpu_memory_limit = 8_GiB, .retry_milliseconds = 200};
///     waiting<locked<paddle<>, device>> patient(timeout_of(said), device({}, limit_of(said)),
///                                                paddle<>::configured(said));
///     deferred_free_queue garbage(patient, deferred_free_options_of(said));
namespace tessera {

/// That of `limited`, in bytes.
[[nodiscard]] constexpr std::size_t limit_of(const config::paddle_settings& said) noexcept {
  return said.gpu_memory_limit > 0 ? said.gpu_memory_limit : unlimited;
}

/// That of `waiting`, where 0 is to wait for nobody.
[[nodiscard]] constexpr std::chrono::milliseconds timeout_of(const config::paddle_settings& said) noexcept {
  constexpr auto most = static_cast<std::uint64_t>((std::chrono::milliseconds::max)().count());
  const std::uint64_t wanted = said.retry_milliseconds < most ? said.retry_milliseconds : most;
  return std::chrono::milliseconds(static_cast<std::chrono::milliseconds::rep>(wanted));
}

/// That of a `deferred_free_queue` of what work on `stream` uses.
[[nodiscard]] constexpr deferred_free_options deferred_free_options_of(const config::paddle_settings& said,
                                                                       stream_id stream = {}) noexcept {
  return {.threshold = said.garbage_threshold, .waits = !said.fast_eager_deletion, .stream = stream};
}

/// A variable whose memory may be freed after its last use.
struct collectable {
  std::int64_t bytes = 0;  ///< negative if a dimension is unknown; the magnitude counts
  bool is_collected = false;
};

/// Chooses the variables of one device to free after their last use: the largest, until they hold a share of all bytes. A share
/// of 1 chooses all; a share of 0, or of less than a byte, none. Of equal sizes, earlier ones come first.
///   Returns:  how many
///   Cost:     linear, 65 passes
///   Source:   Paddle's memory_fraction_of_eager_deletion, for dense tensors; others are always freed
constexpr std::size_t choose_collected(std::span<collectable> all, fraction share) noexcept {
  const auto magnitude = [](const collectable& v) {
    const auto bits = static_cast<std::uint64_t>(v.bytes);
    return static_cast<std::size_t>(v.bytes < 0 ? ~bits + 1 : bits);
  };
  const auto sum_from = [&](std::size_t min_size) {
    std::size_t sum = 0;
    for (const collectable& v : all) sum = magnitude(v) >= min_size ? saturating_add(sum, magnitude(v)) : sum;
    return sum;
  };
  const bool takes_all = share.billionths >= percent(100).billionths;
  const std::size_t target = share.of(sum_from(0));
  // The largest size such that variables of that size and above hold the target.
  std::size_t min_size = 0;
  for (std::size_t bit = std::size_t{1} << 63; bit > 0; bit /= 2) {
    if (sum_from(min_size + bit) >= target) min_size += bit;
  }
  std::size_t chosen = sum_from(min_size + 1);
  std::size_t count = 0;
  for (collectable& v : all) {
    const bool is_last = magnitude(v) == min_size && chosen < target;
    if (is_last) chosen = saturating_add(chosen, min_size);
    v.is_collected = takes_all || (target > 0 && (magnitude(v) > min_size || is_last));
    count += v.is_collected;
  }
  return count;
}

}  // namespace tessera
