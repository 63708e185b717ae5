// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

/// A recipe without fault, of which each test spoils one alias.
struct complete {
  using rounding = tessera::pytorch_native::rounding;
  using pools = tessera::pytorch_native::pools;
  using streams = tessera::pytorch_native::streams;
  using split = tessera::pytorch_native::split;
  using pages = tessera::pytorch_native::pages;
  using growth = tessera::pytorch_native::growth;
  using eviction = tessera::pytorch_native::eviction;
  using recovery = tessera::pytorch_native::recovery;
};
