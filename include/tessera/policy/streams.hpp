// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/core/parameter.hpp>
#include <tessera/core/types.hpp>

namespace tessera::inline v0_1::detail {

/// Whether all streams have the same reuse key.
template <typename P>
inline constexpr bool has_one_key =
    std::same_as<decltype(std::declval<const P&>().reuse_key(stream_id{})), stream_id::any>;

/// Whether an allocator waits for events where it would poll them.
template <typename P>
inline constexpr bool waits_for_events = requires { requires bool(P::waits_for_events); };

/// Stands for stream_sharing if streams share no blocks.
template <typename Manager>
struct no_sharing {
  explicit no_sharing(Manager&) noexcept {}
  static constexpr void coalesce_idle() noexcept {}
  static constexpr void wait_for_unfinished_work() noexcept {}
  // Never called. In an explicit instantiation, clang 14 compiles the calls, although their callers are constrained.
  static constexpr auto deallocate_on(const void*, stream_id) noexcept {
    return typename Manager::free_outcome{};
  }
  static constexpr bool wait_for(stream_id) noexcept { return false; }
};
template <typename Streams, typename Manager>
struct sharing_of_policy {
  using type = no_sharing<Manager>;
};
template <typename Streams, typename Manager>
  requires(Streams::reuses_across_streams)
struct sharing_of_policy<Streams, Manager> {
  using type = typename Streams::template sharing<Manager>;
};
template <typename Streams, typename Manager>
using sharing_of = typename sharing_of_policy<Streams, Manager>::type;

/// The answers of policies that never reuse a block across streams and poll events at each request.
struct no_reuse_across_streams {
  static constexpr bool reuses_across_streams = false;
  [[nodiscard]] static constexpr cross_stream_reuse reuse_rules() noexcept { return {}; }
  [[nodiscard]] static constexpr bool should_poll_events(std::size_t) noexcept { return true; }
  bool operator==(const no_reuse_across_streams&) const = default;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::policy {

/// Decides which streams may reuse a freed block, and when.
///
///   P::uses_events                  whether the device must be an event_provider
///   p.reuse_key(stream)             key of a stream: a stream_id, or stream_id::any if all have the same
///                                   key; streams with equal keys share free blocks at once, so their work
///                                   must be ordered
///   p.needs_event(key, user)        whether a recorded use by stream `user` delays the reuse of a block
///                                   of `key`; it then waits for an event recorded on `user` at the free
///   P::reuses_across_streams        whether a block may serve a stream with another key; if so, the device
///                                   must be an ordering_provider, and P names the mechanism:
///                                   `template <typename M> using sharing = detail::stream_sharing<M>`
///                                   [tessera/policy/reuse_across_streams.hpp]
///   p.reuse_rules()                 the rules for reuse across streams, applied if nothing else fits
///   p.should_poll_events(events)    whether a request polls the events of pending blocks before it searches,
///                                   given their number; if not, it polls after a miss, and searches again
///   P::waits_for_events             optional: true if the allocator waits for all events of pending blocks where it
///                                   would poll them. should_poll_events is then false
///
/// Laws, checked by law::policy:
///   * If needs_event(key, s) is true for a stream s of that key, it is true for every stream.
///   * With reuses_across_streams, each stream is its own key. Without it, reuse_rules() is empty.
template <typename P>
concept streams_policy = detail::regular<P> && requires(const P& p, stream_id stream, std::size_t events) {
  { P::uses_events } -> std::convertible_to<bool>;
  { p.reuse_key(stream) } noexcept -> std::convertible_to<stream_id>;
  { p.needs_event(stream, stream) } noexcept -> std::same_as<bool>;
  { P::reuses_across_streams } -> std::convertible_to<bool>;
  { p.reuse_rules() } noexcept -> std::same_as<cross_stream_reuse>;
  { p.should_poll_events(events) } noexcept -> std::same_as<bool>;
};

/// Reuses a block at once on its own stream, and never on another. For recorded streams, reuse waits for
/// their events.
///
/// Choose it for programs that call record_stream, as PyTorch does.
///   Source:  PyTorch
struct reuse_on_same_stream : detail::no_reuse_across_streams {
  static constexpr const char* hint = "reuse_on_same_stream";  ///< what explain() suggests
  static constexpr bool uses_events = true;
  [[nodiscard]] static constexpr stream_id reuse_key(stream_id stream) noexcept { return stream; }
  [[nodiscard]] static constexpr bool needs_event(stream_id key, stream_id user) noexcept {
    return key != user;
  }
  bool operator==(const reuse_on_same_stream&) const = default;
};

/// Reuses like reuse_on_same_stream. It also waits for the block's own stream if that stream was recorded.
///   Source:  torch_npu
struct reuse_on_same_stream_after_own_events : reuse_on_same_stream {
  [[nodiscard]] static constexpr bool needs_event(stream_id, stream_id) noexcept { return true; }
  bool operator==(const reuse_on_same_stream_after_own_events&) const = default;
};

/// Reuses like `Streams`, but a request polls events first only if more than `threshold` events are pending.
/// A pending block has one event for each recorded stream.
///
/// Choose it if programs record streams for many blocks and profiles show the polling (one query per stream).
/// Blocks become reusable later.
///
///     using lazy = tessera::policy::poll_events_lazily<tessera::policy::reuse_on_same_stream, std::size_t{512}>;
///     using recipe = tessera::recipe::with<tessera::recipe::pytorch<>, lazy>;
///
///   Source:  torch_npu's multi_stream_lazy_reclaim, with 512
template <streams_policy Streams, auto Threshold = tunable<std::size_t>{0}>
struct poll_events_lazily : Streams {
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Threshold> threshold{};

  [[nodiscard]] constexpr bool should_poll_events(std::size_t events) const noexcept {
    return events > threshold;
  }
  bool operator==(const poll_events_lazily&) const = default;
};

/// Reuses like `Streams`, but pending blocks become free only where the allocator waits for all their events: after a miss,
/// and in process_events(), evict_idle() and trim(). So no block is reused earlier or later because a stream was faster.
///
/// Choose it if placement must not depend on time, as in recipe::symmetric.
///   Cost:  a miss with pending blocks waits for the streams. To wait at a better time, call process_events() there, for
///          example once a step.
template <streams_policy Streams>
struct wait_for_events : Streams {
  static_assert(Streams::uses_events && !Streams::reuses_across_streams,
                "wait_for_events<Streams>: Streams records events and keeps blocks on their streams, as "
                "reuse_on_same_stream does [tessera/policy/streams.hpp]");
  static constexpr bool waits_for_events = true;

  [[nodiscard]] static constexpr bool should_poll_events(std::size_t) noexcept { return false; }
  bool operator==(const wait_for_events&) const = default;
};

/// Reuses a block on any stream. If streams were recorded for it, reuse waits for the events of all of them.
///
/// Choose it for host memory that only recorded streams read or write.
///   Source:  PyTorch's pinned host memory
struct reuse_after_events : detail::no_reuse_across_streams {
  static constexpr bool uses_events = true;
  [[nodiscard]] static constexpr stream_id::any reuse_key(stream_id) noexcept { return {}; }
  [[nodiscard]] static constexpr bool needs_event(stream_id, stream_id) noexcept { return true; }
  bool operator==(const reuse_after_events&) const = default;
};

/// Reuses any block at once.
///
/// Choose it for one stream, or if the program synchronizes before every free.
struct reuse_immediately : detail::no_reuse_across_streams {
  static constexpr bool uses_events = false;
  [[nodiscard]] static constexpr stream_id::any reuse_key(stream_id) noexcept { return {}; }
  [[nodiscard]] static constexpr bool needs_event(stream_id, stream_id) noexcept { return false; }
  bool operator==(const reuse_immediately&) const = default;
};

}  // namespace tessera::inline v0_1::policy
