// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

/// A device with streams and segments, and nothing else.
struct no_virtual_memory : tessera::detail::simulated_streams {
  no_virtual_memory() : simulated_streams({}, 0, 0) {}
  void* acquire(std::size_t) noexcept { return nullptr; }
  bool release(void*, std::size_t) noexcept { return true; }
  std::size_t capacity() const noexcept { return 0; }
  std::size_t granularity() const noexcept { return 512; }
};
