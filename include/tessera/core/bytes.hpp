// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>

/// Sizes, and numbers that determine sizes. A size is a number of bytes in std::size_t; every prefix is
/// binary.

/// The attribute of a member that adds no bytes to an object if its type is empty, as in
/// `[[TESSERA_NO_UNIQUE_ADDRESS]] my_type member;`. MSVC ignores the standard spelling.
#if defined(_MSC_VER)
#define TESSERA_NO_UNIQUE_ADDRESS msvc::no_unique_address
#else
#define TESSERA_NO_UNIQUE_ADDRESS no_unique_address
#endif

// Other libraries define macros with the names of these functions. For Windows, the builtin functions lack %zu.
#if defined(_WIN32)
#define TESSERA_DETAIL_SNPRINTF std::snprintf
#define TESSERA_DETAIL_VSNPRINTF std::vsnprintf
#else
#define TESSERA_DETAIL_SNPRINTF __builtin_snprintf
#define TESSERA_DETAIL_VSNPRINTF __builtin_vsnprintf
#endif

namespace tessera::inline v0_1 {

inline namespace literals {
[[nodiscard]] constexpr std::size_t operator""_KiB(unsigned long long count) { return count << 10; }
[[nodiscard]] constexpr std::size_t operator""_MiB(unsigned long long count) { return count << 20; }
[[nodiscard]] constexpr std::size_t operator""_GiB(unsigned long long count) { return count << 30; }
}  // namespace literals

/// Means "no bound" if a size is a bound.
inline constexpr std::size_t unlimited = (std::numeric_limits<std::size_t>::max)();

/// The largest request that is served: 1 byte below 1 EiB, as in PyTorch, so that rounding a legal size
/// cannot overflow.
inline constexpr std::size_t max_request = (std::size_t{1} << 60) - 1;

/// The alignment of every block; its size is a multiple of this, too.
inline constexpr std::size_t min_alignment = 64;

/// Rounds n up to a multiple of `step`.
///   Requires:  step > 0; n + step does not overflow
[[nodiscard]] constexpr std::size_t align_up(std::size_t n, std::size_t step) noexcept {
  return (n + step - 1) / step * step;
}

}  // namespace tessera::inline v0_1

namespace tessera::inline v0_1::detail {

/// Prints the broken rule and aborts the program. For mistakes of the caller that cannot be reported
/// otherwise.
[[noreturn]] inline void fatal(const char* rule, const void* pointer = nullptr) noexcept {
  if (pointer != nullptr) {
    // %p has no 0x on Windows.
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    std::fprintf(stderr, "tessera: %s (pointer 0x%llx)\n", rule, static_cast<unsigned long long>(address));
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
  /// Adds an address as "0x" and hexadecimal digits.
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

/// Holds a text as a template argument, as in `pytorch<"max_split_size_mb:128">`.
template <std::size_t Size>
struct fixed_string {
  char chars[Size]{};

  consteval fixed_string(const char (&literal)[Size]) noexcept {
    for (std::size_t i = 0; i < Size; ++i) chars[i] = literal[i];
  }
};

/// Whether n is 0 or large enough for a block.
[[nodiscard]] constexpr bool is_block_size_or_0(std::size_t n) noexcept {
  return n == 0 || n >= min_alignment;
}

/// Returns the larger or the smaller number. std::max and std::min would take <algorithm>, which is slow to compile.
[[nodiscard]] constexpr std::size_t larger(std::size_t a, std::size_t b) noexcept { return a > b ? a : b; }
[[nodiscard]] constexpr std::size_t smaller(std::size_t a, std::size_t b) noexcept { return a < b ? a : b; }

/// Returns a + b, or `unlimited` if the sum overflows.
[[nodiscard]] constexpr std::size_t saturating_add(std::size_t a, std::size_t b) noexcept {
  return a > unlimited - b ? unlimited : a + b;
}

/// Rounds n up to the next of `parts` equal steps between the powers of two around it; a power of two stays.
///   Requires:  1 <= n <= 2^63; parts is a power of two and at most n
[[nodiscard]] constexpr std::size_t next_division(std::size_t n, std::size_t parts) noexcept {
  const std::size_t step = std::bit_floor(n) >> std::countr_zero(parts);
  return (n + step - 1) & ~(step - 1);
}

}  // namespace tessera::inline v0_1::detail

namespace tessera::inline v0_1 {

/// Formats a size for people, for example "1.50 GiB".
class format_bytes {
 public:
  /// Rounds to two digits after the point; below 1 KiB, the bytes are exact.
  explicit format_bytes(std::size_t bytes) noexcept {
    constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    auto value = static_cast<double>(bytes);
    std::size_t unit = 0;
    for (; value >= 1024 && unit + 1 < sizeof units / sizeof *units; ++unit) value /= 1024;
    TESSERA_DETAIL_SNPRINTF(text_, sizeof text_, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  }
  /// The text, which lives as long as this object.
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
  /// Copies a text, and drops what exceeds `capacity`.
  explicit refusal(const char* text) noexcept {
    for (std::size_t i = 0; i < capacity && text[i] != '\0'; ++i) text_[i] = text[i];
  }
  /// Makes a text like std::printf.
  [[nodiscard, gnu::format(printf, 1, 2)]] static refusal format(const char* format, ...) noexcept {
    refusal made;
    std::va_list values;
    va_start(values, format);
    (void)TESSERA_DETAIL_VSNPRINTF(made.text_, sizeof made.text_, format, values);
    va_end(values);
    return made;
  }
  /// The text, which lives as long as this object; empty if nothing was refused.
  [[nodiscard]] const char* text() const noexcept { return text_; }
  /// Whether something was refused.
  [[nodiscard]] explicit operator bool() const noexcept { return text_[0] != '\0'; }

 private:
  char text_[capacity + 1] = {};
};

/// A fraction in billionths, so that it can be a template argument.
struct fraction {
  std::uint64_t billionths = 0;  ///< 0 to 1'000'000'000, or more for a fraction above 1

  /// The fraction as a number: 1 for the whole.
  [[nodiscard]] constexpr double value() const noexcept { return static_cast<double>(billionths) / 1e9; }

  /// Returns this fraction of `whole`, computed in double precision and truncated; `unlimited` if that
  /// overflows.
  [[nodiscard]] constexpr std::size_t of(std::size_t whole) const noexcept {
    const double part = value() * static_cast<double>(whole);
    return part < 0x1p64 ? static_cast<std::size_t>(part) : unlimited;
  }

  /// Returns this fraction of `whole`, rounded to the nearest byte.
  [[nodiscard]] constexpr std::size_t nearest_of(std::size_t whole) const noexcept {
    const double part = value() * static_cast<double>(whole) + 0.5;
    return part < 0x1p64 ? static_cast<std::size_t>(part) : unlimited;
  }

  bool operator==(const fraction&) const = default;
};

/// Returns a fraction of `count` percent.
///   Requires:  count <= 100; write a larger fraction as fraction{...}
[[nodiscard]] constexpr fraction percent(std::uint64_t count) noexcept {
  if (count > 100) detail::fatal("percent: the count is at most 100");
  return {count * 10'000'000};
}
/// Integers only: percent(0.8) would mean 0 percent.
template <std::floating_point Count>
constexpr fraction percent(Count) = delete;

/// Limits reserved memory to a number of bytes, a fraction of the device's capacity, or the smaller of both.
///
/// A fraction of 100 percent is no limit, unless `limits_at_100_percent`.
///
///     constexpr tessera::memory_limit half_but_at_most(64_GiB, tessera::percent(50));
///     static_assert(half_but_at_most.on(80_GiB) == 40_GiB);
struct memory_limit {
  /// How a fraction of the device becomes a number of bytes.
  enum class rounding : unsigned char {
    truncate,  ///< rounded down; limits_at_100_percent applies
    nearest    ///< rounded to the nearest byte; limits_at_100_percent is ignored
  };
  static const memory_limit none;  ///< neither bytes nor a fraction limit

  std::size_t bytes = unlimited;       ///< `unlimited` if the number of bytes does not limit
  fraction share = percent(100);       ///< of the device's capacity; 100 percent does not limit by itself
  bool limits_at_100_percent = false;  ///< whether 100 percent limits to the capacity

  constexpr memory_limit() noexcept = default;
  /// Limits to a number of bytes. A floating-point number is neither bytes nor a fraction, and does not
  /// compile.
  template <std::convertible_to<std::size_t> Bytes>
    requires(!std::floating_point<Bytes>)
  constexpr memory_limit(Bytes max) noexcept : bytes(static_cast<std::size_t>(max)) {}
  /// Limits to a fraction of the device's capacity.
  constexpr memory_limit(fraction max) noexcept : share(max) {}
  /// Takes all members in their order. nvcc writes template arguments in this form.
  constexpr memory_limit(std::size_t max, fraction of_device, bool at_100_percent = false) noexcept
      : bytes(max), share(of_device), limits_at_100_percent(at_100_percent) {}

  /// Returns the limit in bytes on a device of `capacity` bytes; `unlimited` if there is none.
  [[nodiscard]] constexpr std::size_t on(std::size_t capacity,
                                         rounding mode = rounding::truncate) const noexcept {
    const bool is_nearest = mode == rounding::nearest;
    if (share == percent(100) && (!limits_at_100_percent || is_nearest)) return bytes;
    const std::size_t part = is_nearest ? share.nearest_of(capacity) : share.of(capacity);
    return part < bytes ? part : bytes;
  }
  bool operator==(const memory_limit&) const = default;
};
inline constexpr memory_limit memory_limit::none{};

/// Numbers of equal steps between two powers of two, by size. 0 and 1 mean no steps; other numbers must be
/// powers of two.
///
/// Slot 0 is for sizes below 2 MiB, slot i for sizes from 2^(20+i) bytes up to twice that. Slot 15 is for all
/// sizes from 32 GiB on.
///   Source:  PyTorch's roundup_power2_divisions
struct divisions {
  static constexpr std::size_t slot_count = 16;  ///< one for each doubling; the last has all sizes above
  std::uint32_t in_slot[slot_count] = {};        ///< 0 or 1 for no steps

  /// Returns a table with the same number in every slot.
  [[nodiscard]] static constexpr divisions all(std::uint32_t parts) noexcept {
    divisions result;
    for (std::uint32_t& slot : result.in_slot) slot = parts;
    return result;
  }
  /// Returns the number for a size of `bytes` bytes.
  [[nodiscard]] constexpr std::uint32_t of(std::size_t bytes) const noexcept {
    constexpr std::size_t first_of_slot_1 = std::size_t{1} << 21;
    const auto slot = static_cast<unsigned>(std::bit_width(bytes | (first_of_slot_1 - 1)) - 21);
    return in_slot[slot < slot_count ? slot : slot_count - 1];
  }
  /// Whether every slot has 0 or a power of two, as a recipe requires.
  [[nodiscard]] constexpr bool are_powers_of_two() const noexcept {
    for (const std::uint32_t parts : in_slot) {
      if (parts != 0 && !std::has_single_bit(parts)) return false;
    }
    return true;
  }
  bool operator==(const divisions&) const = default;
};

}  // namespace tessera::inline v0_1
