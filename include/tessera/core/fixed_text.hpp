// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

/// A sentence that is put together in a place of its own, so that a signal handler may do it, and who has no memory left.
/// What does not fit is left out.
///
///     const std::size_t wanted = 1000;
///     std::puts(tessera::fixed_text().add("no room for ").add(wanted).add(" bytes").c_str());
class fixed_text {
 public:
  static constexpr std::size_t most = 511;  ///< characters

  fixed_text& add(const char* words) noexcept {
    while (*words != '\0' && length_ < most) text_[length_++] = *words++;
    text_[length_] = '\0';
    return *this;
  }
  fixed_text& add(std::uint64_t number) noexcept { return add_digits(number, 10); }
  /// As %p writes it.
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

  char text_[most + 1] = {};
  std::size_t length_ = 0;
};

}  // namespace tessera
