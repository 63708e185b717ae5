// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

// Parts of the messages that death tests expect. Where the system has no regular expressions, GoogleTest has its own, which
// know no brackets.
#if GTEST_USES_POSIX_RE
#define A_NUMBER "[0-9]+"
#define AN_ADDRESS "0x[0-9a-f]+"
#else
#define A_NUMBER "\\d+"
#define AN_ADDRESS "0x\\w+"
#endif
