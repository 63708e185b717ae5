// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <tessera/config/words.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/divisions.hpp>
#include <tessera/core/fraction.hpp>
#include <tessera/core/memory_limit.hpp>

namespace tessera::config {

/// Reads the values of settings from words, until one is wrong: then all that follows is passed over.
class value_reader {
 public:
  constexpr value_reader(std::string_view text, std::string_view delimiters) noexcept
      : words_(text, delimiters) {}

  [[nodiscard]] constexpr bool failed() const noexcept { return failed_; }
  [[nodiscard]] constexpr const setting_error& error() const noexcept { return error_; }

 protected:
  struct bounds {
    std::uint64_t least;
    std::uint64_t most;
    std::string_view rule;
  };

  constexpr void fail(const word& at, fault what, std::string_view rule,
                      std::string_view other = {}) noexcept {
    if (failed_) return;
    failed_ = true;
    const bool in_key = at.at == key_.at;
    error_ = {key_.text, in_key ? std::string_view{} : at.text, rule, at.at, what, other};
  }
  constexpr bool expect(std::string_view delimiter, fault what, std::string_view rule) noexcept {
    const word given = words_.next();
    if (!given.text_is(delimiter)) fail(given, what, rule);
    return !failed_;
  }
  /// The next word; an error where none follows, or only a delimiter.
  constexpr word value(fault otherwise, std::string_view rule) noexcept {
    const word given = words_.next();
    if (given.text.empty()) fail(given, fault::missing_value, rule);
    if (words_.is_delimiter(given)) fail(given, given.text == "," ? fault::missing_value : otherwise, rule);
    return given;
  }

  /// Which of the words was written: 0 for those left of the first comma, which `|` separates, and so on.
  constexpr std::size_t choice(std::string_view words, std::string_view rule) noexcept {
    const word given = value(fault::not_one_of_its_words, rule);
    std::size_t group = 0;
    for (std::size_t begin = 0; begin <= words.size();) {
      std::size_t end = begin;
      while (end < words.size() && words[end] != ',' && words[end] != '|') ++end;
      if (given.text_is(words.substr(begin, end - begin))) return group;
      group += end < words.size() && words[end] == ',';
      begin = end + 1;
      while (begin < words.size() && words[begin] == ' ') ++begin;
    }
    fail(given, fault::not_one_of_its_words, rule);
    return 0;
  }

  constexpr std::uint64_t whole(const bounds& in, std::string_view rule, bool plain) noexcept {
    const word given = value(fault::not_a_number, rule);
    const word::number read = given.as_integer();
    if (!read.is) {
      fail(given, fault::not_a_number, rule);
    } else if (plain && given.text.size() > 1 && given.text[0] == '0') {
      fail(given, fault::not_a_number, "must be written without leading zeros");
    } else if (read.value < in.least || read.value > in.most) {
      fail(given, fault::out_of_range, in.rule);
    } else if (!read.fits) {
      fail(given, fault::out_of_range, "must be less than 2^64");
    }
    return read.value;
  }
  constexpr std::size_t mebibytes(const bounds& in) noexcept {
    const std::uint64_t count = whole(in, "must be a whole number of MiB", false);
    return count > unlimited >> 20 ? unlimited : static_cast<std::size_t>(count) << 20;
  }
  constexpr std::size_t power_of_two(const bounds& in) noexcept {
    const word before = words_.ahead();
    const std::uint64_t count = whole(in, "must be a whole number", false);
    if (!std::has_single_bit(count)) fail(before, fault::out_of_range, in.rule);
    return static_cast<std::size_t>(count);
  }
  constexpr fraction decimal(const bounds& in) noexcept {
    const word given = value(fault::not_a_number, not_decimal);
    const word::number read = given.as_billionths();
    if (!read.is) {
      fail(given, fault::not_a_number, not_decimal);
    } else if (read.value < in.least || read.value > in.most) {
      fail(given, fault::out_of_range, in.rule);
    }
    return {read.value};
  }
  /// Bytes, or `unlimited` for a number below 0.
  constexpr std::size_t gibibytes_or_less(const bounds& in) noexcept {
    const word given = value(fault::not_a_number, not_decimal);
    const bool negative = given.text.starts_with('-');
    const word::number read = word{given.text.substr(negative)}.as_billionths();
    if (!read.is) {
      fail(given, fault::not_a_number, not_decimal);
    } else if (!negative && read.value > in.most) {
      fail(given, fault::out_of_range, in.rule);
    }
    return negative && read.value > 0 ? unlimited : in_gibibytes(read.value);
  }
  constexpr memory_limit share_or_gibibytes() noexcept {
    constexpr std::string_view rule = "must be a positive share of the device, or a number of GiB with a G";
    const word given = value(fault::not_a_number, rule);
    const bool in_gib = given.text.ends_with('G') || given.text.ends_with('g');
    const word::number read = word{given.text.substr(0, given.text.size() - in_gib)}.as_billionths();
    if (!read.is) {
      fail(given, fault::not_a_number, rule);
    } else if (read.value == 0) {
      fail(given, fault::out_of_range, rule);
    }
    return in_gib ? memory_limit(in_gibibytes(read.value)) : memory_limit(fraction{read.value});
  }

  constexpr divisions parts(bool zero_alone) noexcept {
    const word first = words_.next();
    if (!first.text_is("[")) return divisions::all(parts_of(first, zero_alone));
    divisions given{};
    std::size_t latest = 0;  // the slot of the latest size
    bool any = false;
    for (word bound = words_.next(); !failed_ && !bound.text_is("]"); bound = words_.next()) {
      const bool rest = bound.text_is(">");
      const std::size_t slot = rest ? divisions::slots - 1 : slot_of(bound);
      if (failed_ || !expect(":", fault::missing_value, "a ':' must follow the size")) break;
      const std::uint32_t count = parts_of(words_.next(), true);
      // The first size also stands for all smaller ones, and > for all larger than the latest.
      for (std::size_t i = rest ? latest + 1 : any ? slot : 0; i <= slot; ++i) given.in_slot[i] = count;
      if (!rest) latest = slot, any = true;
      const word after = words_.next();
      if (after.text_is("]")) break;
      if (!after.text_is(",")) fail(after, fault::malformed, "a ',' must part entries, and a ']' end them");
    }
    return given;
  }
  /// Passes over a list.
  constexpr void skip_list() noexcept {
    constexpr std::string_view rule = "must be a list in brackets";
    const word first = words_.next();
    if (!first.text_is("["))
      return fail(first, first.text.empty() ? fault::missing_value : fault::malformed, rule);
    for (word w = words_.next(); !w.text_is("]"); w = words_.next()) {
      if (w.text.empty()) return fail(w, fault::malformed, rule);
    }
  }

  word_reader words_;
  word key_{};

 private:
  static constexpr std::string_view not_decimal = "must be a decimal number of at most 9 places";

  [[nodiscard]] static constexpr std::size_t in_gibibytes(std::uint64_t billionths) noexcept {
    constexpr std::uint64_t one = 1'000'000'000;
    const std::uint64_t whole = billionths / one;
    return whole >= unlimited >> 30 ? unlimited - 1 : (whole << 30) + ((billionths % one) << 30) / one;
  }
  constexpr std::size_t slot_of(const word& given) noexcept {
    const word::number mib = given.as_integer();
    if (given.text.empty()) {
      fail(given, fault::missing_value, size_rule);
    } else if (!mib.is) {
      fail(given, fault::not_a_number, size_rule);
    } else if (!std::has_single_bit(mib.value)) {
      fail(given, fault::out_of_range, size_rule);
    }
    const auto log2 = static_cast<std::size_t>(std::countr_zero(mib.value));
    return log2 < divisions::slots ? log2 : divisions::slots - 1;
  }
  constexpr std::uint32_t parts_of(const word& given, bool zero_too) noexcept {
    const std::string_view rule = zero_too ? "divisions must be 0 or a power of two below 2^32"
                                           : "divisions must be a power of two below 2^32";
    const word::number n = given.as_integer();
    if (given.text.empty() || words_.is_delimiter(given)) {
      fail(given, fault::missing_value, rule);
    } else if (!n.is) {
      fail(given, fault::not_a_number, rule);
    } else if (n.value >= std::uint64_t{1} << 32 ||
               !(std::has_single_bit(n.value) || (n.value == 0 && zero_too))) {
      fail(given, fault::out_of_range, rule);
    }
    return failed_ ? 0 : static_cast<std::uint32_t>(n.value);
  }
  static constexpr std::string_view size_rule = "a size must be a power of two in MiB, or >";

  setting_error error_{};
  bool failed_ = false;
};

}  // namespace tessera::config
