// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/observe/call_stacks.hpp>
#include <tessera/observe/pickle_writer.hpp>
#include <tessera/observe/snapshot.hpp>
#include <tessera/replay/output.hpp>

namespace tessera::trace {

/// Writes a snapshot piece by piece as PyTorch's own are written.
template <byte_output Out>
class snapshot_writer {
 public:
  snapshot_writer(const snapshot& source, Out& out)
      : source_(source),
        table_(source.stacks),
        texts_(table_.texts()),
        frames_(table_.frames()),
        stacks_(table_.stacks()),
        to_(out) {}

  void write() {
    to_.dict([&] {
      to_.word("segments");
      to_.list(source_.segments,
               [&](const snapshot::segment& s) { segment(s, static_cast<std::int64_t>(s.device)); });
      to_.word("device_traces");
      std::vector<std::span<const snapshot::entry>> traces(source_.devices());
      for (std::size_t device = 0; device < traces.size(); ++device)
        traces[device] = source_.trace_of(device);
      to_.list(traces, [&](std::span<const snapshot::entry> trace) { history(trace); });
      to_.word("allocator_settings");
      settings(source_.configured);
      to_.word("external_annotations");
      to_.list(source_.annotations, [&](const snapshot::annotation& a) { annotation(a); });
      if (!source_.host_segments.empty() || !source_.host_traces.empty()) host_memory();
    });
    to_.end();
  }

 private:
  void number(std::string_view key, std::uint64_t value) { to_.word(key), to_.natural(value); }
  /// The calls that led to something; each stack, call and text is written once, and then referred to.
  void frames(std::uint32_t stack) {
    to_.word("frames");
    if (stack == 0) return to_.empty_list();
    to_.once(stacks_[stack - 1],
             [&] { to_.list(table_.stack(stack), [&](std::uint32_t place) { frame(place); }); });
  }
  void frame(std::uint32_t place) {
    const call_stacks::frame& f = table_.frame_at(place);
    to_.once(frames_[place], [&] {
      to_.dict([&] {
        to_.word("name"), text(f.function);
        to_.word("filename"), text(f.file);
        to_.word("line"), to_.integer(static_cast<std::int64_t>(f.line));
      });
    });
  }
  void text(std::uint32_t number) {
    if (number == 0) return to_.text({});
    to_.once(texts_[number - 1], [&] { to_.text(table_.text(number)); });
  }
  void stream(stream_id id) { to_.word("stream"), to_.integer(static_cast<std::int64_t>(id.handle)); }

  void host_memory() {
    constexpr std::int64_t host = -1;  // in place of a device
    to_.word("host_segments");
    to_.list(source_.host_segments, [&](const snapshot::segment& s) { segment(s, host); });
    to_.word("host_traces");
    to_.list(source_.host_traces, [&](const std::vector<snapshot::entry>& trace) { history(trace); });
  }
  void history(std::span<const snapshot::entry> trace) {
    to_.list(
        trace, [&](const snapshot::entry& e) { entry(e); },
        [](const snapshot::entry& e) {
          return static_cast<std::size_t>(e.what) < std::size(snapshot_actions);
        });
  }
  void segment(const snapshot::segment& s, std::int64_t device) {
    const snapshot::sums sums = s.add_up();
    to_.dict([&] {
      to_.word("device"), to_.integer(device);
      number("address", s.address);
      number("total_size", s.size);
      number("allocated_size", sums.allocated);
      number("active_size", sums.active);
      number("requested_size", sums.requested);
      stream(s.stream);
      to_.word("segment_type"), to_.word(s.large ? "large" : "small");
      to_.word("segment_pool_id"), to_.pair(s.pool.first, s.pool.second);
      to_.word("is_expandable"), to_.boolean(s.expandable);
      frames(s.stack);
      to_.word("blocks"), to_.list(s.blocks, [&](const snapshot::block& b) { block(b); });
    });
  }
  void block(const snapshot::block& b) {
    using state = snapshot::block::state;
    to_.dict([&] {
      number("address", b.address);
      number("size", b.size);
      number("requested_size", b.requested);
      to_.word("state");
      to_.word(b.is == state::live      ? "active_allocated"
               : b.is == state::pending ? "active_pending_free"
                                        : "inactive");
      frames(b.stack);
    });
  }
  void entry(const snapshot::entry& e) {
    to_.dict([&] {
      to_.word("action"), to_.word(snapshot_actions[static_cast<std::size_t>(e.what)]);
      const bool is_oom = e.what == snapshot::action::oom;
      is_oom ? number("device_free", e.device_free) : number("addr", e.address);
      number("size", e.size);
      stream(e.stream);
      number("time_us", e.time_us);
      if (e.block != 0) number("block_size", e.block);
      to_.word("compile_context"), to_.word("N/A");
      to_.word("user_metadata"), to_.text(e.label);
      to_.word("pool_id"), to_.pair(e.pool.first, e.pool.second);
      frames(e.stack);
    });
  }
  void settings(const snapshot::settings& s) {
    to_.dict([&] {
      to_.word("PYTORCH_CUDA_ALLOC_CONF"), to_.text(s.conf);
      if (!s.recipe.empty()) to_.word("recipe"), to_.text(s.recipe);
      to_.word("max_split_size");
      s.max_split_size == unlimited ? to_.integer(-1) : to_.natural(s.max_split_size);
      to_.word("garbage_collection_threshold"), to_.real(s.garbage_collection_threshold);
      to_.word("expandable_segments"), to_.boolean(s.expandable_segments);
      to_.word("roundup_power2_divisions");
      to_.dict([&] {
        for (std::size_t slot = 0; slot < std::size(s.roundup_power2_divisions); ++slot)
          to_.text(std::to_string(1u << slot)), to_.natural(s.roundup_power2_divisions[slot]);
      });
    });
  }
  void annotation(const snapshot::annotation& a) {
    to_.dict([&] {
      to_.word("stage"), to_.word(a.begins ? "START" : "END");
      to_.word("name"), to_.text(a.name);
      number("device", a.device);
      number("time_us", a.time_us);
    });
  }

  const snapshot& source_;
  const call_stacks& table_;
  std::vector<std::uint32_t> texts_, frames_, stacks_;  // memos of those in the table
  pickle_writer<Out> to_;
};

/// Writes a snapshot as pytorch.org/memory_viz and torch.cuda._memory_viz open it. What PyTorch has no action for is left
/// out; what it has no key for ("block_size", "recipe") stands in keys of its own, which both pass over.
///
///     #include <tessera/observe/capture.hpp>
///     const tessera::trace::snapshot seen = tessera::trace::capture(pool);
///     const auto error = tessera::trace::save("memory.pickle", [&](auto& out) { write_pickle(seen, out); });
///     if (error) std::puts(error->text().c_str());
///
///   Cost:  linear; keeps of what it has written a number for each stack of calls, call and text of those
template <byte_output Out>
void write_pickle(const snapshot& source, Out& out) {
  snapshot_writer<Out>(source, out).write();
}

}  // namespace tessera::trace
