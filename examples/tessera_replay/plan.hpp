// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include <tessera/core/types.hpp>
#include <tessera/trace/recording.hpp>

#include "commands.hpp"
#include "files.hpp"
#include "planner/make_plan.hpp"

namespace replay {

/// Reads the file of --plan; nothing if it was not given.
[[nodiscard]] read_result<std::optional<tessera::plan::made_plan>> read_plan(const arguments& args);

/// Says whether a plan was made of another recording; empty if not.
[[nodiscard]] std::string plan_note(const tessera::plan::memory_plan& plan,
                                    const tessera::trace::recording& source);

/// Says how many requests of the recording the plan served.
[[nodiscard]] std::string served_text(const tessera::plan::plan_usage& used);
/// Warns of a plan that hardly serves the program, or with which the program needs no less memory than with the
/// recipe alone. Both numbers are bytes of the same kind, such as capacities. Empty if neither holds.
[[nodiscard]] std::string plan_warning(const tessera::plan::plan_usage& used, std::size_t with_plan,
                                       std::size_t alone);
/// Writes what the plan served, and the warning, as members of a JSON object that has others before.
[[nodiscard]] std::string plan_json(const tessera::plan::plan_usage& used, const std::string& warning);

}  // namespace replay
