// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include <tessera/replay/recording.hpp>

#include "model.hpp"

/// From a program that fails to the shortest one that fails in the same way.
namespace conformance {

/// A program that breaks the same promise, of which no operation can be left out, and no size or stream be made simpler;
/// at most about so many operations are run for that.
[[nodiscard]] program shrunk(const composition& of, program failing, const std::string& what,
                             std::size_t audit_every = 1, std::size_t most_run = 50'000'000);

/// A program as tessera-replay reads it, and back. A trace knows no handles, no settings, and no trim that keeps something.
[[nodiscard]] tessera::trace::recording recording_of(const program& all, std::string name);
[[nodiscard]] program program_of(const tessera::trace::recording& from);
[[nodiscard]] bool is_all_in_a_trace(const program& all);
/// One operation, in words.
[[nodiscard]] std::string in_words(const operation& o);

/// What is wrong, how to see it again, and the shortest program that shows it, which is also written to a file.
[[nodiscard]] std::string explained(const composition& of, program failing, const fault& found,
                                    std::size_t audit_every);

}  // namespace conformance
