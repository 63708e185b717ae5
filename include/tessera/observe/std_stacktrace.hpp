// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <version>

#if defined(__cpp_lib_stacktrace)
#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <stacktrace>
#endif

#include <tessera/observe/history.hpp>

namespace tessera::inline v0_1::observe {

/// Takes call stacks with std::stacktrace, for history_with_stacks. C++23 adds <stacktrace>; without it, this type is
/// incomplete. GCC needs the option -lstdc++exp to link it, or -lstdc++_libbacktrace before GCC 14.
///   Cost:  some microseconds for each stack
struct std_stacktrace;

#if defined(__cpp_lib_stacktrace)
struct std_stacktrace {
  /// A call as the standard library stores it: its address.
  using frame = std::stacktrace_entry;
  /// Takes no stack if host memory runs out.
  std::size_t operator()(std::span<frame> frames) const noexcept {
    using size = std::stacktrace::size_type;  // 16 bits in GCC 16
    const std::size_t most = (std::numeric_limits<size>::max)() - 1u;
    const std::stacktrace taken =
        std::stacktrace::current(1, static_cast<size>((std::min)(frames.size(), most)));
    std::copy(taken.begin(), taken.end(), frames.begin());
    return taken.size();
  }
  /// Looks up the function, the file and the line of a call.
  ///   Throws:  std::bad_alloc
  [[nodiscard]] static stack_frame describe(const frame& call) {
    return {call.description(), call.source_file(), call.source_line()};
  }
};
#endif

}  // namespace tessera::inline v0_1::observe
