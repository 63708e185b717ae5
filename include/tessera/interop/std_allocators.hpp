// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <memory_resource>
#include <new>
#include <type_traits>

#include <tessera/interop/aligned_request.hpp>
#include <tessera/interop/allocator_handle.hpp>

/// Allocators for C++ containers in host memory: pmr_resource for std::pmr, and typed_allocator as a template
/// argument. Either takes small nodes from a pool of the standard library.

namespace tessera::inline v0_1::interop {

/// Adapts an allocator to std::pmr::memory_resource. All requests use one stream.
///
///     #include <tessera/provider/host_pinned.hpp>
///     tessera::caching_allocator<tessera::recipe::pinned_packed, tessera::provider::host_pinned> allocator;
///     tessera::interop::pmr_resource memory(allocator);
///     std::pmr::vector<float> batch(1000, &memory);
///
/// A block has at least 512 bytes, or 4 KiB with the recipe `pinned`, which never splits. For many small
/// objects, such as the nodes of a map, use a pool of the standard library on top:
///
///     #include <map>
///     tessera::caching_allocator<tessera::recipe::pinned_packed, tessera::provider::host_pinned> pinned;
///     tessera::interop::pmr_resource blocks(pinned);
///     std::pmr::unsynchronized_pool_resource nodes(&blocks);
///     std::pmr::map<int, float> by_number(&nodes);
///
/// It supports every power of two as alignment. Resources over the same allocator compare equal. It is as thread-safe as the
/// allocator.
///   Requires:  the allocator outlives it, unless `A` is a handle that owns it
///   Throws:    the exceptions of the allocator's allocate, and std::bad_alloc if the alignment is no power of
///              two, as std::pmr::new_delete_resource does
template <typename A>
class pmr_resource final : public std::pmr::memory_resource {
  static_assert(detail::check_host_allocator<detail::allocator_of<A>>());

 public:
  /// Serves requests from an allocator, on one stream.
  explicit pmr_resource(detail::handle_argument<A> allocator, stream_id stream = {}) noexcept
      : allocator_(allocator), stream_(stream) {}
  pmr_resource& operator=(pmr_resource&&) = delete;

  /// The handle of the allocator that serves the requests.
  [[nodiscard]] const detail::handle_of<A>& allocator() const noexcept { return allocator_; }
  /// The stream of all requests.
  [[nodiscard]] stream_id stream() const noexcept { return stream_; }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (!std::has_single_bit(alignment)) detail::allocator_of<A>::raise(std::bad_alloc());
    return aligned_request(bytes, alignment).allocate(allocator_.get(), stream_);
  }
  void do_deallocate(void* p, std::size_t bytes, std::size_t alignment) override {
    aligned_request(bytes, alignment).deallocate(allocator_.get(), p);
  }
  [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
#if defined(__cpp_rtti)
    const auto* const same_type = dynamic_cast<const pmr_resource*>(&other);
    return same_type != nullptr && same_type->allocator_ == allocator_;
#else
    return this == &other;
#endif
  }

  detail::handle_of<A> allocator_;
  stream_id stream_;
};
template <typename A>
pmr_resource(A&&, stream_id = {}) -> pmr_resource<std::remove_cvref_t<A>>;

/// Adapts an allocator to the C++ allocator requirements, for elements of type `T`. All requests use one
/// stream.
///
///     #include <tessera/provider/host_pinned.hpp>
///     tessera::caching_allocator<tessera::recipe::pinned_packed, tessera::provider::host_pinned> allocator;
///     using floats = tessera::interop::typed_allocator<float, decltype(allocator)>;
///     std::vector<float, floats> batch(1000, floats(allocator));
///
/// `A` may also be std::pmr::memory_resource, or a handle of one. It then has no stream.
///
/// Moving or swapping a container also moves its allocator, so that no element is copied. Copy assignment
/// keeps the allocator of the target. Two typed_allocators are equal if they use the same allocator, on any
/// streams.
///
/// Some libraries default construct allocators of a template with one parameter, for example nlohmann::json
/// and EnTT. They need an allocator that a function returns. A block of an allocator has at least 512 bytes, so
/// for nodes, the function returns a pool of the standard library:
///
///     #include <memory_resource>
///     #include <tessera/concurrent/locked.hpp>
///     namespace example {
///     using pinned_type = tessera::caching_allocator<tessera::recipe::pinned_packed, tessera::provider::host_pinned>;
///     inline std::pmr::memory_resource& json_nodes() {
///       // Never destroyed: they outlive static containers.
///       static auto* const allocator = new tessera::concurrent::locked<pinned_type>;
///       static auto* const blocks = new tessera::interop::pmr_resource(*allocator);
///       static auto* const nodes = new std::pmr::synchronized_pool_resource(blocks);
///       return *nodes;
///     }
///     template <typename T>
///     using json_allocator = tessera::interop::typed_allocator<T, tessera::interop::allocator_from<json_nodes>>;
///     inline std::vector<int, json_allocator<int>> numbers;
///     }  // namespace example
///
///   Requires:  the allocator outlives it and its memory, unless `A` is a handle that owns the allocator
template <typename T, typename A>
class typed_allocator {
  static constexpr bool of_resource = std::derived_from<detail::allocator_of<A>, std::pmr::memory_resource>;
  static_assert([] {
    if constexpr (!of_resource) return detail::check_host_allocator<detail::allocator_of<A>>();
    return true;
  }());

 public:
  ///@{
  /// What containers ask. If one is copy-assigned, it keeps its allocator; a move or a swap takes the
  /// allocator along.
  using value_type = T;
  using propagate_on_container_copy_assignment = std::false_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  using is_always_equal = std::bool_constant<detail::stateless_handle<detail::handle_of<A>>>;
  ///@}

  /// Exists only if the type of the handle identifies the allocator.
  typed_allocator() noexcept
    requires detail::stateless_handle<detail::handle_of<A>>
  = default;
  /// Serves requests from an allocator, on one stream.
  typed_allocator(detail::handle_argument<A> allocator, stream_id stream = {}) noexcept
      : allocator_(allocator), stream_(stream) {}
  // A move is a copy, because a moved-from allocator must keep its value.
  typed_allocator(const typed_allocator&) = default;
  typed_allocator& operator=(const typed_allocator&) = default;
  /// An allocator for another type, over the same allocator and on the same stream.
  template <typename U>
  typed_allocator(const typed_allocator<U, A>& other) noexcept
      : allocator_(other.allocator()), stream_(other.stream()) {}

  ///   Throws:  std::bad_array_new_length above max_size(), and the exceptions of the allocator's allocate
  [[nodiscard]] T* allocate(std::size_t count) {
    if (count > max_size()) detail::raise(std::bad_array_new_length());
    if constexpr (of_resource)
      return static_cast<T*>(allocator_.get().allocate(count * sizeof(T), alignof(T)));
    else
      return static_cast<T*>(
          aligned_request(count * sizeof(T), alignof(T)).allocate(allocator_.get(), stream_));
  }
  void deallocate(T* p, std::size_t count) noexcept {
    if constexpr (of_resource)
      allocator_.get().deallocate(p, count * sizeof(T), alignof(T));
    else
      aligned_request(count * sizeof(T), alignof(T)).deallocate(allocator_.get(), p);
  }
  /// The most objects of one request: max_request bytes.
  [[nodiscard]] static constexpr std::size_t max_size() noexcept { return max_request / sizeof(T); }

  /// The handle of the allocator that serves the requests.
  [[nodiscard]] const detail::handle_of<A>& allocator() const noexcept { return allocator_; }
  /// The stream of all requests.
  [[nodiscard]] stream_id stream() const noexcept { return stream_; }

  template <typename U>
  [[nodiscard]] friend bool operator==(const typed_allocator& a, const typed_allocator<U, A>& b) noexcept {
    return a.allocator() == b.allocator();
  }

 private:
  [[TESSERA_NO_UNIQUE_ADDRESS]] detail::handle_of<A> allocator_;
  stream_id stream_;
};

}  // namespace tessera::inline v0_1::interop
