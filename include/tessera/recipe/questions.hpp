// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>

#include <tessera/core/page.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/policy/eviction.hpp>
#include <tessera/policy/recovery.hpp>
#include <tessera/policy/split.hpp>

/// The questions of the axes: how each is asked, and what a compiler says of a type that does not answer it.
namespace tessera {

/// What is wrong with a policy's answer to one question; as types, which compilers name in errors.
namespace policy_flaw {
struct none {};
struct missing {};
struct other_arguments {};
struct not_const {};
struct not_noexcept {};
struct other_type {};
template <typename Flaw>
inline constexpr bool is_none = std::is_same_v<Flaw, none>;
}  // namespace policy_flaw

namespace policy_question {
/// What they are asked with, which is never read.
struct asked {
  static const std::size_t bytes;
  static const stream_id stream;
  static const usage now;
  static const eviction_trigger when;
  static const idle_segment segment;
  static const idle_survey survey;
  static const failure_reason why;
  static constexpr bool converts = false;  ///< whether what converts to the answer serves
};
struct any_type {};
template <typename>
using any_type_if = any_type;
struct asked_loosely : asked {
  static constexpr bool converts = true;
};

struct block_size : asked {
  using answer = std::size_t;
  static auto ask(auto& p) noexcept(noexcept(p.block_size(bytes))) -> decltype(p.block_size(bytes));
  template <typename P>
  static auto find() -> decltype(&P::block_size);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(
        policy_flaw::is_none<Flaw>,
        "with<>: the nearest axis, rounding, asks for size_t block_size(size_t requested) const noexcept");
  }
};
struct count : asked_loosely {
  using answer = std::size_t;
  static auto ask(auto& p) noexcept -> decltype(p.count);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(policy_flaw::is_none<Flaw>,
                  "with<>: the nearest axis, pools, asks for static size_t count");
  }
};
struct select : asked {
  using answer = std::size_t;
  static auto ask(auto& p) noexcept(noexcept(p.select(bytes))) -> decltype(p.select(bytes));
  template <typename P>
  static auto find() -> decltype(&P::select);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(policy_flaw::is_none<Flaw>,
                  "with<>: the nearest axis, pools, asks for size_t select(size_t block) const noexcept");
  }
};
struct uses_events : asked_loosely {
  using answer = bool;
  static auto ask(auto& p) noexcept -> decltype(p.uses_events);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(policy_flaw::is_none<Flaw>,
                  "with<>: the nearest axis, streams, asks for static bool uses_events");
  }
};
struct reuse_key : asked_loosely {
  using answer = stream_id;
  static auto ask(auto& p) noexcept(noexcept(p.reuse_key(stream))) -> decltype(p.reuse_key(stream));
  template <typename P>
  static auto find() -> decltype(&P::reuse_key);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(
        policy_flaw::is_none<Flaw>,
        "with<>: the nearest axis, streams, asks for stream_id reuse_key(stream_id) const noexcept");
  }
};
struct needs_event : asked {
  using answer = bool;
  static auto ask(auto& p) noexcept(noexcept(p.needs_event(stream, stream)))
      -> decltype(p.needs_event(stream, stream));
  template <typename P>
  static auto find() -> decltype(&P::needs_event);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(policy_flaw::is_none<Flaw>,
                  "with<>: the nearest axis, streams, asks for bool needs_event(stream_id key, stream_id "
                  "user) const noexcept");
  }
};
struct reuses_across_streams : asked_loosely {
  using answer = bool;
  static auto ask(auto& p) noexcept -> decltype(p.reuses_across_streams);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(policy_flaw::is_none<Flaw>,
                  "with<>: the nearest axis, streams, asks for static bool reuses_across_streams");
  }
};
struct reuse_rules : asked {
  using answer = cross_stream_reuse;
  static auto ask(auto& p) noexcept(noexcept(p.reuse_rules())) -> decltype(p.reuse_rules());
  template <typename P>
  static auto find() -> decltype(&P::reuse_rules);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(
        policy_flaw::is_none<Flaw>,
        "with<>: the nearest axis, streams, asks for cross_stream_reuse reuse_rules() const noexcept");
  }
};
struct should_poll_events : asked {
  using answer = bool;
  static auto ask(auto& p) noexcept(noexcept(p.should_poll_events(bytes)))
      -> decltype(p.should_poll_events(bytes));
  template <typename P>
  static auto find() -> decltype(&P::should_poll_events);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(
        policy_flaw::is_none<Flaw>,
        "with<>: the nearest axis, streams, asks for bool should_poll_events(size_t waiting) const noexcept");
  }
};
struct may_serve : asked {
  using answer = bool;
  static auto ask(auto& p) noexcept(noexcept(p.may_serve(bytes, bytes)))
      -> decltype(p.may_serve(bytes, bytes));
  template <typename P>
  static auto find() -> decltype(&P::may_serve);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(policy_flaw::is_none<Flaw>,
                  "with<>: the nearest axis, split, asks for bool may_serve(size_t wanted, size_t block) "
                  "const noexcept");
  }
};
struct should_split : asked {
  using answer = bool;
  static auto ask(auto& p) noexcept(noexcept(p.should_split(bytes, bytes)))
      -> decltype(p.should_split(bytes, bytes));
  template <typename P>
  static auto find() -> decltype(&P::should_split);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(policy_flaw::is_none<Flaw>,
                  "with<>: the nearest axis, split, asks for bool should_split(size_t wanted, size_t block) "
                  "const noexcept");
  }
};
struct used_end : asked {
  using answer = block_end;
  static auto ask(auto& p) noexcept(noexcept(p.used_end())) -> decltype(p.used_end());
  template <typename P>
  static auto find() -> decltype(&P::used_end);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(policy_flaw::is_none<Flaw>,
                  "with<>: the nearest axis, split, asks for block_end used_end() const noexcept");
  }
};
struct oversize : asked {
  using answer = std::size_t;
  static auto ask(auto& p) noexcept(noexcept(p.oversize())) -> decltype(p.oversize());
  template <typename P>
  static auto find() -> decltype(&P::oversize);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(policy_flaw::is_none<Flaw>,
                  "with<>: the nearest axis, split, asks for size_t oversize() const noexcept");
  }
};
struct uses_page_kinds : asked_loosely {
  using answer = bool;
  static auto ask(auto& p) noexcept -> decltype(p.uses_page_kinds);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(policy_flaw::is_none<Flaw>,
                  "with<>: the nearest axis, pages, asks for static bool uses_page_kinds");
  }
};
struct backing : asked {
  using answer = page_order;
  static auto ask(auto& p) noexcept(noexcept(p.backing(bytes))) -> decltype(p.backing(bytes));
  template <typename P>
  static auto find() -> decltype(&P::backing);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(
        policy_flaw::is_none<Flaw>,
        "with<>: the nearest axis, pages, asks for page_order backing(size_t segment) const noexcept");
  }
};
struct backend : asked {
  using answer = any_type;
  static auto ask(auto& p) noexcept -> any_type_if<typename std::remove_cvref_t<decltype(p)>::backend>;
  template <typename P>
  static auto find() -> typename P::backend;
  template <typename Flaw>
  static consteval void explain() {
    static_assert(policy_flaw::is_none<Flaw>, "with<>: the nearest axis, growth, asks for a type backend");
  }
};
struct segment_size : asked {
  using answer = std::size_t;
  static auto ask(auto& p) noexcept(noexcept(p.segment_size(bytes, now)))
      -> decltype(p.segment_size(bytes, now));
  template <typename P>
  static auto find() -> decltype(&P::segment_size);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(policy_flaw::is_none<Flaw>,
                  "with<>: the nearest axis, growth, asks for size_t segment_size(size_t block, const "
                  "usage&) const noexcept");
  }
};
struct limit : asked {
  using answer = std::size_t;
  static auto ask(auto& p) noexcept(noexcept(p.limit.on(bytes))) -> decltype(p.limit.on(bytes));
  template <typename P>
  static auto find() -> decltype(&P::limit);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(
        policy_flaw::is_none<Flaw>,
        "with<>: the nearest axis, growth, asks for a member limit with size_t on(size_t capacity) const "
        "noexcept");
  }
};
struct bytes_to_evict : asked {
  using answer = std::size_t;
  static auto ask(auto& p) noexcept(noexcept(p.bytes_to_evict(when, now)))
      -> decltype(p.bytes_to_evict(when, now));
  template <typename P>
  static auto find() -> decltype(&P::bytes_to_evict);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(
        policy_flaw::is_none<Flaw>,
        "with<>: the nearest axis, eviction, asks for size_t bytes_to_evict(eviction_trigger, const usage&) "
        "const noexcept");
  }
};
struct is_candidate : asked {
  using answer = bool;
  static auto ask(auto& p) noexcept(noexcept(p.is_candidate(bytes, now)))
      -> decltype(p.is_candidate(bytes, now));
  template <typename P>
  static auto find() -> decltype(&P::is_candidate);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(
        policy_flaw::is_none<Flaw>,
        "with<>: the nearest axis, eviction, asks for bool is_candidate(size_t bytes, const usage&) "
        "const noexcept");
  }
};
struct should_evict : asked {
  using answer = bool;
  static auto ask(auto& p) noexcept(noexcept(p.should_evict(segment, survey)))
      -> decltype(p.should_evict(segment, survey));
  template <typename P>
  static auto find() -> decltype(&P::should_evict);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(policy_flaw::is_none<Flaw>,
                  "with<>: the nearest axis, eviction, asks for bool should_evict(const idle_segment&, const "
                  "idle_survey&) const noexcept");
  }
};
struct steps : asked {
  using answer = recovery_steps;
  static auto ask(auto& p) noexcept(noexcept(p.steps(why))) -> decltype(p.steps(why));
  template <typename P>
  static auto find() -> decltype(&P::steps);
  template <typename Flaw>
  static consteval void explain() {
    static_assert(
        policy_flaw::is_none<Flaw>,
        "with<>: the nearest axis, recovery, asks for recovery_steps steps(failure_reason) const noexcept");
  }
};
}  // namespace policy_question

}  // namespace tessera
