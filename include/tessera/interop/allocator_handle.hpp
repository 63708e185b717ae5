// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <tessera/allocator_adaptor.hpp>
#include <tessera/provider/capabilities.hpp>

/// Handles of allocators, and what the headers of interop/ require of an allocator. Front ends of interop/
/// accept a handle in place of an allocator and keep a copy of it. A handle is a shared_allocator, an
/// allocator_from, or a type of your own with the same functions.

namespace tessera::inline v0_1::interop {

/// A handle of the allocator that `Function` returns. Choose it for libraries that default construct their
/// allocators. It has no state.
///   Requires:  `Function` returns a reference to the same allocator at each call
template <auto Function>
struct allocator_from {
  /// The allocator that the function returns.
  [[nodiscard]] auto& get() const noexcept { return Function(); }
  bool operator==(const allocator_from&) const = default;
};

}  // namespace tessera::inline v0_1::interop

namespace tessera::inline v0_1::detail {

/// A copyable handle of an allocator: h.get() is the allocator, and equal handles have the same allocator.
template <typename H>
concept allocator_handle = std::copyable<H> && std::equality_comparable<H> && requires(const H& h) {
  { h.get() } noexcept;
  requires std::is_lvalue_reference_v<decltype(h.get())>;
};

/// Refers to an allocator that it does not own. A default constructed allocator_ref refers to no allocator.
///   Requires:  the allocator outlives it and does not move
template <typename A>
class allocator_ref {
 public:
  allocator_ref() = default;
  allocator_ref(A& allocator) noexcept : allocator_(std::addressof(allocator)) {}
  [[nodiscard]] A& get() const noexcept { return *allocator_; }
  bool operator==(const allocator_ref&) const = default;

 private:
  A* allocator_ = nullptr;
};

/// Serves requests on streams, as a caching_allocator does.
template <typename A>
concept stream_allocator = requires(A& a, void* p, std::size_t bytes, stream_id s) {
  { a.allocate(bytes, s) } -> std::same_as<void*>;
  { a.try_allocate(bytes, s) } noexcept -> std::same_as<void*>;
  { a.deallocate(p) } noexcept;
  { a.deallocate(p, bytes) } noexcept;
  { a.try_deallocate(p) } noexcept -> std::same_as<bool>;
  { a.record_stream(p, s) } noexcept -> std::same_as<bool>;
  { a.try_record_stream(p, s) } noexcept -> std::same_as<bool>;
};

/// A handle whose type alone identifies the allocator.
template <typename H>
concept stateless_handle = allocator_handle<H> && std::default_initializable<H> && std::is_empty_v<H>;

/// The member that stores `A`: a copy of a handle, which may own the allocator, or a reference to an
/// allocator.
template <typename A>
using handle_of = std::conditional_t<allocator_handle<A>, A, allocator_ref<A>>;
/// The constructor parameter for a handle_of<A>.
template <typename A>
using handle_argument = std::conditional_t<allocator_handle<A>, const A&, A&>;
/// The type of the allocator itself.
template <typename A>
using allocator_of = std::remove_reference_t<decltype(std::declval<const handle_of<A>&>().get())>;

/// Provides memory in which the host may construct objects.
template <typename A>
concept host_allocator = detail::is_host_visible<A> || detail::is_host_visible<detail::device_of<A>>;

/// Explains in one sentence which requirement an allocator does not meet.
template <typename A>
consteval bool check_allocator() {
  static_assert(
      stream_allocator<A>,
      "A must be an allocator with the calls of caching_allocator. For a per_device, use front(d) of "
      "one device [tessera/interop/allocator_handle.hpp]");
  return stream_allocator<A>;
}
template <typename A>
consteval bool check_host_allocator() {
  if constexpr (check_allocator<A>()) {
    static_assert(host_allocator<A>,
                  "A must allocate host memory, because objects are constructed in it: its provider must set "
                  "is_host_visible [tessera/provider/provider.hpp]");
  }
  return true;
}

}  // namespace tessera::inline v0_1::detail
