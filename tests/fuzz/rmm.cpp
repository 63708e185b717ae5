// SPDX-License-Identifier: Apache-2.0
// RMM's logs. An accepted log is written in RMM's format, read again, and is then the same program.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>

#include <tessera/observe/snapshot.hpp>
#include "tessera_replay/files.hpp"
#include "tessera_replay/read_rmm.hpp"
#include "tessera_replay/to_rmm.hpp"

#include "fuzz.hpp"

namespace {

using namespace tessera;

/// A history that gives each allocation an address of its own, and each block that is live at the end a segment. A request
/// that failed is an entry without one.
observe::snapshot snapshot_of(const trace::recording& made) {
  observe::snapshot as;
  as.name = "rmm";
  auto& entries = as.traces.emplace_back();
  std::map<std::uint64_t, trace::event> live;
  std::uint64_t next = 64;
  std::map<std::uint64_t, std::uint64_t> address_of;
  for (const trace::event& e : made.events) {
    const bool allocates = e.what == trace::event::kind::allocate;
    if (e.what == trace::event::kind::refused) {
      observe::snapshot::entry refused{};
      refused.what = observe::snapshot::action::oom;
      refused.size = e.bytes;
      refused.stream = e.stream;
      entries.push_back(refused);
      continue;
    }
    if (allocates) address_of[e.id] = next, next += e.bytes + 64, live[e.id] = e;
    if (!allocates) live.erase(e.id);
    observe::snapshot::entry entry{};
    entry.what = allocates ? observe::snapshot::action::alloc : observe::snapshot::action::free_requested;
    entry.address = address_of[e.id];
    entry.size = e.bytes;
    entry.stream = e.stream;
    entries.push_back(entry);
    entry.what = observe::snapshot::action::free_completed;
    if (!allocates) entries.push_back(entry);
  }
  for (const auto& [id, e] : live) {
    const std::uint64_t at = address_of[id];
    as.segments.push_back({.address = at,
                           .size = e.bytes,
                           .blocks = {{at, e.bytes, e.bytes, observe::snapshot::block::state::live}}});
  }
  return as;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto read = replay::read_rmm(text, "rmm");
  const auto* const made = fuzz::accepted(read, "rmm");
  if (made == nullptr) return 0;
  std::uint64_t all = 0;
  for (const trace::event& e : made->events) {
    all = detail::saturating_add(all, e.bytes);
    fuzz::expect(e.bytes > 0 && e.bytes <= max_request, "sizes are legal");
  }
  if (all > trace::detail::max_live) return 0;  // not enough room for one address each

  const auto written = replay::to_rmm(snapshot_of(*made), 0);
  fuzz::expect(written.index() == 0, "an accepted log is a possible history");
  const auto again = replay::read_rmm(std::get<std::string>(written), "again");
  const auto* const same = fuzz::accepted(again, "again");
  fuzz::expect(same != nullptr && same->events.size() == made->events.size(), "a written log is accepted");
  for (std::size_t i = 0; i < made->events.size(); ++i) {
    const trace::event &a = made->events[i], &b = same->events[i];
    fuzz::expect(a.what == b.what && a.id == b.id && a.bytes == b.bytes && a.stream == b.stream,
                 "a written log is read back unchanged");
  }
  return 0;
}
