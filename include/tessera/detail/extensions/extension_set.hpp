// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include <tessera/core/error.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/detail/containers/containers.hpp>
#include <tessera/detail/extensions/extension.hpp>

/// Support for writing extensions. extension.hpp lists what an extension may answer.

namespace tessera::inline v0_1::detail {

/// The argument of type E, or a default one.
template <typename E>
[[nodiscard]] E pick_extension() {
  return E{};
}
template <typename E, typename First, typename... Rest>
[[nodiscard]] decltype(auto) pick_extension(First&& first, Rest&&... rest) {
  if constexpr (std::is_same_v<std::remove_cvref_t<First>, E>) {
    return static_cast<First&&>(first);
  } else {
    return pick_extension<E>(std::forward<Rest>(rest)...);
  }
}

/// The extensions that another one needs.
template <typename... Extension>
struct needs_extensions {};

/// A new name for a group that an extension adds, unique among all allocators. Shared objects with hidden names use the
/// same counter if the loader can see it.
[[nodiscard, gnu::visibility("default")]] inline pool_id new_pool_id() noexcept {
  static constinit std::uint64_t last = 0;
  return {__atomic_add_fetch(&last, 1, __ATOMIC_RELAXED)};  // <atomic> is slow to compile
}

/// Why a call that needs a private pool refuses another pool_id.
[[nodiscard]] constexpr const char* why_no_private_pool(pool_id pool) noexcept {
  return pool == default_pools ? "the default pools are not a private pool" : "no such pool exists";
}

/// Identifies the calling thread. <thread> is slow to compile.
[[nodiscard, gnu::visibility("default")]] inline const void* this_thread() noexcept {
  static thread_local const char here = 0;
  return &here;
}

/// Calls functions of the program that must not use the allocator, and finds out if they do.
class user_calls {
 public:
  /// Returns f().
  template <typename F>
  decltype(auto) call(F f) noexcept {
    __atomic_store_n(&calling_, this_thread(), __ATOMIC_RELAXED);  // <atomic> is slow to compile
    const at_scope_end end([this] { __atomic_store_n(&calling_, nullptr, __ATOMIC_RELAXED); });
    return f();
  }
  /// Aborts with a message if the calling thread runs such a function.
  void check_thread(const char* rule) const noexcept {
    if (__atomic_load_n(&calling_, __ATOMIC_RELAXED) == this_thread()) fatal(rule);
  }

 private:
  const void* calling_ = nullptr;
};

/// How a door refers to its allocator. An any_allocator is itself a reference, so its doors keep a copy.
template <typename Allocator>
struct door_target {
  using type = Allocator*;
};

/// The answer of a state that does not redefine a question or report which changes the path of a request or a free.
struct no_answer {
  constexpr operator bool() const noexcept { return true; }
};
/// The base of the states of extensions, with the default answers.
struct extension_defaults : default_answers {
  static constexpr no_answer for_each_group(auto& /*function*/) noexcept { return {}; }
  static constexpr no_answer may_use(const block&, std::size_t, std::size_t) noexcept { return {}; }
  static constexpr no_answer on_event(const allocator_event&) noexcept { return {}; }
  static constexpr no_answer on_free(const block&, std::size_t, std::size_t) noexcept { return {}; }
};

/// A base of extensions without state and calls: they only choose types.
struct extension_of_types {
  template <typename Core>
  struct state : extension_defaults {
    state(typename Core::allocator&, const extension_of_types&) noexcept {}
  };
};

template <typename T>
concept is_answer = !std::is_same_v<T, no_answer>;
template <typename State, typename Group>
concept answers_for_groups = requires(State& s, void (&f)(Group&)) {
  { s.for_each_group(f) } -> is_answer;
};
template <typename State>
concept answers_may_use = requires(State& s, const block& b) {
  { s.may_use(b, 0, 0) } -> is_answer;
};
template <typename State>
concept answers_on_event = requires(State& s, const allocator_event& event) {
  { s.on_event(event) } -> is_answer;
};
template <typename State>
concept answers_on_free = requires(State& s, const block& b) {
  { s.on_free(b, 0, 0) } -> is_answer;
};

/// Counts the reasons for which hits must ask the extensions.
class special_cases {
 public:
  /// Whether the allocator's own group serves every hit, as without extensions.
  [[nodiscard]] bool uses_fast_path() const noexcept { return count_ == 0; }
  /// Notes that from now on an extension decides which group serves, or whether it may; or, with -1, that it no
  /// longer does.
  void note_special_case(int more) noexcept { count_ += static_cast<std::size_t>(more); }

 private:
  std::size_t count_ = 0;
};

/// The states of the extensions of an allocator, which are asked in the order in which they are named. A
/// question ends at the first that decides it; may_start_growth and may_acquire are asked of all of them.
template <typename Core, typename... Extension>
class extension_set : public special_cases, public Extension::template state<Core>... {
  using allocator = typename Core::allocator;
  using group = typename Core::group;
  template <typename E>
  using state = typename E::template state<Core>;

 public:
  template <typename... Given>
  explicit extension_set(allocator& in, Given&&... given)
      : state<Extension>(in, pick_extension<Extension>(std::forward<Given>(given)...))..., in_(in) {}
  extension_set& operator=(extension_set&&) = delete;

  template <typename E>
  [[nodiscard]] state<E>& get() noexcept {
    return *this;
  }
  template <typename E>
  [[nodiscard]] const state<E>& get() const noexcept {
    return *this;
  }

  static constexpr bool is_empty = false;
  static constexpr bool adds_groups = (answers_for_groups<state<Extension>, group> || ...);
  static constexpr bool limits_groups = (answers_may_use<state<Extension>> || ...);
  static constexpr bool hears_events = (answers_on_event<state<Extension>> || ...);
  static constexpr bool watches_frees = (answers_on_free<state<Extension>> || ...);

  [[nodiscard]] group& group_for(stream_id stream, group& own) noexcept {
    group* const found = first_group([stream](auto& s) { return s.group_for(stream); });
    return found != nullptr ? *found : own;
  }
  [[nodiscard]] const group& group_for(stream_id stream, const group& own) const noexcept {
    return const_cast<extension_set*>(this)->group_for(stream, const_cast<group&>(own));
  }
  /// The group of a pool_id, or null. default_pools names the allocator's own.
  [[nodiscard]] group* find_group(pool_id id) noexcept {
    if (id == default_pools) return &core_access::manager(in_).own();
    return first_group([id](auto& s) { return s.find_group(id); });
  }
  template <typename F>
  void for_each_group(F&& f) noexcept {
    (get<Extension>().for_each_group(f), ...);
  }

  [[nodiscard]] bool may_wait() const noexcept { return (get<Extension>().may_wait() && ...); }
  [[nodiscard]] const char* why_unserved(const group& g) const noexcept {
    return first_text(get<Extension>().why_unserved(g)...);
  }
  [[nodiscard]] bool may_serve(const group& g) const noexcept { return why_unserved(g) == nullptr; }
  /// Asks whether bytes of a free block may be used. If so, tells all of them.
  [[nodiscard]] bool may_use(const block& b, std::size_t offset, std::size_t size) noexcept {
    const bool may = (get<Extension>().may_use(b, offset, size) && ...);
    if (may) (get<Extension>().on_use(b, offset, size), ...);
    return may;
  }
  [[nodiscard]] bool may_start_growth(group& g, std::size_t bytes) noexcept {
    bool may = true;
    ((may = get<Extension>().may_start_growth(g, bytes) && may), ...);
    has_refused_ = false;
    return may;
  }
  [[nodiscard]] bool may_acquire(group& g, std::size_t bytes) noexcept {
    bool may = true;
    ((may = get<Extension>().may_acquire(g, bytes) && may), ...);
    has_refused_ = has_refused_ || !may;
    return may;
  }
  /// Whether any of them refused what growth needed, since may_start_growth().
  [[nodiscard]] bool has_refused() const noexcept { return has_refused_; }
  [[nodiscard]] bool may_release(const group& g) const noexcept {
    return (get<Extension>().may_release(g) || ...);
  }
  [[nodiscard]] bool has_memory(const group& g) const noexcept {
    return (get<Extension>().has_memory(g) && ...);
  }
  [[nodiscard]] bool may_unmap(std::uintptr_t address, std::size_t bytes) const noexcept {
    return (get<Extension>().may_unmap(address, bytes) && ...);
  }
  [[nodiscard]] bool may_sleep(std::uintptr_t address, std::size_t bytes) const noexcept {
    return (get<Extension>().may_sleep(address, bytes) && ...);
  }
  [[nodiscard]] bool may_reuse(const block& b) const noexcept {
    return (get<Extension>().may_reuse(b) && ...);
  }
  [[nodiscard]] bool serves_whole(const group& g) const noexcept {
    return (get<Extension>().serves_whole(g) || ...);
  }
  [[nodiscard]] bool acquire(group& g, std::size_t bytes, void*& memory) noexcept {
    return (get<Extension>().acquire(g, bytes, memory) || ...);
  }
  [[nodiscard]] bool release(group& g, void* memory, std::size_t bytes, bool& works) noexcept {
    return (get<Extension>().release(g, memory, bytes, works) || ...);
  }
  [[nodiscard]] bool supplies(const group& g) const noexcept { return (get<Extension>().supplies(g) || ...); }
  [[nodiscard]] block* attempt(miss_stage stage, auto& miss) noexcept {
    block* found = nullptr;
    (void)(((found = get<Extension>().attempt(stage, miss)) != nullptr) || ...);
    return found;
  }
  [[nodiscard]] const char* why_unusable(const block& b) const noexcept {
    return first_text(get<Extension>().why_unusable(b)...);
  }
  [[nodiscard]] const char* why_over_quota(group& g, std::size_t& missing) noexcept {
    return first_text(get<Extension>().why_over_quota(g, missing)...);
  }
  [[nodiscard]] const char* why_not_checkpointable(const group& g) const noexcept {
    return first_text(get<Extension>().why_not_checkpointable(g)...);
  }
  [[nodiscard]] const char* audit() const noexcept { return first_text(get<Extension>().audit()...); }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return (get<Extension>().metadata_bytes() + ...);
  }
  [[nodiscard]] bool adopt(const extension_set& other) noexcept {
    return (get<Extension>().adopt(other.template get<Extension>()) && ...);
  }
  template <typename F>
  void visit_observers(F& f) {
    (get<Extension>().visit_observer(f), ...);
  }
  void adjust(auto& miss) const noexcept { (get<Extension>().adjust(miss), ...); }
  void explain(auto& numbers) const noexcept { (get<Extension>().explain(numbers), ...); }
  void on_event(const auto& event) noexcept { (get<Extension>().on_event(event), ...); }
  void on_served(block& b, group& wanted) noexcept { (get<Extension>().on_served(b, wanted), ...); }
  void on_free(const block& b, std::size_t offset, std::size_t size) noexcept {
    (get<Extension>().on_free(b, offset, size), ...);
  }
  void on_freed(block& b) noexcept { (get<Extension>().on_freed(b), ...); }
  void on_change(group& g) noexcept { (get<Extension>().on_change(g), ...); }
  void on_in_flight(group& g, std::int64_t bytes) noexcept { (get<Extension>().on_in_flight(g, bytes), ...); }
  void on_unused(group& g) noexcept { (get<Extension>().on_unused(g), ...); }
  void on_erase(group& g) noexcept { (get<Extension>().on_erase(g), ...); }
  void on_rearrange() noexcept { (get<Extension>().on_rearrange(), ...); }
  void check_thread() const noexcept { (get<Extension>().check_thread(), ...); }
  void on_trim() noexcept { (get<Extension>().on_trim(), ...); }
  void on_end() noexcept { (get<Extension>().on_end(), ...); }
  void erase_unused() noexcept { (get<Extension>().erase_unused(), ...); }

 private:
  template <typename F>
  [[nodiscard]] group* first_group(F f) noexcept {
    group* found = nullptr;
    const auto look = [&](auto one) {
      if constexpr (std::is_same_v<decltype(one), group*>) found = found != nullptr ? found : one;
    };
    (look(f(get<Extension>())), ...);
    return found;
  }
  [[nodiscard]] static const char* first_text(auto... texts) noexcept {
    const char* first = nullptr;
    ((first = first != nullptr ? first : texts), ...);
    return first;
  }

  allocator& in_;
  bool has_refused_ = false;
};

/// The compiler shows the two names.
template <typename Extension, typename Needed, typename... All>
consteval bool check_need() {
  static_assert(
      is_one_of<Needed, All...>,
      "an extension needs another one, which its `needs` names; name that behind the provider, too");
  return true;
}
template <typename E, typename... All, typename... Needed>
consteval void check_needs(needs_extensions<Needed...>) {
  (check_need<E, Needed, All...>(), ...);
}
template <typename Core, typename E, typename... All>
consteval bool check_extension() {
  static_assert((0 + ... + std::is_same_v<E, All>) == 1, "an extension is named twice behind the provider");
  static_assert(
      requires { typename E::template state<Core>; },
      "an argument behind the provider is no extension; name one, as tessera::extension::private_pools");
  using state = typename E::template state<Core>;
  static_assert(
      requires(state& s, void (&f)(typename Core::group&)) { s.for_each_group(f); },
      "for_each_group(F&) of an extension's state cannot be called with a function of a group");
  static_assert(
      requires(state& s, const block& b) { s.may_use(b, 0, 0); },
      "may_use of an extension's state must take (const block&, std::size_t, std::size_t)");
  static_assert(
      requires(state& s, const allocator_event& event) { s.on_event(event); },
      "on_event of an extension's state must take (const allocator_event&)");
  static_assert(
      requires(state& s, const block& b) { s.on_free(b, 0, 0); },
      "on_free of an extension's state must take (const block&, std::size_t, std::size_t)");
  if constexpr (requires { typename E::needs; }) check_needs<E, All...>(typename E::needs{});
  if constexpr (requires { E::template check<Core>(); }) static_assert(E::template check<Core>());
  return true;
}
template <typename Core, typename... Extension>
struct extension_check {
  static constexpr bool passes = (check_extension<Core, Extension, Extension...>() && ...);
};

}  // namespace tessera::inline v0_1::detail
