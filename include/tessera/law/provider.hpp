// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/law/law.hpp>
#include <tessera/provider/provider.hpp>

/// Checks providers at run time. Use these functions for your own providers, in any test framework.
namespace tessera::law {

namespace detail {
/// The default number of bytes that a check holds at once.
inline constexpr std::size_t trial_bytes = 16_MiB;

/// The page kinds that are tried. A device must have the first.
inline constexpr page_kind trial_kinds[] = {
    page_kind::normal,
    page_kind::huge,
    page_kind::huge_1g,
    {.peer_to_peer = true},
    {.speed = page_kind::bandwidth::low},
    {.speed = page_kind::bandwidth::high},
    {.read_only = true},
};

/// A reserved range of addresses; the destructor gives it back.
template <virtual_memory_provider D>
class trial_range {
 public:
  trial_range(D& device, std::size_t bytes, std::size_t to) noexcept
      : device_(device), bytes_(bytes), begin_(device.reserve(bytes, to)) {}
  trial_range(const trial_range&) = delete;
  trial_range& operator=(const trial_range&) = delete;
  ~trial_range() {
    if (begin_ != nullptr) (void)device_.unreserve(begin_, bytes_);
  }

  [[nodiscard]] std::uintptr_t number() const noexcept { return reinterpret_cast<std::uintptr_t>(begin_); }
  [[nodiscard]] void* at(std::size_t offset) const noexcept {
    return reinterpret_cast<void*>(number() + offset);
  }
  [[nodiscard]] bool unreserve() noexcept {
    const bool done = device_.unreserve(begin_, bytes_);
    if (done) begin_ = nullptr;
    return done;
  }
  /// Whether the range shares no address with the `bytes` at `p`.
  [[nodiscard]] bool is_apart(std::uintptr_t p, std::size_t bytes) const noexcept {
    return p >= number() ? p - number() >= bytes_ : number() - p >= bytes;
  }

 private:
  D& device_;
  std::size_t bytes_;
  void* begin_;
};

/// Physical memory that is created or imported; the destructor unmaps and destroys it.
template <virtual_memory_provider D>
class trial_memory {
 public:
  explicit trial_memory(D& device) noexcept : device_(device) {}
  trial_memory(const trial_memory&) = delete;
  trial_memory& operator=(const trial_memory&) = delete;
  ~trial_memory() {
    if (at_ != nullptr) (void)device_.unmap(at_, mapped_);
    if (held_) (void)device_.destroy(name);
  }

  [[nodiscard]] bool create(std::size_t bytes, page_kind kind) noexcept {
    held_ = device_.create(bytes, kind, name);
    return held_;
  }
  template <typename Shareable>
  [[nodiscard]] bool import_from(const Shareable& exported) noexcept {
    held_ = device_.import_memory(exported, name);
    return held_;
  }
  [[nodiscard]] bool destroy() noexcept {
    const bool done = device_.destroy(name);
    if (done) held_ = false;
    return done;
  }
  [[nodiscard]] bool map(void* p, std::size_t bytes) noexcept {
    const bool mapped = device_.map(p, bytes, name);
    if (mapped) {
      at_ = p;
      mapped_ = bytes;
    }
    return mapped;
  }
  [[nodiscard]] bool grant() noexcept { return device_.grant(at_, mapped_); }
  [[nodiscard]] bool unmap() noexcept {
    const bool done = device_.unmap(at_, mapped_);
    if (done) at_ = nullptr;
    return done;
  }

  typename D::physical name{};

 private:
  D& device_;
  bool held_ = false;
  void* at_ = nullptr;
  std::size_t mapped_ = 0;
};

/// Reserves ranges without using them.
template <virtual_memory_provider D>
[[nodiscard]] verdict addresses(D& device, page_kind kind) {
  const std::size_t step = device.page_size(kind), segment = device.granularity();
  trial_range<D> first(device, 4 * step, step), second(device, step, 4 * step);
  if (first.number() == 0 || second.number() == 0) return {"reserve succeeds"};
  if (first.number() % step != 0 || second.number() % (4 * step) != 0)
    return {"a range begins at a multiple of the alignment"};
  void* const p = device.acquire(segment);
  const auto number = reinterpret_cast<std::uintptr_t>(p);
  const bool apart = first.is_apart(second.number(), step) && first.is_apart(number, segment) &&
                     second.is_apart(number, segment);
  if (p != nullptr) (void)device.release(p, segment);
  if (!apart) return {"ranges overlap no other range and no segment"};
  if (!first.unreserve() || !second.unreserve()) return {"unreserve accepts a reserved range"};
  return {};
}

/// Tries impossible sizes, and calls the device has no memory of this kind.
template <virtual_memory_provider D>
[[nodiscard]] verdict impossible_memory(D& device, page_kind kind) {
  const std::size_t step = device.page_size(kind);
  trial_range<D> range(device, step, step);
  trial_memory<D> none(device), page(device);
  if (none.destroy() || none.map(range.at(0), step)) return {"destroy and map refuse an empty handle"};
  for (const std::size_t bytes : {std::size_t{0}, step + step / 2}) {
    const bool possible = bytes != 0 && bytes % step == 0;  // a size is valid if pages have one byte
    if (!possible && none.create(bytes, kind)) return {"create refuses 0 bytes and parts of pages"};
  }
  if (!page.create(step, kind)) return {};
  for (const std::size_t bytes : {device.capacity() / step * step, unlimited / step * step}) {
    if (none.create(bytes, kind)) return {"create refuses more than the capacity"};
  }
  void* const begin = range.at(0);
  if (!range.unreserve()) return {"unreserve accepts a reserved range"};
  if (page.map(begin, step)) return {"map refuses addresses that are not reserved"};
  return {};
}

/// Maps two memories side by side, at valid and invalid addresses, and unmaps them. The device may refuse to
/// create either.
template <virtual_memory_provider D>
[[nodiscard]] verdict mapped_memory(D& device, page_kind kind) {
  const std::size_t step = device.page_size(kind);
  trial_range<D> range(device, 4 * step, step);
  trial_memory<D> one(device), two(device);
  if (!one.create(2 * step, kind) || !two.create(step, kind)) return {};
  if constexpr (std::equality_comparable<typename D::physical>) {
    if (one.name == typename D::physical{} || two.name == typename D::physical{})
      return {"the handle of created memory is not empty"};
    if (one.name == two.name) return {"created memory has a handle of its own"};
  }
  if (step > 1 && one.map(range.at(step / 2), 2 * step)) return {"map refuses an address inside a page"};
  if (one.map(range.at(0), 4 * step)) return {"map refuses more bytes than the memory has"};
  if (!one.map(range.at(step), 2 * step)) return {"map succeeds at free addresses of a range"};
  if (two.map(range.at(step), step) || two.map(range.at(2 * step), step))
    return {"map refuses addresses with mapped memory"};
  if (!two.map(range.at(3 * step), step)) return {"a refused map changes nothing"};
  if (!one.grant() || !two.grant()) return {"grant accepts a mapping"};
  if (device.grant(range.at(0), step)) return {"grant refuses addresses without mapped memory"};
  if (range.unreserve()) return {"unreserve refuses a range with mapped memory"};
  if (device.unmap(range.at(0), step)) return {"unmap refuses addresses without mapped memory"};
  if (D::unmap_wants_size && device.unmap(range.at(step), step)) return {"unmap refuses a part of a mapping"};
  if (!device.synchronize(stream_id{})) return {"synchronize returns after the work is done"};
  if (!one.unmap() || device.unmap(range.at(step), 2 * step))
    return {"unmap removes a mapping, and refuses to remove it twice"};
  if (!one.map(range.at(0), 2 * step)) return {"unmapped memory can be mapped elsewhere"};
  if (!one.destroy() || !one.unmap()) return {"destroyed memory stays mapped until unmap"};
  if (!two.unmap() || !two.destroy()) return {"destroy accepts created memory"};
  if (!range.unreserve()) return {"unreserve accepts a reserved range"};
  return {};
}

/// Creates, maps and destroys memory until a device that leaks destroyed memory has none left.
template <virtual_memory_provider D>
[[nodiscard]] verdict memory_often(D& device, page_kind kind, std::size_t at_once) {
  const std::size_t step = device.page_size(kind);
  std::size_t bytes = (std::max)((std::min)(at_once, device.capacity()) / step * step, step);
  trial_range<D> range(device, bytes, step);
  std::size_t enough = 1;
  for (std::size_t i = 0; i < enough; ++i) {
    trial_memory<D> memory(device);
    while (!memory.create(bytes, kind)) {
      if (i != 0) return {"destroyed memory can be created again"};
      if (bytes == step) return {};  // without memory
      bytes = bytes / 2 / step * step;
    }
    enough = 2 * std::min<std::size_t>(device.capacity() / bytes, 64) + 1;
    if (!memory.map(range.at(0), bytes)) return {"map succeeds at free addresses of a range"};
    // Tries both orders, because a device may leak memory in only one of them.
    const bool unmaps_first = i % 2 == 0;
    if (unmaps_first && !memory.unmap()) return {"unmap removes a mapping, and refuses to remove it twice"};
    if (!memory.destroy()) return {"destroy accepts created memory"};
    if (!unmaps_first && !memory.unmap()) return {"destroyed memory stays mapped until unmap"};
  }
  return {};
}

/// Checks a virtual_memory_provider with each page kind that the device has.
template <virtual_memory_provider D>
[[nodiscard]] verdict virtual_memory(D& device, std::size_t at_once = trial_bytes) {
  for (const page_kind kind : trial_kinds) {
    const std::size_t step = device.page_size(kind);
    if (!std::has_single_bit(step) || step % kind.granularity() != 0)
      return {"the page size is a power of two and a multiple of the kind's granularity"};
    if (kind == page_kind::normal) {
      trial_memory<D> memory(device);
      if (!memory.create(step, kind)) return {"create succeeds for normal pages below the capacity"};
    }
    if (const verdict found = addresses(device, kind); !found) return found;
    if (const verdict found = impossible_memory(device, kind); !found) return found;
    if (const verdict found = mapped_memory(device, kind); !found) return found;
    if (const verdict found = memory_often(device, kind, at_once); !found) return found;
    if (device.page_size(kind) != step) return {"the page size is constant"};
  }
  return {};
}

/// Acquires several segments and releases them, twice and in two orders.
template <device_provider D>
[[nodiscard]] verdict several_segments(D& device) {
  struct segment {
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
  };
  const std::size_t step = device.granularity();
  const std::size_t capacity = device.capacity();
  verdict found;
  for (int round = 0; round < 2 && found; ++round) {
    std::array<segment, 5> held{};
    const auto take = [&](std::size_t i, std::size_t bytes, const char* law) {
      held[i] = {reinterpret_cast<std::uintptr_t>(device.acquire(bytes)), bytes};
      found.require(held[i].begin != 0, law);
      found.require(held[i].begin % step == 0, "segments start at a multiple of the granularity");
      found.require(bytes <= unlimited - held[i].begin, "segments end inside the address space");
      for (std::size_t j = 0; j < i && held[i].begin != 0; ++j) {
        const bool above = held[i].begin >= held[j].begin;
        const segment &low = held[above ? j : i], &high = held[above ? i : j];
        found.require(low.begin == 0 || high.begin - low.begin >= low.bytes, "segments do not overlap");
      }
    };
    for (std::size_t i = 0; i < 4; ++i)
      take(i, (i % 2 + 1) * step,
           round == 0 ? "acquire succeeds below the capacity" : "released memory can be acquired again");
    for (const std::size_t bytes : {capacity / step * step, unlimited / step * step}) {
      void* const beyond = device.acquire(bytes);
      found.require(beyond == nullptr, "acquire refuses more than the capacity");
      if (beyond != nullptr) (void)device.release(beyond, bytes);
    }
    take(4, step, "a refused acquire changes nothing");
    found.require(device.capacity() == capacity, "capacity and granularity are constant");
    for (std::size_t i = 0; i < held.size(); ++i) {
      const segment& s = held[round == 0 ? held.size() - 1 - i : i];
      found.require(s.begin == 0 || device.release(reinterpret_cast<void*>(s.begin), s.bytes),
                    "release accepts an acquired segment");
    }
    found.require(device.capacity() == capacity && device.granularity() == step,
                  "capacity and granularity are constant");
  }
  return found;
}

/// Acquires and releases one large segment until a device that leaks released memory has none left.
template <device_provider D>
[[nodiscard]] verdict one_segment_often(D& device, std::size_t at_once) {
  const std::size_t step = device.granularity();
  std::size_t bytes = (std::min)(at_once, device.capacity()) / step * step;
  void* p = nullptr;
  while (bytes != 0 && (p = device.acquire(bytes)) == nullptr) bytes = bytes / 2 / step * step;
  if (p == nullptr) return {};
  const std::size_t enough = std::min<std::size_t>(device.capacity() / bytes, 64);
  for (std::size_t i = 0; i < enough; ++i) {
    if (!device.release(p, bytes)) return {"release accepts an acquired segment"};
    if (p = device.acquire(bytes); p == nullptr) return {"released memory can be acquired again"};
  }
  if (!device.release(p, bytes)) return {"release accepts an acquired segment"};
  return {};
}

/// Checks a device_provider.
template <device_provider D>
[[nodiscard]] verdict memory(D& device, std::size_t at_once = trial_bytes) {
  const std::size_t step = device.granularity();
  if (!std::has_single_bit(step) || step < min_alignment)
    return {"the granularity is a power of two, at least min_alignment"};
  if (device.capacity() / 8 < step) return {"the capacity is at least 8 times the granularity"};
  if (const verdict found = several_segments(device); !found) return found;
  return one_segment_often(device, at_once);
}

/// Checks a measured_provider.
template <tessera::detail::measured_provider D>
[[nodiscard]] verdict available(D& device, std::size_t at_once) {
  constexpr auto plausible = "available is at most the capacity";
  const std::size_t before = device.available(), step = device.granularity();
  if (before > device.capacity()) return {plausible};
  const std::size_t bytes = (std::max)((std::min)(at_once, before / 2) / step * step, step);
  void* const p = device.acquire(bytes);
  if (p == nullptr) return {};
  verdict found;
  found.require(device.available() < before, "available falls when memory is acquired");
  found.require(device.release(p, bytes), "release accepts an acquired segment");
  found.require(device.available() <= device.capacity(), plausible);
  return found;
}

/// Checks a paged_provider.
template <paged_provider D>
[[nodiscard]] verdict page_kinds(D& device) {
  const std::size_t step = device.granularity();
  for (const page_kind kind : trial_kinds) {
    const std::size_t bytes = (std::max)(step, kind.granularity());
    void* const p = device.acquire(bytes, kind);
    const bool aligned = p != nullptr && reinterpret_cast<std::uintptr_t>(p) % step == 0;
    const bool released = p != nullptr && device.release(p, bytes);
    if (kind == page_kind::normal && !(aligned && released))
      return {"normal pages can be acquired and released"};
    if (p != nullptr && !(aligned && released))
      return {"other pages are unavailable, or can be acquired and released"};
  }
  return {};
}

/// Checks an event_provider on its default stream.
template <event_provider D>
[[nodiscard]] verdict events(D& device) {
  verdict found;
  typename D::event first{};
  if (!device.record(stream_id{}, first)) return {"record succeeds on the default stream"};
  typename D::event copy = first;
  found.require(device.wait(first), "wait returns after the work is done");
  found.require(device.query(first), "an event is ready after a wait for it");
  found.require(device.query(copy), "copies of an event are ready at the same time");
  typename D::event second{};
  const bool again = device.record(stream_id{}, second);
  found.require(again, "record succeeds again on the same stream");
  found.require(device.query(first), "a ready event stays ready");
  device.discard(first);
  if (again) {
    found.require(device.wait(second) && device.query(second), "discard changes no other event");
    device.discard(second);
  }
  return found;
}

/// Checks an ordering_provider on two of its streams, which may be equal. After the check, the first stream
/// waits for the second.
template <ordering_provider D>
[[nodiscard]] verdict ordering(D& device, stream_id first, stream_id second) {
  verdict found;
  const auto finish = [&](stream_id s) {
    typename D::event mark{};
    found.require(device.record(s, mark) && device.wait(mark), "record and wait succeed on a stream");
    device.discard(mark);
  };
  const std::uint64_t before = device.position(first);
  found.require(device.is_done(first, 0) && device.is_ordered_after(second, first, 0),
                "position 0 is before all work");
  found.require(device.is_ordered_after(first, first, before), "a stream is ordered after its own work");
  finish(first);
  found.require(device.is_done(first, before), "work is done after a wait for it");

  const std::uint64_t without_wait = device.position(second);
  found.require(device.make_wait(second, first, before), "make_wait succeeds");
  found.require(device.is_ordered_after(second, first, before),
                "a stream is ordered after the work that it waits for");
  const std::uint64_t with_wait = device.position(second);
  found.require(first == second || with_wait > without_wait, "a wait counts as work");
  found.require(device.make_wait(first, second, with_wait), "streams may wait for each other's earlier work");
  found.require(device.is_ordered_after(first, second, with_wait),
                "a stream is ordered after the work that it waits for");
  finish(first);
  found.require(device.is_done(second, with_wait), "work is done if a finished stream waited for it");
  found.require(device.position(first) >= before && device.position(second) >= with_wait,
                "positions never fall");
  return found;
}

/// Checks a registering_provider with 128 KiB of host memory.
template <registering_provider D>
[[nodiscard]] verdict registering(D& device) {
  constexpr std::size_t page = 64_KiB;  // a multiple of every host's page
  constexpr std::align_val_t aligned{page};
  auto* const p = static_cast<std::byte*>(::operator new(2 * page, aligned, std::nothrow));
  if (p == nullptr) return {};
  verdict found;
  for (int round = 0; round < 2 && found; ++round) {
    const bool registered = device.register_memory(p, 2 * page);
    found.require(registered, round == 0 ? "the user's memory can be registered"
                                         : "unregistered memory can be registered again");
    if (!registered) break;
    found.require(!device.register_memory(p, 2 * page) && !device.register_memory(p + page, page),
                  "register_memory refuses registered memory");
    found.require(!device.unregister_memory(p + page),
                  "unregister_memory refuses an address inside registered memory");
    found.require(device.unregister_memory(p), "unregister_memory accepts registered memory");
    found.require(!device.unregister_memory(p), "unregister_memory refuses memory that is not registered");
  }
  if (found && device.register_memory(p + min_alignment, page)) {
    found = {"register_memory refuses an address inside a page"};
    (void)device.unregister_memory(p + min_alignment);
  }
  ::operator delete(p, aligned);
  return found;
}

/// Checks a copying_provider with a copy of up to 64 KiB to the host and back.
template <copying_provider D>
[[nodiscard]] verdict copying(D& device) {
  const std::size_t bytes = align_up(64_KiB, device.granularity());
  const std::unique_ptr<std::byte[]> host(new (std::nothrow) std::byte[bytes]());
  void* const p = host != nullptr ? device.acquire(bytes) : nullptr;
  if (p == nullptr) return {};
  verdict found;
  const auto finish = [&device] {
    typename D::event mark{};
    const bool done = device.record({}, mark) && device.wait(mark);
    device.discard(mark);
    return done;
  };
  found.require(device.copy_to_device(p, host.get(), bytes, {}),
                "copy_to_device accepts memory of the device");
  found.require(finish(), "an event is ready after a copy");
  found.require(device.copy_to_host(host.get(), p, bytes, {}), "copy_to_host accepts memory of the device");
  found.require(finish(), "an event is ready after a copy");
  for (std::size_t i = 0; i < bytes && found; ++i)
    found.require(host[i] == std::byte{}, "a copy to the device and back keeps the bytes");
  if constexpr (tessera::detail::stream_listing_provider<D>) {
    const stream_id nowhere{0xdead};
    found.require(device.has_stream(nowhere) || !device.copy_to_host(host.get(), p, bytes, nowhere),
                  "copies refuse a stream that does not exist");
  }
  (void)finish();  // of a copy that should have been refused
  if (!device.release(p, bytes)) return {"a segment can be released"};
  found.require(!device.copy_to_host(host.get(), nullptr, bytes, {}) &&
                    !device.copy_to_device(nullptr, host.get(), bytes, {}),
                "copies refuse device addresses without memory");
  return found;
}

/// Exports memory to a listed process, which maps it and keeps it after the exporter has destroyed its
/// handle.
template <sharing_provider D>
[[nodiscard]] verdict listed_importers(D& exporter, D& importer, std::size_t bytes) {
  const std::size_t step = importer.page_size(page_kind::normal);
  trial_range<D> range(importer, align_up(bytes, step), step);
  trial_memory<D> memory(exporter), shared(importer), refused(importer), at_home(exporter);
  typename D::shareable name{}, again{};
  if (!memory.create(bytes, page_kind::normal))
    return {"create succeeds for normal pages below the capacity"};
  if (!exporter.export_memory(memory.name, importers::listed, name))
    return {"created memory can be exported"};
  if (exporter.export_memory(memory.name, importers::listed, again))
    return {"export_memory refuses exported memory"};
  if (refused.import_from(name)) return {"import_memory refuses a process that is not listed"};
  if (importer.allow(name, importer.process())) return {"allow refuses every process except the exporter"};
  if (!exporter.allow(name, importer.process())) return {"the exporter can list a process"};
  if (!shared.import_from(name)) return {"a listed process can import"};
  if (at_home.import_from(name)) return {"import_memory refuses memory of the same process"};
  if (importer.export_memory(shared.name, importers::any, again))
    return {"export_memory refuses imported memory"};
  if (!memory.destroy()) return {"exported memory can be destroyed"};
  if (refused.import_from(name)) return {"import_memory refuses memory that the exporter destroyed"};
  if (!shared.map(range.at(0), bytes) || !shared.grant() || !shared.unmap() || !shared.destroy())
    return {"imported memory can be used after the exporter destroyed its handle"};
  return {};
}

/// Exports memory to any process.
template <sharing_provider D>
[[nodiscard]] verdict any_importer(D& exporter, D& importer, std::size_t bytes) {
  trial_memory<D> memory(exporter), shared(importer);
  typename D::shareable name{};
  if (!memory.create(bytes, page_kind::normal))
    return {"create succeeds for normal pages below the capacity"};
  if (!exporter.export_memory(memory.name, importers::any, name)) return {"created memory can be exported"};
  if (exporter.allow(name, importer.process())) return {"allow refuses memory that any process may import"};
  if (!shared.import_from(name)) return {"any process can import memory that is exported to any"};
  if (!shared.destroy() || !memory.destroy()) return {"each process can destroy its own handle"};
  return {};
}

}  // namespace detail

/// Checks what a provider can do, except what needs two providers (law::sharing), running work (law::work) or
/// access by the host (law::host_visible).
///
/// It accesses no memory, and gives back all memory that the device accepts. It holds at most the largest of
/// `at_once` bytes, three pages of one kind, and 7 times the granularity. It finds a device that leaks
/// released memory if the capacity is at most 64 times `at_once`. With a stream other than the default
/// stream, the check of an ordering_provider is stronger.
///
///     tessera::simulated_device device;
///     if (const auto found = tessera::law::provider(device); !found) std::puts(found.broken);
///
///   Requires:  nothing else uses the device; its capacity is at least 8 times the granularity; no endless
///              work runs on the streams
template <device_provider D>
[[nodiscard]] verdict provider(D& device, std::size_t at_once = detail::trial_bytes, stream_id other = {}) {
  verdict found = detail::memory(device, at_once);
  if constexpr (tessera::detail::measured_provider<D>) {
    if (found) found = detail::available(device, at_once);
  }
  if constexpr (event_provider<D>) {
    if (found) found = detail::events(device);
  }
  if constexpr (ordering_provider<D>) {
    if (found) found = detail::ordering(device, other, {});
  }
  if constexpr (paged_provider<D>) {
    if (found) found = detail::page_kinds(device);
  }
  if constexpr (virtual_memory_provider<D>) {
    if (found) found = detail::virtual_memory(device, at_once);
  }
  if constexpr (registering_provider<D>) {
    if (found) found = detail::registering(device);
  }
  if constexpr (copying_provider<D>) {
    if (found) found = detail::copying(device);
  }
  return found;
}

/// Checks an event_provider while work runs. `begin()` submits work that ends by itself to `stream`;
/// `ended()` returns whether the latest submitted work has ended. Longer work finds more faults. Ordering and
/// virtual memory are checked, too.
///
///     tessera::simulated_device device;
///     std::uint64_t end = 0;
///     const auto begin = [&] {
///       device.submit({}, 5'000'000);
///       end = device.now_ns() + 5'000'000;
///     };
///     const auto found = tessera::law::work(device, {}, begin, [&] { return device.now_ns() >= end; });
///     if (!found) std::puts(found.broken);
template <event_provider D, typename Begin, typename Ended>
[[nodiscard]] verdict work(D& device, stream_id stream, Begin begin, Ended ended) {
  verdict found;
  begin();
  typename D::event first{}, second{};
  if (!device.record(stream, first)) return {"record succeeds on a busy stream"};
  const bool again = device.record(stream, second);
  found.require(again, "record succeeds on a busy stream");
  if (again) {
    for (typename D::event* const mark : {&second, &first})
      found.require(!device.query(*mark) || ended(), "no event is ready before its work is done");
    if constexpr (ordering_provider<D>) {
      const std::uint64_t at = device.position(stream);
      found.require(!device.is_done(stream, at) || ended(), "no position is done before its work is done");
    }
    found.require(device.wait(second) && ended(), "wait returns after the work is done");
    found.require(device.query(second) && device.query(first),
                  "an event is ready if a later event of its stream is ready");
    device.discard(second);
  }
  device.discard(first);
  if constexpr (virtual_memory_provider<D>) {
    if (found) {
      begin();
      found.require(device.synchronize(stream) && ended(), "synchronize returns after the work is done");
    }
  }
  return found;
}

/// Checks a sharing_provider between two processes.
///
/// It holds at most a page or `at_once` bytes, whichever is larger. It finds devices that leak shared memory
/// if the capacity is at most 64 times as much.
///
///     tessera::simulated_device exporter;
///     tessera::simulated_device importer = exporter.another_process();
///     if (const auto found = tessera::law::sharing(exporter, importer); !found) std::puts(found.broken);
///
///   Requires:  two processes that may import each other's memory; nothing else uses the devices
template <sharing_provider D>
[[nodiscard]] verdict sharing(D& exporter, D& importer, std::size_t at_once = detail::trial_bytes) {
  if (exporter.process() == importer.process()) return {"processes have different numbers"};
  const std::size_t step = exporter.page_size(page_kind::normal);
  const std::size_t bytes = (std::max)((std::min)(at_once, exporter.capacity()) / step * step, step);
  const std::size_t enough = std::min<std::size_t>(exporter.capacity() / bytes, 64) + 1;
  for (std::size_t i = 0; i < enough; ++i) {
    verdict found = detail::listed_importers(exporter, importer, bytes);
    if (found) found = detail::any_importer(exporter, importer, bytes);
    if (!found) return i == 0 ? found : verdict{"memory is freed after all processes have destroyed it"};
  }
  return {};
}

}  // namespace tessera::law
