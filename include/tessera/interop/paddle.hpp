// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

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
///     using device = limited<simulated_device>;
///     const config::paddle_settings said{.gpu_memory_limit = 8_GiB, .retry_milliseconds = 200};
///     retrying<locked<paddle<>, device>> patient(patience_of(said), device({}, limit_of(said)),
///                                                paddle<>::configured(said));
///     collector garbage(patient, collection_of(said));
namespace tessera {

/// That of `limited`, in bytes.
[[nodiscard]] constexpr std::size_t limit_of(const config::paddle_settings& said) noexcept {
  return said.gpu_memory_limit > 0 ? said.gpu_memory_limit : unlimited;
}

/// That of `retrying`, where 0 is to wait for nobody.
[[nodiscard]] constexpr std::chrono::milliseconds patience_of(const config::paddle_settings& said) noexcept {
  constexpr auto most = static_cast<std::uint64_t>((std::chrono::milliseconds::max)().count());
  const std::uint64_t wanted = said.retry_milliseconds < most ? said.retry_milliseconds : most;
  return std::chrono::milliseconds(static_cast<std::chrono::milliseconds::rep>(wanted));
}

/// That of a `collector` of what work on `stream` uses.
[[nodiscard]] constexpr collection collection_of(const config::paddle_settings& said,
                                                 stream_id stream = {}) noexcept {
  return {.threshold = said.garbage_threshold, .waits = !said.fast_eager_deletion, .stream = stream};
}

}  // namespace tessera
