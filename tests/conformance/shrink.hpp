// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include <tessera/trace/recording.hpp>

#include "model.hpp"

/// Finds the shortest program that fails in the same way as a program.
namespace conformance {

/// Finds a program that breaks the same rule, in which no operation can be removed and no size or stream
/// simplified. Runs at most about this many operations.
[[nodiscard]] program shrunk(const composition& of, program failing, const std::string& what,
                             std::size_t audit_every = 1, std::size_t most_run = 50'000'000);

/// Converts a program to and from the format of traces. A trace has no handles, no settings, and no partial
/// trim.
[[nodiscard]] tessera::trace::recording recording_of(const program& all, std::string name);
[[nodiscard]] program program_of(const tessera::trace::recording& from);
[[nodiscard]] bool is_all_in_a_trace(const program& all);
/// One operation as text.
[[nodiscard]] std::string in_words(const operation& o);

/// A text with the broken rule, how to run it again, and the shortest program. Also writes that program to a
/// file.
[[nodiscard]] std::string explained(const composition& of, program failing, const fault& found,
                                    std::size_t audit_every);

}  // namespace conformance
