// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/detail/policies/stream_sharing.hpp>
#include <tessera/policy/eviction.hpp>
#include <tessera/policy/streams.hpp>

namespace tessera::inline v0_1::policy {

/// Reuses a block at once on its own stream. Three rules, which can be switched off, allow reuse on another
/// stream.
///
/// Choose it if many streams would each keep their own memory. Addresses then depend on timing.
///   * `follow_dependencies`: the other stream already waits for the free, by the program's own events;
///   * `opportunistic`: the work before the free has completed;
///   * `insert_dependencies`: the other stream is made to wait for that work.
///
///   Source:  CUDA's memory pools: cudaMemPoolReuseFollowEventDependencies,
///            cudaMemPoolReuseAllowOpportunistic and cudaMemPoolReuseAllowInternalDependencies
template <auto FollowDependencies = tunable<bool>{true}, auto Opportunistic = tunable<bool>{true},
          auto InsertDependencies = tunable<bool>{true}>
struct reuse_across_streams {
  static constexpr const char* hint = "reuse_across_streams";  ///< what explain() suggests
  /// The part of the allocator that finds and synchronizes blocks of other streams.
  template <typename Manager>
  using sharing = detail::stream_sharing<Manager>;
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<FollowDependencies> follow_dependencies{};
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Opportunistic> opportunistic{};
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<InsertDependencies> insert_dependencies{};

  static constexpr bool uses_events = true;
  static constexpr bool reuses_across_streams = true;
  [[nodiscard]] static constexpr stream_id reuse_key(stream_id stream) noexcept { return stream; }
  [[nodiscard]] static constexpr bool needs_event(stream_id key, stream_id user) noexcept {
    return key != user;
  }
  [[nodiscard]] constexpr cross_stream_reuse reuse_rules() const noexcept {
    return {follow_dependencies, opportunistic, insert_dependencies};
  }
  [[nodiscard]] static constexpr bool should_poll_events(std::size_t) noexcept { return true; }
  bool operator==(const reuse_across_streams&) const = default;
};

/// Releases idle segments when a stream is synchronized, while more than `threshold` bytes are reserved.
///   Source:  the release threshold of CUDA's memory pools
template <auto Threshold = tunable<std::size_t>{0}>
struct evict_at_synchronize_above {
  [[TESSERA_NO_UNIQUE_ADDRESS]] parameter<Threshold> threshold{};

  [[nodiscard]] constexpr std::size_t bytes_to_evict(eviction_trigger trigger,
                                                     const usage& now) const noexcept {
    if (trigger != eviction_trigger::after_synchronize) return 0;
    return now.reserved > threshold ? now.reserved - threshold : 0;
  }
  [[nodiscard]] static constexpr bool is_candidate(std::size_t bytes, const usage&) noexcept {
    return bytes > 0;
  }
  [[nodiscard]] static constexpr bool should_evict(const idle_segment& segment) noexcept {
    return segment.remaining > 0;
  }
  bool operator==(const evict_at_synchronize_above&) const = default;
};

}  // namespace tessera::inline v0_1::policy
