// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <tessera/plan/make_plan.hpp>
#include <tessera/trace/recording.hpp>

#include "commands.hpp"
#include "files.hpp"

namespace replay {

/// Reads the file of --plan; nothing if it was not given.
[[nodiscard]] read_result<std::optional<tessera::plan::made_plan>> read_plan(const arguments& args);

/// Says whether a plan was made of another recording; empty if not.
[[nodiscard]] std::string plan_note(const tessera::memory_plan& plan,
                                    const tessera::trace::recording& source);

}  // namespace replay
