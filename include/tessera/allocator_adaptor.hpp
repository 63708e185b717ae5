// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>
#include <utility>

#include <tessera/block_handle.hpp>
#include <tessera/caching_allocator.hpp>
#include <tessera/core/error.hpp>
#include <tessera/detail/extensions/extension.hpp>
#include <tessera/fwd.hpp>

namespace tessera::inline v0_1::detail::missing {

/// Why an allocator inside a front end does not offer an extension, or void.
template <typename E, typename Inner>
struct refusal_inside {
  using type = void;
};
template <typename E, typename Inner>
  requires requires { typename Inner::template refused<E>; }
struct refusal_inside<E, Inner> {
  using type = typename Inner::template refused<E>;
};

}  // namespace tessera::inline v0_1::detail::missing

namespace tessera::inline v0_1::detail {

/// The default `Inner`: the front end then has no optional calls, such as handles and statistics.
struct shared_calls_only {};

/// Returns its argument. It has a name because nvcc rejects lambdas in unevaluated operands.
struct return_argument {
  template <typename T>
  T& operator()(T& argument) const noexcept {
    return argument;
  }
};
/// Whether the optional calls of the allocator inside are unknown.
template <typename Inner>
inline constexpr bool has_shared_calls_only = std::is_same_v<Inner, shared_calls_only>;
/// Whether a type is a caching_allocator, and each of `Given` one of its extensions.
template <typename Allocator, typename... Given>
inline constexpr bool are_extensions_of = false;
template <typename Recipe, typename Provider, typename... Extension, typename... Given>
inline constexpr bool are_extensions_of<caching_allocator<Recipe, Provider, Extension...>, Given...> =
    (is_one_of<std::remove_cvref_t<Given>, Extension...> && ...);
template <typename Allocator>
inline constexpr bool is_caching_allocator = are_extensions_of<Allocator>;
/// Stops the compiler if a front end that must be the innermost one gets another front end.
template <typename Allocator>
struct innermost_front {
  static_assert(is_caching_allocator<Allocator>,
                "locked<A>, per_stream<A>, background_reclaiming<A>, guarded<A>: A is a caching_allocator. "
                "Other front ends go around, as in tagged<locked<A>>");
};
template <typename Allocator>
inline constexpr bool is_per_device = false;
template <typename Front>
inline constexpr bool is_per_device<concurrent::per_device<Front>> = true;
/// The provider type of an allocator.
template <typename Allocator>
using device_of =
    std::remove_reference_t<decltype(std::declval<Allocator&>().visit_provider(return_argument{}))>;

/// The recipe and the provider of an allocator inside a front end, if it names them.
template <typename Inner>
struct types_inside {};
template <typename Inner>
  requires requires {
    typename Inner::recipe_type;
    typename Inner::provider_type;
  }
struct types_inside<Inner> {
  using recipe_type = typename Inner::recipe_type;
  using provider_type = typename Inner::provider_type;
};
template <typename Self, typename Allocator>
class wrapping_adaptor;

// The calls that a front end hears by allocator_adaptor::on_call.

/// A request, by address or by handle.
struct request_call {
  std::size_t bytes;
  stream_id stream;
};
/// A free of a block.
struct free_call {
  void* address;
  block_handle handle{};               ///< empty for a free by address
  const std::size_t* bytes = nullptr;  ///< null if the caller passes no size
  bool may_fail = false;               ///< whether the caller does not know that the block is live
};
/// The address of a block that served a request, or null.
[[nodiscard]] inline void* start_of(void* p) noexcept { return p; }
[[nodiscard]] inline void* start_of(block_handle h) noexcept { return h.data(); }

/// Makes a front end over the same allocator with another provider or recipe.
template <typename Front>
struct rebind_front;
template <template <typename, typename...> typename Front, typename Allocator, typename... More>
struct rebind_front<Front<Allocator, More...>> {
  template <typename Other>
  using provider = Front<typename Allocator::template rebind_provider<Other>, More...>;
  template <typename Other>
  using recipe = Front<typename Allocator::template rebind_recipe<Other>, More...>;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1 {

/// Gives a front end the calls that all front ends share. The front end defines how to enter the allocator
/// inside.
///
/// Choose it as the base of a class that wraps allocators to lock, check, count or select. This front end
/// counts calls:
///
///     #include <atomic>
///     namespace program {
///     template <typename Allocator>
///     class counted : public tessera::allocator_adaptor<counted<Allocator>, Allocator> {
///      public:
///       std::atomic<std::size_t> calls = 0;
///      private:
///       friend tessera::allocator_adaptor<counted, Allocator>;
///       template <typename Me, typename F>
///       static decltype(auto) enter(Me& me, F f) {  // Me: counted, or const counted
///         if constexpr (!std::is_const_v<Me>) ++me.calls;
///         return f(me.allocator_);
///       }
///       Allocator allocator_;
///     };
///     }
///
///   * `enter` calls f(allocator) and returns its result. It may take a lock or run a check around the call. By default, it
///     calls f(self.allocator_).
///   * To change a call, define it in the front end. `using allocator_adaptor<...>::name` keeps its other overloads.
///   * To hear every request and free, by address and by handle, define on_call for detail::request_call and
///     detail::free_call.
///   * If `enter` takes a lock, define on_pressure and for_each_device, too. By default, the functions given
///     to them run inside `enter`, and would deadlock if they used the allocator. Those of visit_policies,
///     for_each_allocator, visit_extension and for_each_observer run in enter_for_user, which may abort first.
///   * `Inner` is the type of the allocator inside. Handles, statistics, process_events,
///     trim_without_waiting and what extensions offer are optional: the front end has them if `Inner` does.
///   * A front end may define `static void after_free(Self&) noexcept`. It runs after each deallocate, trim and
///     evict_idle call, and after a try_deallocate or process_events that freed something.
///   * A front end of several allocators also defines enter_owner, which finds the owner of an address.
template <typename Self, typename Inner = detail::shared_calls_only>
class allocator_adaptor : public detail::types_inside<Inner> {
  struct no_handle {
    no_handle() = delete;
  };
  // Not a requires-clause: a front end's own overload hides an inherited one only if their constraints match.
  using handle_if_supported =
      std::conditional_t<requires(Inner& in) { in.allocate_by_handle(0); }, block_handle, no_handle>;

 public:
  /// A front end around this one, such as per_device, uses these to rebuild it over another provider. They need a front
  /// end that is a template of the allocator inside.
  template <typename Other, typename Me = Self>
  using rebind_provider = typename detail::rebind_front<Me>::template provider<Other>;
  template <typename Other, typename Me = Self>
  using rebind_recipe = typename detail::rebind_front<Me>::template recipe<Other>;

  [[nodiscard]] void* allocate(std::size_t bytes, stream_id stream = {}) {
    if (void* const p = self().try_allocate(bytes, stream); p != nullptr || bytes == 0) return p;
    raise_failure(self(), bytes, stream);
  }
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    return hear_request({bytes, stream}, [=](auto& in) { return in.try_allocate(bytes, stream); });
  }
  void deallocate(void* p) noexcept {
    hear_free({p}, "deallocate", [=](auto& in) { in.deallocate(p); });
  }
  void deallocate(void* p, std::size_t bytes) noexcept {
    hear_free({p, {}, &bytes}, "deallocate", [=](auto& in) { in.deallocate(p, bytes); });
  }
  [[nodiscard]] bool try_deallocate(void* p) noexcept {
    const bool done = Self::on_call(self(), detail::free_call{p, {}, nullptr, true}, [&, this] {
      return owner(p, nullptr, [=](auto& in) { return in.try_deallocate(p); });
    });
    if (done) freed();
    return done;
  }
  [[nodiscard]] bool record_stream(void* p, stream_id stream) noexcept {
    return owner(p, "record_stream", [=](auto& in) { return in.record_stream(p, stream); });
  }
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) noexcept {
    return owner(p, nullptr, [=](auto& in) { return in.try_record_stream(p, stream); });
  }
  [[nodiscard]] bool reuse_in_place(void* p, std::size_t bytes, stream_id stream) noexcept {
    return owner(p, nullptr, [=](auto& in) { return in.reuse_in_place(p, bytes, stream); });
  }
  [[nodiscard]] bool delays_reuse(stream_id owner, stream_id user) const noexcept {
    return inside([=](const auto& in) { return in.delays_reuse(owner, user); });
  }

  // Only around a `planned`.
  /// Around a planned: says that a step begins, as planned::begin_step.
  void begin_step(std::uint64_t key = 0) noexcept
    requires requires(Inner& in) { in.begin_step(key); }
  {
    inside([=](auto& in) { in.begin_step(key); });
  }
  /// Around a planned: says that a step of one stream begins.
  void begin_step(std::uint64_t key, stream_id stream) noexcept
    requires requires(Inner& in) { in.begin_step(key, stream); }
  {
    inside([=](auto& in) { in.begin_step(key, stream); });
  }
  /// Around a planned: for interop::end_stream, as planned::withdraw_uses.
  [[nodiscard]] bool withdraw_uses(stream_id ended) noexcept
    requires requires(Inner& in) { in.withdraw_uses(ended); }
  {
    return inside([=](auto& in) { return in.withdraw_uses(ended); });
  }
  /// Around a planned: calls f(view) with a read-only view of the plan's memory.
  template <typename F, typename In = Inner>
    requires requires(const In& in, F f) { in.visit_plan(f); }
  void visit_plan(F f) const {
    inside([&f](const auto& in) { in.visit_plan(f); });
  }

  [[nodiscard]] block_handle allocate_by_handle(std::size_t bytes, stream_id stream = {}) noexcept
    requires requires(Inner& in) { in.allocate_by_handle(bytes, stream); }
  {
    return hear_request({bytes, stream}, [=](auto& in) { return in.allocate_by_handle(bytes, stream); });
  }
  void deallocate(handle_if_supported h) noexcept {
    hear_free({h.data(), h}, nullptr, [=](auto& in) { in.deallocate(h); });
  }
  [[nodiscard]] bool record_stream(handle_if_supported h, stream_id stream) noexcept {
    return inside([=](auto& in) { return in.record_stream(h, stream); });
  }

  void trim(std::size_t keep = 0) noexcept {
    inside([=](auto& in) { in.trim(keep); });
    freed();
  }
  void evict_idle() noexcept {
    inside([](auto& in) { in.evict_idle(); });
    freed();
  }
  void trim_without_waiting(std::size_t keep = 0) noexcept
    requires requires(Inner& in) { in.trim_without_waiting(keep); }
  {
    inside([=](auto& in) { in.trim_without_waiting(keep); });
    freed();
  }
  bool process_events() noexcept
    requires requires(Inner& in) { in.process_events(); }
  {
    const bool any = inside([](auto& in) { return in.process_events(); });
    if (any) freed();
    return any;
  }
  [[nodiscard]] bool on_pressure(bool (*callback)(void* context) noexcept, void* context) noexcept {
    return inside([=](auto& in) { return in.on_pressure(callback, context); });
  }

  // Extensions of the allocator inside.

  static constexpr bool has_ranges = [] {
    if constexpr (requires { Inner::has_ranges; }) return Inner::has_ranges;
    return false;
  }();
  /// Why this front end does not offer an extension that the allocator inside has: an incomplete type whose name says
  /// so, or void if it does. By default, it is that of the allocator inside. A front end may hide it.
  template <typename E>
  using refused = typename detail::missing::refusal_inside<E, Inner>::type;
  template <typename E>
  static constexpr bool has = [] {
    if constexpr (requires { Inner::template has<E>; })
      return Inner::template has<E> && std::is_void_v<typename Self::template refused<E>>;
    return false;
  }();
  /// What an extension offers, under the front end's lock if it has one.
  template <typename E>
  [[nodiscard]] auto get() noexcept -> decltype(detail::open_door<E>(std::declval<Self&>())) {
    return detail::open_door<E>(self());
  }
  template <typename E, typename F>
  decltype(auto) visit_extension(F f) {
    return Self::enter_for_user(
        self(), only_reads, [&f](auto& in) -> decltype(auto) { return in.template visit_extension<E>(f); });
  }
  template <typename E, typename F>
  decltype(auto) visit_extension(F f) const {
    return Self::enter_for_user(self(), only_reads, [&f](auto& in) -> decltype(auto) {
      return std::as_const(in).template visit_extension<E>(f);
    });
  }
  template <typename E, typename F>
  auto add_up_extension(F f) const {
    return inside([&f](const auto& in) { return in.template add_up_extension<E>(f); });
  }
  template <typename E, typename F, typename Undo = detail::ignore_arguments>
  auto change_extension(F f, Undo undo = {}) {
    return inside([&](auto& in) { return in.template change_extension<E>(f, undo); });
  }
  template <typename F>
  void for_each_observer(F f) {
    Self::enter_for_user(self(), only_reads, [&f](auto& in) { in.for_each_observer(f); });
  }
  template <typename Note>
  void note_change(const Note& note) {
    if constexpr (requires(Inner& in) { in.note_change(note); })
      inside([&note](auto& in) { in.note_change(note); });
    freed();
  }

  [[nodiscard]] out_of_memory make_out_of_memory(std::size_t bytes, stream_id stream = {}) const noexcept {
    return inside([=](const auto& in) { return in.make_out_of_memory(bytes, stream); });
  }
  [[nodiscard]] usage current_usage() const noexcept {
    return inside([](const auto& in) { return in.current_usage(); });
  }
  [[nodiscard]] auto statistics() const noexcept
    requires requires(const Inner& in) { in.statistics(); }
  {
    return inside([](const auto& in) { return in.statistics(); });
  }
  void reset_peak_statistics() noexcept
    requires(detail::has_shared_calls_only<Inner> || requires(Inner& in) { in.reset_peak_statistics(); })
  {
    inside([](auto& in) { in.reset_peak_statistics(); });
  }
  void reset_accumulated_statistics() noexcept
    requires(detail::has_shared_calls_only<Inner> ||
             requires(Inner& in) { in.reset_accumulated_statistics(); })
  {
    inside([](auto& in) { in.reset_accumulated_statistics(); });
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return inside([](const auto& in) { return in.metadata_bytes(); });
  }
  [[nodiscard]] const char* audit() const noexcept {
    return inside([](const auto& in) { return in.audit(); });
  }

  template <typename F>
  decltype(auto) visit_provider(F f) {
    return inside([&f](auto& in) -> decltype(auto) { return in.visit_provider(f); });
  }
  template <typename F>
  decltype(auto) visit_policies(F f) {
    return Self::enter_for_user(self(), "visit_policies: the function must not use the allocator",
                                [&f](auto& in) -> decltype(auto) { return in.visit_policies(f); });
  }
  template <typename F>
  void for_each_allocator(F f) {
    Self::enter_for_user(self(), "for_each_allocator: the function must not use the allocator that is locked",
                         [&f](auto& in) { in.for_each_allocator(f); });
  }
  // Only around a `per_stream`.
  /// Around a per_stream: calls f(caching_allocator, is_own) for each arena, with its mutex held; the arena
  /// of the stream comes first.
  template <typename F, typename In = Inner>
    requires requires(In& in, stream_id stream, F f) { in.visit_arenas(stream, f); }
  void visit_arenas(stream_id stream, F f) {
    inside([&](auto& in) { in.visit_arenas(stream, f); });
  }
  template <typename F>
  void visit_owner(const void* p, F f) {
    owner(p, nullptr, [&f, p](auto& in) { in.visit_owner(p, f); });
  }
  template <typename F>
  void for_each_device(F f) {
    inside([&f](auto& in) { in.for_each_device(f); });
  }

  template <typename Error>
  [[noreturn]] static void raise(const Error& error) {
    if constexpr (requires { Inner::raise(error); }) Inner::raise(error);
    tessera::detail::raise(error);
  }

 protected:
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& f) {
    return std::forward<F>(f)(me.allocator_);
  }
  /// Enters to call a function of the user. A front end with a lock finds out if the function uses it, and aborts with `rule`.
  template <typename Me, typename F>
  static decltype(auto) enter_for_user(Me& me, const char* /*rule*/, F&& f) {
    return Self::enter(me, std::forward<F>(f));
  }
  /// Enters the allocator that owns an address. A front end of several allocators must define its own. If
  /// `call`, the name of a call, is given and a non-null address has no owner, it must abort and name the
  /// call. If `call` is null, it must return a default value.
  template <typename Me, typename F>
  static decltype(auto) enter_owner(Me& me, const void*, const char* /*call*/, F&& f) {
    return Self::enter(me, std::forward<F>(f));
  }

  /// Makes a request or a free: returns make(), which is the block, or whether it was freed. A front end that hears requests
  /// or frees has a function of this name for detail::request_call or free_call, and `using adaptor_type::on_call`.
  template <typename F>
  static auto on_call(Self&, const auto& /*call*/, F make) {
    return make();
  }

  /// Throws out_of_memory with the numbers of the failed request, through raise() of the front end.
  template <typename Failed>
  [[noreturn, gnu::noinline, gnu::cold]] static void raise_failure(Failed& in, std::size_t bytes,
                                                                   stream_id stream) {
    Self::raise(in.make_out_of_memory(bytes, stream));
  }
  /// Called after each deallocate, trim and evict_idle, and after a try_deallocate or process_events that freed
  /// something.
  static void after_free(Self&) noexcept {}

 private:
  friend Self;
  friend detail::wrapping_adaptor<Self, Inner>;
  allocator_adaptor() = default;

  static constexpr const char* only_reads = "a function given to an extension must not use the allocator";

  [[nodiscard]] Self& self() noexcept { return static_cast<Self&>(*this); }
  [[nodiscard]] const Self& self() const noexcept { return static_cast<const Self&>(*this); }
  void freed() noexcept { Self::after_free(self()); }

  template <typename F>
  auto hear_request(const detail::request_call& call, F f) {
    return Self::on_call(self(), call, [&] { return inside(f); });
  }
  template <typename F>
  void hear_free(const detail::free_call& call, const char* name, F f) {
    (void)Self::on_call(self(), call, [&] {
      owner(call.address, name, f);
      return true;
    });
    freed();
  }

  template <typename F>
  decltype(auto) inside(F&& f) {
    return Self::enter(self(), std::forward<F>(f));
  }
  template <typename F>
  decltype(auto) inside(F&& f) const {
    return Self::enter(self(), std::forward<F>(f));
  }
  template <typename F>
  decltype(auto) owner(const void* p, const char* call, F&& f) {
    return Self::enter_owner(self(), p, call, std::forward<F>(f));
  }
};

}  // namespace tessera::inline v0_1

namespace tessera::inline v0_1::detail {

/// The base of a front end that holds the allocator inside and is made from its arguments.
template <typename Self, typename Allocator>
class wrapping_adaptor : public allocator_adaptor<Self, Allocator> {
  static_assert(!is_per_device<Allocator>, "a front end wraps the allocator of one device: use front(d)");
  static_assert(!std::is_same_v<Allocator, any_allocator>,
                "a front end needs the type of the allocator inside, which an any_allocator hides");

 public:
  wrapping_adaptor() = default;
  template <typename... Args>
    requires(sizeof...(Args) > 0 && std::constructible_from<Allocator, Args...>)
  explicit wrapping_adaptor(Args&&... args) : allocator_(std::forward<Args>(args)...) {}

  /// The wrapped allocator.
  [[nodiscard]] Allocator& inner() noexcept { return allocator_; }

 protected:
  friend allocator_adaptor<Self, Allocator>;
  // As the default does, but through this class: a front end may name `allocator_` among its private members.
  template <typename Me, typename F>
  static decltype(auto) enter(Me& me, F&& f) {
    std::conditional_t<std::is_const_v<Me>, const wrapping_adaptor, wrapping_adaptor>& holder = me;
    return std::forward<F>(f)(holder.allocator_);
  }

  Allocator allocator_;
};

/// Keeps a note for each live block that a front end heard of. The front end erases it before it frees the block, because
/// another thread may get the address at once.
///   Requires:  one call at a time
template <typename Note>
class block_notes {
  struct node : Note {
    bool is_by_handle;  // then a free by address frees nothing; may lie in the padding of Note
    std::uintptr_t address;
    [[nodiscard]] std::uint64_t map_key() const noexcept { return address; }
  };

 public:
  /// The note of the block at an address, or null.
  [[nodiscard]] Note* find(const void* p) const noexcept { return node_of(p); }
  /// Adds a note for a block, whose value the caller sets. Calls forget(note) with a note that is there: its block was freed
  /// through the allocator inside.
  ///   Returns:  null if host memory ran out
  template <typename Block, typename F>
  [[nodiscard]] Note* insert(Block b, F forget) noexcept {
    const void* const p = start_of(b);
    node* note = node_of(p);
    if (note != nullptr) {
      forget(*note);
    } else {
      if (!by_address_.reserve_one() || !nodes_.reserve(1)) return nullptr;
      note = nodes_.take();
      note->address = reinterpret_cast<std::uintptr_t>(p);
      by_address_.insert(note->address, *note);
    }
    note->is_by_handle = std::is_same_v<Block, block_handle>;
    return note;
  }
  /// Calls forget(note) with the note of a block that is about to be freed, and erases it. Returns false if there is none.
  template <typename F>
  bool erase(const free_call& of, F forget) noexcept {
    node* const note = node_of(of.address);
    if (note == nullptr || note->is_by_handle != static_cast<bool>(of.handle)) return false;
    forget(*note);
    by_address_.remove(note->address);
    nodes_.give_back(note);
    return true;
  }
  [[nodiscard]] std::size_t size() const noexcept { return by_address_.size(); }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    return by_address_.metadata_bytes() + nodes_.metadata_bytes();
  }

 private:
  [[nodiscard]] node* node_of(const void* p) const noexcept {
    return by_address_.find(reinterpret_cast<std::uintptr_t>(p));
  }

  key_map<node> by_address_;
  slab<node> nodes_;
};

}  // namespace tessera::inline v0_1::detail
