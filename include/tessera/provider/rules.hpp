// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__linux__)
#include <cerrno>

#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <tessera/core/types.hpp>
#include <tessera/provider/host_windows.hpp>

/// The rules of providers, each with one text. law::provider and checked_provider name the rule that a provider
/// breaks. The documents of the concepts explain the rules, in the same order [provider/provider.hpp,
/// provider/capabilities.hpp].

namespace tessera::inline v0_1::detail::rules {

struct rule {
  const char* text;
};

// Rules for all providers.
inline constexpr rule capabilities_are_whole{"each capability has all its functions, which are noexcept"};
inline constexpr rule threads_may_call_at_once{"several threads may call the provider at once"};
inline constexpr rule nothing_is_left{"the provider holds what it held before"};
inline constexpr rule failures_change_nothing{"a call that fails changes nothing"};

// For those that have the optional functions.
inline constexpr rule available_is_at_most_capacity{"available is at most the capacity"};
inline constexpr rule available_falls{"available falls when memory is acquired"};
inline constexpr rule available_falls_enough{"available falls by what is acquired"};
inline constexpr rule available_rises{"available rises when memory is released"};
inline constexpr rule reason_is_taken_once{"a reason is taken once"};
inline constexpr rule success_gives_no_reason{"a call that succeeds gives no reason"};
inline constexpr rule acquire_keeps_limit{"acquire refuses what would exceed the limit"};
inline constexpr rule more_exceeds_limit_too{"what exceeds the limit does so with more bytes, too"};
inline constexpr rule reclaim_ends{"reclaim returns false once nothing is idle"};
inline constexpr rule reclaim_keeps_used_memory{"reclaim keeps memory that is in use"};
inline constexpr rule default_stream_exists{"the default stream exists"};
inline constexpr rule record_refuses_missing_stream{"record refuses a stream that does not exist"};
inline constexpr rule make_wait_refuses_missing_stream{"make_wait refuses a stream that does not exist"};
inline constexpr rule missing_stream_is_synchronized{"synchronize succeeds for a stream that does not exist"};
inline constexpr rule missing_stream_is_done{"the work of a stream that does not exist is done"};
inline constexpr rule ended_stream_is_missing{"a stream that ended does not exist"};

// For those that declare is_host_visible.
inline constexpr rule host_reads_segments{"the host can read a segment from end to end"};
inline constexpr rule host_writes_change_one_segment{"a host write changes one segment, which keeps it"};
inline constexpr rule host_reads_mappings{"the host can read a mapping from end to end"};
inline constexpr rule host_writes_change_one_mapping{"a host write changes one mapping, which keeps it"};

// device_provider
inline constexpr rule granularity_is_valid{"the granularity is a power of two, at least min_alignment"};
inline constexpr rule capacity_is_large_enough{"the capacity is at least 8 times the granularity"};
inline constexpr rule sizes_are_constant{"capacity and granularity are constant"};
inline constexpr rule most_memory_can_be_acquired{"three quarters of the memory can be acquired"};
inline constexpr rule acquire_succeeds{"acquire succeeds below the capacity"};
inline constexpr rule acquire_keeps_capacity{"acquire refuses more than the capacity"};
inline constexpr rule refused_acquire_changes_nothing{"a refused acquire changes nothing"};
inline constexpr rule segments_are_aligned{"segments start at a multiple of the granularity"};
inline constexpr rule segments_end_in_address_space{"segments end inside the address space"};
inline constexpr rule segments_do_not_overlap{"segments do not overlap"};
inline constexpr rule release_succeeds{"release accepts an acquired segment"};
inline constexpr rule released_memory_can_be_acquired{"released memory can be acquired again"};
inline constexpr rule acquire_refuses_zero{"acquire refuses 0 bytes"};
inline constexpr rule release_refuses_inside{"release refuses an address inside a segment"};
inline constexpr rule release_refuses_released{"release refuses a segment that was released"};

// event_provider
inline constexpr rule record_succeeds{"record succeeds on the default stream"};
inline constexpr rule record_succeeds_again{"record succeeds again on the same stream"};
inline constexpr rule record_succeeds_on_busy_stream{"record succeeds on a busy stream"};
inline constexpr rule record_succeeds_after_many{"record succeeds after many discarded events"};
inline constexpr rule many_events_can_be_live{"many events can be live at a time"};
inline constexpr rule no_event_is_early{"no event is ready before its work is done"};
inline constexpr rule event_is_ready_after_wait{"an event is ready after a wait for it"};
inline constexpr rule ready_event_stays_ready{"a ready event stays ready"};
inline constexpr rule copies_of_event_agree{"copies of an event are ready at the same time"};
inline constexpr rule earlier_event_is_ready{"an event is ready if a later event of its stream is ready"};
inline constexpr rule query_does_not_wait{"query and is_done do not wait"};
inline constexpr rule wait_waits{"wait returns after the work is done"};
inline constexpr rule discard_changes_one_event{"discard changes no other event"};
inline constexpr rule discard_ends_event{"discard ends an event"};
inline constexpr rule ended_stream_is_done{"the work of a stream that ended is done"};

// ordering_provider
inline constexpr rule record_and_wait_succeed{"record and wait succeed on a stream"};
inline constexpr rule position_0_is_done{"position 0 is before all work"};
inline constexpr rule position_grows{"a position grows with submitted work"};
inline constexpr rule positions_never_fall{"positions never fall"};
inline constexpr rule no_position_is_early{"no position is done before its work is done"};
inline constexpr rule position_is_done_after_wait{"work is done after a wait for it"};
inline constexpr rule awaited_work_is_done{"work is done if a finished stream waited for it"};
inline constexpr rule stream_is_after_own_work{"a stream is ordered after its own work"};
inline constexpr rule stream_is_after_awaited_work{"a stream is ordered after the work that it waits for"};
inline constexpr rule no_order_after_later_work{"no stream is ordered after work that was not submitted"};
inline constexpr rule no_stream_runs_ahead{"no stream runs ahead of the work that it waits for"};
inline constexpr rule make_wait_succeeds{"make_wait succeeds"};
inline constexpr rule wait_counts_as_work{"a wait counts as work"};
inline constexpr rule streams_may_wait_for_each_other{"streams may wait for each other's earlier work"};

// paged_provider
inline constexpr rule normal_pages_work{"normal pages can be acquired and released"};
inline constexpr rule other_pages_may_work{"other pages are unavailable, or can be acquired and released"};

// virtual_memory_provider
inline constexpr rule page_size_is_valid{
    "the page size is a power of two and a multiple of the kind's granularity"};
inline constexpr rule page_size_is_constant{"the page size is constant"};
inline constexpr rule reserve_succeeds{"reserve succeeds"};
inline constexpr rule ranges_are_aligned{"a range begins at a multiple of the alignment"};
inline constexpr rule ranges_do_not_overlap{"ranges overlap no other range and no segment"};
inline constexpr rule ranges_take_no_memory{"a reserved range takes no memory"};
inline constexpr rule reserve_keeps_address_space{"reserve refuses more addresses than there are"};
inline constexpr rule unreserve_succeeds{"unreserve accepts a reserved range"};
inline constexpr rule unreserved_addresses_can_be_reserved{"unreserved addresses can be reserved again"};
inline constexpr rule unreserve_refuses_unreserved{"unreserve refuses addresses that are not reserved"};
inline constexpr rule unreserve_refuses_mapped{"unreserve refuses a range with mapped memory"};
inline constexpr rule create_succeeds{"create succeeds for normal pages below the capacity"};
inline constexpr rule most_memory_can_be_created{"three quarters of the memory can be created"};
inline constexpr rule create_refuses_parts{"create refuses 0 bytes and parts of pages"};
inline constexpr rule create_keeps_capacity{"create refuses more than the capacity"};
inline constexpr rule refused_create_keeps_handle{"a refused create leaves the handle as it was"};
inline constexpr rule handles_are_not_empty{"the handle of created or imported memory is not empty"};
inline constexpr rule handles_are_unique{"created or imported memory has a handle of its own"};
inline constexpr rule destroy_succeeds{"destroy accepts created memory"};
inline constexpr rule empty_handles_are_refused{"destroy and map refuse an empty handle"};
inline constexpr rule unknown_handles_are_refused{"destroy and map refuse a handle that names no memory"};
inline constexpr rule destroy_refuses_destroyed{"destroy refuses memory that was destroyed"};
inline constexpr rule destroyed_memory_can_be_created{"destroyed memory can be created again"};
inline constexpr rule map_succeeds{"map succeeds at free addresses of a range"};
inline constexpr rule map_refuses_unreserved{"map refuses addresses that are not reserved"};
inline constexpr rule map_refuses_mapped{"map refuses addresses with mapped memory"};
inline constexpr rule map_refuses_inside_page{"map refuses an address inside a page"};
inline constexpr rule map_refuses_other_size{"map refuses another size than the memory has"};
inline constexpr rule refused_map_changes_nothing{"a refused map changes nothing"};
inline constexpr rule grant_succeeds{"grant accepts a mapping"};
inline constexpr rule grant_refuses_unmapped{"grant refuses addresses without mapped memory"};
inline constexpr rule unmap_refuses_unmapped{"unmap refuses addresses without mapped memory"};
inline constexpr rule unmap_refuses_part{"unmap refuses a part of a mapping"};
inline constexpr rule unmap_succeeds_once{"unmap removes a mapping, and refuses to remove it twice"};
inline constexpr rule unmapped_memory_can_be_mapped{"unmapped memory can be mapped elsewhere"};
inline constexpr rule destroyed_memory_stays_mapped{"destroyed memory stays mapped until unmap"};
inline constexpr rule moved_memory_keeps_contents{"memory keeps its contents when it is mapped elsewhere"};
inline constexpr rule destroyed_memory_keeps_contents{"destroyed memory keeps its contents until unmap"};
inline constexpr rule synchronize_waits{"synchronize returns after the work is done"};

// sharing_provider
inline constexpr rule processes_differ{"processes have different numbers"};
inline constexpr rule export_succeeds{"created memory can be exported"};
inline constexpr rule export_refuses_exported{"export_memory refuses exported memory"};
inline constexpr rule export_refuses_imported{"export_memory refuses imported memory"};
inline constexpr rule allow_succeeds{"the exporter can list a process"};
inline constexpr rule allow_refuses_others{"allow refuses every process except the exporter"};
inline constexpr rule allow_refuses_any{"allow refuses memory that any process may import"};
inline constexpr rule listed_process_imports{"a listed process can import"};
inline constexpr rule any_process_imports{"any process can import memory that is exported to any"};
inline constexpr rule import_refuses_unlisted{"import_memory refuses a process that is not listed"};
inline constexpr rule import_refuses_own{"import_memory refuses memory of the same process"};
inline constexpr rule import_refuses_destroyed{"import_memory refuses memory that the exporter destroyed"};
inline constexpr rule import_refuses_imported{"import_memory refuses memory of which a handle was imported"};
inline constexpr rule exported_memory_can_be_destroyed{"exported memory can be destroyed"};
inline constexpr rule handles_end_apart{"each process can destroy its own handle"};
inline constexpr rule imports_stay{"imported memory can be used after the exporter destroyed its handle"};
inline constexpr rule shared_memory_is_freed{"memory is freed after all processes have destroyed it"};

// registering_provider
inline constexpr rule register_succeeds{"the user's memory can be registered"};
inline constexpr rule unregistered_memory_can_be_registered{"unregistered memory can be registered again"};
inline constexpr rule register_refuses_registered{"register_memory refuses registered memory"};
inline constexpr rule register_refuses_inside_page{"register_memory refuses an address inside a page"};
inline constexpr rule unregister_succeeds{"unregister_memory accepts registered memory"};
inline constexpr rule unregister_refuses_inside{
    "unregister_memory refuses an address inside registered memory"};
inline constexpr rule unregister_refuses_others{"unregister_memory refuses memory that is not registered"};
inline constexpr rule unregister_changes_one{"unregister_memory changes no other registration"};

// copying_provider
inline constexpr rule copy_to_device_succeeds{"copy_to_device accepts memory of the device"};
inline constexpr rule copy_to_host_succeeds{"copy_to_host accepts memory of the device"};
inline constexpr rule event_is_ready_after_copy{"an event is ready after a copy"};
inline constexpr rule copies_keep_bytes{"a copy to the device and back keeps the bytes"};
inline constexpr rule copies_change_one_segment{"a copy changes one segment, which keeps it"};
inline constexpr rule copies_change_one_mapping{"a copy changes one mapping, which keeps it"};
inline constexpr rule copies_use_registered_memory{"copies use registered memory"};
inline constexpr rule copies_refuse_missing_memory{"copies refuse device addresses without memory"};
inline constexpr rule copies_refuse_missing_stream{"copies refuse a stream that does not exist"};

/// A text to which values can be added: pairs of a name and a value; a segment, a stream and a kind of pages
/// need no name.
class values_text : public fixed_text {
 public:
  void add_values(const char*) noexcept {}
  template <typename Value, typename... Rest>
  void add_values(const char* separator, const char* name, const Value& value, const Rest&... rest) noexcept {
    add(separator).add(name).add(" ");
    add_value(value);
    add_values(", ", rest...);
  }
  template <typename Segment, typename... Rest>
    requires requires(const Segment& s) { s.at(), s.bytes; }
  void add_values(const char* separator, const Segment& place, const Rest&... rest) noexcept {
    add_values(separator, "address", place.at(), "bytes", place.bytes, rest...);
  }
  template <typename... Rest>
  void add_values(const char* separator, stream_id stream, const Rest&... rest) noexcept {
    add_values(separator, "stream", stream, rest...);
  }
  template <typename... Rest>
  void add_values(const char* separator, const page_kind& kind, const Rest&... rest) noexcept {
    add_values(separator, "kind", kind, rest...);
  }

 private:
  void add_value(const char* value) noexcept { add(value); }
  void add_value(const void* value) noexcept { add_address(reinterpret_cast<std::uintptr_t>(value)); }
  void add_value(std::unsigned_integral auto value) noexcept {
    if constexpr (std::same_as<decltype(value), bool>)
      add(value ? "true" : "false");
    else
      add(std::uint64_t{value});
  }
  void add_value(stream_id value) noexcept { add(value.handle); }
  void add_value(const page_kind& kind) noexcept {
    add(kind.size == page_kind::page_size::huge_1g ? "1 GiB"
        : kind.size == page_kind::page_size::huge  ? "2 MiB"
                                                   : "normal");
    if (kind.speed == page_kind::bandwidth::low) add(" low-bandwidth");
    if (kind.speed == page_kind::bandwidth::high) add(" high-bandwidth");
    if (kind.peer_to_peer) add(" peer-to-peer");
    if (kind.read_only) add(" read-only");
    add(" pages");
  }
};

}  // namespace tessera::inline v0_1::detail::rules

namespace tessera::inline v0_1::detail {

/// Whether the host may read the byte at `p`. It asks Linux or Windows and does not read the byte. On other systems, it
/// says yes.
[[nodiscard]] inline bool host_can_read([[maybe_unused]] const void* p) noexcept {
#if defined(__linux__)
  // Eight aligned bytes never cross a page.
  const std::uintptr_t word = reinterpret_cast<std::uintptr_t>(p) & ~std::uintptr_t{7};
  // The system reads the set of signals before it finds that the operation is invalid.
  constexpr int nothing_known = -1;
  const long answer = ::syscall(SYS_rt_sigprocmask, nothing_known, word, nullptr, std::size_t{8});
  return answer == 0 || errno != EFAULT;
#elif defined(_WIN32)
  return host_is_memory(p, 1);
#else
  return true;
#endif
}

}  // namespace tessera::inline v0_1::detail
