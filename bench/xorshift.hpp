// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace bench {

/// A random number generator with a fixed seed. It is fast and reads no table, so that it adds little to a measured loop.
///   Source:  G. Marsaglia, Xorshift RNGs, 2003
class xorshift {
 public:
  /// Returns a number below `count`.
  ///   Requires: count < 2^32
  std::size_t below(std::size_t count) { return ((next() >> 32) * count) >> 32; }
  /// Returns a size from 512 B to 2 MiB. Each interval between two powers of two is equally likely.
  std::size_t bytes() {
    const std::uint64_t number = next();
    const std::size_t base = std::size_t{512} << (((number >> 32) * 12) >> 32);
    return base + (number & (base - 1));
  }

 private:
  std::uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ * 0x2545F4914F6CDD1Du;
  }

  std::uint64_t state_ = 20241121;
};

}  // namespace bench
