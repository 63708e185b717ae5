// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <variant>

#include <tessera/core/stream.hpp>
#include <tessera/observe/output.hpp>
#include <tessera/observe/snapshot.hpp>

namespace tessera::trace {

/// Writes the history of one device in the format of RMM's logging_resource_adaptor.
///
/// The blocks that are live at the start come first. A free is logged at the time of the user's call. A
/// failed allocation is logged as "allocate failure". The log does not record which other streams use a
/// block.
///
///     #include <tessera/observe/capture.hpp>
///     #include <tessera/observe/output.hpp>
///     const tessera::trace::snapshot seen = tessera::trace::capture(pool);
///     const auto error = tessera::trace::save("memory.csv", [&](auto& out) { return write_rmm(seen, 0, out); });
///     if (error) std::puts(error->text().c_str());
///
///   Returns:  an error if the history contradicts itself
template <detail::byte_output Out>
[[nodiscard]] std::optional<input_error> write_rmm(const snapshot& source, std::size_t device, Out& out) {
  const auto start = detail::blocks_at_start(source, device);
  if (const auto* error = std::get_if<input_error>(&start)) return *error;
  const auto line = [&out](std::uint64_t time_us, const char* action, std::uint64_t address,
                           std::size_t bytes, stream_id stream) {
    char text[160];
    const std::uint64_t seconds = time_us / 1'000'000 % 86'400;
    int length =
        std::snprintf(text, sizeof text, "0,%02u:%02u:%02u.%06u,%s,", static_cast<unsigned>(seconds / 3600),
                      static_cast<unsigned>(seconds / 60 % 60), static_cast<unsigned>(seconds % 60),
                      static_cast<unsigned>(time_us % 1'000'000), action);
    out.write({text, static_cast<std::size_t>(length)});
    length = address != 0 ? std::snprintf(text, sizeof text, "0x%" PRIx64 ",", address)
                          : std::snprintf(text, sizeof text, "(nil),");
    out.write({text, static_cast<std::size_t>(length)});
    length = std::snprintf(text, sizeof text, "%zu,0x%" PRIx64 "\n", bytes, stream.handle);
    out.write({text, static_cast<std::size_t>(length)});
  };
  const auto trace = source.trace_of(device);
  out.write("Thread,Time,Action,Pointer,Size,Stream\n");
  for (const auto& [address, block] : std::get<std::map<std::uint64_t, detail::block_at_start>>(start)) {
    if (block.live)
      line(trace.empty() ? 0 : trace.front().time_us, "allocate", address, block.requested, block.stream);
  }
  for (const snapshot::entry& e : trace) {
    if (e.what == snapshot::action::alloc) line(e.time_us, "allocate", e.address, e.size, e.stream);
    if (e.what == snapshot::action::free_requested) line(e.time_us, "free", e.address, e.size, e.stream);
    if (e.what == snapshot::action::oom) line(e.time_us, "allocate failure", 0, e.size, e.stream);
  }
  return {};
}

}  // namespace tessera::trace
