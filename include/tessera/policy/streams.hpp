// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>

#include <tessera/core/parameter.hpp>
#include <tessera/core/regular.hpp>
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
///   p.looks_first(waiting)   whether a request looks at the events of freed blocks before it searches, where `waiting` of
///                            them have not been found completed; else where nothing fits, and then searches again
///
/// Laws, checked by law::streams: streams of one key hold no blocks back for each other, unless every stream holds back;
/// what crosses has keys that are streams, and what does not has no rules for it.
template <typename P>
concept streams_policy = regular<P> && requires(const P& p, stream_id stream, std::size_t waiting) {
  { P::uses_events } -> std::convertible_to<bool>;
  { p.reuse_key(stream) } noexcept -> std::convertible_to<stream_id>;
  { p.should_hold(stream, stream) } noexcept -> std::same_as<bool>;
  { P::crosses } -> std::convertible_to<bool>;
  { p.crossing() } noexcept -> std::same_as<cross_stream_reuse>;
  { p.looks_first(waiting) } noexcept -> std::same_as<bool>;
};

/// What most policies answer: blocks do not cross, and each request looks at events first.
struct reuse_without_crossing {
  static constexpr bool crosses = false;
  [[nodiscard]] static constexpr cross_stream_reuse crossing() noexcept { return {}; }
  [[nodiscard]] static constexpr bool looks_first(std::size_t) noexcept { return true; }
  bool operator==(const reuse_without_crossing&) const = default;
};

/// Reuses a block at once on its own stream, and never on another; recorded streams hold it back.
///   Source:  PyTorch
struct reuse_on_same_stream : reuse_without_crossing {
  static constexpr bool uses_events = true;
  [[nodiscard]] static constexpr stream_id reuse_key(stream_id stream) noexcept { return stream; }
  [[nodiscard]] static constexpr bool should_hold(stream_id key, stream_id user) noexcept {
    return key != user;
  }
  bool operator==(const reuse_on_same_stream&) const = default;
};

/// The same, but its own stream holds a block back too, once it is recorded.
///   Source:  torch_npu
struct reuse_on_same_stream_after_recorded : reuse_on_same_stream {
  [[nodiscard]] static constexpr bool should_hold(stream_id, stream_id) noexcept { return true; }
  bool operator==(const reuse_on_same_stream_after_recorded&) const = default;
};

/// As `Streams`, but a request looks at events first only where more than `patience` of them wait. For programs that record
/// streams for many blocks: a look costs a query for each stream, and the blocks come back later.
///
///     using late = tessera::poll_events_lazily<tessera::reuse_on_same_stream, std::size_t{512}>;
///     using recipe = tessera::with<tessera::pytorch<>, late>;
///
///   Source:  torch_npu's multi_stream_lazy_reclaim, with 512
template <streams_policy Streams, auto Patience = tunable<std::size_t>{0}>
struct poll_events_lazily : Streams {
  [[no_unique_address]] parameter<Patience> patience{};

  [[nodiscard]] constexpr bool looks_first(std::size_t waiting) const noexcept { return waiting > patience; }
  bool operator==(const poll_events_lazily&) const = default;
};

/// Reuses a block on any stream: at once where no stream was recorded for it, else once all of them have come past. For
/// memory that the host writes and reads, and streams only where they are recorded.
///   Source:  PyTorch's pinned memory
struct reuse_after_recorded_streams : reuse_without_crossing {
  static constexpr bool uses_events = true;
  [[nodiscard]] static constexpr any_stream reuse_key(stream_id) noexcept { return {}; }
  [[nodiscard]] static constexpr bool should_hold(stream_id, stream_id) noexcept { return true; }
  bool operator==(const reuse_after_recorded_streams&) const = default;
};

/// Reuses any block at once: for one stream, or a caller who waits before every free.
struct reuse_ignoring_streams : reuse_without_crossing {
  static constexpr bool uses_events = false;
  [[nodiscard]] static constexpr any_stream reuse_key(stream_id) noexcept { return {}; }
  [[nodiscard]] static constexpr bool should_hold(stream_id, stream_id) noexcept { return false; }
  bool operator==(const reuse_ignoring_streams&) const = default;
};

/// Reuses a block at once on its own stream; and on another one where that comes behind the free by the program's own
/// waits, where what was before the free is seen to be done, or else by a wait that is put in between. For programs of
/// many streams that would each keep memory of their own; timing decides then which addresses come.
///   Source:  CUDA's memory pools, with their three REUSE attributes
template <auto FollowsDependencies = tunable<bool>{true}, auto Opportunistic = tunable<bool>{true},
          auto InsertsDependencies = tunable<bool>{true}>
struct reuse_in_order {
  [[no_unique_address]] parameter<FollowsDependencies> follows_dependencies{};
  [[no_unique_address]] parameter<Opportunistic> opportunistic{};
  [[no_unique_address]] parameter<InsertsDependencies> inserts_dependencies{};

  static constexpr bool uses_events = true;
  [[nodiscard]] static constexpr stream_id reuse_key(stream_id stream) noexcept { return stream; }
  [[nodiscard]] static constexpr bool should_hold(stream_id key, stream_id user) noexcept {
    return key != user;
  }
  static constexpr bool crosses = true;
  [[nodiscard]] constexpr cross_stream_reuse crossing() const noexcept {
    return {follows_dependencies, opportunistic, inserts_dependencies};
  }
  [[nodiscard]] static constexpr bool looks_first(std::size_t) noexcept { return true; }
  bool operator==(const reuse_in_order&) const = default;
};

}  // namespace tessera
