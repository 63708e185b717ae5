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
#include <tessera/observe/snapshot.hpp>

namespace tessera {

namespace detail {

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
    const auto bits = std::bit_cast<std::uint64_t>(value);
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
  snapshot_writer(const snapshot& source, std::string& out)
      : source_(source),
        table_(source.stacks),
        texts_(table_.texts()),
        frames_(table_.frames()),
        stacks_(table_.stacks()),
        to_(out) {}

  void write() {
    to_.dict([&] {
      to_.literal("segments");
      to_.list(source_.segments,
               [&](const snapshot::segment& s) { segment(s, static_cast<std::int64_t>(s.device)); });
      to_.literal("device_traces");
      std::vector<std::span<const snapshot::entry>> traces(source_.devices());
      for (std::size_t device = 0; device < traces.size(); ++device)
        traces[device] = source_.trace_of(device);
      to_.list(traces, [&](std::span<const snapshot::entry> trace) { history(trace); });
      to_.literal("allocator_settings");
      settings(source_.configured);
      to_.literal("external_annotations");
      to_.list(source_.annotations, [&](const snapshot::annotation& a) { annotation(a); });
      if (!source_.host_segments.empty() || !source_.host_traces.empty()) host_memory();
    });
    to_.end();
  }

 private:
  void number(std::string_view key, std::uint64_t value) {
    to_.literal(key);
    to_.natural(value);
  }
  /// Writes a call stack. Writes each stack, frame and text once, and references to it after that.
  void frames(std::uint32_t stack) {
    to_.literal("frames");
    if (stack == 0) return to_.empty_list();
    to_.once(stacks_[stack - 1],
             [&] { to_.list(table_.stack(stack), [&](std::uint32_t position) { frame(position); }); });
  }
  void frame(std::uint32_t position) {
    const snapshot::call_stacks::frame& f = table_.frame_at(position);
    to_.once(frames_[position], [&] {
      to_.dict([&] {
        to_.literal("name");
        text(f.function);
        to_.literal("filename");
        text(f.file);
        to_.literal("line");
        to_.integer(static_cast<std::int64_t>(f.line));
      });
    });
  }
  void text(std::uint32_t number) {
    if (number == 0) return to_.text({});
    to_.once(texts_[number - 1], [&] { to_.text(table_.text(number)); });
  }
  void stream(stream_id id) {
    to_.literal("stream");
    to_.integer(static_cast<std::int64_t>(id.handle));
  }

  void host_memory() {
    constexpr std::int64_t host = -1;  // the device number of host memory
    to_.literal("host_segments");
    to_.list(source_.host_segments, [&](const snapshot::segment& s) { segment(s, host); });
    to_.literal("host_traces");
    to_.list(source_.host_traces, [&](const std::vector<snapshot::entry>& trace) { history(trace); });
  }
  void history(std::span<const snapshot::entry> trace) {
    to_.list(
        trace, [&](const snapshot::entry& e) { entry(e); },
        [](const snapshot::entry& e) { return !pytorch_name(e.what).empty(); });
  }
  void segment(const snapshot::segment& s, std::int64_t device) {
    const snapshot::byte_counts counts = s.count_bytes();
    to_.dict([&] {
      to_.literal("device");
      to_.integer(device);
      number("address", s.address);
      number("total_size", s.size);
      number("allocated_size", counts.allocated);
      number("active_size", counts.active);
      number("requested_size", counts.requested);
      stream(s.stream);
      to_.literal("segment_type");
      to_.literal(s.large ? "large" : "small");
      to_.literal("segment_pool_id");
      to_.pair(s.pool.first, s.pool.second);
      to_.literal("is_expandable");
      to_.boolean(s.expandable);
      frames(s.stack);
      to_.literal("blocks");
      to_.list(s.blocks, [&](const snapshot::block& b) { block(b); });
    });
  }
  void block(const snapshot::block& b) {
    using state = snapshot::block::state;
    to_.dict([&] {
      number("address", b.address);
      number("size", b.size);
      number("requested_size", b.requested);
      to_.literal("state");
      to_.literal(b.is == state::live      ? "active_allocated"
                  : b.is == state::pending ? "active_pending_free"
                                           : "inactive");
      frames(b.stack);
    });
  }
  void entry(const snapshot::entry& e) {
    to_.dict([&] {
      to_.literal("action");
      to_.literal(pytorch_name(e.what));
      if (e.what == snapshot::action::oom) {
        number("device_free", e.device_free);
      } else {
        number("addr", e.address);
      }
      number("size", e.size);
      stream(e.stream);
      number("time_us", e.time_us);
      if (e.block != 0) number("block_size", e.block);
      to_.literal("compile_context");
      to_.literal("N/A");
      to_.literal("user_metadata");
      to_.text(e.label);
      to_.literal("pool_id");
      to_.pair(e.pool.first, e.pool.second);
      frames(e.stack);
    });
  }
  void settings(const snapshot::settings& s) {
    to_.dict([&] {
      to_.literal("PYTORCH_CUDA_ALLOC_CONF");
      to_.text(s.conf);
      if (!s.recipe.empty()) {
        to_.literal("recipe");
        to_.text(s.recipe);
      }
      to_.literal("max_split_size");
      if (s.max_split_size == unlimited) {
        to_.integer(-1);
      } else {
        to_.natural(s.max_split_size);
      }
      to_.literal("garbage_collection_threshold");
      to_.real(s.garbage_collection_threshold);
      to_.literal("expandable_segments");
      to_.boolean(s.expandable_segments);
      to_.literal("roundup_power2_divisions");
      to_.dict([&] {
        for (std::size_t slot = 0; slot < std::size(s.roundup_power2_divisions); ++slot) {
          to_.text(std::to_string(1u << slot));
          to_.natural(s.roundup_power2_divisions[slot]);
        }
      });
    });
  }
  void annotation(const snapshot::annotation& a) {
    to_.dict([&] {
      to_.literal("stage");
      to_.literal(a.begins ? "START" : "END");
      to_.literal("name");
      to_.text(a.name);
      number("device", a.device);
      number("time_us", a.time_us);
    });
  }

  const snapshot& source_;
  const snapshot::call_stacks& table_;
  std::vector<std::uint32_t> texts_, frames_, stacks_;  // memos, 0 if not written yet
  pickle_writer to_;
};

}  // namespace detail

/// Converts a snapshot to a pickle for pytorch.org/memory_viz and torch.cuda._memory_viz.
///
/// Omits actions that PyTorch does not have. Adds the keys "block_size" and "recipe", which both viewers
/// ignore.
///
///     #include <fstream>
///     std::ofstream file("memory.pickle", std::ios::binary);
///     file << tessera::to_pickle(tessera::take_snapshot(pool));
///
///   Returns:  the bytes of the file
///   Throws:   std::bad_alloc
///   Cost:     linear
[[nodiscard]] inline std::string to_pickle(const snapshot& source) {
  std::string bytes;
  detail::snapshot_writer(source, bytes).write();
  return bytes;
}

}  // namespace tessera
