// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "picture.hpp"

namespace replay {

/// Whether anything was ever pending.
[[nodiscard]] bool ever_pending(const drawn& shown);
/// What a report's script draws, as JSON that may stand in a script element.
[[nodiscard]] std::string report_data(const picture& shown);

}  // namespace replay
