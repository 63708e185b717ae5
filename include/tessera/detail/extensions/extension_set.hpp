// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include <tessera/core/error.hpp>
#include <tessera/detail/blocks/block.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/detail/extensions/extension.hpp>

/// What extensions are made with. extension.hpp lists what an extension may answer.

namespace tessera {

class any_allocator;

}  // namespace tessera

namespace tessera::detail {

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
struct needs_extensions {
  template <typename... All>
  static constexpr bool are_in = (is_one_of<Extension, All...> && ...);
};

/// A new name for a group that an extension adds. No other group has it, also of another allocator.
[[nodiscard]] inline pool_id new_pool_id() noexcept {
  static constinit std::uint64_t last = 0;
  return {__atomic_add_fetch(&last, 1, __ATOMIC_RELAXED)};  // <atomic> is slow to compile
}

/// Identifies the calling thread. <thread> is slow to compile.
[[nodiscard]] inline const void* this_thread() noexcept {
  static thread_local const char here = 0;
  return &here;
}

/// The base of the door of an any_allocator: a table of the calls of the door of its allocator, or null.
template <typename E>
class erased_door {
 protected:
  explicit erased_door(const auto& any) noexcept
      : allocator_(any.allocator_), calls_(any.template calls_on<E>()) {}
  /// The door of an allocator.
  template <typename A>
  [[nodiscard]] static auto of(void* allocator) noexcept {
    return typename E::template door<A>(*static_cast<A*>(allocator));
  }
  /// Makes a call of the table. Without one, returns a default value, or an outcome that says so.
  template <typename Calls, typename Result, typename... Argument>
  Result call(Result (*Calls::*in)(void*, Argument...) noexcept,
              const std::type_identity_t<Argument>&... given) const noexcept {
    if (calls_ != nullptr) return (static_cast<const Calls*>(calls_)->*in)(allocator_, given...);
    if constexpr (std::is_base_of_v<outcome, Result>) {
      Result refused{};
      refused.why = "the allocator has no such extension";
      return refused;
    } else {
      return Result();
    }
  }

 private:
  void* allocator_;
  const void* calls_;
};

/// A base of extensions without state and calls: they only choose types.
struct extension_of_types {
  template <typename Core>
  struct state : extension_defaults {
    state(typename Core::allocator&, const extension_of_types&) noexcept {}
  };
};

template <typename State, typename Group>
concept answers_for_groups = requires(State& s, void (&f)(Group&)) { s.for_each_group(f); };
template <typename State>
concept answers_may_use = requires(State& s, const block& b) { s.may_use(b, 0, 0); };
template <typename State>
concept answers_on_event = requires(State& s, const allocator_event& event) { s.on_event(event); };
template <typename State>
concept answers_on_free = requires(State& s, const block& b) { s.on_free(b, 0, 0); };

/// Counts the reasons for which an allocator does not serve every request as without extensions.
class service_exceptions {
 public:
  /// Whether the allocator's own group serves every request, as without extensions. An extension changes it by
  /// note_exception().
  [[nodiscard]] bool serves_plainly() const noexcept { return exceptions_ == 0; }
  /// Notes that from now on an extension decides which group serves, or whether it may; or, with -1, that it no
  /// longer does.
  void note_exception(int more) noexcept { exceptions_ += static_cast<std::size_t>(more); }

 private:
  std::size_t exceptions_ = 0;
};

/// The states of the extensions of an allocator. Each question is asked of all of them.
template <typename Core, typename... Extension>
class extension_set : public service_exceptions, public Extension::template state<Core>... {
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
  /// The group of a pool_id, or null. The default pool_id names the allocator's own.
  [[nodiscard]] group* find_group(pool_id id) noexcept {
    if (id == pool_id{}) return &core_access::manager(in_).own();
    return first_group([id](auto& s) { return s.find_group(id); });
  }
  template <typename F>
  void for_each_group(F&& f) noexcept {
    (walk_groups_of(get<Extension>(), f), ...);
  }

  [[nodiscard]] bool may_wait() const noexcept { return (get<Extension>().may_wait() && ...); }
  [[nodiscard]] const char* why_unserved(const group& g) const noexcept {
    return first_text(get<Extension>().why_unserved(g)...);
  }
  [[nodiscard]] bool may_serve(const group& g) const noexcept { return why_unserved(g) == nullptr; }
  [[nodiscard]] bool may_use(const block& b, std::size_t offset, std::size_t size) noexcept {
    return (may_use_of(get<Extension>(), b, offset, size) && ...);
  }
  [[nodiscard]] bool may_take(group& g, std::size_t bytes) noexcept {
    return (get<Extension>().may_take(g, bytes) && ...);
  }
  [[nodiscard]] bool may_grow(group& g, std::size_t bytes) noexcept {
    return (get<Extension>().may_grow(g, bytes) && ...);
  }
  [[nodiscard]] bool may_release(const group& g) const noexcept {
    return (get<Extension>().may_release(g) || ...);
  }
  [[nodiscard]] bool has_memory(const group& g) const noexcept {
    return (get<Extension>().has_memory(g) && ...);
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
  [[nodiscard]] bool take_refusal() noexcept { return (get<Extension>().take_refusal() || ...); }
  [[nodiscard]] block* attempt(miss_stage stage, auto& miss) noexcept {
    block* found = nullptr;
    (void)(((found = get<Extension>().attempt(stage, miss)) != nullptr) || ...);
    return found;
  }
  [[nodiscard]] const char* why_unusable(const block& b) const noexcept {
    return first_text(get<Extension>().why_unusable(b)...);
  }
  [[nodiscard]] const char* why_too_large(group& g, std::size_t& missing) noexcept {
    return first_text(get<Extension>().why_too_large(g, missing)...);
  }
  [[nodiscard]] const char* why_unfit(const group& g) const noexcept {
    return first_text(get<Extension>().why_unfit(g)...);
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
  void on_event(const auto& event) noexcept { (report_to(get<Extension>(), event), ...); }
  void on_served(block& b, group& wanted) noexcept { (get<Extension>().on_served(b, wanted), ...); }
  void on_free(const block& b, std::size_t offset, std::size_t size) noexcept {
    (report_free_to(get<Extension>(), b, offset, size), ...);
  }
  void on_change(group& g) noexcept { (get<Extension>().on_change(g), ...); }
  void on_plan(group& g, std::size_t bytes) noexcept { (get<Extension>().on_plan(g, bytes), ...); }
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
    const auto look = [&](auto* one) {
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
  // What extension_defaults lacks.
  template <typename State, typename F>
  static void walk_groups_of(State& s, F& f) noexcept {
    if constexpr (answers_for_groups<State, group>) s.for_each_group(f);
  }
  template <typename State>
  [[nodiscard]] static bool may_use_of(State& s, const block& b, std::size_t offset,
                                       std::size_t size) noexcept {
    if constexpr (answers_may_use<State>) return s.may_use(b, offset, size);
    return true;
  }
  template <typename State>
  static void report_to(State& s, const auto& event) noexcept {
    if constexpr (answers_on_event<State>) s.on_event(event);
  }
  template <typename State>
  static void report_free_to(State& s, const block& b, std::size_t offset, std::size_t size) noexcept {
    if constexpr (answers_on_free<State>) s.on_free(b, offset, size);
  }

  allocator& in_;
};

template <typename Core, typename E, typename... All>
consteval bool check_extension() {
  static_assert(
      requires { typename E::template state<Core>; },
      "an argument behind the provider is no extension; name one, as tessera::extension::private_pools");
  if constexpr (requires { typename E::needs; })
    static_assert(
        E::needs::template are_in<All...>,
        "an extension needs another one, which its `needs` names; name that behind the provider, too");
  if constexpr (requires { E::template check<Core>(); }) static_assert(E::template check<Core>());
  return true;
}
template <typename Core, typename... Extension>
struct extension_check {
  static constexpr bool passes = (check_extension<Core, Extension, Extension...>() && ...);
};

}  // namespace tessera::detail
