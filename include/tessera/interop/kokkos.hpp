// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>
#include <utility>

#include <tessera/interop/allocator_handle.hpp>
#include <tessera/interop/ownership.hpp>

/// Views of Kokkos in the memory of an allocator: kokkos_view.

namespace tessera::interop {

/// Owns the memory of a `View`, which is a Kokkos::View with the trait Unmanaged. It includes no header of
/// Kokkos. The memory space of the view must be able to access the allocator's memory.
///
/// Kokkos does not initialize the elements. Like the view, it has no values until the program writes them.
/// Copies of the view do not own the memory. It is as thread-safe as the allocator.
///   Requires:  the allocator outlives it, unless `A` is a handle that owns it; it outlives uses of the view
template <typename View, typename A>
class kokkos_view {
  static_assert(!View::traits::is_managed,
                "kokkos_view: View must have Kokkos::MemoryTraits<Kokkos::Unmanaged>");
  static_assert(std::is_trivially_destructible_v<typename View::value_type>,
                "kokkos_view: the elements must be trivially destructible");

 public:
  /// Allocates a view of these extents, for use on `stream`.
  ///   Throws:  the exceptions of the allocator's allocate, also for extents whose bytes a size cannot hold
  template <typename... Extents>
    requires(std::is_convertible_v<Extents, std::size_t> && ...)
  explicit kokkos_view(detail::handle_argument<A> allocator, stream_id stream, Extents... extents)
      : block_(make(allocator, stream, bytes_of(static_cast<std::size_t>(extents)...))),
        view_(static_cast<typename View::pointer_type>(block_.get()), static_cast<std::size_t>(extents)...) {}

  /// The view. It can be copied into kernels.
  [[nodiscard]] const View& view() const noexcept { return view_; }
  /// The block behind the view, for example to record a stream.
  [[nodiscard]] unique_block<A>& block() noexcept { return block_; }

 private:
  /// The bytes of a view; the largest size if its elements exceed every request.
  template <typename... Sizes>
  [[nodiscard]] static std::size_t bytes_of(Sizes... extents) {
    std::size_t least = sizeof(typename View::value_type);
    for (const std::size_t extent : {extents...})
      least = extent != 0 && least > unlimited / extent ? unlimited : least * extent;
    return least < max_request ? View::required_allocation_size(extents...) : unlimited;
  }
  [[nodiscard]] static unique_block<A> make(detail::handle_argument<A> allocator, stream_id stream,
                                            std::size_t bytes) {
    const detail::handle_of<A> handle(allocator);
    return {allocator, handle.get().allocate(bytes, stream), bytes, stream};
  }

  unique_block<A> block_;
  View view_;
};

}  // namespace tessera::interop
