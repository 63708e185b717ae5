// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include <tessera/core/bytes.hpp>
#include <tessera/replay/output.hpp>
#include <tessera/replay/text.hpp>

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

}  // namespace tessera::trace
