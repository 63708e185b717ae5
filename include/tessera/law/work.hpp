// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <tessera/core/stream.hpp>
#include <tessera/law/verdict.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::law {

/// What an event_provider must mean while work is under way, which only the caller can give a stream: `begin()` gives some
/// to `stream` that ends by itself after a while, and `ended()` says whether what was begun last has ended. Longer work finds
/// more. Tells more of an ordering_provider, and of one with virtual memory.
///
///     tessera::simulated_device device;
///     std::uint64_t end = 0;
///     const auto begin = [&] { device.submit({}, 5'000'000), end = device.now_ns() + 5'000'000; };
///     const auto found = tessera::law::work(device, {}, begin, [&] { return device.now_ns() >= end; });
///     if (!found) std::puts(found.broken);
template <event_provider D, typename Begin, typename Ended>
[[nodiscard]] verdict work(D& device, stream_id stream, Begin begin, Ended ended) {
  verdict found;
  begin();
  typename D::event first{}, second{};
  if (!device.record(stream, first)) return {"a stream at work can be marked"};
  const bool again = device.record(stream, second);
  found.require(again, "a stream at work can be marked");
  if (again) {
    for (typename D::event* const mark : {&second, &first})
      found.require(!device.query(*mark) || ended(), "no event is ready before the work before it is done");
    if constexpr (ordering_provider<D>) {
      const std::uint64_t at = device.position(stream);
      found.require(!device.is_done(stream, at) || ended(),
                    "no position is done before the work up to it is");
    }
    found.require(device.wait(second) && ended(), "wait returns once the work is done");
    found.require(device.query(second) && device.query(first),
                  "an event is ready, and stays so, once a later one of its stream is");
    device.discard(second);
  }
  device.discard(first);
  if constexpr (virtual_memory_provider<D>) {
    if (found)
      begin(),
          found.require(device.synchronize(stream) && ended(), "synchronize returns once the work is done");
  }
  return found;
}

}  // namespace tessera::law
