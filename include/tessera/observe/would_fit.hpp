// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <tessera/caching_allocator.hpp>
#include <tessera/core/error.hpp>
#include <tessera/detail/blocks/allocator_copy.hpp>

/// Answers whether requests would succeed, by trying them on a copy of the allocator's state.

namespace tessera::inline v0_1::observe {

/// A request that may come.
struct expected_request {
  std::size_t bytes = 0;  ///< that the program will ask for
  stream_id stream{};     ///< of the request
};

/// Whether requests would succeed.
struct [[nodiscard]] fit_answer {
  std::size_t served = 0;    ///< how many succeed before the first that fails
  std::size_t reserved = 0;  ///< bytes that the allocator would have reserved after these
  std::string why{};         ///< why the next one fails; empty if all succeed
  /// Whether all requests would succeed.
  explicit operator bool() const noexcept { return why.empty(); }
};

}  // namespace tessera::inline v0_1::observe

namespace tessera::inline v0_1::detail {

template <typename Extension>
inline constexpr bool holds_memory = requires { requires Extension::holds_memory; };

/// Whether a provider, or one inside adaptors, gives memory in parts.
template <typename Provider>
[[nodiscard]] constexpr bool gives_in_parts() {
  if constexpr (requires { Provider::gives_in_parts; }) {
    return Provider::gives_in_parts;
  } else if constexpr (requires(Provider& p) { p.inner(); }) {
    return gives_in_parts<std::remove_cvref_t<decltype(std::declval<Provider&>().inner())>>();
  } else {
    return false;
  }
}

/// Answers for one caching_allocator.
template <typename Recipe, typename Provider, typename... Extension>
[[nodiscard]] observe::fit_answer fit_of(caching_allocator<Recipe, Provider, Extension...>& original,
                                         std::span<const observe::expected_request> requests) {
  static_assert(!limits_groups<caching_allocator<Recipe, Provider, Extension...>>,
                "would_fit does not know the limits of extensions such as quotas");
  static_assert(
      !gives_in_parts<Provider>(),
      "would_fit does not know in which part of a device, such as a bank of memory_domains, a request fits");
  static_assert(!(holds_memory<Extension> || ...),
                "would_fit does not know which memory registrations and faulty_memory keep from requests");
  observe::fit_answer answer{.reserved = original.current_usage().reserved};
  if (requests.empty()) return answer;
  if (const char* const why = why_not_copied(original, requests.front().stream)) {
    answer.why = why;
    return answer;
  }
  allocator_copy copy(original, requests.front().stream);
  auto& allocator = copy.allocator();
  for (const observe::expected_request& r : requests) {
    if (r.bytes > 0 && !copy.serves(r.stream)) {
      answer.why = "would_fit: another private pool serves this request than the first; ask for each pool";
    } else if (r.bytes > 0 && allocator.try_allocate(r.bytes, r.stream) == nullptr) {
      answer.why = allocator.make_out_of_memory(r.bytes, r.stream).what();
    }
    if (!answer.why.empty()) break;
    ++answer.served;
    answer.reserved = allocator.current_usage().reserved;
  }
  return answer;
}

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::observe {

/// Whether all of these requests would succeed now, one after the other, without a free in between. Recovery counts: what
/// a request would wait for or release is waited for and released in a copy of the allocator's state. For schedulers of
/// batches and of KV caches.
///
/// The allocator stays as it is. The device is asked only which events are complete and how much is free and, by recipes that
/// reuse blocks across streams, for positions of streams. Work that ends after the question may change which blocks serve,
/// so then fewer requests may succeed, or more.
///
///     const tessera::observe::fit_answer answer = tessera::observe::would_fit(allocator, {{64_MiB}, {64_MiB}, {2_GiB}});
///     if (!answer) std::printf("%zu fit; %s\n", answer.served, answer.why.c_str());
///
/// The allocator may be one caching_allocator or a front end of one, such as locked, but not planned. Its mutex is held for
/// the whole question. Right after the answer, other threads may take the memory. The extensions quotas, registrations and
/// faulty_memory are refused, because they decide which memory serves a request, and so are providers whose memory is in
/// parts: memory_domains and preallocating.
///
/// A device that refuses memory although it has that much, such as one whose free memory is in pieces or that lacks huge
/// pages, is not foreseen. Neither are callbacks of on_pressure and a reclaim() of the provider, which might help. All
/// requests are those of one pool: of the default pools, or of one private pool without a pool_upstream and without the option
/// never_splits. The answer is no, and `why` says so, for other pools, and for the default pools while a private pool lends to
/// them. The memory of private pools without a use counts as used if they have an upstream or that option. If several pools
/// without a use have idle memory, another one's may go back than foreseen, so `reserved` may differ.
///   Throws:  std::bad_alloc
///   Cost:    linear in the blocks of that pool and of those whose memory recovery may release, and in ranges in their chunks
///   Source:  PaddlePaddle/Paddle pull request 76430 compares requests with the largest free block
template <typename Allocator>
[[nodiscard]] fit_answer would_fit(Allocator& allocator, std::span<const expected_request> requests) {
  static_assert(
      !requires { allocator.visit_plan(detail::ignore_arguments{}); },
      "would_fit does not know which requests the plan of `planned` serves");
  if constexpr (requires { detail::fit_of(allocator, requests); }) {
    return detail::fit_of(allocator, requests);
  } else {
    static_assert(
        !requires { allocator.visit_arenas(stream_id{}, detail::ignore_arguments{}); },
        "would_fit needs an allocator without arenas, which share memory in other ways");
    fit_answer answer;
    allocator.for_each_allocator([&](auto& one) { (void)(answer = detail::fit_of(one, requests)); });
    return answer;
  }
}
template <typename Allocator>
[[nodiscard]] fit_answer would_fit(Allocator& allocator, std::initializer_list<expected_request> requests) {
  return would_fit(allocator, std::span<const expected_request>(requests.begin(), requests.size()));
}

}  // namespace tessera::inline v0_1::observe
