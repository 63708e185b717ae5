// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/policy/eviction.hpp>
#include <tessera/policy/growth.hpp>
#include <tessera/policy/pages.hpp>
#include <tessera/policy/pools.hpp>
#include <tessera/policy/recovery.hpp>
#include <tessera/policy/rounding.hpp>
#include <tessera/policy/split.hpp>
#include <tessera/policy/streams.hpp>

/// A recipe is a struct of eight aliases, one policy for each axis. None of them has a default.

namespace tessera::inline v0_1::detail {

template <typename R>
concept has_rounding = requires { typename R::rounding; } && policy::rounding_policy<typename R::rounding>;

template <typename R>
concept has_pools = requires { typename R::pools; } && policy::pools_policy<typename R::pools>;

template <typename R>
concept has_streams = requires { typename R::streams; } && policy::streams_policy<typename R::streams>;

template <typename R>
concept has_split = requires { typename R::split; } && policy::split_policy<typename R::split>;

template <typename R>
concept has_pages = requires { typename R::pages; } && policy::pages_policy<typename R::pages>;

template <typename R>
concept has_growth = requires { typename R::growth; } && policy::growth_policy<typename R::growth>;

/// The growth policy has the members that its backend requires.
template <typename R>
concept has_backend_answers =
    has_growth<R> && R::growth::backend::template accepts_growth<typename R::growth>;

/// If streams share free blocks, the backend must support it.
template <typename R>
concept has_sharing_backend = !has_streams<R> || !has_growth<R> || !bool(R::streams::reuses_across_streams) ||
                              R::growth::backend::supports_stream_reuse;

/// The backend must support the order of free blocks. With reuse across streams, the order must be
/// lowest_address.
template <typename R>
concept has_supported_order =
    !has_split<R> || detail::free_order_of<typename R::split> == free_order::lowest_address ||
    ((!has_growth<R> || R::growth::backend::accepts_order(detail::free_order_of<typename R::split>)) &&
     (!has_streams<R> || !bool(R::streams::reuses_across_streams)));

template <typename R>
concept has_eviction = requires { typename R::eviction; } && policy::eviction_policy<typename R::eviction>;

/// Segments have a history; ranges have none.
template <typename R>
concept has_segment_history = !has_eviction<R> || !has_growth<R> || !R::growth::backend::has_ranges ||
                              (!detail::counts_reuses<typename R::eviction> &&
                               std::is_void_v<typename detail::call_clock_of<typename R::eviction>::type>);

template <typename R>
concept has_recovery = requires { typename R::recovery; } && policy::recovery_policy<typename R::recovery>;

/// The eight aliases of a recipe, without its other members.
template <typename Recipe>
struct aliases_of {
  using rounding = typename Recipe::rounding;
  using pools = typename Recipe::pools;
  using streams = typename Recipe::streams;
  using split = typename Recipe::split;
  using pages = typename Recipe::pages;
  using growth = typename Recipe::growth;
  using eviction = typename Recipe::eviction;
  using recovery = typename Recipe::recovery;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::recipe {

template <typename R>
concept well_formed = detail::has_rounding<R> && detail::has_pools<R> && detail::has_streams<R> &&
                      detail::has_split<R> && detail::has_pages<R> && detail::has_backend_answers<R> &&
                      detail::has_sharing_backend<R> && detail::has_supported_order<R> &&
                      detail::has_eviction<R> && detail::has_segment_history<R> && detail::has_recovery<R>;

/// The policies of one allocator, as values. Set their numbers by name at run time.
///
///     tessera::recipe::policies<tessera::recipe::pytorch<>> chosen;
///     chosen.split.max = 128_MiB;
///     chosen.eviction.threshold = tessera::percent(80);
///     chosen.growth.limit = 16_GiB;
///     tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> tuned{{}, chosen};
template <typename Recipe>
struct policies {
  // Without braces: clang 15 to 18 write through a null pointer for braces of an empty class with an empty member.
  [[TESSERA_NO_UNIQUE_ADDRESS]] typename Recipe::rounding rounding = typename Recipe::rounding();
  [[TESSERA_NO_UNIQUE_ADDRESS]] typename Recipe::pools pools = typename Recipe::pools();
  [[TESSERA_NO_UNIQUE_ADDRESS]] typename Recipe::streams streams = typename Recipe::streams();
  [[TESSERA_NO_UNIQUE_ADDRESS]] typename Recipe::split split = typename Recipe::split();
  [[TESSERA_NO_UNIQUE_ADDRESS]] typename Recipe::pages pages = typename Recipe::pages();
  [[TESSERA_NO_UNIQUE_ADDRESS]] typename Recipe::growth growth = typename Recipe::growth();
  [[TESSERA_NO_UNIQUE_ADDRESS]] typename Recipe::eviction eviction = typename Recipe::eviction();
  [[TESSERA_NO_UNIQUE_ADDRESS]] typename Recipe::recovery recovery = typename Recipe::recovery();
  bool operator==(const policies&) const = default;
};

}  // namespace tessera::inline v0_1::recipe

namespace tessera::inline v0_1::detail {

/// Stops the compiler if an alias of a recipe is wrong. The message names the alias and the header with its
/// requirements.
template <typename Recipe>
consteval bool check_recipe() {
  static_assert(
      has_rounding<Recipe>,
      "Recipe::rounding must name a rounding_policy: size_t block_size(size_t requested) const noexcept "
      "[tessera/policy/rounding.hpp]");
  static_assert(has_pools<Recipe>,
                "Recipe::pools must name a pools_policy: static size_t count, size_t select(size_t block) "
                "const noexcept "
                "[tessera/policy/pools.hpp]");
  static_assert(
      has_streams<Recipe>,
      "Recipe::streams must name a streams_policy: static bool uses_events, stream_id reuse_key(stream_id), "
      "bool needs_event(stream_id key, stream_id user), static bool reuses_across_streams, "
      "cross_stream_reuse reuse_rules(), bool "
      "should_poll_events(size_t pending) const noexcept "
      "[tessera/policy/streams.hpp]");
  static_assert(
      has_split<Recipe>,
      "Recipe::split must name a split_policy: bool may_serve(size_t wanted, size_t block), bool "
      "should_split(size_t wanted, size_t block), block_end allocated_end(), size_t oversize_from() "
      "const noexcept; if it has precedes, bool precedes(const free_block&, const free_block&, const "
      "wanted_block&) const noexcept; if it has note_served, void note_served(const served_request&) "
      "noexcept "
      "[tessera/policy/split.hpp]");
  static_assert(has_pages<Recipe>,
                "Recipe::pages must name a pages_policy: static bool uses_page_kinds, page_order "
                "backing(size_t segment) "
                "const noexcept [tessera/policy/pages.hpp]");
  static_assert(has_growth<Recipe>,
                "Recipe::growth must name a growth_policy: a type backend, size_t segment_size(size_t block, "
                "const usage&), a member limit with size_t on(size_t capacity) const noexcept "
                "[tessera/policy/growth.hpp]");
  static_assert(!has_growth<Recipe> || has_backend_answers<Recipe>,
                "Recipe::growth must answer what its backend needs [tessera/policy/growth.hpp]");
  static_assert(has_sharing_backend<Recipe>,
                "Recipe::growth must use segments, because Recipe::streams reuses blocks across streams "
                "[tessera/policy/streams.hpp]");
  static_assert(has_supported_order<Recipe>,
                "Recipe::split must use free_order::lowest_address, because Recipe::streams or "
                "Recipe::growth needs it "
                "[tessera/policy/split.hpp]");
  static_assert(
      has_segment_history<Recipe>,
      "Recipe::growth must use segments, because Recipe::eviction has counts_reuses or a call_clock "
      "[tessera/policy/eviction.hpp]");
  static_assert(
      has_eviction<Recipe>,
      "Recipe::eviction must name an eviction_policy: size_t bytes_to_evict(eviction_trigger, const usage&), "
      "bool "
      "is_candidate(size_t bytes, const usage&), bool should_evict(const idle_segment&) "
      "const noexcept; if it has a type clock, that has static uint64_t now() noexcept; if it has value, "
      "that "
      "is double value(const idle_segment&) const noexcept "
      "[tessera/policy/eviction.hpp]");
  static_assert(
      has_recovery<Recipe>,
      "Recipe::recovery must name a recovery_policy: recovery_steps steps(failure_reason) const noexcept "
      "[tessera/policy/recovery.hpp]");
  return tessera::recipe::well_formed<Recipe>;
}

template <typename Provider, typename Recipe>
concept has_events_for = !Recipe::streams::uses_events || provider::event_provider<Provider>;

template <typename Provider, typename Recipe>
concept has_order_for = !Recipe::streams::reuses_across_streams || provider::ordering_provider<Provider>;

template <typename Provider, typename Recipe>
concept has_pages_for = !Recipe::pages::uses_page_kinds || provider::paged_provider<Provider>;

/// A clock that measures the calls of this provider, if the eviction policy has one.
template <typename Provider, typename Recipe>
concept has_call_clock_for =
    !requires { typename Recipe::eviction::call_clock; } || requires(const Provider& p) {
      { Recipe::eviction::call_clock::now(p) } noexcept -> std::same_as<std::uint64_t>;
    };

template <typename Provider, typename Recipe>
concept has_memory_for = !Recipe::growth::backend::has_ranges || provider::virtual_memory_provider<Provider>;

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::recipe {

/// Whether a provider has all capabilities that a recipe needs.
///
///     static_assert(tessera::recipe::provider_for<tessera::provider::simulated_device, tessera::recipe::stitched>);
template <typename Provider, typename Recipe>
concept provider_for = detail::has_events_for<Provider, Recipe> && detail::has_order_for<Provider, Recipe> &&
                       detail::has_pages_for<Provider, Recipe> && detail::has_memory_for<Provider, Recipe> &&
                       detail::has_call_clock_for<Provider, Recipe>;

}  // namespace tessera::inline v0_1::recipe

namespace tessera::inline v0_1::detail {

/// Stops the compiler, and names the capability that a recipe needs and the provider lacks.
template <typename Recipe, typename Provider>
consteval bool check_provider() {
  static_assert(
      has_events_for<Provider, Recipe>,
      "Provider must be an event_provider for Recipe::streams [tessera/provider/provider.hpp]; for memory "
      "without streams, write with<Recipe, policy::reuse_immediately>");
  static_assert(has_order_for<Provider, Recipe>,
                "Provider must be an ordering_provider for Recipe::streams [tessera/provider/provider.hpp]");
  static_assert(has_pages_for<Provider, Recipe>,
                "Provider must be a paged_provider for Recipe::pages [tessera/provider/provider.hpp]");
  static_assert(
      has_memory_for<Provider, Recipe>,
      "Provider must be a virtual_memory_provider for Recipe::growth [tessera/provider/provider.hpp]");
  static_assert(has_call_clock_for<Provider, Recipe>,
                "Recipe::eviction::call_clock must have static uint64_t now(const Provider&) noexcept "
                "[tessera/policy/eviction.hpp]");
  return recipe::provider_for<Provider, Recipe>;
}

}  // namespace tessera::inline v0_1::detail
