// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>

namespace tessera {

/// Names a queue of device work by its handle's value; work on one stream runs in order.
///
/// The default value is the device's default stream.
struct stream_id {
  std::uint64_t handle = 0;
  constexpr auto operator<=>(const stream_id&) const = default;
};

/// Stands for the key of every stream where all streams share, so that none is compared; as a stream it is the default one.
struct any_stream {
  constexpr operator stream_id() const noexcept { return {}; }
  bool operator==(const any_stream&) const = default;
};

/// By which rules a block that is free behind the work of one stream may serve another.
struct cross_stream_reuse {
  bool follow_dependencies = false;  ///< the other stream comes behind that work already
  bool opportunistic = false;        ///< that work is seen to be done
  bool insert_dependencies = false;  ///< the other stream is made to wait for it
  bool operator==(const cross_stream_reuse&) const = default;
};

}  // namespace tessera
