// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include <tessera/core/parameter.hpp>
#include <tessera/recipe/questions.hpp>
#include <tessera/recipe/recipe.hpp>

/// Which axis a type is a policy of; and where it is of none, which one was meant, and what the type lacks.
namespace tessera {

/// One of the eight questions, as a value: which policies answer it.
enum class axis : unsigned char { none, rounding, pools, streams, split, pages, growth, eviction, recovery };

/// The axis that a type is a policy of; verbs differ from axis to axis, so there is at most one.
template <typename P>
inline constexpr axis axis_of = rounding_policy<P>   ? axis::rounding
                                : pools_policy<P>    ? axis::pools
                                : streams_policy<P>  ? axis::streams
                                : split_policy<P>    ? axis::split
                                : pages_policy<P>    ? axis::pages
                                : growth_policy<P>   ? axis::growth
                                : eviction_policy<P> ? axis::eviction
                                : recovery_policy<P> ? axis::recovery
                                                     : axis::none;

/// What is wrong with a type's answer to a question.
template <typename P, typename Question>
[[nodiscard]] consteval auto find_flaw() {
  if constexpr (requires(const P& p) { Question::ask(p); }) {
    using answer = decltype(Question::ask(std::declval<const P&>()));
    using wanted = typename Question::answer;
    if constexpr (!std::is_same_v<answer, wanted> &&
                  !(Question::converts && std::is_convertible_v<answer, wanted>)) {
      return policy_flaw::other_type{};
    } else if constexpr (noexcept(Question::ask(std::declval<const P&>()))) {
      return policy_flaw::none{};
    } else {
      return policy_flaw::not_noexcept{};
    }
  } else if constexpr (requires(P& p) { Question::ask(p); }) {
    return policy_flaw::not_const{};
  } else if constexpr (requires { Question::template find<P>(); }) {
    return policy_flaw::other_arguments{};
  } else {
    return policy_flaw::missing{};
  }
}
template <typename P, typename Question>
using flaw_of = decltype(find_flaw<P, Question>());

/// An axis and all of its questions.
template <axis Axis, typename... Question>
struct questions_of {
  /// How many of them a type answers, rightly or not.
  template <typename P>
  static constexpr std::size_t found_in =
      (std::size_t{!std::is_same_v<flaw_of<P, Question>, policy_flaw::missing>} + ...);
  template <typename P>
  static constexpr bool is_regular = regular<P>;
  /// Stops the compiler with the questions that a type does not answer as it must.
  template <typename P>
  static consteval void explain() {
    (Question::template explain<flaw_of<P, Question>>(), ...);
    static_assert(
        is_regular<P> || (!policy_flaw::is_none<flaw_of<P, Question>> || ...),
        "with<>: a policy of the nearest axis is regular: it has a default constructor, copies and bool "
        "operator==(const P&) const [tessera/core/parameter.hpp]");
  }
};

/// The axis whose questions a type answers most of, and so was meant for.
template <typename P, typename First, typename... Rest>
struct nearest {
  using type = First;
};
template <typename P, typename First, typename Second, typename... Rest>
struct nearest<P, First, Second, Rest...>
    : nearest<P,
              std::conditional_t<(Second::template found_in<P> > First::template found_in<P>), Second, First>,
              Rest...> {};

template <typename P>
using nearest_axis =
    typename nearest<P, questions_of<axis::rounding, policy_question::block_size>,
                     questions_of<axis::pools, policy_question::count, policy_question::select>,
                     questions_of<axis::streams, policy_question::uses_events, policy_question::reuse_key,
                                  policy_question::needs_event, policy_question::reuses_across_streams,
                                  policy_question::reuse_rules, policy_question::should_poll_events>,
                     questions_of<axis::split, policy_question::may_serve, policy_question::should_split,
                                  policy_question::used_end, policy_question::oversize>,
                     questions_of<axis::pages, policy_question::uses_page_kinds, policy_question::backing>,
                     questions_of<axis::growth, policy_question::backend, policy_question::segment_size,
                                  policy_question::limit>,
                     questions_of<axis::eviction, policy_question::bytes_to_evict,
                                  policy_question::is_candidate, policy_question::should_evict>,
                     questions_of<axis::recovery, policy_question::steps>>::type;

/// Stops the compiler where a type is a policy of no axis, with the nearest one and what the type lacks for it.
template <typename P>
consteval bool check_policy() {
  if constexpr (axis_of<P> == axis::none) {
    constexpr bool is_near = nearest_axis<P>::template found_in<P> > 0;
    static_assert(is_near,
                  "with<>: a type given as a policy fits no axis: it has none of block_size, select, "
                  "reuse_key, may_serve, backing, segment_size, bytes_to_evict and steps "
                  "[tessera/recipe/recipe.hpp]");
    if constexpr (is_near) nearest_axis<P>::template explain<P>();
  }
  return true;
}

}  // namespace tessera
