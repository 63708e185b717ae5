// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>

namespace tessera {

/// Identifies a queue of device work by the value of its handle. Work on one stream runs in order. The
/// default value is the device's default stream. A number or a pointer is converted only explicitly, so that it cannot
/// be mistaken for a size.
struct stream_id {
  /// A reuse key that is equal for all streams. It is a type of its own, so that the compiler drops the
  /// comparison. It converts to the default stream.
  struct any {
    constexpr operator stream_id() const noexcept { return {}; }
    bool operator==(const any&) const = default;
  };

  std::uint64_t handle = 0;

  constexpr stream_id() noexcept = default;
  constexpr explicit stream_id(std::uint64_t value) noexcept : handle(value) {}
  /// Makes a stream_id of a driver's handle that is a pointer, such as a cudaStream_t.
  template <typename T>
  explicit stream_id(T* of_driver) noexcept : handle(reinterpret_cast<std::uintptr_t>(of_driver)) {}
  constexpr auto operator<=>(const stream_id&) const = default;
};

/// Names a private pool of an allocator [tessera/extension/private_pools.hpp]. The default value is default_pools.
struct pool_id {
  std::uint64_t number = 0;
  constexpr auto operator<=>(const pool_id&) const = default;
};
/// Names the pools of an allocator that are not private. Calls that need a private pool refuse it.
inline constexpr pool_id default_pools{};

/// Rules by which a block freed on one stream may serve another.
struct cross_stream_reuse {
  bool follow_dependencies = false;  ///< reuse if the other stream already waits for the work before the free
  bool opportunistic = false;        ///< reuse if that work has completed
  bool insert_dependencies = false;  ///< make the other stream wait for that work, then reuse
  bool operator==(const cross_stream_reuse&) const = default;
};

}  // namespace tessera
