// SPDX-License-Identifier: Apache-2.0
// RMM's logs. An accepted program is the same after it is written as RMM's log and read again.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

#include <tessera/observe/output.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/observe/write_rmm.hpp>
#include <tessera/replay/read.hpp>

#include "fuzz.hpp"

namespace {

using namespace tessera;

/// A history in which each block has its own address, and the blocks that are live at the end have a segment.
trace::snapshot snapshot_of(const trace::recording& made) {
  trace::snapshot as;
  as.name = "rmm";
  auto& entries = as.traces.emplace_back();
  std::map<std::uint64_t, trace::event> live;
  std::uint64_t next = 64;
  std::map<std::uint64_t, std::uint64_t> address_of;
  for (const trace::event& e : made.events) {
    const bool allocates = e.what == trace::event::kind::allocate;
    if (allocates) address_of[e.id] = next, next += e.bytes + 64, live[e.id] = e;
    if (!allocates) live.erase(e.id);
    trace::snapshot::entry entry{};
    entry.what = allocates ? trace::snapshot::action::alloc : trace::snapshot::action::free_requested;
    entry.address = address_of[e.id];
    entry.size = e.bytes;
    entry.stream = e.stream;
    entries.push_back(entry);
    entry.what = trace::snapshot::action::free_completed;
    if (!allocates) entries.push_back(entry);
  }
  for (const auto& [id, e] : live) {
    const std::uint64_t at = address_of[id];
    as.segments.push_back({.address = at,
                           .size = e.bytes,
                           .blocks = {{at, e.bytes, e.bytes, trace::snapshot::block::state::live}}});
  }
  return as;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto read = trace::read_rmm(text, "rmm");
  const auto* const made = fuzz::accepted(read, "rmm");
  if (made == nullptr) return 0;
  std::uint64_t all = 0;
  for (const trace::event& e : made->events) {
    all = detail::saturating_add(all, e.bytes);
    fuzz::expect(e.bytes > 0 && e.bytes <= max_request, "sizes are legal");
  }
  if (all > trace::detail::max_live) return 0;  // not enough room for one address each

  trace::text_output written;
  const auto wrong = trace::write_rmm(snapshot_of(*made), 0, written);
  fuzz::expect(!wrong, "an accepted log is a possible history");
  const auto again = trace::read_rmm(written.text, "again");
  const auto* const same = fuzz::accepted(again, "again");
  fuzz::expect(same != nullptr && same->events.size() == made->events.size(), "what was written is accepted");
  for (std::size_t i = 0; i < made->events.size(); ++i) {
    const trace::event &a = made->events[i], &b = same->events[i];
    fuzz::expect(a.what == b.what && a.id == b.id && a.bytes == b.bytes && a.stream == b.stream,
                 "what was written is read again");
  }
  return 0;
}
