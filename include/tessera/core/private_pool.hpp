// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>

namespace tessera {

/// Names a private pool of an allocator. The default value names none.
struct pool_id {
  std::uint64_t number = 0;
  constexpr auto operator<=>(const pool_id&) const = default;
};

/// Selects the streams whose requests a scope directs to its private pool.
///
///     const tessera::stream_filter first = tessera::stream_id{1};
///     const tessera::stream_filter even{
///         [](void*, tessera::stream_id s) noexcept { return s.handle % 2 == 0; }, nullptr};
class stream_filter {
 public:
  using function = bool (*)(void* context, stream_id stream) noexcept;

  /// Selects every stream.
  constexpr stream_filter() noexcept = default;
  /// Selects one stream.
  constexpr explicit(false) stream_filter(stream_id stream) noexcept : only_(stream), is_one_(true) {}
  /// Selects the streams for which `condition(context, stream)` is true. It is called for each request while
  /// the scope is open, and must not use the allocator.
  constexpr stream_filter(function condition, void* context) noexcept
      : condition_(condition), context_(context) {}

  [[nodiscard]] bool selects(stream_id stream) const noexcept {
    if (condition_ != nullptr) return condition_(context_, stream);
    return !is_one_ || stream == only_;
  }
  /// Whether it selects every stream. A function may, too, but does not count.
  [[nodiscard]] constexpr bool selects_all() const noexcept { return condition_ == nullptr && !is_one_; }
  /// The stream that it selects if it was made from one; null otherwise.
  [[nodiscard]] constexpr const stream_id* only() const noexcept { return is_one_ ? &only_ : nullptr; }

 private:
  function condition_ = nullptr;
  void* context_ = nullptr;
  stream_id only_;
  bool is_one_ = false;
};

/// Options of a private pool.
///   Source:  PyTorch's MemPool, since version 2.8
struct pool_options {
  bool never_splits = false;  ///< a free block serves a request as a whole
  /// If growth fails, its free blocks serve requests of the default pools, before any memory is released. The
  /// pool does not sleep under such a block while it is live, unless the default pools fall asleep with it.
  bool serves_on_oom = false;
};

/// A reference to an object of any type that gives the segments of a private pool. It has the functions
/// `acquire` and `release` of a device_provider [tessera/provider/provider.hpp].
///
/// Choose it for memory that needs more than the allocator's provider does, for example registration with a
/// network.
///
///     struct registered_memory {
///       void* acquire(std::size_t bytes) noexcept;              // null if it fails
///       bool release(void* memory, std::size_t bytes) noexcept; // false if it fails
///     };
///
///   Requires:  the object outlives the allocator, and does not use it. `locked` keeps its mutex during the
///              calls. An object that several allocators or threads use is thread-safe.
class memory_source {
 public:
  constexpr memory_source() noexcept = default;
  template <typename Object>
    requires requires(Object& from, void* memory, std::size_t bytes) {
      { from.acquire(bytes) } noexcept -> std::same_as<void*>;
      { from.release(memory, bytes) } noexcept -> std::same_as<bool>;
    }
  constexpr explicit(false) memory_source(Object& from) noexcept
      : object_(&from),
        acquire_([](void* object, std::size_t bytes) noexcept {
          return static_cast<Object*>(object)->acquire(bytes);
        }),
        release_([](void* object, void* memory, std::size_t bytes) noexcept {
          return static_cast<Object*>(object)->release(memory, bytes);
        }) {}

  [[nodiscard]] constexpr explicit operator bool() const noexcept { return object_ != nullptr; }
  [[nodiscard]] void* acquire(std::size_t bytes) const noexcept { return acquire_(object_, bytes); }
  [[nodiscard]] bool release(void* memory, std::size_t bytes) const noexcept {
    return release_(object_, memory, bytes);
  }

 private:
  void* object_ = nullptr;
  void* (*acquire_)(void*, std::size_t) noexcept = nullptr;
  bool (*release_)(void*, void*, std::size_t) noexcept = nullptr;
};

/// Says what else a scope changes, besides the pool of requests.
enum class scope_kind : unsigned char {
  /// While it is open, the device may capture a graph. Events are not queried, frees with recorded streams
  /// wait, and the cache is not emptied. Eviction and release_oversize may still release memory, as in PyTorch.
  capture,
  redirect  ///< it changes nothing else; tenants of a device may keep such scopes open
};

/// Limits what a pool may hold, and sets how much the others leave for it. A pool holds a segment, or in ranges
/// a physical chunk, while any block in it is in use. The default value is no share.
struct pool_share {
  std::size_t guaranteed = 0;     ///< bytes that the pool can always hold
  std::size_t limit = unlimited;  ///< most bytes that it may hold
  bool operator==(const pool_share&) const = default;
};

/// The outcome of set_share. Converts to true if the pool has the share.
struct share_result {
  const char* why = nullptr;  ///< why the pool keeps its share as it was, as text
  [[nodiscard]] constexpr explicit operator bool() const noexcept { return why == nullptr; }
};

/// The memory of a pool, in bytes.
struct pool_usage {
  std::size_t reserved = 0;  ///< what it has from the device
  std::size_t held = 0;      ///< of these, what emptying the cache does not give back
};

/// Describes what a pool would hold after a request, for the growth policy. Sizes are in bytes.
struct pool_demand {
  pool_id pool{};               ///< the default value stands for the default pools
  pool_share share{};           ///< of that pool
  std::size_t held = 0;         ///< what the pool would hold
  std::size_t others = 0;       ///< the sum over the other pools of the larger of held and guaranteed
  std::size_t others_held = 0;  ///< what the other pools hold
  std::size_t limit = 0;        ///< what all pools together may hold
};

/// Chooses between saving and losing the contents of memory that sleeps.
enum class sleep_contents : unsigned char {
  discard,  ///< after waking, the contents are undefined
  save      ///< they are copied to host memory, and back when the pool wakes
};

/// The outcome of a call that puts memory to sleep or wakes it. Converts to true if the call worked.
struct sleep_result {
  std::size_t bytes = 0;      ///< bytes under live blocks that went back to the device, or came from it
  std::size_t missing = 0;    ///< how many bytes a wake lacked
  const char* why = nullptr;  ///< why the call failed, as text; then the pools sleep or are awake as before
  [[nodiscard]] constexpr explicit operator bool() const noexcept { return why == nullptr; }
};

/// The results of calls that an allocator lacks. They are incomplete types. So a call does not compile, `requires`
/// says so, and the first line of the error says what is missing. Front ends pass them on.
namespace detail::missing {
struct sleep_needs_a_recipe_that_maps_memory_into_ranges_such_as_stitched;
struct sleep_needs_an_allocator_without_a_plan;
struct shares_need_guarantee_shares_around_the_growth_policy;
struct memory_sources_need_a_recipe_that_acquires_segments;
struct per_stream_has_no_shares;
struct per_stream_has_no_sleep;
struct per_stream_has_no_memory_sources;
struct per_stream_has_no_checkpoints;
struct configured_has_no_shares;
struct configured_has_no_memory_sources;
struct any_allocator_needs_the_front_of_one_device;
struct any_allocator_forwards_no_checkpoints;
struct any_allocator_forwards_no_shares;
struct any_allocator_forwards_no_memory_sources;
}  // namespace detail::missing

}  // namespace tessera
