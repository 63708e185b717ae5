// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <iterator>

#include <tessera/law/provider_check_result.hpp>
#include <tessera/provider/capabilities.hpp>

/// The laws of segments: what a device_provider, a paged_provider and the functions about free memory mean.

namespace tessera::inline v0_1::law::detail {

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

/// Rounds down to a multiple of `step`, but not to 0.
[[nodiscard]] constexpr std::size_t whole_steps(std::size_t bytes, std::size_t step) noexcept {
  return (std::max)(bytes / step * step, step);
}

/// Acquires a segment, with pages of a kind if one is given. Nothing if the provider refuses.
template <provider::device_provider D, std::same_as<page_kind>... Kind>
[[nodiscard]] trial_segment acquire(D& device, std::size_t bytes, Kind... kind) noexcept {
  return segment_at(device.acquire(bytes, kind...), bytes);
}
/// Requires that a new segment is aligned, ends inside the address space and overlaps none of the others.
template <std::size_t N>
void require_place(provider_check_result& found, const trial_segment& made, std::size_t step,
                   const std::array<trial_segment, N>& others) noexcept {
  found.must_hold(made.begin % step == 0, rules::segments_are_aligned, made, "granularity", step);
  found.must_hold(made.bytes <= unlimited - made.begin, rules::segments_end_in_address_space, made);
  for (const trial_segment& other : others)
    found.must_hold(&other == &made || !made.overlaps(other), rules::segments_do_not_overlap, made,
                    "other address", other.at(), "its bytes", other.bytes);
}
/// Releases a segment, if there is one, and requires that the provider takes it.
template <provider::device_provider D>
void require_release(provider_check_result& found, D& device, const trial_segment& held) noexcept {
  if (held.begin == 0 || device.release(held.at(), held.bytes)) return;
  found.fail(rules::release_succeeds, held);
}
/// Requires that the provider refused a segment. Releases it otherwise.
template <provider::device_provider D, typename... Values>
void require_refused(provider_check_result& found, D& device, const trial_segment& made, rule law,
                     const Values&... values) noexcept {
  if (made.begin == 0) return;
  found.fail(law, made, "capacity", device.capacity(), values...);
  (void)device.release(made.at(), made.bytes);
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

/// Calls run_check(), and requires that a device that measures its free memory has as much as before. A leak
/// of few calls then breaks the rule of these calls, not one of a later check.
template <provider::device_provider D, typename F>
void without_leak(provider_check_result& found, D& device, const provider_trial& limits, rule law,
                  F run_check) {
  if (!found) return;
  const std::size_t before = said_to_be_left(device);
  run_check();
  // A driver keeps some memory for itself, and other programs use the host's.
  if (why_not_filled(device, limits) != nullptr) return;
  const std::size_t now = said_to_be_left(device), kept = limits.at_once / 2;
  found.must_hold(now + kept >= before, law, "available before", before, "now", now);
}

/// Acquires several segments and releases them, twice and in two orders.
template <provider::device_provider D>
void several_segments(provider_check_result& found, D& device) {
  const std::size_t step = device.granularity(), capacity = device.capacity();
  const std::size_t whole = capacity / step * step, most = unlimited / step * step;
  const auto require_constant = [&] {
    found.must_hold(device.capacity() == capacity && device.granularity() == step, rules::sizes_are_constant,
                    "capacity at first", capacity, "now", device.capacity(), "granularity at first", step,
                    "now", device.granularity());
  };
  for (int round = 0; round < 2 && found; ++round) {
    std::array<trial_segment, 5> held{};
    const auto take = [&](std::size_t i, std::size_t bytes, rule law) {
      held[i] = acquire(device, bytes);
      found.must_hold(held[i].begin != 0, law, "bytes", bytes, "segments held", i, "capacity", capacity);
      if (held[i].begin != 0) require_place(found, held[i], step, held);
    };
    const rule gives = round == 0 ? rules::acquire_succeeds : rules::released_memory_can_be_acquired;
    for (std::size_t i = 0; i < 4; ++i) take(i, (i % 2 + 1) * step, gives);
    // The sum of the last ones and of what is held overflows.
    without_leak(found, device, {}, rules::refused_acquire_changes_nothing, [&] {
      for (const std::size_t bytes : {whole, most, most - 4 * step, unlimited / 2 / step * step + step})
        require_refused(found, device, acquire(device, (std::max)(bytes, whole)),
                        rules::acquire_keeps_capacity, "held already", 6 * step);
    });
    take(4, step, rules::refused_acquire_changes_nothing);
    require_constant();
    for (std::size_t i = 0; i < held.size(); ++i)
      require_release(found, device, held[round == 0 ? held.size() - 1 - i : i]);
    require_constant();
  }
}

/// Acquires and releases one large segment until a device that leaks released memory has none left.
template <provider::device_provider D>
void one_segment_often(provider_check_result& found, D& device, std::size_t at_once) {
  const std::size_t step = device.granularity(), capacity = device.capacity();
  trial_segment held{};
  for (std::size_t bytes = whole_steps((std::min)(at_once, capacity), step); bytes != 0 && held.begin == 0;
       bytes = bytes / 2 / step * step)
    held = acquire(device, bytes);
  const std::size_t enough = held.begin != 0 ? std::min<std::size_t>(capacity / held.bytes, 64) : 0;
  for (std::size_t i = 0; i < enough && found; ++i) {
    require_release(found, device, held);
    if (!found) return;
    held = acquire(device, held.bytes);
    found.must_hold(held.begin != 0, rules::released_memory_can_be_acquired, "bytes", held.bytes, "times",
                    i + 1, "capacity", capacity);
  }
  require_release(found, device, held);
}

/// Checks the sizes of a device_provider and small segments.
template <provider::device_provider D>
void memory(provider_check_result& found, D& device, std::size_t at_once = trial_bytes) {
  const std::size_t step = device.granularity();
  if (!std::has_single_bit(step) || step < min_alignment)
    return found.fail(rules::granularity_is_valid, "granularity", step, "min_alignment", min_alignment);
  if (device.capacity() / 8 < step)
    return found.fail(rules::capacity_is_large_enough, "capacity", device.capacity(), "granularity", step);
  several_segments(found, device);
  if (found) one_segment_often(found, device, at_once);
}

/// Tries misuse that breaks a provider without a table of its segments, for example one over free().
template <provider::device_provider D>
void wrong_releases(provider_check_result& found, D& device) {
  const std::size_t step = device.granularity(), bytes = 2 * step;
  const trial_segment held = acquire(device, bytes);
  const trial_segment gone = acquire(device, bytes);
  require_refused(found, device, acquire(device, 0), rules::acquire_refuses_zero);
  if (held.begin != 0) {
    void* const inside = reinterpret_cast<void*>(held.begin + step);
    found.must_hold(!device.release(inside, step), rules::release_refuses_inside, "address", inside,
                    "segment", held.at(), "bytes", held.bytes);
  }
  require_release(found, device, gone);
  if (gone.begin != 0 && found)
    found.must_hold(!device.release(gone.at(), bytes), rules::release_refuses_released, gone);
  require_release(found, device, held);
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
void amounts(provider_check_result& found, D& device, std::size_t step, const provider_trial& limits,
             Take take, Give give, const amount_rules& laws) {
  struct held_piece {
    Piece piece{};
    std::size_t bytes = 0;
  };
  const std::size_t capacity = device.capacity(), left = said_to_be_left(device);
  const std::size_t wanted = left / 4 * 3 / step * step;
  if (left < capacity / 16 * 15)
    found.skip("a capacity that is too large", "available() says that a part of it is not free");
  if (wanted < 8 * step) return;
  std::array<held_piece, 256> held{};
  std::array<trial_segment, held.size()> places{};  // of segments; physical memory has none
  std::size_t count = 0, taken = 0;
  const auto require_piece_place = [&](const Piece& piece, std::size_t size, trial_segment& place) {
    if constexpr (std::same_as<Piece, void*>) {
      place = segment_at(piece, size);
      require_place(found, place, device.granularity(), places);
    }
  };
  std::size_t bytes = whole_steps(left / 4, step);
  const std::size_t smallest = whole_steps((std::min)(limits.at_once, wanted / 16), step);
  while (taken < wanted && bytes >= smallest && count < held.size()) {
    bytes = (std::min)(bytes, align_up(wanted - taken, step));
    if (take(bytes, held[count].piece)) {
      require_piece_place(held[count].piece, bytes, places[count]);
      held[count++].bytes = bytes;
      taken += bytes;
    } else {
      bytes = bytes / 2 / step * step;
    }
  }
  if (taken < wanted && count == held.size())
    found.skip("the amount of memory", "the device gives small pieces only");
  else
    found.must_hold(taken >= wanted / 16 * 15, laws.gives, "said to be left", left, "taken", taken, "refused",
                    2 * bytes, "capacity", capacity);
  const auto require_available = [&](rule law, std::size_t min, std::size_t max, const char* act) {
    if constexpr (tessera::detail::measured_provider<D>) {
      const std::size_t now = device.available();
      found.must_hold(min <= now && now <= max, law, "available before", left, "now", now, act, taken);
    }
  };
  require_available(rules::available_falls_enough, 0, left - taken + taken / 8, "taken");
  const std::size_t beyond = align_up(capacity - (std::min)(taken, capacity), step) + step;
  Piece more{};
  if (found && take(beyond, more)) {
    found.fail(laws.refuses, "bytes", beyond, "held already", taken, "capacity", capacity);
    (void)give(more, beyond);
  }
  for (std::size_t i = 0; i < count; ++i) {
    found.must_hold(give(held[i].piece, held[i].bytes), laws.gives_again, "bytes", held[i].bytes, "pieces",
                    count, "given back", i);
    places[i] = {};
  }
  require_available(rules::available_rises, left - left / 8, unlimited, "released");
  for (const std::size_t part : {std::size_t{2}, std::size_t{16}, std::size_t{256}}) {
    const std::size_t size = left / part / step * step;
    for (std::size_t i = 0; size != 0 && i < 2 * (capacity / size) + 1 && i < 2048 && found; ++i) {
      Piece piece{};
      const bool took = take(size, piece);
      if (!took && i == 0) break;  // larger than a segment may be
      if (took) require_piece_place(piece, size, places[0]);
      found.must_hold(took && give(piece, size), laws.gives_again, "bytes", size, "times", i, "capacity",
                      capacity);
    }
  }
}

/// Checks the capacity with segments that take three quarters of it.
template <provider::device_provider D>
void segment_amounts(provider_check_result& found, D& device, const provider_trial& limits) {
  if (const char* const why = why_not_filled(device, limits)) return found.skip("the amount of memory", why);
  amounts<void*>(
      found, device, device.granularity(), limits,
      [&](std::size_t bytes, void*& p) { return (p = device.acquire(bytes)) != nullptr; },
      [&](void* p, std::size_t bytes) { return device.release(p, bytes); },
      {rules::most_memory_can_be_acquired, rules::acquire_keeps_capacity,
       rules::released_memory_can_be_acquired});
}

/// Checks the reasons of an explaining_provider.
template <tessera::detail::explaining_provider D>
void refusals(provider_check_result& found, D& device) {
  const std::size_t step = device.granularity(), beyond = unlimited / step * step;
  require_refused(found, device, acquire(device, beyond), rules::acquire_keeps_capacity);
  if (!found) return;
  (void)device.take_refusal();
  found.must_hold(!device.take_refusal(), rules::reason_is_taken_once, "bytes", beyond, "taken",
                  std::size_t{2});
  const trial_segment held = acquire(device, step);
  found.must_hold(held.begin == 0 || !device.take_refusal(), rules::success_gives_no_reason, held);
  if (held.begin != 0) (void)device.release(held.at(), step);
}

/// Checks a measured_provider.
template <tessera::detail::measured_provider D>
void available(provider_check_result& found, D& device, std::size_t at_once) {
  const std::size_t before = device.available(), capacity = device.capacity();
  const auto require_plausible = [&](std::size_t now) {
    found.must_hold(now <= capacity, rules::available_is_at_most_capacity, "available", now, "capacity",
                    capacity);
  };
  require_plausible(before);
  if (!found) return;
  const std::size_t bytes = whole_steps((std::min)(at_once, before / 2), device.granularity());
  const trial_segment held = acquire(device, bytes);
  if (held.begin == 0) return;
  const std::size_t meanwhile = device.available();
  found.must_hold(meanwhile < before, rules::available_falls, "available before", before, "now", meanwhile,
                  "acquired", bytes);
  require_release(found, device, held);
  require_plausible(device.available());
}

/// Checks a paged_provider. Segments of all kinds are held at the same time.
template <provider::paged_provider D>
void page_kinds(provider_check_result& found, D& device, const provider_trial& limits = {}) {
  constexpr std::size_t kinds = std::size(trial_kinds);
  const std::size_t step = device.granularity(), capacity = device.capacity();
  const auto run_check = [&](bool holds, const page_kind& kind, const trial_segment& made) {
    found.must_hold(holds, kind == page_kind::normal ? rules::normal_pages_work : rules::other_pages_may_work,
                    kind, made, "granularity", step);
  };
  const auto unit_of = [step](const page_kind& kind) { return (std::max)(step, kind.granularity()); };
  for (const page_kind& kind : trial_kinds) {
    const std::size_t unit = unit_of(kind);
    const trial_segment made = acquire(device, unit, kind);
    run_check(made.begin != 0 || kind != page_kind::normal, kind, made);
    if (made.begin == 0) continue;
    run_check(made.begin % step == 0, kind, made);
    run_check(device.release(made.at(), unit), kind, made);
    const std::size_t most = unlimited / unit * unit, whole = capacity / unit * unit;
    for (const std::size_t beyond : {whole < most ? whole + unit : most, most})
      if (found)
        require_refused(found, device, acquire(device, beyond, kind), rules::acquire_keeps_capacity, kind);
  }
  std::array<trial_segment, kinds> held{};
  for (std::size_t i = 0; i < kinds && found; ++i) {
    const std::size_t unit = unit_of(trial_kinds[i]);
    held[i] = acquire(device, unit, trial_kinds[i]);
    if (held[i].begin != 0) require_place(found, held[i], step, held);
  }
  for (std::size_t i = 0; i < kinds; ++i) {
    if (held[i].begin != 0) run_check(device.release(held[i].at(), held[i].bytes), trial_kinds[i], held[i]);
  }
  // A kind that leaks has no memory left soon.
  const bool fills = why_not_filled(device, limits) == nullptr;
  for (const page_kind kind : trial_kinds) {
    const std::size_t most = fills ? said_to_be_left(device) / 4 : (std::min)(limits.at_once, capacity);
    const std::size_t bytes = whole_steps(most, unit_of(kind));
    const std::size_t enough = fills ? 2 * (capacity / bytes) + 1 : 4;
    for (std::size_t i = 0; i < enough && i < 64 && found; ++i) {
      void* const p = device.acquire(bytes, kind);
      if (p == nullptr && i == 0) break;
      found.must_hold(p != nullptr && device.release(p, bytes), rules::released_memory_can_be_acquired, kind,
                      "bytes", bytes, "times", i, "capacity", capacity);
    }
  }
}

/// Checks would_exceed_limit() and reclaim(), if the provider has them.
template <provider::device_provider D>
void limits_and_reclaim(provider_check_result& found, D& device) {
  const std::size_t step = device.granularity();
  if constexpr (tessera::detail::limited_provider<D>) {
    const std::size_t capacity = device.capacity() / step * step;
    for (const std::size_t bytes : {step, capacity / 2 / step * step, capacity}) {
      if (!device.would_exceed_limit(bytes)) continue;
      require_refused(found, device, acquire(device, bytes), rules::acquire_keeps_limit);
      found.must_hold(device.would_exceed_limit(unlimited / step * step), rules::more_exceeds_limit_too,
                      "bytes", bytes);
    }
  }
  if constexpr (tessera::detail::reclaiming_provider<D>) {
    const trial_segment held = acquire(device, step);
    constexpr std::size_t enough = 1000;
    std::size_t calls = 1;
    while (calls < enough && device.reclaim()) ++calls;
    found.must_hold(calls < enough, rules::reclaim_ends, "calls", calls);
    const bool is_kept = held.begin == 0 || device.release(held.at(), step);
    found.must_hold(is_kept, rules::reclaim_keeps_used_memory, held);
  }
}

/// A function of a capability, and whether a provider has it as the concept asks.
struct trial_function {
  const char* name;
  bool fits;
  bool says_it = true;  ///< whether a provider with this function means to have the capability
};
/// Requires that a provider with some functions of a concept has all of them. Otherwise a misspelt name, a
/// missing `noexcept` or another result type hides the capability from allocators.
template <std::size_t N>
void must_be_whole(provider_check_result& found, const char* whole, bool is_whole, bool has_some,
                   const trial_function (&functions)[N]) noexcept {
  const char* wrong = nullptr;
  for (const trial_function& each : functions) {
    has_some = has_some || (each.fits && each.says_it);
    if (!each.fits && wrong == nullptr) wrong = each.name;
  }
  if (is_whole || !has_some) return;
  tessera::detail::fixed_text why;
  if (wrong != nullptr)
    why.add(wrong).add(" is missing, is not noexcept or const as it must be, or has another result type");
  else
    why.add("one of its types does not fit");
  found.fail(rules::capabilities_are_whole, whole, why.c_str());
}

// clang-format off: it breaks requires-expressions in lists, and what follows them
/// Requires that each capability has all its functions.
template <provider::device_provider D>
void capabilities(provider_check_result& found) {
  namespace own = tessera::detail;
  using provider::importers;
  using std::same_as;
  // For a function that is a capability by itself.
  const auto must_be = [&found](bool fits, bool exists, const char* name) {
    must_be_whole(found, "of a capability", fits, exists, {{name, fits}});
  };
  must_be(own::measured_provider<D>, requires(D& d) { d.available(); }, "available()");
  must_be(own::limited_provider<D>, requires(D& d) { d.would_exceed_limit(1); }, "would_exceed_limit(bytes)");
  must_be(own::limit_explaining_provider<D>, requires(D& d) { d.explain_limit(1); }, "explain_limit(bytes)");
  must_be(own::reclaiming_provider<D>, requires(D& d) { d.reclaim(); }, "reclaim()");
  must_be(own::explaining_provider<D>, requires(D& d) { d.take_refusal(); }, "take_refusal()");
  must_be(own::event_counting_provider<D>, requires(D& d) { d.live_events(); }, "live_events()");
  must_be(own::stream_listing_provider<D>, requires(D& d, stream_id s) { d.has_stream(s); },
          "has_stream(stream)");
  must_be(provider::paged_provider<D>, requires(D& d) { d.acquire(1, page_kind{}); }, "acquire(bytes, kind)");
  if constexpr (requires { typename D::event; }) {
    using event = typename D::event;
    must_be_whole(
        found, "of event_provider", provider::event_provider<D>,
        requires(D& d, stream_id s, event& e) { d.record(s, e); },
        {{"record(stream, event)",
          requires(D& d, stream_id s, event& e) { { d.record(s, e) } noexcept -> same_as<bool>; }},
         {"query(event)", requires(D& d, event& e) { { d.query(e) } noexcept -> same_as<bool>; }},
         {"wait(event)", requires(D& d, event& e) { { d.wait(e) } noexcept -> same_as<bool>; }},
         {"discard(event)", requires(D& d, event& e) { { d.discard(e) } noexcept; }}});
  }
  must_be_whole(
      found, "of ordering_provider", provider::ordering_provider<D>,
      requires(D& d, stream_id s) { d.make_wait(s, s, 1); },
      {{"position(stream)",
        requires(D& d, stream_id s) { { d.position(s) } noexcept -> same_as<std::uint64_t>; }},
       {"is_done(stream, position)",
        requires(D& d, stream_id s) { { d.is_done(s, 1) } noexcept -> same_as<bool>; }},
       {"is_ordered_after(stream, other, position)",
        requires(D& d, stream_id s) { { d.is_ordered_after(s, s, 1) } noexcept -> same_as<bool>; }},
       {"make_wait(stream, other, position)",
        requires(D& d, stream_id s) { { d.make_wait(s, s, 1) } noexcept -> same_as<bool>; }},
       {"record(stream, event)", provider::event_provider<D>, false}});
  if constexpr (requires { requires !std::is_empty_v<typename D::physical>; }) {
    using physical = typename D::physical;
    must_be_whole(
        found, "of virtual_memory_provider", provider::virtual_memory_provider<D>,
        requires(D& d) { d.reserve(1, 1); },
        {{"map_grants_access", requires { { D::map_grants_access } -> std::convertible_to<bool>; }, false},
         {"unmap_wants_size", requires { { D::unmap_wants_size } -> std::convertible_to<bool>; }, false},
         {"page_size(kind)",
          requires(const D& d, page_kind k) { { d.page_size(k) } noexcept -> same_as<std::size_t>; }, false},
         {"reserve(bytes, alignment)", requires(D& d) { { d.reserve(1, 1) } noexcept -> same_as<void*>; }},
         {"unreserve(p, bytes)",
          requires(D& d, void* p) { { d.unreserve(p, 1) } noexcept -> same_as<bool>; }},
         {"create(bytes, kind, m)",
          requires(D& d, page_kind k, physical& m) { { d.create(1, k, m) } noexcept -> same_as<bool>; }},
         {"destroy(m)", requires(D& d, const physical& m) { { d.destroy(m) } noexcept -> same_as<bool>; }},
         {"map(p, bytes, m)",
          requires(D& d, void* p, const physical& m) { { d.map(p, 1, m) } noexcept -> same_as<bool>; }},
         {"grant(p, bytes)", requires(D& d, void* p) { { d.grant(p, 1) } noexcept -> same_as<bool>; }},
         {"unmap(p, bytes)", requires(D& d, void* p) { { d.unmap(p, 1) } noexcept -> same_as<bool>; }},
         {"synchronize(stream)",
          requires(D& d, stream_id s) { { d.synchronize(s) } noexcept -> same_as<bool>; }, false}});
    if constexpr (requires { typename D::shareable; }) {
      using shareable = typename D::shareable;
      must_be_whole(
          found, "of sharing_provider", provider::sharing_provider<D>,
          provider::virtual_memory_provider<D> && requires(D& d) { d.process(); },
          {{"process()", requires(const D& d) { { d.process() } noexcept -> same_as<std::int32_t>; }, false},
           {"export_memory(m, importers, s)",
            requires(D& d, const physical& m, importers who, shareable& s) {
              { d.export_memory(m, who, s) } noexcept -> same_as<bool>;
            }},
           {"allow(s, process)",
            requires(D& d, const shareable& s) { { d.allow(s, 1) } noexcept -> same_as<bool>; }},
           {"import_memory(s, m)", requires(D& d, const shareable& s, physical& m) {
              { d.import_memory(s, m) } noexcept -> same_as<bool>;
            }}});
    }
  }
  must_be_whole(
      found, "of registering_provider", provider::registering_provider<D>,
      requires(D& d, void* p) { d.register_memory(p, 1); },
      {{"register_memory(p, bytes)",
        requires(D& d, void* p) { { d.register_memory(p, 1) } noexcept -> same_as<bool>; }},
       {"unregister_memory(p)",
        requires(D& d, void* p) { { d.unregister_memory(p) } noexcept -> same_as<bool>; }}});
  must_be_whole(
      found, "of copying_provider", provider::copying_provider<D>,
      requires(D& d, void* p, stream_id s) { d.copy_to_host(p, p, 1, s); },
      {{"copy_to_host(to, from, bytes, stream)",
        requires(D& d, void* p, stream_id s) { { d.copy_to_host(p, p, 1, s) } noexcept -> same_as<bool>; }},
       {"copy_to_device(to, from, bytes, stream)",
        requires(D& d, void* p, stream_id s) { { d.copy_to_device(p, p, 1, s) } noexcept -> same_as<bool>; }},
       {"record(stream, event)", provider::event_provider<D>, false}});
}

}  // namespace tessera::inline v0_1::law::detail
