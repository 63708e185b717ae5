// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/tessera.hpp>

/// A recipe without fault, of which each test spoils one alias.
struct complete {
  using rounding = tessera::pytorch::rounding;
  using pools = tessera::pytorch::pools;
  using streams = tessera::pytorch::streams;
  using split = tessera::pytorch::split;
  using pages = tessera::pytorch::pages;
  using growth = tessera::pytorch::growth;
  using eviction = tessera::pytorch::eviction;
  using recovery = tessera::pytorch::recovery;
};
