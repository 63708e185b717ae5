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

#include <tessera/core/stream.hpp>
#include <tessera/core/text.hpp>
#include <tessera/observe/output.hpp>
#include <tessera/observe/snapshot.hpp>

namespace tessera::trace {

/// Writes the history of one device as events of a Chrome trace, one a line.
template <byte_output Out>
class chrome_device {
 public:
  chrome_device(Out& out, const snapshot& source, std::size_t device, std::uint64_t& next_id)
      : out_(out),
        device_(device),
        next_id_(next_id),
        trace_(source.trace_of(device)),
        stacks_(source.stacks) {
    for (const snapshot::entry& e : trace_) {
      if (e.time_us != 0) has_times_ = true;
      if (is_of_block(e) && e.block == 0) has_live_ = false;
    }
    for (const snapshot::segment& s : source.segments_of(device)) {
      const snapshot::sums sums = s.add_up();
      reserved_ += s.size;
      requested_ += sums.requested;
      live_ += sums.allocated;
    }
  }

  void write(const std::map<std::uint64_t, early_block>& early) {
    event("M", 0, 0, "process_name", "\"args\":{\"name\":\"device " + std::to_string(device_) + "\"}");
    event("M", 0, 0, "thread_name", "\"args\":{\"name\":\"device calls\"}");
    const std::uint64_t begin = time(0);
    rewind();
    count(begin, "reserved", reserved_);
    count(begin, "requested", requested_);
    if (has_live_) count(begin, "live", live_);
    for (const auto& [address, b] : early)
      open(begin, address, b.requested, b.size, b.stream, b.live ? std::string_view{} : "(freed, still used)",
           b.stack);
    for (std::size_t i = 0; i < trace_.size(); ++i) step(i);
    const std::uint64_t end = time(trace_.empty() ? 0 : trace_.size() - 1);
    while (!open_.empty()) close(end, open_.begin()->first);
  }

  /// An instant that is not of one block.
  void instant(std::uint64_t at, std::size_t thread, std::string_view what, const std::string& args) {
    event("i", thread, at, what, "\"s\":\"t\",\"args\":{" + args + "}");
  }

 private:
  using action = snapshot::action;
  struct slice {
    std::uint64_t id;
    std::size_t thread;
    std::string name;
  };

  [[nodiscard]] static bool is_of_block(const snapshot::entry& e) noexcept {
    return e.what == action::alloc || e.what == action::free_requested || e.what == action::free_completed;
  }
  /// The time of an entry; where the snapshot has none, its number.
  [[nodiscard]] std::uint64_t time(std::size_t i) const noexcept {
    return has_times_ && i < trace_.size() ? trace_[i].time_us : i;
  }

  /// From what there is at the end to what there was at the start. Numbers wrap around where a file says nonsense.
  void rewind() noexcept {
    for (const snapshot::entry& e : trace_) {
      const auto [reserved, requested, live] = change(e);
      reserved_ -= reserved;
      requested_ -= requested;
      live_ -= live;
    }
  }
  struct delta {
    std::uint64_t reserved = 0, requested = 0, live = 0;
  };
  [[nodiscard]] static delta change(const snapshot::entry& e) noexcept {
    switch (e.what) {
      case action::alloc: return {0, e.size, e.block};
      case action::free_requested: return {0, 0, 0 - std::uint64_t{e.block}};
      case action::free_completed: return {0, 0 - std::uint64_t{e.size}, 0};
      case action::segment_alloc:
      case action::segment_map: return {e.size, 0, 0};
      case action::segment_free:
      case action::segment_unmap: return {0 - std::uint64_t{e.size}, 0, 0};
      default: return {};
    }
  }

  void step(std::size_t i) {
    const snapshot::entry& e = trace_[i];
    const std::uint64_t at = time(i);
    const auto [reserved, requested, live] = change(e);
    if (reserved != 0) count(at, "reserved", reserved_ += reserved);
    if (requested != 0) count(at, "requested", requested_ += requested);
    if (has_live_ && live != 0) count(at, "live", live_ += live);
    if (e.what == action::alloc) {
      open(at, e.address, e.size, e.block, e.stream, e.label, e.stack);
    } else if (e.what == action::free_completed) {
      close(at, e.address);
    } else if (e.what == action::free_requested) {
      const bool at_once = i + 1 < trace_.size() && trace_[i + 1].what == action::free_completed &&
                           trace_[i + 1].address == e.address;
      if (!at_once) of_slice("n", at, e.address, "\"args\":{\"freed\":true}");
    } else if (e.what != action::other) {
      std::string args = "\"bytes\":" + std::to_string(e.size);
      if (e.address != 0) args += ",\"address\":\"" + hexadecimal(e.address) + '"';
      if (e.what == action::oom) args += ",\"device_free\":" + std::to_string(e.device_free);
      if (!e.label.empty()) args += ",\"label\":\"" + json_text(e.label) + '"';
      args += called_from(e.stack);
      instant(at, e.what == action::oom ? thread_of(e.stream) : 0, name_of(e.what), args);
    }
  }
  [[nodiscard]] static std::string_view name_of(action what) noexcept {
    switch (what) {
      case action::range_reserve: return "range_reserve";
      case action::range_release: return "range_release";
      case action::refused: return "refused";
      default: return snapshot_actions[static_cast<std::size_t>(what)];
    }
  }

  void open(std::uint64_t at, std::uint64_t address, std::size_t requested, std::size_t size,
            stream_id stream, std::string_view label, std::uint32_t stack) {
    slice& s = open_[address];
    s = {next_id_++, thread_of(stream), format_bytes(requested).text()};
    if (!label.empty()) (s.name += ' ') += label;
    of_slice(
        "b", at, address,
        "\"args\":{\"address\":\"" + hexadecimal(address) + "\",\"requested\":" + std::to_string(requested) +
            (size != 0 ? ",\"block\":" + std::to_string(size) : std::string{}) + called_from(stack) + "}");
  }
  /// The line of the program, as a further argument; nothing where it is not known.
  [[nodiscard]] std::string called_from(std::uint32_t stack) const {
    const std::string line = program_line(stacks_, stack);
    return line.empty() ? line : ",\"at\":\"" + json_text(line) + '"';
  }
  void close(std::uint64_t at, std::uint64_t address) {
    of_slice("e", at, address, "\"args\":{}");
    open_.erase(address);
  }
  void of_slice(const char* phase, std::uint64_t at, std::uint64_t address, const std::string& more) {
    const auto found = open_.find(address);
    if (found == open_.end()) return;
    const slice& s = found->second;
    event(phase, s.thread, at, s.name, "\"cat\":\"block\",\"id\":\"" + hexadecimal(s.id) + "\"," + more);
  }
  void count(std::uint64_t at, const char* what, std::uint64_t bytes) {
    event("C", 0, at, what, "\"args\":{\"bytes\":" + std::to_string(bytes) + "}");
  }

  /// A stream's number on this device, from 1 in the order of appearance; 0 is for the device's calls.
  [[nodiscard]] std::size_t thread_of(stream_id stream) {
    const auto [found, is_new] = threads_.emplace(stream.handle, threads_.size() + 1);
    const std::size_t number = found->second;
    if (is_new) {
      event("M", number, 0, "thread_name",
            "\"args\":{\"name\":\"stream " + std::to_string(stream.handle) + "\"}");
    }
    return number;
  }

  void event(const char* phase, std::size_t thread, std::uint64_t at, std::string_view name,
             const std::string& more) {
    out_.write(",\n{\"ph\":\"");
    out_.write(phase);
    out_.write("\",\"pid\":" + std::to_string(device_) + ",\"tid\":" + std::to_string(thread));
    if (*phase != 'M') out_.write(",\"ts\":" + std::to_string(at));
    out_.write(",\"name\":\"");
    out_.write(json_text(name));
    out_.write("\",");
    out_.write(more);
    out_.write("}");
  }

  [[nodiscard]] static std::string hexadecimal(std::uint64_t n) {
    char text[24];
    const int length = std::snprintf(text, sizeof text, "0x%" PRIx64, n);
    return {text, static_cast<std::size_t>(length)};
  }

  Out& out_;
  std::size_t device_;
  std::uint64_t& next_id_;
  std::span<const snapshot::entry> trace_;
  const call_stacks& stacks_;
  bool has_times_ = false;
  bool has_live_ = true;  // whether the sizes of all blocks are known
  std::uint64_t reserved_ = 0, requested_ = 0, live_ = 0;
  std::map<std::uint64_t, slice> open_;           // by the block's address
  std::map<std::uint64_t, std::size_t> threads_;  // by stream
};

/// Writes a snapshot's history as JSON in Chrome's trace event format, which chrome://tracing and ui.perfetto.dev open: for
/// each device counters of the bytes reserved, requested and, where the sizes of blocks are known, live; a slice for each
/// block, named by its size and label; and an instant for each device call.
///
/// What was there before the history begins has slices from its start; what is there at the end, up to its end.
///
///     #include <tessera/observe/capture.hpp>
///     #include <tessera/observe/output.hpp>
///     const tessera::trace::snapshot seen = tessera::trace::capture(pool);
///     const auto error = tessera::trace::save("memory.json", [&](auto& out) { return write_chrome(seen, out); });
///     if (error) std::puts(error->text().c_str());
///
///   Returns:  why the history cannot be right, or nothing
///   Cost:     linear, but for a map of the blocks that live at once, which is all that is kept
template <byte_output Out>
[[nodiscard]] std::optional<input_error> write_chrome(const snapshot& source, Out& out) {
  out.write("{\"displayTimeUnit\":\"ms\",\"otherData\":{\"name\":\"");
  out.write(json_text(source.name));
  out.write("\",\"recipe\":\"");
  out.write(json_text(source.configured.recipe));
  out.write("\",\"conf\":\"");
  out.write(json_text(source.configured.conf));
  out.write(
      "\"},\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":0,\"name\":\"process_sort_index\",\"args\":{\"sort_"
      "index\":0}}");
  std::map<std::uint64_t, std::vector<const snapshot::annotation*>> marks;  // of each device
  for (const snapshot::annotation& a : source.annotations) marks[a.device].push_back(&a);
  std::uint64_t next_id = 1;
  for (std::size_t device = 0; device < source.devices(); ++device) {
    if (source.trace_of(device).empty() && source.segments_of(device).empty()) continue;
    const auto early = active_at_start(source, device);
    if (const auto* error = std::get_if<input_error>(&early)) return *error;
    chrome_device<Out> to(out, source, device, next_id);
    to.write(std::get<std::map<std::uint64_t, early_block>>(early));
    for (const snapshot::annotation* const a : marks[device])
      to.instant(a->time_us, 0, a->name, a->begins ? "\"stage\":\"START\"" : "\"stage\":\"END\"");
  }
  out.write("\n]}\n");
  return {};
}

}  // namespace tessera::trace
