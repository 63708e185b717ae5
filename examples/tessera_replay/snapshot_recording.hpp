// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/trace/recording.hpp>

#include "blocks_at_start.hpp"
#include "call_site.hpp"
#include "read_rmm.hpp"
#include "read_snapshot.hpp"
#include "text.hpp"

namespace replay {

using namespace tessera;
using namespace tessera::trace;

/// The bytes by which an entry changes what is reserved. They wrap around.
[[nodiscard]] inline std::uint64_t reserved_change(const observe::snapshot::entry& e) noexcept {
  using action = observe::snapshot::action;
  const bool more = e.what == action::segment_alloc || e.what == action::segment_map;
  const bool less = e.what == action::segment_free || e.what == action::segment_unmap;
  return more ? e.size : less ? 0 - std::uint64_t{e.size} : 0;
}
/// The bytes that are reserved when the history of a device begins. They wrap around if a file is inconsistent.
[[nodiscard]] inline std::uint64_t reserved_at_start(const observe::snapshot& source, std::size_t device) {
  std::uint64_t reserved = 0;
  for (const observe::snapshot::segment& s : source.segments_of(device)) reserved += s.size;
  for (const observe::snapshot::entry& e : source.trace_of(device)) reserved -= reserved_change(e);
  return reserved;
}

/// The bytes of the recorded device: reserved plus free when an allocation first failed. 0 if none failed, or
/// the history does not match the segments.
[[nodiscard]] inline std::size_t recorded_capacity(const observe::snapshot& source, std::size_t device) {
  using action = observe::snapshot::action;
  std::uint64_t reserved = reserved_at_start(source, device);
  for (const observe::snapshot::entry& e : source.trace_of(device)) {
    reserved += reserved_change(e);
    if (e.what != action::oom) continue;
    const bool is_sane = reserved <= max_request && e.device_free <= max_request;
    return is_sane ? static_cast<std::size_t>(reserved) + e.device_free : 0;
  }
  return 0;
}

/// Collects the origins of a recording's allocations, in the order of ids.
class origin_collector {
 public:
  explicit origin_collector(observe::snapshot::call_stacks stacks)
      : stacks_(std::move(stacks)), table_(stacks_) {}

  void add(std::uint32_t stack, std::string_view label) { made_.push_back({stack, table_.add_text(label)}); }
  /// Replaces the label of an allocation.
  void say(std::uint64_t id, std::string_view label) {
    made_[static_cast<std::size_t>(id)].label = table_.add_text(label);
  }
  /// Sets the stack of an allocation that has none: some histories have stacks of live blocks only.
  void complete(std::uint64_t id, std::uint32_t stack) {
    std::uint32_t& known = made_[static_cast<std::size_t>(id)].stack;
    if (known == 0) known = stack;
  }
  void finish(recording& to) && {
    const auto is_known = [](const recording::origin& o) { return o.stack != 0 || o.label != 0; };
    if (std::none_of(made_.begin(), made_.end(), is_known)) return;
    to.stacks = std::move(stacks_);
    to.origins = std::move(made_);
  }

 private:
  observe::snapshot::call_stacks stacks_;
  call_stack_builder table_;
  std::vector<recording::origin> made_;
};

/// The origin of an allocation, such as "train.py:12 in forward, labelled 'weights'". Empty if unknown.
[[nodiscard]] inline std::string origin_text(const recording& source, std::uint64_t id) {
  constexpr std::size_t max_length = 80;  // bytes
  const recording::origin from = source.origin_of(id);
  std::string text = call_site(source.stacks, from.stack);
  const std::string_view label = source.stacks.text(from.label);
  if (label.empty()) return text;
  (text += text.empty() ? "" : ", ") += "labelled '";
  text += printable_text(label.substr(0, max_length));
  return text += label.size() > max_length ? "...'" : "'";
}

/// The devices whose history requests memory, or without any history those with segments, in order. A process that uses
/// one device has short histories of the others.
[[nodiscard]] inline std::vector<std::size_t> recorded_devices(const observe::snapshot& source) {
  using action = observe::snapshot::action;
  const auto requests = [](const observe::snapshot::entry& e) {
    return e.what == action::alloc || e.what == action::oom || e.what == action::free_completed;
  };
  std::vector<std::size_t> found;
  for (std::size_t device = 0; device < source.traces.size(); ++device) {
    const auto& trace = source.traces[device];
    if (std::any_of(trace.begin(), trace.end(), requests)) found.push_back(device);
  }
  if (!found.empty()) return found;
  for (const observe::snapshot::segment& s : source.segments) {
    const auto device = static_cast<std::size_t>(s.device);
    if (found.empty() || found.back() != device) found.push_back(device);
  }
  return found;
}

/// Finds the entries before which the program emptied the cache: segments were released, and the next entry
/// acquires no memory. A release before an acquisition may come from the allocator itself.
[[nodiscard]] inline std::vector<std::size_t> find_cache_empties(
    std::span<const observe::snapshot::entry> entries) {
  using action = observe::snapshot::action;
  std::vector<std::size_t> found;
  bool gave_back = false;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const action what = entries[i].what;
    const bool takes = what == action::segment_alloc || what == action::segment_map || what == action::oom;
    if (gave_back && !takes && what != action::segment_free && what != action::segment_unmap)
      found.push_back(i);
    gave_back = what == action::segment_free || what == action::segment_unmap;
  }
  if (gave_back) found.push_back(entries.size());
  return found;
}

/// A recording, and where its events are in the history of the device.
struct indexed_recording {
  recording made;
  std::size_t events_at_start = 0;   ///< the first events allocate the blocks that were live at the start
  std::vector<std::size_t> entries;  ///< the entry of each event after those
  std::vector<std::uint64_t>
      addresses;  ///< of the allocations on the device, by id; 0 for requests that failed
};

/// Converts the history of one device to a recording, beginning with the blocks that are live at its start.
///
/// A block is freed when its free completes, since snapshots do not say which streams use it. PyTorch records
/// the size of a failed request as rounded.
[[nodiscard]] inline read_result<indexed_recording> index_recording(const observe::snapshot& source,
                                                                    std::size_t device) {
  const auto start = blocks_at_start(source, device);
  if (const auto* error = std::get_if<input_error>(&start)) return *error;

  indexed_recording result;
  recording& made = result.made;
  made.name = source.name;
  made.capacity = recorded_capacity(source, device);
  std::map<std::uint64_t, std::uint64_t>
      id_at;  // of live blocks, by address; no hash map: hostile addresses could collide
  std::uint64_t next_id = 0;
  std::set<std::uint64_t> requested;  // addresses whose free was requested, and did not complete at once
  origin_collector origins(source.stacks);
  const auto allocate = [&](std::uint64_t address, std::size_t size, stream_id stream, std::uint32_t stack,
                            std::string_view label) {
    if (size == 0) return;
    origins.add(stack, label);
    id_at[address] = next_id;
    result.addresses.push_back(address);
    made.events.push_back({event::kind::allocate, next_id++, size, stream});
  };
  for (const auto& [address, block] : std::get<std::map<std::uint64_t, block_at_start>>(start))
    allocate(address, block.requested, block.stream, block.stack, {});
  result.events_at_start = made.events.size();
  const auto entries = source.trace_of(device);
  const std::vector<std::size_t> emptied = find_cache_empties(entries);
  made.times_us.resize(made.events.size(), entries.empty() ? 0 : entries.front().time_us);
  auto next = emptied.begin();
  for (std::size_t i = 0; i <= entries.size(); ++i) {
    if (next != emptied.end() && *next == i) made.events.push_back({event::kind::empty_cache}), ++next;
    result.entries.resize(made.events.size() - result.events_at_start, i);
    if (i == entries.size()) break;
    const observe::snapshot::entry& e = entries[i];
    if (e.what == observe::snapshot::action::alloc) {
      allocate(e.address, e.size, e.stream, e.stack, e.label);
    } else if (e.what == observe::snapshot::action::oom && e.size > 0) {
      origins.add(e.stack, e.label);
      result.addresses.push_back(0);
      made.events.push_back({event::kind::refused, next_id++, e.size, e.stream});
    } else if (e.what == observe::snapshot::action::annotate && !e.label.empty()) {
      if (const auto found = id_at.find(e.address); found != id_at.end()) origins.say(found->second, e.label);
    } else if (e.what == observe::snapshot::action::free_requested) {
      const bool is_at_once = i + 1 < entries.size() && entries[i + 1].address == e.address &&
                              entries[i + 1].what == observe::snapshot::action::free_completed;
      if (!is_at_once) requested.insert(e.address);
    } else if (e.what == observe::snapshot::action::free_completed) {
      const auto found = id_at.find(e.address);
      if (found == id_at.end()) continue;
      if (requested.erase(e.address) > 0) made.completed_late.push_back(found->second);
      made.events.push_back({event::kind::free, found->second, 0, e.stream});
      id_at.erase(found);
    }
    made.times_us.resize(made.events.size(), e.time_us);
    result.entries.resize(made.events.size() - result.events_at_start, i);
  }
  // Old snapshots have no times.
  if (made.times_us.empty() || made.times_us.back() == 0)
    made.times_us.clear();
  else
    made.times_us.resize(made.events.size(), made.times_us.back());
  for (const observe::snapshot::segment& s : source.segments_of(device)) {
    for (const observe::snapshot::block& b : s.blocks) {
      const auto found = b.active() ? id_at.find(b.address) : id_at.end();
      if (found != id_at.end()) origins.complete(found->second, b.stack);
    }
  }
  std::move(origins).finish(made);
  return result;
}
/// Converts the history of one device to a recording.
[[nodiscard]] inline read_result<recording> recording_of(const observe::snapshot& source,
                                                         std::size_t device) {
  auto read = index_recording(source, device);
  if (auto* error = std::get_if<input_error>(&read)) return std::move(*error);
  return std::move(std::get<indexed_recording>(read).made);
}
/// Converts the history of the first of the recorded_devices.
[[nodiscard]] inline read_result<recording> recording_of(const observe::snapshot& source) {
  const std::vector<std::size_t> devices = recorded_devices(source);
  return recording_of(source, devices.empty() ? 0 : devices.front());
}

[[nodiscard]] inline read_result<recording> read_snapshot_recording(std::string_view bytes,
                                                                    const std::string& name) {
  auto read = read_snapshot(bytes, name);
  if (auto* error = std::get_if<input_error>(&read)) return std::move(*error);
  return recording_of(std::get<observe::snapshot>(read));
}

}  // namespace replay
