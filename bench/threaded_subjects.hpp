// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/concurrent/locked.hpp>
#include <tessera/concurrent/per_stream.hpp>
#include <tessera/provider/simulated_device.hpp>

#include "subjects.hpp"

/// What may be called by several threads, with the same calls again.
namespace bench {

struct tessera_locked {
  tessera::locked<tessera::pytorch<>, tessera::simulated_device> pool{roomy()};
};
struct tessera_per_stream {
  tessera::per_stream<tessera::pytorch<>, tessera::simulated_device> pool{roomy()};
};

}  // namespace bench
