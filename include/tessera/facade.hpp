// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <tessera/core/error.hpp>
#include <tessera/core/pool_checkpoint.hpp>
#include <tessera/core/private_pool.hpp>
#include <tessera/core/statistics.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/common_calls.hpp>
#include <tessera/detail/handle.hpp>

namespace tessera {

namespace detail {

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
/// Whether an allocator has private pools.
template <typename Allocator>
concept has_private_pools = requires(Allocator& a) { a.create_pool(); };

/// Whether the memory of an allocator can sleep.
template <typename Allocator>
inline constexpr bool can_sleep = false;
template <typename Allocator>
  requires requires { Allocator::can_sleep; }
inline constexpr bool can_sleep<Allocator> = Allocator::can_sleep;

/// The provider type of an allocator.
template <typename Allocator>
using device_of =
    std::remove_reference_t<decltype(std::declval<Allocator&>().with_provider(return_argument{}))>;

}  // namespace detail

/// Gives a front end the calls that all front ends share. The front end defines how to enter the allocator
/// inside.
///
/// Choose it as the base of a class that wraps allocators to lock, check, count or select. This front end
/// counts calls:
///
///     #include <atomic>
///     namespace program {
///     template <typename Allocator>
///     class counted : public tessera::facade<counted<Allocator>, Allocator> {
///      public:
///       std::atomic<std::size_t> calls = 0;
///      private:
///       friend tessera::facade<counted, Allocator>;
///       template <typename Me, typename F>
///       static decltype(auto) enter(Me& me, F f) {  // Me: counted, or const counted
///         if constexpr (!std::is_const_v<Me>) ++me.calls;
///         return f(me.allocator_);
///       }
///       Allocator allocator_;
///     };
///     }
///
///   * `enter` calls f(allocator) and returns its result. It may take a lock or run a check around the call.
///   * To change a call, define it in the front end. `using facade<...>::name` keeps its other overloads.
///   * If `enter` takes a lock, define on_pressure and for_each_device, too. By default, the functions given
///     to them run inside `enter`, and would deadlock if they used the allocator.
///   * `Inner` is the type of the allocator inside. Handles, statistics, private pools, process_events and
///     trim_without_waiting are optional: the front end has them if `Inner` does.
///   * A front end may define `static void after_free(Self&) noexcept`. It runs after each deallocate, trim and
///     evict_idle call, and after a try_deallocate or process_events that freed something.
///   * A front end of several allocators also defines enter_owner, which finds the owner of an address.
template <typename Self, typename Inner = detail::shared_calls_only>
class facade : public detail::common_calls<Self> {
  using common = detail::common_calls<Self>;
  struct no_handle {
    no_handle() = delete;
  };
  // Not a requires-clause: a front end's own overload hides an inherited one only if their constraints match.
  using handle_if_supported =
      std::conditional_t<requires(Inner& in) { in.allocate_by_handle(0); }, handle, no_handle>;

 public:
  using common::try_allocate, common::deallocate, common::record_stream;
  [[nodiscard]] void* try_allocate(std::size_t bytes, stream_id stream = {}) noexcept {
    return inside([=](auto& in) { return in.try_allocate(bytes, stream); });
  }
  void deallocate(void* p) noexcept {
    owner(p, "deallocate", [=](auto& in) { in.deallocate(p); });
    freed();
  }
  void deallocate(void* p, std::size_t bytes) noexcept {
    owner(p, "deallocate", [=](auto& in) { in.deallocate(p, bytes); });
    freed();
  }
  [[nodiscard]] bool try_deallocate(void* p) noexcept {
    const bool done = owner(p, nullptr, [=](auto& in) { return in.try_deallocate(p); });
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
  void begin_step(std::uint64_t key = 0) noexcept
    requires requires(Inner& in) { in.begin_step(key); }
  {
    inside([=](auto& in) { in.begin_step(key); });
  }
  void begin_step(std::uint64_t key, stream_id stream) noexcept
    requires requires(Inner& in) { in.begin_step(key, stream); }
  {
    inside([=](auto& in) { in.begin_step(key, stream); });
  }
  template <typename F, typename In = Inner>
    requires requires(const In& in, F f) { in.with_plan(f); }
  void with_plan(F f) const {
    inside([&f](const auto& in) { in.with_plan(f); });
  }

  [[nodiscard]] handle allocate_by_handle(std::size_t bytes, stream_id stream = {}) noexcept
    requires requires(Inner& in) { in.allocate_by_handle(bytes, stream); }
  {
    return inside([=](auto& in) { return in.allocate_by_handle(bytes, stream); });
  }
  void deallocate(handle_if_supported h) noexcept {
    inside([=](auto& in) { in.deallocate(h); });
    freed();
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

  [[nodiscard]] pool_id create_pool(pool_options options = {}) noexcept
    requires detail::has_private_pools<Inner>
  {
    return inside([=](auto& in) { return in.create_pool(options); });
  }
  // The result of a call that the allocator inside lacks is an incomplete type: see detail::missing.
  template <typename In = Inner>
  [[nodiscard]] auto create_pool(const memory_source& from, pool_options options = {}) noexcept
      -> decltype(std::declval<In&>().create_pool(from, options)) {
    return inside([&from, options](auto& in) { return in.create_pool(from, options); });
  }
  [[nodiscard]] bool retain_pool(pool_id pool) noexcept
    requires detail::has_private_pools<Inner>
  {
    return inside([=](auto& in) { return in.retain_pool(pool); });
  }
  [[nodiscard]] bool release_pool(pool_id pool) noexcept
    requires detail::has_private_pools<Inner>
  {
    return inside([=](auto& in) { return in.release_pool(pool); });
  }
  [[nodiscard]] std::size_t uses_of_pool(pool_id pool) const noexcept
    requires detail::has_private_pools<Inner>
  {
    return inside([=](const auto& in) { return in.uses_of_pool(pool); });
  }
  [[nodiscard]] bool has_pool(pool_id pool) const noexcept
    requires detail::has_private_pools<Inner>
  {
    return inside([=](const auto& in) { return in.has_pool(pool); });
  }
  [[nodiscard]] bool begin_allocate_to_pool(pool_id pool, stream_filter streams,
                                            scope_kind kind = scope_kind::capture) noexcept
    requires detail::has_private_pools<Inner>
  {
    return inside([=](auto& in) { return in.begin_allocate_to_pool(pool, streams, kind); });
  }
  [[nodiscard]] bool end_allocate_to_pool(pool_id pool) noexcept
    requires detail::has_private_pools<Inner>
  {
    return inside([=](auto& in) { return in.end_allocate_to_pool(pool); });
  }
  [[nodiscard]] bool is_capturing() const noexcept
    requires detail::has_private_pools<Inner>
  {
    return inside([](const auto& in) { return in.is_capturing(); });
  }
  void trim_pool(pool_id pool) noexcept
    requires detail::has_private_pools<Inner>
  {
    inside([=](auto& in) { in.trim_pool(pool); });
    freed();
  }
  template <typename In = Inner>
  [[nodiscard]] auto checkpoint_pool(pool_id pool) noexcept
      -> decltype(std::declval<In&>().checkpoint_pool(pool)) {
    return inside([=](auto& in) { return in.checkpoint_pool(pool); });
  }
  template <typename In = Inner>
  auto restore_pool(const pool_checkpoint& checkpoint) noexcept
      -> decltype(std::declval<In&>().restore_pool(checkpoint)) {
    restore_result result = inside([&](auto& in) { return in.restore_pool(checkpoint); });
    if (!result.freed.empty()) freed();
    return result;
  }

  template <typename In = Inner>
  [[nodiscard]] auto set_share(pool_id pool, pool_share share) noexcept
      -> decltype(std::declval<In&>().set_share(pool, share)) {
    return inside([=](auto& in) { return in.set_share(pool, share); });
  }
  template <typename In = Inner>
  [[nodiscard]] auto share_of(pool_id pool) const noexcept
      -> decltype(std::declval<const In&>().share_of(pool)) {
    return inside([=](const auto& in) { return in.share_of(pool); });
  }
  template <typename In = Inner>
  [[nodiscard]] auto bytes_of_pool(pool_id pool) const noexcept
      -> decltype(std::declval<const In&>().bytes_of_pool(pool)) {
    return inside([=](const auto& in) { return in.bytes_of_pool(pool); });
  }

  static constexpr bool can_sleep = detail::can_sleep<Inner>;
  template <typename In = Inner>
  auto sleep(sleep_contents contents, stream_id copies = {}) noexcept
      -> decltype(std::declval<In&>().sleep(contents, copies)) {
    return inside([=](auto& in) { return in.sleep(contents, copies); });
  }
  template <typename In = Inner>
  auto sleep_pool(pool_id pool, sleep_contents contents, stream_id copies = {}) noexcept
      -> decltype(std::declval<In&>().sleep_pool(pool, contents, copies)) {
    return inside([=](auto& in) { return in.sleep_pool(pool, contents, copies); });
  }
  template <typename In = Inner>
  auto wake(stream_id copies = {}) noexcept -> decltype(std::declval<In&>().wake(copies)) {
    return inside([=](auto& in) { return in.wake(copies); });
  }
  template <typename In = Inner>
  auto wake_pool(pool_id pool, stream_id copies = {}) noexcept
      -> decltype(std::declval<In&>().wake_pool(pool, copies)) {
    return inside([=](auto& in) { return in.wake_pool(pool, copies); });
  }
  [[nodiscard]] bool is_asleep(pool_id pool = {}) const noexcept
    requires detail::has_private_pools<Inner>
  {
    return inside([=](const auto& in) { return in.is_asleep(pool); });
  }

  [[nodiscard]] out_of_memory make_out_of_memory(std::size_t bytes, stream_id stream = {}) noexcept {
    return inside([=](auto& in) { return in.make_out_of_memory(bytes, stream); });
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
  [[nodiscard]] std::size_t footprint() const noexcept {
    return inside([](const auto& in) { return in.footprint(); });
  }
  [[nodiscard]] const char* audit() const noexcept {
    return inside([](const auto& in) { return in.audit(); });
  }

  template <typename F>
  decltype(auto) with_provider(F f) {
    return inside([&f](auto& in) -> decltype(auto) { return in.with_provider(f); });
  }
  template <typename F>
  decltype(auto) with_policies(F f) {
    return inside([&f](auto& in) -> decltype(auto) { return in.with_policies(f); });
  }
  template <typename F>
  decltype(auto) with_observer(F f) {
    return inside([&f](auto& in) -> decltype(auto) { return in.with_observer(f); });
  }
  template <typename F>
  void for_each_allocator(F f) {
    inside([&f](auto& in) { in.for_each_allocator(f); });
  }
  template <typename F>
  void with_owner(const void* p, F f) {
    owner(p, nullptr, [&f, p](auto& in) { in.with_owner(p, f); });
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
  /// Enters the allocator that owns an address. A front end of several allocators must define its own. If
  /// `call`, the name of a call, is given and a non-null address has no owner, it must abort and name the
  /// call. If `call` is null, it must return a default value.
  template <typename Me, typename F>
  static decltype(auto) enter_owner(Me& me, const void*, const char* /*call*/, F&& f) {
    return Self::enter(me, std::forward<F>(f));
  }

  /// Called after each deallocate, trim and evict_idle, and after a try_deallocate or process_events that freed
  /// something.
  static void after_free(Self&) noexcept {}

 private:
  friend Self;
  facade() = default;

  void freed() noexcept { Self::after_free(static_cast<Self&>(*this)); }

  template <typename F>
  decltype(auto) inside(F&& f) {
    return Self::enter(static_cast<Self&>(*this), std::forward<F>(f));
  }
  template <typename F>
  decltype(auto) inside(F&& f) const {
    return Self::enter(static_cast<const Self&>(*this), std::forward<F>(f));
  }
  template <typename F>
  decltype(auto) owner(const void* p, const char* call, F&& f) {
    return Self::enter_owner(static_cast<Self&>(*this), p, call, std::forward<F>(f));
  }
};

}  // namespace tessera
