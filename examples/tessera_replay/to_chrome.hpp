// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/types.hpp>
#include <tessera/observe/snapshot.hpp>

#include "blocks_at_start.hpp"
#include "call_site.hpp"
#include "files.hpp"
#include "stream_names.hpp"

namespace replay {

using namespace tessera;
using namespace tessera::trace;

/// Writes the history of one device as events of a Chrome trace, one per line.
class chrome_device {
 public:
  chrome_device(std::string& out, const observe::snapshot& source, std::size_t device, std::uint64_t& next_id)
      : out_(out),
        device_(device),
        next_id_(next_id),
        trace_(source.trace_of(device)),
        stacks_(source.stacks) {
    for (const observe::snapshot::entry& e : trace_) {
      if (e.time_us != 0) has_times_ = true;
      if (is_of_block(e) && e.block == 0) has_live_ = false;
    }
    for (const observe::snapshot::segment& s : source.segments_of(device)) {
      const observe::snapshot::byte_counts counts = s.count_bytes();
      reserved_ += s.size;
      requested_ += counts.requested;
      live_ += counts.allocated;
    }
  }

  void write(const std::map<std::uint64_t, block_at_start>& at_start) {
    event("M", 0, 0, "process_name", "\"args\":{\"name\":\"device " + std::to_string(device_) + "\"}");
    event("M", 0, 0, "thread_name", "\"args\":{\"name\":\"device calls\"}");
    const std::uint64_t begin = time_of(0);
    rewind();
    counter(begin, "reserved", reserved_);
    counter(begin, "requested", requested_);
    if (has_live_) counter(begin, "live", live_);
    for (const auto& [address, b] : at_start)
      open(begin, address, b.requested, b.size, b.stream, b.live ? std::string_view{} : "(freed, still used)",
           b.stack, b.pool);
    for (std::size_t i = 0; i < trace_.size(); ++i) step(i);
    const std::uint64_t end = time_of(trace_.empty() ? 0 : trace_.size() - 1);
    while (!open_.empty()) close(end, open_.begin()->first);
  }

  /// Writes an instant event that belongs to no block.
  void instant(std::uint64_t time, std::size_t thread, std::string_view name, const std::string& args) {
    event("i", thread, time, name, "\"s\":\"t\",\"args\":{" + args + "}");
  }

 private:
  using action = observe::snapshot::action;
  struct slice {
    std::uint64_t id;
    std::size_t thread;
    std::string name;
  };

  [[nodiscard]] static bool is_of_block(const observe::snapshot::entry& e) noexcept {
    return e.what == action::alloc || e.what == action::free_requested || e.what == action::free_completed;
  }
  /// The time of an entry, or its index if the snapshot has no times.
  [[nodiscard]] std::uint64_t time_of(std::size_t i) const noexcept {
    return has_times_ && i < trace_.size() ? trace_[i].time_us : i;
  }

  /// Resets the counters to the start of the history. They wrap around if a file is inconsistent.
  void rewind() noexcept {
    for (const observe::snapshot::entry& e : trace_) {
      const auto [reserved, requested, live] = change(e);
      reserved_ -= reserved;
      requested_ -= requested;
      live_ -= live;
    }
  }
  struct delta {
    std::uint64_t reserved = 0, requested = 0, live = 0;
  };
  [[nodiscard]] static delta change(const observe::snapshot::entry& e) noexcept {
    switch (e.what) {
      case action::alloc: return {0, e.size, e.block};
      case action::free_requested: return {0, 0, 0 - std::uint64_t{e.block}};
      case action::free_completed: return {0, 0 - std::uint64_t{e.size}, 0};
      case action::segment_alloc:
      case action::wake:
      case action::segment_map: return {e.size, 0, 0};
      case action::segment_free:
      case action::sleep:
      case action::segment_unmap: return {0 - std::uint64_t{e.size}, 0, 0};
      default: return {};
    }
  }

  void step(std::size_t i) {
    const observe::snapshot::entry& e = trace_[i];
    const std::uint64_t time = time_of(i);
    const auto [reserved, requested, live] = change(e);
    reserved_ += reserved;
    requested_ += requested;
    live_ += live;
    if (reserved != 0) counter(time, "reserved", reserved_);
    if (requested != 0) counter(time, "requested", requested_);
    if (has_live_ && live != 0) counter(time, "live", live_);
    if (e.what == action::alloc) {
      open(time, e.address, e.size, e.block, e.stream, e.label, e.stack, e.pool);
    } else if (e.what == action::free_completed) {
      close(time, e.address);
    } else if (e.what == action::free_requested) {
      const bool is_immediate = i + 1 < trace_.size() && trace_[i + 1].what == action::free_completed &&
                                trace_[i + 1].address == e.address;
      if (!is_immediate) slice_event("n", time, e.address, "\"args\":{\"freed\":true}");
    } else if (e.what != action::other) {
      std::string args = "\"bytes\":" + std::to_string(e.size);
      if (e.address != 0) args += ",\"address\":\"" + hexadecimal(e.address) + '"';
      if (e.what == action::oom) args += ",\"device_free\":" + std::to_string(e.device_free);
      if (!e.label.empty()) args += ",\"label\":\"" + json_text(e.label) + '"';
      args += pool_argument(e.pool) + called_from(e.stack);
      instant(time, e.what == action::oom ? thread_of(e.stream) : 0, name_of(e.what), args);
    }
  }
  [[nodiscard]] static std::string_view name_of(action kind) noexcept {
    switch (kind) {
      case action::range_reserve: return "range_reserve";
      case action::range_release: return "range_release";
      case action::refused: return "refused";
      case action::sleep: return "sleep";
      case action::wake: return "wake";
      default: return tessera::detail::pytorch_name(kind);
    }
  }

  void open(std::uint64_t time, std::uint64_t address, std::size_t requested, std::size_t size,
            stream_id stream, std::string_view label, std::uint32_t stack, observe::snapshot::pool_id pool) {
    slice& s = open_[address];
    s = {next_id_++, thread_of(stream), format_bytes(requested).text()};
    if (!label.empty()) s.name.append(" ").append(label);
    slice_event("b", time, address,
                "\"args\":{\"address\":\"" + hexadecimal(address) +
                    "\",\"requested\":" + std::to_string(requested) +
                    (size != 0 ? ",\"block\":" + std::to_string(size) : std::string{}) + pool_argument(pool) +
                    called_from(stack) + "}");
  }
  /// The private pool as a further JSON argument; empty for the default pools.
  [[nodiscard]] static std::string pool_argument(observe::snapshot::pool_id pool) {
    if (pool == observe::snapshot::pool_id{}) return {};
    return ",\"private_pool\":[" + std::to_string(pool.first) + "," + std::to_string(pool.second) + "]";
  }
  /// The source line as a further JSON argument; empty if unknown.
  [[nodiscard]] std::string called_from(std::uint32_t stack) const {
    const std::string line = call_site(stacks_, stack);
    return line.empty() ? line : ",\"at\":\"" + json_text(line) + '"';
  }
  void close(std::uint64_t time, std::uint64_t address) {
    slice_event("e", time, address, "\"args\":{}");
    open_.erase(address);
  }
  void slice_event(const char* phase, std::uint64_t time, std::uint64_t address, const std::string& more) {
    const auto found = open_.find(address);
    if (found == open_.end()) return;
    const slice& s = found->second;
    event(phase, s.thread, time, s.name, "\"cat\":\"block\",\"id\":\"" + hexadecimal(s.id) + "\"," + more);
  }
  void counter(std::uint64_t time, const char* name, std::uint64_t bytes) {
    event("C", 0, time, name, "\"args\":{\"bytes\":" + std::to_string(bytes) + "}");
  }

  /// The name of a stream. An address gets a number, in order of appearance.
  [[nodiscard]] std::string stream_name(stream_id stream) {
    if (stream.handle == 0) return "default stream";
    if (!stream_names::is_address(stream.handle)) return "stream " + std::to_string(stream.handle);
    return "stream " + std::to_string(++addresses_) + " (" + stream_names::hex(stream.handle) + ")";
  }
  /// Returns the thread number of a stream, from 1 in order of appearance. Thread 0 shows device calls.
  [[nodiscard]] std::size_t thread_of(stream_id stream) {
    const auto [found, is_new] = threads_.emplace(stream.handle, threads_.size() + 1);
    const std::size_t number = found->second;
    if (is_new) {
      event("M", number, 0, "thread_name", "\"args\":{\"name\":\"" + stream_name(stream) + "\"}");
    }
    return number;
  }

  void event(const char* phase, std::size_t thread, std::uint64_t time, std::string_view name,
             const std::string& more) {
    out_ += ",\n{\"ph\":\"";
    out_ += phase;
    out_.append("\",\"pid\":")
        .append(std::to_string(device_))
        .append(",\"tid\":")
        .append(std::to_string(thread));
    if (*phase != 'M') out_.append(",\"ts\":").append(std::to_string(time));
    out_ += ",\"name\":\"";
    out_ += json_text(name);
    out_ += "\",";
    out_ += more;
    out_ += "}";
  }

  [[nodiscard]] static std::string hexadecimal(std::uint64_t n) {
    char text[24];
    const int length = std::snprintf(text, sizeof text, "0x%" PRIx64, n);
    return {text, static_cast<std::size_t>(length)};
  }

  std::string& out_;
  std::size_t device_;
  std::uint64_t& next_id_;
  std::span<const observe::snapshot::entry> trace_;
  const observe::snapshot::call_stacks& stacks_;
  bool has_times_ = false;
  bool has_live_ = true;  // the sizes of all blocks are known
  std::uint64_t reserved_ = 0, requested_ = 0, live_ = 0;
  std::map<std::uint64_t, slice> open_;           // by the block's address
  std::map<std::uint64_t, std::size_t> threads_;  // by stream
  std::size_t addresses_ = 0;                     // streams whose handles are addresses
};

/// Converts a snapshot's history to Chrome's trace event format, for chrome://tracing and ui.perfetto.dev.
///
/// Each device has counters of reserved and requested bytes, and of live bytes if all block sizes are known.
/// Each block is a slice, named by its size and label. Each device call is an instant. Both name their private
/// pool, if any. If a block is active before or after the history, its slice extends to that end.
///   Returns:  the text, or an error if the history contradicts itself
///   Cost:     n log n in the history
[[nodiscard]] inline read_result<std::string> to_chrome(const observe::snapshot& source) {
  std::string out = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"name\":\"";
  out.append(json_text(source.name)).append("\",\"recipe\":\"").append(json_text(source.configured.recipe));
  out.append("\",\"conf\":\"").append(json_text(source.configured.conf));
  out +=
      "\"},\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":0,\"name\":\"process_sort_index\",\"args\":{\"sort_"
      "index\":0}}";
  std::map<std::uint64_t, std::vector<const observe::snapshot::annotation*>> annotations;  // by device
  for (const observe::snapshot::annotation& a : source.annotations) annotations[a.device].push_back(&a);
  std::uint64_t next_id = 1;
  for (std::size_t device = 0; device < source.devices(); ++device) {
    if (source.trace_of(device).empty() && source.segments_of(device).empty()) continue;
    const auto at_start = blocks_at_start(source, device);
    if (const auto* error = std::get_if<input_error>(&at_start)) return *error;
    chrome_device to(out, source, device, next_id);
    to.write(std::get<std::map<std::uint64_t, block_at_start>>(at_start));
    for (const observe::snapshot::annotation* const a : annotations[device])
      to.instant(a->time_us, 0, a->name, a->begins ? "\"stage\":\"START\"" : "\"stage\":\"END\"");
  }
  out += "\n]}\n";
  return out;
}

}  // namespace replay
