// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <string>
#include <variant>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/parameter.hpp>
#include <tessera/core/types.hpp>
#include <tessera/policy/chunks.hpp>
#include <tessera/policy/evict_after.hpp>
#include <tessera/policy/grow_by_mapping.hpp>
#include <tessera/policy/grow_by_stitching.hpp>
#include <tessera/policy/prefer_pages.hpp>
#include <tessera/policy/reuse_across_streams.hpp>
#include <tessera/recipe/recipe.hpp>

/// Policies that are chosen at run time, one type per axis, so that a search compiles no candidates. Each
/// answers as the shipped policy that it holds; fixed numbers become tunable.
namespace replay::tune {

using namespace tessera;

template <typename... Policy>
struct one_of {
  template <typename P>
  static constexpr bool has = (std::same_as<P, Policy> || ...);

  std::variant<Policy...> chosen;

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
           policy::round_padded<64, multiple<256>>>;
struct any_rounding : rounding_choices {
  any_rounding() = default;
  template <typename P>
    requires(rounding_choices::has<P>)
  any_rounding(const P& p) : rounding_choices{p} {}
  template <std::size_t Least>
  any_rounding(const policy::round_to_power_of_two<Least>&)
      : rounding_choices{policy::round_to_power_of_two<Least, tunable(unlimited)>{}} {}

  [[nodiscard]] std::size_t block_size(std::size_t requested) const noexcept {
    return ask([=](const auto& p) { return p.block_size(requested); });
  }
  bool operator==(const any_rounding&) const = default;
};

using boundary_of_pools = policy::pool_small_and_large<tunable(std::size_t{0})>;
using pools_choices = one_of<boundary_of_pools, policy::pool_together>;
struct any_pools : pools_choices {
  static constexpr std::size_t count = 2;  // with one pool, the second stays empty
  any_pools() : any_pools(policy::pool_small_and_large<1_MiB>{}) {}
  any_pools(policy::pool_together p) : pools_choices{p} {}
  template <auto Boundary>
  any_pools(policy::pool_small_and_large<Boundary> p)
      : pools_choices{boundary_of_pools{.boundary = p.boundary.get()}} {}

  [[nodiscard]] std::size_t select(std::size_t block) const noexcept {
    return ask([=](const auto& p) { return p.select(block); });
  }
  [[nodiscard]] std::size_t max_small_block() const noexcept {
    return ask([](const auto& p) { return tessera::detail::traits_of(p).max_small_block; });
  }
  bool operator==(const any_pools&) const = default;
};

using late = policy::poll_events_lazily<policy::reuse_on_same_stream>;
using late_after_recorded = policy::poll_events_lazily<policy::reuse_on_same_stream_after_own_events>;
using streams_choices = one_of<policy::reuse_on_same_stream, policy::reuse_on_same_stream_after_own_events,
                               late, late_after_recorded, policy::reuse_after_events,
                               policy::reuse_across_streams<>, policy::reuse_immediately>;
struct any_streams : streams_choices {
  any_streams() = default;
  template <typename P>
    requires(streams_choices::has<P>)
  any_streams(const P& p) : streams_choices{p} {}

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
  bool operator==(const any_streams&) const = default;
};

template <std::size_t Rest, policy::block_end End = policy::block_end::low>
using rest = policy::split_if_remainder_at_least<Rest, End>;
inline constexpr policy::block_end high = policy::block_end::high;
using split_expandable = policy::split_below<tunable(unlimited), tunable(20_MiB), limit_of_pools, 0>;
using split_choices = one_of<policy::split_below<>, split_expandable, policy::split_never<>,
                             policy::split_never<policy::block_fit::exact>,
                             policy::split_never<policy::block_fit::same_power_of_two>, rest<64>, rest<128>,
                             rest<512>, rest<4_KiB>, rest<64_KiB>, rest<256_KiB>, rest<1_MiB>, rest<64, high>,
                             rest<512, high>, rest<64_KiB, high>, rest<1_MiB, high>>;
struct any_split : split_choices {
  any_split() = default;
  template <typename P>
    requires(split_choices::has<P>)
  any_split(const P& p) : split_choices{p} {}

  [[nodiscard]] bool may_serve(std::size_t wanted, std::size_t block) const noexcept {
    return ask([=](const auto& p) { return p.may_serve(wanted, block); });
  }
  [[nodiscard]] bool should_split(std::size_t wanted, std::size_t block, pool_traits in = {}) const noexcept {
    return ask([=](const auto& p) {
      if constexpr (requires { p.should_split(wanted, block, in); }) return p.should_split(wanted, block, in);
      return p.should_split(wanted, block);
    });
  }
  [[nodiscard]] policy::block_end allocated_end() const noexcept {
    return ask([](const auto& p) { return p.allocated_end(); });
  }
  [[nodiscard]] std::size_t oversize_from() const noexcept {
    return ask([](const auto& p) { return p.oversize_from(); });
  }
  bool operator==(const any_split&) const = default;
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
  bool operator==(const any_pages&) const = default;
};

template <std::size_t Own>
using segments_below = policy::grow_by_segments<2_MiB, tunable(20_MiB), Own>;
using segments_choices =
    one_of<segments_below<10_MiB>, segments_below<0>, segments_below<64_MiB>, segments_below<256_MiB>,
           policy::grow_exactly<>, policy::grow_by_chunks<>, policy::grow_by_schedule<>>;
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
    return ask([&](const auto& p) {
      if constexpr (requires { p.segment_size(block, now, in); }) return p.segment_size(block, now, in);
      return p.segment_size(block, now);
    });
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
    requires(std::same_as<typename P::backend, policy::segment_backend>)
  any_growth(const P& p) : growth_choices{any_segments(p)} {}
  template <typename P>
    requires(std::same_as<typename P::backend, policy::expandable_backend>)
  any_growth(const P& p) : growth_choices{any_in_place(p)} {}
  template <auto Pieces>
  any_growth(const policy::grow_by_stitching<Pieces>& p)
      : growth_choices{policy::grow_by_stitching<>{p.peak_parts.get(), p.slack, p.limit.get(), p.rest_parts,
                                                   p.alignment}} {}

  /// Whether it maps memory into ranges of addresses.
  [[nodiscard]] bool has_ranges() const noexcept {
    return ask([](const auto& p) { return std::remove_cvref_t<decltype(p)>::backend::has_ranges; });
  }
  bool operator==(const any_growth&) const = default;
};

using eviction_by_schedule = policy::evict_at_free_above_schedule<>;
using eviction_choices =
    one_of<policy::evict_idle_above<tunable(fraction{}), true>, policy::evict_idle_above<>,
           policy::evict_never, policy::evict_at_free<>, policy::evict_at_free<tunable(unlimited)>,
           eviction_by_schedule, policy::evict_idle_segments<>, policy::evict_at_synchronize_above<>>;
struct any_eviction : eviction_choices {
  any_eviction() = default;
  template <typename P>
    requires(eviction_choices::has<P>)
  any_eviction(const P& p) : eviction_choices{p} {}

  [[nodiscard]] std::size_t bytes_to_evict(policy::eviction_trigger when, const usage& now) const noexcept {
    return ask([&](const auto& p) { return p.bytes_to_evict(when, now); });
  }
  [[nodiscard]] bool is_candidate(std::size_t bytes, const usage& now) const noexcept {
    return ask([&](const auto& p) { return p.is_candidate(bytes, now); });
  }
  [[nodiscard]] bool should_evict(const policy::idle_segment& segment) const noexcept {
    return ask([&](const auto& p) { return p.should_evict(segment); });
  }
  bool operator==(const any_eviction&) const = default;
};

using recovery_expandable = policy::fail_fast<policy::recover_by_emptying_cache<>>;
using recovery_choices = one_of<policy::fail_fast<policy::recover_by_releasing_oversize>, recovery_expandable,
                                policy::recover_never, policy::recover_by_emptying_cache<>,
                                policy::recover_by_emptying_cache<tunable(false)>,
                                policy::last_search<policy::fail_fast<policy::recover_by_releasing_oversize>>,
                                policy::last_search<recovery_expandable>>;
struct any_recovery : recovery_choices {
  any_recovery() = default;
  template <typename P>
    requires(recovery_choices::has<P>)
  any_recovery(const P& p) : recovery_choices{p} {}

  [[nodiscard]] policy::recovery_steps steps(policy::failure_reason why) const noexcept {
    return ask([=](const auto& p) { return p.steps(why); });
  }
  bool operator==(const any_recovery&) const = default;
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
  /// Converts a recipe that orders equal free blocks by address, as compositions do.
  template <typename Recipe>
    requires(tessera::detail::free_order_of<typename Recipe::split> == free_order::lowest_address)
  explicit composition(const recipe::policies<Recipe>& p)
      : rounding(p.rounding),
        pools(p.pools),
        streams(p.streams),
        split(p.split),
        pages(p.pages),
        growth(p.growth),
        eviction(p.eviction),
        recovery(p.recovery) {}
  bool operator==(const composition&) const = default;
};

/// The recipe of all compositions with one growth backend, with or without reuse across streams.
template <typename Growth, bool ReusesAcrossStreams>
struct chosen_when_run final {
  struct its_streams : any_streams {
    static constexpr bool reuses_across_streams = ReusesAcrossStreams;
    bool operator==(const its_streams&) const = default;
  };
  using rounding = any_rounding;
  using pools = any_pools;
  using streams = its_streams;
  using split = any_split;
  using pages = any_pages;
  using growth = Growth;
  using eviction = any_eviction;
  using recovery = any_recovery;
};

/// Calls f.operator()<Recipe>(policies) with a recipe that decides like the composition.
template <typename F>
auto with_recipe(const composition& c, F f) {
  const auto call = [&]<typename Growth, bool ReusesAcrossStreams>(const Growth& growth) {
    using recipe = chosen_when_run<Growth, ReusesAcrossStreams>;
    return f.template operator()<recipe>(tessera::recipe::policies<recipe>{
        c.rounding, c.pools, {c.streams}, c.split, c.pages, growth, c.eviction, c.recovery});
  };
  return std::visit(
      [&]<typename Growth>(const Growth& growth) {
        if constexpr (!Growth::backend::has_ranges) {
          if (c.streams.is<policy::reuse_across_streams<>>())
            return call.template operator()<Growth, true>(growth);
        }
        return call.template operator()<Growth, false>(growth);
      },
      c.growth.chosen);
}

inline constexpr std::array axis_names = {"rounding", "pools",  "streams",  "split",
                                          "pages",    "growth", "eviction", "recovery"};
inline constexpr std::size_t axes = axis_names.size();

/// The policies as C++, such as `tessera::policy::round_to_multiple<512>`.
[[nodiscard]] std::array<std::string, axes> policy_texts(const composition& c);

/// A composition as a variation of pytorch, such as `with<pytorch<>, evict_never>`.
[[nodiscard]] std::string as_variation(const composition& c);

/// A complete C++ definition of the recipe, with includes.
[[nodiscard]] std::string as_recipe(const composition& c, const std::string& name);

/// Returns `c` with one axis of `of`. Growth and streams change together if they must.
[[nodiscard]] composition with_axis_of(composition c, std::size_t axis, const composition& of);

/// Properties of a program that restrict the search.
struct program_traits {
  std::size_t peak_live = 0;     ///< bytes
  bool several_streams = false;  ///< more than one stream allocates or is recorded
  bool has_capacity = false;     ///< the device can run out of memory
};

/// Replaces policies that have no effect here by those of pytorch: without a capacity, on one stream, or in a
/// replay.
[[nodiscard]] composition simplified(composition c, const program_traits& of);

/// Returns `from` and the compositions that differ from it in one policy, all simplified.
[[nodiscard]] std::vector<composition> neighbours(const composition& from, const program_traits& of);

/// Whether correctness would need changes of the program: record all uses on streams, or use one stream.
[[nodiscard]] bool needs_program_changes(const composition& c, const program_traits& of);

}  // namespace replay::tune
