// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <type_traits>

#include <tessera/core/stream.hpp>
#include <tessera/facade.hpp>
#include <tessera/provider/provider.hpp>

/// What the adaptors that give an allocator the shape of another library hold, and what they ask of it.
namespace tessera {

/// What stands for an allocator wherever it is copied to: h.get() is that allocator, and equal ones stand for the same.
template <typename H>
concept allocator_handle = std::copyable<H> && std::equality_comparable<H> && requires(const H& h) {
  { h.get() } noexcept;
  requires std::is_lvalue_reference_v<decltype(h.get())>;
};

/// Refers to an allocator that somebody else owns; where default, to none.
///   Requires:  the allocator outlives it, and stays where it is
template <typename A>
class allocator_ref {
 public:
  allocator_ref() = default;
  allocator_ref(A& to) noexcept : to_(std::addressof(to)) {}
  [[nodiscard]] A& get() const noexcept { return *to_; }
  bool operator==(const allocator_ref&) const = default;

 private:
  A* to_ = nullptr;
};

/// Stands for the allocator to which a function of the user's refers, always the same one. It has no state, so that it can
/// be made anywhere.
template <auto Function>
struct found_by {
  [[nodiscard]] auto& get() const noexcept { return Function(); }
  bool operator==(const found_by&) const = default;
};
/// A handle whose type says what it stands for.
template <typename H>
concept stands_by_type = allocator_handle<H> && std::default_initializable<H> && std::is_empty_v<H>;

template <typename A>
struct reference_to {
  using handle = allocator_ref<A>;
  using argument = A&;
};
template <allocator_handle A>
struct reference_to<A> {
  using handle = A;
  using argument = const A&;
};
/// What an adaptor holds of an `A`: a copy where that is a handle, which may own what it stands for, else a reference.
template <typename A>
using handle_of = typename reference_to<A>::handle;
/// What it is made from.
template <typename A>
using allocator_argument = typename reference_to<A>::argument;
/// The allocator itself.
template <typename A>
using allocator_behind = std::remove_reference_t<decltype(std::declval<const handle_of<A>&>().get())>;

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

/// Gives memory in which the host may keep objects.
template <typename A>
concept host_allocator = is_host_visible<A> || is_host_visible<detail::device_of<A>>;

/// Says in one sentence each what an adaptor needs of an allocator, and where to read what that is.
template <typename A>
consteval bool check_allocator() {
  static_assert(stream_allocator<A>,
                "A must be a stream_allocator, which of a per_device the front() of one device is "
                "[tessera/interop/allocator_ref.hpp]");
  return stream_allocator<A>;
}
template <typename A>
consteval bool check_host_allocator() {
  if constexpr (check_allocator<A>()) {
    static_assert(host_allocator<A>,
                  "A must be a host_allocator, as objects are kept in its memory: its provider must say "
                  "is_host_visible [tessera/provider/provider.hpp]");
  }
  return true;
}

}  // namespace tessera
