// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>

/// What a device must offer. Each refinement is a concept of its own, so a composition asks only for what it uses.
///
/// Complete providers to begin from: host_pinned [provider/host_pinned.hpp] over the memory of this machine,
/// simulated_device [provider/simulated_device.hpp], and over CUDA's driver gpu [examples/cuda_driver/device.hpp]. The
/// smallest is in examples/03_write_a_provider.cpp.
///
/// Allocators misuse no provider. What a device must refuse all the same is listed with each concept; the laws try each
/// and no other misuse, and their verdict is in these words.
namespace tessera {

/// Gives and takes back memory in segments.
///
///   d.acquire(bytes)       `bytes` of device memory, or null where the device refuses; overlaps nothing given
///   d.release(p, bytes)    takes a whole segment back; false where it failed: the caller still holds it
///   d.capacity()           bytes the device has in all; constant
///   d.granularity()        power of two, at least min_alignment; segments are a multiple of it long and start at a
///                          multiple of it; constant
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

/// Tells how far a stream's work has come.
///
///   D::event          a mark; empty when made, may be copied, and copies agree
///   d.record(s, e)    sets `e` to a mark behind all work submitted to `s` so far; false where it failed
///   d.query(e)        whether the work before the mark is done, and it stays so; never waits
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

/// Knows the order in which the work of streams comes, and puts one stream behind another.
///
/// A position counts the work that a stream was given, waits included, so that the position 0 lies before all of it.
///
///   d.position(s)            how much work has been submitted to `s` so far
///   d.is_done(s, at)         whether the work of `s` up to a position is done; never waits
///   d.is_behind(s, of, at)   whether all further work of `s` comes behind that of `of` up to a position, because `s`
///                            was told to wait for it, or for what waits for it
///   d.let_wait(s, of, at)    tells it to, without waiting itself; false where it failed
///
/// What is waited for has been submitted before, so no streams wait for each other. A stream that is not there any more
/// has done its work. A device that does not answer is_behind gets the answers from a stream_order
/// [provider/stream_order.hpp], which notes its waits. Checked by law::provider [tessera/law/provider.hpp].
template <typename D>
concept ordering_provider = event_provider<D> && requires(D& d, stream_id s, std::uint64_t at) {
  { d.position(s) } noexcept -> std::same_as<std::uint64_t>;
  { d.is_done(s, at) } noexcept -> std::same_as<bool>;
  { d.is_behind(s, s, at) } noexcept -> std::same_as<bool>;
  { d.let_wait(s, s, at) } noexcept -> std::same_as<bool>;
};

/// Knows which streams there are: d.has_stream(s) says whether one is there now. Where a provider says nothing, all are.
template <typename D>
concept stream_listing_provider = device_provider<D> && requires(D& d, stream_id s) {
  { d.has_stream(s) } noexcept -> std::same_as<bool>;
};
template <device_provider D>
[[nodiscard]] bool has_stream(D& device, stream_id stream) noexcept {
  if constexpr (stream_listing_provider<D>) return device.has_stream(stream);
  return true;
}

/// Whether calls of a provider may come from several threads at once: what it says as a
/// `static constexpr bool is_thread_safe`, and false where it says nothing. The adaptors for threads then let in one call
/// at a time; where several allocators share it by provider_ref, it must be true.
template <typename D>
inline constexpr bool is_thread_safe = false;
template <typename D>
  requires std::convertible_to<decltype(D::is_thread_safe), bool>
inline constexpr bool is_thread_safe<D> = D::is_thread_safe;

/// Whether the host reads and writes the memory that a provider gives, by the addresses it gives, as what keeps objects there
/// needs: what it says as a `static constexpr bool is_host_visible`, and false where it says nothing.
template <typename D>
inline constexpr bool is_host_visible = false;
template <typename D>
  requires std::convertible_to<decltype(D::is_host_visible), bool>
inline constexpr bool is_host_visible<D> = D::is_host_visible;

/// Whether release() may be called while work of the stream that a segment was for is under way, as with cudaFree, which
/// waits for it, and not with aclrtFree: what a provider says as a `static constexpr bool release_waits`, and true where it
/// says nothing; so memory that work uses only where its stream is recorded need not say so.
template <typename D>
inline constexpr bool release_waits = true;
template <typename D>
  requires std::convertible_to<decltype(D::release_waits), bool>
inline constexpr bool release_waits<D> = D::release_waits;

/// Whether query() and is_done() may say of work that is done that it is not, as where asking a device can fail: what a
/// provider says as a `static constexpr bool may_see_late`, and false where it says nothing. Memory only waits longer then,
/// but who checks a provider draws no conclusions.
template <typename D>
inline constexpr bool may_see_late = false;
template <typename D>
  requires std::convertible_to<decltype(D::may_see_late), bool>
inline constexpr bool may_see_late<D> = D::may_see_late;

/// Returns once the work that a stream was given so far is done; false where this cannot be known.
template <device_provider D>
bool finish_work(D& device, stream_id stream) noexcept {
  if constexpr (event_provider<D>) {
    typename D::event mark;
    if (device.record(stream, mark)) {
      const bool done = device.wait(mark);
      device.discard(mark);
      return done;
    }
  }
  // Of a stream that has ended there is no mark; synchronize knows that it has no work.
  if constexpr (requires { device.synchronize(stream); }) return device.synchronize(stream);
  return false;
}

/// The same where release() does not see to that.
template <device_provider D>
bool wait_before_release(D& device, stream_id stream) noexcept {
  if constexpr (!release_waits<D> && event_provider<D>) return finish_work(device, stream);
  return true;
}

/// Knows a limit of its own, as one that several allocators share: d.over_limit(bytes) says whether `bytes` more would
/// pass it, so that a refusal for that is told from one for want of memory.
template <typename D>
concept limited_provider = device_provider<D> && requires(const D& d, std::size_t bytes) {
  { d.over_limit(bytes) } noexcept -> std::same_as<bool>;
};

/// Knows others who cache memory of the device: d.reclaim() has them give back what is idle, and says whether something
/// was. An allocator calls it where the device refused and its own cache is empty, before it asks once more. Behind a mutex
/// it is called only where the provider is thread-safe.
template <typename D>
concept reclaiming_provider = device_provider<D> && requires(D& d) {
  { d.reclaim() } noexcept -> std::same_as<bool>;
};

/// Knows how much it has left: d.available() says how many bytes it could give now, whoever has the others. Where it says
/// nothing, all that its allocator has not taken counts as available.
template <typename D>
concept measured_provider = device_provider<D> && requires(const D& d) {
  { d.available() } noexcept -> std::same_as<std::size_t>;
};

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

/// Gives memory in pages of a kind; null where that kind is not to be had. Portable callers ask for a multiple of
/// kind.step().
template <typename D>
concept paged_provider = device_provider<D> && requires(D& d, std::size_t bytes, page_kind kind) {
  { d.acquire(bytes, kind) } noexcept -> std::same_as<void*>;
};

/// Keeps addresses and physical memory apart: a range of addresses is reserved, physical memory is created, and is mapped
/// whole, in one place at a time, wherever the range is free.
///
///   D::physical            names physical memory; empty when made, may be copied
///   D::map_grants_access   whether what is mapped can be used at once, without grant
///   D::unmap_wants_size    whether unmap looks at `bytes`; portable callers give what was mapped in any case
///   d.step(kind)           power of two; memory of `kind` is a multiple of it long and mapped at a multiple of it
///   d.reserve(bytes, to)   a range of addresses, a multiple of the step long, that begins at a multiple of `to`, a power
///                          of two; null where refused
///   d.unreserve(p, bytes)  gives a whole range back, in which nothing is mapped
///   d.create(bytes, k, m)  sets `m` to `bytes` of physical memory of kind `k`
///   d.destroy(m)           lets go of it; it goes once it is mapped nowhere and no process that imported it holds it
///   d.map(p, bytes, m)     puts all `bytes` of `m` at `p`, where nothing is mapped
///   d.grant(p, bytes)      lets the device use what one map put there
///   d.unmap(p, bytes)      takes away what one map put there; no work that uses it may be under way
///   d.synchronize(s)       returns once all work submitted to `s` so far is done; a stream that is not there has none
///
/// All but the first three are false, or null, where they failed, and then nothing has changed. The order that every
/// device takes is: reserve, create, map, grant, use, synchronize, unmap, destroy, unreserve. Memory that is destroyed
/// stays until it is unmapped.
///
/// What it must refuse:
///   what names no memory is refused: by destroy and map, of an empty D::physical
///   memory is a multiple of the step long, and not empty
///   create refuses what goes beyond the capacity
///   map refuses addresses that are not reserved
///   map refuses addresses at which something is mapped
///   memory is mapped at a multiple of the step
///   no more is mapped than there is of the memory
///   grant refuses addresses at which nothing is mapped
///   unmap refuses addresses at which nothing is mapped
///   unmap refuses a part of what one map put there: where D::unmap_wants_size
///   unmap takes away what one map put there, once
///   a range goes back only when nothing is mapped in it
///
/// Checked by law::provider [tessera/law/provider.hpp].
///   Source:  what CUDA's cuMem* and ACL's aclrt*Mem* functions have in common
template <typename D>
concept virtual_memory_provider =
    device_provider<D> && std::semiregular<typename D::physical> &&
    requires(D& d, const D& c, void* p, std::size_t bytes, typename D::physical& m,
             const typename D::physical& made, page_kind kind, stream_id s) {
      { D::map_grants_access } -> std::convertible_to<bool>;
      { D::unmap_wants_size } -> std::convertible_to<bool>;
      { c.step(kind) } noexcept -> std::same_as<std::size_t>;
      { d.reserve(bytes, bytes) } noexcept -> std::same_as<void*>;
      { d.unreserve(p, bytes) } noexcept -> std::same_as<bool>;
      { d.create(bytes, kind, m) } noexcept -> std::same_as<bool>;
      { d.destroy(made) } noexcept -> std::same_as<bool>;
      { d.map(p, bytes, made) } noexcept -> std::same_as<bool>;
      { d.grant(p, bytes) } noexcept -> std::same_as<bool>;
      { d.unmap(p, bytes) } noexcept -> std::same_as<bool>;
      { d.synchronize(s) } noexcept -> std::same_as<bool>;
    };

/// Who may import what another process exported.
enum class importers : unsigned char {
  listed,  ///< processes that were allowed one by one
  any
};

/// Lets processes use the same physical memory. Each has a name of its own for it, and each destroys its own.
///
///   D::shareable             names exported memory to other processes; trivially copyable
///   c.process()              the number by which others must list this process; may hold within one namespace only
///   d.export_memory(m, w, s) sets `s` to what `w` may import; once for each `m`, of memory that was created here
///   d.allow(s, process)      lists a process as an importer of what was exported here to listed ones
///   d.import_memory(s, m)    sets `m` to memory that another process exported and has not destroyed since; may wait for
///                            that process, but not for ever
///
/// All but the first two are false where they failed, and then nothing has changed.
///
/// What it must refuse:
///   memory is exported once
///   imported memory is not exported
///   who is not listed cannot import
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
             typename D::shareable& s, const typename D::shareable& given, importers who,
             std::int32_t process) {
      { c.process() } noexcept -> std::same_as<std::int32_t>;
      { d.export_memory(made, who, s) } noexcept -> std::same_as<bool>;
      { d.allow(given, process) } noexcept -> std::same_as<bool>;
      { d.import_memory(given, m) } noexcept -> std::same_as<bool>;
    };

/// Makes memory that the user brought as good as its own for transfers; the user keeps it until it is unregistered.
///
///   d.register_memory(p, bytes)  false where `p` is no multiple of the page, or a part is registered or its own already
///   d.unregister_memory(p)       false where nothing was registered at `p`
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

}  // namespace tessera
