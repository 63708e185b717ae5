// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

/// A recipe without fault, of which each test spoils one alias.
struct complete {
  using rounding = tessera::pytorch_family::native::rounding;
  using pools = tessera::pytorch_family::native::pools;
  using streams = tessera::pytorch_family::native::streams;
  using split = tessera::pytorch_family::native::split;
  using pages = tessera::pytorch_family::native::pages;
  using growth = tessera::pytorch_family::native::growth;
  using eviction = tessera::pytorch_family::native::eviction;
  using recovery = tessera::pytorch_family::native::recovery;
};
