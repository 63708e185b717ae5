// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "picture.hpp"

/// What a report says in sentences, as markup.
namespace replay::report {

/// Bytes with a space that does not end a line.
[[nodiscard]] std::string bytes_text(std::size_t bytes);
/// How many times what lives at most.
[[nodiscard]] std::string times(std::size_t bytes, const picture& shown);
[[nodiscard]] std::string plural(std::size_t n, const std::string& one, const std::string& several);
[[nodiscard]] std::string number(std::size_t n);
/// What stands below the headline.
[[nodiscard]] std::string lead(const picture& shown);
/// What stands above a map.
[[nodiscard]] std::string moment_text(const drawn& d, const picture& shown);

}  // namespace replay::report
