// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <tessera/core/stream.hpp>
#include <tessera/law/verdict.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::law {

/// What an ordering_provider must mean, tried on two of its streams, which may be the same, and on which no work may be
/// running forever. Tells more where they differ. The first one waits for the second one in the end.
///
///     tessera::simulated_device device;
///     const auto found = tessera::law::ordering(device, tessera::stream_id{1}, tessera::stream_id{2});
///     if (!found) std::puts(found.broken);
template <ordering_provider D>
[[nodiscard]] verdict ordering(D& device, stream_id first = {}, stream_id second = {}) {
  verdict found;
  const auto finish = [&](stream_id s) {
    typename D::event mark{};
    found.require(device.record(s, mark) && device.wait(mark),
                  "a stream of which the order is known has events");
    device.discard(mark);
  };
  const std::uint64_t before = device.position(first);
  found.require(device.is_done(first, 0) && device.is_behind(second, first, 0),
                "the position 0 lies before all work");
  found.require(device.is_behind(first, first, before), "a stream comes behind its own work");
  finish(first);
  found.require(device.is_done(first, before), "what was waited for is done");

  const std::uint64_t given = device.position(second);
  found.require(device.let_wait(second, first, before), "a stream can be told to wait for another one");
  found.require(device.is_behind(second, first, before), "a stream comes behind what it waits for");
  const std::uint64_t with_wait = device.position(second);
  found.require(first == second || with_wait > given, "a wait counts as work");
  found.require(device.let_wait(first, second, with_wait), "streams may wait for each other's earlier work");
  found.require(device.is_behind(first, second, with_wait), "a stream comes behind what it waits for");
  finish(first);
  found.require(device.is_done(second, with_wait), "what a finished stream waited for is done");
  found.require(device.position(first) >= before && device.position(second) >= with_wait,
                "positions never fall");
  return found;
}

}  // namespace tessera::law
