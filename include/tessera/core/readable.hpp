// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdio>

namespace tessera {

/// A number of bytes for people, as in "1.50 GiB".
class readable {
 public:
  explicit readable(std::size_t bytes) noexcept {
    constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    auto value = static_cast<double>(bytes);
    std::size_t unit = 0;
    for (; value >= 1024 && unit + 1 < sizeof units / sizeof *units; ++unit) value /= 1024;
    std::snprintf(text_, sizeof text_, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  }
  [[nodiscard]] const char* text() const noexcept { return text_; }

 private:
  char text_[16];
};

}  // namespace tessera
