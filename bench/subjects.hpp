// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdlib>

#include <tessera/core/bytes.hpp>
#include <tessera/core/stream.hpp>
#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

#include "textbook.hpp"

/// What the benchmarks compare, all with the same calls.
namespace bench {

/// A device that never refuses.
inline tessera::simulated_device roomy() {
  return tessera::simulated_device({.capacity = tessera::max_request});
}

struct tessera_pytorch {
  tessera::caching_allocator<tessera::pytorch<>, tessera::simulated_device> pool{roomy()};
};
struct tessera_passthrough {
  tessera::caching_allocator<tessera::passthrough, tessera::simulated_device> pool{roomy()};
};
struct textbook_engine {
  textbook<tessera::simulated_device> pool{roomy()};
};

/// The host heap, which knows no streams and no device.
struct host_heap {
  struct {
    static void* try_allocate(std::size_t bytes, tessera::stream_id = {}) { return std::malloc(bytes); }
    static void deallocate(void* p) { std::free(p); }
    static void record_stream(void*, tessera::stream_id) {}
    static void trim() {}
    auto& device() { return *this; }
    static void hold_events(bool) {}
  } pool;
};

}  // namespace bench
