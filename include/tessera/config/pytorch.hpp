// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include <tessera/config/words.hpp>
#include <tessera/core/bytes.hpp>
#include <tessera/core/divisions.hpp>
#include <tessera/core/fraction.hpp>
#include <tessera/core/memory_limit.hpp>

namespace tessera::config {

/// What a PYTORCH_CUDA_ALLOC_CONF says; sizes in bytes.
struct pytorch_settings {
  std::size_t max_split_size = unlimited;
  std::size_t max_non_split_rounding = 20_MiB;
  std::size_t large_segment_size = 20_MiB;
  fraction garbage_collection_threshold{};
  divisions roundup{};
  bool expandable_segments = false;
  memory_limit expandable_segments_reserve{};
  bool async_backend = false;  ///< backend:cudaMallocAsync
  fraction memory_fraction = percent(100);
  bool throw_on_oom = false;
  bool release_lock = false;
  bool graph_capture_record_stream_reuse = false;
  bool pinned_use_background_threads = false;
  bool pinned_use_host_register = false;
  bool pinned_free_catch_all = false;
  std::size_t pinned_num_register_threads = 1;
  std::size_t pinned_max_round_threshold = unlimited;
  std::size_t pinned_max_cached_size = unlimited;
  std::size_t pinned_reserve_segment_size = 0;
  bool operator==(const pytorch_settings&) const = default;
};

/// Reads the keys of one configuration, one after the other.
class pytorch_reader {
 public:
  constexpr explicit pytorch_reader(std::string_view text) noexcept : words_(text) {}

  [[nodiscard]] constexpr std::variant<pytorch_settings, setting_error> read() noexcept {
    while (!failed_ && !words_.at_end()) {
      key_ = words_.next();
      if (key_.is_delimiter()) {
        fail(key_, "a key is expected");
      } else if (expect(":", "a ':' must follow the key")) {
        value();
        if (!failed_ && !words_.at_end()) expect(",", "a ',' must part settings");
      }
    }
    if (failed_) return error_;
    return settings_;
  }

 private:
  constexpr void value() noexcept {
    if (key_.text_is("max_split_size_mb")) {
      settings_.max_split_size = mebibytes();
    } else if (key_.text_is("max_non_split_rounding_mb")) {
      settings_.max_non_split_rounding = mebibytes();
    } else if (key_.text_is("garbage_collection_threshold")) {
      threshold();
    } else if (key_.text_is("roundup_power2_divisions")) {
      divisions_of();
    } else if (key_.text_is("expandable_segments")) {
      const word given = words_.next();
      settings_.expandable_segments = given.text_is("True");
      if (!settings_.expandable_segments && !given.text_is("False")) fail(given, "must be True or False");
    } else if (key_.text_is("backend")) {
      const word given = words_.next();
      if (!given.text_is("native")) fail(given, "only the native backend is decided here");
    } else {
      fail(key_, "no such option");
    }
  }

  constexpr std::size_t mebibytes() noexcept {
    const word given = words_.next();
    std::uint64_t count = 0;
    if (!given.as_integer(count)) {
      fail(given, "must be a whole number of MiB");
    } else if (count <= 20) {
      fail(given, "must be greater than 20, the size of a large segment in MiB");
    }
    return count > unlimited >> 20 ? unlimited : static_cast<std::size_t>(count) << 20;
  }

  constexpr void threshold() noexcept {
    const word given = words_.next();
    std::uint64_t billionths = 0;
    if (!given.as_billionths(billionths)) {
      fail(given, "must be a decimal number of at most 9 places");
    } else if (billionths == 0 || billionths >= 1'000'000'000) {
      fail(given, "must be greater than 0 and less than 1");
    }
    settings_.garbage_collection_threshold = fraction{billionths};
  }

  constexpr void divisions_of() noexcept {
    const word first = words_.next();
    if (!first.text_is("[")) {
      settings_.roundup = divisions::all(parts_of(first, false));
      return;
    }
    settings_.roundup = {};
    std::size_t latest = 0;  // the slot of the latest size
    bool any = false;
    for (word bound = words_.next(); !failed_ && !bound.text_is("]"); bound = words_.next()) {
      const bool rest = bound.text_is(">");
      const std::size_t slot = rest ? divisions::slots - 1 : slot_of(bound);
      if (failed_ || !expect(":", "a ':' must follow the size")) return;
      const std::uint32_t parts = parts_of(words_.next(), true);
      // The first size also stands for all smaller ones, and > for all larger than the latest.
      for (std::size_t i = rest ? latest + 1 : any ? slot : 0; i <= slot; ++i)
        settings_.roundup.in_slot[i] = parts;
      if (!rest) latest = slot, any = true;
      const word after = words_.next();
      if (after.text_is("]")) return;
      if (!after.text_is(",")) fail(after, "a ',' must part entries, and a ']' end them");
    }
  }

  constexpr std::size_t slot_of(const word& given) noexcept {
    std::uint64_t mib = 0;
    if (!given.as_integer(mib) || !std::has_single_bit(mib))
      fail(given, "a size must be a power of two in MiB, or >");
    const auto log2 = static_cast<std::size_t>(std::countr_zero(mib));
    return log2 < divisions::slots ? log2 : divisions::slots - 1;
  }

  constexpr std::uint32_t parts_of(const word& given, bool zero_too) noexcept {
    std::uint64_t n = 0;
    if (given.as_integer(n) && n < std::uint64_t{1} << 32 && (std::has_single_bit(n) || (n == 0 && zero_too)))
      return static_cast<std::uint32_t>(n);
    fail(given, zero_too ? "divisions must be 0 or a power of two below 2^32"
                         : "divisions must be a power of two below 2^32");
    return 0;
  }

  constexpr bool expect(std::string_view delimiter, std::string_view rule) noexcept {
    const word given = words_.next();
    if (!given.text_is(delimiter)) fail(given, rule);
    return !failed_;
  }
  constexpr void fail(const word& at, std::string_view rule) noexcept {
    if (failed_) return;
    failed_ = true;
    const bool in_key = at.at == key_.at;
    error_ = {key_.text, in_key ? std::string_view{} : at.text, rule, at.at};
  }

  word_reader words_;
  word key_{};
  pytorch_settings settings_{};
  setting_error error_{};
  bool failed_ = false;
};

/// Reads the settings in a PYTORCH_CUDA_ALLOC_CONF; an empty text stands for the defaults, and the last of equal keys
/// counts. Stricter than PyTorch, which takes any delimiter for any other and passes over what follows a number.
///   Cost:  linear in the text; works in constant expressions
[[nodiscard]] constexpr std::variant<pytorch_settings, setting_error> parse_pytorch(
    std::string_view text) noexcept {
  return pytorch_reader(text).read();
}

}  // namespace tessera::config
