// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>

#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>

/// What a device must offer. Each refinement is a concept of its own, so a composition asks only for what it uses.
namespace tessera {

/// Gives and takes back memory in segments.
///
///   d.acquire(bytes)       `bytes` of device memory, or null where the device refuses; overlaps nothing given
///   d.release(p, bytes)    takes a whole segment back; false where it failed: the caller still holds it
///   d.capacity()           bytes the device has in all; constant
///   d.granularity()        power of two; segments are a multiple of it long and start at a multiple of it
///
/// Checked by law::provider [tessera/law/provider.hpp].
template <typename D>
concept device_provider = std::movable<D> && requires(D& d, const D& c, void* p, std::size_t bytes) {
  { d.acquire(bytes) } noexcept -> std::same_as<void*>;
  { d.release(p, bytes) } noexcept -> std::same_as<bool>;
  { c.capacity() } noexcept -> std::same_as<std::size_t>;
  { c.granularity() } noexcept -> std::same_as<std::size_t>;
};

/// Tells how far a stream's work has come.
///
///   D::event          a mark; empty when made, may be copied
///   d.record(s, e)    sets `e` to a mark behind all work submitted to `s` so far; false where it failed
///   d.query(e)        whether the work before the mark is done; never waits
///   d.wait(e)         returns once it is done; false where waiting failed
///   d.discard(e)      ends a recorded mark, which then means nothing
template <typename D>
concept event_provider = device_provider<D> && std::semiregular<typename D::event> &&
                         requires(D& d, typename D::event& e, stream_id s) {
                           { d.record(s, e) } noexcept -> std::same_as<bool>;
                           { d.query(e) } noexcept -> std::same_as<bool>;
                           { d.wait(e) } noexcept -> std::same_as<bool>;
                           { d.discard(e) } noexcept;
                         };

/// Whether calls of a provider may come from several threads at once: what it says as a
/// `static constexpr bool is_thread_safe`, and false where it says nothing. The adaptors for threads then let in one call
/// at a time; where several allocators share it by provider_ref, it must be true.
template <typename D>
inline constexpr bool is_thread_safe = false;
template <typename D>
  requires std::convertible_to<decltype(D::is_thread_safe), bool>
inline constexpr bool is_thread_safe<D> = D::is_thread_safe;

/// Knows a limit of its own, as one that several allocators share: d.over_limit(bytes) says whether `bytes` more would
/// pass it, so that a refusal for that is told from one for want of memory.
template <typename D>
concept limited_provider = device_provider<D> && requires(const D& d, std::size_t bytes) {
  { d.over_limit(bytes) } noexcept -> std::same_as<bool>;
};

/// Gives memory in pages of a kind; null where that kind is not to be had.
template <typename D>
concept paged_provider = device_provider<D> && requires(D& d, std::size_t bytes, page_kind kind) {
  { d.acquire(bytes, kind) } noexcept -> std::same_as<void*>;
};

}  // namespace tessera
