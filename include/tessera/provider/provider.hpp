// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>

/// The concepts of a provider: the interface between an allocator and a device.
///
/// Only device_provider is required. Each further capability is a separate concept. A recipe requires only
/// the concepts that it uses.
///
/// | concept                 | capability                                   |
/// |-------------------------|----------------------------------------------|
/// | device_provider         | acquires and releases segments               |
/// | event_provider          | records events on streams                    |
/// | ordering_provider       | knows the order of streams, lets one wait    |
/// | paged_provider          | serves segments in pages of a kind           |
/// | virtual_memory_provider | maps physical memory into reserved addresses |
/// | sharing_provider        | shares physical memory between processes     |
/// | registering_provider    | registers the user's memory for transfers    |
/// | copying_provider        | copies between the device and host memory    |
///
/// Any provider may have these functions, too:
///
/// | expression                  | returns     | effect                                                    |
/// |-----------------------------|-------------|-----------------------------------------------------------|
/// | c.available()               | std::size_t | bytes of free memory. Without it, all memory that the     |
/// |                             |             | allocator has not taken counts as free                    |
/// | c.would_exceed_limit(bytes) | bool        | whether `bytes` more exceed a limit of the provider,      |
/// |                             |             | which several allocators may share                        |
/// | d.reclaim()                 | bool        | asks others to release idle memory, and returns whether   |
/// |                             |             | they did. An allocator calls it if the device refused and |
/// |                             |             | its own cache is empty. A locked allocator calls only a   |
/// |                             |             | thread-safe provider                                      |
/// | d.has_stream(s)             | bool        | whether a stream exists. Without it, every stream exists  |
///
/// Any provider may declare these constants, as `static constexpr bool`:
///
/// | constant           | default | meaning                                                                |
/// |--------------------|---------|------------------------------------------------------------------------|
/// | is_thread_safe     | false   | Several threads may call it at once. If false, locked allocators make  |
/// |                    |         | one call at a time. Must be true if several locked allocators share    |
/// |                    |         | the provider through provider_ref                                      |
/// | is_host_visible    | false   | The host can read and write the memory at its addresses. Containers    |
/// |                    |         | need it                                                                |
/// | release_waits      | true    | release() waits for running work that uses the segment. cudaFree       |
/// |                    |         | waits; aclrtFree does not. If false, and the provider has events, the  |
/// |                    |         | allocator waits for the block's own stream before release(). Recorded  |
/// |                    |         | streams were waited for before                                         |
/// | completion_may_lag | false   | query() and is_done() may report finished work as unfinished, because  |
/// |                    |         | a query to the device can fail. Memory then only stays pending longer  |
/// | copies_page_locked | false   | Copies are asynchronous only from and to page-locked host memory.      |
/// |                    |         | Callers then copy through buffers that register_memory() locked        |
///
/// Rules for all of them:
///
///   Units:   sizes are in bytes
///   Errors:  no member throws; a member that fails returns false or null and changes nothing
///   Threads: one call at a time, unless the provider declares is_thread_safe
///
/// The smallest example is examples/03_write_a_provider.cpp. host_pinned [provider/host_pinned.hpp] provides
/// host memory. simulated_device [provider/simulated_device.hpp] provides addresses without memory. gpu
/// [examples/cuda_driver/device.hpp] uses CUDA's driver.
///
/// Allocators never misuse a provider, but a provider must still refuse misuse. Each concept lists the misuse
/// to refuse. law::provider [law/provider.hpp] tries it, and law::sharing tries the misuse of a
/// sharing_provider. The quoted text is the message of the law.
namespace tessera {

/// Acquires and releases segments of device memory.
///
/// | expression          | returns     | effect                                                            |
/// |---------------------|-------------|-------------------------------------------------------------------|
/// | d.acquire(bytes)    | void*       | a new segment that overlaps no other; null if the device refuses  |
/// | d.release(p, bytes) | bool        | takes a whole segment back; false: the caller still has it        |
/// | c.capacity()        | std::size_t | bytes of the device in all; constant                              |
/// | c.granularity()     | std::size_t | sizes and addresses of segments are multiples of it; a power of   |
/// |                     |             | two, at least min_alignment; constant                             |
///
/// What it must refuse: "acquire refuses more than the capacity"
template <typename D>
concept device_provider = std::movable<D> && requires(D& d, const D& c, void* p, std::size_t bytes) {
  { d.acquire(bytes) } noexcept -> std::same_as<void*>;
  { d.release(p, bytes) } noexcept -> std::same_as<bool>;
  { c.capacity() } noexcept -> std::same_as<std::size_t>;
  { c.granularity() } noexcept -> std::same_as<std::size_t>;
};

/// Records events, which report the progress of a stream's work.
///
/// | expression     | returns | effect                                                               |
/// |----------------|---------|----------------------------------------------------------------------|
/// | D::event       |         | an event; empty when default-constructed; copies name the same event |
/// | d.record(s, e) | bool    | sets `e` to an event after all work submitted to `s` so far          |
/// | d.query(e)     | bool    | whether the work before the event is done; stays true; never waits   |
/// | d.wait(e)      | bool    | waits until that work is done; false if waiting failed            |
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
/// A position is a number that grows with the work submitted to a stream, waits included. Position 0 is before
/// all work.
///
/// | expression                  | returns       | effect                                                  |
/// |-----------------------------|---------------|---------------------------------------------------------|
/// | d.position(s)               | std::uint64_t | how much work has been submitted to `s`                 |
/// | d.is_done(s, n)             | bool          | whether the work of `s` up to position `n` is done;     |
/// |                             |               | never waits                                             |
/// | d.is_ordered_after(s, t, n) | bool          | whether all further work of `s` runs after work `n` of  |
/// |                             |               | `t` because of submitted waits, directly or through     |
/// |                             |               | other streams                                           |
/// | d.make_wait(s, t, n)        | bool          | submits such a wait to `s`; does not wait itself        |
///
/// A wait is always for work submitted earlier, so streams never wait in a cycle. The work of a stream that
/// no longer exists counts as done. stream_order [provider/stream_order.hpp] implements is_ordered_after for
/// devices without it.
template <typename D>
concept ordering_provider = event_provider<D> && requires(D& d, stream_id s, std::uint64_t position) {
  { d.position(s) } noexcept -> std::same_as<std::uint64_t>;
  { d.is_done(s, position) } noexcept -> std::same_as<bool>;
  { d.is_ordered_after(s, s, position) } noexcept -> std::same_as<bool>;
  { d.make_wait(s, s, position) } noexcept -> std::same_as<bool>;
};

/// Serves segments in pages of a kind: d.acquire(bytes, kind). It returns null if no such pages are left.
/// Portable callers pass a multiple of kind.granularity().
template <typename D>
concept paged_provider = device_provider<D> && requires(D& d, std::size_t bytes, page_kind kind) {
  { d.acquire(bytes, kind) } noexcept -> std::same_as<void*>;
};

/// Maps physical memory into reserved ranges of addresses.
///
/// A map() maps all of the physical memory. Physical memory is mapped at one address at a time.
///
/// | expression                  | returns     | effect                                                     |
/// |-----------------------------|-------------|------------------------------------------------------------|
/// | D::physical                 |             | a handle of physical memory; empty when default-           |
/// |                             |             | constructed                                                |
/// | D::map_grants_access        | bool        | whether mapped memory can be used without grant            |
/// | D::unmap_wants_size         | bool        | whether unmap checks `bytes`; portable callers pass the    |
/// |                             |             | mapped size                                                |
/// | c.page_size(kind)           | std::size_t | sizes and addresses of mappings of `kind` are multiples of |
/// |                             |             | it; a power of two                                         |
/// | d.reserve(bytes, alignment) | void*       | a range of addresses; `alignment` is a power of two        |
/// | d.unreserve(p, bytes)       | bool        | returns a whole range; nothing may be mapped in it         |
/// | d.create(bytes, kind, m)    | bool        | sets `m` to new physical memory                            |
/// | d.destroy(m)                | bool        | drops the handle; memory is freed once it is mapped        |
/// |                             |             | nowhere and no importer holds it                           |
/// | d.map(p, bytes, m)          | bool        | maps all of `m` at `p`                                     |
/// | d.grant(p, bytes)           | bool        | lets the device access the mapping at `p`                  |
/// | d.unmap(p, bytes)           | bool        | removes the mapping at `p`; no running work may use        |
/// |                             |             | it                                                         |
/// | d.synchronize(s)            | bool        | waits until all work submitted to `s` is done; at once for |
/// |                             |             | a stream that does not exist                               |
///
/// Every device accepts this order of calls: reserve, create, map, grant, use, synchronize, unmap, destroy,
/// unreserve.
///
/// What it must refuse:
///   "create refuses 0 bytes and parts of pages"
///   "create refuses more than the capacity"
///   "destroy and map refuse an empty handle"
///   "map refuses addresses that are not reserved"
///   "map refuses addresses with mapped memory"
///   "map refuses an address inside a page"
///   "map refuses more bytes than the memory has"
///   "grant refuses addresses without mapped memory"
///   "unmap refuses addresses without mapped memory"
///   "unmap refuses a part of a mapping", if D::unmap_wants_size is true
///   "unmap removes a mapping, and refuses to remove it twice"
///   "unreserve refuses a range with mapped memory"
///
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

/// The processes that may import exported memory.
enum class importers : unsigned char {
  listed,  ///< the processes listed with allow()
  any
};

/// Shares physical memory between processes. Each process has its own handle, and destroys it.
///
/// | expression                 | returns      | effect                                                     |
/// |----------------------------|--------------|------------------------------------------------------------|
/// | D::shareable               |              | a name of exported memory, valid in all processes;         |
/// |                            |              | trivially copyable                                         |
/// | c.process()                | std::int32_t | the number by which other processes list this process; may |
/// |                            |              | be valid only inside one PID namespace                     |
/// | d.export_memory(m, who, s) | bool         | sets `s` to a name of `m`, which was created here; once    |
/// |                            |              | for each `m`                                               |
/// | d.allow(s, process)        | bool         | lists an importer of memory that was exported here to      |
/// |                            |              | listed processes                                           |
/// | d.import_memory(s, m)      | bool         | sets `m` to memory that another process exported and still |
/// |                            |              | holds; may wait for that process, for a bounded time       |
///
/// What it must refuse:
///   "export_memory refuses exported memory"
///   "export_memory refuses imported memory"
///   "allow refuses every process except the exporter"
///   "allow refuses memory that any process may import"
///   "import_memory refuses a process that is not listed"
///   "import_memory refuses memory of the same process"
///   "import_memory refuses memory that the exporter destroyed"
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

/// Registers the user's host memory. Transfers then use it like the provider's memory.
///
/// | expression                  | returns | effect                                                         |
/// |-----------------------------|---------|----------------------------------------------------------------|
/// | d.register_memory(p, bytes) | bool    | false if `p` is no multiple of the host's page, or a part   |
/// |                             |         | is registered or the provider's already                        |
/// | d.unregister_memory(p)      | bool    | false if no registered memory begins at `p`                 |
///
/// What it must refuse:
///   "register_memory refuses registered memory"
///   "register_memory refuses an address inside a page"
///   "unregister_memory refuses an address inside registered memory"
///   "unregister_memory refuses memory that is not registered"
template <typename D>
concept registering_provider = device_provider<D> && requires(D& d, void* p, std::size_t bytes) {
  { d.register_memory(p, bytes) } noexcept -> std::same_as<bool>;
  { d.unregister_memory(p) } noexcept -> std::same_as<bool>;
};

/// Copies between the device's memory and host memory, asynchronously on a stream.
///
/// | expression                         | returns | effect                                                  |
/// |------------------------------------|---------|---------------------------------------------------------|
/// | d.copy_to_host(to, from, bytes, s) | bool    | submits to `s` a copy from the device's memory `from`   |
/// | d.copy_to_device(to, from, bytes, s) | bool  | submits to `s` a copy from host memory `from`           |
///
/// The memory must stay until the copy is done. Callers learn that from an event, or from synchronize(s).
///
/// What it must refuse:
///   "copies refuse a stream that does not exist", if the provider knows its streams
///   "copies refuse device addresses without memory"
template <typename D>
concept copying_provider =
    event_provider<D> && requires(D& d, void* to, const void* from, std::size_t bytes, stream_id s) {
      { d.copy_to_host(to, from, bytes, s) } noexcept -> std::same_as<bool>;
      { d.copy_to_device(to, from, bytes, s) } noexcept -> std::same_as<bool>;
    };

namespace detail {

template <typename D>
concept limited_provider = device_provider<D> && requires(const D& d, std::size_t bytes) {
  { d.would_exceed_limit(bytes) } noexcept -> std::same_as<bool>;
};
template <typename D>
concept reclaiming_provider = device_provider<D> && requires(D& d) {
  { d.reclaim() } noexcept -> std::same_as<bool>;
};
template <typename D>
concept measured_provider = device_provider<D> && requires(const D& d) {
  { d.available() } noexcept -> std::same_as<std::size_t>;
};
template <typename D>
concept stream_listing_provider = device_provider<D> && requires(D& d, stream_id s) {
  { d.has_stream(s) } noexcept -> std::same_as<bool>;
};

// The constants that a provider declares, or their defaults.
template <typename D>
inline constexpr bool is_thread_safe = false;
template <typename D>
  requires requires { D::is_thread_safe; }
inline constexpr bool is_thread_safe<D> = D::is_thread_safe;

template <typename D>
inline constexpr bool is_host_visible = false;
template <typename D>
  requires requires { D::is_host_visible; }
inline constexpr bool is_host_visible<D> = D::is_host_visible;

template <typename D>
inline constexpr bool release_waits = true;
template <typename D>
  requires requires { D::release_waits; }
inline constexpr bool release_waits<D> = D::release_waits;

template <typename D>
inline constexpr bool completion_may_lag = false;
template <typename D>
  requires requires { D::completion_may_lag; }
inline constexpr bool completion_may_lag<D> = D::completion_may_lag;

template <typename D>
inline constexpr bool copies_page_locked = false;
template <typename D>
  requires requires { D::copies_page_locked; }
inline constexpr bool copies_page_locked<D> = D::copies_page_locked;

/// Whether a stream exists; true if the device cannot tell.
template <device_provider D>
[[nodiscard]] bool has_stream(D& device, stream_id stream) noexcept {
  if constexpr (stream_listing_provider<D>) return device.has_stream(stream);
  return true;
}

/// Waits for an event recorded on a stream. Returns whether the wait succeeded; nothing if no event was
/// recorded.
template <event_provider D>
std::optional<bool> wait_for_event(D& device, stream_id stream) noexcept {
  typename D::event event{};
  if (!device.record(stream, event)) return std::nullopt;
  const bool is_done = device.wait(event);
  device.discard(event);
  return is_done;
}

/// Waits until the work submitted to a stream is done. Returns false if this cannot be known.
template <device_provider D>
bool finish_work(D& device, stream_id stream) noexcept {
  if constexpr (event_provider<D>) {
    if (const std::optional<bool> is_done = wait_for_event(device, stream)) return *is_done;
  }
  // No event can be recorded on a stream that has ended, and its work counts as done.
  if (!has_stream(device, stream)) return true;
  if constexpr (requires { device.synchronize(stream); }) return device.synchronize(stream);
  return false;
}

/// Calls finish_work if release() does not wait itself.
template <device_provider D>
bool wait_before_release(D& device, stream_id stream) noexcept {
  if constexpr (!release_waits<D> && event_provider<D>) return finish_work(device, stream);
  return true;
}

/// Bytes that the device can still give to an allocator that has taken `taken` bytes.
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
