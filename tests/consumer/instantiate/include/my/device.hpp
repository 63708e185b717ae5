// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/provider/simulated_device.hpp>

namespace my {
class device : public tessera::provider::simulated_device {};
}  // namespace my
