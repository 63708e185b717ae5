// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/observe/output.hpp>
#include <tessera/observe/snapshot.hpp>

namespace tessera::trace {

/// Writes plain data as a Python pickle of protocol 4, with the few opcodes that PyTorch's viewer knows.
template <byte_output Out>
class pickle_writer {
 public:
  explicit pickle_writer(Out& out) : out_(out) { code(0x80).code(4); }

  void none() { code('N'); }
  void boolean(bool value) { code(value ? 0x88 : 0x89); }
  void integer(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    if (value >= 0 && value < 1 << 8) return code('K'), little(bits, 1);
    if (value >= 0 && value < 1 << 16) return code('M'), little(bits, 2);
    if (value == static_cast<std::int32_t>(value)) return code('J'), little(bits, 4);
    std::size_t length = 5;
    while (length < 8 && value >> (8 * length - 1) != value >> 63) ++length;
    code(0x8a).code(static_cast<unsigned char>(length));
    little(bits, length);
  }
  /// What does not fit into 63 bits, such as `unlimited`, becomes the most that does.
  void natural(std::uint64_t value) {
    constexpr auto most = static_cast<std::uint64_t>((std::numeric_limits<std::int64_t>::max)());
    integer(static_cast<std::int64_t>((std::min)(value, most)));
  }
  void real(double value) {
    code('G');
    const auto bits = std::bit_cast<std::uint64_t>(value);
    for (int shift = 56; shift >= 0; shift -= 8) code(static_cast<unsigned char>(bits >> shift & 0xff));
  }
  /// A text, in UTF-8 whatever it holds, cut after 1 MiB.
  void text(std::string_view raw) {
    const std::string valid = utf8_text(raw.substr(0, operator""_MiB(1)));
    if (valid.size() < 256) {
      code(0x8c);
      little(valid.size(), 1);
    } else {
      code('X');
      little(valid.size(), 4);
    }
    out_.write(valid);
  }
  /// The same, for one that comes again: from the second time on it takes two bytes.
  ///   Requires:  a literal in ASCII
  void word(std::string_view literal) {
    std::size_t number = 0;
    while (number < count_ && words_[number].text != literal) ++number;
    if (number < count_) return again(words_[number].memo);
    text(literal);
    if (count_ < words_.size()) words_[count_++] = {literal, remember()};
  }
  /// Writes what `write` writes the first time that `memo` is 0, and later refers to it by a few bytes.
  template <typename Write>
  void once(std::uint32_t& memo, Write write) {
    if (memo != 0) return again(memo);
    write();
    memo = remember();
  }

  /// A dict of what body() writes: keys and values by turns.
  template <typename Body>
  void dict(Body body) {
    code('}').code('(');
    body();
    code('u');
  }
  void empty_list() { code(']'); }
  /// A list of what write(item) writes for each that keep(item) keeps, handed over in portions, as Python does: the viewer
  /// makes each portion the arguments of one call.
  template <typename Range, typename Write, typename Keep>
  void list(const Range& items, Write write, Keep keep) {
    code(']');
    std::size_t open = 0;
    for (const auto& item : items) {
      if (!keep(item)) continue;
      if (open == 0) code('(');
      write(item);
      if (++open == 1000) code('e'), open = 0;
    }
    if (open != 0) code('e');
  }
  template <typename Range, typename Write>
  void list(const Range& items, Write write) {
    list(items, write, [](const auto&) { return true; });
  }
  void pair(std::uint64_t first, std::uint64_t second) {
    natural(first);
    natural(second);
    code(0x86);
  }
  void end() { code('.'); }

 private:
  /// Enters what was written last into the unpickler's memo; its number there, counted from 1.
  std::uint32_t remember() {
    const std::uint32_t number = remembered_++;
    const bool is_short = number < 256;
    code(is_short ? 'q' : 'r');
    little(number, is_short ? 1 : 4);
    return number + 1;
  }
  void again(std::uint32_t memo) {
    const bool is_short = memo <= 256;
    code(is_short ? 'h' : 'j');
    little(memo - 1, is_short ? 1 : 4);
  }
  pickle_writer& code(unsigned char byte) {
    const char c = static_cast<char>(byte);
    out_.write({&c, 1});
    return *this;
  }
  void little(std::uint64_t value, std::size_t length) {
    for (std::size_t i = 0; i < length; ++i) code(static_cast<unsigned char>(value >> 8 * i & 0xff));
  }

  Out& out_;
  struct known {
    std::string_view text;
    std::uint32_t memo = 0;
  };
  std::array<known, 64> words_{};
  std::size_t count_ = 0;
  std::uint32_t remembered_ = 0;  // in the unpickler's memo
};

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
