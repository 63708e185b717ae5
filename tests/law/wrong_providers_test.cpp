// SPDX-License-Identifier: Apache-2.0
// One right provider, and providers that are wrong in one way each. law::provider finds each of them, on a
// small and on a huge device, and its message names the rule and the values.
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tessera/law/provider_laws.hpp>
#include <tessera/provider/adaptor.hpp>
#include <tessera/provider/host_pinned.hpp>
#include <tessera/provider/simulated_device.hpp>

#include "../by_day.hpp"

namespace {

using namespace tessera;

/// A fault of a driver.
enum class fault : unsigned char {
  none,
  // segments and their amount
  capacity_is_1024_times_too_large,
  capacity_is_doubled,
  capacity_is_1024_times_too_small,
  granularity_is_zero,
  granularity_is_no_power_of_two,
  acquire_rounds_down,
  acquire_gives_the_end_of_the_address_space,
  acquire_gives_the_same_twice,
  acquire_is_misaligned,
  large_segments_overlap,
  large_segments_are_misaligned,
  acquire_fails_for_ever_after_a_refusal,
  acquire_leaks_when_it_refuses,
  acquire_gives_garbage_when_it_refuses,
  release_never_frees,
  release_frees_half,
  release_fails,
  release_forgets_large_segments,
  release_accepts_all,
  release_leaks_rarely,
  // free memory
  available_never_changes,
  available_counts_kib,
  available_is_more_than_the_capacity,
  available_never_rises,
  would_exceed_limit_is_always_true,
  reclaim_is_always_true,
  reasons_are_never_forgotten,
  reasons_are_given_for_success,
  // page kinds
  huge_pages_are_never_freed,
  huge_pages_overlap,
  kinds_ignore_the_capacity,
  page_size_is_zero,
  page_size_is_no_power_of_two,
  page_size_ignores_the_kind,
  page_size_alternates,
  // events
  query_is_always_true,
  query_is_never_true,
  query_waits,
  query_asks_the_whole_stream,
  query_fails_at_times,
  events_expire_after_1_ms,
  events_are_a_ring_of_8,
  events_are_at_most_16,
  wait_does_nothing,
  wait_always_fails,
  record_ignores_the_stream,
  record_marks_the_beginning,
  record_fails_after_1000_events,
  discard_leaks,
  discard_ends_other_events,
  synchronize_does_nothing,
  synchronize_ignores_the_stream,
  // order
  is_done_is_always_true,
  is_ordered_after_is_always_true,
  make_wait_orders_nothing,
  make_wait_forgets_the_order,
  position_never_grows,
  // virtual memory
  reserve_takes_memory,
  reserve_ignores_the_alignment,
  reserve_aligns_to_one_page,
  reserve_refuses_large_ranges,
  unreserve_leaks_addresses,
  unreserve_accepts_all,
  create_ignores_the_capacity,
  create_changes_the_handle_when_it_fails,
  create_accepts_parts_of_pages,
  create_counts_live_memory,
  destroy_leaks,
  destroy_frees_mapped_memory,
  destroy_accepts_all,
  map_accepts_mapped_addresses,
  map_goes_past_the_end,
  map_begins_before_the_range,
  map_changes_the_capacity,
  map_fails_the_second_time,
  grant_accepts_all,
  unmap_does_nothing,
  unmap_leaks_destroyed_memory,
  // other memory
  copies_refuse,
  copies_go_anywhere,
  registers_twice,
  unregister_leaks,
  unregister_ends_all,
  import_accepts_all,
  export_ignores_the_list,
  last
};

/// A device of `fault::none` is right.
struct device : provider::simulated_device {
  explicit device(std::size_t bytes, fault planted = fault::none)
      : provider::simulated_device({.capacity = bytes}), wrong(planted), size(bytes) {}
  [[nodiscard]] bool is(fault which) const noexcept { return wrong == which; }

  [[nodiscard]] std::size_t capacity() const noexcept {
    return is(fault::capacity_is_1024_times_too_large)                 ? size * 1024
           : is(fault::capacity_is_doubled)                            ? size * 2
           : is(fault::capacity_is_1024_times_too_small)               ? size / 1024
           : is(fault::map_changes_the_capacity) && held().mapped != 0 ? size / 2
                                                                       : size;
  }
  [[nodiscard]] std::size_t granularity() const noexcept {
    return is(fault::granularity_is_zero)              ? 0
           : is(fault::granularity_is_no_power_of_two) ? 768
                                                       : provider::simulated_device::granularity();
  }
  [[nodiscard]] std::size_t available() const noexcept {
    const std::size_t left = capacity() > used() ? capacity() - used() : 0;
    if (is(fault::available_never_changes)) return capacity();
    if (is(fault::available_counts_kib)) return capacity() - used() / 1024;
    if (is(fault::available_is_more_than_the_capacity)) return left + 1_MiB;
    if (is(fault::available_never_rises)) return capacity() - peak_used();
    if (is(fault::destroy_frees_mapped_memory)) return left + destroyed_but_mapped;
    return left;
  }
  [[nodiscard]] bool would_exceed_limit(std::size_t bytes) const noexcept {
    return is(fault::would_exceed_limit_is_always_true) || bytes > capacity() - used();
  }
  bool reclaim() const noexcept { return is(fault::reclaim_is_always_true); }
  refusal take_refusal() noexcept {
    if (is(fault::reasons_are_never_forgotten) && refused) return refusal("the device is full");
    if (is(fault::reasons_are_given_for_success) && latest_succeeded) return refusal("the device is fine");
    return provider::simulated_device::take_refusal();
  }

  void* acquire(std::size_t bytes, page_kind kind = page_kind::normal) noexcept {
    if (is(fault::acquire_fails_for_ever_after_a_refusal) && refused) return nullptr;
    if (is(fault::acquire_rounds_down) && bytes > 4_KiB) {
      void* const p = provider::simulated_device::acquire(bytes / 4_KiB * 4_KiB / 2, kind);
      if (p != nullptr) short_of.push_back({p, bytes});
      return p;
    }
    if (is(fault::kinds_ignore_the_capacity) && kind == page_kind::huge && bytes > size)
      return reinterpret_cast<void*>(std::uintptr_t{1} << 40);
    void* p = provider::simulated_device::acquire(bytes, kind);
    latest_succeeded = p != nullptr;
    if (p == nullptr) {
      refused = true;
      if (is(fault::acquire_leaks_when_it_refuses)) (void)provider::simulated_device::acquire(size / 4);
      if (is(fault::acquire_gives_garbage_when_it_refuses))
        return reinterpret_cast<void*>(~std::uintptr_t{0});
      return nullptr;
    }
    if (is(fault::acquire_gives_the_end_of_the_address_space)) {
      (void)provider::simulated_device::release(p, bytes);
      return reinterpret_cast<void*>(~std::uintptr_t{511});
    }
    if (is(fault::acquire_gives_the_same_twice)) {
      if (latest != nullptr) return latest;
      latest = p;
    }
    if (bytes >= 128_MiB && is(fault::large_segments_overlap)) {
      if (large == nullptr) return large = p;
      (void)provider::simulated_device::release(p, bytes);
      return large;
    }
    if (bytes >= 128_MiB && is(fault::large_segments_are_misaligned)) return static_cast<char*>(p) + 64;
    if (is(fault::huge_pages_overlap) && kind.size == page_kind::page_size::huge)
      return huge != nullptr ? huge : huge = p;
    if (is(fault::huge_pages_overlap) && kind == page_kind::huge_1g && huge != nullptr) return huge;
    return is(fault::acquire_is_misaligned) ? static_cast<char*>(p) + 64 : p;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    if (is(fault::release_fails)) return false;
    if (is(fault::release_never_frees)) return true;
    if (is(fault::release_leaks_rarely) && ++records % 100 == 0) return true;
    if (is(fault::large_segments_are_misaligned) && bytes >= 128_MiB) p = static_cast<char*>(p) - 64;
    if (p == large && is(fault::large_segments_overlap)) large = nullptr;
    if (is(fault::release_forgets_large_segments) && bytes > 100_MiB) return true;
    if (is(fault::huge_pages_are_never_freed) && bytes % 2_MiB == 0) return true;
    if (is(fault::release_frees_half)) {
      if (!provider::simulated_device::release(p, bytes)) return false;
      if (bytes >= 1024) (void)provider::simulated_device::acquire(bytes / 2 / 512 * 512);
      return true;
    }
    for (auto& [at, asked] : short_of)
      if (at == p) return asked == bytes && provider::simulated_device::release(p, bytes / 4_KiB * 4_KiB / 2);
    return provider::simulated_device::release(p, bytes) || is(fault::release_accepts_all) ||
           is(fault::huge_pages_overlap);
  }
  [[nodiscard]] std::size_t page_size(page_kind kind) const noexcept {
    if (is(fault::page_size_is_zero)) return 0;
    if (is(fault::page_size_is_no_power_of_two)) return 3 * provider::simulated_device::page_size(kind);
    if (is(fault::page_size_alternates) && ++page_sizes_asked % 2 == 0)
      return 2 * provider::simulated_device::page_size(kind);
    return is(fault::page_size_ignores_the_kind) ? 2_MiB : provider::simulated_device::page_size(kind);
  }

  bool record(stream_id s, event& mark) noexcept {
    if (is(fault::record_fails_after_1000_events) && ++records > 1000) return false;
    if (is(fault::events_are_at_most_16) && live_events() >= 16) return false;
    if (is(fault::record_ignores_the_stream)) return provider::simulated_device::record({}, mark);
    if (!provider::simulated_device::record(s, mark)) return false;
    if (is(fault::record_marks_the_beginning)) mark.ready_ns = 0;
    if (is(fault::events_are_a_ring_of_8)) ring[mark.serial] = ++records;
    if (is(fault::events_expire_after_1_ms)) recorded_at[mark.serial] = std::chrono::steady_clock::now();
    return true;
  }
  bool query(event& mark) noexcept {
    if (is(fault::query_waits)) return provider::simulated_device::wait(mark);
    if (is(fault::query_asks_the_whole_stream)) return is_done(mark.stream, position(mark.stream));
    if (is(fault::query_fails_at_times) && ++queries % 40 == 0) return false;
    if (is(fault::events_are_a_ring_of_8) && ring[mark.serial] + 8 <= records) return false;
    if (is(fault::events_expire_after_1_ms) &&
        std::chrono::steady_clock::now() - recorded_at[mark.serial] > std::chrono::milliseconds(1))
      return false;
    if (is(fault::discard_ends_other_events) && ended_events != 0) return false;
    const bool ready = provider::simulated_device::query(mark);
    return is(fault::query_is_always_true) || (ready && !is(fault::query_is_never_true));
  }
  bool wait(event& mark) noexcept {
    if (is(fault::wait_always_fails)) return false;
    return is(fault::wait_does_nothing) || provider::simulated_device::wait(mark);
  }
  void discard(event& mark) noexcept {
    ++ended_events;
    if (!is(fault::discard_leaks)) provider::simulated_device::discard(mark);
  }
  bool synchronize(stream_id s) noexcept {
    if (is(fault::synchronize_ignores_the_stream)) return provider::simulated_device::synchronize({});
    return is(fault::synchronize_does_nothing) || provider::simulated_device::synchronize(s);
  }
  [[nodiscard]] bool is_done(stream_id s, std::uint64_t at) const noexcept {
    return is(fault::is_done_is_always_true) || provider::simulated_device::is_done(s, at);
  }
  [[nodiscard]] bool is_ordered_after(stream_id s, stream_id of, std::uint64_t at) const noexcept {
    return is(fault::is_ordered_after_is_always_true) ||
           (is(fault::make_wait_orders_nothing) && waits.contains({s.handle, of.handle})) ||
           provider::simulated_device::is_ordered_after(s, of, at);
  }
  bool make_wait(stream_id s, stream_id of, std::uint64_t at) noexcept {
    if (is(fault::make_wait_forgets_the_order)) return submit(s, 0), true;
    if (!is(fault::make_wait_orders_nothing)) return provider::simulated_device::make_wait(s, of, at);
    waits.insert({s.handle, of.handle});
    return submit(s, 0), true;
  }
  [[nodiscard]] std::uint64_t position(stream_id s) const noexcept {
    return is(fault::position_never_grows) ? 7 : provider::simulated_device::position(s);
  }

  void* reserve(std::size_t bytes, std::size_t to) noexcept {
    if (is(fault::unreserve_leaks_addresses) && (leaked += bytes) > 8 * size) return nullptr;
    if (is(fault::reserve_takes_memory) && provider::simulated_device::acquire(bytes) == nullptr)
      return nullptr;
    if (is(fault::reserve_refuses_large_ranges) && bytes > 1_MiB) return nullptr;
    if (is(fault::reserve_aligns_to_one_page)) to = 2_MiB;
    if (is(fault::reserve_ignores_the_alignment)) {
      void* const p = provider::simulated_device::reserve(bytes + 4_KiB, 4_KiB);
      return p == nullptr ? nullptr : static_cast<char*>(p) + 4_KiB;
    }
    return provider::simulated_device::reserve(bytes, to);
  }
  bool unreserve(void* p, std::size_t bytes) noexcept {
    return provider::simulated_device::unreserve(p, bytes) || is(fault::unreserve_accepts_all);
  }
  bool create(std::size_t bytes, page_kind kind, physical& made) noexcept {
    if (is(fault::create_ignores_the_capacity) && bytes > size / 2 && bytes % 2_MiB == 0)
      return made = {1'000'000 + ++records}, true;
    if (is(fault::create_accepts_parts_of_pages) && bytes % page_size(kind) != 0)
      return made = {1'000'000 + ++records}, true;
    const bool created = provider::simulated_device::create(bytes, kind, made);
    if (created && is(fault::create_counts_live_memory)) {
      const physical real = made;
      made = {++live};
      named[live] = real;
    }
    if (!created && is(fault::create_changes_the_handle_when_it_fails)) made = {77};
    return created;
  }
  bool destroy(const physical& made) noexcept {
    if (is(fault::destroy_leaks) && made.number != 0) return true;
    if (is(fault::create_counts_live_memory) && made.number != 0)
      return --live, provider::simulated_device::destroy(named[made.number]);
    if (is(fault::destroy_frees_mapped_memory)) {
      const std::size_t before = used();
      const bool done = provider::simulated_device::destroy(made);
      if (done && used() == before) destroyed_but_mapped = sizes[made.number];
      return done;
    }
    return provider::simulated_device::destroy(made) || is(fault::destroy_accepts_all);
  }
  bool map(void* p, std::size_t bytes, const physical& made) noexcept {
    if (is(fault::create_counts_live_memory))
      return provider::simulated_device::map(p, bytes, named[made.number]);
    if (is(fault::destroy_frees_mapped_memory)) sizes[made.number] = bytes;
    if (is(fault::map_fails_the_second_time) && !mapped_once.insert(made.number).second) return false;
    if (provider::simulated_device::map(p, bytes, made)) return true;
    const bool is_outside = std::string_view(last_error()).find("reserved") != std::string_view::npos;
    if (is_outside && (is(fault::map_goes_past_the_end) || is(fault::map_begins_before_the_range))) {
      // Whether the range is before or behind the mapping.
      const std::size_t step = 2_MiB;
      physical probe;
      if (!provider::simulated_device::create(step, page_kind::normal, probe)) return false;
      const auto at = reinterpret_cast<std::uintptr_t>(p);
      auto* const beside = reinterpret_cast<void*>(is(fault::map_goes_past_the_end) ? at - step : at + step);
      const bool is_beside = provider::simulated_device::map(beside, step, probe) &&
                             provider::simulated_device::unmap(beside, step);
      (void)provider::simulated_device::destroy(probe);
      return is_beside;
    }
    return is(fault::map_accepts_mapped_addresses) &&
           std::string_view(last_error()).find("mapped here") != std::string_view::npos;
  }
  bool grant(void* p, std::size_t bytes) noexcept {
    return provider::simulated_device::grant(p, bytes) || is(fault::grant_accepts_all);
  }
  bool unmap(void* p, std::size_t bytes) noexcept {
    if (is(fault::unmap_does_nothing)) return true;
    destroyed_but_mapped = 0;
    const std::size_t before = used();
    const bool unmapped = provider::simulated_device::unmap(p, bytes);
    if (unmapped && is(fault::unmap_leaks_destroyed_memory) && used() < before) {
      physical lost;
      (void)provider::simulated_device::create(bytes, page_kind::normal, lost);
    }
    return unmapped;
  }

  bool copy_to_device(void* to, const void* from, std::size_t bytes, stream_id s) noexcept {
    if (is(fault::copies_refuse)) return false;
    return provider::simulated_device::copy_to_device(to, from, bytes, s) || is(fault::copies_go_anywhere);
  }
  bool register_memory(void* p, std::size_t bytes) noexcept {
    const auto at = reinterpret_cast<std::uintptr_t>(p);
    if (at % 4_KiB != 0 || (is(fault::unregister_leaks) && ++registrations > 10)) return false;
    for (const auto& [begin, held] : registered)
      if (at < begin + held && begin < at + bytes) return is(fault::registers_twice);
    registered.insert({at, bytes});
    return true;
  }
  bool unregister_memory(void* p) noexcept {
    for (auto at = registered.begin(); at != registered.end(); ++at) {
      if (at->first != reinterpret_cast<std::uintptr_t>(p)) continue;
      is(fault::unregister_ends_all) ? registered.clear() : void(registered.erase(at));
      return true;
    }
    return false;
  }
  bool import_memory(const shareable& name, physical& made) noexcept {
    return provider::simulated_device::import_memory(name, made) ||
           (is(fault::import_accepts_all) &&
            provider::simulated_device::create(2_MiB, page_kind::normal, made));
  }
  bool export_memory(const physical& made, provider::importers who, shareable& name) noexcept {
    return provider::simulated_device::export_memory(
        made, is(fault::export_ignores_the_list) ? provider::importers::any : who, name);
  }

  fault wrong;
  std::size_t size;
  bool latest_succeeded = false;
  bool refused = false;
  void *latest = nullptr, *huge = nullptr, *large = nullptr;
  std::vector<std::pair<void*, std::size_t>> short_of{};
  std::size_t ended_events = 0, leaked = 0, registrations = 0, destroyed_but_mapped = 0;
  std::uint64_t records = 0, queries = 0, live = 0;
  mutable std::uint64_t page_sizes_asked = 0;
  std::map<std::uint64_t, std::uint64_t> ring{};
  std::map<std::uint64_t, std::chrono::steady_clock::time_point> recorded_at{};
  std::map<std::uint64_t, physical> named{};
  std::map<std::uint64_t, std::size_t> sizes{};
  std::set<std::pair<std::uint64_t, std::uint64_t>> waits{};
  std::set<std::uint64_t> mapped_once{};
  std::set<std::pair<std::uintptr_t, std::size_t>> registered{};
};
static_assert(provider::ordering_provider<device> && provider::paged_provider<device> &&
              provider::sharing_provider<device> && provider::registering_provider<device> &&
              provider::copying_provider<device>);

struct row {
  fault planted;
  std::string_view rule;
  std::string_view value = {};  ///< a name that the message gives with its value
  bool on_request = false;      ///< only if wrong releases are tried
};
constexpr std::string_view can_acquire = "three quarters of the memory can be acquired";
constexpr std::string_view beyond = "acquire refuses more than the capacity";
constexpr std::string_view page_size =
    "the page size is a power of two and a multiple of the kind's granularity";
constexpr std::string_view early = "no event is ready before its work is done";
constexpr std::string_view synchronized = "synchronize returns after the work is done";
constexpr std::string_view in_advance = "no stream is ordered after work that was not submitted";
constexpr row rows[] = {
    {fault::capacity_is_1024_times_too_large, can_acquire, "capacity"},
    {fault::capacity_is_doubled, can_acquire, "taken"},
    {fault::capacity_is_1024_times_too_small, beyond, "capacity"},
    {fault::granularity_is_zero, "the granularity is a power of two, at least min_alignment", "granularity"},
    {fault::granularity_is_no_power_of_two, "the granularity is a power of two, at least min_alignment",
     "granularity"},
    {fault::acquire_rounds_down, beyond, "held already"},
    {fault::acquire_gives_the_end_of_the_address_space, "segments end inside the address space", "address"},
    {fault::acquire_gives_the_same_twice, "segments do not overlap", "other address"},
    {fault::acquire_is_misaligned, "segments start at a multiple of the granularity", "address"},
    {fault::large_segments_overlap, "segments do not overlap", "other address"},
    {fault::large_segments_are_misaligned, "segments start at a multiple of the granularity", "address"},
    {fault::acquire_fails_for_ever_after_a_refusal, "a refused acquire changes nothing", "bytes"},
    {fault::acquire_leaks_when_it_refuses, "a refused acquire changes nothing", "available before"},
    {fault::acquire_gives_garbage_when_it_refuses, beyond, "address"},
    {fault::release_never_frees, {}},
    {fault::release_frees_half, "available rises when memory is released", "now"},
    {fault::release_fails, "release accepts an acquired segment", "address"},
    {fault::release_forgets_large_segments, "available rises when memory is released", "released"},
    {fault::release_accepts_all, "release refuses an address inside a segment", "segment", true},
    {fault::release_leaks_rarely, "available rises when memory is released", "available before"},
    {fault::available_never_changes, "available falls when memory is acquired", "acquired"},
    {fault::available_counts_kib, "available falls by what is acquired", "taken"},
    {fault::available_is_more_than_the_capacity, "available is at most the capacity", "capacity"},
    {fault::available_never_rises, "available falls when memory is acquired", "now"},
    {fault::would_exceed_limit_is_always_true, "acquire refuses what would exceed the limit", "bytes"},
    {fault::reclaim_is_always_true, "reclaim returns false once nothing is idle", "calls"},
    {fault::reasons_are_never_forgotten, "a reason is taken once", "taken"},
    {fault::reasons_are_given_for_success, "a call that succeeds gives no reason", "address"},
    {fault::huge_pages_are_never_freed, {}},
    {fault::huge_pages_overlap, {}},
    {fault::kinds_ignore_the_capacity, beyond, "kind 2 MiB pages"},
    {fault::page_size_is_zero, page_size, "page size 0"},
    {fault::page_size_is_no_power_of_two, page_size, "page size 6291456"},
    {fault::page_size_ignores_the_kind, page_size, "kind 1 GiB pages"},
    {fault::page_size_alternates, "the page size is constant", "now"},
    {fault::query_is_always_true, early, "stream 0"},
    {fault::query_is_never_true, "an event is ready after a wait for it", "stream"},
    {fault::query_waits, "query and is_done do not wait", "work ended in 5"},
    {fault::query_asks_the_whole_stream, "a ready event stays ready", "stream"},
    {fault::query_fails_at_times, "a ready event stays ready", "queries"},
    {fault::events_expire_after_1_ms, {}, "stream"},  // by an earlier law if the machine is slow
    {fault::events_are_a_ring_of_8, "a ready event stays ready", "after further records"},
    {fault::events_are_at_most_16, "many events can be live at a time", "live events 15"},
    {fault::wait_does_nothing, "wait returns after the work is done", "stream"},
    {fault::wait_always_fails, "wait returns after the work is done", "returned false"},
    {fault::record_ignores_the_stream, early, "stream 1"},
    {fault::record_marks_the_beginning, early, "stream"},
    {fault::record_fails_after_1000_events, "record succeeds after many discarded events", "discarded"},
    {fault::discard_leaks, "discard ends an event", "recorded and discarded 70000"},
    {fault::discard_ends_other_events, "discard changes no other event", "stream"},
    {fault::synchronize_does_nothing, synchronized, "stream 0"},
    {fault::synchronize_ignores_the_stream, synchronized, "stream 1"},
    {fault::is_done_is_always_true, "no position is done before its work is done", "stream"},
    {fault::is_ordered_after_is_always_true, in_advance, "position"},
    {fault::make_wait_orders_nothing, in_advance, "position"},
    {fault::make_wait_forgets_the_order, "a stream is ordered after the work that it waits for", "position"},
    {fault::position_never_grows, "a wait counts as work", "position 7"},
    {fault::reserve_takes_memory, {}},
    {fault::reserve_ignores_the_alignment, "a range begins at a multiple of the alignment", "alignment"},
    {fault::reserve_aligns_to_one_page, "a range begins at a multiple of the alignment", "alignment"},
    {fault::reserve_refuses_large_ranges, "reserve succeeds", "bytes"},
    {fault::unreserve_leaks_addresses, {}, "bytes"},
    {fault::unreserve_accepts_all, "unreserve refuses addresses that are not reserved", "address"},
    {fault::create_ignores_the_capacity, "create refuses more than the capacity", "held already"},
    {fault::create_changes_the_handle_when_it_fails, "a refused create leaves the handle as it was",
     "capacity"},
    {fault::create_accepts_parts_of_pages, "create refuses 0 bytes and parts of pages", "page size"},
    {fault::create_counts_live_memory, "created or imported memory has a handle of its own", "address"},
    {fault::destroy_leaks, {}},
    {fault::destroy_frees_mapped_memory, "destroyed memory stays mapped until unmap", "while still mapped"},
    {fault::destroy_accepts_all, "destroy and map refuse an empty handle", "bytes"},
    {fault::map_accepts_mapped_addresses, "map refuses addresses with mapped memory", "address"},
    {fault::map_goes_past_the_end, "map refuses addresses that are not reserved", "the range"},
    {fault::map_begins_before_the_range, "map refuses addresses that are not reserved", "the range"},
    {fault::map_changes_the_capacity, "capacity and granularity are constant", "while memory is mapped"},
    {fault::map_fails_the_second_time, "map succeeds at free addresses of a range", "address"},
    {fault::grant_accepts_all, "grant refuses addresses without mapped memory", "address"},
    {fault::unmap_does_nothing, "unmap refuses addresses without mapped memory", "address"},
    {fault::unmap_leaks_destroyed_memory, "destroyed memory can be created again"},
    {fault::copies_refuse, "copy_to_device accepts memory of the device", "device address"},
    {fault::copies_go_anywhere, "copies refuse device addresses without memory", "bytes"},
    {fault::registers_twice, "register_memory refuses registered memory", "address"},
    {fault::unregister_leaks, "unregistered memory can be registered again", "address"},
    {fault::unregister_ends_all, "unregister_memory changes no other registration", "address"},
    {fault::import_accepts_all, "import_memory refuses memory of the same process", "exporter 1"},
    {fault::export_ignores_the_list, "import_memory refuses a process that is not listed", "importer 2"},
};
static_assert(std::size(rows) + 1 == static_cast<std::size_t>(fault::last));
constexpr std::size_t sizes[] = {1_GiB, 1024_GiB};

/// Requires that the law found a rule, if it is given, and that the message is the rule, names and values.
void expect_found(const law::provider_check_result& found, std::string_view rule, std::string_view value,
                  const std::string& where) {
  ASSERT_FALSE(found) << where;
  const std::string_view message = found.message(), broken = found.broken;
  if (!rule.empty()) {
    EXPECT_EQ(broken, rule) << where;
  }
  ASSERT_TRUE(message.starts_with(std::string(broken) + ": ")) << where << message;
  const std::string_view values = message.substr(broken.size() + 2);
  EXPECT_NE(values.find(value), values.npos) << where << message;
  EXPECT_NE(values.find_first_of("0123456789"), values.npos) << where << message;
}

TEST(wrong_providers, the_right_one_obeys_all_laws) {
  for (const std::size_t size : sizes) {
    device right(size);
    const law::provider_check_result found = law::provider(right, {.tries_wrong_releases = true});
    EXPECT_TRUE(found) << found.report();
    ASSERT_EQ(found.not_checked().size(), 1u) << found.report();
    EXPECT_STREQ(found.not_checked()[0].law, "the contents of memory");
    EXPECT_FALSE(found.is_complete());
    EXPECT_EQ(right.used() + right.held().reserved + right.live_events(), 0u);
    EXPECT_LT(right.calls().acquire, 10'000u) << "few calls, however large the device is";
  }
}

TEST(wrong_providers, are_found_on_small_and_huge_devices) {
  // By day, each on one of them.
  std::size_t number = 0;
  for (const row& r : rows) {
    ++number;
    for (std::size_t of = 0; of < std::size(sizes); ++of) {
      if ((number + of) % by_day(2, 1) != 0) continue;
      const std::size_t size = sizes[of];
      device wrong(size, r.planted);
      const std::string where =
          std::to_string(static_cast<int>(r.planted)) + " on " + std::to_string(size >> 30) + " GiB: ";
      if (r.on_request) {
        EXPECT_TRUE(law::provider(wrong)) << where;
      }
      expect_found(law::provider(wrong, {.tries_wrong_releases = r.on_request}), r.rule, r.value, where);
    }
  }
}

/// A device that others use, too: a half of its memory is free.
struct half_free : provider::simulated_device {
  explicit half_free() : provider::simulated_device({.capacity = 2_GiB}) {
    (void)provider::simulated_device::acquire(1_GiB);
  }
};
TEST(wrong_providers, with_a_large_capacity_are_not_found_if_memory_is_said_to_be_missing) {
  half_free device;
  const law::provider_check_result found = law::provider(device);
  EXPECT_TRUE(found) << found.report();
  EXPECT_NE(found.report().find("not checked: a capacity that is too large: available() says"),
            std::string::npos)
      << found.report();
}

/// The message names the range that was given back although memory was mapped in it.
struct unreserves_mapped : provider::simulated_device {
  bool unreserve(void* p, std::size_t bytes) noexcept {
    return held().mapped != 0 || provider::simulated_device::unreserve(p, bytes);
  }
};
TEST(wrong_providers, are_described_by_addresses_before_the_call) {
  unreserves_mapped device;
  const law::provider_check_result found = law::provider(device);
  EXPECT_STREQ(found.broken, "unreserve refuses a range with mapped memory");
  EXPECT_EQ(std::string_view(found.message()).find("address 0x0"), std::string_view::npos) << found.message();
}

TEST(wrong_providers, are_found_behind_an_adaptor) {
  for (const fault planted : {fault::query_is_always_true, fault::discard_leaks,
                              fault::capacity_is_1024_times_too_large, fault::record_ignores_the_stream}) {
    device wrong(1_GiB, planted);
    provider::provider_ref<device> through(wrong);
    EXPECT_FALSE(law::provider(through));
  }
}

/// A fault of a driver of host memory, whose streams have work that takes time.
enum class host_fault : unsigned char {
  none,
  query_is_always_true,
  wait_does_nothing,
  synchronize_does_nothing,
  record_ignores_the_stream,
  is_done_is_always_true,
  make_wait_only_says_so,
  ended_streams_exist,
  record_accepts_ended_streams,
  copies_to_host_do_nothing,
  copies_to_the_device_do_nothing,
  copies_move_the_first_half,
  copies_ignore_offsets,
  last
};
struct host : provider::host_pinned {
  explicit host(std::size_t bytes, host_fault planted = host_fault::none)
      : provider::host_pinned({.capacity = bytes, .pin = pinning::never}), wrong(planted) {}
  [[nodiscard]] bool is(host_fault which) const noexcept { return wrong == which; }

  bool query(event& mark) noexcept {
    return is(host_fault::query_is_always_true) || provider::host_pinned::query(mark);
  }
  bool wait(event& mark) noexcept {
    return is(host_fault::wait_does_nothing) || provider::host_pinned::wait(mark);
  }
  bool synchronize(stream_id s) noexcept {
    return is(host_fault::synchronize_does_nothing) || provider::host_pinned::synchronize(s);
  }
  bool record(stream_id s, event& mark) noexcept {
    if (provider::host_pinned::record(is(host_fault::record_ignores_the_stream) ? stream_id{} : s, mark))
      return true;
    return is(host_fault::record_accepts_ended_streams) && provider::host_pinned::record({}, mark);
  }
  bool is_done(stream_id s, std::uint64_t at) noexcept {
    return is(host_fault::is_done_is_always_true) || provider::host_pinned::is_done(s, at);
  }
  bool make_wait(stream_id s, stream_id of, std::uint64_t at) noexcept {
    if (!is(host_fault::make_wait_only_says_so)) return provider::host_pinned::make_wait(s, of, at);
    ordered.insert({s.handle, of.handle, at});
    return submit(s, [] {});
  }
  bool is_ordered_after(stream_id s, stream_id of, std::uint64_t at) noexcept {
    return ordered.contains({s.handle, of.handle, at}) || provider::host_pinned::is_ordered_after(s, of, at);
  }
  bool has_stream(stream_id s) noexcept {
    return is(host_fault::ended_streams_exist) || provider::host_pinned::has_stream(s);
  }
  bool copy_to_host(void* to, const void* from, std::size_t bytes, stream_id s) noexcept {
    if (is(host_fault::copies_to_host_do_nothing)) return provider::host_pinned::copy_to_host(to, from, 0, s);
    if (is(host_fault::copies_move_the_first_half)) bytes = bytes / 2;
    return provider::host_pinned::copy_to_host(to, from, bytes, s);
  }
  bool copy_to_device(void* to, const void* from, std::size_t bytes, stream_id s) noexcept {
    if (is(host_fault::copies_to_the_device_do_nothing))
      return provider::host_pinned::copy_to_device(to, from, 0, s);
    if (is(host_fault::copies_ignore_offsets) && bytes < 64_KiB && latest != nullptr && to != nullptr)
      to = latest;
    return provider::host_pinned::copy_to_device(to, from, bytes, s);
  }
  void* acquire(std::size_t bytes, page_kind kind = page_kind::normal) noexcept {
    return latest = provider::host_pinned::acquire(bytes, kind);
  }

  host_fault wrong;
  void* latest = nullptr;
  std::set<std::array<std::uint64_t, 3>> ordered{};
};

/// Gives memory of the host whose second half shows the first; its streams have no work.
struct shared_segments : provider::simulated_device {
  static constexpr bool is_host_visible = true;
  explicit shared_segments(std::size_t bytes) : provider::simulated_device({.capacity = bytes}) {}
  void* acquire(std::size_t bytes, page_kind = page_kind::normal) noexcept {
    return provider::simulated_device::acquire(bytes);  // addresses that the host cannot read
  }
};

TEST(wrong_providers, over_host_memory_are_found) {
  constexpr std::string_view keeps = "a copy to the device and back keeps the bytes";
  constexpr struct {
    host_fault planted;
    std::string_view rule, value;
  } wrong_ones[] = {
      {host_fault::query_is_always_true, early, "stream"},
      {host_fault::wait_does_nothing, {}, "stream"},
      {host_fault::synchronize_does_nothing, synchronized, "stream"},
      {host_fault::record_ignores_the_stream, {}, "stream"},
      {host_fault::is_done_is_always_true, "no position is done before its work is done", "stream"},
      {host_fault::make_wait_only_says_so, {}, "position"},
      {host_fault::ended_streams_exist, "a stream that ended does not exist", "stream"},
      {host_fault::record_accepts_ended_streams, "record refuses a stream that does not exist", "stream"},
      {host_fault::copies_to_host_do_nothing, keeps, "first wrong byte 0"},
      {host_fault::copies_to_the_device_do_nothing, keeps, "first wrong byte 0"},
      {host_fault::copies_move_the_first_half, keeps, "first wrong byte 32768"},
      {host_fault::copies_ignore_offsets, keeps, "device address"},
  };
  std::size_t number = 0;
  for (const std::size_t size : sizes) {
    ++number;
    for (const auto& [planted, rule, value] : wrong_ones) {
      if (++number % by_day(2, 1) != 0) continue;  // by day, each on one of them
      host wrong(size, planted);
      expect_found(
          law::provider(wrong, {.at_once = 256_KiB}), rule, value,
          std::to_string(static_cast<int>(planted)) + " on " + std::to_string(size >> 30) + " GiB: ");
    }
    shared_segments unreadable(size);
    expect_found(law::provider(unreadable), "the host can read a segment from end to end", "address", "");
    host right(size);
    const law::provider_check_result found =
        law::provider(right, {.at_once = 256_KiB, .tries_wrong_releases = true});
    EXPECT_TRUE(found) << found.report();
    EXPECT_EQ(right.held(), provider::host_pinned::holdings{});
    constexpr bool shares = provider::sharing_provider<provider::host_pinned>;  // not on Windows
    ASSERT_EQ(found.not_checked().size(), shares ? 2u : 1u) << found.report();
    EXPECT_STREQ(found.not_checked()[0].law, "the amount of memory");
    if (shares) {
      EXPECT_STREQ(found.not_checked()[1].law, "sharing between processes");
    }
  }
}

/// Four functions over an array of 1,024 parts. Its atomic operations are not one operation each.
template <bool IsThreadSafe>
struct parts {
  static constexpr bool is_thread_safe = true;
  explicit parts(std::size_t bytes) : part(bytes / 1024) {}

  void* acquire(std::size_t bytes) noexcept {
    std::unique_lock<std::mutex> lock = guard();
    for (std::size_t i = 0, run = 0; i < 1024; ++i) {
      run = taken[i].load() ? 0 : run + 1;
      if (run == 0 || run * part != bytes) continue;
      if (!IsThreadSafe) std::this_thread::yield();
      for (std::size_t j = i + 1 - run; j <= i; ++j) taken[j].store(true);
      return reinterpret_cast<void*>((i + 1 - run + 1024) * part);
    }
    return nullptr;
  }
  bool release(void* p, std::size_t bytes) noexcept {
    std::unique_lock<std::mutex> lock = guard();
    const std::size_t first = reinterpret_cast<std::uintptr_t>(p) / part - 1024;
    for (std::size_t i = first; i < first + bytes / part; ++i) taken[i].store(false);
    return true;
  }
  [[nodiscard]] std::size_t capacity() const noexcept { return 1024 * part; }
  [[nodiscard]] std::size_t granularity() const noexcept { return part; }
  [[nodiscard]] std::unique_lock<std::mutex> guard() noexcept {
    return IsThreadSafe ? std::unique_lock(*mutex) : std::unique_lock<std::mutex>();
  }
  std::size_t part;
  std::unique_ptr<std::array<std::atomic<bool>, 1024>> owned =
      std::make_unique<std::array<std::atomic<bool>, 1024>>();
  std::array<std::atomic<bool>, 1024>& taken = *owned;
  std::unique_ptr<std::mutex> mutex = std::make_unique<std::mutex>();
};
template <bool IsThreadSafe>
struct movable_parts : parts<IsThreadSafe> {
  using parts<IsThreadSafe>::parts;
  movable_parts(movable_parts&&) noexcept : parts<IsThreadSafe>(0) { std::abort(); }
  movable_parts& operator=(movable_parts&&) noexcept { std::abort(); }
};

TEST(wrong_providers, that_are_not_thread_safe_are_found) {
  for (const std::size_t size : sizes) {
    movable_parts<true> right(size);
    const law::provider_check_result found = law::provider(right);
    EXPECT_TRUE(found) << found.report();
    movable_parts<false> wrong(size);
    expect_found(law::provider(wrong), {}, "address", "");
  }
}

/// A function without noexcept hides a capability from allocators.
struct throws : provider::simulated_device {
  [[nodiscard]] std::size_t available() const { return provider::simulated_device::available(); }
};
struct not_const : provider::simulated_device {
  std::size_t available() noexcept { return provider::simulated_device::available(); }
};
struct refusal_throws : provider::simulated_device {
  refusal take_refusal() { return provider::simulated_device::take_refusal(); }
};
struct record_is_misspelt : provider::simulated_device {
  void record(stream_id, event&) = delete;
};
struct no_reserve : provider::simulated_device {
  void reserve(std::size_t, std::size_t) = delete;
};
struct no_wait_of_streams : provider::simulated_device {
  void make_wait(stream_id, stream_id, std::uint64_t) = delete;
};
struct one_way : provider::simulated_device {
  void copy_to_host(void*, const void*, std::size_t, stream_id) = delete;
};
struct says_void : provider::simulated_device {
  void unreserve(void* p, std::size_t bytes) noexcept {
    (void)provider::simulated_device::unreserve(p, bytes);
  }
};
TEST(wrong_providers, with_half_a_capability_are_found) {
  constexpr std::string_view whole = "each capability has all its functions, which are noexcept";
  const auto expect_named = [&]<typename D>(D device, std::string_view named) {
    const law::provider_check_result found = law::provider(device);
    ASSERT_FALSE(found) << named;
    EXPECT_EQ(found.broken, whole);
    EXPECT_NE(std::string_view(found.message()).find(named), std::string_view::npos) << found.message();
  };
  expect_named(throws{}, "of a capability available() is missing, is not noexcept");
  expect_named(not_const{}, "available() is");
  expect_named(refusal_throws{}, "take_refusal() is");
  expect_named(record_is_misspelt{}, "of event_provider record(stream, event) is missing");
  expect_named(no_reserve{}, "of virtual_memory_provider reserve(bytes, alignment) is");
  expect_named(says_void{}, "of virtual_memory_provider unreserve(p, bytes) is");
  expect_named(no_wait_of_streams{}, "of ordering_provider make_wait(stream, other, position) is");
  expect_named(one_way{}, "of copying_provider copy_to_host(to, from, bytes, stream) is");
}

/// Work of a device that the law cannot submit itself.
struct plain : provider::simulated_device {
  using provider::simulated_device::simulated_device;
  void submit(stream_id) = delete;
};
struct means : law::provider_trial {
  explicit means(plain& on) : on_device(on) { other_stream = stream_id{3}; }
  void begin(stream_id s) {
    on_device.simulated_device::submit(s, 5'000'000);
    end = on_device.now_ns() + 5'000'000;
    ++begun;
  }
  [[nodiscard]] bool ended() const { return on_device.now_ns() >= end; }
  provider::simulated_device another_process() { return on_device.another_process(); }
  plain& on_device;
  std::uint64_t end = 0;
  int begun = 0;
};
TEST(wrong_providers, means_of_the_user_reach_further) {
  struct query_lies : plain {
    bool query(event&) noexcept { return true; }
  } wrong;
  const law::provider_check_result without = law::provider(wrong);
  EXPECT_TRUE(without);
  EXPECT_NE(without.report().find("events while work runs: the law cannot submit work"), std::string::npos)
      << without.report();
  means all(wrong);
  expect_found(law::provider(wrong, all), early, "stream 0", "");
  EXPECT_GT(all.begun, 0);
  plain right;
  means others(right);
  EXPECT_TRUE(law::provider(right, others)) << law::provider(right, others).report();
}

}  // namespace
