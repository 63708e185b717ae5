// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/core/error.hpp>
#include <tessera/detail/blocks/checks.hpp>
#include <tessera/detail/blocks/introspection.hpp>
#include <tessera/fwd.hpp>
#include <tessera/recipe/recipe.hpp>

namespace tessera::inline v0_1::detail {

/// The attributes of a cuda_mempool, with the numbers of CUDA's CUmemPool_attribute.
enum class pool_attribute : unsigned char {
  follow_event_dependencies = 1,    ///< 0 or 1
  allow_opportunistic = 2,          ///< 0 or 1
  allow_internal_dependencies = 3,  ///< 0 or 1
  release_threshold = 4,            ///< bytes that stay reserved at a synchronization; `unlimited` keeps all
  reserved_current = 5,             ///< bytes
  reserved_high = 6,                ///< maximum bytes since it was set to 0
  used_current = 7,                 ///< bytes of live blocks and of pending blocks
  used_high = 8                     ///< maximum bytes since it was set to 0
};

template <typename Allocator>
inline constexpr bool is_locked = false;
template <typename Allocator>
inline constexpr bool is_locked<concurrent::locked<Allocator>> = true;

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::interop {

/// Gives a caching_allocator, or a locked one, the interface of CUDA's memory pools, for code written against
/// cudaMallocAsync. Allocations and frees are ordered by streams. A synchronization releases reserved memory
/// above a threshold. A free of an unknown address aborts, as in every tessera allocator.
///
/// Choose `locked<caching_allocator<...>>` as `Allocator` if several threads use the pool. Its mutex then also
/// guards the attributes, so a maximum counts every byte that any thread had. The mutex is unlocked while the
/// device acquires or releases segments or waits for a stream. A segment is reserved until the device has
/// released it, so `reserved_high` may exceed the capacity if another thread acquires memory meanwhile.
///
///   Requires:  one thread at a time uses it, unless `Allocator` is `locked`
///   Requires:  the provider knows all waits between streams
///
///     constexpr tessera::stream_id stream{1};
///     using async_allocator = tessera::caching_allocator<tessera::recipe::cuda_async, tessera::provider::simulated_device>;
///     using pool_type = tessera::interop::cuda_mempool<async_allocator>;
///     pool_type driver;
///     (void)driver.set(pool_type::attribute::release_threshold, 2_GiB);
///     void* p = driver.allocate_async(5_MiB, stream);
///     driver.free_async(p, stream);
///     driver.synchronize(stream);  // releases what is reserved above 2 GiB
template <typename Allocator>
class cuda_mempool {
 public:
  using recipe_type = typename Allocator::recipe_type;
  using provider_type = typename Allocator::provider_type;

 private:
  static_assert(detail::is_caching_allocator<Allocator> || detail::is_locked<Allocator>,
                "cuda_mempool<A>: A is a caching_allocator, or a locked around one");
  static_assert(recipe_type::streams::reuses_across_streams,
                "cuda_mempool: Recipe::streams must allow reuse across streams [tessera/policy/streams.hpp]");

 public:
  /// The names of the attributes, with the numbers of CUDA's CUmemPool_attribute.
  using attribute = detail::pool_attribute;

  cuda_mempool() : cuda_mempool(provider_type{}) {}
  /// Makes the allocator from these arguments.
  template <typename... Given>
  explicit cuda_mempool(provider_type device, recipe::policies<recipe_type> settings = {}, Given&&... given)
      : pool_(std::move(device), std::move(settings), std::forward<Given>(given)...) {}

  /// Allocates memory for work that is submitted to `stream` from now on.
  ///   Returns:  null for 0 bytes
  ///   Throws:   out_of_memory
  [[nodiscard]] void* allocate_async(std::size_t bytes, stream_id stream) {
    return serve(bytes, stream, [=](const auto& in) { detail::raise(in.make_out_of_memory(bytes, stream)); });
  }
  /// Allocates memory like allocate_async, but returns null if allocate_async would throw.
  [[nodiscard]] void* try_allocate_async(std::size_t bytes, stream_id stream) noexcept {
    return serve(bytes, stream, [](const auto&) {});
  }

  /// Frees a block once the work submitted to `stream` so far completes. `stream` may differ from the stream
  /// of the allocation. The caller orders it after all uses on other streams, except recorded streams.
  /// Ignores null.
  ///   Requires:  a live block of this pool and an existing stream; aborts otherwise, and if host memory ran out during a
  ///              capture. A capture forbids to ask whether the stream exists
  void free_async(void* p, stream_id stream) noexcept {
    if (p == nullptr) return;
    enter([=](auto& in) {
      if (free_on(in, p, stream)) return;
      if (!may_use(in, stream))
        detail::fatal(detail::fixed_text().add("free_async: there is no stream ").add(stream.handle).c_str(),
                      p);
      if (detail::introspect(in).find_live(p) != nullptr)
        detail::fatal("free_async: host memory ran out during a capture", p);
      refuse_address(detail::introspect(in), "free_async", p);
    });
  }
  /// Frees a block like free_async. Returns false and changes nothing where free_async aborts.
  [[nodiscard]] bool try_free_async(void* p, stream_id stream) noexcept {
    return ask<bool>([=](auto& in) { return free_on(in, p, stream); });
  }
  /// Records that `stream` also uses a block. The stream that frees the block then waits for `stream` and for
  /// the stream of the allocation. Recording only the latter changes nothing.
  ///   Source:  PyTorch's cudaMallocAsync backend also makes the freeing stream wait for these streams
  [[nodiscard]] bool record_stream(void* p, stream_id stream) noexcept {
    return pool_.record_stream(p, stream);
  }
  [[nodiscard]] bool try_record_stream(void* p, stream_id stream) noexcept {
    return pool_.try_record_stream(p, stream);
  }

  /// Waits for the work of `stream` and releases idle memory above the release threshold.
  ///   Returns:  false if the device failed
  bool synchronize(stream_id stream) noexcept {
    return ask<bool>([=](auto& in) { return in.synchronize(stream); });
  }
  /// Releases idle memory until at most `keep` bytes are reserved. Does not wait for pending blocks.
  void trim_to(std::size_t keep) noexcept { pool_.trim_without_waiting(keep); }

  /// The value of an attribute: 0 or 1 for a switch, otherwise bytes.
  [[nodiscard]] std::uint64_t get(attribute name) noexcept {
    return ask<std::uint64_t>([&](auto& in) { return get_from(in, name); });
  }
  /// Sets an attribute. Switches accept 0 and 1; maxima accept 0, which restarts them at the current value.
  ///   Returns:  false, without a change, for any other value and for the current values
  [[nodiscard]] bool set(attribute name, std::uint64_t value) noexcept {
    return ask<bool>([&](auto& in) { return set_in(in, name, value); });
  }

  /// The underlying allocator.
  [[nodiscard]] Allocator& pool() noexcept { return pool_; }
  /// Only without a mutex; otherwise call pool().visit_provider(f).
  [[nodiscard]] provider_type& provider() noexcept
    requires detail::is_caching_allocator<Allocator>
  {
    return pool_.provider();
  }
  [[nodiscard]] usage current_usage() const noexcept { return pool_.current_usage(); }
  [[nodiscard]] const char* audit() const noexcept { return pool_.audit(); }

 private:
  /// Calls f(caching_allocator), with the mutex held if there is one.
  template <typename F>
  void enter(F f) {
    pool_.for_each_allocator(f);
  }
  /// The same, and returns what f returns.
  template <typename Result, typename F>
  [[nodiscard]] Result ask(F f) {
    Result result{};
    enter([&](auto& in) { result = f(in); });
    return result;
  }
  /// Serves a request and notes the maxima in one step. Calls fail(caching_allocator) if it fails, but not for 0 bytes.
  template <typename Fail>
  [[nodiscard]] void* serve(std::size_t bytes, stream_id stream, Fail fail) {
    const auto done = [&](auto& in, const void* p) {
      const usage now = in.current_usage();
      if (now.reserved > reserved_high_) reserved_high_ = now.reserved;
      if (used(now) > used_high_) used_high_ = used(now);
      if (p == nullptr) fail(in);
    };
    if constexpr (requires { pool_.try_allocate(bytes, stream, done); }) {
      return pool_.try_allocate(bytes, stream, done);
    } else {
      void* const p = pool_.try_allocate(bytes, stream);
      if (bytes != 0) done(pool_, p);
      return p;
    }
  }
  template <typename In>
  [[nodiscard]] static bool free_on(In& in, void* p, stream_id stream) noexcept {
    return may_use(in, stream) && in.try_deallocate_on(p, stream);
  }
  /// Whether a stream exists; in a capture, where the device must not be asked, true.
  template <typename In>
  [[nodiscard]] static bool may_use(In& in, stream_id stream) noexcept {
    return !detail::introspect(in).may_wait() || detail::has_stream(in.provider(), stream);
  }

  template <typename In>
  [[nodiscard]] std::uint64_t get_from(In& in, attribute name) const noexcept {
    const recipe::policies<recipe_type>& settings = in.policies();
    switch (name) {
      case attribute::follow_event_dependencies: return settings.streams.follow_dependencies ? 1 : 0;
      case attribute::allow_opportunistic: return settings.streams.opportunistic ? 1 : 0;
      case attribute::allow_internal_dependencies: return settings.streams.insert_dependencies ? 1 : 0;
      case attribute::release_threshold: return settings.eviction.threshold;
      case attribute::reserved_current: return in.current_usage().reserved;
      case attribute::reserved_high: return reserved_high_;
      case attribute::used_current: return used(in.current_usage());
      case attribute::used_high: return used_high_;
    }
    return 0;
  }
  template <typename In>
  [[nodiscard]] bool set_in(In& in, attribute name, std::uint64_t value) noexcept {
    recipe::policies<recipe_type>& settings = in.policies();
    switch (name) {
      case attribute::follow_event_dependencies:
        return set_switch(settings.streams.follow_dependencies, value);
      case attribute::allow_opportunistic: return set_switch(settings.streams.opportunistic, value);
      case attribute::allow_internal_dependencies:
        return set_switch(settings.streams.insert_dependencies, value);
      case attribute::release_threshold: settings.eviction.threshold = value; return true;
      case attribute::reserved_high: return restart(reserved_high_, in.current_usage().reserved, value);
      case attribute::used_high: return restart(used_high_, used(in.current_usage()), value);
      case attribute::reserved_current:
      case attribute::used_current: return false;
    }
    return false;
  }
  template <typename Switch>
  [[nodiscard]] static bool set_switch(Switch& target, std::uint64_t value) noexcept {
    if (value > 1) return false;
    target = value == 1;
    return true;
  }
  [[nodiscard]] static bool restart(std::size_t& max, std::size_t current, std::uint64_t value) noexcept {
    if (value != 0) return false;
    max = current;
    return true;
  }
  [[nodiscard]] static std::size_t used(const usage& now) noexcept { return now.active; }

  Allocator pool_;
  // Guarded by the allocator's mutex, if it has one.
  std::size_t reserved_high_ = 0;
  std::size_t used_high_ = 0;
};

}  // namespace tessera::inline v0_1::interop
