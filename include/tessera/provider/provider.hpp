// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include <tessera/core/types.hpp>

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
/// | c.explain_limit(bytes)      | refusal     | how `bytes` more exceed that limit; empty if they do not  |
/// | d.reclaim()                 | bool        | asks others to release idle memory, and returns whether   |
/// |                             |             | they did. An allocator calls it if the device refused and |
/// |                             |             | its own cache is empty. A locked allocator calls only a   |
/// |                             |             | thread-safe provider                                      |
/// | d.has_stream(s)             | bool        | whether a stream exists. Without it, every stream exists  |
/// | d.take_refusal()            | refusal     | the reason of the calling thread's latest failed call for |
/// |                             |             | memory since it last called this; empty if there is none. |
/// |                             |             | Calls for memory are acquire, reserve, create, map,       |
/// |                             |             | grant, export_memory, allow, import_memory and            |
/// |                             |             | register_memory. An allocator takes one before it asks    |
/// |                             |             | for memory, and one if a request fails. A thread-safe     |
/// |                             |             | provider keeps them in latest_refusals                    |
/// | c.exported_name(m, s)       | bool        | sets `s` to the name under which `m` was exported; false  |
/// |                             |             | if it was not                                             |
/// | c.chunk_abilities()         | chunk_traits| what memory of create() can do; it loses an ability if    |
/// |                             |             | the device refuses it at a create                         |
/// | c.shares_addresses_with(d)  | bool        | whether it maps and copies memory of another provider of  |
/// |                             |             | its type, as memory_domains needs it                      |
/// | c.live_events()             | std::size_t | events that were recorded and not discarded               |
/// | c.keeps_released(p)         | bool        | whether the memory at `p`, once released, stays with an   |
/// |                             |             | adaptor that may give it again, as preallocating's does   |
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
/// |                    |         | streams need no second wait: the block became free only after their    |
/// |                    |         | events. Without events the allocator cannot wait, so the program may   |
/// |                    |         | free memory only after the work on it has ended                        |
/// | completion_may_lag | false   | query() and is_done() may report finished work as unfinished, because  |
/// |                    |         | a query to the device can fail. Memory then only stays pending longer  |
/// | copies_page_locked | false   | Copies are asynchronous only from and to page-locked host memory.      |
/// |                    |         | Callers then copy through buffers that register_memory() locked        |
/// | has_contents       | true    | The memory keeps what is copied to it. False for a device that is      |
/// |                    |         | simulated: its copies move no bytes                                    |
/// | trusts_handles     | false   | has_stream() may crash for a stream that never existed, because a      |
/// |                    |         | stream is a pointer. Laws then ask only for streams that existed       |
/// | gives_in_parts     | false   | Its free memory is in several parts, so a request may fail although    |
/// |                    |         | that many bytes are free. would_fit refuses such a provider            |
///
/// Conventions:
///
///   Units:   sizes are in bytes
///   Errors:  no member throws; a member that fails returns false or null and changes nothing
///   Threads: one call at a time, unless the provider declares is_thread_safe
///
/// The smallest example is examples/03_write_a_provider.cpp. host_pinned [provider/host_pinned.hpp] provides
/// host memory. simulated_device [provider/simulated_device.hpp] provides addresses without memory.
/// cuda_device [provider/cuda_driver.hpp] calls CUDA's driver.
///
/// What callers guarantee; a provider need not check it, except where a rule below says that it refuses:
///
///   Sizes:      `bytes` of acquire() are a multiple of the granularity, those of reserve() and create() a
///               multiple of the page size, and none is 0. release(), unreserve() and unmap() get the `bytes` of
///               the call that gave the memory
///   Events:     query(), wait() and discard() get recorded events. After a discard, neither the event nor a copy of it
///               is used again, except that record() may fill it anew. An empty event is only recorded
///   Mappings:   grant() gets exactly one mapping, after map(). Allocators leave it out if map_grants_access is
///               true; it then succeeds, too
///   Destructor: all memory was given back, and all events were discarded, unless the provider refused to take
///               them or the program leaks. Work on the memory has ended, unless release() waits for it
///
/// law::provider [law/provider_laws.hpp] tests a provider. checked_provider [debug/checked_provider.hpp] checks the
/// calls of a program. Each concept lists the rules; the quoted text is in the messages of both.
///
///   Required:    all rules without a mark, also those that refuse misuse, which the law tries
///   On request:  recommended. The law tries such misuse only if its caller asks for it, because a provider
///                without a table of its memory may crash. Allocators never misuse a provider like this
///   By checked_provider: checked only there, because a law cannot try it on every provider
///
/// Rules with a text, for all of them:
///   "each capability has all its functions, which are noexcept"
///   "several threads may call the provider at once", if it declares is_thread_safe
///   "the provider holds what it held before", if it has held()
///   "a call that fails changes nothing", by checked_provider
/// For those that have the functions above:
///   "available is at most the capacity"
///   "available falls when memory is acquired"
///   "available falls by what is acquired"
///   "available rises when memory is released"
///   "a reason is taken once"
///   "a call that succeeds gives no reason"
///   "acquire refuses what would exceed the limit"
///   "what exceeds the limit does so with more bytes, too"
///   "reclaim returns false once nothing is idle"
///   "reclaim keeps memory that is in use"
///   "the default stream exists"
///   "record refuses a stream that does not exist"
///   "make_wait refuses a stream that does not exist"
///   "synchronize succeeds for a stream that does not exist"
///   "the work of a stream that does not exist is done"
///   "a stream that ended does not exist"
/// For those that declare is_host_visible:
///   "the host can read a segment from end to end"
///   "a host write changes one segment, which keeps it"
///   "the host can read a mapping from end to end"
///   "a host write changes one mapping, which keeps it"

namespace tessera::inline v0_1::provider {

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
/// Rules:
///   "the granularity is a power of two, at least min_alignment"
///   "the capacity is at least 8 times the granularity"
///   "capacity and granularity are constant"
///   "three quarters of the memory can be acquired"
///   "acquire succeeds below the capacity"
///   "acquire refuses more than the capacity"
///   "a refused acquire changes nothing"
///   "segments start at a multiple of the granularity"
///   "segments end inside the address space"
///   "segments do not overlap"
///   "release accepts an acquired segment"
///   "released memory can be acquired again"
///   "acquire refuses 0 bytes", on request
///   "release refuses an address inside a segment", on request
///   "release refuses a segment that was released", on request
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
/// | d.wait(e)      | bool    | waits until the work before the event is done; false if that failed  |
/// | d.discard(e)   |         | ends a recorded event                                                |
///
/// Rules:
///   "record succeeds on the default stream"
///   "record succeeds again on the same stream"
///   "record succeeds on a busy stream"
///   "record succeeds after many discarded events"
///   "many events can be live at a time"
///   "no event is ready before its work is done"
///   "an event is ready after a wait for it"
///   "a ready event stays ready"
///   "copies of an event are ready at the same time"
///   "an event is ready if a later event of its stream is ready"
///   "query and is_done do not wait"
///   "wait returns after the work is done"
///   "discard changes no other event"
///   "discard ends an event", if the provider has live_events()
///   "the work of a stream that ended is done"
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
/// | d.make_wait(s, t, n)        | bool          | submits to `s` a wait for work `n` of `t`; does not     |
/// |                             |               | wait itself                                             |
///
/// A wait is always for work submitted earlier, so streams never wait in a cycle. The work of a stream that
/// no longer exists counts as done. stream_order [provider/stream_order.hpp] implements is_ordered_after for
/// devices without it.
///
/// Rules:
///   "record and wait succeed on a stream"
///   "position 0 is before all work"
///   "a position grows with submitted work"
///   "positions never fall"
///   "no position is done before its work is done"
///   "work is done after a wait for it"
///   "work is done if a finished stream waited for it"
///   "a stream is ordered after its own work"
///   "a stream is ordered after the work that it waits for"
///   "no stream is ordered after work that was not submitted"
///   "no stream runs ahead of the work that it waits for"
///   "make_wait succeeds"
///   "a wait counts as work"
///   "streams may wait for each other's earlier work"
template <typename D>
concept ordering_provider = event_provider<D> && requires(D& d, stream_id s, std::uint64_t position) {
  { d.position(s) } noexcept -> std::same_as<std::uint64_t>;
  { d.is_done(s, position) } noexcept -> std::same_as<bool>;
  { d.is_ordered_after(s, s, position) } noexcept -> std::same_as<bool>;
  { d.make_wait(s, s, position) } noexcept -> std::same_as<bool>;
};

/// Serves segments in pages of a kind: d.acquire(bytes, kind). It returns null if no such pages are left.
/// Allocators always pass a multiple of kind.granularity(). Segments start at a multiple of the granularity of
/// the device. Every device has normal pages; it may lack each other kind.
///
/// Rules:
///   "normal pages can be acquired and released"
///   "other pages are unavailable, or can be acquired and released"
///   "acquire refuses more than the capacity", in pages of each kind, too
template <typename D>
concept paged_provider = device_provider<D> && requires(D& d, std::size_t bytes, page_kind kind) {
  { d.acquire(bytes, kind) } noexcept -> std::same_as<void*>;
};

/// Maps physical memory into reserved ranges of addresses.
///
/// A map() maps all of the physical memory. Callers map it at one address at a time; a provider need not refuse
/// a second one.
///
/// | expression                  | returns     | effect                                                     |
/// |-----------------------------|-------------|------------------------------------------------------------|
/// | D::physical                 |             | a handle of physical memory; empty when default-           |
/// |                             |             | constructed. An adaptor that hides the capability declares |
/// |                             |             | a type without members                                     |
/// | D::map_grants_access        | bool        | whether mapped memory can be used without grant            |
/// | D::unmap_wants_size         | bool        | whether unmap checks `bytes`. Allocators always pass the   |
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
/// Rules:
///   "the page size is a power of two and a multiple of the kind's granularity"
///   "the page size is constant"
///   "reserve succeeds"
///   "a range begins at a multiple of the alignment"
///   "ranges overlap no other range and no segment"
///   "a reserved range takes no memory"
///   "reserve refuses more addresses than there are"
///   "unreserve accepts a reserved range"
///   "unreserved addresses can be reserved again"
///   "unreserve refuses addresses that are not reserved"
///   "unreserve refuses a range with mapped memory"
///   "create succeeds for normal pages below the capacity"
///   "three quarters of the memory can be created"
///   "create refuses 0 bytes and parts of pages"
///   "create refuses more than the capacity"
///   "a refused create leaves the handle as it was"
///   "the handle of created or imported memory is not empty"
///   "created or imported memory has a handle of its own"
///   "destroy accepts created memory"
///   "destroy and map refuse an empty handle"
///   "destroy and map refuse a handle that names no memory", by checked_provider
///   "destroy refuses memory that was destroyed", on request
///   "destroyed memory can be created again"
///   "map succeeds at free addresses of a range"
///   "map refuses addresses that are not reserved"
///   "map refuses addresses with mapped memory"
///   "map refuses an address inside a page"
///   "map refuses another size than the memory has"
///   "a refused map changes nothing"
///   "grant accepts a mapping"
///   "grant refuses addresses without mapped memory"
///   "unmap refuses addresses without mapped memory"
///   "unmap refuses a part of a mapping", if D::unmap_wants_size is true
///   "unmap removes a mapping, and refuses to remove it twice"
///   "unmapped memory can be mapped elsewhere"
///   "destroyed memory stays mapped until unmap"
///   "memory keeps its contents when it is mapped elsewhere"
///   "destroyed memory keeps its contents until unmap"
///   "synchronize returns after the work is done"
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

}  // namespace tessera::inline v0_1::provider

namespace tessera::inline v0_1::detail {

template <typename D>
concept limited_provider = provider::device_provider<D> && requires(const D& d, std::size_t bytes) {
  { d.would_exceed_limit(bytes) } noexcept -> std::same_as<bool>;
};
template <typename D>
concept reclaiming_provider = provider::device_provider<D> && requires(D& d) {
  { d.reclaim() } noexcept -> std::same_as<bool>;
};
template <typename D>
concept measured_provider = provider::device_provider<D> && requires(const D& d) {
  { d.available() } noexcept -> std::same_as<std::size_t>;
};
template <typename D>
concept explaining_provider = provider::device_provider<D> && requires(D& d) {
  { d.take_refusal() } noexcept -> std::same_as<refusal>;
};
template <typename D>
concept limit_explaining_provider = limited_provider<D> && requires(const D& d, std::size_t bytes) {
  { d.explain_limit(bytes) } noexcept -> std::same_as<refusal>;
};
template <typename D>
concept stream_listing_provider = provider::device_provider<D> && requires(D& d, stream_id s) {
  { d.has_stream(s) } noexcept -> std::same_as<bool>;
};

// The constants that a provider declares, or their defaults.
template <typename D>
inline constexpr bool release_waits = !requires { requires !bool(D::release_waits); };

/// Whether a stream exists; true if the device cannot tell.
template <provider::device_provider D>
[[nodiscard]] bool has_stream(D& device, stream_id stream) noexcept {
  if constexpr (stream_listing_provider<D>) return device.has_stream(stream);
  return true;
}

/// Whether the work submitted to a stream is done; true if the device has no events. Never waits.
template <provider::device_provider D>
bool is_work_done(D& device, stream_id stream) noexcept {
  if constexpr (provider::event_provider<D>) {
    typename D::event event{};
    if (!device.record(stream, event)) return !has_stream(device, stream);
    const bool is_done = device.query(event);
    device.discard(event);
    return is_done;
  }
  return true;
}

/// Waits until the work submitted to a stream is done. Returns false if this cannot be known.
template <provider::device_provider D>
bool finish_work(D& device, stream_id stream) noexcept {
  if constexpr (provider::event_provider<D>) {
    if (typename D::event event{}; device.record(stream, event)) {
      const bool is_done = device.wait(event);
      device.discard(event);
      return is_done;
    }
  }
  // No event can be recorded on a stream that has ended, and its work counts as done.
  if (!has_stream(device, stream)) return true;
  if constexpr (requires { device.synchronize(stream); }) return device.synchronize(stream);
  return false;
}

/// Waits for all work of a stream, by the device's own call if it has one. Returns false if the device failed.
template <provider::device_provider D>
bool wait_for_stream(D& device, stream_id stream) noexcept {
  if constexpr (requires { device.synchronize(stream); }) return device.synchronize(stream);
  return finish_work(device, stream);
}

/// Whether a caller must wait for the work that uses a segment before release().
template <typename D>
inline constexpr bool must_wait_before_release = provider::event_provider<D> && !release_waits<D>;

/// Calls finish_work if release() does not wait itself.
template <provider::device_provider D>
bool wait_before_release(D& device, stream_id stream) noexcept {
  if constexpr (must_wait_before_release<D>) return finish_work(device, stream);
  return true;
}

/// Takes the reason of a refusal; an empty one if the provider gives no reasons.
template <typename D>
refusal take_refusal(D& device) noexcept {
  if constexpr (explaining_provider<D>) return device.take_refusal();
  return {};
}
/// How `bytes` more exceed a limit of the provider; empty if they do not, or if it does not say.
template <typename D>
[[nodiscard]] refusal explain_limit(const D& device, std::size_t bytes) noexcept {
  if constexpr (limit_explaining_provider<D>) return device.explain_limit(bytes);
  return {};
}

/// Bytes that the device can still give to an allocator that has taken `taken` bytes.
template <provider::device_provider D>
[[nodiscard]] std::size_t left_on(const D& device, std::size_t taken) noexcept {
  if constexpr (measured_provider<D>) {
    return device.available();
  } else {
    const std::size_t capacity = device.capacity();
    return capacity > taken ? capacity - taken : 0;
  }
}

}  // namespace tessera::inline v0_1::detail
