// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace tessera::detail {

/// Prints the broken rule and aborts the program. For mistakes of the caller that cannot be reported
/// otherwise.
[[noreturn]] inline void fatal(const char* rule, const void* pointer = nullptr) noexcept {
  if (pointer != nullptr) {
    std::fprintf(stderr, "tessera: %s (pointer %p)\n", rule, pointer);
  } else {
    std::fprintf(stderr, "tessera: %s\n", rule);
  }
  std::abort();
}

/// A string of fixed capacity. It is async-signal-safe, never allocates, and drops text beyond its capacity.
///
///     const std::size_t bytes = 1000;
///     std::puts(tessera::detail::fixed_text().add("no room for ").add(bytes).add(" bytes").c_str());
class fixed_text {
 public:
  static constexpr std::size_t capacity = 511;  ///< characters

  fixed_text& add(const char* text) noexcept {
    while (*text != '\0' && length_ < capacity) text_[length_++] = *text++;
    text_[length_] = '\0';
    return *this;
  }
  fixed_text& add(std::uint64_t number) noexcept { return add_digits(number, 10); }
  /// Adds an address in the format of %p.
  fixed_text& add_address(std::uint64_t address) noexcept { return add("0x").add_digits(address, 16); }

  [[nodiscard]] const char* c_str() const noexcept { return text_; }
  [[nodiscard]] std::size_t size() const noexcept { return length_; }
  [[nodiscard]] bool empty() const noexcept { return length_ == 0; }

 private:
  fixed_text& add_digits(std::uint64_t number, unsigned base) noexcept {
    char digits[21];
    std::size_t first = sizeof digits - 1;
    digits[first] = '\0';
    do digits[--first] = "0123456789abcdef"[number % base];
    while ((number /= base) > 0);
    return add(digits + first);
  }

  char text_[capacity + 1] = {};
  std::size_t length_ = 0;
};

}  // namespace tessera::detail

namespace tessera {

/// Formats a size for people, for example "1.50 GiB".
class format_bytes {
 public:
  explicit format_bytes(std::size_t bytes) noexcept {
    constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    auto value = static_cast<double>(bytes);
    std::size_t unit = 0;
    for (; value >= 1024 && unit + 1 < sizeof units / sizeof *units; ++unit) value /= 1024;
    __builtin_snprintf(text_, sizeof text_, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  }
  [[nodiscard]] const char* text() const noexcept { return text_; }

 private:
  char text_[16];
};

/// Why a provider refused memory, as text of its own. Empty without a reason.
///
///     const tessera::refusal why("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY");
///     if (why) std::puts(why.text());
class refusal {
 public:
  static constexpr std::size_t capacity = 191;  ///< characters; further ones are dropped

  refusal() noexcept = default;
  explicit refusal(const char* text) noexcept {
    for (std::size_t i = 0; i < capacity && text[i] != '\0'; ++i) text_[i] = text[i];
  }
  /// Makes a text like std::printf.
  [[nodiscard, gnu::format(printf, 1, 2)]] static refusal format(const char* format, ...) noexcept {
    refusal made;
    std::va_list values;
    va_start(values, format);
    (void)__builtin_vsnprintf(made.text_, sizeof made.text_, format, values);
    va_end(values);
    return made;
  }
  [[nodiscard]] const char* text() const noexcept { return text_; }
  [[nodiscard]] explicit operator bool() const noexcept { return text_[0] != '\0'; }

 private:
  char text_[capacity + 1] = {};
};

}  // namespace tessera
