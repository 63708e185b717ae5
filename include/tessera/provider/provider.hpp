// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>

/// The concepts of a provider: the interface between an allocator and a device.
///
/// Only device_provider is required. Each further capability is a concept of its own, and a recipe requires
/// only those that it uses.
///
/// | concept                 | capability                                   |
/// |-------------------------|----------------------------------------------|
/// | device_provider         | acquires and releases segments               |
/// | event_provider          | records events on streams                    |
/// | ordering_provider       | knows the order of streams, lets one wait    |
/// | stream_listing_provider | knows which streams exist                    |
/// | paged_provider          | serves segments in pages of a kind           |
/// | virtual_memory_provider | maps physical memory into reserved addresses |
/// | sharing_provider        | shares physical memory between processes     |
/// | registering_provider    | registers the user's memory for transfers    |
/// | measured_provider       | reports its free memory                      |
/// | limited_provider        | has a limit of its own                       |
/// | reclaiming_provider     | can ask others to give memory back           |
///
/// Rules for all of them:
///
///   Units:   sizes are in bytes
///   Errors:  no member throws; a member that fails returns false or null and changes nothing
///   Threads: one call at a time, unless the provider declares is_thread_safe
///
/// Examples to start from: examples/03_write_a_provider.cpp is the smallest. host_pinned
/// [provider/host_pinned.hpp] uses the memory of this machine, simulated_device
/// [provider/simulated_device.hpp] none, and gpu [examples/cuda_driver/device.hpp] CUDA's driver.
///
/// Allocators never misuse a provider. Each concept lists the misuse that a provider must refuse all the
/// same. The laws try exactly these cases, and report in the same words.
namespace tessera {

/// Acquires and releases segments of device memory.
///
/// | expression          | returns     | effect                                                             |
/// |---------------------|-------------|--------------------------------------------------------------------|
/// | d.acquire(bytes)    | void*       | a new segment that overlaps no other; null where the device        |
/// |                     |             | refuses                                                            |
/// | d.release(p, bytes) | bool        | takes a whole segment back; false: the caller still has it         |
/// | c.capacity()        | std::size_t | bytes of the device in all; constant                               |
/// | c.granularity()     | std::size_t | sizes and addresses of segments are multiples of it; a power of    |
/// |                     |             | two, at least min_alignment; constant                              |
///
/// What it must refuse, with nothing lost:
///   acquire refuses what goes beyond the capacity
///
/// Checked by law::provider [tessera/law/provider.hpp].
template <typename D>
concept device_provider = std::movable<D> && requires(D& d, const D& c, void* p, std::size_t bytes) {
  { d.acquire(bytes) } noexcept -> std::same_as<void*>;
  { d.release(p, bytes) } noexcept -> std::same_as<bool>;
  { c.capacity() } noexcept -> std::same_as<std::size_t>;
  { c.granularity() } noexcept -> std::same_as<std::size_t>;
};

/// Records events, which tell how far the work of a stream has come.
///
/// | expression     | returns | effect                                                               |
/// |----------------|---------|----------------------------------------------------------------------|
/// | D::event       |         | an event; empty when default-constructed; copies name the same event |
/// | d.record(s, e) | bool    | sets `e` to an event behind all work submitted to `s` so far         |
/// | d.query(e)     | bool    | whether the work before the event is done; stays true; never waits   |
/// | d.wait(e)      | bool    | waits until that work is done; false where waiting failed            |
/// | d.discard(e)   |         | ends a recorded event                                                |
template <typename D>
concept event_provider = device_provider<D> && std::semiregular<typename D::event> &&
                         requires(D& d, typename D::event& e, stream_id s) {
                           { d.record(s, e) } noexcept -> std::same_as<bool>;
                           { d.query(e) } noexcept -> std::same_as<bool>;
                           { d.wait(e) } noexcept -> std::same_as<bool>;
                           { d.discard(e) } noexcept;
                         };

/// Knows the order of work on different streams, and lets one stream wait for another.
///
/// A position counts the work submitted to a stream, waits included. Position 0 is before all work.
///
/// | expression           | returns       | effect                                                          |
/// |----------------------|---------------|-----------------------------------------------------------------|
/// | d.position(s)        | std::uint64_t | how much work has been submitted to `s`                         |
/// | d.is_done(s, n)      | bool          | whether the work of `s` up to position `n` is done; never waits |
/// | d.is_behind(s, t, n) | bool          | whether all further work of `s` runs after that of `t` up to    |
/// |                      |               | `n`, by waits that were submitted, directly or through other    |
/// |                      |               | streams                                                         |
/// | d.let_wait(s, t, n)  | bool          | submits such a wait to `s`; does not wait itself                |
///
/// Waits are for work submitted before, so streams cannot wait for each other in a circle. The work of a
/// stream that no longer exists counts as done. stream_order [provider/stream_order.hpp] implements is_behind
/// for devices without it. Checked by law::provider [tessera/law/provider.hpp].
template <typename D>
concept ordering_provider = event_provider<D> && requires(D& d, stream_id s, std::uint64_t position) {
  { d.position(s) } noexcept -> std::same_as<std::uint64_t>;
  { d.is_done(s, position) } noexcept -> std::same_as<bool>;
  { d.is_behind(s, s, position) } noexcept -> std::same_as<bool>;
  { d.let_wait(s, s, position) } noexcept -> std::same_as<bool>;
};

/// Knows which streams exist: d.has_stream(s). Without it, all streams count as existing.
template <typename D>
concept stream_listing_provider = device_provider<D> && requires(D& d, stream_id s) {
  { d.has_stream(s) } noexcept -> std::same_as<bool>;
};

/// Whether several threads may call a provider at once: its `static constexpr bool is_thread_safe`; false by
/// default.
///
/// Otherwise locked allocators let in one call at a time. It must be true if several of them share the
/// provider by provider_ref.
template <typename D>
inline constexpr bool is_thread_safe = false;
template <typename D>
  requires std::convertible_to<decltype(D::is_thread_safe), bool>
inline constexpr bool is_thread_safe<D> = D::is_thread_safe;

/// Whether the host can read and write the provider's memory at its addresses: its `static constexpr bool
/// is_host_visible`; false by default. Containers need it.
template <typename D>
inline constexpr bool is_host_visible = false;
template <typename D>
  requires std::convertible_to<decltype(D::is_host_visible), bool>
inline constexpr bool is_host_visible<D> = D::is_host_visible;

/// Whether release() waits for running work that uses the segment: its `static constexpr bool release_waits`;
/// true by default.
///
/// cudaFree waits, aclrtFree does not. Memory that work uses only on recorded streams needs no declaration.
template <typename D>
inline constexpr bool release_waits = true;
template <typename D>
  requires std::convertible_to<decltype(D::release_waits), bool>
inline constexpr bool release_waits<D> = D::release_waits;

/// Whether query() and is_done() may report finished work as unfinished: its `static constexpr bool
/// may_see_late`; false by default.
///
/// Declare it where asking the device can fail. Memory then only stays pending longer.
template <typename D>
inline constexpr bool may_see_late = false;
template <typename D>
  requires std::convertible_to<decltype(D::may_see_late), bool>
inline constexpr bool may_see_late<D> = D::may_see_late;

/// Has a limit of its own, such as one that several allocators share. d.over_limit(bytes) says whether
/// `bytes` more would exceed it, so that a failure for the limit is told from one for lack of memory.
template <typename D>
concept limited_provider = device_provider<D> && requires(const D& d, std::size_t bytes) {
  { d.over_limit(bytes) } noexcept -> std::same_as<bool>;
};

/// Can ask other users of the device to give idle memory back: d.reclaim(), which returns whether any was.
///
/// An allocator calls it when the device refused and its own cache is empty, and then asks the device again.
/// A locked allocator calls it only if the provider is thread-safe.
template <typename D>
concept reclaiming_provider = device_provider<D> && requires(D& d) {
  { d.reclaim() } noexcept -> std::same_as<bool>;
};

/// Reports its free memory: d.available(), in bytes, whoever uses the rest. Without it, all that the
/// allocator itself has not taken counts as free.
template <typename D>
concept measured_provider = device_provider<D> && requires(const D& d) {
  { d.available() } noexcept -> std::same_as<std::size_t>;
};

/// Serves segments in pages of a kind: d.acquire(bytes, kind), null without such pages. Portable callers pass
/// a multiple of kind.granularity().
template <typename D>
concept paged_provider = device_provider<D> && requires(D& d, std::size_t bytes, page_kind kind) {
  { d.acquire(bytes, kind) } noexcept -> std::same_as<void*>;
};

/// Maps physical memory into reserved ranges of addresses.
///
/// Physical memory is mapped whole, and in one place at a time.
///
/// | expression                  | returns     | effect                                                     |
/// |-----------------------------|-------------|------------------------------------------------------------|
/// | D::physical                 |             | a handle of physical memory; empty when default-           |
/// |                             |             | constructed                                                |
/// | D::map_grants_access        | bool        | whether mapped memory can be used without grant            |
/// | D::unmap_wants_size         | bool        | whether unmap checks `bytes`; portable callers pass the    |
/// |                             |             | mapped size                                                |
/// | c.page_size(kind)           | std::size_t | physical memory of `kind` is a multiple of it, and mapped  |
/// |                             |             | at one; a power of two                                     |
/// | d.reserve(bytes, alignment) | void*       | a range of addresses; `alignment` is a power of two        |
/// | d.unreserve(p, bytes)       | bool        | gives a whole range back, in which nothing is mapped       |
/// | d.create(bytes, kind, m)    | bool        | sets `m` to new physical memory                            |
/// | d.destroy(m)                | bool        | drops the handle; the memory goes once it is mapped        |
/// |                             |             | nowhere and no importer holds it                           |
/// | d.map(p, bytes, m)          | bool        | maps all of `m` at `p`                                     |
/// | d.grant(p, bytes)           | bool        | lets the device access what one map put at `p`             |
/// | d.unmap(p, bytes)           | bool        | removes what one map put at `p`; no running work may use   |
/// |                             |             | it                                                         |
/// | d.synchronize(s)            | bool        | waits until all work submitted to `s` is done; at once for |
/// |                             |             | a stream that does not exist                               |
///
/// The order that every device accepts is: reserve, create, map, grant, use, synchronize, unmap, destroy,
/// unreserve.
///
/// What it must refuse:
///   what names no memory is refused: by destroy and map, of an empty D::physical
///   memory is a multiple of the page size long, and not empty
///   create refuses what goes beyond the capacity
///   map refuses addresses that are not reserved
///   map refuses addresses at which something is mapped
///   memory is mapped at a multiple of the page size
///   no more is mapped than there is of the memory
///   grant refuses addresses at which nothing is mapped
///   unmap refuses addresses at which nothing is mapped
///   unmap refuses a part of what one map put there: where D::unmap_wants_size
///   unmap takes away what one map put there, once
///   a range goes back only when nothing is mapped in it
///
/// Checked by law::provider [tessera/law/provider.hpp].
///   Source:  the common part of CUDA's cuMem* and ACL's aclrt*Mem* functions
template <typename D>
concept virtual_memory_provider =
    device_provider<D> && std::semiregular<typename D::physical> &&
    requires(D& d, const D& c, void* p, std::size_t bytes, typename D::physical& m,
             const typename D::physical& made, page_kind kind, stream_id s) {
      { D::map_grants_access } -> std::convertible_to<bool>;
      { D::unmap_wants_size } -> std::convertible_to<bool>;
      { c.page_size(kind) } noexcept -> std::same_as<std::size_t>;
      { d.reserve(bytes, bytes) } noexcept -> std::same_as<void*>;
      { d.unreserve(p, bytes) } noexcept -> std::same_as<bool>;
      { d.create(bytes, kind, m) } noexcept -> std::same_as<bool>;
      { d.destroy(made) } noexcept -> std::same_as<bool>;
      { d.map(p, bytes, made) } noexcept -> std::same_as<bool>;
      { d.grant(p, bytes) } noexcept -> std::same_as<bool>;
      { d.unmap(p, bytes) } noexcept -> std::same_as<bool>;
      { d.synchronize(s) } noexcept -> std::same_as<bool>;
    };

/// Which processes may import exported memory.
enum class importers : unsigned char {
  listed,  ///< those listed with allow()
  any
};

/// Shares physical memory between processes. Each process has a handle of its own, and destroys its own.
///
/// | expression                 | returns      | effect                                                     |
/// |----------------------------|--------------|------------------------------------------------------------|
/// | D::shareable               |              | a name of exported memory, valid in all processes;         |
/// |                            |              | trivially copyable                                         |
/// | c.process()                | std::int32_t | the number by which other processes list this one; may     |
/// |                            |              | hold in one namespace only                                 |
/// | d.export_memory(m, who, s) | bool         | sets `s` to a name of `m`, which was created here; once    |
/// |                            |              | for each `m`                                               |
/// | d.allow(s, process)        | bool         | lists an importer of memory that was exported here to      |
/// |                            |              | listed processes                                           |
/// | d.import_memory(s, m)      | bool         | sets `m` to memory that another process exported and still |
/// |                            |              | holds; may wait for that process, for a bounded time       |
///
/// What it must refuse:
///   memory is exported once
///   imported memory is not exported
///   a process that is not listed cannot import
///   the exporter alone lists importers
///   importers are not listed for what any may import
///   memory is not imported where it was exported
///   what the exporter destroyed is not imported
///
/// Checked by law::sharing [tessera/law/virtual_memory.hpp].
template <typename D>
concept sharing_provider =
    virtual_memory_provider<D> && std::is_trivially_copyable_v<typename D::shareable> &&
    requires(D& d, const D& c, typename D::physical& m, const typename D::physical& made,
             typename D::shareable& s, const typename D::shareable& exported, importers who,
             std::int32_t process) {
      { c.process() } noexcept -> std::same_as<std::int32_t>;
      { d.export_memory(made, who, s) } noexcept -> std::same_as<bool>;
      { d.allow(exported, process) } noexcept -> std::same_as<bool>;
      { d.import_memory(exported, m) } noexcept -> std::same_as<bool>;
    };

/// Registers the user's own host memory, so that transfers use it like the provider's.
///
/// | expression                  | returns | effect                                                         |
/// |-----------------------------|---------|----------------------------------------------------------------|
/// | d.register_memory(p, bytes) | bool    | false where `p` is no multiple of the host's page, or a part   |
/// |                             |         | is registered or the provider's already                        |
/// | d.unregister_memory(p)      | bool    | false where no registered memory begins at `p`                 |
///
/// What it must refuse:
///   memory is registered once
///   memory is unregistered where it begins
///   memory is unregistered once
///   what is registered begins at a multiple of the page
///
/// Checked by law::provider [tessera/law/provider.hpp].
template <typename D>
concept registering_provider = device_provider<D> && requires(D& d, void* p, std::size_t bytes) {
  { d.register_memory(p, bytes) } noexcept -> std::same_as<bool>;
  { d.unregister_memory(p) } noexcept -> std::same_as<bool>;
};

namespace detail {

/// Whether a stream exists, as far as the device knows.
template <device_provider D>
[[nodiscard]] bool has_stream(D& device, stream_id stream) noexcept {
  if constexpr (stream_listing_provider<D>) return device.has_stream(stream);
  return true;
}

/// Waits until the work submitted to a stream is done. Returns false where this cannot be known.
template <device_provider D>
bool finish_work(D& device, stream_id stream) noexcept {
  if constexpr (event_provider<D>) {
    typename D::event event;
    if (device.record(stream, event)) {
      const bool done = device.wait(event);
      device.discard(event);
      return done;
    }
  }
  // No event can be recorded on a stream that has ended. synchronize knows that it has no work.
  if constexpr (requires { device.synchronize(stream); }) return device.synchronize(stream);
  return false;
}

/// Calls finish_work where release() does not wait itself.
template <device_provider D>
bool wait_before_release(D& device, stream_id stream) noexcept {
  if constexpr (!release_waits<D> && event_provider<D>) return finish_work(device, stream);
  return true;
}

/// Bytes that a device could give now to an allocator that has `taken` so many.
template <device_provider D>
[[nodiscard]] std::size_t left_on(const D& device, std::size_t taken) noexcept {
  if constexpr (measured_provider<D>) {
    return device.available();
  } else {
    const std::size_t capacity = device.capacity();
    return capacity > taken ? capacity - taken : 0;
  }
}

}  // namespace detail

}  // namespace tessera
