// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include <tessera/observe/snapshot.hpp>

namespace tessera::inline v0_1::detail {

/// The length in bytes of the first UTF-8 character of `text`; 0 if that character is invalid.
///   Requires:  text is not empty
[[nodiscard]] inline std::size_t utf8_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  // The second byte excludes overlong encodings, surrogates and code points above U+10FFFF.
  const unsigned min = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned max = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < min || byte(1) > max) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return length;
}

/// Converts any bytes to valid UTF-8. An invalid byte becomes U+FFFD.
[[nodiscard]] inline std::string utf8_text(std::string_view text) {
  std::string safe;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    safe += length != 0 ? text.substr(0, length) : std::string_view("\xef\xbf\xbd");
    text.remove_prefix(length != 0 ? length : 1);
  }
  return safe;
}

/// Writes plain data as a Python pickle of protocol 4. Uses only the opcodes that PyTorch's viewer reads.
class pickle_writer {
 public:
  explicit pickle_writer(std::string& out) : out_(out) { code(0x80).code(4); }

  void none() { code('N'); }
  void boolean(bool value) { code(value ? 0x88 : 0x89); }
  void integer(std::int64_t value) {
    const auto bits = static_cast<std::uint64_t>(value);
    if (value >= 0 && value < 1 << 8) {
      code('K').little_endian(bits, 1);
    } else if (value >= 0 && value < 1 << 16) {
      code('M').little_endian(bits, 2);
    } else if (value == static_cast<std::int32_t>(value)) {
      code('J').little_endian(bits, 4);
    } else {
      std::size_t length = 5;
      while (length < 8 && value >> (8 * length - 1) != value >> 63) ++length;
      code(0x8a).code(static_cast<unsigned char>(length)).little_endian(bits, length);
    }
  }
  /// Writes an unsigned number. Numbers above 2^63 - 1, such as `unlimited`, become 2^63 - 1.
  void natural(std::uint64_t value) {
    constexpr auto max = static_cast<std::uint64_t>((std::numeric_limits<std::int64_t>::max)());
    integer(static_cast<std::int64_t>((std::min)(value, max)));
  }
  void real(double value) {
    code('G');
    const auto bits = __builtin_bit_cast(std::uint64_t, value);
    for (int shift = 56; shift >= 0; shift -= 8) code(static_cast<unsigned char>(bits >> shift & 0xff));
  }
  /// Writes a text as valid UTF-8, cut after 1 MiB.
  void text(std::string_view raw) {
    const std::string valid = utf8_text(raw.substr(0, operator""_MiB(1)));
    if (valid.size() < 256) {
      code(0x8c).little_endian(valid.size(), 1);
    } else {
      code('X').little_endian(valid.size(), 4);
    }
    out_ += valid;
  }
  /// Writes a text that is used repeatedly. Each use after the first takes two bytes.
  ///   Requires:  an ASCII literal
  void literal(std::string_view ascii) {
    std::size_t number = 0;
    while (number < count_ && literals_[number].text != ascii) ++number;
    if (number < count_) return repeat(literals_[number].memo);
    text(ascii);
    if (count_ < literals_.size()) literals_[count_++] = {ascii, memoize()};
  }
  /// If `memo` is 0, calls `write` and sets `memo`. Otherwise writes a reference to the earlier value.
  template <typename Write>
  void once(std::uint32_t& memo, Write write) {
    if (memo != 0) return repeat(memo);
    write();
    memo = memoize();
  }

  /// Writes a dict; body() writes keys and values alternately.
  template <typename Body>
  void dict(Body body) {
    code('}').code('(');
    body();
    code('u');
  }
  void empty_list() { code(']'); }
  /// Writes a list of the items for which keep(item) is true. Items come in batches of 1000, because the
  /// viewer passes a batch as the arguments of one call.
  template <typename Range, typename Write, typename Keep>
  void list(const Range& items, Write write, Keep keep) {
    code(']');
    std::size_t open = 0;
    for (const auto& item : items) {
      if (!keep(item)) continue;
      if (open == 0) code('(');
      write(item);
      if (++open == 1000) {
        code('e');
        open = 0;
      }
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
  /// Stores the latest value in the unpickler's memo. Returns its index in the memo plus 1.
  std::uint32_t memoize() {
    const std::uint32_t index = memo_size_++;
    const bool is_short = index < 256;
    code(is_short ? 'q' : 'r').little_endian(index, is_short ? 1 : 4);
    return index + 1;
  }
  void repeat(std::uint32_t memo) {
    const bool is_short = memo <= 256;
    code(is_short ? 'h' : 'j').little_endian(memo - 1, is_short ? 1 : 4);
  }
  pickle_writer& code(unsigned char byte) {
    out_ += static_cast<char>(byte);
    return *this;
  }
  void little_endian(std::uint64_t value, std::size_t length) {
    for (std::size_t i = 0; i < length; ++i) code(static_cast<unsigned char>(value >> 8 * i & 0xff));
  }

  std::string& out_;
  struct written_literal {
    std::string_view text;
    std::uint32_t memo = 0;
  };
  std::array<written_literal, 64> literals_{};
  std::size_t count_ = 0;
  std::uint32_t memo_size_ = 0;
};

/// Writes a snapshot as nested dicts and lists with PyTorch's keys.
class snapshot_writer {
 public:
  snapshot_writer(const observe::snapshot& source, std::string& out)
      : source_(source),
        table_(source.stacks),
        texts_(table_.texts()),
        frames_(table_.frames()),
        stacks_(table_.stacks()),
        to_(out) {}

  void write() {
    to_.dict([&] {
      const auto of_its_device = [&](const observe::snapshot::segment& s) {
        segment(s, static_cast<std::int64_t>(s.device));
      };
      key("segments").list(source_.segments, of_its_device);
      std::vector<std::span<const observe::snapshot::entry>> traces(source_.devices());
      for (std::size_t device = 0; device < traces.size(); ++device)
        traces[device] = source_.trace_of(device);
      key("device_traces").list(traces, [&](std::span<const observe::snapshot::entry> trace) {
        history(trace);
      });
      key("allocator_settings");
      settings(source_.configured);
      key("external_annotations").list(source_.annotations, [&](const auto& a) { annotation(a); });
      if (!source_.host_segments.empty() || !source_.host_traces.empty()) host_memory();
      if (!source_.dropped.empty())
        key("dropped_trace_entries").list(source_.dropped, [&](std::uint64_t count) { to_.natural(count); });
    });
    to_.end();
  }

 private:
  pickle_writer& key(std::string_view name) {
    to_.literal(name);
    return to_;
  }
  /// Writes a call stack. Writes each stack, frame and text once, and references to it after that.
  void frames(std::uint32_t stack) {
    key("frames");
    if (stack == 0) return to_.empty_list();
    to_.once(stacks_[stack - 1],
             [&] { to_.list(table_.stack(stack), [&](std::uint32_t position) { frame(position); }); });
  }
  void frame(std::uint32_t position) {
    const observe::snapshot::call_stacks::frame& f = table_.frame_at(position);
    to_.once(frames_[position], [&] {
      to_.dict([&] {
        key("name");
        text(f.function);
        key("filename");
        text(f.file);
        key("line").integer(static_cast<std::int64_t>(f.line));
      });
    });
  }
  void text(std::uint32_t number) {
    if (number == 0) return to_.text({});
    to_.once(texts_[number - 1], [&] { to_.text(table_.text(number)); });
  }
  void stream(stream_id id) { key("stream").integer(static_cast<std::int64_t>(id.handle)); }

  void host_memory() {
    constexpr std::int64_t host = -1;  // the device number of host memory
    key("host_segments").list(source_.host_segments, [&](const auto& s) { segment(s, host); });
    key("host_traces").list(source_.host_traces, [&](const auto& trace) { history(trace); });
  }
  void history(std::span<const observe::snapshot::entry> trace) {
    const auto is_known = [](const observe::snapshot::entry& e) { return !pytorch_name(e.what).empty(); };
    to_.list(trace, [&](const observe::snapshot::entry& e) { entry(e); }, is_known);
  }
  void segment(const observe::snapshot::segment& s, std::int64_t device) {
    const observe::snapshot::byte_counts counts = s.count_bytes();
    to_.dict([&] {
      key("device").integer(device);
      key("address").natural(s.address);
      key("total_size").natural(s.size);
      key("allocated_size").natural(counts.allocated);
      key("active_size").natural(counts.active);
      key("requested_size").natural(counts.requested);
      stream(s.stream);
      key("segment_type").literal(s.large ? "large" : "small");
      key("segment_pool_id").pair(s.pool.first, s.pool.second);
      key("is_expandable").boolean(s.expandable);
      frames(s.stack);
      key("blocks").list(s.blocks, [&](const observe::snapshot::block& b) { block(b); });
    });
  }
  void block(const observe::snapshot::block& b) {
    using state = observe::snapshot::block::state;
    const std::string_view name = b.is == state::live      ? "active_allocated"
                                  : b.is == state::pending ? "active_pending_free"
                                                           : "inactive";
    to_.dict([&] {
      key("address").natural(b.address);
      key("size").natural(b.size);
      key("requested_size").natural(b.requested);
      key("state").literal(name);
      frames(b.stack);
    });
  }
  void entry(const observe::snapshot::entry& e) {
    const bool is_oom = e.what == observe::snapshot::action::oom;
    to_.dict([&] {
      key("action").literal(pytorch_name(e.what));
      key(is_oom ? "device_free" : "addr").natural(is_oom ? e.device_free : e.address);
      key("size").natural(e.size);
      stream(e.stream);
      key("time_us").natural(e.time_us);
      if (e.block != 0) key("block_size").natural(e.block);
      key("compile_context").literal("N/A");
      key("user_metadata").text(e.label);
      key("pool_id").pair(e.pool.first, e.pool.second);
      frames(e.stack);
    });
  }
  void settings(const observe::snapshot::settings& s) {
    to_.dict([&] {
      key("PYTORCH_CUDA_ALLOC_CONF").text(s.conf);
      if (!s.recipe.empty()) key("recipe").text(s.recipe);
      key("max_split_size");
      if (s.max_split_size == unlimited) {
        to_.integer(-1);
      } else {
        to_.natural(s.max_split_size);
      }
      key("garbage_collection_threshold").real(s.garbage_collection_threshold);
      key("expandable_segments").boolean(s.expandable_segments);
      key("roundup_power2_divisions").dict([&] {
        for (std::size_t slot = 0; slot < std::size(s.roundup_power2_divisions); ++slot) {
          to_.text(std::to_string(1u << slot));
          to_.natural(s.roundup_power2_divisions[slot]);
        }
      });
    });
  }
  void annotation(const observe::snapshot::annotation& a) {
    to_.dict([&] {
      key("stage").literal(a.begins ? "START" : "END");
      key("name").text(a.name);
      key("device").natural(a.device);
      key("time_us").natural(a.time_us);
    });
  }

  const observe::snapshot& source_;
  const observe::snapshot::call_stacks& table_;
  std::vector<std::uint32_t> texts_, frames_, stacks_;  // memos, 0 if not written yet
  pickle_writer to_;
};

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1::observe {

/// Converts a snapshot to a pickle for pytorch.org/memory_viz and torch.cuda._memory_viz.
///
/// Omits actions that PyTorch does not have. Adds the keys "block_size" and "recipe", which both viewers
/// ignore.
///
///     #include <fstream>
///     std::ofstream file("memory.pickle", std::ios::binary);
///     file << tessera::observe::to_pickle(tessera::observe::take_snapshot(allocator));
///
///   Returns:  the bytes of the file
///   Throws:   std::bad_alloc
///   Cost:     linear
[[nodiscard]] inline std::string to_pickle(const snapshot& source) {
  std::string bytes;
  detail::snapshot_writer(source, bytes).write();
  return bytes;
}

}  // namespace tessera::inline v0_1::observe
