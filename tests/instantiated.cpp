// SPDX-License-Identifier: Apache-2.0
#define INSTANTIATED

#include "instantiated.hpp"
