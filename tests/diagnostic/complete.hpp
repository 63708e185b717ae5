// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/provider/simulated_device.hpp>
#include <tessera/tessera.hpp>

/// A recipe without fault, of which each test spoils one alias.
struct complete {
  using rounding = tessera::recipe::pytorch_family::native::rounding;
  using pools = tessera::recipe::pytorch_family::native::pools;
  using streams = tessera::recipe::pytorch_family::native::streams;
  using split = tessera::recipe::pytorch_family::native::split;
  using pages = tessera::recipe::pytorch_family::native::pages;
  using growth = tessera::recipe::pytorch_family::native::growth;
  using eviction = tessera::recipe::pytorch_family::native::eviction;
  using recovery = tessera::recipe::pytorch_family::native::recovery;
};
