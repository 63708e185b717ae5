// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include <tessera/core/bytes.hpp>
#include <tessera/core/page.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/law/provider_check_result.hpp>
#include <tessera/provider/capabilities.hpp>
#include <tessera/provider/provider.hpp>

/// The laws of segments: what a device_provider, a paged_provider and the functions about free memory mean.

namespace tessera::law::detail {

/// The default number of bytes that a check holds at once.
inline constexpr std::size_t trial_bytes = provider_trial{}.at_once;

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

/// Memory at addresses; nothing if `begin` is 0.
struct trial_segment {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;

  [[nodiscard]] void* at() const noexcept { return reinterpret_cast<void*>(begin); }
  [[nodiscard]] bool overlaps(const trial_segment& other) const noexcept {
    if (begin == 0 || other.begin == 0) return false;
    return begin >= other.begin ? begin - other.begin < other.bytes : other.begin - begin < bytes;
  }
};
[[nodiscard]] inline trial_segment segment_at(const void* p, std::size_t bytes) noexcept {
  return {reinterpret_cast<std::uintptr_t>(p), bytes};
}

/// Requires that a new segment is aligned, ends inside the address space and overlaps none of the others.
template <std::size_t N>
void require_place(provider_check_result& found, const trial_segment& made, std::size_t step,
                   const std::array<trial_segment, N>& others) noexcept {
  found.must_hold(made.begin % step == 0, "segments start at a multiple of the granularity"_rule, "address",
                  made.at(), "granularity", step);
  found.must_hold(made.bytes <= unlimited - made.begin, "segments end inside the address space"_rule,
                  "address", made.at(), "bytes", made.bytes);
  for (const trial_segment& other : others)
    found.must_hold(&other == &made || !made.overlaps(other), "segments do not overlap"_rule, "address",
                    made.at(), "bytes", made.bytes, "other address", other.at(), "its bytes", other.bytes);
}

/// Acquires several segments and releases them, twice and in two orders.
template <provider::device_provider D>
[[nodiscard]] provider_check_result several_segments(D& device) {
  const std::size_t step = device.granularity(), capacity = device.capacity();
  provider_check_result found;
  const auto require_constant = [&] {
    found.must_hold(device.capacity() == capacity && device.granularity() == step,
                    "capacity and granularity are constant"_rule, "capacity at first", capacity, "now",
                    device.capacity(), "granularity at first", step, "now", device.granularity());
  };
  for (int round = 0; round < 2 && found; ++round) {
    std::array<trial_segment, 5> held{};
    const auto take = [&](std::size_t i, std::size_t bytes, rule law) {
      held[i] = segment_at(device.acquire(bytes), bytes);
      found.must_hold(held[i].begin != 0, law, "bytes", bytes, "segments held", i, "capacity", capacity);
      if (held[i].begin != 0) require_place(found, held[i], step, held);
    };
    for (std::size_t i = 0; i < 4; ++i)
      take(i, (i % 2 + 1) * step,
           round == 0 ? "acquire succeeds below the capacity"_rule
                      : "released memory can be acquired again"_rule);
    const auto refuse = [&](std::size_t bytes, rule law) {
      void* const beyond = device.acquire(bytes);
      found.must_hold(beyond == nullptr, law, "bytes", bytes, "address", beyond, "held already", 6 * step,
                      "capacity", capacity);
      if (beyond != nullptr) (void)device.release(beyond, bytes);
    };
    // The sum of the last ones and of what is held overflows.
    for (const std::size_t bytes : {capacity / step * step, unlimited / step * step,
                                    unlimited / step * step - 4 * step, unlimited / 2 / step * step + step})
      refuse((std::max)(bytes, capacity / step * step), "acquire refuses more than the capacity"_rule);
    take(4, step, "a refused acquire changes nothing"_rule);
    require_constant();
    for (std::size_t i = 0; i < held.size(); ++i) {
      const trial_segment& s = held[round == 0 ? held.size() - 1 - i : i];
      found.must_hold(s.begin == 0 || device.release(s.at(), s.bytes),
                      "release accepts an acquired segment"_rule, "address", s.at(), "bytes", s.bytes);
    }
    require_constant();
  }
  return found;
}

/// Acquires and releases one large segment until a device that leaks released memory has none left.
template <provider::device_provider D>
[[nodiscard]] provider_check_result one_segment_often(D& device, std::size_t at_once) {
  const std::size_t step = device.granularity();
  std::size_t bytes = (std::min)(at_once, device.capacity()) / step * step;
  void* p = nullptr;
  while (bytes != 0 && (p = device.acquire(bytes)) == nullptr) bytes = bytes / 2 / step * step;
  if (p == nullptr) return {};
  const std::size_t enough = std::min<std::size_t>(device.capacity() / bytes, 64);
  for (std::size_t i = 0; i < enough; ++i) {
    if (!device.release(p, bytes))
      return broken_rule("release accepts an acquired segment"_rule, "address", p, "bytes", bytes);
    if (p = device.acquire(bytes); p == nullptr)
      return broken_rule("released memory can be acquired again"_rule, "bytes", bytes, "times", i + 1,
                         "capacity", device.capacity());
  }
  if (!device.release(p, bytes))
    return broken_rule("release accepts an acquired segment"_rule, "address", p, "bytes", bytes);
  return {};
}

/// Checks the sizes of a device_provider and small segments.
template <provider::device_provider D>
[[nodiscard]] provider_check_result memory(D& device, std::size_t at_once = trial_bytes) {
  const std::size_t step = device.granularity();
  if (!std::has_single_bit(step) || step < min_alignment)
    return broken_rule("the granularity is a power of two, at least min_alignment"_rule, "granularity", step,
                       "min_alignment", min_alignment);
  if (device.capacity() / 8 < step)
    return broken_rule("the capacity is at least 8 times the granularity"_rule, "capacity", device.capacity(),
                       "granularity", step);
  if (const provider_check_result found = several_segments(device); !found) return found;
  return one_segment_often(device, at_once);
}

/// Tries misuse that breaks a provider without a table of its segments, for example one over free().
template <provider::device_provider D>
[[nodiscard]] provider_check_result wrong_releases(D& device) {
  const std::size_t step = device.granularity(), bytes = 2 * step;
  const trial_segment held = segment_at(device.acquire(bytes), bytes);
  const trial_segment gone = segment_at(device.acquire(bytes), bytes);
  provider_check_result found;
  void* const nothing = device.acquire(0);
  found.must_hold(nothing == nullptr, "acquire refuses 0 bytes"_rule, "bytes", std::size_t{0}, "address",
                  nothing);
  if (held.begin != 0) {
    void* const inside = reinterpret_cast<void*>(held.begin + step);
    found.must_hold(!device.release(inside, step), "release refuses an address inside a segment"_rule,
                    "address", inside, "segment", held.at(), "bytes", held.bytes);
  }
  if (gone.begin != 0) {
    found.must_hold(device.release(gone.at(), bytes), "release accepts an acquired segment"_rule, "address",
                    gone.at(), "bytes", bytes);
    if (found)
      found.must_hold(!device.release(gone.at(), bytes), "release refuses a segment that was released"_rule,
                      "address", gone.at(), "bytes", bytes);
  }
  if (held.begin != 0)
    found.must_hold(device.release(held.at(), bytes), "release accepts an acquired segment"_rule, "address",
                    held.at(), "bytes", bytes);
  return found;
}

/// The reason why large amounts of a device's memory are not taken; null if they may be.
template <provider::device_provider D>
[[nodiscard]] const char* why_not_filled(const D& device, const provider_trial& limits) noexcept {
  if (tessera::detail::is_host_visible<D> && !limits.fills_host_memory)
    return "three quarters of host memory might be missing elsewhere; set fills_host_memory to allow it";
  if (device.capacity() > std::size_t{1} << 52) return "no process has addresses for so much memory";
  return nullptr;
}

/// Bytes that the device says it can still give.
template <provider::device_provider D>
[[nodiscard]] std::size_t said_to_be_left(const D& device) noexcept {
  return (std::min)(tessera::detail::left_on(device, 0), device.capacity());
}

/// The rules about amounts: of segments, or of physical memory.
struct amount_rules {
  rule gives, refuses, gives_again;
};

/// Takes three quarters of the memory that the device says it has, in few large pieces, then asks for more
/// than the rest. Then takes and gives pieces of some sizes until twice the capacity was taken.
///
/// take(bytes, piece) sets a piece and returns whether that succeeded; give(piece, bytes) returns the piece.
template <typename Piece, provider::device_provider D, typename Take, typename Give>
[[nodiscard]] provider_check_result amounts(D& device, std::size_t step, const provider_trial& limits,
                                            Take take, Give give, const amount_rules& rules) {
  struct held_piece {
    Piece piece{};
    std::size_t bytes = 0;
  };
  provider_check_result found;
  const std::size_t capacity = device.capacity(), left = said_to_be_left(device);
  const std::size_t wanted = left / 4 * 3 / step * step;
  if (wanted < 8 * step) return found;
  std::array<held_piece, 256> held{};
  std::size_t count = 0, taken = 0;
  std::size_t bytes = (std::max)(left / 4 / step * step, step);
  const std::size_t smallest = (std::max)((std::min)(limits.at_once, wanted / 16) / step * step, step);
  while (taken < wanted && bytes >= smallest && count < held.size()) {
    bytes = (std::min)(bytes, align_up(wanted - taken, step));
    if (take(bytes, held[count].piece)) {
      held[count++].bytes = bytes;
      taken += bytes;
    } else {
      bytes = bytes / 2 / step * step;
    }
  }
  if (taken < wanted && count == held.size())
    found.skip("the amount of memory", "the device gives small pieces only");
  else
    found.must_hold(taken >= wanted / 16 * 15, rules.gives, "said to be left", left, "taken", taken,
                    "refused", 2 * bytes, "capacity", capacity);
  if constexpr (tessera::detail::measured_provider<D>) {
    const std::size_t now = device.available();
    found.must_hold(now <= left - taken + taken / 8, "available falls by what is acquired"_rule,
                    "available before", left, "now", now, "taken", taken);
  }
  const std::size_t beyond = align_up(capacity - (std::min)(taken, capacity), step) + step;
  held_piece more{.piece = {}, .bytes = beyond};
  if (found && take(beyond, more.piece)) {
    found.must_hold(false, rules.refuses, "bytes", beyond, "held already", taken, "capacity", capacity);
    (void)give(more.piece, beyond);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (!give(held[i].piece, held[i].bytes))
      found.must_hold(false, rules.gives_again, "bytes", held[i].bytes, "pieces", count, "given back", i);
  }
  if constexpr (tessera::detail::measured_provider<D>) {
    const std::size_t now = device.available();
    found.must_hold(now >= left - left / 8, "available rises when memory is released"_rule,
                    "available before", left, "now", now, "released", taken);
  }
  for (const std::size_t part : {std::size_t{2}, std::size_t{16}, std::size_t{256}}) {
    const std::size_t size = left / part / step * step;
    for (std::size_t i = 0; size != 0 && i < 2 * (capacity / size) + 1 && i < 2048 && found; ++i) {
      Piece piece{};
      const bool took = take(size, piece);
      if (!took && i == 0) break;  // larger than a segment may be
      found.must_hold(took && give(piece, size), rules.gives_again, "bytes", size, "times", i, "capacity",
                      capacity);
    }
  }
  return found;
}

/// Checks the capacity with segments that take three quarters of it.
template <provider::device_provider D>
[[nodiscard]] provider_check_result segment_amounts(D& device, const provider_trial& limits) {
  if (const char* const why = why_not_filled(device, limits)) {
    provider_check_result found;
    found.skip("the amount of memory", why);
    return found;
  }
  return amounts<void*>(
      device, device.granularity(), limits,
      [&](std::size_t bytes, void*& p) { return (p = device.acquire(bytes)) != nullptr; },
      [&](void* p, std::size_t bytes) { return device.release(p, bytes); },
      {"three quarters of the memory can be acquired"_rule, "acquire refuses more than the capacity"_rule,
       "released memory can be acquired again"_rule});
}

/// Checks the reasons of an explaining_provider.
template <tessera::detail::explaining_provider D>
[[nodiscard]] provider_check_result refusals(D& device) {
  provider_check_result found;
  const std::size_t step = device.granularity(), beyond = unlimited / step * step;
  void* const p = device.acquire(beyond);
  found.must_hold(p == nullptr, "acquire refuses more than the capacity"_rule, "bytes", beyond, "address", p,
                  "capacity", device.capacity());
  if (!found) return found;
  (void)device.take_refusal();
  found.must_hold(!device.take_refusal(), "a reason is taken once"_rule, "bytes", beyond, "taken",
                  std::size_t{2});
  void* const q = device.acquire(step);
  found.must_hold(q == nullptr || !device.take_refusal(), "a call that succeeds gives no reason"_rule,
                  "bytes", step, "address", q);
  if (q != nullptr) (void)device.release(q, step);
  return found;
}

/// Checks a measured_provider.
template <tessera::detail::measured_provider D>
[[nodiscard]] provider_check_result available(D& device, std::size_t at_once) {
  const std::size_t before = device.available(), step = device.granularity(), capacity = device.capacity();
  provider_check_result found;
  const auto require_plausible = [&](std::size_t now) {
    found.must_hold(now <= capacity, "available is at most the capacity"_rule, "available", now, "capacity",
                    capacity);
  };
  require_plausible(before);
  if (!found) return found;
  const std::size_t bytes = (std::max)((std::min)(at_once, before / 2) / step * step, step);
  void* const p = device.acquire(bytes);
  if (p == nullptr) return {};
  const std::size_t meanwhile = device.available();
  found.must_hold(meanwhile < before, "available falls when memory is acquired"_rule, "available before",
                  before, "now", meanwhile, "acquired", bytes);
  found.must_hold(device.release(p, bytes), "release accepts an acquired segment"_rule, "address", p, "bytes",
                  bytes);
  require_plausible(device.available());
  return found;
}

/// Checks a paged_provider. Segments of all kinds are held at the same time.
template <provider::paged_provider D>
[[nodiscard]] provider_check_result page_kinds(D& device, const provider_trial& limits = {}) {
  constexpr std::size_t kinds = std::size(trial_kinds);
  const std::size_t step = device.granularity(), capacity = device.capacity();
  provider_check_result found;
  std::array<trial_segment, kinds> held{};
  const auto run_check = [&](bool holds, const page_kind& kind, const trial_segment& made) {
    found.must_hold(holds,
                    kind == page_kind::normal
                        ? "normal pages can be acquired and released"_rule
                        : "other pages are unavailable, or can be acquired and released"_rule,
                    "kind", kind, "bytes", made.bytes, "address", made.at(), "granularity", step);
  };
  for (const page_kind& kind : trial_kinds) {
    const std::size_t unit = (std::max)(step, kind.granularity());
    const trial_segment made = segment_at(device.acquire(unit, kind), unit);
    if (made.begin == 0) {
      run_check(kind != page_kind::normal, kind, made);
      continue;
    }
    run_check(made.begin % step == 0, kind, made);
    run_check(device.release(made.at(), unit), kind, made);
    const std::size_t most = unlimited / unit * unit, whole = capacity / unit * unit;
    for (const std::size_t beyond : {whole < most ? whole + unit : most, most}) {
      void* const p = found ? device.acquire(beyond, kind) : nullptr;
      found.must_hold(p == nullptr, "acquire refuses more than the capacity"_rule, "kind", kind, "bytes",
                      beyond, "address", p, "capacity", capacity);
      if (p != nullptr) (void)device.release(p, beyond);
    }
  }
  for (std::size_t i = 0; i < kinds && found; ++i) {
    const std::size_t unit = (std::max)(step, trial_kinds[i].granularity());
    held[i] = segment_at(device.acquire(unit, trial_kinds[i]), unit);
    if (held[i].begin != 0) require_place(found, held[i], step, held);
  }
  for (std::size_t i = 0; i < kinds; ++i) {
    if (held[i].begin != 0) run_check(device.release(held[i].at(), held[i].bytes), trial_kinds[i], held[i]);
  }
  // A kind that leaks has no memory left soon.
  const bool fills = why_not_filled(device, limits) == nullptr;
  for (const page_kind kind : trial_kinds) {
    const std::size_t unit = (std::max)(step, kind.granularity());
    const std::size_t most = fills ? said_to_be_left(device) / 4 : (std::min)(limits.at_once, capacity);
    const std::size_t bytes = (std::max)(most / unit * unit, unit);
    const std::size_t enough = fills ? 2 * (capacity / bytes) + 1 : 4;
    for (std::size_t i = 0; i < enough && i < 64 && found; ++i) {
      void* const p = device.acquire(bytes, kind);
      if (p == nullptr && i == 0) break;
      found.must_hold(p != nullptr && device.release(p, bytes), "released memory can be acquired again"_rule,
                      "kind", kind, "bytes", bytes, "times", i, "capacity", capacity);
    }
  }
  return found;
}

/// Checks would_exceed_limit() and reclaim(), if the provider has them.
template <provider::device_provider D>
[[nodiscard]] provider_check_result limits_and_reclaim(D& device) {
  const std::size_t step = device.granularity();
  provider_check_result found;
  if constexpr (tessera::detail::limited_provider<D>) {
    const std::size_t capacity = device.capacity() / step * step;
    for (const std::size_t bytes : {step, capacity / 2 / step * step, capacity}) {
      if (!device.would_exceed_limit(bytes)) continue;
      void* const p = device.acquire(bytes);
      found.must_hold(p == nullptr, "acquire refuses what would exceed the limit"_rule, "bytes", bytes,
                      "address", p);
      if (p != nullptr) (void)device.release(p, bytes);
      found.must_hold(device.would_exceed_limit(unlimited / step * step),
                      "what exceeds the limit does so with more bytes, too"_rule, "bytes", bytes);
    }
  }
  if constexpr (tessera::detail::reclaiming_provider<D>) {
    void* const held = device.acquire(step);
    constexpr std::size_t enough = 1000;
    std::size_t calls = 1;
    while (calls < enough && device.reclaim()) ++calls;
    found.must_hold(calls < enough, "reclaim returns false once nothing is idle"_rule, "calls", calls);
    found.must_hold(held == nullptr || device.release(held, step), "reclaim keeps memory that is in use"_rule,
                    "address", held, "bytes", step);
  }
  return found;
}

/// Whether a device has a function that records events.
template <typename D>
concept records_events =
    requires { typename D::event; } && requires(D& d, typename D::event& e) { d.record(stream_id{}, e); };

/// Requires that a provider with one function of a concept has all of them. A missing `noexcept` or another
/// result type otherwise hides the capability from allocators.
template <provider::device_provider D>
[[nodiscard]] provider_check_result capabilities() {
  provider_check_result found;
  const auto require_all = [&found](bool has_one, bool has_all, const char* function, const char* whole) {
    found.must_hold(!has_one || has_all, "each capability has all its functions, which are noexcept"_rule,
                    "it has", function, "but is no", whole, "functions that fit", std::size_t{0});
  };
  require_all(
      requires(const D& d) { d.available(); }, tessera::detail::measured_provider<D>, "available",
      "provider that measures free memory");
  require_all(
      requires(const D& d) { d.would_exceed_limit(std::size_t{}); }, tessera::detail::limited_provider<D>,
      "would_exceed_limit", "provider with a limit");
  require_all(
      requires(D& d) { d.reclaim(); }, tessera::detail::reclaiming_provider<D>, "reclaim",
      "provider that reclaims");
  require_all(
      requires(D& d) { d.has_stream(stream_id{}); }, tessera::detail::stream_listing_provider<D>,
      "has_stream", "provider that knows its streams");
  require_all(
      requires(D& d) { d.acquire(std::size_t{}, page_kind{}); }, provider::paged_provider<D>,
      "acquire(bytes, kind)", "paged_provider");
  require_all(records_events<D>, provider::event_provider<D>, "record", "event_provider");
  require_all(
      requires(D& d) { d.make_wait(stream_id{}, stream_id{}, std::uint64_t{}); },
      provider::ordering_provider<D>, "make_wait", "ordering_provider");
  require_all(
      requires(D& d) { d.reserve(std::size_t{}, std::size_t{}); }, provider::virtual_memory_provider<D>,
      "reserve", "virtual_memory_provider");
  require_all(
      provider::virtual_memory_provider<D> && requires(const D& d) { d.process(); },
      provider::sharing_provider<D>, "process", "sharing_provider");
  require_all(
      requires(D& d, void* p) { d.register_memory(p, std::size_t{}); }, provider::registering_provider<D>,
      "register_memory", "registering_provider");
  require_all(
      requires(D& d, void* p) { d.copy_to_host(p, p, std::size_t{}, stream_id{}); },
      provider::copying_provider<D>, "copy_to_host", "copying_provider");
  return found;
}

}  // namespace tessera::law::detail
