// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <new>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/law/law.hpp>
#include <tessera/law/virtual_memory.hpp>
#include <tessera/provider/provider.hpp>

namespace tessera::law {

/// Checks an ordering_provider on two of its streams, which may be equal. Different streams make the check
/// stronger. After the check, the first stream waits for the second.
///
///     tessera::simulated_device device;
///     const auto found = tessera::law::ordering(device, tessera::stream_id{1}, tessera::stream_id{2});
///     if (!found) std::puts(found.broken);
///
///   Requires:  no endless work runs on these streams
template <ordering_provider D>
[[nodiscard]] verdict ordering(D& device, stream_id first = {}, stream_id second = {}) {
  verdict found;
  const auto finish = [&](stream_id s) {
    typename D::event mark{};
    found.require(device.record(s, mark) && device.wait(mark),
                  "a stream of which the order is known has events");
    device.discard(mark);
  };
  const std::uint64_t before = device.position(first);
  found.require(device.is_done(first, 0) && device.is_ordered_after(second, first, 0),
                "the position 0 lies before all work");
  found.require(device.is_ordered_after(first, first, before), "a stream comes behind its own work");
  finish(first);
  found.require(device.is_done(first, before), "what was waited for is done");

  const std::uint64_t given = device.position(second);
  found.require(device.make_wait(second, first, before), "a stream can be told to wait for another one");
  found.require(device.is_ordered_after(second, first, before), "a stream comes behind what it waits for");
  const std::uint64_t with_wait = device.position(second);
  found.require(first == second || with_wait > given, "a wait counts as work");
  found.require(device.make_wait(first, second, with_wait), "streams may wait for each other's earlier work");
  found.require(device.is_ordered_after(first, second, with_wait), "a stream comes behind what it waits for");
  finish(first);
  found.require(device.is_done(second, with_wait), "what a finished stream waited for is done");
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
                                         : "what was unregistered can be registered again");
    if (!registered) break;
    found.require(!device.register_memory(p, 2 * page) && !device.register_memory(p + page, page),
                  "memory is registered once");
    found.require(!device.unregister_memory(p + page), "memory is unregistered where it begins");
    found.require(device.unregister_memory(p), "unregister ends what register did");
    found.require(!device.unregister_memory(p), "memory is unregistered once");
  }
  if (found && device.register_memory(p + min_alignment, page)) {
    found = {"what is registered begins at a multiple of the page"};
    (void)device.unregister_memory(p + min_alignment);
  }
  ::operator delete(p, aligned);
  return found;
}

/// Checks providers at run time. Use these functions for your own providers, in any test framework.

namespace detail {
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
      found.require(bytes <= unlimited - held[i].begin, "segments end before the addresses do");
      for (std::size_t j = 0; j < i && held[i].begin != 0; ++j) {
        const bool above = held[i].begin >= held[j].begin;
        const segment &low = held[above ? j : i], &high = held[above ? i : j];
        found.require(low.begin == 0 || high.begin - low.begin >= low.bytes, "segments do not overlap");
      }
    };
    for (std::size_t i = 0; i < 4; ++i)
      take(i, (i % 2 + 1) * step,
           round == 0 ? "acquire gives memory while there is capacity"
                      : "released memory can be acquired again");
    for (const std::size_t bytes : {capacity / step * step, unlimited / step * step}) {
      void* const beyond = device.acquire(bytes);
      found.require(beyond == nullptr, "acquire refuses what goes beyond the capacity");
      if (beyond != nullptr) (void)device.release(beyond, bytes);
    }
    take(4, step, "a refused acquire loses nothing");
    found.require(device.capacity() == capacity, "capacity and granularity are constant");
    for (std::size_t i = 0; i < held.size(); ++i) {
      const segment& s = held[round == 0 ? held.size() - 1 - i : i];
      found.require(s.begin == 0 || device.release(reinterpret_cast<void*>(s.begin), s.bytes),
                    "release takes back what was acquired");
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
    if (!device.release(p, bytes)) return {"release takes back what was acquired"};
    if (p = device.acquire(bytes); p == nullptr) return {"released memory can be acquired again"};
  }
  if (!device.release(p, bytes)) return {"release takes back what was acquired"};
  return {};
}
}  // namespace detail

/// Checks a device_provider.
template <device_provider D>
[[nodiscard]] verdict memory(D& device, std::size_t at_once = detail::trial_bytes) {
  const std::size_t step = device.granularity();
  if (!std::has_single_bit(step) || step < min_alignment)
    return {"granularity is a power of two, at least min_alignment"};
  if (device.capacity() / 8 < step) return {"capacity holds a few segments"};
  if (const verdict found = detail::several_segments(device); !found) return found;
  return detail::one_segment_often(device, at_once);
}

/// Checks an event_provider on its default stream.
///   Requires:  no endless work runs on that stream
template <event_provider D>
[[nodiscard]] verdict events(D& device) {
  verdict found;
  typename D::event first{};
  if (!device.record(stream_id{}, first)) return {"record marks the default stream"};
  typename D::event copy = first;
  found.require(device.wait(first), "wait returns once the work is done");
  found.require(device.query(first), "an event that was waited for is ready");
  found.require(device.query(copy), "copies of an event agree");
  typename D::event second{};
  const bool again = device.record(stream_id{}, second);
  found.require(again, "a stream can be marked again");
  found.require(device.query(first), "a ready event stays ready when its stream goes on");
  device.discard(first);
  if (again) {
    found.require(device.wait(second) && device.query(second), "discarding one event leaves others alone");
    device.discard(second);
  }
  return found;
}

namespace detail {
/// Checks a measured_provider.
template <measured_provider D>
[[nodiscard]] verdict available(D& device, std::size_t at_once = trial_bytes) {
  constexpr auto plausible = "no more is available than the capacity";
  const std::size_t before = device.available(), step = device.granularity();
  if (before > device.capacity()) return {plausible};
  const std::size_t bytes = (std::max)((std::min)(at_once, before / 2) / step * step, step);
  void* const p = device.acquire(bytes);
  if (p == nullptr) return {};
  verdict found;
  found.require(device.available() < before, "what is given is available no more");
  found.require(device.release(p, bytes), "release takes back what was acquired");
  found.require(device.available() <= device.capacity(), plausible);
  return found;
}
}  // namespace detail

/// Checks a paged_provider.
template <paged_provider D>
[[nodiscard]] verdict page_kinds(D& device) {
  const std::size_t step = device.granularity();
  for (const page_kind kind : detail::trial_kinds) {
    const std::size_t bytes = (std::max)(step, kind.granularity());
    void* const p = device.acquire(bytes, kind);
    const bool aligned = p != nullptr && reinterpret_cast<std::uintptr_t>(p) % step == 0;
    const bool goes = p != nullptr && device.release(p, bytes);
    if (kind == page_kind::normal && !(aligned && goes))
      return {"normal pages come and go as unasked ones do"};
    if (p != nullptr && !(aligned && goes))
      return {"pages of a kind are refused, or come and go as others do"};
  }
  return {};
}

/// Checks all capabilities of one provider, except three: law::sharing needs two providers, law::work needs
/// running work, and law::host_visible needs host access.
///
/// It accesses no memory, and gives back all memory that the device accepts. It holds at most the largest of
/// `at_once` bytes, three pages of one kind, and 7 times the granularity. It finds a device that leaks
/// released memory if the capacity is at most 64 times `at_once`.
///
///     tessera::simulated_device device;
///     if (const auto found = tessera::law::provider(device); !found) std::puts(found.broken);
///
///   Requires:  nothing else uses the device; its capacity is at least 8 times the granularity
template <device_provider D>
[[nodiscard]] verdict provider(D& device, std::size_t at_once = detail::trial_bytes) {
  verdict found = memory(device, at_once);
  if constexpr (measured_provider<D>) {
    if (found) found = detail::available(device, at_once);
  }
  if constexpr (event_provider<D>) {
    if (found) found = events(device);
  }
  if constexpr (ordering_provider<D>) {
    if (found) found = ordering(device);
  }
  if constexpr (paged_provider<D>) {
    if (found) found = page_kinds(device);
  }
  if constexpr (virtual_memory_provider<D>) {
    if (found) found = virtual_memory(device, at_once);
  }
  if constexpr (registering_provider<D>) {
    if (found) found = registering(device);
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
  if (!device.record(stream, first)) return {"a stream at work can be marked"};
  const bool again = device.record(stream, second);
  found.require(again, "a stream at work can be marked");
  if (again) {
    for (typename D::event* const mark : {&second, &first})
      found.require(!device.query(*mark) || ended(), "no event is ready before the work before it is done");
    if constexpr (ordering_provider<D>) {
      const std::uint64_t at = device.position(stream);
      found.require(!device.is_done(stream, at) || ended(),
                    "no position is done before the work up to it is");
    }
    found.require(device.wait(second) && ended(), "wait returns once the work is done");
    found.require(device.query(second) && device.query(first),
                  "an event is ready, and stays so, once a later one of its stream is");
    device.discard(second);
  }
  device.discard(first);
  if constexpr (virtual_memory_provider<D>) {
    if (found)
      begin(),
          found.require(device.synchronize(stream) && ended(), "synchronize returns once the work is done");
  }
  return found;
}

}  // namespace tessera::law
