// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/parameter.hpp>
#include <tessera/core/types.hpp>
#include <tessera/detail/containers/function_ref.hpp>
#include <tessera/detail/policies/ask_policies.hpp>
#include <tessera/law/growth_bound.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/policy/chunks.hpp>
#include <tessera/policy/grow_by_mapping.hpp>
#include <tessera/policy/grow_by_stitching.hpp>
#include <tessera/policy/prefer_pages.hpp>
#include <tessera/policy/reuse_across_streams.hpp>
#include <tessera/recipe/recipe.hpp>

/// Policies that are chosen at run time, one type per axis, so that the verb tune compiles no candidates. Each
/// answers as the policy that it holds; fixed numbers of shipped policies become tunable.

namespace tessera::inline v0_1::tool::detail {

/// Asks a policy that may or may not read the limit of small blocks.
inline constexpr auto ask_should_split = [](const auto& p, std::size_t wanted, std::size_t block,
                                            pool_traits in) {
  if constexpr (requires { p.should_split(wanted, block, in); }) {
    return p.should_split(wanted, block, in);
  } else {
    return p.should_split(wanted, block);
  }
};
inline constexpr auto ask_segment_size = [](const auto& p, std::size_t block, const usage& now,
                                            pool_traits in) {
  if constexpr (requires { p.segment_size(block, now, in); }) {
    return p.segment_size(block, now, in);
  } else {
    return p.segment_size(block, now);
  }
};

/// A policy of the program's own, of any type of one axis: what those of all axes share. One thread makes them.
///
/// It is plain data, so that compositions are, too: owners take a third of the compile time of a tool.
class own_policy {
 public:
  /// The type of the policy as C++.
  [[nodiscard]] std::string text() const { return text_(); }
  bool operator==(const own_policy&) const = default;

 protected:
  template <typename Result>
  using call = tessera::detail::function_ref<Result>;

  template <typename P>
  explicit own_policy(const P* held) : held_(held), text_(&tessera::detail::spelling::of_type<P>) {}
  /// A copy of a policy that lives until the program ends; equal policies share one.
  template <typename P>
  [[nodiscard]] static const P* kept(const P& p) {
    struct node {
      P policy;
      const node* next;
    };
    static const node* first = nullptr;
    const node* found = first;
    while (found != nullptr && !(found->policy == p)) found = found->next;
    if (found == nullptr) found = first = new node{p, first};
    return &found->policy;
  }
  /// The copy that it was made from.
  template <typename P>
  [[nodiscard]] const P& held() const noexcept {
    return *static_cast<const P*>(held_);
  }

 private:
  const void* held_;
  std::string (*text_)();
};

struct own_rounding : own_policy {
  template <policy::rounding_policy P>
  explicit own_rounding(const P& p)
      : own_policy(kept(p)),
        block_size(held<P>(), [](const P& to, auto... given) { return to.block_size(given...); }) {}

  call<std::size_t(std::size_t requested) noexcept> block_size;
};

struct own_pools : own_policy {
  static constexpr std::size_t count = 2;
  template <policy::pools_policy P>
    requires(P::count <= count)
  explicit own_pools(const P& p)
      : own_policy(kept(p)),
        select(held<P>(), [](const P& to, auto... given) { return to.select(given...); }),
        max_small_block(held<P>(),
                        [](const P& to) { return tessera::detail::traits_of(to).max_small_block; }) {}

  call<std::size_t(std::size_t block) noexcept> select;
  call<std::size_t() noexcept> max_small_block;
};

/// It shares no blocks between streams, and polls events.
struct own_streams : own_policy {
  template <policy::streams_policy P>
    requires(!bool(P::reuses_across_streams) && !tessera::detail::waits_for_events<P>)
  explicit own_streams(const P& p)
      : own_policy(kept(p)),
        reuse_key(held<P>(), [](const P& to, auto... given) { return to.reuse_key(given...); }),
        needs_event(held<P>(),
                    [](const P& to, stream_id key, stream_id user) {
                      return bool(P::uses_events) && to.needs_event(key, user);
                    }),
        should_poll_events(held<P>(),
                           [](const P& to, auto... given) { return to.should_poll_events(given...); }) {}

  call<stream_id(stream_id stream) noexcept> reuse_key;
  call<bool(stream_id key, stream_id user) noexcept> needs_event;
  call<bool(std::size_t pending) noexcept> should_poll_events;
  [[nodiscard]] static constexpr cross_stream_reuse reuse_rules() noexcept { return {}; }
};

/// It takes the smallest free block that fits, and of equal ones that at the lowest address. It does not learn.
struct own_split : own_policy {
  template <policy::split_policy P>
    requires(tessera::detail::free_order_of<P> == free_order::lowest_address &&
             !tessera::detail::hears_requests<P>)
  explicit own_split(const P& p)
      : own_policy(kept(p)),
        may_serve(held<P>(), [](const P& to, auto... given) { return to.may_serve(given...); }),
        should_split(held<P>(), ask_should_split),
        allocated_end(held<P>(), [](const P& to) { return to.allocated_end(); }),
        oversize_from(held<P>(), [](const P& to) { return to.oversize_from(); }) {}

  call<bool(std::size_t wanted, std::size_t block) noexcept> may_serve;
  call<bool(std::size_t wanted, std::size_t block, pool_traits in) noexcept> should_split;
  call<policy::block_end() noexcept> allocated_end;
  call<std::size_t() noexcept> oversize_from;
};

/// Growth by segments.
struct own_segments : own_policy {
  using backend = policy::segment_backend;
  template <policy::growth_policy P>
    requires(std::same_as<typename P::backend, policy::segment_backend> &&
             std::constructible_from<memory_limit, decltype(std::declval<const P&>().limit)>)
  explicit own_segments(const P& p)
      : own_policy(kept(p)), limit(memory_limit(p.limit)), segment_size(held<P>(), ask_segment_size) {}

  tessera::detail::growth_limit<tunable(memory_limit{})> limit{};
  call<std::size_t(std::size_t block, const usage& now, pool_traits in) noexcept> segment_size;
  bool operator==(const own_segments&) const = default;
};

/// It has no clock, because a replay runs faster than the program, and ranks no segments.
struct own_eviction : own_policy {
  template <policy::eviction_policy P>
    requires(
                !requires { typename P::clock; } && !requires { typename P::call_clock; } &&
                !tessera::detail::counts_reuses<P> && !tessera::detail::ranks_segments<P>)
  explicit own_eviction(const P& p)
      : own_policy(kept(p)),
        bytes_to_evict(held<P>(),
                       [](const P& to, const auto&... given) { return to.bytes_to_evict(given...); }),
        is_candidate(held<P>(), [](const P& to, const auto&... given) { return to.is_candidate(given...); }),
        should_evict(held<P>(), [](const P& to, const auto&... given) { return to.should_evict(given...); }) {
  }

  call<std::size_t(policy::eviction_trigger when, const usage& now) noexcept> bytes_to_evict;
  call<bool(std::size_t bytes, const usage& now) noexcept> is_candidate;
  call<bool(const policy::idle_segment& segment) noexcept> should_evict;
};

struct own_recovery : own_policy {
  template <policy::recovery_policy P>
  explicit own_recovery(const P& p)
      : own_policy(kept(p)),
        steps(held<P>(), [](const P& to, auto... given) { return to.steps(given...); }) {}

  call<policy::recovery_steps(policy::failure_reason why) noexcept> steps;
};

template <typename... Policy>
struct one_of {
  template <typename P>
  static constexpr bool has = (std::same_as<P, Policy> || ...);

  std::variant<Policy...> chosen;

  one_of() = default;
  template <typename P>
    requires has<P>
  one_of(const P& p) : chosen(p) {}

  template <typename F>
  [[nodiscard]] auto ask(F f) const noexcept {
    return std::visit(f, chosen);
  }
  template <typename P>
  [[nodiscard]] bool is() const noexcept {
    return std::holds_alternative<P>(chosen);
  }
  bool operator==(const one_of&) const = default;
};

template <std::size_t Step>
using multiple = policy::round_to_multiple<Step>;
using rounding_choices =
    one_of<policy::round_to_divisions<512>, multiple<64>, multiple<128>, multiple<256>, multiple<512>,
           multiple<1_KiB>, multiple<2_KiB>, multiple<4_KiB>, multiple<8_KiB>, multiple<16_KiB>,
           multiple<32_KiB>, multiple<64_KiB>, multiple<128_KiB>, multiple<256_KiB>, multiple<512_KiB>,
           multiple<1_MiB>, multiple<2_MiB>, policy::round_to_power_of_two<512, tunable(unlimited)>,
           policy::round_to_power_of_two<4_KiB, tunable(unlimited)>,
           policy::round_padded<32, policy::round_to_divisions<512>>, policy::round_padded<32, multiple<512>>,
           policy::round_padded<64, multiple<256>>, own_rounding>;
struct any_rounding : rounding_choices {
  any_rounding() = default;
  using rounding_choices::one_of;
  template <std::size_t Least>
  any_rounding(const policy::round_to_power_of_two<Least>&)
      : rounding_choices{policy::round_to_power_of_two<Least, tunable(unlimited)>{}} {}

  [[nodiscard]] std::size_t block_size(std::size_t requested) const noexcept {
    return ask([=](const auto& p) { return p.block_size(requested); });
  }
};

using boundary_of_pools = policy::pool_small_and_large<tunable(std::size_t{0})>;
using pools_choices = one_of<boundary_of_pools, policy::pool_together, own_pools>;
struct any_pools : pools_choices {
  static constexpr std::size_t count = 2;  // with one pool, the second stays empty
  any_pools() : any_pools(policy::pool_small_and_large<1_MiB>{}) {}
  using pools_choices::one_of;
  template <auto Boundary>
  any_pools(policy::pool_small_and_large<Boundary> p)
      : pools_choices{boundary_of_pools{.boundary = p.boundary.get()}} {}

  [[nodiscard]] std::size_t select(std::size_t block) const noexcept {
    return ask([=](const auto& p) { return p.select(block); });
  }
  [[nodiscard]] std::size_t max_small_block() const noexcept {
    return ask([](const auto& p) { return tessera::detail::traits_of(p).max_small_block; });
  }
};

using late = policy::poll_events_lazily<policy::reuse_on_same_stream>;
using late_after_recorded = policy::poll_events_lazily<policy::reuse_on_same_stream_after_own_events>;
using streams_choices = one_of<policy::reuse_on_same_stream, policy::reuse_on_same_stream_after_own_events,
                               late, late_after_recorded, policy::reuse_after_events,
                               policy::reuse_across_streams<>, policy::reuse_immediately, own_streams>;
struct any_streams : streams_choices {
  using streams_choices::one_of;

  template <typename Manager>
  using sharing = policy::reuse_across_streams<>::sharing<Manager>;
  static constexpr bool uses_events = true;
  [[nodiscard]] stream_id reuse_key(stream_id stream) const noexcept {
    return ask([=](const auto& p) { return stream_id(p.reuse_key(stream)); });
  }
  [[nodiscard]] bool needs_event(stream_id key, stream_id user) const noexcept {
    return ask([=](const auto& p) { return p.needs_event(key, user); });
  }
  [[nodiscard]] cross_stream_reuse reuse_rules() const noexcept {
    return ask([](const auto& p) { return p.reuse_rules(); });
  }
  [[nodiscard]] bool should_poll_events(std::size_t waiting) const noexcept {
    return ask([=](const auto& p) { return p.should_poll_events(waiting); });
  }
};

template <std::size_t Rest, policy::block_end End = policy::block_end::low>
using rest = policy::split_if_remainder_at_least<Rest, End>;
inline constexpr policy::block_end high = policy::block_end::high;
using split_expandable = policy::split_below<tunable(unlimited), tunable(20_MiB), limit_of_pools, 0>;
using split_choices = one_of<policy::split_below<>, split_expandable, policy::split_never<>,
                             policy::split_never<policy::block_fit::exact>,
                             policy::split_never<policy::block_fit::same_power_of_two>, rest<64>, rest<128>,
                             rest<512>, rest<4_KiB>, rest<64_KiB>, rest<256_KiB>, rest<1_MiB>, rest<64, high>,
                             rest<512, high>, rest<64_KiB, high>, rest<1_MiB, high>, own_split>;
struct any_split : split_choices {
  using split_choices::one_of;

  [[nodiscard]] bool may_serve(std::size_t wanted, std::size_t block) const noexcept {
    return ask([=](const auto& p) { return p.may_serve(wanted, block); });
  }
  [[nodiscard]] bool should_split(std::size_t wanted, std::size_t block, pool_traits in = {}) const noexcept {
    return ask([=](const auto& p) { return ask_should_split(p, wanted, block, in); });
  }
  [[nodiscard]] policy::block_end allocated_end() const noexcept {
    return ask([](const auto& p) { return p.allocated_end(); });
  }
  [[nodiscard]] std::size_t oversize_from() const noexcept {
    return ask([](const auto& p) { return p.oversize_from(); });
  }
};

using any_choice_of_pages = policy::prefer_pages<tunable(page_choice{})>;
struct any_pages : any_choice_of_pages {
  any_pages() : any_pages(policy::normal_pages{}) {}
  any_pages(const policy::normal_pages&)
      : any_choice_of_pages{.choice = page_choice{.pages = page_preference::normal_only}} {}
  template <auto Choice>
    requires(policy::prefer_pages<Choice>::initial ==
             page_choice{.pages = policy::prefer_pages<Choice>::initial.pages})
  any_pages(const policy::prefer_pages<Choice>& p) : any_choice_of_pages{.choice = p.choice.get()} {}
};

template <std::size_t Own>
using segments_below = policy::grow_by_segments<2_MiB, tunable(20_MiB), Own>;
using segments_choices =
    one_of<segments_below<10_MiB>, segments_below<0>, segments_below<64_MiB>, segments_below<256_MiB>,
           policy::grow_exactly<>, policy::grow_by_chunks<>, policy::grow_by_schedule<>, own_segments>;
/// Growth by segments.
struct any_segments : segments_choices {
  using backend = policy::segment_backend;
  tessera::detail::growth_limit<tunable(memory_limit{})> limit{};
  any_segments() = default;
  template <typename P>
    requires(segments_choices::has<P>)
  any_segments(const P& p) : segments_choices{p}, limit(p.limit.get()) {}
  template <std::size_t Own>
  any_segments(const policy::grow_by_segments<2_MiB, 2_MiB, Own>& p)
      : any_segments(segments_below<Own>{.large = 2_MiB, .limit = p.limit.get()}) {}

  [[nodiscard]] std::size_t segment_size(std::size_t block, const usage& now,
                                         pool_traits in = {}) const noexcept {
    return ask([&](const auto& p) { return ask_segment_size(p, block, now, in); });
  }
  bool operator==(const any_segments&) const = default;
};

using in_place_of_20 = policy::grow_by_mapping<20_MiB>;
using in_place_choices = one_of<policy::grow_by_mapping<>, in_place_of_20>;
/// Growth in place.
struct any_in_place : in_place_choices {
  using backend = policy::expandable_backend;
  tessera::detail::growth_limit<tunable(memory_limit{})> limit{};
  any_in_place() = default;
  template <auto Large, auto Alignment>
  any_in_place(const policy::grow_by_mapping<2_MiB, Large, tunable(memory_limit{}), Alignment>& p)
      : in_place_choices{policy::grow_by_mapping<>{.large = p.large.get(),
                                                   .limit = p.limit.get(),
                                                   .alignment = p.alignment.get(),
                                                   .range = p.range}},
        limit(p.limit.get()) {}
  template <auto Large>
  any_in_place(const policy::grow_by_mapping<20_MiB, Large>& p)
      : in_place_choices{in_place_of_20{.large = p.large.get(), .limit = p.limit.get(), .range = p.range}},
        limit(p.limit.get()) {}

  [[nodiscard]] std::size_t segment_size(std::size_t block, const usage& now,
                                         pool_traits in = {}) const noexcept {
    return ask([&](const auto& p) { return p.segment_size(block, now, in); });
  }
  [[nodiscard]] std::size_t mapping_unit(std::size_t block, pool_traits in = {}) const noexcept {
    return ask([=](const auto& p) { return p.mapping_unit(block, in); });
  }
  [[nodiscard]] std::size_t range_size(std::size_t capacity) const noexcept {
    return ask([=](const auto& p) { return p.range_size(capacity); });
  }
  [[nodiscard]] std::size_t base_alignment(std::size_t block) const noexcept {
    return ask([=](const auto& p) { return p.base_alignment(block); });
  }
  bool operator==(const any_in_place&) const = default;
};

using growth_choices = one_of<any_segments, any_in_place, policy::grow_by_stitching<>>;
/// Growth by any backend. The backend is part of what is compiled.
struct any_growth : growth_choices {
  any_growth() = default;
  template <typename P>
    requires(std::same_as<typename P::backend, policy::segment_backend> &&
             std::constructible_from<any_segments, const P&>)
  any_growth(const P& p) : growth_choices{any_segments(p)} {}
  template <typename P>
    requires(std::same_as<typename P::backend, policy::expandable_backend> &&
             std::constructible_from<any_in_place, const P&>)
  any_growth(const P& p) : growth_choices{any_in_place(p)} {}
  template <auto Pieces>
  any_growth(const policy::grow_by_stitching<Pieces>& p)
      : growth_choices{policy::grow_by_stitching<>{p.peak_parts.get(), p.slack, p.limit.get(), p.rest_parts,
                                                   p.alignment}} {}

  /// Whether it maps memory into ranges of addresses.
  [[nodiscard]] bool has_ranges() const noexcept {
    return ask([](const auto& p) { return std::remove_cvref_t<decltype(p)>::backend::has_ranges; });
  }
};

using eviction_by_schedule = policy::evict_at_free_above_schedule<>;
using eviction_choices =
    one_of<policy::evict_idle_above<tunable(fraction{}), true>, policy::evict_idle_above<>,
           policy::evict_never, policy::evict_at_free<>, policy::evict_at_free<tunable(unlimited)>,
           eviction_by_schedule, policy::evict_idle_segments<>, policy::evict_at_synchronize_above<>,
           own_eviction>;
struct any_eviction : eviction_choices {
  using eviction_choices::one_of;

  [[nodiscard]] std::size_t bytes_to_evict(policy::eviction_trigger when, const usage& now) const noexcept {
    return ask([&](const auto& p) { return p.bytes_to_evict(when, now); });
  }
  [[nodiscard]] bool is_candidate(std::size_t bytes, const usage& now) const noexcept {
    return ask([&](const auto& p) { return p.is_candidate(bytes, now); });
  }
  [[nodiscard]] bool should_evict(const policy::idle_segment& segment) const noexcept {
    return ask([&](const auto& p) { return p.should_evict(segment); });
  }
};

using recovery_expandable = policy::fail_fast<policy::recover_by_emptying_cache<>>;
using recovery_choices =
    one_of<policy::fail_fast<policy::release_in_captures<policy::recover_by_releasing_oversize>>,
           policy::fail_fast<policy::recover_by_releasing_oversize>, recovery_expandable,
           policy::recover_never, policy::recover_by_emptying_cache<>,
           policy::recover_by_emptying_cache<tunable(false)>,
           policy::last_search<
               policy::fail_fast<policy::release_in_captures<policy::recover_by_releasing_oversize>>>,
           policy::last_search<recovery_expandable>, own_recovery>;
struct any_recovery : recovery_choices {
  using recovery_choices::one_of;

  [[nodiscard]] policy::recovery_steps steps(policy::failure_reason why) const noexcept {
    return ask([=](const auto& p) { return p.steps(why); });
  }
};

/// One policy for each axis.
struct composition {
  any_rounding rounding;
  any_pools pools;
  any_streams streams;
  any_split split;
  any_pages pages;
  any_growth growth;
  any_eviction eviction;
  any_recovery recovery;

  composition() = default;
  bool operator==(const composition&) const = default;
};
static_assert(std::is_trivially_copyable_v<composition>, "own_policy says why it is plain data");

/// Whether a policy can be one of a composition: as a shipped one of the same axis, or as one of the program's own.
template <typename Any, typename Own, typename P>
inline constexpr bool is_choosable =
    std::is_constructible_v<Any, const P&> || std::is_constructible_v<Own, const P&>;
template <typename Any, typename Own, typename P>
[[nodiscard]] Any chosen_at_run_time(const P& p) {
  if constexpr (std::is_constructible_v<Any, const P&>) {
    return Any(p);
  } else {
    return Any(Own(p));
  }
}
/// The first axis whose policy cannot be one of a composition, or null.
template <typename R>
[[nodiscard]] consteval const char* axis_out_of_search() {
  if (!is_choosable<any_rounding, own_rounding, typename R::rounding>) return "rounding";
  if (!is_choosable<any_pools, own_pools, typename R::pools>) return "pools";
  if (!is_choosable<any_streams, own_streams, typename R::streams>) return "streams";
  if (tessera::detail::free_order_of<typename R::split> != free_order::lowest_address) return "split";
  if (!is_choosable<any_split, own_split, typename R::split>) return "split";
  if (!std::is_constructible_v<any_pages, const typename R::pages&>) return "pages";
  if (!is_choosable<any_growth, own_segments, typename R::growth>) return "growth";
  if (!is_choosable<any_eviction, own_eviction, typename R::eviction>) return "eviction";
  if (!is_choosable<any_recovery, own_recovery, typename R::recovery>) return "recovery";
  return nullptr;
}
/// Converts the policies of a recipe.
template <typename R>
  requires(axis_out_of_search<R>() == nullptr)
[[nodiscard]] composition composition_of(const recipe::policies<R>& p) {
  composition made;
  made.rounding = chosen_at_run_time<any_rounding, own_rounding>(p.rounding);
  made.pools = chosen_at_run_time<any_pools, own_pools>(p.pools);
  made.streams = chosen_at_run_time<any_streams, own_streams>(p.streams);
  made.split = chosen_at_run_time<any_split, own_split>(p.split);
  made.pages = any_pages(p.pages);
  made.growth = chosen_at_run_time<any_growth, own_segments>(p.growth);
  made.eviction = chosen_at_run_time<any_eviction, own_eviction>(p.eviction);
  made.recovery = chosen_at_run_time<any_recovery, own_recovery>(p.recovery);
  return made;
}

/// As law::growth_is_bounded, of the recipe. It is compiled once, with the verb tune.
[[nodiscard]] law::growth_witness growth_of(const composition& c) noexcept;

/// Policies that a search tries beside the shipped ones.
struct own_policies {
  std::vector<any_rounding> rounding{};
  std::vector<any_pools> pools{};
  std::vector<any_streams> streams{};
  std::vector<any_split> split{};
  std::vector<any_growth> growth{};
  std::vector<any_eviction> eviction{};
  std::vector<any_recovery> recovery{};
};

}  // namespace tessera::inline v0_1::tool::detail
