// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <variant>

#include <tessera/core/types.hpp>
#include <tessera/observe/snapshot.hpp>

#include "blocks_at_start.hpp"
#include "files.hpp"

namespace replay {

using namespace tessera;
using namespace tessera::trace;

/// Converts the history of one device to the format of RMM's logging_resource_adaptor.
///
/// The blocks that are live at the start come first. A free is logged at the time of the user's call. A
/// failed allocation is logged as "allocate failure". The log does not record which other streams use a
/// block.
///   Returns:  the text, or an error if the history contradicts itself
[[nodiscard]] inline read_result<std::string> to_rmm(const observe::snapshot& source, std::size_t device) {
  const auto start = blocks_at_start(source, device);
  if (const auto* error = std::get_if<input_error>(&start)) return *error;
  std::string out = "Thread,Time,Action,Pointer,Size,Stream\n";
  const auto add_line = [&out](std::uint64_t time_us, const char* action, std::uint64_t address,
                               std::size_t bytes, stream_id stream) {
    const auto seconds = static_cast<unsigned>(time_us / 1'000'000 % 86'400);
    char pointer[24] = "(nil)";
    if (address != 0) std::snprintf(pointer, sizeof pointer, "0x%" PRIx64, address);
    char text[200];
    const int length =
        std::snprintf(text, sizeof text, "0,%02u:%02u:%02u.%06u,%s,%s,%zu,0x%" PRIx64 "\n", seconds / 3600,
                      seconds / 60 % 60, seconds % 60, static_cast<unsigned>(time_us % 1'000'000), action,
                      pointer, bytes, stream.handle);
    out.append(text, static_cast<std::size_t>(length));
  };
  const auto trace = source.trace_of(device);
  for (const auto& [address, block] : std::get<std::map<std::uint64_t, block_at_start>>(start)) {
    if (block.live)
      add_line(trace.empty() ? 0 : trace.front().time_us, "allocate", address, block.requested, block.stream);
  }
  for (const observe::snapshot::entry& e : trace) {
    if (e.what == observe::snapshot::action::alloc)
      add_line(e.time_us, "allocate", e.address, e.size, e.stream);
    if (e.what == observe::snapshot::action::free_requested)
      add_line(e.time_us, "free", e.address, e.size, e.stream);
    if (e.what == observe::snapshot::action::oom)
      add_line(e.time_us, "allocate failure", 0, e.size, e.stream);
  }
  return out;
}

}  // namespace replay
