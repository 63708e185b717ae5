// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

/// Changes the environment of the test's process; false if the system refuses. Windows has no variable without text: an empty
/// text removes it.
inline bool set_variable(const char* name, const char* text) {
#if defined(_WIN32)
  return ::_putenv_s(name, text) == 0;
#else
  return ::setenv(name, text, 1) == 0;
#endif
}
inline bool unset_variable(const char* name) {
#if defined(_WIN32)
  return ::_putenv_s(name, "") == 0;
#else
  return ::unsetenv(name) == 0;
#endif
}
