// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>

#include <tessera/core/bytes.hpp>
#include <tessera/core/error.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/detail/aligned_request.hpp>
#include <tessera/interop/allocator_ref.hpp>

namespace tessera {

/// An allocator as C++ containers take it as a template argument: elements of `T` in its memory, on one stream.
///
///     #include <tessera/provider/host_pinned.hpp>
///     tessera::caching_allocator<tessera::pinned_packed, tessera::host_pinned> pool;
///     using floats = tessera::typed_allocator<float, decltype(pool)>;
///     std::vector<float, floats> batch(1000, floats(pool));
///
/// A container that is moved or swapped takes its allocator along, so that neither copies elements nor leaves a container
/// with memory of a strange allocator; one that is assigned a copy keeps its own. Equal ones give from the same allocator,
/// on whatever streams. What it asks for is an aligned_request.
///
/// Libraries that make allocators by themselves, of a template with one parameter, as nlohmann::json and EnTT do, get one
/// over an allocator that a function finds:
///
///     #include <tessera/concurrent/locked.hpp>
///     namespace example {
///     using pool_type = tessera::locked<tessera::pinned_packed, tessera::host_pinned>;
///     inline pool_type& json_pool() {
///       static auto* const pool = new pool_type;  // never ends, so that it outlives static containers
///       return *pool;
///     }
///     template <typename T>
///     using json_allocator = tessera::typed_allocator<T, tessera::found_by<json_pool>>;
///     inline std::vector<int, json_allocator<int>> numbers;
///     }  // namespace example
///
/// For many small objects as the nodes of a map, which have a block each, see pmr_resource.
///   Requires:  the allocator outlives it and what it gave, unless `A` is a handle that owns it
template <typename T, typename A>
class typed_allocator {
  static_assert(check_host_allocator<allocator_behind<A>>());

 public:
  using value_type = T;
  using propagate_on_container_copy_assignment = std::false_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  using is_always_equal = std::bool_constant<stands_by_type<handle_of<A>>>;

  /// Only where the handle says by its type what it stands for.
  typed_allocator() noexcept
    requires stands_by_type<handle_of<A>>
  = default;
  typed_allocator(allocator_argument<A> from, stream_id stream = {}) noexcept
      : from_(from), stream_(stream) {}
  // Copied where it is moved too, as what an allocator was moved from must stay as it was.
  typed_allocator(const typed_allocator&) = default;
  typed_allocator& operator=(const typed_allocator&) = default;
  template <typename U>
  typed_allocator(const typed_allocator<U, A>& other) noexcept
      : from_(other.allocator()), stream_(other.stream()) {}

  ///   Throws:  std::bad_array_new_length where so many have no size, and what the allocator's allocate throws
  [[nodiscard]] T* allocate(std::size_t count) {
    if (count > max_size()) raise(std::bad_array_new_length());
    return static_cast<T*>(
        detail::aligned_request(count * sizeof(T), alignof(T)).allocate(from_.get(), stream_));
  }
  void deallocate(T* p, std::size_t count) noexcept {
    detail::aligned_request(count * sizeof(T), alignof(T)).deallocate(from_.get(), p);
  }
  [[nodiscard]] static constexpr std::size_t max_size() noexcept { return max_request / sizeof(T); }

  [[nodiscard]] const handle_of<A>& allocator() const noexcept { return from_; }
  [[nodiscard]] stream_id stream() const noexcept { return stream_; }

  template <typename U>
  [[nodiscard]] friend bool operator==(const typed_allocator& a, const typed_allocator<U, A>& b) noexcept {
    return a.allocator() == b.allocator();
  }

 private:
  [[no_unique_address]] handle_of<A> from_;
  stream_id stream_;
};

}  // namespace tessera
