// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include <tessera/interop/allocator_handle.hpp>
#include <tessera/interop/ownership.hpp>

/// Views of Kokkos in the memory of an allocator: make_kokkos_view for host memory, and kokkos_view for any memory.

namespace tessera::inline v0_1::detail {

/// The bytes of a view; the largest size if its elements exceed every request.
template <typename View, typename... Sizes>
[[nodiscard]] std::size_t view_bytes(Sizes... extents) {
  std::size_t least = sizeof(typename View::value_type);
  for (const std::size_t extent : {std::size_t{1}, extents...})
    least = extent != 0 && least > unlimited / extent ? unlimited : least * extent;
  return least < max_request ? View::required_allocation_size(extents...) : unlimited;
}

/// Kokkos' type of counts of references, and of records that they count.
template <typename View>
using view_tracker = std::remove_cvref_t<decltype(std::declval<const View&>().impl_track())>;
template <typename View>
using view_record_base =
    std::remove_pointer_t<decltype(std::declval<view_tracker<View>&>().template get_record<void>())>;

/// The record that the copies of a view share. Kokkos deletes it with the last of them. The block begins with a header of
/// Kokkos, which has the label; the elements follow it.
template <typename View, typename A>
class view_record final : public view_record_base<View> {
  using base = view_record_base<View>;
  using header = std::remove_cvref_t<decltype(*std::declval<const base&>().head())>;

 public:
  static constexpr std::size_t header_bytes = sizeof(header);

  view_record(interop::unique_block<A> block, const std::string& label)
      : base(static_cast<header*>(block.get()), block.size(), &destroy, label), block_(std::move(block)) {
    fill_host_accessible_header_info(this, *this->m_alloc_ptr, label);  // of Kokkos
  }
  [[nodiscard]] std::string get_label() const override { return this->m_label; }

 private:
  static void destroy(base* record) { delete static_cast<view_record*>(record); }

  interop::unique_block<A> block_;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::interop {

/// Makes a Kokkos::View with a label, whose copies and subviews share the memory. The last of them deallocates it. It includes
/// no header of Kokkos, and needs Kokkos 5:
/// `auto a = make_kokkos_view<Kokkos::View<double**>>(allocator, "a", tessera::stream_id{}, 100, 200);`
///
/// Choose it for host memory, and kokkos_view for other memory. Kokkos does not initialize the elements. They begin 128 bytes
/// into a block. Kokkos' tools do not see the allocation. It uses Kokkos::Impl::SharedAllocationRecord, because Kokkos documents
/// no other way; it does not compile if Kokkos was configured with KOKKOS_ENABLE_DEBUG.
///   Requires:  the allocator outlives the view's copies, unless `allocator` is a handle that owns it. Threads that destroy last
///              copies need a thread-safe allocator
///   Throws:    the exceptions of the allocator's allocate, also for extents whose bytes a size cannot hold
template <typename View, typename A, typename... Extents>
  requires((std::is_lvalue_reference_v<A> || detail::allocator_handle<A>) &&
           (std::is_convertible_v<Extents, std::size_t> && ...))
[[nodiscard]] View make_kokkos_view(A&& allocator, const std::string& label, stream_id stream,
                                    Extents... extents) {
  using handle = std::remove_cvref_t<A>;
  static_assert(detail::check_host_allocator<detail::allocator_of<handle>>());
  static_assert(
      !View::traits::memory_traits::is_unmanaged,
      "make_kokkos_view: View must not have Kokkos::MemoryTraits<Kokkos::Unmanaged>; see kokkos_view");
  static_assert(std::is_trivially_destructible_v<typename View::value_type>,
                "make_kokkos_view: the elements must be trivially destructible");
  using record = detail::view_record<View, handle>;
  const std::size_t bytes = detail::saturating_add(
      detail::view_bytes<View>(static_cast<std::size_t>(extents)...), record::header_bytes);
  detail::view_tracker<View> tracker;
  auto* const made = new record(make_block(std::forward<A>(allocator), bytes, stream), label);
  tracker.assign_allocated_record_to_uninitialized(made);
  auto* const elements = static_cast<typename View::pointer_type>(made->data());
  const View unowned(elements, static_cast<std::size_t>(extents)...);
  return View(typename View::data_handle_type(tracker, elements), unowned.mapping());
}

/// Owns the memory of a `View`, which is a Kokkos::View with the trait Unmanaged. It includes no header of
/// Kokkos. The memory space of the view must be able to access the allocator's memory.
///
/// Kokkos does not initialize the elements. Like the view, it has no values until the program writes them.
/// Copies of the view do not own the memory. It is as thread-safe as the allocator.
///   Requires:  the allocator outlives it, unless `A` is a handle that owns it; it outlives uses of the view
template <typename View, typename A>
class kokkos_view {
  static_assert(View::traits::memory_traits::is_unmanaged,
                "kokkos_view: View must have Kokkos::MemoryTraits<Kokkos::Unmanaged>");
  static_assert(std::is_trivially_destructible_v<typename View::value_type>,
                "kokkos_view: the elements must be trivially destructible");

 public:
  /// Allocates a view of these extents, for use on `stream`.
  ///   Throws:  the exceptions of the allocator's allocate, also for extents whose bytes a size cannot hold
  template <typename... Extents>
    requires(std::is_convertible_v<Extents, std::size_t> && ...)
  explicit kokkos_view(detail::handle_argument<A> allocator, stream_id stream, Extents... extents)
      : block_(make(allocator, stream, detail::view_bytes<View>(static_cast<std::size_t>(extents)...))),
        view_(static_cast<typename View::pointer_type>(block_.get()), static_cast<std::size_t>(extents)...) {}

  /// The view. It can be copied into kernels.
  [[nodiscard]] const View& view() const noexcept { return view_; }
  /// The block behind the view, for example to record a stream.
  [[nodiscard]] unique_block<A>& block() noexcept { return block_; }

 private:
  [[nodiscard]] static unique_block<A> make(detail::handle_argument<A> allocator, stream_id stream,
                                            std::size_t bytes) {
    const detail::handle_of<A> handle(allocator);
    return {allocator, handle.get().allocate(bytes, stream), bytes, stream};
  }

  unique_block<A> block_;
  View view_;
};

}  // namespace tessera::inline v0_1::interop
