// expect: poisoned
// SPDX-License-Identifier: Apache-2.0
#include "../unit/provider/without_linux.hpp"

int file = memfd_create("", 0);
