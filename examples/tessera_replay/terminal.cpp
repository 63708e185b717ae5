// SPDX-License-Identifier: Apache-2.0
#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#else
#include <unistd.h>
#endif

#include <cstdio>

#include "terminal.hpp"

bool replay::errors_go_to_a_terminal() {
#if defined(_WIN32)
  return ::_isatty(::_fileno(stderr)) != 0;
#else
  return isatty(STDERR_FILENO) != 0;
#endif
}

void replay::keep_line_ends_of_output() {
#if defined(_WIN32)
  (void)::_setmode(::_fileno(stdout), _O_BINARY);
#endif
}
