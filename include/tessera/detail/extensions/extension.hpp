// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <tessera/core/types.hpp>
#include <tessera/detail/blocks/block.hpp>

/// The questions by which the core of an allocator lets extensions decide, and the reports by which they hear of changes.
///
/// An extension is a struct that the program names after the provider:
/// `caching_allocator<stitched, device, extension::private_pools, extension::quotas>`. The core includes no
/// extension. Without one, each question below has a constant answer, and each report does nothing.
/// tessera/extension/README.md shows how to write one.
///
/// | member of an extension E  |                                                                          |
/// |---------------------------|--------------------------------------------------------------------------|
/// | E::state<Core>            | its data in one allocator, made from the allocator and `E`               |
/// | E::door<Allocator>        | what the program calls: `allocator.get<E>()` returns one                 |
/// | E::in_group               | its data in each group of free lists (optional)                          |
/// | E::needs                  | extensions that it needs, as types of `needs_extensions` (optional)      |
/// | E::spans_arenas           | true if it works in the arenas of per_stream (optional)                  |
/// | E::calls, E::change       | what its door calls in a state of any type, and tells front ends; for any_allocator (optional) |
/// | E::check<Core>()          | true, or an error of the compiler that says why not (optional)           |
///
/// `Core` has the types `allocator`, `group`, `manager`, `backend`, `provider`, `recipe` and `traits`. The state is made
/// before the manager and the provider exist, so its constructor may keep a reference to the allocator, but not use it.
///
/// A state derives from extension_defaults, and redefines the members for the questions that it answers. `g` is a group of
/// free lists, `b` a block. The group of the allocator itself always exists; an extension may add others.
///
/// | question                     | answer                                                                |
/// |------------------------------|-----------------------------------------------------------------------|
/// | group_for(stream) *          | the group that serves a request of a stream; null for the allocator's own |
/// | find_group(id)               | a group by its pool_id, or null                                       |
/// | for_each_group(f)            | calls f(group) for each group that it added                           |
/// | may_wait()                   | whether the device may be asked for events, and waited for            |
/// | why_unserved(g) *            | why a group serves no requests, as text, or null                      |
/// | may_use(b, offset, size) *   | whether these bytes of a free block may be used                       |
/// | may_start_growth(g, bytes)   | whether to try growth by so many bytes; asked before limits are       |
/// | may_acquire(g, bytes)        | whether to ask the device for so many bytes, just before that         |
/// | may_release(g)               | whether idle memory of an added group may go back to the device       |
/// | has_memory(g)                | whether the memory of a group is mapped                               |
/// | may_unmap(address, bytes)    | whether an idle segment or chunk may go back, or move to another address |
/// | may_sleep(address, bytes)    | whether a chunk may go back while its pool sleeps                     |
/// | may_reuse(b)                 | whether a live block may get another request                          |
/// | why_unusable(b)              | why no stream may be recorded for a live block, as text, or null      |
/// | serves_whole(g)              | whether the blocks of a group are never split                         |
/// | acquire(g, bytes, memory)    | true if it gives the memory instead of the provider, null if it fails |
/// | release(g, p, bytes, works)  | true if it takes the memory back instead of the provider              |
/// | supplies(g)                  | whether acquire() and release() do so for this group; faulty_memory asks |
/// | attempt(stage, miss)         | a free block that serves a miss, or null                              |
/// | adjust(miss)                 | changes the steps of recovery                                         |
/// | adopt(other)                 | copies what another allocator's state has; false if host memory ran out |
/// | why_over_quota(g, missing)   | why a group must not get what calls in progress may add, or null; other extensions ask |
/// | why_not_checkpointable(g)    | why the blocks of a group cannot be recorded, or null; checkpoints asks |
/// | explain(numbers)             | adds why a request fails to its oom_numbers                           |
/// | audit()                      | null, or the broken invariant as text                                 |
/// | metadata_bytes()             | bytes of host memory                                                  |
/// | visit_observer(f)            | calls f(object) with an object of the program that hears the events   |
///
/// | report                       |                                                                       |
/// |------------------------------|-----------------------------------------------------------------------|
/// | on_event(event)              | an allocator_event                                                    |
/// | on_use(b, offset, size) *    | every extension lets these bytes be used; right after may_use         |
/// | on_served(b, wanted) *       | a block serves a request of group `wanted`, perhaps from another group |
/// | on_free(b, offset, size)     | these bytes of a free block became free                               |
/// | on_freed(b)                  | right after on_free, whose block it may change: it may take bytes out of the free blocks |
/// | on_change(g)                 | the reserved bytes of a group changed                                 |
/// | on_in_flight(g, bytes)       | a call that may add these bytes to a group began, or ended if negative |
/// | on_unused(g), on_erase(g)    | an added group lost its last use; it is about to be erased            |
/// | on_rearrange()               | blocks changed otherwise than by requests and frees                   |
/// | check_thread()               | a front end will take its lock; abort if that cannot work here        |
/// | on_end()                     | the allocator is about to release all memory                          |
/// | on_trim(), erase_unused()    | the cache was emptied; added groups without memory may go             |
///
/// A miss always asks and reports the rows with a *. A hit does so only while note_special_case() is in force,
/// because the questions cost time; on_served also needs an extension that has for_each_group. So on_free may report bytes
/// for which there was no on_use.
///
/// Behind a front end that locks, check_thread() runs before its mutex is locked, and on_end() when no other thread calls any
/// more. All others run with the mutex held, also attempt(), acquire() and release(). So a state needs no mutex, and must not wait
/// for a thread that may call the allocator. The mutex is unlocked while the device acquires or releases a segment or waits for
/// work. After a call that may do so, look at blocks and groups again, because other threads may have changed them.
///
/// If an extension refuses in may_start_growth, may_acquire or may_use, the miss goes on as at a limit: its `why` is
/// by_extension, and it takes the steps that the recovery policy has for by_limit. adjust() may replace `miss.steps`.
/// caching_allocator::miss_state is what attempt() and adjust() get: the request `want` with its group, stream, bytes,
/// and the size and pool of its block; `why` growth failed; the `steps`; and whether growth asks `exactly` for the size.

namespace tessera::inline v0_1::detail {

struct core_access;

/// The stages of a miss at which extensions may try to serve it.
enum class miss_stage : unsigned char {
  growth_failed,  ///< growth failed for the first time
  before_steps,   ///< before the first step of recovery
  last            ///< after every step of recovery
};

/// The default answers to most questions. extension_defaults [extension_set.hpp] adds those that change the path of a request
/// or a free.
struct default_answers {
  [[nodiscard]] static constexpr std::nullptr_t group_for(stream_id) noexcept { return nullptr; }
  [[nodiscard]] static constexpr std::nullptr_t find_group(pool_id) noexcept { return nullptr; }
  [[nodiscard]] static constexpr bool may_wait() noexcept { return true; }
  [[nodiscard]] static constexpr const char* why_unserved(const auto& /*group*/) noexcept { return nullptr; }
  [[nodiscard]] static constexpr bool may_start_growth(const auto& /*group*/, std::size_t) noexcept {
    return true;
  }
  [[nodiscard]] static constexpr bool may_acquire(const auto& /*group*/, std::size_t) noexcept {
    return true;
  }
  [[nodiscard]] static constexpr bool may_release(const auto& /*group*/) noexcept { return false; }
  [[nodiscard]] static constexpr bool has_memory(const auto& /*group*/) noexcept { return true; }
  [[nodiscard]] static constexpr bool may_unmap(std::uintptr_t, std::size_t) noexcept { return true; }
  [[nodiscard]] static constexpr bool may_sleep(std::uintptr_t, std::size_t) noexcept { return true; }
  [[nodiscard]] static constexpr bool may_reuse(const block&) noexcept { return true; }
  [[nodiscard]] static constexpr bool serves_whole(const auto& /*group*/) noexcept { return false; }
  [[nodiscard]] static constexpr bool acquire(auto& /*group*/, std::size_t, void*&) noexcept { return false; }
  [[nodiscard]] static constexpr bool release(auto&, void*, std::size_t, bool&) noexcept { return false; }
  [[nodiscard]] static constexpr bool supplies(const auto& /*group*/) noexcept { return false; }
  [[nodiscard]] static constexpr block* attempt(miss_stage, auto& /*miss*/) noexcept { return nullptr; }
  static constexpr void adjust(auto& /*miss*/) noexcept {}
  [[nodiscard]] static constexpr const char* why_unusable(const block&) noexcept { return nullptr; }
  [[nodiscard]] static constexpr const char* why_over_quota(auto&, std::size_t&) noexcept { return nullptr; }
  [[nodiscard]] static constexpr const char* why_not_checkpointable(const auto& /*group*/) noexcept {
    return nullptr;
  }
  static constexpr void explain(auto& /*numbers*/) noexcept {}
  [[nodiscard]] static constexpr bool adopt(const auto& /*other*/) noexcept { return true; }
  static constexpr void visit_observer(auto& /*function*/) noexcept {}
  [[nodiscard]] static constexpr const char* audit() noexcept { return nullptr; }
  [[nodiscard]] static constexpr std::size_t metadata_bytes() noexcept { return 0; }

  static constexpr void on_use(const block&, std::size_t, std::size_t) noexcept {}
  static constexpr void on_served(block&, const auto& /*wanted*/) noexcept {}
  static constexpr void on_change(auto& /*group*/) noexcept {}
  static constexpr void on_in_flight(auto& /*group*/, std::int64_t) noexcept {}
  static constexpr void on_unused(auto& /*group*/) noexcept {}
  static constexpr void on_erase(auto& /*group*/) noexcept {}
  static constexpr void on_freed(block&) noexcept {}
  static constexpr void on_rearrange() noexcept {}
  static constexpr void check_thread() noexcept {}
  static constexpr void on_trim() noexcept {}
  static constexpr void on_end() noexcept {}
  static constexpr void erase_unused() noexcept {}
};

/// The extensions of an allocator that has none. All answers are constant.
struct no_extensions : default_answers {
  template <typename Allocator>
  constexpr explicit no_extensions(Allocator&) noexcept {}
  constexpr no_extensions() noexcept = default;

  static constexpr bool is_empty = true;
  static constexpr bool adds_groups = false;
  static constexpr bool limits_groups = false;
  static constexpr bool hears_events = false;
  static constexpr bool watches_frees = false;
  [[nodiscard]] static constexpr bool uses_fast_path() noexcept { return true; }
  [[nodiscard]] static constexpr bool may_serve(const auto& /*group*/) noexcept { return true; }
  [[nodiscard]] static constexpr auto& group_for(stream_id, auto& own) noexcept { return own; }
  static constexpr void for_each_group(auto&& /*function*/) noexcept {}
  static constexpr void visit_observers(auto& /*function*/) noexcept {}
  [[nodiscard]] static constexpr bool has_refused() noexcept { return false; }
};

template <typename E>
concept spans_arenas = requires { requires E::spans_arenas; };

/// What an extension keeps in each group of free lists.
template <typename E>
struct no_part {};
template <typename E>
struct group_part_of {
  using type = no_part<E>;
};
template <typename E>
  requires requires { typename E::in_group; }
struct group_part_of<E> {
  using type = typename E::in_group;
};
template <typename E>
using group_part = typename group_part_of<E>::type;

template <typename T, typename... Of>
inline constexpr bool is_one_of = (std::is_same_v<T, Of> || ...);

/// Whether an object is of one of the extensions that an allocator names.
template <typename Given, typename... Extension>
concept named_behind_the_provider = is_one_of<std::remove_cvref_t<Given>, Extension...>;

/// Whether an allocator of any kind offers an extension.
template <typename Allocator, typename E>
concept offers = requires { requires Allocator::template has<E>; };

/// Stops the compiler if an extension does not work here, and says why. extension_set.hpp defines it.
template <typename Core, typename... Extension>
struct extension_check;
template <typename Core>
struct extension_check<Core> {
  static constexpr bool passes = true;
};

}  // namespace tessera::inline v0_1::detail

/// The results of get<E>() where there is no such extension: incomplete types. So the call does not compile, `requires`
/// says so, and the first line of the error says what is missing.
namespace tessera::inline v0_1::detail::missing {

struct an_arena_has_only_a_part_of_the_memory_so_use_locked_for_this_extension;
struct name_the_extension_behind_the_provider_as_in_caching_allocator_of_recipe_provider_extension;
template <typename E, typename Front>
struct refusal_of {
  using type = name_the_extension_behind_the_provider_as_in_caching_allocator_of_recipe_provider_extension;
};
template <typename E, typename Front>
  requires(!std::is_void_v<typename Front::template refused<E>>)
struct refusal_of<E, Front> {
  using type = typename Front::template refused<E>;
};

}  // namespace tessera::inline v0_1::detail::missing

namespace tessera::inline v0_1::detail {

/// Does nothing with its arguments. It has a name because nvcc accepts no lambda in a requires-expression.
struct ignore_arguments {
  void operator()(auto& /*argument*/, auto... /*more*/) const noexcept {}
};

/// Makes what `allocator.get<E>()` returns.
template <typename E, typename Front>
  requires(Front::template has<E>)
[[nodiscard]] auto open_door(Front& allocator) noexcept {
  return typename E::template door<Front>(allocator);
}
template <typename E, typename Front>
  requires(!Front::template has<E>)
typename missing::refusal_of<E, Front>::type open_door(Front& allocator) noexcept;

/// How a part of an allocator reaches the extensions. Without extensions, it is empty.
template <typename Extensions>
class extension_link {
 public:
  explicit extension_link(Extensions& to) noexcept : to_(&to) {}
  [[nodiscard]] Extensions& get() const noexcept { return *to_; }

 private:
  Extensions* to_;
};
template <>
class extension_link<no_extensions> {
 public:
  constexpr explicit extension_link(no_extensions&) noexcept {}
  [[nodiscard]] static constexpr no_extensions get() noexcept { return {}; }
};

/// The extensions of an allocator. extension_set.hpp defines it; each extension includes that header.
template <typename Core, typename... Extension>
class extension_set;
template <typename Core, typename... Extension>
struct extensions_of {
  using type = extension_set<Core, Extension...>;
};
template <typename Core>
struct extensions_of<Core> {
  using type = no_extensions;
};

}  // namespace tessera::inline v0_1::detail
