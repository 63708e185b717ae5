// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include <tessera/core/error.hpp>
#include <tessera/detail/containers/function_ref.hpp>
#include <tessera/detail/extensions/extension.hpp>

namespace tessera::inline v0_1::extension {

struct private_pools;
struct sleep_mode;
class pool_upstream;

}  // namespace tessera::inline v0_1::extension

namespace tessera::inline v0_1::detail {

template <typename Allocator>
struct door_target;

/// How an any_allocator reaches the state of an extension, to which an `E::calls` refers.
template <typename E>
struct extension_access {
  using calls = typename E::calls;
  void (*read)(const void* allocator, function_ref<void(const calls&)> f) noexcept;
  outcome (*change)(void* allocator, function_ref<outcome(const calls&)> f,
                    function_ref<void(const calls&)> undo) noexcept;
  void (*note)(void* allocator, const typename E::change& made) noexcept;
};
template <typename E, typename A>
inline constexpr extension_access<E> access_to = {
    [](const void* a, auto f) noexcept {
      const auto read = [f]<typename State>(const State& s) {
        f(typename E::calls(const_cast<State&>(s)));  // f makes calls that only read
        return std::size_t{0};
      };
      (void)static_cast<const A*>(a)->template add_up_extension<E>(read);
    },
    [](void* a, auto f, auto undo) noexcept -> outcome {
      return static_cast<A*>(a)->template change_extension<E>(
          [f](auto& s) { return f(typename E::calls(s)); }, [undo](auto& s) { undo(typename E::calls(s)); });
    },
    [](void* a, const auto& made) noexcept { static_cast<A*>(a)->note_change(made); }};

/// The access to an extension of an allocator, or null if it does not offer it.
template <typename E, typename A>
[[nodiscard]] constexpr const void* find_access() noexcept {
  if constexpr (offers<A, E>) return &access_to<E, A>;
  return nullptr;
}
/// Gives a class that hides the type of an allocator the calls by which doors reach its extensions. The class defines
/// `object()`, the allocator; `access_of<E>()`, as find_access; and `why_missing<E>`, what the calls say without the extension.
template <typename Self>
class hidden_extensions {
 public:
  template <typename E>
  static constexpr bool has = is_one_of<E, extension::private_pools, extension::sleep_mode>;
  /// Why it does not offer an extension, as that of a front end.
  template <typename E>
  using refused = void;
  /// The calls of sleep_mode exist; that they fail if the recipe maps no memory into ranges is known at run time only.
  static constexpr bool has_ranges = true;
  /// What an extension offers. If the allocator does not have it, the calls do nothing and say so.
  template <typename E, typename Me = Self>
  [[nodiscard]] auto get() const noexcept -> decltype(open_door<E>(std::declval<const Me&>())) {
    return open_door<E>(self());
  }

  // The doors use the next functions, as those of a caching_allocator. Without the extension, f is not called.

  /// Calls f(state). If there are several states, all give the same answer.
  template <typename E, typename F>
  auto visit_extension(F f) const noexcept {
    decltype(f(std::declval<const typename E::calls&>())) answer{};
    if (const auto* const to = access<E>())
      to->read(self().object(), [&](const auto& state) { answer = f(state); });
    return answer;
  }
  /// Calls f(state), and adds up the answers if there are several states.
  template <typename E, typename F>
  auto add_up_extension(F f) const noexcept {
    decltype(f(std::declval<const typename E::calls&>())) sum{};
    if (const auto* const to = access<E>())
      to->read(self().object(), [&](const auto& state) { sum += f(state); });
    return sum;
  }
  /// Calls f(state); if there are several states and one fails, calls undo(state) for those before.
  template <typename E, typename F, typename Undo = ignore_arguments>
  auto change_extension(F f, Undo undo = {}) const noexcept {
    decltype(f(std::declval<const typename E::calls&>())) result{};
    outcome& of_all = result;
    const auto* const to = access<E>();
    of_all = to == nullptr
                 ? outcome{Self::template why_missing<E>}
                 : to->change(self().object(), [&](auto& state) { return result = f(state); }, undo);
    return result;
  }
  template <typename Note>
  void note_change(const Note& made) const noexcept {
    access<typename Note::extension>()->note(self().object(), made);
  }
  bool operator==(const hidden_extensions&) const = default;

 private:
  friend Self;
  hidden_extensions() = default;
  [[nodiscard]] const Self& self() const noexcept { return static_cast<const Self&>(*this); }
  template <typename E>
  [[nodiscard]] const extension_access<E>* access() const noexcept {
    return static_cast<const extension_access<E>*>(self().template access_of<E>());
  }
};

/// An allocator of one device. A per_device has several: use front(d) of one.
template <typename Allocator>
concept is_allocator_of_one_device = requires(Allocator& a, void* p, std::size_t bytes, stream_id stream) {
  { a.allocate(bytes, stream) } -> std::same_as<void*>;
  { a.try_allocate(bytes, stream) } -> std::same_as<void*>;
  a.deallocate(p);
  a.deallocate(p, bytes);
  { a.try_deallocate(p) } -> std::same_as<bool>;
  { a.record_stream(p, stream) } -> std::same_as<bool>;
  { a.try_record_stream(p, stream) } -> std::same_as<bool>;
  a.trim(bytes);
  { a.current_usage() } -> std::same_as<usage>;
  { a.audit() } -> std::same_as<const char*>;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::detail::missing {

struct any_allocator_needs_the_front_of_one_device;
struct any_allocator_forwards_only_private_pools_and_sleep_mode;
struct any_allocator_forwards_no_pool_upstream;

}  // namespace tessera::inline v0_1::detail::missing

namespace tessera::inline v0_1 {

/// Refers to an allocator of any type: a pointer to the allocator, and a pointer to a table of its calls.
///
/// Choose it for interfaces of your own program. Their headers then include neither a recipe nor a provider,
/// and compile in a tenth of a second. One source creates the allocator. It converts to an any_allocator:
///
///     struct texture_cache {
///       explicit texture_cache(tessera::any_allocator from) : memory(from) {}
///       tessera::any_allocator memory;
///     };
///     texture_cache textures(allocator);  // a caching_allocator, or any front end
///     void* const p = textures.memory.allocate(5_MiB);
///     textures.memory.deallocate(p);
///
/// Each call does what the call of that name does in the allocator; it is as thread-safe as the allocator. To
/// hold it before the allocator exists, use a std::optional.
///
/// Of the extensions, it forwards private_pools and sleep_mode, so a private_pool may be made over it. An allocator
/// without private pools creates none: private_pool throws.
///
///   Requires:  the allocator outlives it and does not move
///   Cost:      one indirect call; it allocates nothing
class any_allocator : public detail::hidden_extensions<any_allocator> {
 public:
  /// Refers to an allocator. Converts from any allocator of one device, so functions may take an
  /// any_allocator.
  template <typename Allocator>
    requires(!std::is_same_v<std::remove_cv_t<Allocator>, any_allocator> && !std::is_const_v<Allocator> &&
             detail::is_allocator_of_one_device<Allocator>)
  any_allocator(Allocator& allocator) noexcept : allocator_(&allocator), calls_(&calls_of<Allocator>) {}
  template <typename Allocator,
            typename Missing = detail::missing::any_allocator_needs_the_front_of_one_device>
    requires(!std::is_same_v<std::remove_cv_t<Allocator>, any_allocator> && !std::is_const_v<Allocator> &&
             !detail::is_allocator_of_one_device<Allocator>)
  any_allocator(Allocator& allocator) = delete;

  [[nodiscard]] void* allocate(std::size_t bytes, stream_id stream = {}) const {
    return calls_->allocate(allocator_, bytes, stream);
  }
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) const noexcept {
    return calls_->try_allocate(allocator_, bytes, stream);
  }
  void deallocate(void* p) const noexcept { calls_->deallocate(allocator_, p); }
  void deallocate(void* p, std::size_t bytes) const noexcept {
    calls_->deallocate_sized(allocator_, p, bytes);
  }
  [[nodiscard]] bool try_deallocate(void* p) const noexcept { return calls_->try_deallocate(allocator_, p); }
  [[nodiscard]] bool record_stream(void* p, stream_id stream) const noexcept {
    return calls_->record_stream(allocator_, p, stream);
  }
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) const noexcept {
    return calls_->try_record_stream(allocator_, p, stream);
  }
  void trim(std::size_t keep = 0) const noexcept { calls_->trim(allocator_, keep); }
  /// Does nothing if the allocator has no such call: only a `planned` and those around it have it.
  void begin_step(std::uint64_t key = 0) const noexcept { calls_->begin_step(allocator_, key); }
  void begin_step(std::uint64_t key, stream_id stream) const noexcept {
    calls_->begin_step_of(allocator_, key, stream);
  }
  [[nodiscard]] usage current_usage() const noexcept { return calls_->current_usage(allocator_); }
  [[nodiscard]] const char* audit() const noexcept { return calls_->audit(allocator_); }

  // Extensions.

  template <typename E>
  static constexpr const char* why_missing = "the allocator has no such extension";
  template <typename E>
  using refused = std::conditional_t<
      any_allocator::has<E>, void,
      std::conditional_t<std::is_same_v<E, extension::pool_upstream>,
                         detail::missing::any_allocator_forwards_no_pool_upstream,
                         detail::missing::any_allocator_forwards_only_private_pools_and_sleep_mode>>;

  /// Whether both refer to the same allocator, as the same type: a front end and the allocator inside may share an
  /// address. Shared objects with hidden names count as having types of their own.
  bool operator==(const any_allocator&) const = default;

 private:
  struct call_table {
    void* (*allocate)(void*, std::size_t, stream_id);
    void* (*try_allocate)(void*, std::size_t, stream_id) noexcept;
    void (*deallocate)(void*, void*) noexcept;
    void (*deallocate_sized)(void*, void*, std::size_t) noexcept;
    bool (*try_deallocate)(void*, void*) noexcept;
    bool (*record_stream)(void*, void*, stream_id) noexcept;
    bool (*try_record_stream)(void*, void*, stream_id) noexcept;
    void (*trim)(void*, std::size_t) noexcept;
    void (*begin_step)(void*, std::uint64_t) noexcept;
    void (*begin_step_of)(void*, std::uint64_t, stream_id) noexcept;
    usage (*current_usage)(void*) noexcept;
    const char* (*audit)(void*) noexcept;
    const void* private_pools;  ///< its extension_access, or null
    const void* sleep_mode;
  };
  template <typename Allocator>
  [[nodiscard]] static Allocator& to(void* allocator) noexcept {
    return *static_cast<Allocator*>(allocator);
  }
  friend detail::hidden_extensions<any_allocator>;
  [[nodiscard]] void* object() const noexcept { return allocator_; }
  template <typename E>
  [[nodiscard]] const void* access_of() const noexcept {
    return std::is_same_v<E, extension::private_pools> ? calls_->private_pools : calls_->sleep_mode;
  }
  template <typename A>
  static constexpr call_table calls_of = {
      [](void* a, std::size_t bytes, stream_id s) { return to<A>(a).allocate(bytes, s); },
      [](void* a, std::size_t bytes, stream_id s) noexcept { return to<A>(a).try_allocate(bytes, s); },
      [](void* a, void* p) noexcept { to<A>(a).deallocate(p); },
      [](void* a, void* p, std::size_t bytes) noexcept { to<A>(a).deallocate(p, bytes); },
      [](void* a, void* p) noexcept { return to<A>(a).try_deallocate(p); },
      [](void* a, void* p, stream_id s) noexcept { return to<A>(a).record_stream(p, s); },
      [](void* a, void* p, stream_id s) noexcept { return to<A>(a).try_record_stream(p, s); },
      [](void* a, std::size_t keep) noexcept { to<A>(a).trim(keep); },
      [](void* a, std::uint64_t key) noexcept {
        if constexpr (requires { to<A>(a).begin_step(key); }) to<A>(a).begin_step(key);
      },
      [](void* a, std::uint64_t key, stream_id s) noexcept {
        if constexpr (requires { to<A>(a).begin_step(key, s); }) to<A>(a).begin_step(key, s);
      },
      [](void* a) noexcept { return to<A>(a).current_usage(); },
      [](void* a) noexcept { return to<A>(a).audit(); },
      detail::find_access<extension::private_pools, A>(),
      detail::find_access<extension::sleep_mode, A>()};

  void* allocator_;
  const call_table* calls_;
};
static_assert(sizeof(any_allocator) == 2 * sizeof(void*));

template <>
struct detail::door_target<const any_allocator> {
  struct type : any_allocator {
    explicit type(const any_allocator* to) noexcept : any_allocator(*to) {}
    [[nodiscard]] const any_allocator* operator->() const noexcept { return this; }
  };
};

}  // namespace tessera::inline v0_1
