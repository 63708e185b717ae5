// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <type_traits>

#include <tessera/core/stream.hpp>
#include <tessera/detail/aligned_request.hpp>
#include <tessera/facade.hpp>
#include <tessera/interop/allocator_ref.hpp>
#include <tessera/interop/rethrowing.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera {

/// A stream of this library, or of another: a pointer, as cudaStream_t; what converts to one, as rmm::cuda_stream_view; or
/// what gives one by get(), as cuda::stream_ref. Other types get a conversion to stream_id. No integer is a stream, so that
/// a size is not taken for one.
template <typename S>
concept names_stream =
    std::convertible_to<const S&, stream_id> ||
    (std::convertible_to<const S&, const void*> && !std::is_null_pointer_v<S>) || requires(const S& s) {
      { s.get() } -> std::convertible_to<const void*>;
    };

template <names_stream S>
[[nodiscard]] stream_id stream_named(const S& stream) noexcept {
  if constexpr (std::convertible_to<const S&, stream_id>) {
    return stream;
  } else if constexpr (std::convertible_to<const S&, const void*>) {
    const void* const named = stream;
    return {reinterpret_cast<std::uintptr_t>(named)};
  } else {
    return stream_named(stream.get());
  }
}

/// A property of memory resources that is more than a tag.
template <typename Property>
concept property_with_value = requires { typename Property::value_type; };

/// The device could not wait for a stream.
class wait_failed final : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override {
    return "tessera: allocate_sync: the device could not wait for the stream that serves such calls";
  }
};

/// An allocator as a memory resource of CCCL 3.1 and newer: cuda::mr::resource and, without streams,
/// cuda::mr::synchronous_resource. No header of CCCL is included. It is copied freely, and equal to what gives from the same
/// allocator. With a shared_allocator for `A`, whoever keeps it, as cuda::mr::any_resource does, keeps the allocator.
///
/// CCCL 3.0, which comes with CUDA 13.0, and 2.x write allocate(bytes, alignment) and allocate_async(bytes, alignment,
/// stream). These do not compile here: take a newer CCCL, or a pmr_resource for memory that the host sees.
///
///     tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device> pool;
///     tessera::stream_resource memory(pool);
///     void* p = memory.allocate(tessera::stream_id{1}, 1000, 256);
///     memory.deallocate(tessera::stream_id{1}, p, 1000, 256);
///
/// `Properties` are tags without a value, as cuda::mr::device_accessible, that get_property(resource, tag) then answers to.
/// What is asked for is an aligned_request. As many threads may use copies as may use the allocator.
///   Requires:  the allocator outlives it, unless `A` is a handle that owns it
///   Source:    libcudacxx/include/cuda/__memory_resource
template <typename A, typename... Properties>
class stream_resource {
  static_assert(check_allocator<allocator_behind<A>>());
  static_assert(
      !(property_with_value<Properties> || ...),
      "stream_resource: a property that has a value gets a get_property of its own, not a place among "
      "Properties");

 public:
  /// As in CCCL's pools.
  static constexpr std::size_t default_alignment = 256;

  /// Serves the calls without a stream on `for_sync`. Who allocates so should keep that stream for it, as each of these
  /// calls waits for the stream's work.
  explicit stream_resource(allocator_argument<A> from, stream_id for_sync = {}) noexcept
      : from_(from), for_sync_(for_sync) {}

  /// Memory for what the stream is given from now on.
  ///   Throws:  what the allocator's allocate throws
  template <names_stream Stream>
  [[nodiscard]] void* allocate(Stream stream, std::size_t bytes, std::size_t alignment = default_alignment) {
    return detail::aligned_request(bytes, alignment).allocate(from_.get(), stream_named(stream));
  }
  /// Takes memory back for reuse behind what the stream has been given so far, which need not be the one it was allocated
  /// on: that other stream then waits for it, by an event. Where not even that can be had, the memory stays live.
  ///   Requires:  what was given for these bytes and this alignment, in whichever way; else the program ends, as far as an
  ///              aligned_request notices. Here and below
  ///   Cost:      a look-up more than the allocator's; an event where its recipe holds back for that stream
  template <names_stream Stream>
  void deallocate(Stream stream, void* p, std::size_t bytes,
                  std::size_t alignment = default_alignment) noexcept {
    detail::aligned_request(bytes, alignment)
        .deallocate_behind(from_.get(), p, stream_named(stream), [this](stream_id s) { return finish(s); });
  }

  /// Calls of CCCL 3.0, whose first number would be taken for a stream.
  void* allocate(std::size_t bytes, std::size_t alignment) = delete;
  void deallocate(void* p, std::size_t bytes, std::size_t alignment) = delete;

  /// Memory that any stream may use at once.
  ///   Throws:  what the allocator's allocate throws, and wait_failed
  [[nodiscard]] void* allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
    void* const p = detail::aligned_request(bytes, alignment).allocate(from_.get(), for_sync_);
    if (finish(for_sync_)) return p;
    deallocate_sync(p, bytes, alignment);
    allocator_behind<A>::raise(wait_failed());
  }
  ///   Requires:  all work that uses it is done
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment = default_alignment) noexcept {
    detail::aligned_request(bytes, alignment).deallocate(from_.get(), p);
  }

  [[nodiscard]] const handle_of<A>& allocator() const noexcept { return from_; }

  [[nodiscard]] friend bool operator==(const stream_resource& a, const stream_resource& b) noexcept {
    return a.from_ == b.from_;
  }
  template <typename Property>
    requires(std::same_as<Property, Properties> || ...)
  friend constexpr void get_property(const stream_resource&, Property) noexcept {}

 private:
  /// On a device that knows neither events nor streams, nothing runs.
  [[nodiscard]] bool finish(stream_id stream) noexcept {
    return from_.get().with_device([stream]<typename Device>(Device& device) {
      constexpr bool knows_streams = event_provider<Device> || requires { device.synchronize(stream); };
      return !knows_streams || detail::finish_work(device, stream);
    });
  }

  handle_of<A> from_;
  stream_id for_sync_;
};
template <typename A>
stream_resource(A&&, stream_id = {}) -> stream_resource<std::remove_cvref_t<A>>;

}  // namespace tessera
