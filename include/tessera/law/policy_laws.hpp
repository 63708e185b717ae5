// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/policy/evict_after.hpp>
#include <tessera/policy/eviction.hpp>
#include <tessera/policy/grow_at_end.hpp>
#include <tessera/policy/grow_by_mapping.hpp>
#include <tessera/policy/growth.hpp>
#include <tessera/policy/pages.hpp>
#include <tessera/policy/pools.hpp>
#include <tessera/policy/recovery.hpp>
#include <tessera/policy/rounding.hpp>
#include <tessera/policy/split.hpp>
#include <tessera/policy/streams.hpp>

/// The rules of policies that a concept cannot check. The compiler checks them:
/// static_assert(law::policy(my_policy{})).
///
///     #include <tessera/law/policy_laws.hpp>
///     struct round_to_pages {
///       [[nodiscard]] static constexpr std::size_t block_size(std::size_t requested) noexcept {
///         return tessera::align_up(requested, 4_KiB);
///       }
///       bool operator==(const round_to_pages&) const = default;
///     };
///     static_assert(tessera::law::policy(round_to_pages{}));

namespace tessera::inline v0_1::law::detail {

/// Never defined. A call in a constant expression stops the compiler, which prints the text of the law.
void broken(const char* law);

constexpr void must_hold(bool holds, const char* law) {
  if (!holds) broken(law);
}

/// Sizes at which policies tend to go wrong: around powers of two, and the extremes.
[[nodiscard]] constexpr auto edge_sizes() {
  std::array<std::size_t, 3 * 40 + 6> sizes{};
  std::size_t count = 0;
  for (std::size_t bits = 0; bits < 40; ++bits) {
    const std::size_t power = std::size_t{1} << bits;
    sizes[count++] = power > 1 ? power - 1 : 1;
    sizes[count++] = power;
    sizes[count++] = power + 1;
  }
  for (std::size_t n : {1_MiB + 512, 3_MiB, 10_MiB - 512, 19_MiB, 33_MiB, max_request}) sizes[count++] = n;
  for (std::size_t i = 1; i < count; ++i) {
    const std::size_t moved = sizes[i];
    std::size_t at = i;
    for (; at > 0 && sizes[at - 1] > moved; --at) sizes[at] = sizes[at - 1];
    sizes[at] = moved;
  }
  return sizes;
}

/// Bytes of each block that the user does not get: P::padding, or 0 if P has no padding.
template <typename P>
inline constexpr std::size_t padding_of = 0;
template <typename P>
  requires requires { P::padding; }
inline constexpr std::size_t padding_of<P> = P::padding;

/// Whether a split_policy splits oversize blocks, too.
template <typename P>
inline constexpr bool splits_oversize = requires { requires bool(P::splits_oversize); };

/// Requires the laws of a split policy in the state that it is in now.
template <typename P>
constexpr void require_split(const P& p) {
  for (std::size_t n : edge_sizes()) {
    const std::size_t size = align_up(n, min_alignment);
    must_hold(!p.should_split(size, size), "split leaves no empty remainder: should_split(n, n) is false");
    must_hold(p.may_serve(size, size), "split lets a block of the wanted size serve: may_serve(n, n)");
    must_hold(splits_oversize<P> || size < p.oversize_from() || !p.should_split(size, 2 * size),
              "split leaves oversize blocks whole: should_split(n, 2n) is false from oversize_from() on");
  }
}

/// Requires that `precedes` is an order of free blocks, in the state that the policy is in now.
template <typename P>
constexpr void require_order(const P& p) {
  constexpr std::uintptr_t base = std::uintptr_t{1} << 40;
  constexpr free_block blocks[] = {
      {base, 4_MiB, 1, true},
      {base + 64_MiB, 2_MiB, 2, false},
      {base + 70_MiB, 2_MiB, 2, false},
      {base + 128_MiB, 20_MiB, 3, true},
      {base + 200_MiB, 4_MiB, 1, false},
      {base + 300_MiB, 3_MiB, 4, false},
      {base + 410_MiB, 64_MiB, 5, true},
      {base / 2, 20_MiB, 6, false},
      {base * 2, 2_MiB + 512, 7, true},
  };
  for (std::size_t size : {std::size_t{512}, std::size_t{2_MiB}}) {
    for (std::uint64_t stream : {0u, 7u}) {
      const wanted_block wanted{size, size > 1_MiB ? std::size_t{1} : 0, stream_id{stream}};
      for (const free_block& a : blocks) {
        must_hold(!p.precedes(a, a, wanted), "split: no block precedes itself: precedes(a, a) is false");
        for (const free_block& b : blocks) {
          if (!p.precedes(a, b, wanted)) continue;
          must_hold(!p.precedes(b, a, wanted),
                    "split: of two blocks, at most one precedes the other: precedes(a, b) && precedes(b, a)");
          for (const free_block& c : blocks)
            must_hold(!p.precedes(b, c, wanted) || p.precedes(a, c, wanted),
                      "split: precedes is transitive: a before b and b before c imply a before c");
        }
      }
    }
  }
}

/// Requires that the bytes which may stay idle fall with their age, down to 0.
template <typename P>
constexpr void require_decay(const P& p) {
  constexpr bool is_complete = tessera::detail::decaying_policy<P>;
  must_hold(is_complete,
            "eviction: with bytes_to_keep, a policy has decay_time and an age_clock, and names its decay");
  if constexpr (is_complete) {
    for (std::size_t n : edge_sizes()) {
      std::size_t before = n;
      for (std::uint64_t eighth = 0; eighth < 8; ++eighth) {
        const std::size_t kept = p.bytes_to_keep(n, p.decay_time() / 8 * eighth);
        must_hold(kept <= n, "eviction keeps at most what is cached: bytes_to_keep(n, age) <= n");
        must_hold(kept <= before,
                  "eviction keeps no more if it is older: bytes_to_keep(n, age) falls with age");
        before = kept;
      }
      must_hold(p.bytes_to_keep(n, p.decay_time()) == 0,
                "eviction keeps nothing from decay_time() on: bytes_to_keep(n, decay_time()) == 0");
    }
  }
}

}  // namespace tessera::inline v0_1::law::detail

namespace tessera::inline v0_1::law {

/// Checks the laws of a policy; each axis has an overload. Returns true, or stops the compiler and names the broken law.
///
///     static_assert(tessera::law::policy(tessera::policy::grow_by_segments<4_MiB>{}));
///     static_assert(tessera::law::policy(tessera::policy::split_below<64_MiB>{}));
template <policy::rounding_policy P>
constexpr bool policy(const P& p) {
  std::size_t before = 0;
  for (std::size_t n : detail::edge_sizes()) {
    const std::size_t size = p.block_size(n);
    detail::must_hold(size >= n, "rounding covers: block_size(n) >= n");
    detail::must_hold(size % min_alignment == 0,
                      "rounding is aligned: block_size(n) is a multiple of min_alignment");
    detail::must_hold(size >= n + detail::padding_of<P>,
                      "rounding covers the padding: block_size(n) >= n + padding");
    detail::must_hold(p.block_size(size - detail::padding_of<P>) == size,
                      "rounding is idempotent: block_size(block_size(n) - padding) == block_size(n)");
    detail::must_hold(size >= before, "rounding is monotonic: a <= b implies block_size(a) <= block_size(b)");
    before = size;
  }
  return true;
}

template <policy::pools_policy P>
constexpr bool policy(const P& p) {
  detail::must_hold(P::count > 0, "pools exist: count > 0");
  for (std::size_t n : detail::edge_sizes())
    detail::must_hold(p.select(n) < P::count, "pools are in range: select(n) < count");
  return true;
}

template <policy::streams_policy P>
constexpr bool policy(const P& p) {
  constexpr stream_id some[] = {stream_id{0}, stream_id{1}, stream_id{7}, stream_id{~std::uint64_t{0}}};
  for (stream_id s : some) {
    const stream_id key = p.reuse_key(s);
    detail::must_hold(p.reuse_key(key) == key,
                      "streams: a key is its own key: reuse_key(reuse_key(s)) == reuse_key(s)");
    detail::must_hold(!P::reuses_across_streams || key == s,
                      "streams: with reuses_across_streams, each stream is its own key");
    detail::must_hold(P::reuses_across_streams || p.reuse_rules() == cross_stream_reuse{},
                      "streams: without reuses_across_streams, reuse_rules() is empty");
    for (stream_id user : some) {
      detail::must_hold(P::uses_events || !p.needs_event(key, user),
                        "streams: needs_event is false without uses_events");
      detail::must_hold(!p.needs_event(key, s) || p.needs_event(key, user),
                        "streams of one key need no events for each other, unless every stream needs them");
    }
  }
  return true;
}

template <policy::split_policy P>
constexpr bool policy(const P& p) {
  detail::require_split(p);
  if constexpr (tessera::detail::has_own_order<P>) detail::require_order(p);
  if constexpr (tessera::detail::hears_requests<P>) {
    P learned = p;
    for (int round = 0; round < 4; ++round) {
      for (std::size_t n : detail::edge_sizes()) {
        const std::size_t size = align_up(n, min_alignment);
        const std::uintptr_t address = (std::uintptr_t{1} << 40) + (size % 512_MiB);
        learned.note_served({n,
                             {size, n > 1_MiB ? std::size_t{1} : 0, stream_id{}},
                             {address, size, 1, true},
                             address,
                             size});
      }
      detail::require_split(learned);
      if constexpr (tessera::detail::has_own_order<P>) detail::require_order(learned);
    }
    detail::must_hold(P(learned) == learned,
                      "split: a copy equals what was copied, with all that it learned");
  }
  return true;
}

template <policy::pages_policy P>
constexpr bool policy(const P& p) {
  std::size_t before = 0;
  for (std::size_t n : detail::edge_sizes()) {
    const page_order order = p.backing(n);
    detail::must_hold(order.count > 0 && order.count <= order.kinds.size(),
                      "pages: backing() names one to three kinds");
    for (std::size_t i = 1; i < order.count; ++i) {
      for (std::size_t j = 0; j < i; ++j)
        detail::must_hold(order.kinds[i] != order.kinds[j], "pages: backing() names each kind once");
    }
    const std::size_t segment = tessera::detail::in_whole_pages(p, n);
    detail::must_hold(tessera::detail::in_whole_pages(p, segment) == segment,
                      "pages are stable: a segment in whole pages stays as it is");
    detail::must_hold(segment >= before,
                      "pages are monotonic: a <= b implies in_whole_pages(a) <= in_whole_pages(b)");
    before = segment;
    detail::must_hold(P::uses_page_kinds || (order.count == 1 && order.kinds[0] == page_kind::normal),
                      "pages: without uses_page_kinds, backing() is normal pages only");
  }
  return true;
}

template <policy::growth_policy P>
constexpr bool policy(const P& p) {
  for (std::size_t n : detail::edge_sizes()) {
    const std::size_t size = align_up(n, min_alignment);
    detail::must_hold(p.segment_size(size, usage{}) >= size, "growth covers: segment_size(n) >= n");
    detail::must_hold(p.segment_size(size, usage{}) <= unlimited / 2,
                      "growth stays in range: segment_size(n) < 2^63");
    if constexpr (tessera::detail::answers_range_questions<P>) {
      detail::must_hold(p.mapping_unit(size) > 0 && p.mapping_unit(size) % min_alignment == 0,
                        "growth maps whole units: mapping_unit(n) is a multiple of min_alignment");
      const std::size_t to = p.base_alignment(size);
      detail::must_hold(to == 1 || (to > 0 && to % min_alignment == 0),
                        "growth aligns: base_alignment(n) is 1 or a multiple of min_alignment");
      detail::must_hold(p.range_size(size) >= size, "growth reserves what can be mapped: range_size(c) >= c");
    }
    if constexpr (tessera::detail::answers_appending_questions<P>) {
      const std::size_t unit = p.mapping_unit(size);
      const std::size_t mapped = p.bytes_to_map(size, unit);
      detail::must_hold(mapped >= size && mapped % unit == 0,
                        "growth maps whole units: bytes_to_map(n, unit) is a multiple of unit of at least n");
      const std::size_t chunk = p.bytes_of_chunk(mapped, unit);
      detail::must_hold(chunk == unit || chunk == mapped,
                        "growth maps units or one chunk: bytes_of_chunk(n, unit) is unit or n");
    }
    if constexpr (tessera::detail::answers_moving_questions<P>) {
      const tessera::detail::growth_state full{
          .reserved = n, .limit = n, .peak_active = n, .peak_reserved = n};
      detail::must_hold(p.move_threshold(full) <= n,
                        "growth takes freely at most its limit: move_threshold(s) <= s.limit");
      detail::must_hold(p.max_chunk(full) > 0, "growth maps physical chunks: max_chunk(s) > 0");
      detail::must_hold(p.max_chunk(full) <= unlimited / 2, "growth stays in range: max_chunk(s) < 2^63");
      detail::must_hold(p.min_chunk(size) <= unlimited / 2, "growth stays in range: min_chunk(n) < 2^63");
    }
  }
  return true;
}

template <policy::eviction_policy P>
constexpr bool policy(const P& p) {
  const usage unused{.limit = 1_GiB};
  for (policy::eviction_trigger when :
       {policy::eviction_trigger::before_growth, policy::eviction_trigger::after_free,
        policy::eviction_trigger::after_synchronize, policy::eviction_trigger::on_request}) {
    detail::must_hold(p.bytes_to_evict(when, unused) == 0, "eviction evicts nothing if nothing is reserved");
    const usage full{.allocated = 1_GiB, .active = 1_GiB, .reserved = 1_GiB, .limit = 1_GiB};
    detail::must_hold(p.bytes_to_evict(when, full) <= full.reserved,
                      "eviction evicts at most what is reserved");
    bool before = false;
    for (std::size_t n : detail::edge_sizes()) {
      detail::must_hold(!before || p.is_candidate(n, full),
                        "eviction: what is larger than a candidate is a candidate");
      before = p.is_candidate(n, full);
    }
  }
  if constexpr (requires { &P::bytes_to_keep; }) detail::require_decay(p);
  if constexpr (tessera::detail::ranks_segments<P>) {
    for (std::size_t n : detail::edge_sizes()) {
      for (std::uint64_t some : {0u, 1u, 1000u}) {
        const policy::idle_segment segment{
            .bytes = n, .age = some, .reuses = some, .acquire_ticks = some, .release_ticks = some};
        const double value = p.value(segment);
        detail::must_hold(value == value,
                          "eviction: value(segment) is a number, also if ages and ticks are 0");
      }
    }
  }
  return true;
}

template <policy::recovery_policy P>
constexpr bool policy(const P& p) {
  for (policy::failure_reason why : {policy::failure_reason::by_limit, policy::failure_reason::by_device,
                                     policy::failure_reason::by_capacity}) {
    detail::must_hold(p.steps(why).count <= p.steps(why).steps.size(),
                      "recovery: steps() returns at most four steps");
  }
  return true;
}

}  // namespace tessera::inline v0_1::law
