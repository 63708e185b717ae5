// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/detail/blocks/stream_end.hpp>
#include <tessera/interop/aligned_request.hpp>
#include <tessera/interop/allocator_handle.hpp>

/// Memory resources for CCCL and RMM: cccl_resource, and rethrowing for libraries with exceptions of their
/// own.

namespace tessera::inline v0_1::interop {

/// Throws the exceptions of another library instead of tessera's. Choose it inside a cccl_resource or
/// pmr_resource, for a library that catches its own exception type. All other calls behave like the calls of
/// `Allocator`.
///
/// `Raise` is called with the exception that would be thrown, and throws the other library's type. If it
/// returns, the original exception is thrown.
///
///     #include <stdexcept>
///     #include <tessera/concurrent/locked.hpp>
///     struct their_errors {
///       void operator()(const std::exception& error) const { throw std::runtime_error(error.what()); }
///     };
///     using locked_pool = tessera::concurrent::locked<tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device>>;
///     tessera::interop::rethrowing<locked_pool, their_errors> theirs;
///     theirs.deallocate(theirs.allocate(1000));  // throws std::runtime_error if the device is full
///
///   Cost:  none unless the allocation fails
template <typename Allocator, typename Raise>
class rethrowing : public tessera::detail::wrapping_adaptor<rethrowing<Allocator, Raise>, Allocator> {
  using adaptor_type = tessera::detail::wrapping_adaptor<rethrowing, Allocator>;
  static_assert(std::is_default_constructible_v<Raise> && std::is_invocable_v<Raise, const std::exception&>,
                "rethrowing: Raise must be a function object that takes a const std::exception&");

 public:
  using adaptor_type::adaptor_type;

  /// Throws `error` in the same way as this allocator's own errors.
  template <typename Error>
  [[noreturn]] static void raise(const Error& error) {
    Raise{}(error);
    tessera::detail::raise(error);
  }
};

}  // namespace tessera::inline v0_1::interop

namespace tessera::inline v0_1::detail {

/// A stream type of any library:
///
///   * stream_id, and types that convert to it
///   * a pointer such as cudaStream_t, and types that convert to a pointer, such as rmm::cuda_stream_view
///   * a type whose get() returns such a pointer, such as cuda::stream_ref
///
/// An integer is not a stream, so that a size is never mistaken for a stream.
template <typename S>
concept stream_like =
    std::convertible_to<const S&, stream_id> ||
    (std::convertible_to<const S&, const void*> && !std::is_null_pointer_v<S>) || requires(const S& s) {
      { s.get() } -> std::convertible_to<const void*>;
    };

template <stream_like S>
[[nodiscard]] stream_id to_stream_id(const S& stream) noexcept {
  if constexpr (std::convertible_to<const S&, stream_id>) {
    return stream;
  } else if constexpr (std::convertible_to<const S&, const void*>) {
    const void* const pointer = stream;
    return stream_id(pointer);
  } else {
    return to_stream_id(stream.get());
  }
}

/// A property of memory resources that has a value.
template <typename Property>
concept property_with_value = requires { typename Property::value_type; };

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::interop {

/// Adapts an allocator to the memory resources of CCCL 3.1 and newer: cuda::mr::resource and
/// cuda::mr::synchronous_resource. It includes no header of CCCL. Copies are cheap and compare equal if they
/// use the same allocator. With a shared_allocator for `A`, holders such as cuda::mr::any_resource keep the
/// allocator alive.
///
/// CCCL 2.x and 3.0, which is part of CUDA 13.0, call allocate(bytes, alignment) and allocate_async(bytes,
/// alignment, stream). These calls do not compile here. Use a newer CCCL, or a pmr_resource for host memory.
///
/// RMM 26.08 takes it as it is, in rmm::device_uvector, in resource adaptors, and in
/// rmm::mr::set_current_device_resource. Wrap the allocator in a rethrowing that throws rmm::out_of_memory.
///
///     tessera::caching_allocator<tessera::recipe::pytorch<>, tessera::provider::simulated_device> allocator;
///     tessera::interop::cccl_resource memory(allocator);
///     void* p = memory.allocate(tessera::stream_id{1}, 1000, 256);
///     memory.deallocate(tessera::stream_id{1}, p, 1000, 256);
///
/// `Properties` are tags without a value, such as cuda::mr::device_accessible, for which
/// get_property(resource, tag) exists. It is as thread-safe as the allocator.
///   Requires:  the allocator outlives it, unless `A` is a handle that owns it
///   Source:    libcudacxx/include/cuda/__memory_resource
template <typename A, typename... Properties>
class cccl_resource {
  static_assert(detail::check_allocator<detail::allocator_of<A>>());
  static_assert(!(detail::property_with_value<Properties> || ...),
                "cccl_resource: Properties must be tags. Write a get_property overload for a property that "
                "has a value");

 public:
  /// The default alignment of CCCL's pools.
  static constexpr std::size_t default_alignment = 256;

  /// Calls without a stream use `sync_stream`, and wait for all work of that stream. Other work
  /// on it delays these calls, so choose a stream of their own.
  explicit cccl_resource(detail::handle_argument<A> allocator, stream_id sync_stream = {}) noexcept
      : allocator_(allocator), sync_stream_(sync_stream) {}

  /// Allocates memory for work that is submitted to `stream` from now on.
  ///   Throws:  the exceptions of the allocator's allocate, and std::invalid_argument if the alignment is no
  ///            power of two, as CCCL's pools do
  template <detail::stream_like Stream>
  [[nodiscard]] void* allocate(Stream stream, std::size_t bytes, std::size_t alignment = default_alignment) {
    return request(bytes, alignment).allocate(allocator_.get(), detail::to_stream_id(stream));
  }
  /// Frees memory once the work submitted to `stream` so far completes. The stream of the allocation may
  /// reuse it. If `stream` is another one, deallocate records an event on it. If the device fails to record
  /// it, it is tried again later. The memory leaks if the use can be neither recorded nor waited for.
  ///   Requires:  the same bytes and alignment as in the allocation; aborts if the mismatch is detected
  ///   Cost:      one more look-up than the allocator's deallocate; an event if the streams differ
  template <detail::stream_like Stream>
  void deallocate(Stream stream, void* p, std::size_t bytes,
                  std::size_t alignment = default_alignment) noexcept {
    aligned_request(bytes, alignment)
        .deallocate_recording(allocator_.get(), p, detail::to_stream_id(stream),
                              [this](stream_id s) { return wait_for(s); });
  }

  /// Rejects the calls of CCCL 3.0, whose first argument could be mistaken for a stream.
  void* allocate(std::size_t bytes, std::size_t alignment) = delete;
  void deallocate(void* p, std::size_t bytes, std::size_t alignment) = delete;

  /// Allocates memory that every stream may use at once.
  ///   Throws:  the exceptions of allocate, and std::runtime_error if the stream of synchronous calls cannot be
  ///            waited for: the device failed, or a scope of the kind capture is open
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
    void* const p = request(bytes, alignment).allocate(allocator_.get(), sync_stream_);
    if (wait_for(sync_stream_)) return p;
    deallocate_sync(p, bytes, alignment);
    detail::allocator_of<A>::raise(std::runtime_error(
        "tessera: allocate_sync: cannot wait for the stream of synchronous calls, because the "
        "device failed or a capture is open"));
  }
  ///   Requires:  all work that uses the memory has completed; the same bytes and alignment as in the
  ///              allocation
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
    aligned_request(bytes, alignment).deallocate(allocator_.get(), p);
  }

  /// The handle of the allocator that serves the requests.
  [[nodiscard]] const detail::handle_of<A>& allocator() const noexcept { return allocator_; }

  [[nodiscard]] friend bool operator==(const cccl_resource& a, const cccl_resource& b) noexcept {
    return a.allocator_ == b.allocator_;
  }
  template <typename Property>
    requires(std::same_as<Property, Properties> || ...)
  friend constexpr void get_property(const cccl_resource&, Property) noexcept {}

 private:
  [[nodiscard]] static aligned_request request(std::size_t bytes, std::size_t alignment) {
    if (!std::has_single_bit(alignment))
      detail::allocator_of<A>::raise(std::invalid_argument(
          "tessera: cccl_resource: an alignment is a power of two, unlike " + std::to_string(alignment)));
    return {bytes, alignment};
  }
  /// Waits for the work of a stream. Returns false if the device failed, or if a capture forbids waiting.
  [[nodiscard]] bool wait_for(stream_id stream) noexcept {
    bool may_wait = true;
    allocator_.get().for_each_allocator(
        [&](auto& in) { may_wait = may_wait && detail::introspect(in).may_wait(); });
    return may_wait && allocator_.get().visit_provider(
                           [stream](auto& device) { return detail::finish_work_if_any(device, stream); });
  }

  detail::handle_of<A> allocator_;
  stream_id sync_stream_;
};
template <typename A>
cccl_resource(A&&, stream_id = {}) -> cccl_resource<std::remove_cvref_t<A>>;

}  // namespace tessera::inline v0_1::interop
