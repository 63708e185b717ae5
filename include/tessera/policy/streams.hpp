// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>

#include <tessera/core/number.hpp>
#include <tessera/core/stream.hpp>

namespace tessera {

/// Decides who may reuse a block freed on a stream, and when.
///
///   P::uses_events            whether the device must be an event_provider
///   p.reuse_key(stream)      streams with equal keys share free blocks, at once: their work must be in one order; a
///                            stream_id, or any_stream where all have the same key
///   p.should_hold(key, s)    whether a block that streams of `key` share and that `s` used is held back, once freed,
///                            until an event recorded on `s` at the free has completed
///   P::crosses               whether a block may serve a stream of another key than the one it is free for, so that the
///                            device must be an ordering_provider
///   p.crossing()             by which rules it may, where nothing else fits
///
/// Laws, checked by law::streams: streams of one key hold no blocks back for each other; what crosses has keys that are
/// streams, and what does not has no rules for it.
template <typename P>
concept streams_policy = std::regular<P> && requires(const P& p, stream_id stream) {
  { P::uses_events } -> std::convertible_to<bool>;
  { p.reuse_key(stream) } noexcept -> std::convertible_to<stream_id>;
  { p.should_hold(stream, stream) } noexcept -> std::same_as<bool>;
  { P::crosses } -> std::convertible_to<bool>;
  { p.crossing() } noexcept -> std::same_as<crossings>;
};

/// Reuses a block at once on its own stream, and never on another; recorded streams hold it back.
///   Source:  PyTorch
struct reuse_on_same_stream {
  static constexpr bool uses_events = true;
  [[nodiscard]] static constexpr stream_id reuse_key(stream_id stream) noexcept { return stream; }
  [[nodiscard]] static constexpr bool should_hold(stream_id key, stream_id user) noexcept {
    return key != user;
  }
  static constexpr bool crosses = false;
  [[nodiscard]] static constexpr crossings crossing() noexcept { return {}; }
  bool operator==(const reuse_on_same_stream&) const = default;
};

/// Reuses any block at once: for one stream, or a caller who waits before every free.
struct reuse_ignoring_streams {
  static constexpr bool uses_events = false;
  [[nodiscard]] static constexpr any_stream reuse_key(stream_id) noexcept { return {}; }
  [[nodiscard]] static constexpr bool should_hold(stream_id, stream_id) noexcept { return false; }
  static constexpr bool crosses = false;
  [[nodiscard]] static constexpr crossings crossing() noexcept { return {}; }
  bool operator==(const reuse_ignoring_streams&) const = default;
};

/// Reuses a block at once on its own stream; and on another one where that comes behind the free by the program's own
/// waits, where what was before the free is seen to be done, or else by a wait that is put in between. For programs of
/// many streams that would each keep memory of their own; timing decides then which addresses come.
///   Source:  CUDA's memory pools, with their three REUSE attributes
template <auto FollowsDependencies = tunable(true), auto Opportunistic = tunable(true),
          auto InsertsDependencies = tunable(true)>
struct reuse_in_order {
  [[no_unique_address]] number<FollowsDependencies> follows_dependencies{};
  [[no_unique_address]] number<Opportunistic> opportunistic{};
  [[no_unique_address]] number<InsertsDependencies> inserts_dependencies{};

  static constexpr bool uses_events = true;
  [[nodiscard]] static constexpr stream_id reuse_key(stream_id stream) noexcept { return stream; }
  [[nodiscard]] static constexpr bool should_hold(stream_id key, stream_id user) noexcept {
    return key != user;
  }
  static constexpr bool crosses = true;
  [[nodiscard]] constexpr crossings crossing() const noexcept {
    return {follows_dependencies, opportunistic, inserts_dependencies};
  }
  bool operator==(const reuse_in_order&) const = default;
};

}  // namespace tessera
