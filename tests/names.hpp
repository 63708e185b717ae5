// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The names of all folders are visible in the namespace of the tests. CMake includes this header before each test.
namespace tessera::inline v0_1 {

namespace concurrent {}
namespace debug {}
namespace interop {}
namespace observe {}
namespace plan {}
namespace policy {}
namespace provider {}
namespace recipe {}
using namespace concurrent;
using namespace debug;
using namespace interop;
using namespace observe;
using namespace plan;
using namespace policy;
using namespace provider;
using namespace recipe;

}  // namespace tessera::inline v0_1
